//! The kernels on a GPU: NVIDIA's through CUDA (feature `cuda`), others, and a CPU that stands in for one, through
//! Vulkan (feature `vulkan`).
//!
//! One source for both, in CubeCL, and the same bits as `protocol` on both: the arithmetic is [`number`]'s, which leaves
//! nothing to a device. One file a kernel: the words of its reference, the kernel, the launch.
//!
//! A model lies on the device in [`Values`], in parts, each in a buffer of its own. Only the bytes of contributions and
//! updates cross between the machine and its device.

// A kernel's arguments are its buffers, and its arithmetic is spelt as CubeCL reads it.
#![allow(clippy::too_many_arguments, clippy::manual_div_ceil, clippy::manual_swap, clippy::collapsible_if)]
#![allow(clippy::collapsible_else_if, clippy::assign_op_pattern, clippy::needless_range_loop)]
#![allow(clippy::manual_range_contains, clippy::manual_is_multiple_of)]

mod agree;
mod apply;
mod copy;
mod merge;
pub mod network;
mod norm;
mod number;
mod pack;
mod parts;
mod probe;
mod select;
mod unpack;

pub use agree::{Agreement, Disagreement, agreement};
pub use apply::Previous;
pub use select::Source;
pub use unpack::Decoded;

use crate::wire::{Layout, Section};
use cubecl::{
    MemoryScope,
    client::Client,
    ir::{ElemType, UIntKind},
    prelude::*,
    server::Handle,
};
use cubecl_environment::stream::{StreamPolicy, set_policy};
use network::attention::SCORES;
use parts::{Part, parts};
use std::ops::Deref;

/// Values of a part at most, where the device has the memory: 512 MiB.
const PART_VALUES_MAX: usize = 1 << 27;
/// A part at the least: one section.
const PART_VALUES_MIN: usize = crate::wire::SECTION;
/// Shared memory that a cube needs.
const SHARED_BYTES: usize = 32 << 10;

/// A GPU that was found to do what the kernels need.
pub struct Device {
    client: Client,
    name: String,
    /// Whether the device's own additions and multiplications were seen to agree (`number::step`).
    hardware: bool,
    /// Whether products may go to tensor cores, if there are any.
    tensor_cores: bool,
    /// Scores of a block of attention that are aimed at.
    scores: usize,
    part_values: usize,
}

/// Why a device cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(
        "there is no kind of device called {0:?}: it is \"vulkan\" or \"cuda:0\", or \"cuda:1\" for the second GPU"
    )]
    UnknownName(String),
    #[error("{name}: this program was built without it; build it with --features {feature}")]
    NotBuilt { name: String, feature: &'static str },
    #[error("{name}: there is no such device here. {hint}")]
    NotFound { name: String, hint: &'static str },
    #[error("{name}: the device lacks {what}, which the kernels need")]
    Unsupported { name: String, what: &'static str },
    #[error("{name}: the device did not start: {why}")]
    Broken { name: String, why: String },
}

/// Why something could not be done on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("tensor {tensor}: the value at {position} is not finite")]
    NotFinite { tensor: usize, position: usize },
    #[error("section {section} is not one that an encoder writes")]
    Rejected { section: usize },
    #[error("there are {got} values, where {expected} are needed")]
    WrongLength { expected: usize, got: usize },
    #[error("there are {got} scales for {expected} tensors and contributions")]
    WrongScales { expected: usize, got: usize },
    #[error("these values lie on the device in other parts")]
    OtherParts,
    #[error("the contributions to merge are none, or too many for one buffer of the device")]
    Inputs,
    #[error("the values are {got:?}, and here they must be {expected:?}")]
    Precision { expected: network::Precision, got: network::Precision },
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

/// A row of f32 or u32 on a device.
pub struct Values {
    parts: Vec<Handle>,
    ends: Vec<usize>,
}

/// What a CUDA device needs.
#[cfg(feature = "cuda")]
const CUDA_HINT: &str = "It needs an NVIDIA GPU and NVIDIA's driver (libcuda.so.1): see docs/gpu.md";
/// What a Vulkan device needs.
#[cfg(feature = "vulkan")]
const VULKAN_HINT: &str = "Vulkan needs a driver: install that of your GPU, or a CPU's stand-in (Debian: mesa-vulkan-drivers libvulkan1)";

fn find(name: &str) -> Result<cubecl::Device, OpenError> {
    if name == "vulkan" {
        #[cfg(feature = "vulkan")]
        return cubecl::Device::vulkan(cubecl::device::WgpuDeviceKind::default())
            .map_err(|_| OpenError::NotFound { name: name.into(), hint: VULKAN_HINT });
        #[cfg(not(feature = "vulkan"))]
        return Err(OpenError::NotBuilt { name: name.into(), feature: "vulkan" });
    }
    let index = match name {
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|index| index.parse::<u16>().ok()),
    };
    match index {
        None => Err(OpenError::UnknownName(name.into())),
        #[cfg(feature = "cuda")]
        Some(index) => cubecl::Device::cuda(index.into())
            .map_err(|_| OpenError::NotFound { name: name.into(), hint: CUDA_HINT }),
        #[cfg(not(feature = "cuda"))]
        Some(_) => Err(OpenError::NotBuilt { name: name.into(), feature: "cuda" }),
    }
}

impl Device {
    /// Opens `vulkan`, `cuda:0`, `cuda:1` and so on, and sees whether it can do what the kernels need.
    ///
    /// From then on all threads of this process queue their work in one row. By default CubeCL has a row for each thread, and of a
    /// buffer that is written over on one thread and read on another it only knows who made it: the reader would not wait.
    pub fn open(name: &str) -> Result<Device, OpenError> {
        // Before any client is made: what was queued before would stay in the thread's own row.
        set_policy(StreamPolicy::Single);
        let found = find(name)?;
        let broken = |why: String| OpenError::Broken { name: name.into(), why };
        // A driver that is there and does not work is found out in a panic.
        let client = std::panic::catch_unwind(|| found.client()).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            broken(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").into())
        })?;
        let properties = client.properties();
        let lacks = |what| Err(OpenError::Unsupported { name: name.into(), what });
        if !properties.supports_type(ElemType::UInt(UIntKind::U64)) {
            return lacks("64-bit integers");
        }
        if properties.hardware.max_shared_memory_size < SHARED_BYTES {
            return lacks("32 KiB of memory shared by a group");
        }
        if (properties.hardware.max_units_per_cube as usize) < select::UNITS {
            return lacks("groups of 256");
        }
        let page = usize::try_from(properties.memory.max_page_size).unwrap_or(usize::MAX);
        let part_values = (page / 32).clamp(PART_VALUES_MIN, PART_VALUES_MAX);
        let mut device = Device {
            client,
            name: name.into(),
            hardware: false,
            tensor_cores: true,
            scores: SCORES,
            part_values,
        };
        device.hardware = device.adds_and_multiplies_alike().map_err(|why| broken(why.to_string()))?;
        Ok(device)
    }

    /// As it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the values of a model are stepped by the device's own arithmetic, which was seen to agree, or by integers.
    pub fn hardware(&self) -> bool {
        self.hardware
    }

    /// The same device, without its own arithmetic.
    pub fn in_integers(mut self) -> Device {
        self.hardware = false;
        self
    }

    /// The same device, whose buffers hold at most so many values, or one section. [`Values`] made before have other
    /// parts.
    pub fn in_parts_of(mut self, values: usize) -> Device {
        self.part_values = values.clamp(PART_VALUES_MIN, PART_VALUES_MAX);
        self
    }

    /// Copies a row to the device.
    pub fn upload(&self, layout: &Layout, values: &[f32]) -> Result<Values, GpuError> {
        if values.len() != layout.values() {
            return Err(GpuError::WrongLength { expected: layout.values(), got: values.len() });
        }
        Ok(self
            .row(layout, |part| self.client.create_from_slice(f32::as_bytes(&values[part.values.clone()]))))
    }

    /// A row of zeros on the device.
    pub fn zeros(&self, layout: &Layout) -> Values {
        self.row(layout, |part| self.cleared(part.values.len()))
    }

    /// Copies a row of f32 from the device.
    pub fn download(&self, values: &Values) -> Result<Vec<f32>, GpuError> {
        Ok(self.download_words(values)?.into_iter().map(f32::from_bits).collect())
    }

    /// Copies a row of u32 from the device.
    pub fn download_words(&self, values: &Values) -> Result<Vec<u32>, GpuError> {
        let mut words = Vec::with_capacity(values.ends.last().copied().unwrap_or(0));
        for part in &values.parts {
            words.extend(self.read(part)?);
        }
        Ok(words)
    }

    /// Bytes of the device's memory that this process uses, and that it holds.
    pub fn memory(&self) -> [u64; 2] {
        let usage = self.client.memory_report(MemoryScope::Device).usage();
        [usage.bytes_in_use, usage.bytes_reserved]
    }

    /// Waits for all that was asked of the device, and says whether it was done.
    pub fn finish(&self) -> Result<(), GpuError> {
        Ok(cubecl::future::block_on(self.client.sync())?)
    }

    fn row(&self, layout: &Layout, mut make: impl FnMut(&Part) -> Handle) -> Values {
        let parts = parts(layout, self.part_values);
        Values {
            ends: parts.iter().map(|part| part.values.end).collect(),
            parts: parts.iter().map(&mut make).collect(),
        }
    }

    /// The parts of a layout, if these values lie in them.
    fn parts_of(&self, layout: &Layout, rows: &[&Values]) -> Result<Vec<Part>, GpuError> {
        let parts = parts(layout, self.part_values);
        for row in rows {
            let got = row.ends.last().copied().unwrap_or(0);
            if got != layout.values() {
                return Err(GpuError::WrongLength { expected: layout.values(), got });
            }
            if !parts.iter().map(|part| part.values.end).eq(row.ends.iter().copied()) {
                return Err(GpuError::OtherParts);
            }
        }
        Ok(parts)
    }

    fn words(&self, words: &[u32]) -> Handle {
        self.client.create_from_slice(u32::as_bytes(if words.is_empty() { &[0] } else { words }))
    }

    /// Room for so many words.
    fn room(&self, words: usize) -> Handle {
        self.client.empty(4 * words.max(1))
    }

    /// So many words of zero.
    fn cleared(&self, words: usize) -> Handle {
        let handle = self.room(words);
        let (cubes, units) = (words.div_ceil(select::UNITS) as u32, select::UNITS as u32);
        let wide = cubes.clamp(1, 32_768);
        pack::clear::launch(
            &self.client,
            CubeCount::Static(wide, cubes.div_ceil(wide).max(1), 1),
            CubeDim::new_1d(units),
            array(&handle, words),
            words as u32,
        );
        handle
    }

    fn read_bytes(&self, handle: &Handle) -> Result<impl Deref<Target = [u8]>, GpuError> {
        Ok(self.client.read_one(handle.clone())?)
    }

    fn read(&self, handle: &Handle) -> Result<Vec<u32>, GpuError> {
        let bytes = self.read_bytes(handle)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}

/// A cube for each of `count`.
fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}

/// A buffer of `words` elements as a kernel's argument.
fn array(handle: &Handle, words: usize) -> BufferArg {
    // SAFETY: every buffer is made in this module, with room for the elements that its launch names; kernels check
    // their indices against that number.
    unsafe { BufferArg::from_raw_parts(handle.clone(), words.max(1)) }
}

/// The tensor and the position in it of a value of a section.
fn position(section: &Section, value: usize) -> (usize, usize) {
    (section.tensor, section.start as usize + value)
}
