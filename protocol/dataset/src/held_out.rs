//! On which held-out sequences a loss is reported, and how well that is known. Validators, `localnet` and `mettle
//! model evaluate` report on the same sequences, so that their figures can be compared. No score depends on it
//! (PROT-4).

use crate::{Dataset, ReadError};
use protocol::{Digest, assign::Permutation};

impl Dataset {
    /// A random sample of `count` held-out sequences, in ascending order. It depends on the manifest only. A smaller
    /// sample is part of a larger one; where the split has no more sequences, it is the whole split.
    pub fn held_out_sample(&self, count: u64) -> Vec<u64> {
        sample(&self.digest(), self.held_out_sequences(), count)
    }

    /// The same of the training sequences.
    pub fn training_sample(&self, count: u64) -> Vec<u64> {
        sample(&self.digest(), self.training_sequences(), count)
    }

    /// The unigram baseline on [`Dataset::held_out_sample`]; the whole split is [`Dataset::unigram_loss`]. Reads the
    /// whole dataset.
    pub fn unigram_estimate(&self, count: u64) -> Result<LossEstimate, ReadError> {
        let nats = self.unigram_nats()?;
        let loss = |sequence: &Vec<u32>| {
            let of_target = |token: &u32| nats.get(*token as usize).copied().unwrap_or(0.0);
            sequence[1..].iter().map(of_target).sum::<f64>() / self.seq_len() as f64
        };
        let sequences = self.held_out_sequences_at(&self.held_out_sample(count))?;
        Ok(LossEstimate::of(&sequences.iter().map(loss).collect::<Vec<_>>()))
    }
}

fn sample(manifest: &Digest, len: u64, count: u64) -> Vec<u64> {
    let order = Permutation::new(&Digest::of_parts(&[b"mettle/sample", &manifest.0]), len);
    let mut sample: Vec<u64> = (0..count.min(len)).map(|position| order.at(position)).collect();
    sample.sort_unstable();
    sample
}

/// The mean loss on a sample of sequences, in nats per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossEstimate {
    /// The size of the sample.
    pub sequences: u64,
    pub loss: f64,
    /// Of `loss`, over sequences; 0 for fewer than two.
    pub standard_error: f64,
}

impl LossEstimate {
    /// From the mean loss of each sequence.
    pub fn of(losses: &[f64]) -> LossEstimate {
        let count = losses.len() as f64;
        let loss = losses.iter().sum::<f64>() / count.max(1.0);
        let squares = losses.iter().map(|other| (other - loss).powi(2)).sum::<f64>();
        let standard_error = if losses.len() < 2 { 0.0 } else { (squares / (count - 1.0) / count).sqrt() };
        LossEstimate { sequences: losses.len() as u64, loss, standard_error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_sample_is_of_the_whole_split_and_a_larger_one_contains_it() {
        let manifest = Digest::of(b"a manifest");
        let (small, large) = (sample(&manifest, 2145, 100), sample(&manifest, 2145, 1000));
        assert_eq!((small.len(), large.len()), (100, 1000));
        assert!(large.is_sorted_by(|one, next| one < next), "ascending, none twice");
        let large: BTreeSet<u64> = large.into_iter().collect();
        assert!(small.iter().all(|sequence| large.contains(sequence)));
        // Not the first ones: the mean place is the middle, within four standard errors.
        let mean = small.iter().sum::<u64>() as f64 / 100.0;
        assert!((mean - 1072.0).abs() < 4.0 * 2145.0 / 12f64.sqrt() / 10.0, "{mean}");
        assert_ne!(small, sample(&Digest::of(b"another"), 2145, 100));
        assert_eq!(sample(&manifest, 5, 9), [0, 1, 2, 3, 4]);
        assert!(sample(&manifest, 0, 9).is_empty());
    }

    #[test]
    fn an_estimate_has_a_standard_error() {
        let of = |losses: &[f64]| LossEstimate::of(losses);
        assert_eq!(of(&[2.0, 3.0]), LossEstimate { sequences: 2, loss: 2.5, standard_error: 0.5 });
        assert_eq!(of(&[2.0]), LossEstimate { sequences: 1, loss: 2.0, standard_error: 0.0 });
        assert_eq!(of(&[]), LossEstimate::default());
    }
}
