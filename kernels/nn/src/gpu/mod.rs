//! A GPU and its buffers, in CubeCL: NVIDIA's through CUDA (feature `cuda`); others, and a software Vulkan driver,
//! through Vulkan (feature `vulkan`).
//!
//! The layers' kernels are in `layers/*/gpu.rs`, as methods of [`Gpu`] over [`Array`]s that the caller allocates. This
//! module has the kernels that do not belong to a layer. For every precision of an array, sums, roots and softmax are
//! `f32`. The order of additions depends only on shapes, and on CUDA on the installed libraries: one machine gives the
//! same bits every time.

mod array;
pub(crate) mod launch;
#[cfg(feature = "cuda")]
pub(crate) mod nvidia;
mod pointwise;
mod sum_of_squares;
mod view;

pub use crate::Precision;
pub(crate) use array::argument;
pub use array::{Array, GpuError, Result, VALUES_MAX};
pub(crate) use view::Batch;
pub use view::View;

#[cfg(feature = "cuda")]
use crate::KernelSet;
use crate::{Device, DeviceError, DeviceName, layers::attention::SCORES, memory::DeviceMemory};
use array::BLOCK;
#[cfg(feature = "vulkan")]
use cubecl::device::WgpuDeviceKind;
use cubecl::{MemoryScope, bytes::Bytes, client::Client, prelude::CubeElement, server::Handle};
use cubecl_environment::stream::{StreamPolicy, set_policy};
use launch::{UNITS, lanes};
use std::ops::{Deref, Range};

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
    let nvidia = nvidia::Nvidia::of(client, index).map_err(|error| error.on(device))?;
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

    /// Returns [`lanes`] for arrays of this precision: up to 16 bytes if the device has vectors of more than four
    /// values.
    pub(crate) fn lanes(&self, precision: Precision, widths: &[usize]) -> usize {
        let wide = precision != Precision::F32 && matches!(self.device.name, DeviceName::Cuda(_));
        if wide && widths.iter().all(|width| width.is_multiple_of(8)) { 8 } else { lanes(widths) }
    }

    /// Allocates an array of `len` values without writing it. Its memory is never moved or merged with another's.
    ///
    /// # Errors
    /// If the device has no buffer of that size.
    pub fn array(&self, len: usize, precision: Precision) -> Result<Array> {
        Array::persistent(&self.client, len, precision)
    }

    /// Allocates an array from a pool, to which its memory returns when it is dropped.
    pub(crate) fn temporary(&self, len: usize, precision: Precision) -> Result<Array> {
        Array::temporary(&self.client, len, precision)
    }

    /// Copies values to the device, each rounded to the nearest of `precision`, ties to even.
    ///
    /// # Errors
    /// Same as [`Gpu::array`].
    pub fn upload(&self, values: &[f32], precision: Precision) -> Result<Array> {
        Array::upload(&self.client, values, precision)
    }

    /// Copies values into an array, rounded as [`Gpu::upload`] does.
    ///
    /// # Errors
    /// If the lengths differ.
    pub fn overwrite(&self, array: &Array, values: &[f32]) -> Result {
        array.overwrite(&self.client, values)
    }

    /// Copies values from the device, after all queued work.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn download(&self, array: &Array) -> Result<Vec<f32>> {
        Ok(array.decode(&self.read(&array.handle)?))
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
