//! The held-out sequences on which a loss is reported, and its standard error. Validators, `localnet` and `mettle
//! model evaluate` use the same sequences, so that their figures can be compared. No score depends on it (PROT-4).

use crate::{Dataset, ReadError};
use protocol::{Digest, assign::Permutation};
use std::ops::Range;

impl Dataset {
    /// Returns the held-out sequences at these positions of a random order, which depends on the manifest only,
    /// ascending. The first `n` positions are a random sample and contain each smaller one; positions past the end
    /// have no sequence.
    pub fn held_out_sample(&self, positions: Range<u64>) -> Vec<u64> {
        sample(&self.digest(), self.held_out_sequences(), positions)
    }

    /// Returns the same sample of the training sequences.
    pub fn training_sample(&self, positions: Range<u64>) -> Vec<u64> {
        sample(&self.digest(), self.training_sequences(), positions)
    }

    /// Computes the unigram baseline on the first `count` of [`Dataset::held_out_sample`]; on the whole split it is
    /// [`Dataset::unigram_loss`]. Reads the whole dataset.
    ///
    /// # Errors
    /// If a shard cannot be read or is damaged.
    pub fn unigram_estimate(&self, count: u64) -> Result<LossEstimate, ReadError> {
        let nats = self.unigram_nats()?;
        let loss = |sequence: &Vec<u32>| {
            let of_target = |token: &u32| nats.get(*token as usize).copied().unwrap_or(0.0);
            sequence[1..].iter().map(of_target).sum::<f64>() / self.seq_len() as f64
        };
        let sequences = self.held_out_sequences_at(&self.held_out_sample(0..count))?;
        Ok(LossEstimate::of(&sequences.iter().map(loss).collect::<Vec<_>>()))
    }
}

fn sample(manifest: &Digest, len: u64, positions: Range<u64>) -> Vec<u64> {
    let order = Permutation::new(&Digest::of_parts(&[b"mettle/sample", &manifest.0]), len);
    let mut sample: Vec<u64> =
        (positions.start..positions.end.min(len)).map(|position| order.at(position)).collect();
    sample.sort_unstable();
    sample
}

/// The mean loss on a sample of sequences, in nats per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossEstimate {
    /// The size of the sample.
    pub sequences: u64,
    pub loss: f64,
    /// Standard error of `loss` over sequences; 0 for fewer than two.
    pub standard_error: f64,
}

impl LossEstimate {
    /// Creates an estimate from the mean loss of each sequence.
    pub fn of(losses: &[f64]) -> LossEstimate {
        let count = losses.len() as f64;
        let loss = losses.iter().sum::<f64>() / count.max(1.0);
        let squares = losses.iter().map(|other| (other - loss).powi(2)).sum::<f64>();
        let standard_error = if losses.len() < 2 { 0.0 } else { (squares / (count - 1.0) / count).sqrt() };
        LossEstimate { sequences: losses.len() as u64, loss, standard_error }
    }

    /// Combines disjoint parts of a sample, as if it had been measured at once.
    pub fn of_parts(parts: &[LossEstimate]) -> LossEstimate {
        let sequences = parts.iter().map(|part| part.sequences).sum::<u64>();
        let count = sequences as f64;
        let loss = parts.iter().map(|part| part.sequences as f64 * part.loss).sum::<f64>() / count.max(1.0);
        // Squares within each part, and of its mean's distance from the common mean.
        let squares = |part: &LossEstimate| {
            let of = part.sequences as f64;
            part.standard_error.powi(2) * of * (of - 1.0) + of * (part.loss - loss).powi(2)
        };
        let squares = parts.iter().map(squares).sum::<f64>();
        let standard_error = if sequences < 2 { 0.0 } else { (squares / (count - 1.0) / count).sqrt() };
        LossEstimate { sequences, loss, standard_error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_sample_is_of_the_whole_split_and_a_larger_one_contains_it() {
        let manifest = Digest::of(b"a manifest");
        let (small, large) = (sample(&manifest, 2145, 0..100), sample(&manifest, 2145, 0..1000));
        assert_eq!((small.len(), large.len()), (100, 1000));
        assert!(large.is_sorted_by(|one, next| one < next), "ascending, none twice");
        let large: BTreeSet<u64> = large.into_iter().collect();
        assert!(small.iter().all(|sequence| large.contains(sequence)));
        // These are not the first sequences: the mean position is the middle, within four standard errors.
        let mean = small.iter().sum::<u64>() as f64 / 100.0;
        assert!((mean - 1072.0).abs() < 4.0 * 2145.0 / 12f64.sqrt() / 10.0, "{mean}");
        assert_ne!(small, sample(&Digest::of(b"another"), 2145, 0..100));
        let parts = [0..40, 40..100].map(|positions| sample(&manifest, 2145, positions)).concat();
        let joined: BTreeSet<u64> = parts.into_iter().collect();
        assert_eq!(joined.into_iter().collect::<Vec<_>>(), small, "parts join");
        assert_eq!(sample(&manifest, 5, 0..9), [0, 1, 2, 3, 4]);
        assert!(sample(&manifest, 0, 0..9).is_empty() && sample(&manifest, 5, 7..9).is_empty());
    }

    #[test]
    fn an_estimate_has_a_standard_error() {
        let of = |losses: &[f64]| LossEstimate::of(losses);
        assert_eq!(of(&[2.0, 3.0]), LossEstimate { sequences: 2, loss: 2.5, standard_error: 0.5 });
        assert_eq!(of(&[2.0]), LossEstimate { sequences: 1, loss: 2.0, standard_error: 0.0 });
        assert_eq!(of(&[]), LossEstimate::default());
        let losses = [2.0, 3.5, 4.0, 1.0, 3.0, 2.5];
        let (whole, parts) = (of(&losses), LossEstimate::of_parts(&[of(&losses[..1]), of(&losses[1..])]));
        assert_eq!(parts.sequences, 6);
        assert!((parts.loss - whole.loss).abs() < 1e-12, "{parts:?}");
        assert!((parts.standard_error - whole.standard_error).abs() < 1e-12, "{parts:?} {whole:?}");
        assert_eq!(LossEstimate::of_parts(&[]), LossEstimate::default());
    }
}
