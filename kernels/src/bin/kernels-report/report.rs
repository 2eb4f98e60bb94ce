//! The measurements, and their text.

use crate::{
    Options,
    measure::{PeakMemory, copy},
    random::{self, DISTRIBUTIONS, Distribution},
};
use anyhow::Context as _;
use kernels::{
    accumulate, decode,
    encode::{self, Feedback, Source},
    lanes,
    measure::{Column, processor, shortest},
    merge, sparse,
    wire::{CHUNK, Layout},
};
use rayon::ThreadPool;
use serde::Serialize;
use std::{collections::BTreeMap, convert::Infallible, hint::black_box};

/// Gigabytes (10^9 bytes) per second.
type Gbps = f64;

#[derive(Debug, Serialize)]
pub struct Report {
    processor: Option<String>,
    cores: usize,
    simd: String,
    /// Number of values in the dense row, and of values sent per 4096.
    values: usize,
    density: u16,
    bits_per_value: f64,
    bits_per_parameter: f64,
    peak_memory: PeakMemoryReport,
    /// All measurements except memory; `None` with `--memory-only`.
    #[serde(flatten)]
    speed: Option<Speed>,
}

#[derive(Debug, Serialize)]
struct Speed {
    /// Bytes copied per second by all cores.
    memcpy_gbps: Gbps,
    /// Bytes of dense f32 per second through `e ← βe + Δ`, encode and `e ← e − sent`, by all cores.
    encode_gbps: Gbps,
    /// `encode_gbps / memcpy_gbps`. At most 2/3: 12 bytes move per value, but only 8 in a copy.
    encode_share: f64,
    /// Share of the memory's bandwidth (twice `memcpy_gbps`) used by decode-and-add on all cores. It moves the payload
    /// once, and each line of 64 bytes that it touches in the dense row twice.
    decode_accumulate_share: f64,
    /// Relative L2 error of the sent values, by distribution.
    relative_l2: BTreeMap<&'static str, f64>,
    merge: Merge,
    model_70_6b: Extrapolated,
    /// Results of each kernel by number of threads.
    kernels: Vec<Kernel>,
}

#[derive(Debug, Serialize)]
struct Kernel {
    name: &'static str,
    threads: usize,
    /// Rate in bytes of dense f32 per second.
    dense_gbps: Gbps,
    share_of_memcpy: f64,
}

/// Memory for encoding the row, with its result passed on section by section.
#[derive(Debug, Serialize)]
struct PeakMemoryReport {
    /// Bytes beyond `e` and `Δ`; `null` if the system does not report them.
    encode_added_bytes: Option<u64>,
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
    /// Duration relative to reading the payloads and writing the update at the speed of a copy.
    times_payloads_and_update: f64,
}

/// Sizes for a model of 70.6 billion parameters at these bits per value.
#[derive(Debug, Serialize)]
struct Extrapolated {
    contribution_gb: f64,
    update_gb: f64,
    update_share_of_contributions: f64,
}

/// Columns of the tables in a report's text.
pub const COLUMNS: [Column; 4] = [
    Column::new("kernel", "name", 1.0, 0),
    Column::new("threads", "threads", 1.0, 0),
    Column::new("dense GB/s", "dense_gbps", 1.0, 2),
    Column::new("of memcpy, %", "share_of_memcpy", 100.0, 1),
];

const PARAMETERS: f64 = 70.6e9;
const DECAY: f32 = 0.95;

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
    let bits = 8.0 * peak_memory.encoded_bytes as f64;
    let mut report = Report {
        processor: processor(),
        cores,
        simd: format!("{:?}", lanes::width()),
        values,
        density: options.density,
        bits_per_value: bits / entries(&layout) as f64,
        bits_per_parameter: bits / values as f64,
        peak_memory,
        speed: None,
    };
    if options.memory_only {
        return Ok(report);
    }

    let mut counts: Vec<usize> = options.threads.iter().map(|threads| usize::from(*threads)).collect();
    if counts.is_empty() {
        counts = vec![1, cores];
        counts.dedup();
    }
    let mut kernels = Vec::new();
    // Result of all cores, or of the first number of threads if all were not requested.
    let mut best: Option<OfPool> = None;
    for threads in counts {
        let (of_pool, measured) = kernels_at(options, &layout, threads, &mut residual, &delta)?;
        kernels.extend(measured);
        if threads == cores || best.is_none() {
            best = Some(of_pool);
        }
    }
    drop((residual, delta));
    let OfPool { memcpy_gbps, encode_gbps, touched_gbps } = best.context("no number of threads")?;

    let mut relative_l2 = BTreeMap::new();
    for (name, distribution) in DISTRIBUTIONS {
        relative_l2.insert(name, relative_error(options.density, distribution)?);
    }
    let merge = every.install(|| merge_of_many(options, memcpy_gbps))?;
    let contribution = report.bits_per_parameter / 8.0 * PARAMETERS;
    let update = merge.update_bytes as f64 / merge.values as f64 * PARAMETERS;
    report.speed = Some(Speed {
        memcpy_gbps,
        encode_gbps,
        encode_share: encode_gbps / memcpy_gbps,
        decode_accumulate_share: touched_gbps / (2.0 * memcpy_gbps),
        relative_l2,
        model_70_6b: Extrapolated {
            contribution_gb: contribution / 1e9,
            update_gb: update / 1e9,
            update_share_of_contributions: update / (contribution * f64::from(options.inputs)),
        },
        merge,
        kernels,
    });
    Ok(report)
}

/// Returns a row of tensors with sizes as in models, the last one odd, so that short chunks are measured too.
fn tensors(values: usize) -> Vec<usize> {
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

fn values_of(mebivalues: u64) -> anyhow::Result<usize> {
    usize::try_from(mebivalues << 20).context("so many values have no address here")
}

/// Returns a row of zeros, or an error if memory is too small.
fn zeros(values: usize) -> anyhow::Result<Vec<f32>> {
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

fn entries(layout: &Layout) -> usize {
    layout.ranges().map(|range| layout.entries(range.len())).sum()
}

fn discard(section: &[u8]) -> Result<(), Infallible> {
    black_box(section);
    Ok(())
}

/// Measures the memory that encoding needs beyond `e` and `Δ`, with its output discarded.
fn peak_memory(
    layout: &Layout,
    residual: &mut [f32],
    delta: &[f32],
    threads: usize,
) -> anyhow::Result<PeakMemoryReport> {
    let peak = PeakMemory::start();
    let source = Source::Delta { decay: DECAY, delta };
    let encoded_bytes = encode::encode_into(layout, residual, source, Feedback::Spend, &mut discard)?;
    let added = peak.and_then(|peak| peak.added());
    Ok(PeakMemoryReport {
        encode_added_bytes: added,
        encode_added_mib_per_thread: added.map(|added| added as f64 / f64::from(1 << 20) / threads as f64),
        encoded_bytes,
    })
}

struct OfPool {
    memcpy_gbps: Gbps,
    encode_gbps: Gbps,
    /// Bytes that decode-and-add itself reads and writes per second.
    touched_gbps: Gbps,
}

/// Measures every kernel with one number of threads. A copy of memory is measured before each kernel, so that a share
/// compares measurements that are close in time.
fn kernels_at(
    options: &Options,
    layout: &Layout,
    threads: usize,
    residual: &mut [f32],
    delta: &[f32],
) -> anyhow::Result<(OfPool, Vec<Kernel>)> {
    let pool = pool(threads)?;
    let rounds = usize::from(options.rounds);
    let gbps = |seconds: f64| 4.0 * layout.values() as f64 / seconds / 1e9;
    let body = pool.install(|| encode::encode(layout, residual, Source::Nothing, Feedback::Keep))?;
    let tensors = decode::decode(layout, &body)?;
    let scales = vec![1.0f32; layout.tensors()];
    let mut row = zeros(layout.values())?;
    row.copy_from_slice(delta);

    let mut copies = f64::INFINITY;
    let mut kernels = Vec::new();
    let mut timed = |name, kernel: &mut (dyn FnMut(&mut [f32], &mut [f32]) + Send)| {
        let seconds = shortest(rounds, || pool.install(|| kernel(residual, &mut row)));
        copies = copies.min(shortest(rounds.div_ceil(2), || pool.install(|| copy(delta, &mut row))));
        kernels.push(Kernel { name, threads, dense_gbps: gbps(seconds), share_of_memcpy: 0.0 });
        seconds
    };

    let encode = |residual: &mut [f32], source, feedback| {
        let encoded = encode::encode_into(layout, residual, source, feedback, &mut discard);
        black_box(encoded.expect("the values are finite"));
    };
    let fused = Source::Delta { decay: DECAY, delta };
    let encode_seconds =
        timed("encode, with feedback", &mut |residual, _| encode(residual, fused, Feedback::Spend));
    timed("encode, keeping the residual", &mut |residual, _| encode(residual, fused, Feedback::Keep));
    timed("encode, nothing added", &mut |residual, _| encode(residual, Source::Nothing, Feedback::Keep));
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
            sparse::restore(row, &tensor.positions, previous);
        }
    });

    let memcpy_gbps = gbps(copies);
    kernels.insert(0, Kernel { name: "memcpy", threads, dense_gbps: memcpy_gbps, share_of_memcpy: 0.0 });
    for kernel in &mut kernels {
        kernel.share_of_memcpy = kernel.dense_gbps / memcpy_gbps;
    }
    let touched = body.len() + 2 * 64 * lines_touched(layout, &tensors);
    let touched_gbps = touched as f64 / accumulate_seconds / 1e9;
    Ok((OfPool { memcpy_gbps, encode_gbps: gbps(encode_seconds), touched_gbps }, kernels))
}

/// Returns the number of lines of 64 bytes (16 values) of the dense row with an entry.
fn lines_touched(layout: &Layout, tensors: &[decode::Entries]) -> usize {
    let mut lines: Vec<usize> = Vec::new();
    for (range, tensor) in layout.ranges().zip(tensors) {
        lines.extend(tensor.positions.iter().map(|position| (range.start + *position as usize) / 16));
    }
    lines.dedup();
    lines.len()
}

/// Returns the relative L2 error of the sent values.
fn relative_error(density: u16, distribution: Distribution) -> anyhow::Result<f64> {
    const VALUES: usize = 8 << 20;
    let layout = Layout::new(&[VALUES], density)?;
    let mut values = zeros(VALUES)?;
    random::fill(&mut values, distribution, 3);
    let body = encode::encode(&layout, &mut values, Source::Nothing, Feedback::Keep)?;
    let (mut error, mut norm) = (0.0, 0.0);
    for tensor in decode::decode(&layout, &body)? {
        for (position, level) in tensor.positions.iter().zip(&tensor.values) {
            let value = f64::from(values[*position as usize]);
            error += (value - f64::from(*level)).powi(2);
            norm += value.powi(2);
        }
    }
    Ok((error / norm).sqrt())
}

/// Returns `1 − (1 − ρ)^R`, the share of values that at least one contribution sends, in 4096ths.
fn union(density: u16, inputs: usize) -> u16 {
    let share = 1.0 - (1.0 - f64::from(density) / CHUNK as f64).powi(inputs as i32);
    ((share * CHUNK as f64).round() as u16).clamp(1, CHUNK as u16)
}

fn merge_of_many(options: &Options, memcpy_gbps: Gbps) -> anyhow::Result<Merge> {
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
    let scales = vec![vec![1.0; inputs]; sent.tensors()];
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();

    let mut buffer = zeros(sent.values())?;
    let mut update = Ok(Vec::new());
    let seconds = shortest(usize::from(options.rounds), || {
        update = merge::merge(&sent, merge::Rule::MeanOverHits, &merged, &bodies, &scales, &mut buffer);
    });
    let update_bytes = update?.len() as u64;
    let payload_bytes: u64 = bodies.iter().map(|body| body.len() as u64).sum();
    Ok(Merge {
        inputs,
        values: sent.values(),
        density: merged.density(),
        seconds,
        payload_bytes,
        update_bytes,
        update_bits_per_value: 8.0 * update_bytes as f64 / entries(&merged) as f64,
        // A copy reads and writes each byte.
        times_payloads_and_update: seconds * 2e9 * memcpy_gbps / (payload_bytes + update_bytes) as f64,
    })
}
