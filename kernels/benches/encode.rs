//! Encoding speed of a residual, compared with a copy.
//!
//!     cargo bench -p mettle-benches --features criterion --bench encode
//!
//! Throughput is in bytes of dense `f32`: divide an encoder's by the copy's. The copy moves 8 bytes per value and the
//! encoder 12, so the limit is 67 %.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{
    encode::{self, Feedback, Source},
    wire::{Layout, SECTION},
};
use protocol::{
    contribution::{self, Schema, TensorSpec},
    params::Density,
};
use rayon::prelude::*;
use std::{convert::Infallible, hint::black_box};

/// Number of values of an array: 128 MiB, more than any cache.
const VALUES: usize = 128 * SECTION;

fn noise(length: usize, seed: u32) -> Vec<f32> {
    let mut values = vec![0.0; length];
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

fn benches(criterion: &mut Criterion) {
    let delta = noise(VALUES, 1);
    let mut residual = noise(VALUES, 2);
    let threads: Vec<usize> =
        [1, 2, 4, 8, 16].into_iter().filter(|threads| *threads <= rayon::current_num_threads()).collect();

    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Bytes(4 * VALUES as u64)).sample_size(10);
    for threads in threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
        let mut target = vec![0.0; VALUES];
        group.bench_function(BenchmarkId::new("copy", threads), |bencher| {
            bencher.iter(|| pool.install(|| copy(&delta, &mut target)));
        });
        drop(target);
        for density in [64, 512, 1107, 1] {
            let layout = Layout::new(&[VALUES], density).expect("a density");
            group.bench_function(BenchmarkId::new(format!("density {density}"), threads), |bencher| {
                bencher.iter(|| {
                    pool.install(|| {
                        let source = Source::Delta { decay: 0.95, delta: &delta };
                        let mut sink = |bytes: &[u8]| {
                            black_box(bytes);
                            Ok::<(), Infallible>(())
                        };
                        encode::encode_into(&layout, &mut residual, source, Feedback::Spend, &mut sink)
                    })
                });
            });
        }
    }
    group.finish();

    let mut group = criterion.benchmark_group("protocol");
    let few = 4 * SECTION;
    let schema =
        Schema::new(vec![TensorSpec { name: "t".into(), shape: vec![few as u32] }]).expect("a schema");
    group.throughput(Throughput::Bytes(4 * few as u64)).sample_size(10);
    for density in [64, 512, 1107, 1] {
        group.bench_function(BenchmarkId::new("encode", density), |bencher| {
            bencher
                .iter(|| contribution::encode_with_feedback(&schema, Density(density), &mut residual[..few]));
        });
    }
    group.finish();
}

criterion_group!(encoding, benches);
criterion_main!(encoding);
