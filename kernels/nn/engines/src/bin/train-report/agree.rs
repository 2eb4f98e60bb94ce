//! Comparison of a device with the CPU: its kernels, and the losses of the first steps.

use crate::Options;
use mettle_engines::random_sequences;
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, DeviceError, DeviceName, EngineKind, ModelError, Precision};
use serde::Serialize;
use serde_json::{Value, json};

const STEPS: usize = 20;
/// Maximum difference of losses, in nats: for f32 in another order, and for products in bf16.
const BOUND_F32: f64 = 1e-3;
const BOUND_BF16: f64 = 0.05;

#[derive(Debug, Serialize)]
struct Compared {
    device: String,
    losses: Vec<f64>,
    /// The largest difference from the CPU's losses.
    difference: f64,
    bound: f64,
}

/// Trains with each precision of the device and returns the report.
///
/// # Errors
/// If a kernel or a loss is too far from the CPU's, or the device fails.
pub fn agree(preset: &str, options: &Options) -> anyhow::Result<Value> {
    let config = ModelConfig::preset(preset)?;
    let batch = options.batch.unwrap_or(8) as usize;
    let micro_batch = options.micro_batch.map_or(batch.div_ceil(2), |micro_batch| micro_batch as usize);
    let recipe = Recipe { batch, micro_batch, warmup_steps: 5, ..Recipe::default() };
    let theta = init_flat(&config, 1)?;
    let sequences = random_sequences(&config, 2 * batch);
    let losses = |device: Device| -> anyhow::Result<Vec<f64>> {
        let mut trainer = mettle_engines::trainer(device, &config, &recipe, &theta)?;
        let batches = sequences.chunks(batch).cycle().take(STEPS);
        batches.map(|batch| Ok(trainer.step(batch)?.loss)).collect()
    };
    let kernels = kernels_agree(options.device)?;
    let losses_on_cpu = losses(Device::CPU)?;
    let mut devices = Vec::new();
    for (device, bound) in precisions(options.device) {
        let losses = match losses(device) {
            // A device may lack a precision; only the precision that the user named is required.
            Err(error) if lacks_precision(&error) && device != options.device => continue,
            losses => losses?,
        };
        let differences = losses.iter().zip(&losses_on_cpu).map(|(one, other)| (one - other).abs());
        let difference = differences.fold(0.0, f64::max);
        devices.push(Compared { device: device.to_string(), losses, difference, bound });
    }
    let report = json!({
        "preset": preset,
        // Number of kernels compared with the CPU's.
        "kernels": kernels,
        // Comparison of NCCL with exchange through memory, or the reason why it was not made.
        "nccl": nccl_agrees(options.device)?,
        "losses_on_cpu": losses_on_cpu,
        "devices": devices,
    });
    // No comparison holds for a NaN.
    let agree = devices.iter().all(|device| device.difference <= device.bound);
    anyhow::ensure!(agree, "the losses are too far apart\n{report:#}");
    Ok(report)
}

/// Compares training over NCCL with training through the machine's memory, on all GPUs, if NCCL is installed.
///
/// # Errors
/// If bits differ, or NCCL fails.
fn nccl_agrees(device: Device) -> anyhow::Result<Value> {
    let device = Device { precision: Some(Precision::F32), ..device };
    match nn::nccl::library_for(device) {
        Ok(_) => {
            let nn::conformance::NcclAgreement { version, ranks } =
                nn::conformance::nccl_gives_the_bits_of_memory(device)?;
            Ok(json!({ "version": version.to_string(), "ranks": ranks }))
        }
        Err(error) => Ok(error.to_string().into()),
    }
}

/// Compares the kernels of a GPU with the CPU's, and returns the number of comparisons; 0 for a device that does not
/// run our kernels.
///
/// # Errors
/// If a kernel's error exceeds its bound.
#[cfg(feature = "gpu")]
fn kernels_agree(device: Device) -> anyhow::Result<usize> {
    if device.name == DeviceName::Cpu || device.engine() == EngineKind::Burn {
        return Ok(0);
    }
    let all = crate::closeness::closeness(device)?;
    let mut apart = all.iter().filter(|it| !it.is_close()).peekable();
    if apart.peek().is_some() {
        let apart: Vec<String> = apart.map(ToString::to_string).collect();
        anyhow::bail!(
            "{} of {} kernels are too far from the CPU's:\n{}",
            apart.len(),
            all.len(),
            apart.join("\n")
        );
    }
    Ok(all.len())
}

#[cfg(not(feature = "gpu"))]
fn kernels_agree(_: Device) -> anyhow::Result<usize> {
    Ok(0)
}

fn lacks_precision(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ModelError::Device(DeviceError::NoSuchPrecision { .. })))
}

/// Returns the precisions to train with, and their bounds: both of the fused engine on a GPU, unless one is named.
fn precisions(device: Device) -> Vec<(Device, f64)> {
    if device.name == DeviceName::Cpu || device.engine() == EngineKind::Burn {
        return vec![(device, BOUND_F32)];
    }
    let with = |precision, bound| {
        (Device { engine: Some(EngineKind::Fused), precision: Some(precision), ..device }, bound)
    };
    match device.precision {
        Some(Precision::F32) => vec![(device, BOUND_F32)],
        Some(_) => vec![(device, BOUND_BF16)],
        None => vec![with(Precision::F32, BOUND_F32), with(Precision::Bf16, BOUND_BF16)],
    }
}
