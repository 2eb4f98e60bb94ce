//! Products of matrices that are parts of arrays.
//!
//! The reference is [`crate::matmul::matmul_reference`]. The kernels are `cubek-matmul`'s, the library behind Burn's products on
//! GPUs, called without its search for the fastest one: [`ways`] names the kernel from the shapes and from what the device
//! has, so that the same product is summed in the same order every time. Operands are read where they lie, transposed or
//! not; sums are `f32`. The library writes over its output only, so a product that is added passes through a room of at most
//! [`SUM_VALUES`] values and one more pass.

use super::{
    Array, Precision,
    launch::{UNITS, a_unit_each, lanes, line},
};
use crate::{
    gpu::{Device, GpuError},
    matmul::Write,
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
use std::ops::Range;

/// Values of the room for a product that is added: 64 MiB.
pub const SUM_VALUES: usize = 1 << 24;
/// Rows of such a product are taken in multiples of this, so that an operand begins where a device lets a buffer begin.
const ROWS: usize = 256;
/// The narrowest side that is worth a tensor core's tile.
const TILE: usize = 16;
/// From this inner dimension on there are two stages to load in turn.
const TWO_STAGES: usize = 128;

/// A matrix in an array, to read: `rows` rows of `columns` values each, `stride` values from one row to the next, the first at
/// `first`; or the transpose of that.
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
    /// The first `rows · columns` values, row after row.
    pub fn new(array: &'a Array, [rows, columns]: [usize; 2]) -> View<'a> {
        View { array, rows, columns, first: 0, stride: columns, transposed: false }
    }

    #[must_use]
    pub fn transposed(self) -> View<'a> {
        View { transposed: !self.transposed, ..self }
    }

    /// Some of the rows of the matrix as it is seen.
    ///
    /// # Panics
    /// If there are no such rows.
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

    fn alone(self) -> Each<'a> {
        Each { view: self, between: self.rows * self.stride }
    }

    /// Rows and columns as they are seen.
    pub fn shape(&self) -> [usize; 2] {
        if self.transposed { [self.columns, self.rows] } else { [self.rows, self.columns] }
    }
}

/// As many matrices as a product is told, `between` values from one to the next.
#[derive(Clone, Copy)]
pub(super) struct Each<'a> {
    pub view: View<'a>,
    pub between: usize,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On tensor cores, the next stage being loaded while one is multiplied.
    TensorTwice,
    /// On tensor cores, one stage after the other.
    Tensor,
    /// On tensor cores by the processor's own matrix instructions, in two stages. Not chosen; for the report.
    TensorMma,
    /// As that, loaded by the tensor memory accelerator. Not chosen; for the report.
    TensorTma,
    /// By units, from memory that a cube shares.
    Units,
    /// A unit for each value.
    Plain,
}

impl Way {
    pub const ALL: [Way; 6] =
        [Way::TensorTwice, Way::Tensor, Way::TensorMma, Way::TensorTma, Way::Units, Way::Plain];

    fn strategy(self) -> Strategy {
        match self {
            Way::TensorTwice => Strategy::DoubleCyclicCmma(Default::default()),
            Way::Tensor => Strategy::SimpleCyclicCmma(Default::default()),
            Way::TensorMma => Strategy::DoubleCyclicMma(Default::default()),
            Way::TensorTma => Strategy::SimpleTmaMma(Default::default()),
            Way::Units => Strategy::SimpleUnit(Default::default()),
            Way::Plain => Strategy::Naive,
        }
    }
}

/// The ways to compute `[m, k] · [k, n]`, the best first. One that turns out to be unavailable is followed by the next.
/// `tensor` says that the device multiplies these operands on tensor cores into `f32`; operands of `f32` are never
/// rounded for them.
pub fn ways(tensor: bool, operands: Precision, [m, n, k]: [usize; 3]) -> &'static [Way] {
    if !tensor || operands == Precision::F32 || m.min(n).min(k) < TILE {
        return &[Way::Units, Way::Plain];
    }
    if k < TWO_STAGES {
        return &[Way::Tensor, Way::Units, Way::Plain];
    }
    &[Way::TensorTwice, Way::Tensor, Way::Units, Way::Plain]
}

/// Adds blocks of `block` vectors that lie side by side to the first ones of blocks of `whole`.
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

impl Device {
    /// `out ← lhs · rhs`, or `out ← out + lhs · rhs`. `out` is `[m, n]`, in the operands' precision or in `f32`.
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn product(
        &self,
        write: Write,
        out: &Array,
        [m, n]: [usize; 2],
        lhs: View,
        rhs: View,
    ) -> Result<(), GpuError> {
        out.expect_len(m * n)?;
        let (lhs_shape, rhs_shape) = (lhs.shape(), rhs.shape());
        assert_eq!(lhs_shape[1], rhs_shape[0], "inner dimensions");
        assert_eq!([m, n], [lhs_shape[0], rhs_shape[1]], "shape of the result");
        assert!(lhs_shape[1] > 0, "a product has something to add");
        if m * n == 0 {
            return Ok(());
        }
        if write == Write::Over {
            return self.products(1, out, lhs.alone(), rhs.alone()).map(|_| ());
        }
        let at_once = (SUM_VALUES / n / ROWS * ROWS).clamp(ROWS, m.next_multiple_of(ROWS)).min(m);
        let sums = self.passing(at_once * n, Precision::F32)?;
        for begin in (0..m).step_by(at_once) {
            let rows = begin..(begin + at_once).min(m);
            let count = rows.len() * n;
            let part = lhs.of_rows(rows);
            self.products(1, &sums, Each { view: part, between: lhs.rows * lhs.stride }, rhs.alone())?;
            self.add_blocks(out, begin * n, &sums, count, [count, count])?;
        }
        Ok(())
    }

    /// `out ← lhs · rhs` by one way, if the device has it; to measure and to compare.
    pub fn product_by(&self, way: Way, out: &Array, lhs: View, rhs: View) -> Result<(), GpuError> {
        self.by(&[way], 1, out, lhs.alone(), rhs.alone()).map(|_| ())
    }

    /// The way that [`Device::product`] goes first.
    pub fn way(&self, operands: Precision, [m, n, k]: [usize; 3]) -> Way {
        ways(self.has_tensor_cores(operands), operands, [m, n, k])[0]
    }

    /// Whether products of such operands go to tensor cores.
    pub fn has_tensor_cores(&self, operands: Precision) -> bool {
        let (operand, sum) = (operands.element(), ElemType::Float(FloatKind::F32));
        let cmma = &self.client.properties().features.matmul.cmma;
        self.tensor_cores
            && cmma.iter().any(|it| [it.a_type, it.b_type, it.cd_type] == [operand, operand, sum])
    }

    /// The same device, whose products go to tensor cores no more.
    pub fn without_tensor_cores(mut self) -> Device {
        self.tensor_cores = false;
        self
    }

    /// `count` products, `out` having their results side by side in its first values.
    pub(super) fn products(&self, count: usize, out: &Array, lhs: Each, rhs: Each) -> Result<Way, GpuError> {
        let [m, k] = lhs.view.shape();
        let operands = lhs.view.array.precision();
        let ways = ways(self.has_tensor_cores(operands), operands, [m, rhs.view.shape()[1], k]);
        self.by(ways, count, out, lhs, rhs)
    }

    /// By the first of these ways that is available.
    fn by(&self, ways: &[Way], count: usize, out: &Array, lhs: Each, rhs: Each) -> Result<Way, GpuError> {
        let (lhs_array, rhs_array) = (lhs.view.array, rhs.view.array);
        rhs_array.expect_precision(lhs_array.precision())?;
        if out.precision() != Precision::F32 {
            out.expect_precision(lhs_array.precision())?;
        }
        let [m, n] = [lhs.view.shape()[0], rhs.view.shape()[1]];
        let out = Each { view: View::new(out, [m, n]), between: m * n };
        let globals = MatmulGlobalElems {
            lhs: lhs_array.element(),
            rhs: rhs_array.element(),
            out: out.view.array.element(),
        };
        let [lhs, rhs, out] =
            [self.binding(count, lhs)?, self.binding(count, rhs)?, self.binding(count, out)?];
        let mut why = None;
        for way in ways {
            let lhs = InputBinding::new(lhs.clone(), globals.lhs);
            let rhs = InputBinding::new(rhs.clone(), globals.rhs);
            let mut elements = MatmulElems::from_globals(&globals);
            match launch_ref(&way.strategy().into(), &self.client, lhs, rhs, out.clone(), &mut elements) {
                Ok(()) => return Ok(*way),
                Err(MatmulSetupError::Launch(error)) => return Err(ServerError::Launch(error).into()),
                Err(error) => why = Some(error),
            }
        }
        Err(GpuError::Device(format!("no way to multiply these matrices: {why:?}")))
    }

    /// Matrices as the library takes them.
    fn binding(&self, count: usize, Each { view, between }: Each) -> Result<TensorBinding, GpuError> {
        let View { array, rows, columns, first, stride, transposed } = view;
        let end = first + (count - 1) * between + rows.saturating_sub(1) * stride + columns;
        if end > array.len() {
            return Err(GpuError::WrongLength { expected: end, got: array.len() });
        }
        let handle = match first {
            0 => array.handle.clone(),
            _ => self.part(array, first, end - first)?.handle,
        };
        let between = between.max(rows * stride);
        let (shape, strides) = match transposed {
            false => ([count, rows, columns], [between, stride, 1]),
            true => ([count, columns, rows], [between, 1, stride]),
        };
        // SAFETY: all that the shape and the strides reach lies before `end`, which was checked to be in the array.
        Ok(unsafe { TensorBinding::from_raw_parts(handle, Strides::new(&strides), Shape::from(shape)) })
    }

    /// `into[first..] ← into[first..] + from`, of which `count` values are taken in blocks; see [`add`].
    pub(super) fn add_blocks(
        &self,
        into: &Array,
        first: usize,
        from: &Array,
        count: usize,
        [block, whole]: [usize; 2],
    ) -> Result<(), GpuError> {
        let lanes = lanes(&[first, count, block, whole]);
        add::launch(
            &self.client,
            a_unit_each(count / lanes),
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

    /// Room that is given back when it is dropped, and then used again by whoever asks next.
    pub(super) fn passing(&self, len: usize, precision: Precision) -> Result<Array, GpuError> {
        let bytes = self.check_size(len, precision)?;
        Ok(Array { handle: self.client.empty(bytes), bytes, len, precision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_f32_are_never_given_to_tensor_cores() {
        for k in [1, 64, 4096] {
            assert_eq!(ways(true, Precision::F32, [4096, 4096, k])[0], Way::Units);
            assert_eq!(ways(false, Precision::Bf16, [4096, 4096, k])[0], Way::Units);
        }
        assert_eq!(ways(true, Precision::Bf16, [4096, 4096, 64])[0], Way::Tensor);
        assert_eq!(ways(true, Precision::Bf16, [4096, 4096, 4096])[0], Way::TensorTwice);
        assert_eq!(ways(true, Precision::Bf16, [8, 4096, 4096])[0], Way::Units);
    }
}
