//! Randomness from a named seed, so that every run of an adversary can be repeated.

pub struct SeededRng(blake3::OutputReader);

impl SeededRng {
    /// Returns a generator. Equal parts give equal numbers.
    pub fn new(parts: &[&[u8]]) -> SeededRng {
        let mut hasher = blake3::Hasher::new_derive_key("mettle 1 adversaries");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        SeededRng(hasher.finalize_xof())
    }

    pub fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns a uniform number from 0 to below 1, of 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number from 0 to below `below`; 0 if that is 0.
    pub fn below(&mut self, below: u64) -> u64 {
        // The bias of a 64-bit remainder does not matter here.
        self.next_u64().checked_rem(below).unwrap_or(0)
    }

    /// Returns a number from a normal distribution of mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(std::f64::consts::TAU * self.uniform())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_throws_and_another_gives_others() {
        let throws = |seed: &[&[u8]]| {
            let mut rng = SeededRng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.below(10)]
        };
        assert_eq!(throws(&[b"a", b"b"]), throws(&[b"a", b"b"]));
        assert_ne!(throws(&[b"a", b"b"]), throws(&[b"ab"]));
        assert_eq!(SeededRng::new(&[]).below(0), 0);
    }

    #[test]
    fn normal_throws_have_mean_zero_and_variance_one() {
        let mut rng = SeededRng::new(&[b"normal"]);
        let throws: Vec<f64> = (0..20_000).map(|_| rng.normal()).collect();
        let mean = throws.iter().sum::<f64>() / throws.len() as f64;
        let variance =
            throws.iter().map(|throw| (throw - mean) * (throw - mean)).sum::<f64>() / throws.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
