//! Whether training on a device is training on the CPU: the losses of the first steps beside each other.

use crate::{Options, report::random_sequences};
use mettle_nn::{DeviceChoice, DeviceError, GpuSettings, ModelError, Precision, Trainer};
use model::{ModelConfig, Recipe, init_flat};
use serde::Serialize;
use std::fmt;

const STEPS: usize = 20;
/// How far losses may be apart, in nats: by f32 in another order, and by products in bf16.
const OF_F32: f64 = 1e-3;
const OF_BF16: f64 = 0.05;

#[derive(Debug, Serialize)]
pub struct Agreement {
    preset: String,
    on_cpu: Vec<f64>,
    ways: Vec<Way>,
}

#[derive(Debug, Serialize)]
struct Way {
    device: String,
    losses: Vec<f64>,
    apart: f64,
    allowed: f64,
}

/// Trains by every way that the device has. An error if one is too far from the CPU.
pub fn agree(preset: &str, options: &Options) -> anyhow::Result<Agreement> {
    let config = ModelConfig::preset(preset)?;
    let batch = options.batch.unwrap_or(8) as usize;
    let micro_batch = options.micro_batch.map_or(batch.div_ceil(2), |micro_batch| micro_batch as usize);
    let recipe = Recipe { batch, micro_batch, warmup_steps: 5, ..Recipe::default() };
    let theta = init_flat(&config, 1)?;
    let sequences = random_sequences(&config, 2 * batch);
    let losses = |on: DeviceChoice| -> anyhow::Result<Vec<f64>> {
        let mut trainer = Trainer::new(&config, &recipe, on, &theta)?;
        let batches = sequences.chunks(batch).cycle().take(STEPS);
        batches.map(|batch| Ok(trainer.step(batch)?.loss)).collect()
    };
    let on_cpu = losses(DeviceChoice::Cpu)?;
    let mut ways = Vec::new();
    for (device, allowed) in ways_of(options.device) {
        let losses = match losses(device) {
            // Not every device has it, and who named nothing has asked for what there is.
            Err(error) if lacks_precision(&error) && device != options.device => continue,
            losses => losses?,
        };
        let apart = losses.iter().zip(&on_cpu).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        ways.push(Way { device: device.to_string(), losses, apart, allowed });
    }
    let agreement = Agreement { preset: preset.to_owned(), on_cpu, ways };
    anyhow::ensure!(
        agreement.ways.iter().all(|way| way.apart <= way.allowed),
        "the losses are too far apart\n{agreement}"
    );
    Ok(agreement)
}

fn lacks_precision(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ModelError::Device(DeviceError::NoSuchPrecision { .. })))
}

/// The ways to train on a device, and how far each may be from the CPU: by kernels in both precisions, if none is named.
fn ways_of(on: DeviceChoice) -> Vec<(DeviceChoice, f64)> {
    let DeviceChoice::Gpu(gpu, settings) = on else { return vec![(on, OF_F32)] };
    let of = |precision| DeviceChoice::Gpu(gpu, GpuSettings { precision: Some(precision), ..settings });
    let (f32, bf16) = ((of(Precision::F32), OF_F32), (of(Precision::Bf16), OF_BF16));
    match settings.precision {
        Some(Precision::F32) => vec![f32],
        Some(_) => vec![(on, OF_BF16)],
        None => vec![f32, bf16],
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] =
            [self.on_cpu.first(), self.on_cpu.last()].map(|loss| loss.copied().unwrap_or(f64::NAN));
        writeln!(f, "{STEPS} steps of {} on the CPU: loss from {first:.4} to {last:.4}", self.preset)?;
        for way in &self.ways {
            writeln!(
                f,
                "{:>24}: at most {:.1e} apart, of {:.0e} allowed",
                way.device, way.apart, way.allowed
            )?;
        }
        Ok(())
    }
}
