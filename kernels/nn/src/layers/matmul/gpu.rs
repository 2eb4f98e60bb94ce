//! Matrix products on a GPU, of views into arrays.
//!
//! On CUDA they are cuBLASLt's if it is installed. Otherwise the kernels are `cubek-matmul`'s, the library behind
//! Burn's products on GPUs, called without its autotuning. [`algorithms`] chooses by shape and device, so that a
//! product is always summed in the same order. That library only overwrites its output, so a product that is added
//! needs a temporary array of at most [`SUM_VALUES`](super::SUM_VALUES) values. Operands are read in place, transposed
//! or not; sums are `f32`.

use super::{Write, rows_at_once};
use crate::gpu::{
    Array, Batch, Gpu, GpuError, Precision, Result, View,
    launch::{UNITS, grid_of_units, lanes, line},
};
use cubecl::{
    ir::{ElemType, FloatKind},
    prelude::*,
    server::ServerError,
    zspace::{Shape, Strides},
};
use cubek_matmul::{
    definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError},
    launch::launch_ref,
    multi_level::Strategy,
};
use cubek_std::InputBinding;

/// Minimum length of a side for tensor cores.
const TILE: usize = 16;
/// Smallest inner dimension for which two stages are loaded in turn.
const TWO_STAGES: usize = 128;

/// An algorithm for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// cuBLASLt's choice, if it is installed.
    Library,
    /// Tensor cores, double-buffered.
    TensorDouble,
    /// Tensor cores, one stage after the other.
    Tensor,
    /// Units that read from shared memory.
    Units,
    /// One unit per value.
    Plain,
}

impl Algorithm {
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Library, Algorithm::TensorDouble, Algorithm::Tensor, Algorithm::Units, Algorithm::Plain];

    /// Returns the strategy of `cubek-matmul`; `None` for another library's algorithm.
    fn strategy(self) -> Option<Strategy> {
        Some(match self {
            Algorithm::Library => return None,
            Algorithm::TensorDouble => Strategy::DoubleCyclicCmma(Default::default()),
            Algorithm::Tensor => Strategy::SimpleCyclicCmma(Default::default()),
            Algorithm::Units => Strategy::SimpleUnit(Default::default()),
            Algorithm::Plain => Strategy::Naive,
        })
    }
}

/// Returns the algorithms for `[m, k] · [k, n]`, the best first; the next is tried if one is unavailable. `tensor`
/// means that the device multiplies these operands on tensor cores into `f32`. Operands of `f32` are never rounded for
/// tensor cores.
pub fn algorithms(tensor: bool, operands: Precision, [m, n, k]: [usize; 3]) -> &'static [Algorithm] {
    if !tensor || operands == Precision::F32 || m.min(n).min(k) < TILE {
        return &[Algorithm::Units, Algorithm::Plain];
    }
    if k < TWO_STAGES {
        return &[Algorithm::Tensor, Algorithm::Units, Algorithm::Plain];
    }
    &[Algorithm::TensorDouble, Algorithm::Tensor, Algorithm::Units, Algorithm::Plain]
}

/// Adds contiguous blocks of `block` vectors to the beginnings of blocks of `whole`.
#[cube(launch)]
fn add<F: Float, N: Size>(
    into: &mut [Vector<F, N>],
    from: &[Vector<f32, N>],
    first: usize,
    count: usize,
    block: usize,
    whole: usize,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let to = first + at / block * whole + at % block;
        into[to] = Vector::cast_from(Vector::<f32, N>::cast_from(into[to]) + from[at]);
    }
}

impl Gpu {
    /// Computes `out ← lhs · rhs` or `out ← out + lhs · rhs`. `out` is `[m, n]`, in the operands' precision or in
    /// `f32`.
    ///
    /// # Errors
    /// If a length or precision differs, or no algorithm is available.
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn product(&self, write: Write, out: &Array, [m, n]: [usize; 2], lhs: View, rhs: View) -> Result {
        out.expect_len(m * n)?;
        let (lhs_shape, rhs_shape) = (lhs.shape(), rhs.shape());
        assert_eq!(lhs_shape[1], rhs_shape[0], "inner dimensions");
        assert_eq!([m, n], [lhs_shape[0], rhs_shape[1]], "shape of the result");
        assert!(lhs_shape[1] > 0, "the inner dimension is not empty");
        if m * n == 0 {
            return Ok(());
        }
        if write == Write::Set {
            return self.products(1, out, lhs.single(), rhs.single());
        }
        if self.products_by_library(write, 1, out, [lhs.single(), rhs.single()])? {
            return Ok(());
        }
        let at_once = rows_at_once([m, n]);
        let sums = self.temporary(at_once * n, Precision::F32)?;
        for begin in (0..m).step_by(at_once) {
            let rows = begin..(begin + at_once).min(m);
            let count = rows.len() * n;
            let part = lhs.of_rows(rows);
            self.products(1, &sums, Batch { view: part, between: lhs.rows * lhs.stride }, rhs.single())?;
            self.add_blocks(out, begin * n, &sums, count, [count, count])?;
        }
        Ok(())
    }

    /// Computes `out ← lhs · rhs` by one algorithm, for measurements and comparisons.
    ///
    /// # Errors
    /// Same as [`Gpu::product`], or if the device lacks the algorithm.
    pub fn product_by(&self, algorithm: Algorithm, out: &Array, lhs: View, rhs: View) -> Result {
        match algorithm {
            Algorithm::Library => {
                match self.products_by_library(Write::Set, 1, out, [lhs.single(), rhs.single()])? {
                    true => Ok(()),
                    false => Err(GpuError::Device("cuBLASLt is not here, or has no algorithm".into())),
                }
            }
            _ => self.products_by(&[algorithm], 1, out, lhs.single(), rhs.single()),
        }
    }

    /// Computes products with cuBLASLt. Returns `false` if it is not installed or does not support them.
    fn products_by_library(
        &self,
        write: Write,
        count: usize,
        out: &Array,
        operands: [Batch<'_>; 2],
    ) -> Result<bool> {
        #[cfg(feature = "cuda")]
        if let Some(nvidia) = &self.nvidia {
            let [lhs, rhs] = operands.map(|operand| operand.view);
            rhs.array.expect_precision(lhs.array.precision())?;
            let whole = View::new(out, [lhs.shape()[0], rhs.shape()[1]]);
            for operand in operands.into_iter().chain([whole.single()]) {
                self.binding(count, operand)?;
            }
            return nvidia.products(&self.client, write == Write::Add, count, out, operands);
        }
        let _ = (write, count, out, operands);
        Ok(false)
    }

    /// Returns whether products of such operands use tensor cores.
    pub fn has_tensor_cores(&self, operands: Precision) -> bool {
        let (operand, sum) = (operands.element(), ElemType::Float(FloatKind::F32));
        let cmma = &self.client.properties().features.matmul.cmma;
        self.tensor_cores
            && cmma.iter().any(|it| [it.a_type, it.b_type, it.cd_type] == [operand, operand, sum])
    }

    /// Returns the same device without tensor cores, with portable kernels.
    pub fn without_tensor_cores(mut self) -> Gpu {
        self.tensor_cores = false;
        #[cfg(feature = "cuda")]
        {
            self.nvidia = None;
        }
        self
    }

    /// Computes `count` products, whose results are contiguous in the first values of `out`.
    pub(crate) fn products(&self, count: usize, out: &Array, lhs: Batch, rhs: Batch) -> Result {
        if self.products_by_library(Write::Set, count, out, [lhs, rhs])? {
            return Ok(());
        }
        let [m, k] = lhs.view.shape();
        let operands = lhs.view.array.precision();
        let algorithms = algorithms(self.has_tensor_cores(operands), operands, [m, rhs.view.shape()[1], k]);
        self.products_by(algorithms, count, out, lhs, rhs)
    }

    /// Computes products with the first available of these algorithms.
    fn products_by(
        &self,
        algorithms: &[Algorithm],
        count: usize,
        out: &Array,
        lhs: Batch,
        rhs: Batch,
    ) -> Result {
        let (lhs_array, rhs_array) = (lhs.view.array, rhs.view.array);
        rhs_array.expect_precision(lhs_array.precision())?;
        if out.precision() != Precision::F32 {
            out.expect_precision(lhs_array.precision())?;
        }
        let [m, n] = [lhs.view.shape()[0], rhs.view.shape()[1]];
        let out = Batch { view: View::new(out, [m, n]), between: m * n };
        let globals = MatmulGlobalElems {
            lhs: lhs_array.element(),
            rhs: rhs_array.element(),
            out: out.view.array.element(),
        };
        let [lhs, rhs, out] =
            [self.binding(count, lhs)?, self.binding(count, rhs)?, self.binding(count, out)?];
        let mut why = None;
        for algorithm in algorithms {
            let lhs = InputBinding::new(lhs.clone(), globals.lhs);
            let rhs = InputBinding::new(rhs.clone(), globals.rhs);
            let mut elements = MatmulElems::from_globals(&globals);
            let Some(strategy) = algorithm.strategy() else { continue };
            match launch_ref(&strategy.into(), &self.client, lhs, rhs, out.clone(), &mut elements) {
                Ok(()) => return Ok(()),
                Err(MatmulSetupError::Launch(error)) => return Err(ServerError::Launch(error).into()),
                Err(error) => why = Some(error),
            }
        }
        Err(GpuError::Device(format!("no algorithm multiplies these matrices: {why:?}")))
    }

    /// Returns a batch as the library's argument.
    fn binding(&self, count: usize, Batch { view, between }: Batch) -> Result<TensorBinding> {
        let View { array, rows, columns, first, stride, transposed } = view;
        let end = first + (count - 1) * between + rows.saturating_sub(1) * stride + columns;
        if end > array.len() {
            return Err(GpuError::WrongLength { expected: end, got: array.len() });
        }
        let handle = match first {
            0 => array.handle().clone(),
            _ => self.part(array, first, end - first)?.handle().clone(),
        };
        let between = between.max(rows * stride);
        let (shape, strides) = match transposed {
            false => ([count, rows, columns], [between, stride, 1]),
            true => ([count, columns, rows], [between, 1, stride]),
        };
        // SAFETY: shape and strides do not reach beyond `end`, which is inside the array.
        Ok(unsafe { TensorBinding::from_raw_parts(handle, Strides::new(&strides), Shape::from(shape)) })
    }

    /// Computes `into[first..] ← into[first..] + from` for `count` values in blocks; see [`add`].
    pub(crate) fn add_blocks(
        &self,
        into: &Array,
        first: usize,
        from: &Array,
        count: usize,
        [block, whole]: [usize; 2],
    ) -> Result {
        let lanes = lanes(&[first, count, block, whole]);
        add::launch(
            &self.client,
            grid_of_units(count / lanes),
            line(UNITS),
            lanes,
            into.vectors(lanes),
            from.f32s(lanes)?,
            first / lanes,
            count / lanes,
            block / lanes,
            whole / lanes,
            into.element(),
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_f32_never_go_to_tensor_cores() {
        for k in [1, 64, 4096] {
            assert_eq!(algorithms(true, Precision::F32, [4096, 4096, k])[0], Algorithm::Units);
            assert_eq!(algorithms(false, Precision::Bf16, [4096, 4096, k])[0], Algorithm::Units);
        }
        assert_eq!(algorithms(true, Precision::Bf16, [4096, 4096, 64])[0], Algorithm::Tensor);
        assert_eq!(algorithms(true, Precision::Bf16, [4096, 4096, 4096])[0], Algorithm::TensorDouble);
        assert_eq!(algorithms(true, Precision::Bf16, [8, 4096, 4096])[0], Algorithm::Units);
    }
}
