//! Matrix products.

mod cpu;
mod few_rows;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cpu::{Mat, MatMut, Threads, matmul};
pub use few_rows::few_rows;

/// Treatment of a product's previous output values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrites them without reading them.
    Set,
    /// Adds to them.
    Add,
}

/// Maximum length of a GPU's temporary array for a product that is added: 64 MiB.
pub const SUM_VALUES: usize = 1 << 24;

/// Returns the number of rows of `[rows, columns]` that a GPU adds at once: a multiple of 256, so that an operand
/// starts at a valid buffer offset.
pub(crate) fn rows_at_once([rows, columns]: [usize; 2]) -> usize {
    const ROWS: usize = 256;
    (SUM_VALUES / columns / ROWS * ROWS).max(ROWS).min(rows)
}
