//! Settings for the device and its use. They depend on the user's choice only, not on the compiled features.

use crate::Precision;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, str::FromStr};

/// Device for training or evaluation, with its settings. Not part of a run's specification.
///
/// A settings file contains a table, or only a name:
///
/// ```
/// use mettle_nn::{ActivationCheckpointing, Device, DeviceName, EngineKind};
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     device: Device,
/// }
/// let text = r#"{ "device": { "name": "cuda:0", "engine": "fused", "activation_checkpointing": "layers" } }"#;
/// let Settings { device } = serde_json::from_str(text)?;
/// assert_eq!((device.name, device.engine()), (DeviceName::Cuda(0), EngineKind::Fused));
/// assert_eq!(device.activation_checkpointing, ActivationCheckpointing::Layers);
/// assert_eq!("cpu".parse(), Ok(Device::CPU));
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// The text form has the settings after the name: `cuda:0,recompute=layers`, `cuda:0,f32`, `cuda:0,burn`.
/// [`Display`](fmt::Display) writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Device {
    pub name: DeviceName,
    /// Engine that computes. The default is that of [`Device::engine`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Precision of products. Sums, losses, weights and moments are always f32. The default is that of
    /// [`Device::precision_for_training`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    #[serde(skip_serializing_if = "ActivationCheckpointing::is_none")]
    pub activation_checkpointing: ActivationCheckpointing,
    /// Kernels of the fused engine on an NVIDIA GPU. The default is NVIDIA's if their libraries are installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<KernelSet>,
}

/// A miner's device setting, which may name all GPUs of a kind: `cuda:all` or `vulkan:all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSetting {
    /// The device; the first GPU if all are named.
    pub device: Device,
    pub is_every_gpu: bool,
}

/// A device by name: `cpu`, `cuda:0` and so on, `vulkan`, `vulkan:0` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    Cpu,
    /// An NVIDIA GPU, numbered from 0.
    Cuda(u16),
    /// A discrete GPU through Vulkan, numbered from 0; without a number the first device that Vulkan lists: a GPU or a
    /// software driver (lavapipe).
    Vulkan(Option<u16>),
}

/// The implementation that computes; see [`engine`](crate::engine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Our kernels: over slices on a CPU, over buffers on a GPU.
    Fused,
    /// Burn's tensor operations and autograd, in f32.
    Burn,
}

/// Implementation of products and attention of the fused engine on an NVIDIA GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelSet {
    /// cuBLASLt's products, and attention that NVRTC compiles. Requires `libcublasLt.so.13` and `libnvrtc.so.13`.
    Nvidia,
    /// Kernels that run on every GPU.
    Portable,
}

/// The activations that are recomputed for the backward pass instead of kept: less memory, more time, the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationCheckpointing {
    #[default]
    None,
    /// Gates and ups of the feed-forward half, over half of a layer's activations. Costs one more product per layer,
    /// which has twelve.
    FeedForward,
    /// Everything except each layer's input. Costs a second forward pass.
    Layers,
}

/// Reason why a device cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "{text:?} is no device: write cpu, cuda:0 for the first NVIDIA GPU, or vulkan; precision, activation_checkpointing, \
         engine and kernels are settings of their own"
    )]
    Unknown { text: String },
    #[error(
        "{}:all names all GPUs, and only a miner uses several, one for each rank: name one device, such as {}:0",
        .device.name.backend()[1], .device.name.backend()[1]
    )]
    AllGpus { device: Device },
    #[error(
        "{device}: {setting} is a setting of the fused engine on a GPU: leave it out, or set engine = \"fused\" on a GPU"
    )]
    Setting { device: Device, setting: &'static str },
    #[error("{device}: this program was built without {}: use device cpu, or build it with --features {}", .device.name.backend()[0], .device.name.backend()[1])]
    WithoutGpu { device: Device },
    #[error(
        "this program was built without the Burn engine: set engine = \"fused\", or build it with --features cuda"
    )]
    WithoutBurn,
    #[error("{device}: kernels is a setting for NVIDIA GPUs: leave it out on other devices")]
    NotNvidias { device: Device },
    #[error("{device}: Burn's engine runs on cpu and cuda: set engine = \"fused\"")]
    NotBurns { device: Device },
    #[error("the NVIDIA driver is missing (libcuda.so.1 cannot be loaded): install it, or use device cpu")]
    NoDriver,
    #[error("the NVIDIA driver does not start (CUDA error {code}): see nvidia-smi, or use device cpu")]
    DriverFailed { code: i32 },
    #[error("there is no GPU {index}: this machine has {count} (numbered from 0)")]
    NoSuchGpu { index: usize, count: usize },
    #[error("{device}: there is no such device here. {hint}")]
    NotFound { device: Device, hint: &'static str },
    #[error("{device}: the device lacks {what}, which the kernels need")]
    Unsupported { device: Device, what: &'static str },
    #[error(
        "{device}: the device has no arithmetic of that precision: leave precision out, or set it to f32"
    )]
    NoSuchPrecision { device: Device },
    #[error(
        "the fused engine on a GPU has AdamW only: set the recipe's optimiser to adamw, or engine = \"burn\", or device cpu"
    )]
    NoMuon,
    #[error("{device} failed: {why}")]
    Failed { device: Device, why: String },
}

impl Device {
    pub const CPU: Device = Device::new(DeviceName::Cpu);

    /// Returns the device with default settings.
    pub const fn new(name: DeviceName) -> Device {
        Device {
            name,
            engine: None,
            precision: None,
            activation_checkpointing: ActivationCheckpointing::None,
            kernels: None,
        }
    }

    /// Returns the engine that computes: the named one, else the fused one (`docs/adr/0025`).
    pub fn engine(&self) -> EngineKind {
        self.engine.unwrap_or(EngineKind::Fused)
    }

    /// Returns the precision of products in training: the named one, else bf16 for the fused engine on CUDA.
    pub fn precision_for_training(&self) -> Precision {
        self.precision.unwrap_or(match (self.name, self.engine()) {
            (DeviceName::Cuda(_), EngineKind::Fused) => Precision::Bf16,
            _ => Precision::F32,
        })
    }

    /// Returns whether the engine supports Muon.
    pub fn has_muon(&self) -> bool {
        self.name == DeviceName::Cpu || self.engine() == EngineKind::Burn
    }

    /// Sets activation checkpointing. Returns whether it was not set before.
    fn checkpoint(&mut self, to: ActivationCheckpointing) -> bool {
        std::mem::replace(&mut self.activation_checkpointing, to).is_none()
    }
}

impl DeviceSetting {
    /// Returns the device.
    ///
    /// # Errors
    /// If the setting names all GPUs.
    fn single(self) -> Result<Device, DeviceError> {
        match self.is_every_gpu {
            true => Err(DeviceError::AllGpus { device: self.device }),
            false => Ok(self.device),
        }
    }

    /// Parses the older form: a name, then settings with commas between.
    fn parse(text: &str) -> Option<DeviceSetting> {
        let mut words = text.split(',');
        let (name, is_every_gpu) = parse_name(words.next()?).ok()?;
        let mut device = Device::new(name);
        for word in words {
            // Each setting may occur once.
            let is_first = match word {
                "burn" => device.engine.replace(EngineKind::Burn).is_none(),
                "fused" => device.engine.replace(EngineKind::Fused).is_none(),
                "recompute=feed-forward" => device.checkpoint(ActivationCheckpointing::FeedForward),
                "recompute=layers" => device.checkpoint(ActivationCheckpointing::Layers),
                "nvidia" => device.kernels.replace(KernelSet::Nvidia).is_none(),
                "portable" => device.kernels.replace(KernelSet::Portable).is_none(),
                _ => device.precision.replace(word.parse().ok()?).is_none(),
            };
            if !is_first {
                return None;
            }
        }
        Some(DeviceSetting { device, is_every_gpu })
    }
}

/// Returns the named device, or the first if all GPUs are named; and whether all are.
fn parse_name(name: &str) -> Result<(DeviceName, bool), DeviceError> {
    let kind = name.strip_suffix(":all").filter(|kind| matches!(*kind, "cuda" | "vulkan"));
    Ok((kind.unwrap_or(name).parse()?, kind.is_some()))
}

impl DeviceName {
    /// Returns the backend that the program must be built with, and the feature's name.
    fn backend(self) -> [&'static str; 2] {
        match self {
            DeviceName::Cpu => ["the CPU", ""],
            DeviceName::Cuda(_) => ["CUDA", "cuda"],
            DeviceName::Vulkan(_) => ["Vulkan", "vulkan"],
        }
    }
}

impl EngineKind {
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Fused => "fused",
            EngineKind::Burn => "burn",
        }
    }
}

impl KernelSet {
    pub const fn name(self) -> &'static str {
        match self {
            KernelSet::Nvidia => "nvidia",
            KernelSet::Portable => "portable",
        }
    }
}

impl ActivationCheckpointing {
    pub const fn name(self) -> &'static str {
        match self {
            ActivationCheckpointing::None => "none",
            ActivationCheckpointing::FeedForward => "feed-forward",
            ActivationCheckpointing::Layers => "layers",
        }
    }

    fn is_none(&self) -> bool {
        *self == ActivationCheckpointing::None
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceError> {
        let unknown = || DeviceError::Unknown { text: text.into() };
        let index = |index: &str| index.parse().map_err(|_| unknown());
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("cpu", "") if text == "cpu" => DeviceName::Cpu,
            ("vulkan", "") if text == "vulkan" => DeviceName::Vulkan(None),
            ("cuda", "") if text == "cuda" => DeviceName::Cuda(0),
            ("vulkan", number) => DeviceName::Vulkan(Some(index(number)?)),
            ("cuda", number) => DeviceName::Cuda(index(number)?),
            _ => return Err(unknown()),
        })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
            DeviceName::Vulkan(None) => f.write_str("vulkan"),
            DeviceName::Vulkan(Some(index)) => write!(f, "vulkan:{index}"),
        }
    }
}

impl Serialize for DeviceName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for DeviceSetting {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceSetting, DeviceError> {
        DeviceSetting::parse(text).ok_or_else(|| DeviceError::Unknown { text: text.into() })
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Device, DeviceError> {
        text.parse::<DeviceSetting>()?.single()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some(engine) = self.engine {
            write!(f, ",{}", engine.name())?;
        }
        if let Some(precision) = self.precision {
            write!(f, ",{}", precision.name())?;
        }
        if self.activation_checkpointing != ActivationCheckpointing::None {
            write!(f, ",recompute={}", self.activation_checkpointing.name())?;
        }
        self.kernels.map_or(Ok(()), |kernels| write!(f, ",{}", kernels.name()))
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Device, D::Error> {
        DeviceSetting::deserialize(deserializer)?.single().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for DeviceSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DeviceSetting, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            name: String,
            engine: Option<EngineKind>,
            precision: Option<Precision>,
            #[serde(default)]
            activation_checkpointing: ActivationCheckpointing,
            kernels: Option<KernelSet>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = DeviceSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a device's name, or a table with name, engine, precision, activation_checkpointing and kernels",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DeviceSetting, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<DeviceSetting, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let Table { name, engine, precision, activation_checkpointing, kernels } = table;
                let (name, is_every_gpu) = parse_name(&name).map_err(de::Error::custom)?;
                let device = Device { name, engine, precision, activation_checkpointing, kernels };
                Ok(DeviceSetting { device, is_every_gpu })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for text in [
            "cpu",
            "cuda:0",
            "cuda:7",
            "vulkan",
            "vulkan:1",
            "cuda:1,burn",
            "cuda:0,f32",
            "cuda:0,fused,f32",
            "vulkan,bf16,recompute=layers",
            "cuda:2,recompute=feed-forward",
            "cuda:0,fused,recompute=layers,nvidia",
            "cuda:0,portable",
        ] {
            let device: Device = text.parse().unwrap();
            assert_eq!(device.to_string(), text);
            let table = serde_json::to_value(device).unwrap();
            assert_eq!(serde_json::from_value::<Device>(table).unwrap(), device, "{text} as a table");
            assert_eq!(serde_json::from_value::<Device>(json!(text)).unwrap(), device, "{text} as a name");
        }
        assert_eq!("cuda".parse(), Ok(Device::new(DeviceName::Cuda(0))));
    }

    #[test]
    fn a_table_names_every_setting() {
        let table = json!({ "name": "cuda:1", "engine": "fused", "precision": "bf16", "activation_checkpointing": "feed-forward" });
        let device: Device = serde_json::from_value(table).unwrap();
        assert_eq!(device.to_string(), "cuda:1,fused,bf16,recompute=feed-forward");
        for wrong in [
            json!({}),
            json!({ "name": "gpu" }),
            json!({ "name": "cpu", "recompute": "layers" }),
            json!({ "name": "cuda:0", "engine": "tape" }),
            json!({ "name": "cuda:0,f32" }),
            json!(3),
        ] {
            assert!(serde_json::from_value::<Device>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_name_or_setting_is_refused() {
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:65536",
            "cpu:0",
            "CPU",
            "cuda:0,",
            "cuda:0,f32,bf16",
            "cuda:0,f32,f32",
            "cuda:0,recompute",
            "cuda:0,recompute=layers,recompute=layers",
            "cuda:0,burn,fused",
            "cuda:0,nvidia,portable",
            "vulkan:",
            "vulkan:x",
            "cudaf32",
        ] {
            assert_eq!(text.parse::<Device>(), Err(DeviceError::Unknown { text: text.into() }));
        }
    }

    #[test]
    fn all_gpus_of_a_kind_begin_with_the_first() {
        let of = |setting| {
            let DeviceSetting { device, is_every_gpu } = serde_json::from_value(setting).ok()?;
            Some((device.to_string(), is_every_gpu))
        };
        assert_eq!(of(json!("cuda:all,bf16")), Some(("cuda:0,bf16".into(), true)));
        assert_eq!(
            of(json!({ "name": "vulkan:all", "precision": "f32" })),
            Some(("vulkan,f32".into(), true))
        );
        assert_eq!(of(json!("cuda:1")), Some(("cuda:1".into(), false)));
        for wrong in [json!("cpu:all"), json!("cuda:0:all"), json!({ "name": "cuda:all,f32" })] {
            assert_eq!(of(wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn all_gpus_are_no_single_device() {
        for (name, first) in [("cuda:all", "cuda:0"), ("vulkan:all", "vulkan:0")] {
            let expected = format!(
                "{name} names all GPUs, and only a miner uses several, one for each rank: name one device, such as {first}"
            );
            for text in [name.to_owned(), format!("{name},f32")] {
                assert_eq!(text.parse::<Device>().unwrap_err().to_string(), expected);
            }
            let refused = serde_json::from_value::<Device>(json!({ "name": name })).unwrap_err();
            assert_eq!(refused.to_string(), expected);
        }
    }
}
