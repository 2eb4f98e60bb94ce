//! Matrix products as plain loops in `f64`.

use super::Mat;

/// Returns `a · b`, row-major.
///
/// # Panics
/// If the inner dimensions differ.
pub fn matmul(a: Mat, b: Mat) -> Vec<f64> {
    let ([rows, inner], [b_rows, columns]) = (a.shape(), b.shape());
    assert_eq!(inner, b_rows, "inner dimensions");
    let value = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        (0..inner).map(|k| f64::from(a.at(row, k)) * f64::from(b.at(k, column))).sum()
    };
    (0..rows * columns).map(value).collect()
}
