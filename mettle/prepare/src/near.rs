//! Near-duplicate documents: MinHash over words, with banding (Broder 1997; Leskovec, Rajaraman, Ullman, *Mining of
//! Massive Datasets*, chapter 3).
//!
//! The similarity of two documents is the share of their shingles, five words in a row, that both have (Jaccard).
//! With that probability, both documents have the same least shingle in a random order of all shingles; for `rows`
//! orders together it is its `rows`-th power. A document has `bands` keys, each of the least shingles by `rows`
//! orders. Two documents of similarity `s` share a key with probability `1 - (1 - s^rows)^bands`.
//!
//! The definition of a word uses no table of Unicode properties, so that a release does not change it.

/// Number of words in a shingle.
const SHINGLE: usize = 5;
/// Maximum number of orders of shingles.
const ORDERS: usize = 128;
/// Minimum probability that documents of the given similarity share a key.
const FOUND: f64 = 0.9;

/// The number of keys of a document, and of orders for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Banding {
    pub bands: usize,
    pub rows: usize,
}

impl Banding {
    /// Chooses the most rows with which documents of this similarity are found, so that the fewest others are found.
    pub fn of(similarity: f64) -> Banding {
        let banding = |rows: usize| Banding { bands: ORDERS / rows, rows };
        let best = (1..=ORDERS).map(banding).rfind(|banding| FOUND <= banding.probability(similarity));
        best.unwrap_or(banding(1))
    }

    /// Computes the probability by products alone, which are equal on every machine.
    fn probability(self, similarity: f64) -> f64 {
        let power = |base: f64, times: usize| (0..times).fold(1.0, |product, _| product * base);
        1.0 - power(1.0 - power(similarity, self.rows), self.bands)
    }

    /// Adds the keys of a document to `keys`, one for each band; all are 0 if the document has no word.
    pub fn keys(self, text: &str, keys: &mut Vec<u64>) {
        let words = words(text);
        if words.is_empty() {
            keys.extend(std::iter::repeat_n(0, self.bands));
            return;
        }
        let orders = &ORDER[..self.bands * self.rows];
        let mut least = vec![u32::MAX; orders.len()];
        // A short document is one shingle.
        for shingle in words.windows(SHINGLE.min(words.len())) {
            let hash = (shingle.iter().fold(0, |hash, word| mixed(hash ^ word)) >> 32) as u32;
            for (least, (factor, summand)) in least.iter_mut().zip(orders) {
                *least = (*least).min(hash.wrapping_mul(*factor).wrapping_add(*summand));
            }
        }
        keys.extend(least.chunks(self.rows).map(|band| {
            let key = band.iter().fold(0, |key, least| mixed(key ^ u64::from(*least)));
            // 0 means no key.
            key.max(1)
        }));
    }
}

/// An odd factor and a summand for each order: a bijection of 32-bit hashes.
static ORDER: [(u32, u32); ORDERS] = {
    let mut orders = [(0, 0); ORDERS];
    let mut at = 0;
    while at < ORDERS {
        let random = mixed(at as u64 + 1);
        orders[at] = ((random >> 32) as u32 | 1, random as u32);
        at += 1;
    }
    orders
};

/// Hashes each word. ASCII letters and digits, and characters of scripts with spaces, form words, with ASCII in lower
/// case. A character of a script without spaces is a word. All other characters separate words.
fn words(text: &str) -> Vec<u64> {
    let mut words = Vec::with_capacity(text.len() / 5);
    let mut word = 0;
    for character in text.chars() {
        let code = u64::from(u32::from(character.to_ascii_lowercase()));
        let (is_alone, is_part) = match code {
            0..0x80 => (false, character.is_ascii_alphanumeric()),
            // Thai, Lao, Myanmar, Khmer; Chinese, Japanese.
            0x0e00..0x0f00 | 0x1000..0x10a0 | 0x1780..0x1800 => (true, true),
            0x3040..0xa000 | 0xf900..0xfb00 | 0x2_0000..0x4_0000 => (true, true),
            // Signs and punctuation.
            0x80..0xc0 | 0x2000..0x2e80 | 0x3000..0x3040 => (false, false),
            _ => (false, true),
        };
        if word != 0 && (is_alone || !is_part) {
            words.push(word);
            word = 0;
        }
        if is_alone {
            words.push(mixed(code));
        } else if is_part {
            word = mixed(word ^ code);
        }
    }
    if word != 0 {
        words.push(word);
    }
    words
}

/// Applies the finaliser of SplitMix64, after its constant.
const fn mixed(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(banding: Banding, text: &str) -> Vec<u64> {
        let mut keys = Vec::new();
        banding.keys(text, &mut keys);
        keys
    }

    #[test]
    fn rows_follow_from_the_similarity() {
        let of = |similarity| {
            let Banding { bands, rows } = Banding::of(similarity);
            (bands, rows)
        };
        assert_eq!([0.5, 0.7, 0.8, 0.9, 0.99].map(of), [(42, 3), (21, 6), (16, 8), (9, 14), (3, 42)]);
        let found = |similarity| (Banding::of(0.8).probability(similarity) * 1000.0).round();
        assert_eq!([0.5, 0.6, 0.7, 0.8, 0.9].map(found), [61.0, 237.0, 613.0, 947.0, 1000.0]);
    }

    #[test]
    fn words_have_no_case_punctuation_or_line_ends() {
        assert_eq!(words("The cat -- sat.\n"), words("the CAT, \"sat\""));
        assert_eq!(words("“été” naïve"), words("été naïve"));
        assert_eq!(words("été").len(), 1);
        assert_eq!(words("我们是。 日本 ภาษา").len(), 3 + 2 + 4);
        assert_eq!(words("a1 b").len(), 2);
        assert!(words(" .,\n—…").is_empty() && words("").is_empty());
        assert_ne!(words("ab"), words("ba"));
    }

    /// Over many pairs the share of equal least shingles is the similarity.
    #[test]
    fn equal_keys_are_as_frequent_as_equal_shingles() {
        let single = Banding { bands: ORDERS, rows: 1 };
        for common in [50usize, 200, 800] {
            let (mut equal, mut all) = (0, 0);
            for pair in 0..40 {
                let shared: String = (0..common).map(|n| format!("p{pair}w{n} ")).collect();
                let text = |side: &str| {
                    let own: String = (0..200).map(|n| format!("{side}{pair}o{n} ")).collect();
                    shared.clone() + &own
                };
                let (one, other) = (keys(single, &text("a")), keys(single, &text("b")));
                equal += one.iter().zip(&other).filter(|(one, other)| one == other).count();
                all += ORDERS;
            }
            let shingles = common as f64 - 4.0;
            let similarity = shingles / (shingles + 2.0 * 200.0);
            let found = equal as f64 / all as f64;
            assert!((found - similarity).abs() < 0.025, "{found}, not {similarity}");
        }
    }

    #[test]
    fn a_document_has_its_keys_in_every_release() {
        let banding = Banding::of(0.8);
        assert_eq!(keys(banding, "...").as_slice(), &[0; 16]);
        let short = keys(banding, "one two three");
        assert_eq!(short, keys(banding, "One, two; three!"));
        assert_ne!(short, keys(banding, "one two three four"));
        assert!(short.iter().all(|key| *key != 0));
        assert_eq!(short[0], 16_677_778_589_224_668_402, "a release with other keys keeps other documents");
    }
}
