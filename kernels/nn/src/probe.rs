//! Checks and queries of the devices of this machine.

#[cfg(feature = "vulkan")]
use crate::gpu::discrete_gpus;
use crate::{
    device::{ActivationCheckpointing, Device, DeviceError, DeviceName, EngineKind},
    driver::{Driver, GpuInfo},
    memory::available_memory,
    precision::Precision,
};

impl Device {
    /// Returns a setting that only the fused engine on a GPU supports, if one is set.
    fn fused_setting(&self) -> Option<&'static str> {
        match (self.precision, self.activation_checkpointing) {
            (Some(Precision::Bf16 | Precision::F16), _) => Some("precision"),
            (_, ActivationCheckpointing::FeedForward | ActivationCheckpointing::Layers) => {
                Some("activation_checkpointing")
            }
            _ => self.kernels.map(|_| "kernels"),
        }
    }

    /// Checks settings, support and presence before anything is opened. Without a device, the libraries would panic on
    /// their own threads.
    ///
    /// # Errors
    /// If the settings contradict each other, the program was built without support, or the machine lacks the device
    /// or its driver.
    pub fn check(self) -> Result<(), DeviceError> {
        if let Some(setting) = self.fused_setting()
            && (self.name == DeviceName::Cpu || self.engine() == EngineKind::Burn)
        {
            return Err(DeviceError::Setting { device: self, setting });
        }
        match self.name {
            DeviceName::Cpu => Ok(()),
            DeviceName::Vulkan(_) if self.engine() == EngineKind::Burn => {
                Err(DeviceError::NotBurns { device: self })
            }
            DeviceName::Vulkan(_) if self.kernels.is_some() => Err(DeviceError::NotNvidias { device: self }),
            DeviceName::Vulkan(_) if cfg!(feature = "vulkan") => Ok(()),
            DeviceName::Cuda(index) if cfg!(feature = "cuda") => {
                let (index, count) = (usize::from(index), Driver::load()?.gpus()?);
                if index < count { Ok(()) } else { Err(DeviceError::NoSuchGpu { index, count }) }
            }
            DeviceName::Vulkan(_) | DeviceName::Cuda(_) => Err(DeviceError::WithoutGpu { device: self }),
        }
    }

    /// Returns the number of GPUs of this kind on this machine; 1 for a CPU and for a software Vulkan driver.
    ///
    /// # Errors
    /// If the program was built without support, or the machine lacks the driver.
    pub fn count(self) -> Result<usize, DeviceError> {
        match self.name {
            DeviceName::Cpu => Ok(1),
            DeviceName::Cuda(_) if cfg!(feature = "cuda") => Driver::load()?.gpus(),
            #[cfg(feature = "vulkan")]
            DeviceName::Vulkan(_) => Ok(discrete_gpus().max(1)),
            _ => Err(DeviceError::WithoutGpu { device: self }),
        }
    }

    /// Returns the NVIDIA driver's description of the GPU, in a program built with CUDA.
    pub fn gpu_info(self) -> Option<GpuInfo> {
        match self.name {
            DeviceName::Cuda(index) if cfg!(feature = "cuda") => Driver::load().ok()?.gpu_info(index),
            _ => None,
        }
    }

    /// Returns the device's free memory in bytes, if the system or the driver reports it.
    pub fn free_memory(self) -> Option<u64> {
        match self.name {
            DeviceName::Cpu => available_memory(),
            DeviceName::Cuda(_) | DeviceName::Vulkan(_) => self.gpu_info().map(|info| info.memory_free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_another_engine_are_refused() {
        let device = |text: &str| text.parse::<Device>().unwrap();
        for (text, engine) in [
            ("cpu", EngineKind::Fused),
            ("vulkan", EngineKind::Fused),
            ("cuda:0", EngineKind::Fused),
            ("cuda:0,burn", EngineKind::Burn),
        ] {
            assert_eq!(device(text).engine(), engine, "{text}");
        }
        for (text, setting) in [
            ("cpu,bf16", "precision"),
            ("cpu,recompute=layers", "activation_checkpointing"),
            ("cuda:0,burn,bf16", "precision"),
            ("cuda:0,burn,portable", "kernels"),
            ("cpu,nvidia", "kernels"),
        ] {
            assert_eq!(device(text).check(), Err(DeviceError::Setting { device: device(text), setting }));
        }
        assert!(matches!(device("vulkan,burn").check(), Err(DeviceError::NotBurns { .. })));
        assert!(matches!(device("vulkan,nvidia").check(), Err(DeviceError::NotNvidias { .. })));
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_without_cuda_built_in_says_what_to_do() {
        let error = Device::new(DeviceName::Cuda(0)).check().unwrap_err().to_string();
        assert_eq!(
            error,
            "cuda:0: this program was built without CUDA: use device cpu, or build it with --features cuda"
        );
    }
}
