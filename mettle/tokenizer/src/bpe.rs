//! Learns the merges of a byte pair encoding, equal on every machine.
//!
//! The merges are learned here because every tie must be resolved in the same way everywhere. The trainer of the
//! `tokenizers` crate keeps its queue in the order of a randomly seeded hash map, and a pair that becomes mergeable
//! twice is in that queue twice. Encoding is exact anyway and is left to `tokenizers`.
//!
//! The rule: the most frequent adjacent pair of tokens inside words becomes a token, repeatedly; ties go to the
//! smaller pair of ids. [`learn`] updates counts, places and a heap; the tests compare it with a version that
//! recounts.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
};

/// Minimum number of occurrences of a pair that becomes a token.
const MIN_OCCURRENCES: u64 = 2;

type Pair = (u32, u32);

/// The result of [`learn`].
#[derive(Debug, PartialEq, Eq)]
pub struct Learned {
    /// The text of every token by id: the given ones, then one for each merge that made a new text.
    pub tokens: Vec<String>,
    /// Pairs of ids in merge order.
    pub merges: Vec<Pair>,
}

/// Learns merges until there are `vocab` tokens, or no pair occurs twice.
///
/// `words` maps each word to its number of occurrences; characters that are not a token of `first` are omitted.
/// `first` has the initial tokens by id. `progress` is called occasionally with the number of tokens.
pub fn learn(
    words: &BTreeMap<String, u64>,
    first: Vec<String>,
    vocab: usize,
    progress: &mut dyn FnMut(usize),
) -> Learned {
    let mut ids: HashMap<String, u32> = HashMap::with_capacity(vocab);
    for (id, token) in (0u32..).zip(&first) {
        ids.insert(token.clone(), id);
    }
    let mut learned = Learned { tokens: first, merges: Vec::new() };
    let mut known: HashSet<Pair> = HashSet::new();
    let mut state = State::new(split_into_characters(words, &ids));

    while learned.tokens.len() < vocab {
        let Some(pair) = state.most_frequent_pair() else { break };
        let text = format!("{}{}", learned.tokens[pair.0 as usize], learned.tokens[pair.1 as usize]);
        // Two merges may give the same text, `ab + c` and `a + bc`: it stays one token.
        let id = *ids.entry(text.clone()).or_insert_with(|| {
            learned.tokens.push(text);
            u32::try_from(learned.tokens.len() - 1).expect("a vocabulary is far below 2^32")
        });
        // For the same reason a pair may appear a second time. Its first position in the order counts.
        if known.insert(pair) {
            learned.merges.push(pair);
        }
        state.merge(pair, id);
        if learned.merges.len().is_multiple_of(128) {
            progress(learned.tokens.len());
        }
    }
    learned
}

/// A word, spelled with the tokens learned so far.
struct Word {
    tokens: Vec<u32>,
    occurrences: u64,
}

struct State {
    words: Vec<Word>,
    /// Current number of occurrences of each pair.
    counts: HashMap<Pair, u64>,
    /// The words that contain a pair or contained it before.
    places: HashMap<Pair, Vec<u32>>,
    /// Current or earlier, higher count of each pair. A count that has fallen is corrected when it is taken from the
    /// queue.
    queue: BinaryHeap<(u64, Reverse<Pair>)>,
}

impl State {
    fn new(words: Vec<Word>) -> State {
        let mut counts: HashMap<Pair, u64> = HashMap::new();
        let mut places: HashMap<Pair, Vec<u32>> = HashMap::new();
        for (at, word) in (0u32..).zip(&words) {
            for pair in pairs(&word.tokens) {
                *counts.entry(pair).or_default() += word.occurrences;
                let places = places.entry(pair).or_default();
                if places.last() != Some(&at) {
                    places.push(at);
                }
            }
        }
        // The order of this iteration does not matter: the queue orders its entries.
        let queue = counts.iter().map(|(&pair, &count)| (count, Reverse(pair))).collect();
        State { words, counts, places, queue }
    }

    fn most_frequent_pair(&mut self) -> Option<Pair> {
        while let Some((count, Reverse(pair))) = self.queue.pop() {
            let count_now = self.counts.get(&pair).copied().unwrap_or(0);
            if count_now < MIN_OCCURRENCES {
                continue;
            }
            if count_now == count {
                return Some(pair);
            }
            self.queue.push((count_now, Reverse(pair)));
        }
        None
    }

    fn merge(&mut self, pair: Pair, id: u32) {
        let mut risen: HashSet<Pair> = HashSet::new();
        let mut places = self.places.remove(&pair).unwrap_or_default();
        places.sort_unstable();
        places.dedup();
        for at in places {
            let word = &mut self.words[at as usize];
            let Some(merged) = merged(&word.tokens, pair, id) else { continue };
            for before in pairs(&word.tokens) {
                if let Some(count) = self.counts.get_mut(&before) {
                    *count -= word.occurrences;
                }
            }
            for after in pairs(&merged) {
                *self.counts.entry(after).or_default() += word.occurrences;
                if after.0 == id || after.1 == id {
                    self.places.entry(after).or_default().push(at);
                    risen.insert(after);
                }
            }
            word.tokens = merged;
        }
        self.counts.remove(&pair);
        self.queue.extend(risen.into_iter().map(|pair| (self.counts[&pair], Reverse(pair))));
    }
}

/// Replaces every occurrence of `pair` in a word, from the left; `None` if there is none.
fn merged(tokens: &[u32], pair: Pair, id: u32) -> Option<Vec<u32>> {
    let mut merged = Vec::with_capacity(tokens.len());
    let mut rest = tokens;
    while let Some((&token, after)) = rest.split_first() {
        if token == pair.0 && after.first() == Some(&pair.1) {
            merged.push(id);
            rest = &after[1..];
        } else {
            merged.push(token);
            rest = after;
        }
    }
    (merged.len() < tokens.len()).then_some(merged)
}

fn pairs(tokens: &[u32]) -> impl Iterator<Item = Pair> {
    tokens.windows(2).map(|pair| (pair[0], pair[1]))
}

fn split_into_characters(words: &BTreeMap<String, u64>, ids: &HashMap<String, u32>) -> Vec<Word> {
    let by_character: HashMap<char, u32> = ids
        .iter()
        .filter_map(|(token, &id)| {
            let mut characters = token.chars();
            let character = characters.next()?;
            characters.next().is_none().then_some((character, id))
        })
        .collect();
    words
        .iter()
        .map(|(word, &occurrences)| Word {
            tokens: word.chars().filter_map(|character| by_character.get(&character).copied()).collect(),
            occurrences,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Applies the rule with a full recount for every merge.
    fn learn_reference(words: &BTreeMap<String, u64>, first: Vec<String>, vocab: usize) -> Learned {
        let ids: HashMap<String, u32> = (0u32..).zip(&first).map(|(id, token)| (token.clone(), id)).collect();
        let mut words = split_into_characters(words, &ids);
        let mut learned = Learned { tokens: first, merges: Vec::new() };
        while learned.tokens.len() < vocab {
            let mut counts: BTreeMap<Pair, u64> = BTreeMap::new();
            for word in &words {
                pairs(&word.tokens).for_each(|pair| *counts.entry(pair).or_default() += word.occurrences);
            }
            let best = counts.into_iter().max_by_key(|&(pair, count)| (count, Reverse(pair)));
            let Some((pair, _)) = best.filter(|&(_, count)| count >= MIN_OCCURRENCES) else { break };
            let text = format!("{}{}", learned.tokens[pair.0 as usize], learned.tokens[pair.1 as usize]);
            let known = learned.tokens.iter().position(|token| *token == text);
            let id = known.unwrap_or_else(|| {
                learned.tokens.push(text);
                learned.tokens.len() - 1
            });
            if !learned.merges.contains(&pair) {
                learned.merges.push(pair);
            }
            for word in &mut words {
                if let Some(tokens) = merged(&word.tokens, pair, id as u32) {
                    word.tokens = tokens;
                }
            }
        }
        learned
    }

    fn alphabet() -> Vec<String> {
        ["<eos>", "a", "b", "c", "d"].map(String::from).to_vec()
    }

    fn count(words: &[&str]) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        words.iter().for_each(|word| *counts.entry((*word).to_owned()).or_default() += 1);
        counts
    }

    #[test]
    fn the_most_frequent_pair_merges_first_and_ties_go_to_the_smaller_pair() {
        let learned = learn(&count(&["cd", "cd", "ab", "ab", "aab", "d"]), alphabet(), 7, &mut |_| {});
        assert_eq!(learned.tokens[5..], ["ab", "cd"]);
        assert_eq!(learned.merges, [(1, 2), (3, 4)]);
        let tie = learn(&count(&["cd", "cd", "ab", "ab"]), alphabet(), 6, &mut |_| {});
        assert_eq!(tie.tokens[5..], ["ab"]);
    }

    #[test]
    fn a_pair_that_occurs_once_is_no_token() {
        let learned = learn(&count(&["abcd"]), alphabet(), 100, &mut |_| {});
        assert_eq!(learned, Learned { tokens: alphabet(), merges: Vec::new() });
    }

    proptest! {
        #[test]
        fn keeping_counts_gives_the_same_as_counting_anew(
            words in proptest::collection::btree_map("[abcd]{1,9}", 1u64..6, 1..40), vocab in 5usize..60,
        ) {
            let learned = learn(&words, alphabet(), vocab, &mut |_| {});
            prop_assert_eq!(learned, learn_reference(&words, alphabet(), vocab));
        }
    }
}
