//! Random values for measurements, the same for every run and number of threads.

use kernels::wire::CHUNK;
use rayon::prelude::*;

/// Distribution of values. Pseudo-gradients lie between the normal and the heavy-tailed ones, and their scale varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    Gaussian,
    Laplace,
    /// Student's t with 3 degrees of freedom.
    StudentT3,
    /// Gaussian, each chunk multiplied by `exp(σ·z)`, `z` normal.
    ChunkScales(f64),
}

/// Distributions to measure, by their names in the report.
pub const DISTRIBUTIONS: [(&str, Distribution); 5] = [
    ("gaussian", Distribution::Gaussian),
    ("laplace", Distribution::Laplace),
    ("student_t3", Distribution::StudentT3),
    ("chunk_scales_0.5", Distribution::ChunkScales(0.5)),
    ("chunk_scales_1", Distribution::ChunkScales(1.0)),
];

/// Size of a typical value: well inside the levels' range, from 2^-30 to 15.
const SCALE: f64 = 1e-3;

/// Fills `values`, each chunk from its own generator.
pub fn fill(values: &mut [f32], distribution: Distribution, seed: u64) {
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let mut random = Random::new(seed ^ (chunk as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let scale = match distribution {
            Distribution::ChunkScales(sigma) => SCALE * (sigma * random.normal()).exp(),
            _ => SCALE,
        };
        for value in values {
            let drawn = match distribution {
                Distribution::Gaussian | Distribution::ChunkScales(_) => random.normal(),
                Distribution::Laplace => {
                    let uniform = random.uniform() - 0.5;
                    -uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(f64::MIN_POSITIVE).ln()
                }
                Distribution::StudentT3 => {
                    let normal = random.normal();
                    let squares: f64 = (0..3).map(|_| random.normal().powi(2)).sum();
                    normal / (squares / 3.0).sqrt()
                }
            };
            *value = (scale * drawn) as f32;
        }
    });
}

/// SplitMix64 (Steele, Lea and Flood 2014), and normal values by Box and Muller.
struct Random {
    state: u64,
    spare: Option<f64>,
}

impl Random {
    fn new(seed: u64) -> Random {
        Random { state: seed, spare: None }
    }

    /// Returns a number in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_moments_of_their_distribution() {
        let moments = |distribution| {
            let mut values = vec![0.0f32; 1 << 20];
            fill(&mut values, distribution, 1);
            let mean = |power: i32| {
                values.iter().map(|value| (f64::from(*value) / SCALE).powi(power)).sum::<f64>()
                    / values.len() as f64
            };
            (mean(1), mean(2), mean(4))
        };
        let near = |got: f64, expected: f64| (got - expected).abs() < 0.03 * expected;

        let (mean, square, fourth) = moments(Distribution::Gaussian);
        assert!(mean.abs() < 0.01 && near(square, 1.0) && near(fourth, 3.0), "{mean} {square} {fourth}");
        let (mean, square, fourth) = moments(Distribution::Laplace);
        assert!(
            mean.abs() < 0.01 && near(square, 2.0) && (fourth - 24.0).abs() < 2.0,
            "{mean} {square} {fourth}"
        );
        // The fourth moment of the others is infinite, or far from its expectation.
        let (mean, square, _) = moments(Distribution::StudentT3);
        assert!(mean.abs() < 0.01 && (square - 3.0).abs() < 0.5, "{mean} {square}");
        let (mean, square, _) = moments(Distribution::ChunkScales(0.5));
        assert!(mean.abs() < 0.01 && (square - (0.5f64).exp()).abs() < 0.4, "{mean} {square}");
    }

    #[test]
    fn values_are_the_same_for_every_number_of_threads() {
        let filled = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut values = vec![0.0f32; 3 * CHUNK + 5];
            pool.install(|| fill(&mut values, Distribution::Laplace, 7));
            values
        };
        assert_eq!(filled(1), filled(3));
    }
}
