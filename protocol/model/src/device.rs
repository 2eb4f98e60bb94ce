//! Where the arithmetic runs: chosen when the program starts, by name, never by what happens to be compiled in.

use crate::memory;
use burn::tensor::Device;
use std::{fmt, str::FromStr};

/// `cpu`, or `cuda:0` for the first GPU of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    Cpu,
    Cuda(usize),
}

/// Whose memory a device's tensors are in, and so which kernels work on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host's own: a tensor can be taken as a slice and given back without a copy.
    Host,
    /// Another's. Only tensor operations reach it cheaply.
    Device,
}

/// Why a device cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("{text:?} is no device: write cpu, or cuda:0 for the first GPU")]
    Unknown { text: String },
    #[error("this program was built without CUDA: use --device cpu, or build it with --features cuda")]
    BuiltWithout,
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
}

impl DeviceChoice {
    /// # Errors
    /// [`DeviceError::Unknown`] if `text` is neither `cpu` nor `cuda:` and a number.
    pub fn parse(text: &str) -> Result<DeviceChoice, DeviceError> {
        let unknown = || DeviceError::Unknown { text: text.into() };
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceChoice::Cpu),
            None if text == "cuda" => Ok(DeviceChoice::Cuda(0)),
            Some(("cuda", index)) => index.parse().map(DeviceChoice::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }

    pub(crate) fn place(self) -> Place {
        match self {
            DeviceChoice::Cpu => Place::Host,
            DeviceChoice::Cuda(_) => Place::Device,
        }
    }

    /// Checks that the device is there, before anything is created on it: Burn panics, on a thread of its own, if not.
    /// For the CPU it also sets the process's allocator: see `memory.rs`.
    ///
    /// # Errors
    /// If the program was built without the device's support, or the machine lacks the device or its driver.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            DeviceChoice::Cpu => {
                memory::keep_freed();
                Ok(Device::flex())
            }
            #[cfg(not(feature = "cuda"))]
            DeviceChoice::Cuda(_) => Err(DeviceError::BuiltWithout),
            #[cfg(feature = "cuda")]
            DeviceChoice::Cuda(index) => {
                let count = driver::gpus()?;
                if index < count {
                    Ok(Device::cuda(index))
                } else {
                    Err(DeviceError::NoSuchGpu { index, count })
                }
            }
        }
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
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Asks NVIDIA's driver for its GPUs, if there is a driver.
#[cfg(all(any(feature = "cuda", test), unix))]
mod driver {
    use super::DeviceError;
    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

    // Part of the C library that the standard library links anyway.
    unsafe extern "C" {
        fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    const RTLD_NOW: c_int = 2;

    /// The number of GPUs that the driver offers this process.
    pub(super) fn gpus() -> Result<usize, DeviceError> {
        gpus_of(c"libcuda.so.1")
    }

    pub(super) fn gpus_of(library: &CStr) -> Result<usize, DeviceError> {
        // SAFETY: both strings end in a zero byte. The library stays loaded: its functions are called below, and Burn
        // loads the same one again.
        let (init, count) = unsafe {
            let library = dlopen(library.as_ptr(), RTLD_NOW);
            if library.is_null() {
                return Err(DeviceError::NoDriver);
            }
            (dlsym(library, c"cuInit".as_ptr()), dlsym(library, c"cuDeviceGetCount".as_ptr()))
        };
        if init.is_null() || count.is_null() {
            return Err(DeviceError::NoDriver);
        }
        // SAFETY: these are the signatures that CUDA's driver interface has had since its first version.
        let (init, count) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(init),
                std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int) -> c_int>(count),
            )
        };
        let mut gpus = 0;
        match (init(0), count(&mut gpus)) {
            (0, 0) => Ok(usize::try_from(gpus).unwrap_or(0)),
            (0, code) | (code, _) => Err(DeviceError::DriverFailed { code }),
        }
    }
}

#[cfg(all(feature = "cuda", not(unix)))]
mod driver {
    /// Only Unix is asked.
    pub(super) fn gpus() -> Result<usize, super::DeviceError> {
        Err(super::DeviceError::NoDriver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for text in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(DeviceChoice::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(DeviceChoice::parse("cuda"), Ok(DeviceChoice::Cuda(0)));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CPU"] {
            assert_eq!(DeviceChoice::parse(text), Err(DeviceError::Unknown { text: text.into() }));
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_without_cuda_built_in_says_what_to_do() {
        let says = DeviceChoice::Cuda(0).open().unwrap_err().to_string();
        assert_eq!(
            says,
            "this program was built without CUDA: use --device cpu, or build it with --features cuda"
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_missing_driver_is_an_error_and_no_panic() {
        assert_eq!(driver::gpus_of(c"libcuda-that-is-not-there.so"), Err(DeviceError::NoDriver));
        assert_eq!(
            driver::gpus_of(c"libc.so.6"),
            Err(DeviceError::NoDriver),
            "a library, but not the driver's"
        );
        // Whatever this machine has, asking is safe.
        let _ = driver::gpus();
    }
}
