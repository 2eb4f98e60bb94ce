//! The kernels of a GPU: their rates, and whether they agree with the CPU's.

mod closeness;
mod products;
mod rates;

pub use closeness::{Closeness, closeness};
pub use rates::measure;

/// How much is measured.
pub struct Options {
    /// Values that each kernel works on, in Mi (2^20).
    pub mebivalues: u64,
    /// Runs of each kernel; the shortest counts.
    pub rounds: u16,
}
