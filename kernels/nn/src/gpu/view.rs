//! Views of matrices in arrays.

use super::array::Array;
use std::ops::Range;

/// A read-only view of a matrix in an array: `rows` rows of `columns` values, `stride` values from row to row, the
/// first at `first`; or its transpose.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub array: &'a Array,
    pub rows: usize,
    pub columns: usize,
    pub first: usize,
    pub stride: usize,
    pub transposed: bool,
}

impl<'a> View<'a> {
    /// Returns a view of the first `rows · columns` values, row-major.
    pub fn new(array: &'a Array, [rows, columns]: [usize; 2]) -> View<'a> {
        View { array, rows, columns, first: 0, stride: columns, transposed: false }
    }

    #[must_use]
    pub fn transposed(self) -> View<'a> {
        View { transposed: !self.transposed, ..self }
    }

    /// Returns a view of some of the rows.
    ///
    /// # Panics
    /// If the rows are out of bounds.
    #[must_use]
    pub fn of_rows(self, rows: Range<usize>) -> View<'a> {
        assert!(
            rows.start <= rows.end && rows.end <= self.shape()[0],
            "{rows:?} of {} rows",
            self.shape()[0]
        );
        match self.transposed {
            false => View { first: self.first + rows.start * self.stride, rows: rows.len(), ..self },
            true => View { first: self.first + rows.start, columns: rows.len(), ..self },
        }
    }

    /// Returns a batch of this matrix alone.
    pub(crate) fn single(self) -> Batch<'a> {
        Batch { view: self, between: self.rows * self.stride }
    }

    /// Returns the number of rows and of columns of the view.
    pub fn shape(&self) -> [usize; 2] {
        if self.transposed { [self.columns, self.rows] } else { [self.rows, self.columns] }
    }
}

/// A batch of matrices, `between` values from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub view: View<'a>,
    pub between: usize,
}

impl Batch<'_> {
    #[must_use]
    pub fn transposed(self) -> Self {
        Batch { view: self.view.transposed(), ..self }
    }
}
