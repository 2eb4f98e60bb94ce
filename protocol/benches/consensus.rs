//! Yuma where a run is fullest: 64 validators weigh 1,024 miners, each a little differently, and hold bonds of all.
//!
//! ```text
//! cargo bench -p mettle-benches --features criterion --bench consensus
//! ```

use criterion::{Criterion, criterion_group, criterion_main};
use protocol::{
    Uid,
    consensus::{ONE, ValidatorWeights, yuma},
};

fn full(validators: u16, seats: u16) -> Vec<ValidatorWeights> {
    let ballot = |validator: u16| ValidatorWeights {
        validator: Uid(seats + validator),
        stake: 1_000_000_000_000 + u128::from(validator) * 7_777_777,
        // Spread over four orders of magnitude, no two ballots alike.
        weights: (0..seats).map(|seat| (Uid(seat), 1 + (seat * 61 + validator * 3) % 60_000)).collect(),
        bonds: (0..seats).map(|seat| (Uid(seat), 4_000 + u32::from(seat ^ validator))).collect(),
        earns: ONE,
    };
    (0..validators).map(ballot).collect()
}

fn consensus(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("yuma");
    group.sample_size(20);
    for (validators, seats) in [(8, 128), (64, 1024)] {
        let ballots = full(validators, seats);
        group.bench_function(format!("{validators} validators, {seats} seats"), |bencher| {
            bencher.iter(|| yuma(&ballots).expect("a majority weighs every seat"))
        });
    }
    group.finish();
}

criterion_group!(benches, consensus);
criterion_main!(benches);
