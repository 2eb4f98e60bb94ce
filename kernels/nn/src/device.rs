//! Where the arithmetic runs: chosen when the program starts, by name, never by what happens to be compiled in.

use crate::memory;
use burn::tensor::Device;
#[cfg(feature = "gpu")]
use kernels::gpu::OpenError;
use std::{fmt, str::FromStr};

/// `cpu`, `cuda:0` for the first GPU of NVIDIA's, or `vulkan`; a GPU's name may be followed by its settings.
///
/// | setting | means |
/// |---|---|
/// | `bf16` | products in bf16, sums in f32: what training does on a GPU that has bf16 |
/// | `f16` | products in f16: small gradients vanish there, so it is for tests of 16 bits on devices without bf16 |
/// | `f32` | all in f32: what judging contributions does, and a GPU without bf16 |
/// | `recompute=feed-forward` | the widest activations are computed again on the way back, not kept |
/// | `recompute=layers` | all activations but what goes into a layer are |
/// | `tape` | Burn's tensor operations and gradient tape, in f32: another way to the same, to compare with |
///
/// ```
/// use mettle_nn::{DeviceChoice, Gpu, GpuSettings, Recompute};
///
/// let settings = GpuSettings { recompute: Recompute::Layers, ..GpuSettings::default() };
/// assert_eq!(DeviceChoice::parse("cuda:0,recompute=layers"), Ok(DeviceChoice::Gpu(Gpu::Cuda(0), settings)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    Cpu,
    /// By the kernels of `kernels::gpu`.
    Gpu(Gpu, GpuSettings),
    /// On a GPU of NVIDIA's by tensor operations.
    Tape(u16),
}

/// A GPU, or what stands in for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gpu {
    /// NVIDIA's, numbered from 0.
    Cuda(u16),
    /// The one that Vulkan names first.
    Vulkan,
}

/// How a GPU is used. None of it is part of a run's specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GpuSettings {
    /// `None` leaves it to what the device has and is used for.
    pub precision: Option<Precision>,
    pub activation_checkpointing: ActivationCheckpointing,
}

/// What products take and give. Sums, losses, weights and what an optimiser remembers are f32 in either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    F32,
    Bf16,
    /// Gradients that are small vanish in it: for tests, on devices without bf16.
    F16,
}

/// Activations that are not kept for the way back but made again there: less memory for more time, and the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationCheckpointing {
    #[default]
    Nothing,
    /// Gates and ups of the feed-forward half, which are over half of what a layer keeps: one product more, of a layer's twelve.
    FeedForward,
    /// All but the layer's input: the way forward once more.
    Layers,
}

impl ActivationCheckpointing {
    /// As it stands behind a device's name; nothing where nothing is.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ActivationCheckpointing::Nothing => "",
            ActivationCheckpointing::FeedForward => "recompute=feed-forward",
            ActivationCheckpointing::Layers => "recompute=layers",
        }
    }
}

/// What computes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host: a tensor can be taken as a slice and given back without a copy.
    Host,
    /// Tensor operations of Burn's.
    Tape,
    /// Kernels over buffers of a GPU.
    Gpu(GpuSettings),
}

/// Why a device cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "{text:?} is no device: write cpu, cuda:0 for the first GPU, or vulkan; behind a GPU's name may stand \
         bf16 or f32, and recompute=feed-forward or recompute=layers, with commas between; or tape, alone, behind cuda:0"
    )]
    Unknown { text: String },
    #[error("this program was built without CUDA: use --device cpu, or build it with --features cuda")]
    BuiltWithout,
    #[error("this program was built without Vulkan: use --device cpu, or build it with --features vulkan")]
    BuiltWithoutVulkan,
    #[error(
        "the NVIDIA driver is not there (libcuda.so.1 cannot be loaded): install it, or use --device cpu"
    )]
    NoDriver,
    #[error(
        "the NVIDIA driver is there but refuses to start (CUDA error {code}): see nvidia-smi, or use --device cpu"
    )]
    DriverFailed { code: i32 },
    #[error("there is no GPU {index}: this machine has {count} (numbered from 0)")]
    NoSuchGpu { index: usize, count: usize },
    #[error("{0}")]
    NotThere(String),
    #[error("{0}")]
    Unusable(String),
    #[error("{device}: the device has no arithmetic of that precision: leave it out, or write f32")]
    NoSuchPrecision { device: String },
    #[error(
        "a GPU trains by AdamW only: set the recipe's optimiser to adamw, or use --device cuda:0,tape or cpu"
    )]
    NoMuon,
    #[error("{device} failed: {why}")]
    Failed { device: String, why: String },
}

impl DeviceChoice {
    /// # Errors
    /// [`DeviceError::Unknown`] if `text` is no device's name, or what follows it are no settings.
    pub fn parse(text: &str) -> Result<DeviceChoice, DeviceError> {
        DeviceChoice::parsed(text).ok_or_else(|| DeviceError::Unknown { text: text.into() })
    }

    fn parsed(text: &str) -> Option<DeviceChoice> {
        if text == "cpu" {
            return Some(DeviceChoice::Cpu);
        }
        let mut words = text.split(',');
        let gpu = match words.next()? {
            "vulkan" => Gpu::Vulkan,
            "cuda" => Gpu::Cuda(0),
            name => Gpu::Cuda(name.strip_prefix("cuda:")?.parse().ok()?),
        };
        let words: Vec<&str> = words.collect();
        if let (Gpu::Cuda(index), ["tape"]) = (gpu, &words[..]) {
            return Some(DeviceChoice::Tape(index));
        }
        let mut settings = GpuSettings::default();
        for word in words {
            let precision = match word {
                "f32" => Some(Precision::F32),
                "bf16" => Some(Precision::Bf16),
                "f16" => Some(Precision::F16),
                _ => None,
            };
            let activation_checkpointing = match word {
                "recompute=feed-forward" => ActivationCheckpointing::FeedForward,
                "recompute=layers" => ActivationCheckpointing::Layers,
                _ => ActivationCheckpointing::Nothing,
            };
            match (precision, activation_checkpointing) {
                (Some(_), _) if settings.precision.is_none() => settings.precision = precision,
                (None, ActivationCheckpointing::FeedForward | ActivationCheckpointing::Layers)
                    if settings.activation_checkpointing == ActivationCheckpointing::Nothing =>
                {
                    settings.activation_checkpointing = activation_checkpointing;
                }
                _ => return None,
            }
        }
        Some(DeviceChoice::Gpu(gpu, settings))
    }

    pub(crate) fn place(self) -> Place {
        match self {
            DeviceChoice::Cpu => Place::Host,
            DeviceChoice::Tape(_) => Place::Tape,
            DeviceChoice::Gpu(_, settings) => Place::Gpu(settings),
        }
    }

    /// Checks that the device is there, before anything is created on it: the libraries that do that panic, on threads of
    /// their own, if not.
    ///
    /// # Errors
    /// If the program was built without the device's support, or the machine lacks the device or its driver.
    pub fn check(self) -> Result<(), DeviceError> {
        match self {
            DeviceChoice::Cpu => Ok(()),
            DeviceChoice::Gpu(Gpu::Vulkan, _) if cfg!(feature = "vulkan") => Ok(()),
            DeviceChoice::Gpu(Gpu::Vulkan, _) => Err(DeviceError::BuiltWithoutVulkan),
            #[cfg(not(feature = "cuda"))]
            DeviceChoice::Gpu(Gpu::Cuda(_), _) | DeviceChoice::Tape(_) => Err(DeviceError::BuiltWithout),
            #[cfg(feature = "cuda")]
            DeviceChoice::Gpu(Gpu::Cuda(index), _) | DeviceChoice::Tape(index) => {
                let (index, count) = (usize::from(index), driver::Driver::load()?.gpus()?);
                if index < count { Ok(()) } else { Err(DeviceError::NoSuchGpu { index, count }) }
            }
        }
    }

    /// Burn's device for tensors: the CPU's where it is no choice of tensor operations on a GPU.
    /// For the CPU it also sets the process's allocator: see `memory.rs`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn open(self) -> Result<Device, DeviceError> {
        self.check()?;
        match self {
            #[cfg(feature = "cuda")]
            DeviceChoice::Tape(index) => Ok(Device::cuda(usize::from(index))),
            _ => {
                memory::keep_freed();
                Ok(Device::flex())
            }
        }
    }

    /// The GPU for kernels.
    ///
    /// # Errors
    /// As [`check`](Self::check), and if the device lacks what kernels need.
    #[cfg(feature = "gpu")]
    pub(crate) fn open_gpu(self) -> Result<kernels::gpu::Device, DeviceError> {
        self.check()?;
        let name = match self {
            DeviceChoice::Gpu(Gpu::Cuda(index), _) => format!("cuda:{index}"),
            DeviceChoice::Gpu(Gpu::Vulkan, _) => "vulkan".to_owned(),
            DeviceChoice::Cpu | DeviceChoice::Tape(_) => {
                return Err(DeviceError::Unusable(format!("{self} is not for kernels")));
            }
        };
        kernels::gpu::Device::open(&name).map_err(|error| match error {
            OpenError::NotFound { .. } => DeviceError::NotThere(error.to_string()),
            _ => DeviceError::Unusable(error.to_string()),
        })
    }

    /// The card's name and its memory, where its driver tells: for NVIDIA's GPUs, in a program built for them.
    pub fn gpu_info(self) -> Option<GpuInfo> {
        match self {
            #[cfg(feature = "cuda")]
            DeviceChoice::Gpu(Gpu::Cuda(index), _) | DeviceChoice::Tape(index) => {
                driver::Driver::load().ok()?.gpu_info(index)
            }
            _ => None,
        }
    }
}

/// What a driver says of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    pub name: String,
    /// Bytes that nobody holds, and all.
    pub memory_free: u64,
    pub memory: u64,
}

impl GpuInfo {
    /// Operations a second that the data sheet promises for dense products of bf16 with sums in f32; `None` of a card that is not
    /// in the list, so that nothing is divided by a guess.
    ///
    /// From NVIDIA's data sheets of each, without sparsity, which doubles the number printed there; for the GeForce cards from the
    /// white papers of their architectures (Ampere GA102, Ada), the row "FP16 with FP32 accumulate".
    pub fn peak_flops(&self) -> Option<f64> {
        let teraflops = match self.name.as_str() {
            "NVIDIA B200" => 2250.0,
            "NVIDIA H100 80GB HBM3" | "NVIDIA H200" | "NVIDIA GH200 480GB" => 989.4,
            "NVIDIA H100 NVL" | "NVIDIA H200 NVL" => 835.5,
            "NVIDIA H100 PCIe" => 756.0,
            "NVIDIA A100-SXM4-40GB"
            | "NVIDIA A100-SXM4-80GB"
            | "NVIDIA A100-PCIE-40GB"
            | "NVIDIA A100 80GB PCIe" => 312.0,
            "NVIDIA L40S" => 362.05,
            "NVIDIA L4" => 121.0,
            "NVIDIA A10" => 125.0,
            "NVIDIA GeForce RTX 4090" => 165.2,
            "NVIDIA GeForce RTX 3090" => 71.0,
            _ => return None,
        };
        Some(1e12 * teraflops)
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;
    fn from_str(text: &str) -> Result<DeviceChoice, DeviceError> {
        DeviceChoice::parse(text)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gpu, settings) = match self {
            DeviceChoice::Cpu => return f.write_str("cpu"),
            DeviceChoice::Tape(index) => return write!(f, "cuda:{index},tape"),
            DeviceChoice::Gpu(gpu, settings) => (gpu, settings),
        };
        match gpu {
            Gpu::Cuda(index) => write!(f, "cuda:{index}")?,
            Gpu::Vulkan => f.write_str("vulkan")?,
        }
        f.write_str(match settings.precision {
            None => "",
            Some(Precision::F32) => ",f32",
            Some(Precision::Bf16) => ",bf16",
            Some(Precision::F16) => ",f16",
        })?;
        match settings.activation_checkpointing {
            ActivationCheckpointing::Nothing => Ok(()),
            activation_checkpointing => write!(f, ",{}", activation_checkpointing.word()),
        }
    }
}

/// Asks NVIDIA's driver for its GPUs, if there is a driver.
#[cfg(all(any(feature = "cuda", test), unix))]
mod driver {
    use super::{DeviceError, GpuInfo};
    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

    // Part of the C library that the standard library links anyway.
    unsafe extern "C" {
        fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    const RTLD_NOW: c_int = 2;

    /// Functions of CUDA's driver interface, with the signatures that they have had since the version in their name.
    pub(super) struct Driver {
        init: extern "C" fn(c_uint) -> c_int,
        count: extern "C" fn(*mut c_int) -> c_int,
        device: extern "C" fn(*mut c_int, c_int) -> c_int,
        name: extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
        retain: extern "C" fn(*mut *mut c_void, c_int) -> c_int,
        release: extern "C" fn(c_int) -> c_int,
        push: extern "C" fn(*mut c_void) -> c_int,
        pop: extern "C" fn(*mut *mut c_void) -> c_int,
        memory: extern "C" fn(*mut usize, *mut usize) -> c_int,
    }

    impl Driver {
        pub fn load() -> Result<Driver, DeviceError> {
            Driver::load_from(c"libcuda.so.1")
        }

        #[allow(clippy::missing_transmute_annotations, reason = "the fields that they go to name the types")]
        pub fn load_from(library: &CStr) -> Result<Driver, DeviceError> {
            // SAFETY: the string ends in a zero byte. The library stays loaded: its functions are called below, and others load
            // the same one again.
            let library = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
            if library.is_null() {
                return Err(DeviceError::NoDriver);
            }
            let symbol = |name: &CStr| {
                // SAFETY: the library is loaded, and the string ends in a zero byte.
                let symbol = unsafe { dlsym(library, name.as_ptr()) };
                if symbol.is_null() { Err(DeviceError::NoDriver) } else { Ok(symbol) }
            };
            macro_rules! function {
                ($name:literal) => {
                    // SAFETY: the field's type is the function's signature in cuda.h.
                    unsafe { std::mem::transmute::<*mut c_void, _>(symbol($name)?) }
                };
            }
            Ok(Driver {
                init: function!(c"cuInit"),
                count: function!(c"cuDeviceGetCount"),
                device: function!(c"cuDeviceGet"),
                name: function!(c"cuDeviceGetName"),
                retain: function!(c"cuDevicePrimaryCtxRetain"),
                release: function!(c"cuDevicePrimaryCtxRelease_v2"),
                push: function!(c"cuCtxPushCurrent_v2"),
                pop: function!(c"cuCtxPopCurrent_v2"),
                memory: function!(c"cuMemGetInfo_v2"),
            })
        }

        /// The number of GPUs that the driver offers this process.
        pub fn gpus(&self) -> Result<usize, DeviceError> {
            let mut gpus = 0;
            match ((self.init)(0), (self.count)(&mut gpus)) {
                (0, 0) => Ok(usize::try_from(gpus).unwrap_or(0)),
                (0, code) | (code, _) => Err(DeviceError::DriverFailed { code }),
            }
        }

        /// What it says of one. The context that it asks in is the one that everything else in this process uses too.
        #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a program for NVIDIA's GPUs asks"))]
        pub fn gpu_info(&self, index: u16) -> Option<GpuInfo> {
            let done = |code: c_int| (code == 0).then_some(());
            let (mut device, mut context) = (0, std::ptr::null_mut());
            let mut name: [c_char; 256] = [0; 256];
            done((self.init)(0))?;
            done((self.device)(&mut device, index.into()))?;
            done((self.name)(name.as_mut_ptr(), 255, device))?;
            // SAFETY: the array outlives the reference, and its last byte, which is not the driver's, is zero.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
            done((self.retain)(&mut context, device))?;
            let (mut free, mut all) = (0, 0);
            let mut asked = (self.push)(context);
            if asked == 0 {
                asked = (self.memory)(&mut free, &mut all);
                (self.pop)(&mut context);
            }
            (self.release)(device);
            done(asked)?;
            Some(GpuInfo { name, memory_free: free as u64, memory: all as u64 })
        }
    }
}

#[cfg(all(feature = "cuda", not(unix)))]
mod driver {
    use super::{DeviceError, GpuInfo};

    /// Only Unix is asked.
    pub(super) enum Driver {}

    impl Driver {
        pub fn load() -> Result<Driver, DeviceError> {
            Err(DeviceError::NoDriver)
        }

        pub fn gpus(&self) -> Result<usize, DeviceError> {
            match *self {}
        }

        pub fn gpu_info(&self, _: u16) -> Option<GpuInfo> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for text in [
            "cpu",
            "cuda:0",
            "cuda:7",
            "vulkan",
            "cuda:1,tape",
            "cuda:0,f32",
            "vulkan,bf16,recompute=layers",
            "cuda:2,recompute=feed-forward",
        ] {
            assert_eq!(DeviceChoice::parse(text).unwrap().to_string(), text);
        }
        let first = DeviceChoice::Gpu(Gpu::Cuda(0), GpuSettings::default());
        assert_eq!(DeviceChoice::parse("cuda"), Ok(first));
        assert_eq!(
            DeviceChoice::parse("cuda,recompute=layers,f32").unwrap().to_string(),
            "cuda:0,f32,recompute=layers"
        );
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:65536",
            "cpu:0",
            "CPU",
            "cpu,f32",
            "cuda:0,",
            "cuda:0,f32,bf16",
            "cuda:0,f32,f32",
            "cuda:0,recompute",
            "cuda:0,recompute=layers,recompute=layers",
            "cuda:0,tape,f32",
            "vulkan,tape",
            "vulkan:0",
            "cudaf32",
        ] {
            assert_eq!(DeviceChoice::parse(text), Err(DeviceError::Unknown { text: text.into() }));
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_without_cuda_built_in_says_what_to_do() {
        for text in ["cuda:0", "cuda:0,tape"] {
            let says = DeviceChoice::parse(text).unwrap().open().unwrap_err().to_string();
            assert_eq!(
                says,
                "this program was built without CUDA: use --device cpu, or build it with --features cuda"
            );
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_missing_driver_is_an_error_and_no_panic() {
        let refused = |library| driver::Driver::load_from(library).err();
        assert_eq!(refused(c"libcuda-that-is-not-there.so"), Some(DeviceError::NoDriver));
        assert_eq!(refused(c"libc.so.6"), Some(DeviceError::NoDriver), "a library, but not the driver's");
        // Whatever this machine has, asking is safe.
        if let Ok(driver) = driver::Driver::load() {
            let gpus = driver.gpus().unwrap_or(0);
            assert_eq!(driver.gpu_info(0).is_some(), gpus > 0);
        }
    }

    #[test]
    fn a_peak_is_told_of_cards_by_their_whole_name() {
        let peak = |name: &str| GpuInfo { name: name.into(), memory_free: 0, memory: 0 }.peak_flops();
        assert_eq!(peak("NVIDIA H100 80GB HBM3"), Some(989.4e12));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some(756e12));
        assert_eq!(peak("NVIDIA H100"), None);
        assert_eq!(peak("NVIDIA GeForce RTX 4090 Laptop GPU"), None, "which is not half of the other");
    }
}
