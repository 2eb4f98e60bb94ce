//! What a network's passes are made of on a GPU: one file a kernel, over arrays that the caller plans.
//!
//! The slow versions are the CPU's kernels of the same names in this crate. What differs from the rest of [`super`]: nobody
//! agrees on these values bit for bit, so the device's own arithmetic does them. Sums, roots and softmax are `f32` whatever
//! the arrays hold, and each is added in an order that depends on shapes alone: one device gives the same bits every time.

mod adamw;
mod agree;
pub mod attention;
mod cross_entropy;
mod embedding;
mod launch;
pub mod matmul;
mod norm;
mod pointwise;
mod rms_norm;
mod rotary;
mod swiglu;

pub use agree::{Closeness, closeness};
pub use embedding::{Segments, Tokens};
pub use rotary::Angles;

use super::{Device, GpuError, array};
use cubecl::{
    bytes::Bytes,
    ir::{ElemType, FloatKind},
    prelude::{BufferArg, CubeElement},
    server::{Handle, IoError, LaunchError, ServerError},
};
use half::{bf16, f16, slice::HalfFloatSliceExt};

/// Values of an array at most. The kernels' indices have 32 bits, and the last units of a launch reach beyond the end.
pub const VALUES_MAX: usize = (1 << 32) - (1 << 25);
/// Arrays are whole blocks of so many bytes, so that a vector of any width fits.
const BLOCK: usize = 16;

/// What the values of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    F32,
    /// 8 bits of exponent as `f32` has, and 8 of precision: what a network is trained in.
    Bf16,
    /// 5 bits of exponent, 11 of precision. Gradients need factors to be held in it, which nothing here has: it is for devices
    /// without [`Precision::Bf16`], to test on them that what is stored is not what is added up in.
    F16,
}

impl Precision {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        if self == Precision::F32 { 4 } else { 2 }
    }

    fn element(self) -> ElemType {
        ElemType::Float(match self {
            Precision::F32 => FloatKind::F32,
            Precision::Bf16 => FloatKind::BF16,
            Precision::F16 => FloatKind::F16,
        })
    }
}

/// Values on a device. A clone is the same memory.
#[derive(Clone)]
pub struct Array {
    handle: Handle,
    /// Bytes from the first value to where the handle ends.
    bytes: usize,
    len: usize,
    precision: Precision,
}

impl Array {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    fn element(&self) -> ElemType {
        self.precision.element()
    }

    /// As a kernel's argument, in vectors of `lanes` values.
    fn vectors(&self, lanes: usize) -> BufferArg {
        array(&self.handle, self.len / lanes)
    }

    /// As a kernel's argument that is `f32` whatever else is not.
    fn f32s(&self, lanes: usize) -> Result<BufferArg, GpuError> {
        self.expect_precision(Precision::F32)?;
        Ok(self.vectors(lanes))
    }

    fn expect_precision(&self, expected: Precision) -> Result<(), GpuError> {
        if self.precision != expected {
            return Err(GpuError::Precision { expected, got: self.precision });
        }
        Ok(())
    }

    fn expect_len(&self, expected: usize) -> Result<(), GpuError> {
        if self.len != expected {
            return Err(GpuError::WrongLength { expected, got: self.len });
        }
        Ok(())
    }
}

impl Device {
    /// Whether arrays can hold this.
    pub fn supports(&self, precision: Precision) -> bool {
        self.client.properties().supports_type(precision.element())
    }

    /// Room for so many values, which are none yet. It stays where it is: it is never moved, nor merged with others'.
    pub fn array(&self, len: usize, precision: Precision) -> Result<Array, GpuError> {
        let bytes = self.check_size(len, precision)?;
        let handle = self.client.memory_persistent_allocation((), |()| self.client.empty(bytes));
        Ok(Array { handle, bytes, len, precision })
    }

    /// Copies values to the device, each rounded to the nearest of `precision`, ties to even.
    pub fn upload_array(&self, values: &[f32], precision: Precision) -> Result<Array, GpuError> {
        let array = self.array(values.len(), precision)?;
        self.overwrite_array(&array, values)?;
        Ok(array)
    }

    /// Copies values into an array, rounded as [`Device::upload_array`] does.
    pub fn overwrite_array(&self, array: &Array, values: &[f32]) -> Result<(), GpuError> {
        array.expect_len(values.len())?;
        let bytes = match array.precision {
            Precision::F32 => f32::as_bytes(values).to_vec(),
            Precision::Bf16 => {
                let mut rounded = vec![bf16::ZERO; values.len()];
                rounded.convert_from_f32_slice(values);
                bf16::as_bytes(&rounded).to_vec()
            }
            Precision::F16 => {
                let mut rounded = vec![f16::ZERO; values.len()];
                rounded.convert_from_f32_slice(values);
                f16::as_bytes(&rounded).to_vec()
            }
        };
        if !bytes.is_empty() {
            self.client.write(&array.handle, Bytes::from_bytes_vec(bytes));
        }
        Ok(())
    }

    /// Copies values from the device.
    pub fn download_array(&self, array: &Array) -> Result<Vec<f32>, GpuError> {
        let bytes = self.read_bytes(&array.handle)?;
        let bytes = &bytes[..array.len * array.precision.bytes()];
        let (words, halves) = (bytes.as_chunks::<4>().0, bytes.as_chunks::<2>().0);
        Ok(match array.precision {
            Precision::F32 => words.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Precision::Bf16 => halves.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            Precision::F16 => halves.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        })
    }

    /// `len` values of an array from `first` on, one at least, in the same memory. They must begin where the device lets a buffer begin.
    pub fn part(&self, array: &Array, first: usize, len: usize) -> Result<Array, GpuError> {
        let end = first.saturating_add(len);
        if end > array.len || len == 0 {
            return Err(GpuError::WrongLength { expected: end.max(first + 1), got: array.len });
        }
        let bytes = array.precision.bytes();
        let alignment = self.client.properties().memory.alignment as usize;
        if !(first * bytes).is_multiple_of(alignment.max(BLOCK)) {
            return Err(GpuError::Misplaced { first, alignment: alignment.max(BLOCK) / bytes });
        }
        let begins = first * bytes;
        let size = (len * bytes).next_multiple_of(BLOCK).max(BLOCK).min(array.bytes - begins);
        let handle = array.handle.clone();
        let handle = handle.offset_start(begins as u64).offset_end((array.bytes - begins - size) as u64);
        Ok(Array { handle, bytes: size, len, precision: array.precision })
    }

    /// Bytes of an array, if the device has buffers of that size.
    fn check_size(&self, len: usize, precision: Precision) -> Result<usize, GpuError> {
        if len > VALUES_MAX {
            return Err(GpuError::TooLong { max: VALUES_MAX });
        }
        let bytes = (len * precision.bytes()).next_multiple_of(BLOCK).max(BLOCK);
        if bytes as u64 > self.client.properties().memory.max_page_size {
            return Err(GpuError::OutOfMemory { bytes: bytes as u64 });
        }
        Ok(bytes)
    }
}

/// Out of memory is told apart: a user can do something about it.
impl From<ServerError> for GpuError {
    fn from(error: ServerError) -> GpuError {
        match &error {
            ServerError::Io(IoError::OutOfMemory { size, .. } | IoError::BufferTooBig { size, .. }) => {
                GpuError::OutOfMemory { bytes: *size }
            }
            ServerError::Launch(LaunchError::OutOfMemory { .. }) => GpuError::OutOfMemory { bytes: 0 },
            ServerError::Unwritten { root, .. } => GpuError::from((**root).clone()),
            ServerError::Several { errors, .. } if !errors.is_empty() => GpuError::from(errors[0].clone()),
            _ => GpuError::Device(error.to_string()),
        }
    }
}
