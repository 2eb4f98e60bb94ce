//! Speed of the normative codec and merge, on one thread.
//!
//!     cargo bench -p mettle-benches --features criterion --bench codec

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use protocol::{
    Uid,
    contribution::{Schema, Sparse, TensorSpec, decode, encode, encode_with_feedback},
    merge::{Input, apply, merge},
    norms::RunningNorms,
    params::{Density, MergeRule},
};
use std::hint::black_box;

const SENT: Density = Density(64);
const MERGED: Density = Density(256);

fn schema() -> Schema {
    let tensor = TensorSpec { name: "weights".into(), shape: vec![1024, 1024] };
    Schema::new(vec![tensor]).expect("a matrix is a schema")
}

/// Roughly normal values: sums of uniform ones.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|_| 0.001 * (0..8).map(|_| uniform()).sum::<f32>()).collect()
}

fn codec(criterion: &mut Criterion) {
    let schema = schema();
    let values = values(1, schema.values());
    let body = encode(&schema, SENT, &values).expect("the values are finite");

    let mut group = criterion.benchmark_group("contribution");
    group.throughput(Throughput::Elements(schema.values() as u64)).sample_size(20);
    group.bench_function("encode", |bencher| bencher.iter(|| encode(&schema, SENT, black_box(&values))));
    group.bench_function("encode_with_feedback", |bencher| {
        let residual = || values.clone();
        let encode = |residual: &mut Vec<f32>| encode_with_feedback(&schema, SENT, residual);
        bencher.iter_batched_ref(residual, encode, BatchSize::LargeInput);
    });
    group.bench_function("decode", |bencher| bencher.iter(|| decode(&schema, SENT, black_box(&body))));
    group.finish();
}

fn merging(criterion: &mut Criterion) {
    let schema = schema();
    let updates: Vec<Sparse> = (1..=8)
        .map(|seed| {
            let body = encode(&schema, SENT, &values(seed, schema.values())).expect("the values are finite");
            decode(&schema, SENT, &body).expect("what was encoded can be decoded")
        })
        .collect();
    let inputs: Vec<Input<'_>> =
        (0..).zip(&updates).map(|(uid, update)| Input { uid: Uid(uid), weight: 0, update }).collect();
    let zeros = || vec![0.0f32; schema.values()];

    let mut group = criterion.benchmark_group("merge");
    group.throughput(Throughput::Elements(schema.values() as u64)).sample_size(20);
    group.bench_function("eight contributions", |bencher| {
        let norms = RunningNorms::default();
        let merge =
            |buffer: &mut Vec<f32>| merge(&schema, MergeRule::MeanOverHits, MERGED, &inputs, &norms, buffer);
        bencher.iter_batched_ref(zeros, merge, BatchSize::LargeInput);
    });
    group.bench_function("apply", |bencher| {
        let step = |theta: &mut Vec<f32>| apply(&schema, theta, &updates[0], 0.7);
        bencher.iter_batched_ref(zeros, step, BatchSize::LargeInput);
    });
    group.finish();
}

criterion_group!(benches, codec, merging);
criterion_main!(benches);
