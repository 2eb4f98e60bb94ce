//! NVIDIA's driver, loaded at run time: number of GPUs, their names and memory.

use crate::DeviceError;

pub(crate) use sys::Driver;

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    pub name: String,
    /// Free memory in bytes.
    pub memory_free: u64,
    /// Total memory in bytes.
    pub memory: u64,
}

impl GpuInfo {
    /// Returns the operations per second of dense bf16 products summed in f32, by the data sheet; `None` for a GPU
    /// that is not listed.
    ///
    /// From NVIDIA's data sheets, without sparsity, which doubles the printed number; for GeForce from the white
    /// papers of Ampere GA102 and Ada, row "FP16 with FP32 accumulate".
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

#[cfg(unix)]
mod sys {
    use super::{DeviceError, GpuInfo};
    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

    // Part of the C library that the standard library links anyway.
    unsafe extern "C" {
        fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    const RTLD_NOW: c_int = 2;

    /// Functions of the CUDA driver API, with the signatures of the version in their name.
    pub(crate) struct Driver {
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

        #[allow(clippy::missing_transmute_annotations, reason = "the fields name the types")]
        pub fn load_from(library: &CStr) -> Result<Driver, DeviceError> {
            // SAFETY: the string ends in a zero byte. The library stays loaded, since its functions are called later.
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

        /// Returns the number of GPUs that this process may use.
        pub fn gpus(&self) -> Result<usize, DeviceError> {
            let mut gpus = 0;
            match ((self.init)(0), (self.count)(&mut gpus)) {
                (0, 0) => Ok(usize::try_from(gpus).unwrap_or(0)),
                (0, code) | (code, _) => Err(DeviceError::DriverFailed { code }),
            }
        }

        /// Describes one GPU, using its primary context, which the whole process shares.
        pub fn gpu_info(&self, index: u16) -> Option<GpuInfo> {
            let done = |code: c_int| (code == 0).then_some(());
            let (mut device, mut context) = (0, std::ptr::null_mut());
            let mut name: [c_char; 256] = [0; 256];
            done((self.init)(0))?;
            done((self.device)(&mut device, index.into()))?;
            done((self.name)(name.as_mut_ptr(), 255, device))?;
            // SAFETY: the array outlives the reference, and the driver leaves its last byte zero.
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

#[cfg(not(unix))]
mod sys {
    use super::{DeviceError, GpuInfo};

    /// Only Unix is supported.
    pub(crate) enum Driver {}

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
    #[cfg(unix)]
    fn a_missing_driver_is_an_error_and_no_panic() {
        let refused = |library| Driver::load_from(library).err();
        assert_eq!(refused(c"libcuda-that-is-not-there.so"), Some(DeviceError::NoDriver));
        assert_eq!(refused(c"libc.so.6"), Some(DeviceError::NoDriver), "a library, but not the driver's");
        // The queries are safe on every machine.
        if let Ok(driver) = Driver::load() {
            let gpus = driver.gpus().unwrap_or(0);
            assert_eq!(driver.gpu_info(0).is_some(), gpus > 0);
        }
    }

    #[test]
    fn a_peak_is_known_by_the_whole_name() {
        let peak = |name: &str| GpuInfo { name: name.into(), memory_free: 0, memory: 0 }.peak_flops();
        assert_eq!(peak("NVIDIA H100 80GB HBM3"), Some(989.4e12));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some(756e12));
        assert_eq!(peak("NVIDIA H100"), None);
        assert_eq!(peak("NVIDIA GeForce RTX 4090 Laptop GPU"), None, "half as fast as the desktop GPU");
    }
}
