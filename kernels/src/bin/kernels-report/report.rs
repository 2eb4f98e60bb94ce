//! What is measured, and how it is told.

use crate::{
    Options,
    measure::{self, PeakMemory, shortest},
    random::{self, DISTRIBUTIONS, Distribution},
};
use anyhow::Context as _;
use kernels::{
    accumulate, decode,
    encode::{self, Feedback, Source},
    lanes, merge, sparse,
    wire::{CHUNK, Layout},
};
use rayon::ThreadPool;
use serde::Serialize;
use std::{collections::BTreeMap, fmt, hint::black_box};

/// Gigabytes, 10^9 bytes, a second.
pub type Gbps = f64;

#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    /// Values in the dense row, and how many of each 4096 are sent.
    values: usize,
    density: u16,
    /// Bytes copied a second, all cores.
    memcpy_gbps: Gbps,
    /// Bytes of dense f32 a second through `e ← βe + Δ`, encode and take out of `e` what was sent, all cores.
    encode_gbps: Gbps,
    /// `encode_gbps / memcpy_gbps`. At most 2/3: 12 bytes move for each value, where a copy moves 8.
    encode_share: f64,
    /// Share of the memory's bandwidth (twice `memcpy_gbps`) at which decoding and adding moves its own bytes: the
    /// payload, and twice each line of 64 bytes of the dense row that it touches. All cores.
    decode_accumulate_share: f64,
    bits_per_value: f64,
    bits_per_parameter: f64,
    /// Of the values sent against the exact ones, by distribution.
    relative_l2: BTreeMap<&'static str, f64>,
    bits_per_value_of: BTreeMap<&'static str, f64>,
    peak_memory: PeakMemoryReport,
    merge: Option<Merge>,
    /// What these bits a value make of a model of 70.6 billion parameters.
    model_70_6b: Option<Extrapolated>,
    /// Each kernel by number of threads: bytes of dense f32 a second.
    kernels: Vec<Kernel>,
}

#[derive(Debug, Serialize)]
struct Machine {
    processor: Option<String>,
    cores: usize,
    simd: String,
}

#[derive(Debug, Serialize)]
struct Kernel {
    name: &'static str,
    threads: usize,
    dense_gbps: Gbps,
    share_of_memcpy: f64,
}

/// Encoding `values` values, its result handed on section by section.
#[derive(Debug, Serialize)]
struct PeakMemoryReport {
    values: usize,
    /// Beyond `e` and `Δ`; `null` where the system does not tell.
    encode_added_bytes: Option<u64>,
    threads: usize,
    encode_added_mib_per_thread: Option<f64>,
    encoded_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Merge {
    inputs: usize,
    values: usize,
    density: u16,
    seconds: f64,
    payload_bytes: u64,
    update_bytes: u64,
    update_bits_per_value: f64,
    /// Against reading the payloads and writing the update as fast as memory is copied.
    times_payloads_and_update: f64,
    /// The same, with the merge buffer read and written, which no merge can do without.
    times_with_buffer: f64,
}

#[derive(Debug, Serialize)]
struct Extrapolated {
    contribution_gb: f64,
    update_gb: f64,
    update_share_of_contributions: f64,
}

const PARAMETERS: f64 = 70.6e9;
pub const DECAY: f32 = 0.95;

pub fn measure(options: &Options) -> anyhow::Result<Report> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let values = values_of(options.mebivalues)?;
    let layout = Layout::new(&tensors(values), options.density)?;

    let mut residual = zeros(values)?;
    let mut delta = zeros(values)?;
    random::fill(&mut residual, Distribution::Gaussian, 1);
    random::fill(&mut delta, Distribution::Gaussian, 2);

    let every = pool(cores)?;
    let peak_memory = every.install(|| peak_memory(&layout, &mut residual, &delta, cores))?;
    let bits_per_value = 8.0 * peak_memory.encoded_bytes as f64 / entries(&layout) as f64;
    let mut report = Report {
        machine: Machine { processor: measure::processor(), cores, simd: format!("{:?}", lanes::width()) },
        values,
        density: options.density,
        memcpy_gbps: 0.0,
        encode_gbps: 0.0,
        encode_share: 0.0,
        decode_accumulate_share: 0.0,
        bits_per_value,
        bits_per_parameter: 8.0 * peak_memory.encoded_bytes as f64 / values as f64,
        relative_l2: BTreeMap::new(),
        bits_per_value_of: BTreeMap::new(),
        peak_memory,
        merge: None,
        model_70_6b: None,
        kernels: Vec::new(),
    };
    if options.memory_only {
        return Ok(report);
    }

    let mut counts: Vec<usize> = options.threads.iter().map(|threads| usize::from(*threads)).collect();
    if counts.is_empty() {
        counts = vec![1, cores];
        counts.dedup();
    }
    for threads in counts {
        let of_pool = kernels_at(options, &layout, threads, &mut residual, &delta)?;
        report.kernels.extend(of_pool.kernels);
        if threads == cores || report.memcpy_gbps == 0.0 {
            report.memcpy_gbps = of_pool.memcpy_gbps;
            report.encode_gbps = of_pool.encode_gbps;
            report.encode_share = of_pool.encode_gbps / of_pool.memcpy_gbps;
            report.decode_accumulate_share = of_pool.touched_gbps / (2.0 * of_pool.memcpy_gbps);
        }
    }
    drop((residual, delta));

    for (name, distribution) in DISTRIBUTIONS {
        let (bits, error) = fidelity(options.density, distribution)?;
        report.bits_per_value_of.insert(name, bits);
        report.relative_l2.insert(name, error);
    }
    let merge = every.install(|| merge_of_many(options, report.memcpy_gbps))?;
    report.model_70_6b = Some(extrapolate(&report, &merge, usize::from(options.inputs)));
    report.merge = Some(merge);
    Ok(report)
}

/// A row of tensors of the sizes that models have, the last one odd, so that short chunks are measured too.
pub fn tensors(values: usize) -> Vec<usize> {
    const TENSOR: usize = 16 << 20;
    const ODD: usize = 1001;
    let mut lengths = vec![TENSOR; values / TENSOR];
    let rest = values % TENSOR;
    if rest > 0 {
        lengths.push(rest);
    }
    if let Some(last) = lengths.last_mut() {
        *last -= ODD;
    }
    lengths.push(ODD);
    lengths
}

pub fn values_of(mebivalues: u64) -> anyhow::Result<usize> {
    usize::try_from(mebivalues << 20).context("so many values have no address here")
}

/// A row of zeros, or an error where the machine has no room for it.
pub fn zeros(values: usize) -> anyhow::Result<Vec<f32>> {
    let mut row = Vec::new();
    row.try_reserve_exact(values).with_context(|| {
        format!("no memory for {} MiB; take fewer values (--mebivalues)", (4 * values) >> 20)
    })?;
    row.resize(values, 0.0);
    Ok(row)
}

fn pool(threads: usize) -> anyhow::Result<ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("the threads did not start")
}

pub fn entries(layout: &Layout) -> usize {
    layout.ranges().map(|range| layout.entries(range.len())).sum()
}

/// What encoding adds to the memory of `e` and `Δ`, its output going nowhere.
fn peak_memory(
    layout: &Layout,
    residual: &mut [f32],
    delta: &[f32],
    threads: usize,
) -> anyhow::Result<PeakMemoryReport> {
    let peak = PeakMemory::start();
    let mut sink = |section: &[u8]| -> Result<(), std::convert::Infallible> {
        black_box(section);
        Ok(())
    };
    let source = Source::Delta { decay: DECAY, delta };
    let encoded_bytes = encode::encode_into(layout, residual, source, Feedback::Spend, &mut sink)?;
    let added = peak.and_then(|peak| peak.added());
    Ok(PeakMemoryReport {
        values: layout.values(),
        encode_added_bytes: added,
        threads,
        encode_added_mib_per_thread: added.map(|added| added as f64 / f64::from(1 << 20) / threads as f64),
        encoded_bytes,
    })
}

struct OfPool {
    memcpy_gbps: Gbps,
    encode_gbps: Gbps,
    /// Bytes that decode-and-add itself reads and writes, a second.
    touched_gbps: Gbps,
    kernels: Vec<Kernel>,
}

/// Measures every kernel with one number of threads. A copy of memory is measured before each kernel, so that a share
/// compares measurements that are close in time.
fn kernels_at(
    options: &Options,
    layout: &Layout,
    threads: usize,
    residual: &mut [f32],
    delta: &[f32],
) -> anyhow::Result<OfPool> {
    let pool = pool(threads)?;
    let rounds = usize::from(options.rounds);
    let dense_bytes = 4.0 * layout.values() as f64;
    let gbps = |seconds: f64| dense_bytes / seconds / 1e9;
    let body = pool.install(|| encode::encode(layout, residual, Source::Nothing, Feedback::Keep))?;
    let tensors = decode::decode(layout, &body)?;
    let scales = vec![1.0f32; layout.tensors()];
    let mut row = zeros(layout.values())?;
    row.copy_from_slice(delta);

    let mut copies = f64::INFINITY;
    let mut kernels = Vec::new();
    let mut timed = |name, kernel: &mut (dyn FnMut(&mut [f32], &mut [f32]) + Send)| {
        let seconds = shortest(rounds, || pool.install(|| kernel(residual, &mut row)));
        copies = copies.min(shortest(rounds.div_ceil(2), || pool.install(|| measure::copy(delta, &mut row))));
        kernels.push(Kernel { name, threads, dense_gbps: gbps(seconds), share_of_memcpy: 0.0 });
        seconds
    };

    let mut discard = |section: &[u8]| -> Result<(), std::convert::Infallible> {
        black_box(section);
        Ok(())
    };
    let fused = Source::Delta { decay: DECAY, delta };
    let encode_seconds = timed("encode, with feedback", &mut |residual, _| {
        let encoded = encode::encode_into(layout, residual, fused, Feedback::Spend, &mut discard);
        black_box(encoded.expect("the values are finite"));
    });
    timed("encode, keeping the residual", &mut |residual, _| {
        let encoded = encode::encode_into(layout, residual, fused, Feedback::Keep, &mut discard);
        black_box(encoded.expect("the values are finite"));
    });
    timed("encode, nothing added", &mut |residual, _| {
        let encoded = encode::encode_into(layout, residual, Source::Nothing, Feedback::Keep, &mut discard);
        black_box(encoded.expect("the values are finite"));
    });
    timed("decode to entries", &mut |_, _| {
        black_box(decode::decode(layout, &body).expect("we encoded it"));
    });
    timed("decode to norms", &mut |_, _| {
        black_box(decode::norms(layout, &body).expect("we encoded it"));
    });
    let accumulate_seconds = timed("decode and add", &mut |_, row| {
        accumulate::accumulate(layout, &body, &scales, row).expect("we encoded it");
    });
    timed("decode and apply", &mut |_, row| merge::apply(layout, &body, 1e-3, row).expect("we encoded it"));
    timed("decode and spend", &mut |_, row| merge::subtract_sent(layout, &body, row).expect("we encoded it"));
    timed("sparse apply and restore", &mut |_, row| {
        for (range, tensor) in layout.ranges().zip(&tensors) {
            let row = &mut row[range];
            let previous = sparse::apply(row, &tensor.positions, &tensor.values, 1e-3);
            sparse::restore(row, &tensor.positions, &previous);
        }
    });

    let memcpy_gbps = gbps(copies);
    kernels.insert(0, Kernel { name: "memcpy", threads, dense_gbps: memcpy_gbps, share_of_memcpy: 0.0 });
    for kernel in &mut kernels {
        kernel.share_of_memcpy = kernel.dense_gbps / memcpy_gbps;
    }
    let touched = body.len() + 2 * 64 * lines_touched(layout, &tensors);
    Ok(OfPool {
        memcpy_gbps,
        encode_gbps: gbps(encode_seconds),
        touched_gbps: touched as f64 / accumulate_seconds / 1e9,
        kernels,
    })
}

/// Lines of 64 bytes, 16 values, of the dense row in which there is an entry.
fn lines_touched(layout: &Layout, tensors: &[decode::Entries]) -> usize {
    let mut lines = 0;
    let mut last = usize::MAX;
    for (range, tensor) in layout.ranges().zip(tensors) {
        for position in &tensor.positions {
            let line = (range.start + *position as usize) / 16;
            lines += usize::from(line != last);
            last = line;
        }
    }
    lines
}

/// Bits a value sent, and the relative L2 error of what is sent against what was there.
fn fidelity(density: u16, distribution: Distribution) -> anyhow::Result<(f64, f64)> {
    const VALUES: usize = 8 << 20;
    let layout = Layout::new(&[VALUES], density)?;
    let mut values = zeros(VALUES)?;
    random::fill(&mut values, distribution, 3);
    let body = encode::encode(&layout, &mut values, Source::Nothing, Feedback::Keep)?;
    let tensors = decode::decode(&layout, &body)?;
    let (mut error, mut norm) = (0.0, 0.0);
    for tensor in &tensors {
        for (position, level) in tensor.positions.iter().zip(&tensor.values) {
            let value = f64::from(values[*position as usize]);
            error += (value - f64::from(*level)).powi(2);
            norm += value.powi(2);
        }
    }
    Ok((8.0 * body.len() as f64 / entries(&layout) as f64, (error / norm).sqrt()))
}

/// `1 − (1 − ρ)^R`, the share of values that some contribution sends, in 4096ths.
fn union(density: u16, inputs: usize) -> u16 {
    let share = 1.0 - (1.0 - f64::from(density) / CHUNK as f64).powi(inputs as i32);
    ((share * CHUNK as f64).round() as u16).clamp(1, CHUNK as u16)
}

/// Contributions to merge, and what a merge is given besides them.
pub struct MergeCase {
    pub sent: Layout,
    pub merged: Layout,
    pub bodies: Vec<Vec<u8>>,
    /// `[tensor][input]`
    pub scales: Vec<Vec<f32>>,
}

impl MergeCase {
    pub fn new(options: &Options) -> anyhow::Result<MergeCase> {
        let inputs = usize::from(options.inputs);
        let lengths = tensors(values_of(options.merge_mebivalues)?);
        let sent = Layout::new(&lengths, options.density)?;
        let merged = Layout::new(&lengths, union(options.density, inputs))?;
        let mut row = zeros(sent.values())?;
        let mut bodies = Vec::with_capacity(inputs);
        for input in 0..inputs {
            random::fill(&mut row, Distribution::Gaussian, 100 + input as u64);
            bodies.push(encode::encode(&sent, &mut row, Source::Nothing, Feedback::Keep)?);
        }
        let norms = bodies.iter().map(|body| decode::norms(&sent, body)).collect::<Result<Vec<_>, _>>()?;
        let scales = merge::clip_scales(&norms);
        Ok(MergeCase { sent, merged, bodies, scales })
    }
}

fn merge_of_many(options: &Options, memcpy_gbps: Gbps) -> anyhow::Result<Merge> {
    let MergeCase { sent: layout, merged, bodies, scales } = MergeCase::new(options)?;
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    let (inputs, values) = (bodies.len(), layout.values());
    let mut buffer = zeros(values)?;

    let mut update = Vec::new();
    let mut failed = None;
    let seconds = shortest(usize::from(options.rounds), || {
        match merge::merge(&layout, merge::Rule::MeanOverHits, &merged, &bodies, &scales, &mut buffer) {
            Ok(bytes) => update = bytes,
            Err(error) => failed = Some(error),
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let payload_bytes: u64 = bodies.iter().map(|body| body.len() as u64).sum();
    let update_bytes = update.len() as u64;
    // A copy reads and writes each byte.
    let bandwidth = 2e9 * memcpy_gbps;
    let objects = (payload_bytes + update_bytes) as f64;
    Ok(Merge {
        inputs,
        values,
        density: merged.density(),
        seconds,
        payload_bytes,
        update_bytes,
        update_bits_per_value: 8.0 * update_bytes as f64 / entries(&merged) as f64,
        times_payloads_and_update: seconds * bandwidth / objects,
        times_with_buffer: seconds * bandwidth / (objects + 8.0 * values as f64),
    })
}

fn extrapolate(report: &Report, merge: &Merge, inputs: usize) -> Extrapolated {
    let contribution = report.bits_per_parameter / 8.0 * PARAMETERS;
    let update = merge.update_bytes as f64 / merge.values as f64 * PARAMETERS;
    Extrapolated {
        contribution_gb: contribution / 1e9,
        update_gb: update / 1e9,
        update_share_of_contributions: update / (contribution * inputs as f64),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, simd } = &self.machine;
        writeln!(f, "{}, {cores} cores, {simd}", processor.as_deref().unwrap_or("unknown processor"))?;
        writeln!(
            f,
            "{} values, {} of 4096 sent: {:.3} bits a value sent, {:.4} a parameter",
            self.values, self.density, self.bits_per_value, self.bits_per_parameter
        )?;
        if let Some(mib) = self.peak_memory.encode_added_mib_per_thread {
            writeln!(f, "encoding adds {mib:.1} MiB a thread to the memory of e and Δ")?;
        }
        if self.kernels.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{:<30} {:>7} {:>12} {:>10}", "kernel", "threads", "dense GB/s", "of memcpy")?;
        for Kernel { name, threads, dense_gbps, share_of_memcpy } in &self.kernels {
            writeln!(f, "{name:<30} {threads:>7} {dense_gbps:>12.2} {:>9.1}%", 100.0 * share_of_memcpy)?;
        }
        writeln!(f, "\nencode at {:.1} % of memcpy (67 % is the limit)", 100.0 * self.encode_share)?;
        writeln!(
            f,
            "decode and add at {:.1} % of the bandwidth of its own bytes",
            100.0 * self.decode_accumulate_share
        )?;
        writeln!(f, "\n{:<20} {:>12} {:>14}", "distribution", "bits a value", "relative L2")?;
        for (name, error) in &self.relative_l2 {
            writeln!(f, "{name:<20} {:>12.3} {error:>14.4}", self.bits_per_value_of[name])?;
        }
        if let Some(merge) = &self.merge {
            writeln!(
                f,
                "\nmerge of {} at {} of 4096: {:.3} s for {} values, {:.3} bits a value sent",
                merge.inputs, merge.density, merge.seconds, merge.values, merge.update_bits_per_value
            )?;
            writeln!(
                f,
                "  {:.1} times a copy of payloads and update, {:.2} times with the buffer read and written",
                merge.times_payloads_and_update, merge.times_with_buffer
            )?;
        }
        if let Some(Extrapolated { contribution_gb, update_gb, update_share_of_contributions }) =
            &self.model_70_6b
        {
            writeln!(
                f,
                "\n70.6 billion parameters: contribution {contribution_gb:.3} GB, update {update_gb:.2} GB, {:.1} % of its contributions",
                100.0 * update_share_of_contributions
            )?;
        }
        Ok(())
    }
}
