//! Matrix products.

mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cpu::{Mat, MatMut, Threads, matmul};

/// What a product does with the values of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrites them without reading them.
    Set,
    /// Adds to them.
    Add,
}
