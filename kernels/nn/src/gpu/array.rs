//! Arrays of values in a GPU's memory, and the errors of a GPU's operations.

use crate::{
    device::{Device, DeviceError},
    precision::Precision,
};
use cubecl::{
    bytes::Bytes,
    client::Client,
    ir::{ElemType, FloatKind},
    prelude::{BufferArg, CubeElement},
    server::{Handle, IoError, LaunchError, ServerError},
};

/// Maximum length of an array. Indices have 32 bits, and the last units of a launch have indices beyond the end.
pub const VALUES_MAX: usize = (1 << 32) - (1 << 25);
/// Arrays are whole blocks of this many bytes, so that a vector of any width fits.
pub(super) const BLOCK: usize = 16;

/// Reason why a GPU operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("there are {got} values, where {expected} are needed")]
    WrongLength { expected: usize, got: usize },
    #[error("the values are {got:?}, and here they must be {expected:?}")]
    Precision { expected: Precision, got: Precision },
    #[error("an array or matrix has more than {max} values")]
    TooLong { max: usize },
    #[error(
        "a part of an array begins at value {first}, and on this device it must be a multiple of {alignment}"
    )]
    Misplaced { first: usize, alignment: usize },
    #[error("the device has no memory for {bytes} bytes more")]
    OutOfMemory { bytes: u64 },
    #[error("token {token} at {position} is outside the vocabulary of {vocab}")]
    Token { position: usize, token: u32, vocab: usize },
    #[error("the device failed: {0}")]
    Device(String),
}

impl GpuError {
    /// Returns the error of an operation on `device`.
    pub(crate) fn on(&self, device: Device) -> DeviceError {
        DeviceError::Failed { device, why: self.to_string() }
    }
}

/// Result of a GPU operation.
pub type Result<T = (), E = GpuError> = std::result::Result<T, E>;

/// Values on a GPU. A clone is the same memory.
#[derive(Clone)]
pub struct Array {
    pub(super) handle: Handle,
    /// Number of bytes from the first value to the handle's end.
    pub(super) bytes: usize,
    pub(super) len: usize,
    pub(super) precision: Precision,
}

impl Precision {
    pub(crate) fn element(self) -> ElemType {
        ElemType::Float(match self {
            Precision::F32 => FloatKind::F32,
            Precision::Bf16 => FloatKind::BF16,
            Precision::F16 => FloatKind::F16,
        })
    }
}

impl Array {
    /// Allocates an array of `len` values without writing it. Its memory is never moved or merged with another's.
    ///
    /// # Errors
    /// If the device has no buffer of that size.
    pub(super) fn persistent(client: &Client, len: usize, precision: Precision) -> Result<Array> {
        let bytes = check_size(client, len, precision)?;
        let handle = client.memory_persistent_allocation((), |()| client.empty(bytes));
        Ok(Array { handle, bytes, len, precision })
    }

    /// Allocates an array from a pool, to which its memory returns when it is dropped.
    ///
    /// # Errors
    /// Same as [`Array::persistent`].
    pub(super) fn temporary(client: &Client, len: usize, precision: Precision) -> Result<Array> {
        let bytes = check_size(client, len, precision)?;
        Ok(Array { handle: client.empty(bytes), bytes, len, precision })
    }

    /// Copies values to the device, each rounded to the nearest of `precision`, ties to even.
    ///
    /// # Errors
    /// Same as [`Array::persistent`].
    pub(super) fn upload(client: &Client, values: &[f32], precision: Precision) -> Result<Array> {
        let array = Array::persistent(client, values.len(), precision)?;
        array.overwrite(client, values)?;
        Ok(array)
    }

    /// Copies values into the array, rounded as [`Array::upload`] does.
    ///
    /// # Errors
    /// If the lengths differ.
    pub(super) fn overwrite(&self, client: &Client, values: &[f32]) -> Result {
        self.expect_len(values.len())?;
        let bytes = match self.precision {
            Precision::F32 => f32::as_bytes(values).to_vec(),
            narrow => {
                let mut bytes = Vec::with_capacity(narrow.bytes() * values.len());
                narrow.encode(values, &mut bytes);
                bytes
            }
        };
        if !bytes.is_empty() {
            client.write(&self.handle, Bytes::from_bytes_vec(bytes));
        }
        Ok(())
    }

    /// Returns the values of the array's `bytes`.
    pub(super) fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.len);
        self.precision.decode(&bytes[..self.len * self.precision.bytes()], &mut values);
        values
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn element(&self) -> ElemType {
        self.precision.element()
    }

    /// Returns the array as a kernel's argument, in vectors of `lanes` values.
    pub(crate) fn vectors(&self, lanes: usize) -> BufferArg {
        argument(&self.handle, self.len / lanes)
    }

    /// Returns the array, which must be `f32`, as a kernel's argument.
    pub(crate) fn f32s(&self, lanes: usize) -> Result<BufferArg> {
        self.expect_precision(Precision::F32)?;
        Ok(self.vectors(lanes))
    }

    pub(crate) fn expect_precision(&self, expected: Precision) -> Result {
        if self.precision != expected {
            return Err(GpuError::Precision { expected, got: self.precision });
        }
        Ok(())
    }

    pub(crate) fn expect_len(&self, expected: usize) -> Result {
        if self.len != expected {
            return Err(GpuError::WrongLength { expected, got: self.len });
        }
        Ok(())
    }
}

/// Returns a buffer of `len` elements as a kernel's argument.
pub(crate) fn argument(handle: &Handle, len: usize) -> BufferArg {
    // SAFETY: this crate allocates every buffer for at least the number of elements of its launch, and kernels check
    // their indices against that number.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len.max(1)) }
}

/// Returns the bytes of an array, if the device has buffers of that size.
fn check_size(client: &Client, len: usize, precision: Precision) -> Result<usize> {
    if len > VALUES_MAX {
        return Err(GpuError::TooLong { max: VALUES_MAX });
    }
    let bytes = (len * precision.bytes()).next_multiple_of(BLOCK).max(BLOCK);
    if bytes as u64 > client.properties().memory.max_page_size {
        return Err(GpuError::OutOfMemory { bytes: bytes as u64 });
    }
    Ok(bytes)
}

/// Out of memory is a separate error, because a user can change settings.
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
