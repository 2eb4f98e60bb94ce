//! Matrix products.

mod cpu;
mod few_rows;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cpu::{Mat, MatMut, Threads, matmul};
pub use few_rows::few_rows;

/// What a product does with the values of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrites them without reading them.
    Set,
    /// Adds to them.
    Add,
}

/// Values of a GPU's temporary array of a product that is added: 64 MiB.
pub const SUM_VALUES: usize = 1 << 24;

/// Rows of `[rows, columns]` that a GPU adds at once. They come in multiples of 256, so that an operand begins where a
/// device lets a buffer begin.
pub(crate) fn rows_at_once([rows, columns]: [usize; 2]) -> usize {
    const ROWS: usize = 256;
    (SUM_VALUES / columns / ROWS * ROWS).max(ROWS).min(rows)
}
