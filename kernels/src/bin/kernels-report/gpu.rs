//! The same measures on a GPU, beside a copy of its own memory.

use crate::{
    Options,
    measure::shortest,
    random::{self, Distribution},
    report::{DECAY, Gbps, MergeCase, entries, tensors, values_of, zeros},
};
use kernels::{
    encode::Feedback,
    gpu::{Device, GpuError, Source, agreement, network},
    merge::Rule,
    wire::Layout,
};
use serde::Serialize;
use std::fmt;

#[derive(Debug, Serialize)]
pub struct GpuReport {
    device: String,
    /// Whether rows are stepped by the device's own arithmetic, which was seen to agree, or by integers.
    own_arithmetic: bool,
    values: usize,
    density: u16,
    /// Bytes copied a second in the device's memory; a copy moves twice as many.
    memcpy_gbps: Gbps,
    /// Bytes of dense f32 a second through `e ← βe + Δ`, encode and take out what was sent, until the body is with the processor.
    encode_gbps: Gbps,
    encode_share: f64,
    bits_per_value: f64,
    merge_seconds: f64,
    merge_values: usize,
    kernels: Vec<GpuKernel>,
}

#[derive(Debug, Serialize)]
struct GpuKernel {
    name: &'static str,
    dense_gbps: Gbps,
    share_of_memcpy: f64,
}

/// Compares every kernel with the processor's, bit for bit, and a network's within roundings; and says
/// how much was compared.
pub fn agree(name: &str) -> anyhow::Result<String> {
    let found = agreement(&Device::open(name)?)?;
    let close = network::closeness(name)?;
    let said = |it: &network::Closeness| {
        format!("  {}: {:.1e}, and {:.1e} was allowed", it.what, it.error, it.bound)
    };
    let unused: Vec<String> = close.iter().filter(|it| it.holds() && !it.close()).map(said).collect();
    if !unused.is_empty() {
        eprintln!(
            "{name}: ways to multiply that nothing uses are off, which is no fault:\n{}",
            unused.join("\n")
        );
    }
    let apart: Vec<String> = close.iter().filter(|it| !it.holds()).map(said).collect();
    anyhow::ensure!(
        apart.is_empty(),
        "{} of {} comparisons of a network's passes are too far off:\n{}",
        apart.len(),
        close.len(),
        apart.join("\n")
    );
    Ok(format!(
        "{name}: {} checks, {} values and bytes, all equal to the processor's; {} comparisons of a network's passes, all close",
        found.checks,
        found.compared,
        close.len()
    ))
}

pub fn measure(options: &Options, name: &str) -> anyhow::Result<GpuReport> {
    let device = Device::open(name)?;
    let layout = Layout::new(&tensors(values_of(options.mebivalues)?), options.density)?;
    let mut row = zeros(layout.values())?;
    random::fill(&mut row, Distribution::Gaussian, 1);
    let mut residual = device.upload(&layout, &row)?;
    random::fill(&mut row, Distribution::Gaussian, 2);
    let delta = device.upload(&layout, &row)?;
    let mut target = device.upload(&layout, &row)?;
    drop(row);

    let mut failed = None;
    let mut kernels = Vec::new();
    let dense_bytes = 4.0 * layout.values() as f64;
    let mut timed = |name, kernel: &mut dyn FnMut() -> Result<(), GpuError>| {
        // The first run compiles.
        let mut run = || kernel().and_then(|()| device.finish());
        failed = failed.take().or(run().err());
        let seconds = shortest(usize::from(options.rounds), || failed = failed.take().or(run().err()));
        kernels.push(GpuKernel { name, dense_gbps: dense_bytes / seconds / 1e9, share_of_memcpy: 0.0 });
    };
    timed("memcpy", &mut || device.copy(&delta, &mut target));
    let fused = Source::Delta { decay: DECAY, delta: &delta };
    let mut body = Vec::new();
    timed("encode, with feedback", &mut || {
        body = device.encode(&layout, &mut residual, fused, Feedback::Spend)?;
        Ok(())
    });
    timed("decode to entries", &mut || device.decode(&layout, &body).map(drop));
    let decoded = device.decode(&layout, &body)?;
    let (scales, mut hits) = (vec![1.0; layout.tensors()], device.zeros(&layout));
    timed("add entries", &mut || device.accumulate(&decoded, &scales, &mut target, &mut hits));
    timed("apply and undo entries", &mut || {
        let previous = device.apply(&decoded, 1e-3, &mut target)?;
        device.undo(&decoded, &previous, &mut target)
    });
    timed("norm", &mut || device.norms_squared(&layout, &residual).map(drop));
    if let Some(error) = failed {
        return Err(error.into());
    }
    let memcpy_gbps = kernels[0].dense_gbps;
    for kernel in &mut kernels {
        kernel.share_of_memcpy = kernel.dense_gbps / memcpy_gbps;
    }

    let MergeCase { sent, merged, bodies, scales } = MergeCase::new(options)?;
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    let mut buffer = device.zeros(&merged);
    let mut failed = None;
    let merge_seconds = shortest(1 + usize::from(options.rounds), || {
        let update = device.merge(&sent, Rule::MeanOverHits, &merged, &bodies, &scales, &mut buffer);
        failed = failed.take().or(update.err());
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    Ok(GpuReport {
        device: device.name().to_owned(),
        own_arithmetic: device.hardware(),
        values: layout.values(),
        density: options.density,
        memcpy_gbps,
        encode_gbps: kernels[1].dense_gbps,
        encode_share: kernels[1].share_of_memcpy,
        bits_per_value: 8.0 * body.len() as f64 / entries(&layout) as f64,
        merge_seconds,
        merge_values: merged.values(),
        kernels,
    })
}

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arithmetic = if self.own_arithmetic { "its own arithmetic" } else { "arithmetic in integers" };
        writeln!(f, "{}, {arithmetic}", self.device)?;
        writeln!(
            f,
            "{} values, {} of 4096 sent: {:.3} bits a value sent",
            self.values, self.density, self.bits_per_value
        )?;
        writeln!(f, "\n{:<30} {:>12} {:>10}", "kernel", "dense GB/s", "of memcpy")?;
        for GpuKernel { name, dense_gbps, share_of_memcpy } in &self.kernels {
            writeln!(f, "{name:<30} {dense_gbps:>12.2} {:>9.1}%", 100.0 * share_of_memcpy)?;
        }
        writeln!(f, "\nmerge: {:.3} s for {} values", self.merge_seconds, self.merge_values)
    }
}
