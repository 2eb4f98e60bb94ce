//! Sizes of contributions and updates, from the format (PROT-7, PROT-8) with entries at random positions.

use protocol::{
    contribution::{SECTION_CHUNKS, Schema, TensorSpec},
    params::{CHUNK_VALUES, Density},
    submission,
};

/// The largest Rice parameter (PROT-7).
const RICE_MAX: u32 = 12;
/// Bits of an entry beside its gap: sign and magnitude.
const MARK_BITS: f64 = 2.0;
/// Bytes of a chunk's two levels.
const LEVEL_BYTES: f64 = 2.0;
/// Bytes of a section beside its chunks: its length, its Rice parameter, and half a byte of padding.
const SECTION_BYTES: f64 = 5.5;

/// Returns the expected bits per sent value, of all bytes of a body.
pub fn bits_per_value(density: Density) -> f64 {
    let kept = density.kept(CHUNK_VALUES).max(1);
    entry_bits(density) + 8.0 * SECTION_BYTES / (SECTION_CHUNKS * kept) as f64
}

/// Returns the expected bits per sent value: gaps, signs, magnitudes and levels.
///
/// Entries are at random positions, so a gap is at least `m` with probability `C(4096 − m, n) / C(4096, n)`, for `n`
/// entries in a chunk. The encoder uses the Rice parameter with the least total length.
fn entry_bits(density: Density) -> f64 {
    let values = CHUNK_VALUES;
    let kept = density.kept(values).max(1);
    // The probability that a gap is at least the index.
    let mut at_least = vec![1.0f64];
    for gap in 0..values - kept {
        let last = at_least[gap];
        at_least.push(last * (values - gap - kept) as f64 / (values - gap) as f64);
    }
    let gap_bits = |rice: u32| {
        let quotient: f64 = at_least.iter().step_by(1 << rice).skip(1).sum();
        1.0 + f64::from(rice) + quotient
    };
    let gap = (0..=RICE_MAX).map(gap_bits).fold(f64::INFINITY, f64::min);
    gap + MARK_BITS + 8.0 * LEVEL_BYTES / kept as f64
}

/// Returns the expected size of a body, in bytes.
pub fn body_bytes(parameters: u64, density: Density) -> u64 {
    let chunks = parameters as f64 / CHUNK_VALUES as f64;
    let entries = chunks * density.kept(CHUNK_VALUES) as f64;
    let sections = (chunks / SECTION_CHUNKS as f64).ceil();
    (entries * entry_bits(density) / 8.0 + sections * SECTION_BYTES).ceil() as u64
}

/// Returns the maximum size of a contribution, in bytes, for which a validator reserves time and space.
pub fn largest_bytes(parameters: u64, density: Density) -> u64 {
    let section = (SECTION_CHUNKS * CHUNK_VALUES) as u64;
    let values = parameters.min(section) as u32;
    let one = TensorSpec { name: "section".into(), shape: vec![values.max(1)] };
    let schema = Schema::new(vec![one]).expect("a tensor of 1 to 2^18 values is a schema");
    let sections = parameters.div_ceil(section);
    let frame =
        submission::largest_bytes(&schema, density).saturating_sub(schema.largest_body(density)) as u64;
    sections.saturating_mul(schema.largest_body(density) as u64).saturating_add(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ModelConfig;

    #[track_caller]
    fn within(value: f64, measured: f64, part: f64) {
        assert!((value / measured - 1.0).abs() <= part, "{value} is not within {part} of {measured}");
    }

    /// docs/benchmarks.md, "The wire format" and "The kernels".
    #[test]
    fn sizes_are_those_that_were_measured() {
        within(bits_per_value(Density(64)), 9.757, 0.0005);
        within(bits_per_value(Density(64)) / 64.0, 0.1524, 0.0005);
        // A contribution of 70.6 billion parameters, and an update of 20 at the density of their union.
        within(body_bytes(70_600_000_000, Density(64)) as f64, 1.345e9, 0.001);
        within(body_bytes(70_600_000_000, Density(1107)) as f64, 12.29e9, 0.001);
        // Real training of 399,840 parameters: short chunks and headers make the contribution larger, and entries at
        // non-random positions make the update smaller.
        within(bits_per_value(Density(512)), 6.50, 0.01);
        within(bits_per_value(Density(1695)), 4.44, 0.01);
        within(body_bytes(399_840, Density(512)) as f64, 40_594.0, 0.02);
        within(body_bytes(399_840, Density(1695)) as f64, 91_915.0, 0.02);
    }

    #[test]
    fn the_largest_body_is_that_of_the_protocol() {
        for (name, part) in [("6m", 0.02), ("8b", 1e-3)] {
            let config = ModelConfig::preset(name).unwrap();
            let schema = config.schema().unwrap();
            let exact = submission::largest_bytes(&schema, Density(64)) as f64;
            within(largest_bytes(config.parameters() as u64, Density(64)) as f64, exact, part);
        }
        // docs/validating.md: 19 MiB per billion parameters.
        within(largest_bytes(1_000_000_000, Density(64)) as f64, f64::from(19 << 20), 0.01);
        for density in [1, 64, 1024, 4096].map(Density) {
            let expected = body_bytes(1 << 30, density);
            // At density 1 there is no padding, of which half a byte is expected.
            let largest = largest_bytes(1 << 30, density) as f64;
            assert!(expected as f64 <= 1.00001 * largest, "{density:?}: {expected}");
        }
    }

    #[test]
    fn every_density_has_a_size() {
        for density in (1..=4096).step_by(315).chain([4096]).map(Density) {
            let bits = bits_per_value(density);
            assert!(bits.is_finite() && 3.0 <= bits, "{density:?}: {bits}");
        }
        assert_eq!(body_bytes(1, Density(64)), 6);
    }
}
