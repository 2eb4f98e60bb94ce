//! Matrix products on the CPU, of views into larger matrices.
//!
//! A [`Mat`] is a view: its transpose and its blocks are other views of the same memory, so a product does not copy
//! them. The crate `gemm-f32` computes the products; it picks AVX-512, AVX2 with FMA or the baseline at run time. The
//! order of a sum depends only on the shapes and the processor's caches. The number of threads does not change a bit
//! (`tests/layers.rs`).

use super::Write;
use gemm_common::Parallelism;
use std::{marker::PhantomData, ops::Range};

/// Minimum number of multiplications for several threads. Below, waking them takes longer.
const WORTH_THREADS: usize = 192 * 192 * 192;

/// A read-only view of a matrix.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    first: *const f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    memory: PhantomData<&'a [f32]>,
}

/// An exclusive view of a matrix whose rows are contiguous.
pub struct MatMut<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    memory: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is a shared or exclusive reference to `f32`s, which may go to another thread.
unsafe impl Send for Mat<'_> {}
// SAFETY: as above.
unsafe impl Sync for Mat<'_> {}
// SAFETY: as above.
unsafe impl Send for MatMut<'_> {}

/// Threads that compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only, for work that is already parallel.
    One,
    /// All threads of the rayon pool, if the product is large enough.
    Pool,
}

impl<'a> Mat<'a> {
    /// Returns `values` as a row-major matrix.
    ///
    /// # Panics
    /// If there are not `rows · columns` values.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Mat<'a> {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} by {columns}");
        let first = values.as_ptr();
        Mat { first, rows, columns, row_stride: columns, column_stride: 1, memory: PhantomData }
    }

    #[must_use]
    pub fn transposed(self) -> Mat<'a> {
        let Mat { rows, columns, row_stride, column_stride, .. } = self;
        Mat { rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride, ..self }
    }

    /// # Panics
    /// If the block is not inside the matrix.
    #[must_use]
    pub fn block(self, rows: Range<usize>, columns: Range<usize>) -> Mat<'a> {
        check(&rows, self.rows);
        check(&columns, self.columns);
        let offset = rows.start * self.row_stride + columns.start * self.column_stride;
        // An empty block may begin one past the end.
        let first = self.first.wrapping_add(offset);
        Mat { first, rows: rows.len(), columns: columns.len(), ..self }
    }

    /// Returns the number of rows and of columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// # Panics
    /// If the row or the column is out of bounds.
    pub fn at(&self, row: usize, column: usize) -> f32 {
        assert!(row < self.rows && column < self.columns, "{row}, {column} of {:?}", self.shape());
        // SAFETY: the view contains this row and column.
        unsafe { *self.first.add(row * self.row_stride + column * self.column_stride) }
    }

    /// Returns the values of a row.
    ///
    /// # Panics
    /// If the row is out of bounds, or the view is a transpose.
    pub fn row(&self, row: usize) -> &'a [f32] {
        assert!(
            row < self.rows && self.column_stride == 1,
            "row {row} of {:?}, not of a transpose",
            self.shape()
        );
        // SAFETY: the view was made from a slice that contains these values and lives as long.
        unsafe { std::slice::from_raw_parts(self.first.add(row * self.row_stride), self.columns) }
    }
}

impl<'a> MatMut<'a> {
    /// Returns `values` as a row-major matrix.
    ///
    /// # Panics
    /// If there are not `rows · columns` values.
    pub fn new(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> MatMut<'a> {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} by {columns}");
        MatMut { first: values.as_mut_ptr(), rows, columns, row_stride: columns, memory: PhantomData }
    }

    /// Returns the same view with a shorter lifetime.
    pub fn reborrow(&mut self) -> MatMut<'_> {
        MatMut { memory: PhantomData, ..*self }
    }

    /// # Panics
    /// If the block is not inside the matrix.
    #[must_use]
    pub fn block(self, rows: Range<usize>, columns: Range<usize>) -> MatMut<'a> {
        check(&rows, self.rows);
        check(&columns, self.columns);
        let first = self.first.wrapping_add(rows.start * self.row_stride + columns.start);
        MatMut { first, rows: rows.len(), columns: columns.len(), ..self }
    }

    /// Returns the first `columns` columns, and the others.
    ///
    /// # Panics
    /// If the matrix has fewer columns.
    pub fn split_columns(self, columns: usize) -> (MatMut<'a>, MatMut<'a>) {
        check(&(0..columns), self.columns);
        let right = MatMut {
            first: self.first.wrapping_add(columns),
            columns: self.columns - columns,
            memory: PhantomData,
            ..self
        };
        (MatMut { columns, ..self }, right)
    }

    /// Cuts the matrix into blocks of `rows` by `columns`, row by row.
    ///
    /// # Panics
    /// If the blocks do not fill it exactly.
    pub fn tiles(self, rows: usize, columns: usize) -> Vec<MatMut<'a>> {
        assert!(
            self.rows.is_multiple_of(rows) && self.columns.is_multiple_of(columns),
            "tiles fill a matrix"
        );
        let (down, across) = (self.rows / rows, self.columns / columns);
        let tile = |index: usize| {
            let offset = index / across * rows * self.row_stride + index % across * columns;
            // No two tiles share a value, and `self` is consumed.
            let first = self.first.wrapping_add(offset);
            MatMut { first, rows, columns, row_stride: self.row_stride, memory: PhantomData }
        };
        (0..down * across).map(tile).collect()
    }
}

fn check(part: &Range<usize>, whole: usize) {
    assert!(part.start <= part.end && part.end <= whole, "{part:?} of {whole} rows or columns");
}

/// Computes `into ← a · b` or `into ← into + a · b`, with `a` `[M, K]`, `b` `[K, N]` and `into` `[M, N]`.
///
/// # Panics
/// If the shapes do not fit.
pub fn matmul(write: Write, into: &mut MatMut, a: Mat, b: Mat, threads: Threads) {
    assert_eq!(a.columns, b.rows, "inner dimensions");
    assert_eq!((into.rows, into.columns), (a.rows, b.columns), "shape of the result");
    let worth = a.rows * a.columns * b.columns >= WORTH_THREADS;
    let parallelism = match threads {
        Threads::Pool if worth => Parallelism::Rayon(0),
        Threads::Pool | Threads::One => Parallelism::None,
    };
    let strides = |view: &Mat| [view.row_stride as isize, view.column_stride as isize];
    let (into_row, into_column) = (into.row_stride as isize, 1);
    // The micro-kernels write columns: a result whose rows are contiguous is computed as its transpose, bᵀ·aᵀ.
    let (left, right, m, n, into_strides) = if into_column < into_row {
        (b.transposed(), a.transposed(), into.columns, into.rows, [into_row, into_column])
    } else {
        (a, b, into.rows, into.columns, [into_column, into_row])
    };
    let ([left_row, left_column], [right_row, right_column]) = (strides(&left), strides(&right));
    // SAFETY: each pointer is the first value of a view that contains every value that the shapes and strides reach.
    // `into` is borrowed exclusively.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            m,
            n,
            a.columns,
            into.first,
            into_strides[0],
            into_strides[1],
            write == Write::Add,
            left.first,
            left_column,
            left_row,
            right.first,
            right_column,
            right_row,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
