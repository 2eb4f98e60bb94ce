//! A text that a model reads incrementally: each further token costs one token, not the whole context.
//!
//! A cache holds the keys and values of the tokens so far. When the text becomes longer than `seq_len`, the positions
//! of all tokens shift with each new one, which invalidates the cache. From then on, each token reads the last
//! `seq_len` tokens again. Engines without a cache do so from the start.

use crate::{
    BatchError, Evaluator, ModelError, batch,
    engine::{KvCache, Read},
};
use model::ModelConfig;

/// A text as one evaluator has read it. It is valid only for the evaluator's weights at that time.
pub struct Session {
    /// End of the text, at most `seq_len` tokens.
    tokens: Vec<u32>,
    /// Cached keys and values. `None` if each token reads the text again.
    cache: Option<KvCache>,
}

impl Session {
    /// Returns the bytes of a session with a cache and capacity for `tokens` tokens, at most `seq_len`: `8·L·K·C` for
    /// keys and values of each, and `4·seq_len` for the text.
    pub fn bytes(config: &ModelConfig, tokens: usize) -> u64 {
        let values = 2 * config.layers * config.kv_heads * config.head_width();
        4 * (tokens.min(config.seq_len) * values + config.seq_len) as u64
    }

    /// Returns the bytes reserved by this session.
    pub fn reserved_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, KvCache::bytes) + 4 * self.tokens.capacity() as u64
    }

    /// Returns whether the next token costs only one token.
    pub fn is_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// Adds tokens. Beyond `seq_len`, drops the oldest tokens and the cache.
    fn push(&mut self, tokens: &[u32], seq_len: usize) {
        let beyond = (self.tokens.len() + tokens.len()).saturating_sub(seq_len);
        if 0 < beyond {
            self.tokens.drain(..beyond.min(self.tokens.len()));
            self.cache = None;
        }
        self.tokens.extend_from_slice(&tokens[tokens.len().saturating_sub(seq_len)..]);
    }
}

impl Evaluator {
    /// Returns an empty session with capacity for `tokens` tokens. It grows with a longer text, up to `seq_len`.
    pub fn session(&self, tokens: usize) -> Session {
        let seq_len = self.config().seq_len;
        Session { tokens: Vec::with_capacity(seq_len), cache: self.engine.cache(tokens.min(seq_len)) }
    }

    /// Appends `tokens` to the session. Returns the logits `[V]` after the last. They are within 1e-4 of
    /// [`logits`](Self::logits), which sums in another order.
    ///
    /// # Errors
    /// If `tokens` is empty or has a token outside the vocabulary, which leaves the session unchanged. If the device
    /// fails, which makes the session unusable.
    pub fn read(&self, session: &mut Session, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (seq_len, vocab) = (self.config().seq_len, self.config().vocab);
        if tokens.is_empty() {
            return Err(BatchError::Text { len: 0, max: seq_len }.into());
        }
        batch::check_vocabulary(self.config(), 0, tokens)?;
        session.push(tokens, seq_len);
        match &mut session.cache {
            Some(cache) => self.engine.extend(&mut [Read { cache, tokens }], 1),
            None => Ok(self.logits(&session.tokens)?.split_off((session.tokens.len() - 1) * vocab)),
        }
    }

    /// Appends `tokens` to the session. Returns the logits `[tokens, V]` after each.
    ///
    /// # Errors
    /// If the text becomes longer than `seq_len`; otherwise same as [`read`](Self::read).
    pub fn read_each(&self, session: &mut Session, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (seq_len, vocab) = (self.config().seq_len, self.config().vocab);
        let len = session.tokens.len() + tokens.len();
        if tokens.is_empty() || seq_len < len {
            return Err(BatchError::Text { len, max: seq_len }.into());
        }
        batch::check_vocabulary(self.config(), 0, tokens)?;
        session.push(tokens, seq_len);
        match &mut session.cache {
            Some(cache) => self.engine.extend(&mut [Read { cache, tokens }], tokens.len()),
            None => Ok(self.logits(&session.tokens)?.split_off((len - tokens.len()) * vocab)),
        }
    }

    /// Appends one token to each session. Returns the logits `[sessions, V]` after them. A session's bits do not
    /// depend on the other sessions.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn step(&self, steps: &mut [(&mut Session, u32)]) -> Result<Vec<f32>, ModelError> {
        let (seq_len, vocab) = (self.config().seq_len, self.config().vocab);
        for (_, token) in &*steps {
            batch::check_vocabulary(self.config(), 0, &[*token])?;
        }
        let mut logits = vec![0.0; steps.len() * vocab];
        let (mut reads, mut rows) = (Vec::new(), Vec::new());
        for ((session, token), row) in steps.iter_mut().zip(logits.chunks_exact_mut(vocab)) {
            let tokens = std::slice::from_ref(&*token);
            session.push(tokens, seq_len);
            match &mut session.cache {
                Some(cache) => {
                    reads.push(Read { cache, tokens });
                    rows.push(row);
                }
                None => {
                    let read = self.logits(&session.tokens)?;
                    row.copy_from_slice(&read[(session.tokens.len() - 1) * vocab..]);
                }
            }
        }
        if !reads.is_empty() {
            let read = self.engine.extend(&mut reads, rows.len())?;
            for (row, read) in rows.into_iter().zip(read.chunks_exact(vocab)) {
                row.copy_from_slice(read);
            }
        }
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Sampling, conformance};
    use std::ops::ControlFlow;

    fn evaluators() -> Vec<Evaluator> {
        let grouped = ModelConfig { vocab: 40, seq_len: 24, ..ModelConfig::preset("117k").unwrap() };
        // Matrices whose values do not fill whole vectors or whole groups of rows.
        let odd = ModelConfig { vocab: 43, d_model: 20, heads: 2, kv_heads: 1, d_ff: 35, ..grouped.clone() };
        [conformance::tiny(), grouped, odd]
            .map(|config| {
                Evaluator::new(&config, Device::CPU, &conformance::strong_weights(&config)).unwrap()
            })
            .into()
    }

    fn text(evaluator: &Evaluator, len: usize, seed: usize) -> Vec<u32> {
        let vocab = evaluator.config().vocab;
        (0..len).map(|at| ((at * 7 + at * at * 3 + seed) % vocab) as u32).collect()
    }

    /// Returns the logits after the last token of the model's window, computed without a cache.
    fn uncached(evaluator: &Evaluator, text: &[u32]) -> Vec<f32> {
        let window = &text[text.len().saturating_sub(evaluator.config().seq_len)..];
        let logits = evaluator.logits(window).unwrap();
        logits[(window.len() - 1) * evaluator.config().vocab..].to_vec()
    }

    #[track_caller]
    fn assert_near(one: &[f32], other: &[f32]) {
        assert_eq!(one.len(), other.len());
        let largest = one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(largest < 1e-4, "{largest:e}");
    }

    #[test]
    fn cached_logits_are_those_of_the_whole_text_and_beyond_the_window_to_the_bit() {
        for evaluator in evaluators() {
            let seq_len = evaluator.config().seq_len;
            for prompt in [1, 2, 5, seq_len - 1, seq_len, seq_len + 1, 3 * seq_len] {
                let mut read = text(&evaluator, prompt, prompt);
                let mut session = evaluator.session(3);
                assert_near(&evaluator.read(&mut session, &read).unwrap(), &uncached(&evaluator, &read));
                for token in text(&evaluator, seq_len + 3, 11) {
                    read.push(token);
                    let logits = evaluator.step(&mut [(&mut session, token)]).unwrap();
                    let expected = uncached(&evaluator, &read);
                    assert_near(&logits, &expected);
                    assert_eq!(session.is_cached(), read.len() <= seq_len);
                    assert!(session.is_cached() || logits == expected, "the window is read as before");
                }
            }
        }
    }

    #[test]
    fn a_prompt_may_be_read_in_parts_and_each_token_s_logits_kept() {
        for evaluator in evaluators() {
            let (seq_len, vocab) = (evaluator.config().seq_len, evaluator.config().vocab);
            let prompt = text(&evaluator, seq_len, 1);
            let whole = evaluator.logits(&prompt).unwrap();
            for part in [1, 2, 5, seq_len] {
                let mut session = evaluator.session(seq_len);
                let mut each = Vec::new();
                for tokens in prompt.chunks(part) {
                    each.extend(evaluator.read_each(&mut session, tokens).unwrap());
                }
                assert_near(&each, &whole);
                let mut session = evaluator.session(seq_len);
                let last = prompt.chunks(part).map(|tokens| evaluator.read(&mut session, tokens).unwrap());
                assert_near(&last.last().unwrap(), &whole[(seq_len - 1) * vocab..]);
            }
        }
    }

    #[test]
    fn a_text_continues_with_the_same_bits_alone_and_in_any_batch() {
        for evaluator in evaluators() {
            let (seq_len, vocab) = (evaluator.config().seq_len, evaluator.config().vocab);
            // Prompts of different lengths. The last exceeds the window within three steps.
            let prompts = [1, 2, 5, seq_len - 4, seq_len - 2].map(|len| text(&evaluator, len, len));
            let start = |prompt: &Vec<u32>| {
                let mut session = evaluator.session(seq_len);
                let logits = evaluator.read(&mut session, prompt).unwrap();
                (session, logits)
            };
            let alone: Vec<Vec<f32>> = prompts
                .iter()
                .map(|prompt| {
                    let (mut session, mut logits) = start(prompt);
                    for token in [3, 1, 4] {
                        logits.extend(evaluator.step(&mut [(&mut session, token)]).unwrap());
                    }
                    logits
                })
                .collect();
            let (mut sessions, mut together): (Vec<Session>, Vec<Vec<f32>>) =
                prompts.iter().map(start).unzip();
            for token in [3, 1, 4] {
                let mut steps: Vec<_> = sessions.iter_mut().map(|session| (session, token)).collect();
                let logits = evaluator.step(&mut steps).unwrap();
                together
                    .iter_mut()
                    .zip(logits.chunks_exact(vocab))
                    .for_each(|(all, row)| all.extend_from_slice(row));
            }
            assert!(alone == together, "the bits differ");
        }
    }

    #[test]
    fn greedy_text_is_that_of_the_whole_context_read_again_for_each_token() {
        for evaluator in evaluators() {
            let cold = Sampling { temperature: 0.0, top_p: 1.0, seed: 1 };
            let mut made = Vec::new();
            let count = evaluator.config().seq_len + 5;
            let each = |token| {
                made.push(token);
                if made.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            evaluator.generate(&[1, 2, 3], cold, each).unwrap();
            let mut text = vec![1, 2, 3];
            for token in &made {
                let logits = uncached(&evaluator, &text);
                let likeliest = crate::LogProbabilities::new(&logits).likeliest(1)[0].0;
                assert_eq!(*token, likeliest);
                text.push(likeliest);
            }
        }
    }

    #[test]
    fn a_session_reserves_what_the_formula_says_and_no_more_than_a_full_context() {
        for evaluator in evaluators() {
            let config = evaluator.config();
            for room in [1, 7, config.seq_len, config.seq_len + 9] {
                let mut session = evaluator.session(room);
                assert_eq!(session.reserved_bytes(), Session::bytes(config, room));
                evaluator.read(&mut session, &text(&evaluator, room.min(config.seq_len), 2)).unwrap();
                assert_eq!(session.reserved_bytes(), Session::bytes(config, room));
            }
            // Doubling of the capacity is limited to the window.
            let mut session = evaluator.session(1);
            for token in text(&evaluator, config.seq_len, 2) {
                evaluator.read(&mut session, &[token]).unwrap();
            }
            assert_eq!(session.reserved_bytes(), Session::bytes(config, config.seq_len));
            evaluator.read(&mut session, &text(&evaluator, 3 * config.seq_len, 2)).unwrap();
            assert_eq!(session.reserved_bytes(), 4 * config.seq_len as u64, "the cache is given back");
        }
    }

    #[test]
    fn tokens_that_do_not_fit_are_refused_and_change_nothing() {
        let evaluator = &evaluators()[0];
        let mut session = evaluator.session(5);
        let before = evaluator.read(&mut session, &[1, 2]).unwrap();
        let outside = |result| matches!(result, Err(ModelError::Batch(BatchError::Token { .. })));
        assert!(matches!(evaluator.read(&mut session, &[]), Err(ModelError::Batch(BatchError::Text { .. }))));
        assert!(outside(evaluator.read(&mut session, &[1, 40])));
        assert!(outside(evaluator.read_each(&mut session, &[40])));
        assert!(outside(evaluator.step(&mut [(&mut session, 40)])));
        let long = evaluator.read_each(&mut session, &[0; 11]);
        assert_eq!(long, Err(ModelError::Batch(BatchError::Text { len: 13, max: 12 })));
        assert_eq!(session.tokens, [1, 2]);
        let mut other = evaluator.session(5);
        assert_eq!(evaluator.read(&mut other, &[1, 2]).unwrap(), before);
        let next = evaluator.step(&mut [(&mut session, 3)]).unwrap();
        assert_eq!(next, evaluator.step(&mut [(&mut other, 3)]).unwrap());
        assert_eq!(evaluator.step(&mut []).unwrap(), [0.0f32; 0]);
    }
}
