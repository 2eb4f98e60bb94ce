//! Measures a validator's search for near-duplicates in a window, compared with a pairwise search.
//!
//!     cargo bench -p mettle-benches --features criterion --bench near_duplicates
//!
//! Four windows are kept, so 1,000 contributions per window are four million pairs. `copies` is the worst case: every
//! seat sends the same work, and no pair can be excluded early.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gauntlet::{Sketch, Sketches};
use measure::near_duplicates::near_duplicates;
use protocol::{
    Digest, Uid, Window,
    contribution::{Sparse, SparseTensor},
};
use std::hint::black_box;

const WINDOWS: u32 = 4;
/// Number of entries of a contribution: several for each sum of a sketch.
const ENTRIES: u32 = 16_384;

/// Returns pseudo-random entries, independent for different names.
fn work(name: u64) -> Sparse {
    let mut state = name.wrapping_mul(2) + 1;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut positions: Vec<u32> = (0..ENTRIES).map(|index| index * 64 + random() % 64).collect();
    positions.sort_unstable();
    let values: Vec<f32> = positions.iter().map(|_| random() as f32 / (1 << 23) as f32 - 1.0).collect();
    let square_norm = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    Sparse { tensors: vec![SparseTensor { positions, values, square_norm }] }
}

fn sketches(seats: u16, name: impl Fn(u64) -> u64) -> Sketches {
    let mut sketches = Sketches::default();
    for (window, uid) in (0..WINDOWS).flat_map(|window| (0..seats).map(move |uid| (window, uid))) {
        let name = name(u64::from(window) << 16 | u64::from(uid));
        let digest = Digest::of(&name.to_le_bytes());
        sketches.add(Window(window), Uid(uid), digest, Sketch::of(&work(name)));
    }
    sketches
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("near_duplicates");
    group.sample_size(10);
    let last = Window(WINDOWS - 1);
    for seats in [100, 1000] {
        let independent = sketches(seats, |name| name);
        let copies = sketches(seats, |_| 1);
        assert_eq!(near_duplicates(&independent, last), independent.near_duplicates(last));
        group.bench_function(BenchmarkId::new("one pair after the other", seats), |bencher| {
            bencher.iter(|| black_box(&independent).near_duplicates(last));
        });
        group.bench_function(BenchmarkId::new("search", seats), |bencher| {
            bencher.iter(|| near_duplicates(black_box(&independent), last));
        });
        group.bench_function(BenchmarkId::new("search, copies", seats), |bencher| {
            bencher.iter(|| near_duplicates(black_box(&copies), last));
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
