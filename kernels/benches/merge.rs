//! Speed of decoding, adding and merging, compared with a copy and with the protocol's reference code.
//!
//!     cargo bench -p mettle-benches --features criterion --bench merge
//!
//! Throughput is in bytes of dense `f32`; a copy moves 8 bytes per value. The others move the payload (1.22 bytes per
//! entry at density 64/4096), and each line of 64 bytes with an entry in the sums twice. The merge moves the payloads,
//! the update, and the merge buffer twice.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{
    accumulate::accumulate,
    decode,
    encode::{self, Feedback, Source},
    merge,
    wire::{Layout, SECTION},
};
use protocol::{
    Uid,
    contribution::{self, Schema, Sparse, TensorSpec},
    merge::Input,
    norms::RunningNorms,
    params::{Density, MergeRule},
};
use rayon::prelude::*;
use std::hint::black_box;

/// Number of values of an array: 64 MiB, more than any cache.
const VALUES: usize = 64 * SECTION;
const SENT: u16 = 64;
/// Density of the union of twenty contributions: `1 − (1 − 1/64)^20`.
const MERGED: u16 = 1107;
const INPUTS: [usize; 2] = [8, 20];

fn noise(seed: u32) -> Vec<f32> {
    let mut values = vec![0.0; VALUES];
    values.par_chunks_mut(SECTION).enumerate().for_each(|(part, values)| {
        let mut state = (u64::from(seed) * 1_000_003 + part as u64) * 2 + 1;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
        };
        let mut bell = || (uniform() + uniform() + uniform() + uniform()) * 1e-3;
        values.iter_mut().for_each(|value| *value = bell());
    });
    values
}

/// Copies contiguous parts, one per thread.
fn copy(from: &[f32], to: &mut [f32]) {
    let part = from.len().div_ceil(rayon::current_num_threads());
    to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from));
}

fn pools() -> Vec<rayon::ThreadPool> {
    let all = rayon::current_num_threads();
    let counts = [1, 2, 4, 8, 16].into_iter().filter(|threads| *threads < all).chain([all]);
    counts
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start"))
        .collect()
}

fn schema() -> Schema {
    let tensor = TensorSpec { name: "weights".into(), shape: vec![VALUES as u32] };
    Schema::new(vec![tensor]).expect("a row is a schema")
}

fn decoding(criterion: &mut Criterion) {
    let layout = Layout::new(&[VALUES], SENT).expect("a density");
    let mut row = noise(1);
    let body = encode::encode(&layout, &mut row, Source::Nothing, Feedback::Keep).expect("values are finite");
    let schema = schema();
    let mut target = vec![0.0; VALUES];

    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(4 * VALUES as u64)).sample_size(10);
    group.bench_function(BenchmarkId::new("protocol", 1), |bencher| {
        bencher.iter(|| contribution::decode(&schema, Density(SENT), black_box(&body)));
    });
    for pool in pools() {
        let threads = pool.current_num_threads();
        group.bench_function(BenchmarkId::new("copy", threads), |bencher| {
            bencher.iter(|| pool.install(|| copy(&row, &mut target)));
        });
        group.bench_function(BenchmarkId::new("norms", threads), |bencher| {
            bencher.iter(|| pool.install(|| decode::norms(&layout, black_box(&body))));
        });
        group.bench_function(BenchmarkId::new("decode", threads), |bencher| {
            bencher.iter(|| pool.install(|| decode::decode(&layout, black_box(&body))));
        });
        group.bench_function(BenchmarkId::new("decode and add", threads), |bencher| {
            bencher.iter(|| pool.install(|| accumulate(&layout, black_box(&body), &[0.5], &mut target)));
        });
    }
    group.finish();
}

fn merging(criterion: &mut Criterion) {
    let layout = Layout::new(&[VALUES], SENT).expect("a density");
    let merged = Layout::new(&[VALUES], MERGED).expect("a density");
    let schema = schema();
    let most = INPUTS.into_iter().max().unwrap_or(0) as u32;
    let bodies: Vec<Vec<u8>> = (1..=most)
        .map(|seed| {
            encode::encode(&layout, &mut noise(seed), Source::Nothing, Feedback::Keep)
                .expect("values are finite")
        })
        .collect();
    let bodies: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
    let updates: Vec<Sparse> = bodies
        .iter()
        .map(|body| contribution::decode(&schema, Density(SENT), body).expect("it was encoded"))
        .collect();
    let mut buffer = vec![0.0; VALUES];

    for count in INPUTS {
        let mut group = criterion.benchmark_group(format!("merge of {count}"));
        group.throughput(Throughput::Bytes(4 * VALUES as u64)).sample_size(10);
        let (bodies, updates) = (&bodies[..count], &updates[..count]);
        let inputs: Vec<Input<'_>> =
            (0..).zip(updates).map(|(uid, update)| Input { uid: Uid(uid), weight: 0, update }).collect();
        // Input that is already decoded.
        group.bench_function(BenchmarkId::new("protocol", 1), |bencher| {
            bencher.iter(|| {
                let rule = MergeRule::MeanOverHits;
                protocol::merge::merge(
                    &schema,
                    rule,
                    Density(MERGED),
                    &inputs,
                    &RunningNorms::default(),
                    &mut buffer,
                )
            });
        });
        let scales = vec![vec![1.0; bodies.len()]; layout.tensors()];
        for pool in pools() {
            group.bench_function(BenchmarkId::new("merge", pool.current_num_threads()), |bencher| {
                bencher.iter(|| {
                    let rule = merge::Rule::MeanOverHits;
                    pool.install(|| merge::merge(&layout, rule, &merged, bodies, &scales, &mut buffer))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, decoding, merging);
criterion_main!(benches);
