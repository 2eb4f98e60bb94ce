//! A GPU and its buffers, in CubeCL: NVIDIA's through CUDA (feature `cuda`); others, and a software Vulkan driver,
//! through Vulkan (feature `vulkan`).
//!
//! The layers' kernels are in `layers/*/gpu.rs`, as methods of [`Gpu`] over [`Array`]s that the caller allocates. This
//! module has the kernels that do not belong to a layer. For every precision of an array, sums, roots and softmax are
//! `f32`. The order of additions depends only on shapes, and on CUDA on the installed libraries: one machine gives the
//! same bits every time.

pub(crate) mod launch;
#[cfg(feature = "cuda")]
pub(crate) mod nvidia;
mod pointwise;
mod sum_of_squares;

pub use crate::{
    Precision,
    layers::{
        embedding::gpu::{Segments, Tokens},
        rope::gpu::GpuAngles,
    },
};

#[cfg(feature = "cuda")]
use crate::KernelSet;
use crate::{Device, DeviceError, DeviceMemory, DeviceName, layers::attention::SCORES};
#[cfg(feature = "vulkan")]
use cubecl::device::WgpuDeviceKind;
use cubecl::{
    MemoryScope,
    bytes::Bytes,
    client::Client,
    ir::{ElemType, FloatKind},
    prelude::{BufferArg, CubeElement},
    server::{Handle, IoError, LaunchError, ServerError},
};
use cubecl_environment::stream::{StreamPolicy, set_policy};
use launch::UNITS;
use std::ops::{Deref, Range};

/// Maximum length of an array. Indices have 32 bits, and the last units of a launch have indices beyond the end.
pub const VALUES_MAX: usize = (1 << 32) - (1 << 25);
/// Arrays are whole blocks of this many bytes, so that a vector of any width fits.
const BLOCK: usize = 16;

/// An opened GPU with the features that the kernels need. A clone is the same GPU.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) client: Client,
    device: Device,
    /// `true` if products may use tensor cores, if there are any.
    pub(crate) tensor_cores: bool,
    /// Target number of scores of a block of attention.
    pub(crate) scores: usize,
    #[cfg(feature = "cuda")]
    pub(crate) nvidia: Option<std::sync::Arc<nvidia::Nvidia>>,
}

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

/// Result of a GPU operation.
pub type Result<T = (), E = GpuError> = std::result::Result<T, E>;

/// Values on a GPU. A clone is the same memory.
#[derive(Clone)]
pub struct Array {
    handle: Handle,
    /// Number of bytes from the first value to the handle's end.
    bytes: usize,
    len: usize,
    precision: Precision,
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

/// Returns the number of discrete GPUs that Vulkan lists.
#[cfg(feature = "vulkan")]
pub(crate) fn discrete_gpus() -> usize {
    let first = cubecl::Device::vulkan(WgpuDeviceKind::DiscreteGpu(0));
    first.map_or(0, |first| cubecl::Device::enumerate(first.to_id()).len())
}

fn find(device: Device) -> Result<cubecl::Device, DeviceError> {
    match device.name {
        #[cfg(feature = "vulkan")]
        DeviceName::Vulkan(index) => {
            let kind = index.map(|index| WgpuDeviceKind::DiscreteGpu(index.into())).unwrap_or_default();
            cubecl::Device::vulkan(kind).map_err(|_| {
                let hint = "Vulkan needs a driver: install your GPU's, or a CPU's stand-in (Debian: mesa-vulkan-drivers libvulkan1)";
                DeviceError::NotFound { device, hint }
            })
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(index) => cubecl::Device::cuda(index.into()).map_err(|_| {
            let hint = "CUDA needs an NVIDIA GPU and NVIDIA's driver (libcuda.so.1): see docs/gpu.md";
            DeviceError::NotFound { device, hint }
        }),
        _ => Err(DeviceError::WithoutGpu { device }),
    }
}

/// Opens NVIDIA's libraries, if the device's settings allow them and they are installed.
#[cfg(feature = "cuda")]
fn nvidia(client: &Client, device: Device) -> Result<Option<std::sync::Arc<nvidia::Nvidia>>, DeviceError> {
    let DeviceName::Cuda(index) = device.name else { return Ok(None) };
    if device.kernels == Some(KernelSet::Portable) {
        return Ok(None);
    }
    let nvidia = nvidia::Nvidia::of(client, index)
        .map_err(|error| DeviceError::Failed { device, why: error.to_string() })?;
    if device.kernels == Some(KernelSet::Nvidia) && !nvidia.is_complete() {
        let what = "libcublasLt.so.13 or libnvrtc.so.13 (pip install nvidia-cublas nvidia-cuda-nvrtc, and name \
                    their directory in LD_LIBRARY_PATH)";
        return Err(DeviceError::Unsupported { device, what });
    }
    Ok(Some(nvidia))
}

impl Gpu {
    /// Opens a GPU and checks that it supports the kernels.
    ///
    /// From then on all threads of this process queue their work in one stream. By default CubeCL has a stream per
    /// thread and tracks only the stream that created a buffer. Then a read on a third thread would not wait for an
    /// overwrite.
    ///
    /// # Errors
    /// If the device is absent, lacks something, or does not start.
    pub fn open(device: Device) -> Result<Gpu, DeviceError> {
        // Set before any client exists: work that was queued earlier would stay in its thread's stream.
        set_policy(StreamPolicy::Single);
        let found = find(device)?;
        // A broken driver panics here.
        let client = std::panic::catch_unwind(|| found.client()).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").into();
            DeviceError::Failed { device, why }
        })?;
        if (client.properties().hardware.max_units_per_cube as usize) < UNITS {
            return Err(DeviceError::Unsupported { device, what: "groups of 256 units" });
        }
        Ok(Gpu {
            #[cfg(feature = "cuda")]
            nvidia: nvidia(&client, device)?,
            client,
            device,
            tensor_cores: true,
            scores: SCORES,
        })
    }

    /// Returns the device as it was opened.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the memory of this process on the device.
    pub fn memory(&self) -> DeviceMemory {
        let usage = self.client.memory_report(MemoryScope::Device).usage();
        DeviceMemory { used: usage.bytes_in_use, reserved: usage.bytes_reserved }
    }

    /// Waits for all queued work.
    ///
    /// # Errors
    /// If some of the work failed.
    pub fn finish(&self) -> Result {
        let done = cubecl::future::block_on(self.client.sync());
        self.check()?;
        Ok(done?)
    }

    /// Checks that work outside of CubeCL has not failed.
    fn check(&self) -> Result {
        #[cfg(feature = "cuda")]
        if let Some(nvidia) = &self.nvidia {
            nvidia.check()?;
        }
        Ok(())
    }

    /// Waits for all queued work if profiling is on, so that a span ends after the work that it queued.
    ///
    /// # Errors
    /// Same as [`Gpu::finish`].
    pub fn finish_if_profiled(&self) -> Result {
        if tracing::span_enabled!(target: "profile", tracing::Level::TRACE) { self.finish() } else { Ok(()) }
    }

    /// Returns whether arrays can have this precision.
    pub fn supports(&self, precision: Precision) -> bool {
        self.client.properties().supports_type(precision.element())
    }

    /// Allocates an array of `len` values without writing it. Its memory is never moved or merged with another's.
    ///
    /// # Errors
    /// If the device has no buffer of that size.
    pub fn array(&self, len: usize, precision: Precision) -> Result<Array> {
        let bytes = self.check_size(len, precision)?;
        let handle = self.client.memory_persistent_allocation((), |()| self.client.empty(bytes));
        Ok(Array { handle, bytes, len, precision })
    }

    /// Allocates an array from a pool, to which its memory returns when it is dropped.
    pub(crate) fn temporary(&self, len: usize, precision: Precision) -> Result<Array> {
        let bytes = self.check_size(len, precision)?;
        Ok(Array { handle: self.client.empty(bytes), bytes, len, precision })
    }

    /// Copies values to the device, each rounded to the nearest of `precision`, ties to even.
    ///
    /// # Errors
    /// Same as [`Gpu::array`].
    pub fn upload(&self, values: &[f32], precision: Precision) -> Result<Array> {
        let array = self.array(values.len(), precision)?;
        self.overwrite(&array, values)?;
        Ok(array)
    }

    /// Copies values into an array, rounded as [`Gpu::upload`] does.
    ///
    /// # Errors
    /// If the lengths differ.
    pub fn overwrite(&self, array: &Array, values: &[f32]) -> Result {
        array.expect_len(values.len())?;
        let bytes = match array.precision {
            Precision::F32 => f32::as_bytes(values).to_vec(),
            narrow => {
                let mut bytes = Vec::with_capacity(narrow.bytes() * values.len());
                narrow.encode(values, &mut bytes);
                bytes
            }
        };
        if !bytes.is_empty() {
            self.client.write(&array.handle, Bytes::from_bytes_vec(bytes));
        }
        Ok(())
    }

    /// Copies values from the device, after all queued work.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn download(&self, array: &Array) -> Result<Vec<f32>> {
        let bytes = self.read(&array.handle)?;
        let bytes = &bytes[..array.len * array.precision.bytes()];
        let mut values = Vec::with_capacity(array.len);
        array.precision.decode(bytes, &mut values);
        Ok(values)
    }

    /// Appends some values of an `f32` array. Waits for the device.
    ///
    /// # Errors
    /// If the range is out of bounds, or earlier work failed.
    pub fn read_part(&self, array: &Array, range: Range<usize>, values: &mut Vec<f32>) -> Result {
        let bytes = self.read(&self.part_for_copy(array, &range)?)?;
        Precision::F32.decode(&bytes[..4 * range.len()], values);
        Ok(())
    }

    /// Copies values into an `f32` array from `first` on.
    ///
    /// # Errors
    /// If the values do not fit.
    pub fn overwrite_part(&self, array: &Array, first: usize, values: &[f32]) -> Result {
        let part = self.part_for_copy(array, &(first..first + values.len()))?;
        self.client.write(&part, Bytes::from_bytes_vec(f32::as_bytes(values).to_vec()));
        Ok(())
    }

    /// Returns the handle of some values, at least one, for copies, which may start at any value, unlike arguments of
    /// kernels.
    fn part_for_copy(&self, array: &Array, range: &Range<usize>) -> Result<Handle> {
        array.expect_precision(Precision::F32)?;
        if range.is_empty() || array.len < range.end {
            return Err(GpuError::WrongLength { expected: range.end.max(range.start + 1), got: array.len });
        }
        let handle = array.handle.clone().offset_start(4 * range.start as u64);
        Ok(handle.offset_end((array.bytes - 4 * range.end) as u64))
    }

    /// Returns `len` values of an array from `first` on, at least one, in the same memory.
    ///
    /// # Errors
    /// If the part is out of bounds, or does not start at a valid buffer offset of the device.
    pub fn part(&self, array: &Array, first: usize, len: usize) -> Result<Array> {
        let end = first.saturating_add(len);
        if end > array.len || len == 0 {
            return Err(GpuError::WrongLength { expected: end.max(first + 1), got: array.len });
        }
        let bytes = array.precision.bytes();
        let alignment = self.client.properties().memory.alignment as usize;
        if !(first * bytes).is_multiple_of(alignment.max(BLOCK)) {
            return Err(GpuError::Misplaced { first, alignment: alignment.max(BLOCK) / bytes });
        }
        let begin = first * bytes;
        let size = (len * bytes).next_multiple_of(BLOCK).max(BLOCK).min(array.bytes - begin);
        let handle = array.handle.clone();
        let handle = handle.offset_start(begin as u64).offset_end((array.bytes - begin - size) as u64);
        Ok(Array { handle, bytes: size, len, precision: array.precision })
    }

    /// Returns the bytes of an array, if the device has buffers of that size.
    fn check_size(&self, len: usize, precision: Precision) -> Result<usize> {
        if len > VALUES_MAX {
            return Err(GpuError::TooLong { max: VALUES_MAX });
        }
        let bytes = (len * precision.bytes()).next_multiple_of(BLOCK).max(BLOCK);
        if bytes as u64 > self.client.properties().memory.max_page_size {
            return Err(GpuError::OutOfMemory { bytes: bytes as u64 });
        }
        Ok(bytes)
    }

    /// Returns a buffer with these words, at least one.
    pub(crate) fn words(&self, words: &[u32]) -> Handle {
        self.client.create_from_slice(u32::as_bytes(if words.is_empty() { &[0] } else { words }))
    }

    /// Allocates a buffer of `words` words, at least one, without writing it.
    pub(crate) fn uninit_words(&self, words: usize) -> Handle {
        self.client.empty(4 * words.max(1))
    }

    pub(crate) fn read(&self, handle: &Handle) -> Result<impl Deref<Target = [u8]> + use<>> {
        let bytes = self.client.read_one(handle.clone());
        self.check()?;
        Ok(bytes?)
    }
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
