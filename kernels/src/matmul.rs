//! Products of matrices that are parts of larger ones, on the CPU.
//!
//! A matrix is seen through a [`Mat`]: a transpose and a block of it are other views of the same memory, so that nothing is
//! ever copied for a product. The products themselves are the crate `gemm-f32`'s, which chooses its instructions when the program
//! runs (AVX-512, AVX2 with FMA, or what every processor has). A value is summed in an order that depends on the shapes and
//! the processor's caches, and on nothing else: the number of threads changes no bit (`tests/training.rs`).

use gemm_common::Parallelism;
use std::{marker::PhantomData, ops::Range};

/// Multiplications from which on a product is given to all threads: below, waking them takes longer.
const WORTH_THREADS: usize = 192 * 192 * 192;

/// A matrix in somebody's memory, to read.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    first: *const f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    memory: PhantomData<&'a [f32]>,
}

/// A matrix in somebody's memory, to write: nobody else sees its values while it lives. Its rows are contiguous.
pub struct MatMut<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    memory: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is a reference to `f32`s, shared or exclusive, and those may go to another thread.
unsafe impl Send for Mat<'_> {}
// SAFETY: as above.
unsafe impl Sync for Mat<'_> {}
// SAFETY: as above.
unsafe impl Send for MatMut<'_> {}

/// What becomes of the values that stand where a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// They are written over, and not read.
    Over,
    /// The product is added to them.
    Add,
}

/// Who computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread alone: for work that is already spread.
    One,
    /// All threads of the rayon pool, if the product is large enough.
    Pool,
}

impl<'a> Mat<'a> {
    /// `values` as a matrix, row after row.
    ///
    /// # Panics
    /// If there are not `rows · columns` values.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Mat<'a> {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} rows has {columns} values in each");
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
        // One past the end is as far as an empty block reaches.
        let first = self.first.wrapping_add(offset);
        Mat { first, rows: rows.len(), columns: columns.len(), ..self }
    }

    /// The values of a row.
    ///
    /// # Panics
    /// If there is no such row, or its values do not lie side by side (a transpose).
    pub fn row(&self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_stride == 1, "only a matrix as it stands in memory has rows");
        // SAFETY: the view was made from a slice that holds these values and lives as long.
        unsafe { std::slice::from_raw_parts(self.first.add(row * self.row_stride), self.columns) }
    }
}

impl<'a> MatMut<'a> {
    /// `values` as a matrix, row after row.
    ///
    /// # Panics
    /// If there are not `rows · columns` values.
    pub fn new(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> MatMut<'a> {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} rows has {columns} values in each");
        MatMut { first: values.as_mut_ptr(), rows, columns, row_stride: columns, memory: PhantomData }
    }

    /// The same matrix, lent for a while.
    pub fn lend(&mut self) -> MatMut<'_> {
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

    /// The first `columns` columns, and the others.
    ///
    /// # Panics
    /// If there are fewer.
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

    /// Cuts the matrix into blocks of `rows` by `columns`, those of the first rows first.
    ///
    /// # Panics
    /// If they do not fill it exactly.
    pub fn tiles(self, rows: usize, columns: usize) -> Vec<MatMut<'a>> {
        assert!(
            self.rows.is_multiple_of(rows) && self.columns.is_multiple_of(columns),
            "tiles fill a matrix"
        );
        let (down, across) = (self.rows / rows, self.columns / columns);
        let tile = |index: usize| {
            let offset = index / across * rows * self.row_stride + index % across * columns;
            // No two tiles share a value, and `self` is gone.
            let first = self.first.wrapping_add(offset);
            MatMut { first, rows, columns, row_stride: self.row_stride, memory: PhantomData }
        };
        (0..down * across).map(tile).collect()
    }

    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the view was made from a slice that holds these values and lives as long, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.row_stride), self.columns) }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The matrix to read.
    pub fn view(&self) -> Mat<'_> {
        let MatMut { rows, columns, row_stride, .. } = *self;
        Mat { first: self.first, rows, columns, row_stride, column_stride: 1, memory: PhantomData }
    }
}

fn check(part: &Range<usize>, whole: usize) {
    assert!(part.start <= part.end && part.end <= whole, "{part:?} of {whole} rows or columns");
}

/// `a · b`, each value summed in `f64`: what [`matmul`] comes close to.
///
/// # Panics
/// If the inner dimensions differ.
pub fn matmul_reference(a: Mat, b: Mat) -> Vec<f64> {
    assert_eq!(a.columns, b.rows, "inner dimensions");
    let at = |m: &Mat, row: usize, column: usize| {
        // SAFETY: the view holds this row and column.
        f64::from(unsafe { *m.first.add(row * m.row_stride + column * m.column_stride) })
    };
    let value = |index: usize| {
        let (row, column) = (index / b.columns, index % b.columns);
        (0..a.columns).map(|inner| at(&a, row, inner) * at(&b, inner, column)).sum()
    };
    (0..a.rows * b.columns).map(value).collect()
}

/// `into ← a · b`, or `into ← into + a · b`.
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
    let (rows, columns) = (into.rows, into.columns);
    let (row, column) = (into.row_stride as isize, 1);
    let strides = |view: &Mat| (view.row_stride as isize, view.column_stride as isize);
    let ((a_row, a_column), (b_row, b_column)) = (strides(&a), strides(&b));
    // The micro-kernels write columns: a result in rows is computed as its transpose, bᵀ · aᵀ.
    let (m, n, into_column, into_row, left, left_column, left_row, right, right_column, right_row) =
        if column < row {
            (columns, rows, row, column, b.first, b_row, b_column, a.first, a_row, a_column)
        } else {
            (rows, columns, column, row, a.first, a_column, a_row, b.first, b_column, b_row)
        };
    // SAFETY: each pointer is to the first value of a view, and each value that the shapes and strides reach is in it. Nothing
    // else reads or writes `into` meanwhile: it is borrowed exclusively.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            m,
            n,
            a.columns,
            into.first,
            into_column,
            into_row,
            write == Write::Add,
            left,
            left_column,
            left_row,
            right,
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
