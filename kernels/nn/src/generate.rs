//! Likelihood of a text's continuation, and sampling token by token.
//!
//! Used for chat and comparisons, not for scores of the protocol. `session.rs` reads the tokens.

use crate::{BatchError, Evaluator, ModelError, batch};
use std::ops::ControlFlow;

/// Likelihood of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// Sum over the continuation's tokens, in nats.
    pub log_likelihood: f64,
    /// `true` if each token was the most likely one.
    pub is_greedy: bool,
}

/// Settings for sampling the next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits. At 0 the most likely token is chosen.
    pub temperature: f64,
    /// Minimum total probability of the tokens to sample from: the fewest most likely tokens that reach it.
    pub top_p: f64,
    /// Random seed. The same seed samples the same tokens from the same logits.
    pub seed: u64,
}

/// Reason why a [`Sampling`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    #[error("the temperature is {value}, but must be a number from 0 to 100")]
    Temperature { value: f64 },
    #[error("top-p is {value}, but must be a number above 0 and at most 1")]
    TopP { value: f64 },
}

impl Evaluator {
    /// Returns the likelihood of `continuation` after `context`. The start of a context that is too long is ignored.
    ///
    /// # Errors
    /// If either is empty, the continuation alone is longer than `seq_len`, a token is outside the vocabulary, or the
    /// device fails.
    pub fn likelihood(&self, context: &[u32], continuation: &[u32]) -> Result<Likelihood, ModelError> {
        let seen = self.config().seq_len;
        if context.is_empty() || continuation.is_empty() {
            return Err(BatchError::Empty.into());
        }
        if continuation.len() > seen {
            return Err(ModelError::ContinuationTooLong { tokens: continuation.len(), seen });
        }
        let vocab = self.config().vocab;
        batch::check_vocabulary(self.config(), 0, continuation)?;
        let all = [context, continuation].concat();
        let read = &all[all.len().saturating_sub(seen + 1)..all.len() - 1];
        let logits = self.logits(read)?;
        let rows = logits.chunks_exact(vocab).skip(read.len() - continuation.len());
        let (mut log_likelihood, mut is_greedy) = (0.0, true);
        for (logits, &token) in rows.zip(continuation) {
            log_likelihood += LogProbabilities::new(logits).of(token);
            is_greedy &= most_likely(logits) == token;
        }
        Ok(Likelihood { log_likelihood, is_greedy })
    }

    /// Continues `prompt` token by token until `each` breaks. The model reads at most the last `seq_len` tokens.
    ///
    /// # Errors
    /// If the prompt is empty or has a token outside the vocabulary, `sampling` is invalid, or the device fails.
    pub fn generate(
        &self,
        prompt: &[u32],
        sampling: Sampling,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), ModelError> {
        let mut sampler = Sampler::new(sampling)?;
        let mut session = self.session(self.config().seq_len);
        let mut logits = self.read(&mut session, prompt)?;
        loop {
            let token = sampler.next(&logits);
            if each(token).is_break() {
                return Ok(());
            }
            logits = self.step(&mut [(&mut session, token)])?;
        }
    }
}

/// Samples the tokens of one text.
pub struct Sampler {
    sampling: Sampling,
    stream: blake3::OutputReader,
}

/// Separates these random numbers from any other use of the same seed.
const CONTEXT: &str = "mettle/1/sampled-text";

impl Sampler {
    /// # Errors
    /// If temperature or top-p are out of bounds.
    pub fn new(sampling: Sampling) -> Result<Sampler, SamplingError> {
        let Sampling { temperature, top_p, seed } = sampling;
        if !(0.0..=100.0).contains(&temperature) {
            return Err(SamplingError::Temperature { value: temperature });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP { value: top_p });
        }
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&seed.to_le_bytes());
        Ok(Sampler { sampling, stream: hasher.finalize_xof() })
    }

    /// Returns a random number in [0, 1).
    fn uniform(&mut self) -> f64 {
        let mut bytes = [0; 8];
        self.stream.fill(&mut bytes);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Samples a token from its logits `[V]`.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_p, .. } = self.sampling;
        let first = most_likely(logits);
        if temperature == 0.0 {
            return first;
        }
        let highest = f64::from(logits[first as usize]);
        let mut shares: Vec<(u32, f64)> = (0..)
            .zip(logits)
            .map(|(token, logit)| (token, ((f64::from(*logit) - highest) / temperature).exp()))
            .collect();
        // The sort is stable: equal shares keep the order of their ids.
        shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        let mut kept = 0.0;
        let enough = shares.iter().position(|(_, share)| {
            kept += share;
            kept >= top_p * all
        });
        shares.truncate(enough.map_or(shares.len(), |at| at + 1));

        let mut left = self.uniform() * shares.iter().map(|(_, share)| share).sum::<f64>();
        for (token, share) in &shares {
            left -= share;
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a small remainder of the last share.
        shares.last().map_or(first, |(token, _)| *token)
    }
}

/// Returns the token with the highest logit, the first of equal ones.
fn most_likely(logits: &[f32]) -> u32 {
    let better =
        |best: (u32, f32), (token, logit): (u32, &f32)| if *logit > best.1 { (token, *logit) } else { best };
    (0..).zip(logits).fold((0, f32::NEG_INFINITY), better).0
}

/// Logits `[V]` as log-probabilities in nats, summed in `f64`.
pub struct LogProbabilities<'a> {
    logits: &'a [f32],
    highest: f32,
    log_sum: f64,
}

impl LogProbabilities<'_> {
    pub fn new(logits: &[f32]) -> LogProbabilities<'_> {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        LogProbabilities { logits, highest, log_sum: sum.ln() }
    }

    /// # Panics
    /// If the token is outside the vocabulary.
    pub fn of(&self, token: u32) -> f64 {
        f64::from(self.logits[token as usize] - self.highest) - self.log_sum
    }

    /// Returns the `count` likeliest tokens, the likeliest first; equal ones in the order of their ids.
    pub fn likeliest(&self, count: usize) -> Vec<(u32, f64)> {
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
        for (token, &logit) in (0..).zip(self.logits) {
            if best.len() == count && best.last().is_none_or(|(_, least)| logit <= *least) {
                continue;
            }
            let at = best.partition_point(|(_, other)| logit <= *other);
            best.insert(at, (token, logit));
            best.truncate(count);
        }
        best.into_iter().map(|(token, _)| (token, self.of(token))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use model::{ModelConfig, init_flat};

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, 2.0];

    fn drawn(temperature: f64, top_p: f64, seed: u64) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { temperature, top_p, seed }).unwrap();
        (0..2000).map(|_| sampler.next(&LOGITS)).collect()
    }

    fn share(drawn: &[u32], token: u32) -> f64 {
        drawn.iter().filter(|drawn| **drawn == token).count() as f64 / drawn.len() as f64
    }

    #[test]
    fn tokens_are_sampled_as_often_as_they_are_likely() {
        let all: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
        let drawn = drawn(1.0, 1.0, 5);
        for (token, logit) in (0..).zip(LOGITS) {
            let (expected, got) = (f64::from(logit).exp() / all, share(&drawn, token));
            assert!((expected - got).abs() < 0.04, "{token}: {got}, not {expected}");
        }
    }

    #[test]
    fn a_seed_samples_the_same_again_and_another_seed_differs() {
        assert_eq!(drawn(1.0, 0.9, 5), drawn(1.0, 0.9, 5));
        assert_ne!(drawn(1.0, 0.9, 5), drawn(1.0, 0.9, 6));
    }

    #[test]
    fn temperature_0_takes_the_most_likely_token_and_top_p_drops_the_rest() {
        assert!(drawn(0.0, 1.0, 1).iter().all(|token| *token == 1));
        // The first two have a probability of 2·e² / (2·e² + e + 1) = 0.80.
        let two = drawn(1.0, 0.7, 1);
        assert!(two.iter().all(|token| [1, 3].contains(token)));
        assert!((share(&two, 1) - 0.5).abs() < 0.05);
        assert!(drawn(1.0, 1e-9, 1).iter().all(|token| *token == 1));
        assert!(share(&drawn(100.0, 1.0, 1), 0) > 0.2, "hot is nearly even");
    }

    #[test]
    fn an_invalid_sampling_is_refused() {
        let refused = |temperature, top_p| Sampler::new(Sampling { temperature, top_p, seed: 0 }).err();
        assert_eq!(refused(-1.0, 1.0), Some(SamplingError::Temperature { value: -1.0 }));
        assert!(refused(f64::NAN, 1.0).is_some() && refused(1.0, f64::NAN).is_some());
        assert_eq!(refused(1.0, 0.0), Some(SamplingError::TopP { value: 0.0 }));
        assert_eq!(refused(1.0, 1.1), Some(SamplingError::TopP { value: 1.1 }));
    }

    #[test]
    fn the_likeliest_tokens_come_first_and_equal_ones_by_their_ids() {
        let log_probabilities = LogProbabilities::new(&LOGITS);
        let tokens = |count| -> Vec<u32> {
            log_probabilities.likeliest(count).into_iter().map(|(token, _)| token).collect()
        };
        assert_eq!(tokens(0), [0u32; 0]);
        assert_eq!(tokens(1), [1]);
        assert_eq!(tokens(3), [1, 3, 2]);
        assert_eq!(tokens(9), [1, 3, 2, 0]);
        let sum: f64 = log_probabilities.likeliest(4).iter().map(|(_, log)| log.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }

    fn evaluator() -> Evaluator {
        let config = ModelConfig { vocab: 40, seq_len: 12, ..ModelConfig::preset("117k").unwrap() };
        Evaluator::new(&config, Device::CPU, &init_flat(&config, 1).unwrap()).unwrap()
    }

    #[test]
    fn a_likelihood_is_the_loss_of_the_same_tokens() {
        let evaluator = evaluator();
        let sequence: Vec<u32> = (0..13).map(|at| at * 7 % 40).collect();
        let loss = evaluator.losses(&[&sequence]).unwrap()[0] * 12.0;
        let whole = evaluator.likelihood(&sequence[..1], &sequence[1..]).unwrap().log_likelihood;
        assert!((whole + loss).abs() < 1e-4, "{whole} {loss}");

        // The likelihood of a text is the product of its parts' likelihoods.
        let first = evaluator.likelihood(&sequence[..1], &sequence[1..5]).unwrap().log_likelihood;
        let rest = evaluator.likelihood(&sequence[..5], &sequence[5..]).unwrap().log_likelihood;
        assert!((first + rest - whole).abs() < 1e-4);

        // Tokens outside the model's context have no effect.
        let long = [vec![3, 1, 2], sequence.clone()].concat();
        let long_context = evaluator.likelihood(&long[..8], &long[8..]).unwrap();
        let short_context = evaluator.likelihood(&sequence[..5], &sequence[5..]).unwrap();
        assert_eq!(long_context, short_context);
    }

    #[test]
    fn greedy_text_is_the_greedy_continuation() {
        let evaluator = evaluator();
        let text = |sampling| {
            let mut text = Vec::new();
            let each = |token| {
                text.push(token);
                if text.len() == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            evaluator.generate(&[1, 2, 3], sampling, each).unwrap();
            text
        };
        let cold = Sampling { temperature: 0.0, top_p: 1.0, seed: 1 };
        let greedy = text(cold);
        assert!(evaluator.likelihood(&[1, 2, 3], &greedy[..9]).unwrap().is_greedy);
        let other: Vec<u32> = greedy[..9].iter().map(|token| (token + 1) % 40).collect();
        assert!(!evaluator.likelihood(&[1, 2, 3], &other).unwrap().is_greedy);
        let warm = Sampling { temperature: 1.0, ..cold };
        assert_eq!(text(warm), text(warm));
        assert_ne!(text(warm), greedy);
    }

    #[test]
    fn tokens_that_do_not_fit_are_refused() {
        let evaluator = evaluator();
        assert_eq!(
            evaluator.likelihood(&[1], &[2; 13]),
            Err(ModelError::ContinuationTooLong { tokens: 13, seen: 12 })
        );
        assert!(matches!(evaluator.likelihood(&[], &[2]), Err(ModelError::Batch(_))));
        assert!(matches!(evaluator.likelihood(&[1], &[]), Err(ModelError::Batch(_))));
        assert!(matches!(evaluator.likelihood(&[1], &[40]), Err(ModelError::Batch(_))));
        assert!(matches!(evaluator.likelihood(&[40], &[1]), Err(ModelError::Batch(_))));
        let cold = Sampling { temperature: 0.0, top_p: 1.0, seed: 1 };
        let stop = |_| ControlFlow::Break(());
        assert!(matches!(evaluator.generate(&[], cold, stop), Err(ModelError::Batch(_))));
        let wrong = Sampling { top_p: 2.0, ..cold };
        assert_eq!(
            evaluator.generate(&[1], wrong, stop),
            Err(ModelError::Sampling(SamplingError::TopP { value: 2.0 }))
        );
    }
}
