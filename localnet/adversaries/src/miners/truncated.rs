//! Trains on the beginning of each sequence only, and declares all of them.
//!
//! The beginnings of several sequences are combined into one, so a step costs a quarter or a half. The engine cannot
//! omit the loss of single tokens, so the remaining parts are not read at all.
//!
//! Sees: its own assignment. Stopped by: PROT-22 to PROT-25. Both gains are measured on whole sequences: the gap shows
//! the part that was read, and the gain shows the steps on less text.

use crate::adversary::Adversary;
use miner::strategy::Reading;

pub struct Truncated {
    /// Number of parts of each sequence, of which it trains on the first.
    pub parts: usize,
}

impl Adversary for Truncated {
    fn reading(&self) -> Option<Reading> {
        let parts = self.parts.max(1);
        Some(Box::new(move |sequences| sequences.chunks(parts).map(beginnings).collect()))
    }
}

/// Combines beginnings of these sequences into one. They have equal lengths, except for the missing tokens at the end.
fn beginnings(sequences: &[Vec<u32>]) -> Vec<u32> {
    let length = sequences.first().map_or(0, Vec::len);
    let part = length.div_ceil(sequences.len().max(1));
    sequences.iter().flat_map(|sequence| sequence.iter().take(part)).copied().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_the_beginnings_of_all_its_sequences_and_a_quarter_of_their_length() {
        let sequences: Vec<Vec<u32>> =
            (0..6).map(|at| (0..10).map(|token| at * 100 + token).collect()).collect();
        let read = Truncated { parts: 4 }.reading().unwrap()(sequences);
        assert_eq!(read[0], [0, 1, 2, 100, 101, 102, 200, 201, 202, 300]);
        // The last two sequences fill one by themselves.
        assert_eq!(read[1], [400, 401, 402, 403, 404, 500, 501, 502, 503, 504]);
        assert_eq!(read.len(), 2);
    }
}
