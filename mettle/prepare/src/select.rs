//! Selects documents, the number of times that each is taken, and the held-out ones, from the records of the first
//! pass: by contents alone.
//!
//! **Duplicates.** Of documents with equal contents the first is taken. Several passes over the records each keep the
//! keys of one range, so that memory is bounded by [`KEYS_AT_ONCE`] and not by the text; the result is one bit per
//! item.
//!
//! **Near-duplicates.** A document that shares a key with an earlier one is omitted (`near.rs`), even if that one is
//! omitted too. So the first of a chain stays, and no two taken documents share a key. Passes over the keys of each
//! band bound memory as above.
//!
//! **Mixtures.** With weights `w` and `U` bytes of different documents in each source, the scarcest source, whose `U
//! / w` is least, is read `epochs` times, and each of the others `epochs · (U_s / w_s of the scarcest) · w / U`
//! times. The integer part of that number is the number of complete readings, one after the other. In the last
//! reading documents are taken evenly (like Bresenham's lines), so that the share is correct to within a document
//! everywhere in it.
//!
//! **Held-out** documents are those with the lowest keys, a random sample, until there are enough: from each source
//! by its share in the mixture, and each document once. Since a key is a hash of the contents, no text is in both
//! splits. The tokenizer learns from the documents with the next keys.

use crate::{
    error::PrepareError,
    scan::{Key, Record, Scan},
};
use ahash::AHashSet;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Maximum number of keys in memory; about 40 bytes each.
pub(crate) const KEYS_AT_ONCE: u64 = 1 << 19;
/// Maximum number of keys of one band in memory; about 20 bytes each.
pub(crate) const NEAR_KEYS_AT_ONCE: u64 = 1 << 21;
/// One reading of a source, the unit of rates.
pub(crate) const ONE: u64 = 1 << 32;

/// Result of the selection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// One bit per item, set if it is omitted as a duplicate or near-duplicate.
    pub duplicate: Bits,
    pub duplicates: u64,
    /// Number of documents that are nearly equal to an earlier one.
    pub near_duplicates: u64,
    /// Number of readings of each source, in units of [`ONE`].
    pub rates: Vec<u64>,
    /// Number of readings of the scarcest source. Its held-out documents are taken once.
    epochs: u64,
    /// Documents with at most this key are held out.
    held_out_to: Option<Key>,
    /// The tokenizer learns from documents that are not held out and have at most this key.
    sample_to: Option<Key>,
    /// Bytes that will be taken of each source in both splits, to within about a document if the rate is not an
    /// integer.
    pub bytes: Vec<u64>,
}

/// One reading of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub source: usize,
    /// Number of this reading, from 0.
    pub reading: u32,
}

/// The amounts to select.
pub(crate) struct Amounts<'a> {
    /// Weight of each source; `None` if all of it is taken.
    pub weights: &'a [Option<u64>],
    pub epochs: u32,
    /// Minimum size of the held-out part, in bytes; one byte in `held_out_share` if that is more.
    pub held_out_bytes: u64,
    pub held_out_share: u64,
    pub sample_bytes: u64,
    pub keys_at_once: u64,
    /// Number of bands of keys in which near-duplicates are found; 0 keeps near-duplicates.
    pub bands: usize,
    pub near_keys_at_once: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    Training,
    HeldOut,
}

/// Bytes owed to each split in one reading of one source. They are carried from document to document, which keeps the
/// share even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owed {
    training: i64,
    held_out: i64,
}

impl Selection {
    pub fn of(scan: &Scan, amounts: &Amounts<'_>) -> Result<Selection, PrepareError> {
        let mut selection = Selection {
            duplicate: Bits::new(scan.items()),
            duplicates: 0,
            near_duplicates: 0,
            rates: Vec::new(),
            epochs: u64::from(amounts.epochs),
            held_out_to: None,
            sample_to: None,
            bytes: vec![0; scan.sources.len()],
        };
        let ranges = scan.documents().div_ceil(amounts.keys_at_once).max(1);

        // Counts each document once.
        for range in 0..ranges {
            let mut seen: HashSet<Key> = HashSet::new();
            scan.for_each(|item, source, record| {
                if record.bytes > 0 && range_of(&record.key, ranges) == range {
                    if seen.insert(record.key) {
                        selection.bytes[source] += u64::from(record.bytes);
                    } else {
                        selection.duplicate.set(item);
                        selection.duplicates += 1;
                    }
                }
            })?;
        }
        if amounts.bands > 0 {
            selection.leave_out_near_duplicates(scan, amounts)?;
        }

        // The number of readings.
        selection.rates = rates(&selection.bytes, amounts.weights, amounts.epochs);
        let held_out_rates: Vec<u64> = selection.rates.iter().map(|rate| rate / selection.epochs).collect();
        let total: u64 =
            selection.bytes.iter().zip(&held_out_rates).map(|(bytes, rate)| times(*bytes, *rate)).sum();

        // The held-out documents, and those for the tokenizer.
        let held_out_bytes = amounts.held_out_bytes.max(total / amounts.held_out_share);
        let (mut held_out, mut sample) = (0, 0);
        let mut held_out_of = vec![0; scan.sources.len()];
        for range in 0..ranges {
            let mut keys: Vec<(Key, u32, usize)> = Vec::new();
            scan.for_each(|item, source, record| {
                let wanted = record.bytes > 0 && range_of(&record.key, ranges) == range;
                if wanted && !selection.duplicate.get(item) && selection.rates[source] > 0 {
                    keys.push((record.key, record.bytes, source));
                }
            })?;
            keys.sort_unstable();
            for (key, bytes, source) in keys {
                if held_out < held_out_bytes {
                    held_out += times(u64::from(bytes), held_out_rates[source]);
                    held_out_of[source] += u64::from(bytes);
                    selection.held_out_to = Some(key);
                } else if sample < amounts.sample_bytes {
                    sample += u64::from(bytes);
                    selection.sample_to = Some(key);
                }
            }
            if held_out_bytes <= held_out && amounts.sample_bytes <= sample {
                break;
            }
        }
        for (at, bytes) in selection.bytes.iter_mut().enumerate() {
            let rate = selection.rates[at];
            *bytes = times(*bytes - held_out_of[at], rate) + times(held_out_of[at], held_out_rates[at]);
        }
        Ok(selection)
    }

    fn leave_out_near_duplicates(&mut self, scan: &Scan, amounts: &Amounts<'_>) -> Result<(), PrepareError> {
        let ranges = scan.documents().div_ceil(amounts.near_keys_at_once).max(1);
        let mut near = Bits::new(scan.items());
        for band in 0..amounts.bands {
            for range in 0..ranges {
                let mut seen: AHashSet<u64> = AHashSet::new();
                scan.for_each_key(band, |item, key| {
                    // 0 means that there is no word. An equal document has the keys of the first one.
                    let wanted = key != 0 && part_of(key, ranges) == range && !self.duplicate.get(item);
                    if wanted && !seen.insert(key) {
                        near.set(item);
                    }
                })?;
            }
        }
        scan.for_each(|item, source, record| {
            if near.get(item) {
                self.duplicate.set(item);
                self.near_duplicates += 1;
                self.bytes[source] -= u64::from(record.bytes);
            }
        })
    }

    /// Returns all readings of all sources in order.
    pub fn spans(&self) -> Vec<Span> {
        let readings = |rate: u64| u32::try_from(rate.div_ceil(ONE)).expect("epochs are that few");
        let sources = self.rates.iter().enumerate();
        sources
            .flat_map(|(source, &rate)| (0..readings(rate)).map(move |reading| Span { source, reading }))
            .collect()
    }

    /// Returns the split of a document in the `reading`-th reading of its source, or `None` if it is not taken. Must
    /// be called in order.
    pub fn split(
        &self,
        item: u64,
        record: &Record,
        (source, reading): (usize, u32),
        owed: &mut Owed,
    ) -> Option<Split> {
        if record.bytes == 0 || self.duplicate.get(item) {
            return None;
        }
        let held_out = self.held_out_to.is_some_and(|last| record.key <= last);
        let (split, rate, owed) = if held_out {
            // Once, otherwise it would count twice.
            let rate = if reading == 0 { self.rates[source] / self.epochs } else { 0 };
            (Split::HeldOut, rate, &mut owed.held_out)
        } else {
            let rate = self.rates[source].saturating_sub(u64::from(reading) * ONE).min(ONE);
            (Split::Training, rate, &mut owed.training)
        };
        // At most 2^26 bytes times 2^32.
        let whole = i64::from(record.bytes) << 32;
        *owed += i64::from(record.bytes) * i64::try_from(rate).expect("at most 2^32");
        if rate == 0 || *owed < whole / 2 {
            return None;
        }
        *owed -= whole;
        Some(split)
    }

    /// Returns whether the tokenizer learns from a document.
    pub fn in_sample(&self, item: u64, record: &Record, source: usize) -> bool {
        let (Some(from), Some(to)) = (self.held_out_to, self.sample_to) else { return false };
        let wanted = record.bytes > 0 && self.rates[source] > 0 && !self.duplicate.get(item);
        wanted && from < record.key && record.key <= to
    }
}

/// Computes the rate of each source.
fn rates(bytes: &[u64], weights: &[Option<u64>], epochs: u32) -> Vec<u64> {
    let weights: Option<Vec<u64>> = weights.iter().copied().collect();
    let Some(weights) = weights.filter(|weights| weights.len() == bytes.len()) else {
        return vec![u64::from(epochs) * ONE; bytes.len()];
    };
    // The source with the least bytes / weight, compared by products, without rounding.
    let scarcest = (0..bytes.len()).min_by(|&a, &b| {
        let product = |of: usize, by: usize| u128::from(bytes[of]) * u128::from(weights[by]);
        product(a, b).cmp(&product(b, a))
    });
    let Some(scarcest) = scarcest else { return Vec::new() };
    let rate = |at: usize| {
        if bytes[at] == 0 {
            return 0;
        }
        let share = u128::from(bytes[scarcest]) * u128::from(weights[at]);
        let scale = u128::from(weights[scarcest]) * u128::from(bytes[at]);
        let whole = share / scale;
        let rest = share % scale;
        // A weight is below 2^40 and a length below 2^64, so the rest may be shifted by 20 bits, and again by 12.
        let high = (rest << 20) / scale;
        let low = (((rest << 20) % scale) << 12) / scale;
        let one = (whole << 32) + (high << 12) + low;
        u64::try_from(one * u128::from(epochs)).unwrap_or(u64::MAX)
    };
    (0..bytes.len()).map(rate).collect()
}

fn times(bytes: u64, rate: u64) -> u64 {
    u64::try_from((u128::from(bytes) * u128::from(rate)) >> 32).unwrap_or(u64::MAX)
}

/// Returns the index of the range that contains `key`, where `ranges` equal ranges divide all keys.
fn range_of(key: &Key, ranges: u64) -> u64 {
    part_of(u64::from_be_bytes(key[..8].try_into().expect("a key has 32 bytes")), ranges)
}

fn part_of(key: u64, ranges: u64) -> u64 {
    ((u128::from(key) * u128::from(ranges)) >> 64) as u64
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    fn new(bits: u64) -> Bits {
        Bits(vec![0; usize::try_from(bits.div_ceil(64)).expect("a bit an item fits an address space")])
    }

    fn set(&mut self, at: u64) {
        self.0[(at / 64) as usize] |= 1 << (at % 64);
    }

    fn get(&self, at: u64) -> bool {
        self.0[(at / 64) as usize] & (1 << (at % 64)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        options::{OutputDirectory, PrepareOptions},
        source::Source,
    };
    use proptest::prelude::*;
    use std::path::Path;

    const AMOUNTS: Amounts<'static> = Amounts {
        weights: &[],
        epochs: 1,
        held_out_bytes: 0,
        held_out_share: 40,
        sample_bytes: 0,
        keys_at_once: KEYS_AT_ONCE,
        bands: 0,
        near_keys_at_once: NEAR_KEYS_AT_ONCE,
    };

    fn scan(root: &Path, texts: &[&[String]]) -> Scan {
        scan_with(root, texts, None)
    }

    fn scan_with(root: &Path, texts: &[&[String]], near_duplicates: Option<f64>) -> Scan {
        let mut parts = Vec::new();
        for (at, texts) in texts.iter().enumerate() {
            let lines: String =
                texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n").collect();
            let path = root.join(format!("{at}.jsonl"));
            std::fs::write(&path, lines).expect("writable");
            parts.push((at.to_string(), 1.0, Source::directory(path)));
        }
        let source = Source::mixture(parts, 1).expect("weights of one");
        let files = source.files().expect("readable");
        let place = OutputDirectory::Directory(root.to_owned());
        let options = PrepareOptions { near_duplicates, ..PrepareOptions::new(source, place) };
        Scan::make(&options, files, root, &mut |_| {}).expect("readable")
    }

    fn texts(from: usize, to: usize) -> Vec<String> {
        (from..to).map(|number| format!("{number} ").repeat(1 + number % 17)).collect()
    }

    /// Returns the bytes taken in training and held out, of each source.
    fn taken(scan: &Scan, selection: &Selection) -> Vec<(u64, u64)> {
        let mut taken = vec![(0, 0); scan.sources.len()];
        for span in selection.spans() {
            let mut owed = Owed::default();
            scan.for_each(|item, source, record| {
                if source == span.source {
                    match selection.split(item, &record, (source, span.reading), &mut owed) {
                        Some(Split::Training) => taken[source].0 += u64::from(record.bytes),
                        Some(Split::HeldOut) => taken[source].1 += u64::from(record.bytes),
                        None => {}
                    }
                }
            })
            .expect("readable");
        }
        taken
    }

    #[test]
    fn of_equal_documents_the_first_is_taken_however_few_keys_are_kept() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (first, mut second) = (texts(0, 50), texts(30, 80));
        second.push(String::new());
        second.extend(texts(70, 75));
        let scan = scan(root.path(), &[&first, &second]);
        let wanted = |keys_at_once| Amounts { keys_at_once, sample_bytes: 200, ..AMOUNTS };
        let selection = Selection::of(&scan, &wanted(1000)).expect("readable");
        assert_eq!(selection.duplicates, 20 + 5);
        let bytes = |texts: &[String]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
        assert_eq!(selection.bytes, [bytes(&first), bytes(&texts(50, 80))]);
        for keys_at_once in [1, 3, 20] {
            assert_eq!(Selection::of(&scan, &wanted(keys_at_once)).expect("readable"), selection);
        }
    }

    #[test]
    fn a_mixture_keeps_its_proportions_and_repeats_only_what_it_may() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (large, small) = (texts(0, 3000), texts(5000, 5400));
        let scan = scan(root.path(), &[&large, &small]);
        for (weights, epochs) in [([1, 1], 1), ([3, 1], 1), ([1, 3], 1), ([1, 1], 4), ([5, 7], 3)] {
            let amounts = Amounts {
                weights: &weights.map(Some),
                epochs,
                held_out_share: 10,
                sample_bytes: 100,
                ..AMOUNTS
            };
            let selection = Selection::of(&scan, &amounts).expect("readable");
            assert_eq!(
                selection.rates.iter().max(),
                Some(&(u64::from(epochs) * ONE)),
                "the scarcest is read whole"
            );
            let taken = taken(&scan, &selection);
            let longest = 5 * 17;
            for split in 0..2 {
                let of = |source: usize| [taken[source].0, taken[source].1][split] as f64;
                let (expected, found) = (weights[0] as f64 / weights[1] as f64, of(0) / of(1));
                // In a random order, a split has slightly more of one source; with even drawing, a document more or
                // less.
                let slack = if split == 0 { 0.05 } else { 0.6 };
                assert!((found / expected - 1.0).abs() < slack, "{weights:?} {epochs} {split}: {found}");
            }
            for (source, &(training, held_out)) in taken.iter().enumerate() {
                let difference = (training + held_out).abs_diff(selection.bytes[source]);
                assert!(difference <= 2 * longest, "{difference} bytes");
            }
        }
    }

    #[test]
    fn near_duplicates_are_left_out_however_few_keys_are_kept() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let text = |from: usize| (from..from + 200).map(|n| format!("word{n} ")).collect::<String>();
        // One word of two hundred differs: a similarity of 0.95.
        let near = |from: usize, at: usize| text(from).replace(&format!("word{at} "), "other ");
        let first = [text(0), text(1000), near(0, 100), text(1000), "...".to_owned(), near(1000, 1100)];
        let second = ["...".to_owned(), near(0, 50), text(2000), "....".to_owned(), near(0, 100)];
        let scan = scan_with(root.path(), &[&first, &second], Some(0.8));
        let bytes = |texts: &[&String]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
        for (keys_at_once, near_keys_at_once) in [(1000, 1000), (2, 1), (5, 3)] {
            let amounts = Amounts { bands: 16, keys_at_once, near_keys_at_once, ..AMOUNTS };
            let selection = Selection::of(&scan, &amounts).expect("readable");
            assert_eq!((selection.duplicates, selection.near_duplicates), (3, 3));
            let kept: Vec<u64> = (0..11).filter(|item| !selection.duplicate.get(*item)).collect();
            assert_eq!(kept, [0, 1, 4, 8, 9]);
            let kept = [bytes(&[&first[0], &first[1], &first[4]]), bytes(&[&second[2], &second[3]])];
            assert_eq!(selection.bytes, kept);
        }
        let selection = Selection::of(&scan, &AMOUNTS).expect("readable");
        assert_eq!((selection.duplicates, selection.near_duplicates), (3, 0));
    }

    #[test]
    fn rates_are_exact_fractions() {
        assert_eq!(rates(&[100, 300], &[Some(1), Some(1)], 1), [ONE, ONE / 3]);
        assert_eq!(rates(&[100, 300], &[Some(2), Some(1)], 4), [4 * ONE, 4 * (ONE / 6)]);
        assert_eq!(rates(&[100, 300], &[None, None], 1), [ONE, ONE]);
        assert_eq!(rates(&[1 << 62, 1], &[Some(1), Some(1 << 40)], 1)[1], ONE);
        assert_eq!(rates(&[0, 5], &[Some(1), Some(1)], 1), [0, 0], "nothing can be mixed with no text");
    }

    proptest! {
        #[test]
        fn a_part_of_a_source_is_taken_evenly(
            bytes in proptest::collection::vec(1u32..5000, 1..200), rate in 0..=ONE,
        ) {
            let selection = Selection {
                duplicate: Bits::new(bytes.len() as u64),
                duplicates: 0,
                near_duplicates: 0,
                rates: vec![rate],
                epochs: 1,
                held_out_to: None,
                sample_to: None,
                bytes: vec![0],
            };
            let (mut owed, mut taken, mut all) = (Owed::default(), 0i64, 0i64);
            for (item, &bytes) in (0..).zip(&bytes) {
                let record = Record { key: [1; 32], bytes };
                let split = selection.split(item, &record, (0, 0), &mut owed);
                taken += i64::from(split.map_or(0, |_| bytes));
                all += i64::from(bytes);
                let expected = ((i128::from(all) * i128::from(rate)) >> 32) as i64;
                prop_assert!((taken - expected).abs() <= 5000, "{taken} of {expected}");
            }
            if rate == ONE {
                prop_assert_eq!(taken, all);
            }
        }
    }
}
