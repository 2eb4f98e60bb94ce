//! Codes for the indices of a chunk's entries: their size in bits, and the work of decoding.

use super::codec::SectionGaps;

/// The bits of the largest gap in a chunk of 4096.
const RICE_MAX: u32 = 12;
/// The size of a chunk's Rice parameter.
const CHUNK_PARAMETER_BITS: u64 = 4;

/// Bits with the best Rice parameter for the section: the protocol's code (PROT-7). The parameter counts as framing.
pub fn rice_by_section(section: &SectionGaps) -> u64 {
    let length = |rice| gaps(section).map(|gap| rice_length(gap, rice)).sum();
    (0..=RICE_MAX).map(length).min().unwrap_or(0)
}

/// Bits with the best Rice parameter for each chunk, including the parameter.
pub fn rice_by_chunk(section: &SectionGaps) -> u64 {
    let chunk_bits = |gaps: &Vec<u32>| {
        let length = |rice| gaps.iter().map(|gap| rice_length(*gap, rice)).sum::<u64>();
        CHUNK_PARAMETER_BITS + (0..=RICE_MAX).map(length).min().unwrap_or(0)
    };
    section.chunks.iter().map(|(_, gaps)| chunk_bits(gaps)).sum()
}

/// Bits of Golomb's code with the best divisor for the section.
pub fn golomb_by_section(section: &SectionGaps) -> u64 {
    let length = |divisor: u32| gaps(section).map(|gap| golomb_length(gap, divisor)).sum();
    (1..=4096).map(length).min().unwrap_or(0)
}

/// Bits of each chunk's subset as one number: `⌈log2 C(len, entries)⌉`, the minimum if all subsets are equally likely.
pub fn enumerative(section: &SectionGaps) -> u64 {
    section.chunks.iter().map(|(len, gaps)| log2_choose(*len as u64, gaps.len() as u64).ceil() as u64).sum()
}

/// The entropy of the section's gaps in bits: a lower bound for any code that encodes gaps independently. A small
/// section cannot come near it.
pub fn gap_entropy(section: &SectionGaps) -> f64 {
    let mut sorted: Vec<u32> = gaps(section).collect();
    sorted.sort_unstable();
    let total = sorted.len() as f64;
    sorted.chunk_by(|a, b| a == b).map(|same| same.len() as f64 * (total / same.len() as f64).log2()).sum()
}

/// The entropy of one independent coin toss per value: `len · h(entries / len)` bits.
pub fn coin_entropy(section: &SectionGaps) -> f64 {
    let chunk_entropy = |(len, gaps): &(usize, Vec<u32>)| {
        let (len, share) = (*len as f64, gaps.len() as f64 / *len as f64);
        let part = |share: f64| if share > 0.0 { -share * share.log2() } else { 0.0 };
        len * (part(share) + part(1.0 - share))
    };
    section.chunks.iter().map(chunk_entropy).sum()
}

fn gaps(section: &SectionGaps) -> impl Iterator<Item = u32> + '_ {
    section.chunks.iter().flat_map(|(_, gaps)| gaps.iter().copied())
}

fn rice_length(gap: u32, rice: u32) -> u64 {
    u64::from((gap >> rice) + 1 + rice)
}

/// Bits of the quotient in unary and the remainder in truncated binary.
fn golomb_length(gap: u32, divisor: u32) -> u64 {
    let bits = divisor.next_power_of_two().trailing_zeros();
    let short = (1 << bits) - divisor;
    let remainder = if gap % divisor < short { bits.saturating_sub(1) } else { bits };
    u64::from(gap / divisor + 1 + if divisor == 1 { 0 } else { remainder })
}

/// `log2` of the number of subsets of size `k` of `n` members.
pub fn log2_choose(n: u64, k: u64) -> f64 {
    (0..k.min(n - k)).map(|taken| ((n - taken) as f64 / (taken + 1) as f64).log2()).sum()
}

/// The work of decoding one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Multiplications of a 64-bit word.
    pub multiplications: u64,
    /// Divisions of a 128-bit number by a word.
    pub divisions: u64,
    /// Comparisons and subtractions of a word.
    pub subtractions: u64,
}

/// The rank of a subset of `0..n` among all subsets of its size, in lexicographic order.
pub fn rank(n: u64, members: &[u32]) -> Natural {
    let mut work = Work::default();
    let mut rank = Natural::from(0);
    let mut walk = Walk::new(n, members.len() as u64, &mut work);
    let mut members = members.iter().peekable();
    for position in 0..n {
        if members.next_if(|member| u64::from(**member) == position).is_some() {
            walk.take(&mut work);
        } else {
            if walk.left > 0 {
                rank.add(&walk.with_this);
            }
            walk.leave(&mut work);
        }
    }
    rank
}

/// The subset of `k` members of `0..n` with this rank, and the work of decoding it.
///
/// The algorithm needs no table: at each position it makes one comparison and updates one binomial coefficient, both
/// over all words of the number.
pub fn unrank(n: u64, k: u64, rank: &Natural) -> (Vec<u32>, Work) {
    let mut work = Work::default();
    let mut rank = rank.clone();
    let mut walk = Walk::new(n, k, &mut work);
    let mut members = Vec::new();
    for position in 0..n {
        if walk.left == 0 {
            break;
        }
        work.subtractions += 1;
        if rank.below(&walk.with_this) {
            members.push(u32::try_from(position).expect("a chunk is short"));
            walk.take(&mut work);
        } else {
            work.subtractions += rank.words.len() as u64;
            rank.subtract(&walk.with_this);
            walk.leave(&mut work);
        }
    }
    (members, work)
}

/// A walk through the positions, with the number of subsets whose next member is the current position.
struct Walk {
    /// Positions after the current one.
    after: u64,
    /// Members not yet found.
    left: u64,
    /// `C(after, left − 1)`.
    with_this: Natural,
}

impl Walk {
    fn new(n: u64, k: u64, work: &mut Work) -> Walk {
        let after = n.saturating_sub(1);
        let mut with_this = Natural::from(u64::from(k > 0));
        for taken in 0..k.saturating_sub(1) {
            with_this.scale(after - taken, taken + 1, work);
        }
        Walk { after, left: k, with_this }
    }

    /// `C(after − 1, left − 2)`.
    fn take(&mut self, work: &mut Work) {
        if self.left > 1 {
            self.with_this.scale(self.left - 1, self.after, work);
        }
        self.left -= 1;
        self.after = self.after.saturating_sub(1);
    }

    /// `C(after − 1, left − 1)`.
    fn leave(&mut self, work: &mut Work) {
        if self.left > 0 && self.after > 0 {
            self.with_this.scale(self.after + 1 - self.left, self.after, work);
        }
        self.after = self.after.saturating_sub(1);
    }
}

/// A natural number of any size: words, least significant first; the last is not 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Natural {
    words: Vec<u64>,
}

impl From<u64> for Natural {
    fn from(word: u64) -> Natural {
        Natural { words: if word == 0 { Vec::new() } else { vec![word] } }
    }
}

impl Natural {
    pub fn bits(&self) -> u64 {
        self.words.last().map_or(0, |last| 64 * self.words.len() as u64 - u64::from(last.leading_zeros()))
    }

    fn below(&self, other: &Natural) -> bool {
        let by_length = self.words.len().cmp(&other.words.len());
        by_length.then_with(|| self.words.iter().rev().cmp(other.words.iter().rev())).is_lt()
    }

    fn add(&mut self, other: &Natural) {
        let mut carry = 0u128;
        let length = self.words.len().max(other.words.len());
        self.words.resize(length, 0);
        for (at, word) in self.words.iter_mut().enumerate() {
            let sum = u128::from(*word) + u128::from(other.words.get(at).copied().unwrap_or(0)) + carry;
            *word = sum as u64;
            carry = sum >> 64;
        }
        if carry > 0 {
            self.words.push(1);
        }
    }

    /// Subtracts `other`, which is at most `self`.
    fn subtract(&mut self, other: &Natural) {
        let mut borrow = false;
        for (at, word) in self.words.iter_mut().enumerate() {
            let (less, one) = word.overflowing_sub(other.words.get(at).copied().unwrap_or(0));
            let (less, two) = less.overflowing_sub(u64::from(borrow));
            *word = less;
            borrow = one || two;
        }
        assert!(!borrow, "the subtrahend is at most the number");
        self.trim();
    }

    /// Multiplies by `factor` and divides by `divisor`, without a remainder.
    fn scale(&mut self, factor: u64, divisor: u64, work: &mut Work) {
        let mut carry = 0u128;
        for word in &mut self.words {
            let product = u128::from(*word) * u128::from(factor) + carry;
            *word = product as u64;
            carry = product >> 64;
        }
        work.multiplications += self.words.len() as u64;
        if carry > 0 {
            self.words.push(carry as u64);
        }
        let mut remainder = 0u128;
        for word in self.words.iter_mut().rev() {
            let dividend = remainder << 64 | u128::from(*word);
            *word = (dividend / u128::from(divisor)) as u64;
            remainder = dividend % u128::from(divisor);
        }
        work.divisions += self.words.len() as u64;
        assert_eq!(remainder, 0, "a binomial coefficient is an integer");
        self.trim();
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::random::Random;
    use std::collections::BTreeSet;

    fn subsets(n: u32, k: usize) -> Vec<Vec<u32>> {
        (0u32..1 << n)
            .filter(|mask| mask.count_ones() as usize == k)
            .map(|mask| (0..n).filter(|bit| mask >> bit & 1 == 1).collect())
            .collect()
    }

    fn section(n: usize, members: &[u32]) -> SectionGaps {
        let mut next = 0;
        let gap = |member: &u32| {
            let gap = member - next;
            next = member + 1;
            gap
        };
        SectionGaps { chunks: vec![(n, members.iter().map(gap).collect())] }
    }

    #[test]
    fn the_enumerative_code_has_the_bits_that_its_subsets_need() {
        for n in 1..=12u32 {
            for k in 1..=n as usize {
                let all = subsets(n, k);
                let needed = (0..64).find(|bits| all.len() <= 1usize << bits).unwrap();
                assert_eq!(enumerative(&section(n as usize, &all[0])), needed, "{k} of {n}");

                let ranks: BTreeSet<u64> = all
                    .iter()
                    .map(|members| {
                        let rank = rank(u64::from(n), members);
                        assert_eq!(unrank(u64::from(n), k as u64, &rank).0, *members);
                        rank.words.first().copied().unwrap_or(0)
                    })
                    .collect();
                assert_eq!(
                    ranks,
                    (0..all.len() as u64).collect(),
                    "each subset has its own rank, {k} of {n}"
                );
            }
        }
    }

    #[test]
    fn a_chunk_is_decoded_from_its_rank() {
        let mut random = Random::new(1);
        let mut members = BTreeSet::new();
        while members.len() < 64 {
            members.insert(random.below(4096) as u32);
        }
        let members: Vec<u32> = members.into_iter().collect();
        let rank = rank(4096, &members);
        let bits = enumerative(&section(4096, &members));
        assert_eq!(bits, 472, "7.36 bits for each of 64, rounded up");
        assert!(rank.bits() <= bits);
        let (found, work) = unrank(4096, 64, &rank);
        assert_eq!(found, members);
        assert!(work.divisions > 4096, "{work:?}");
    }

    #[test]
    fn golomb_with_a_power_of_two_equals_rice() {
        for gap in [0, 1, 2, 5, 31, 32, 33, 63, 64, 1000, 4095] {
            for rice in 0..=RICE_MAX {
                assert_eq!(golomb_length(gap, 1 << rice), rice_length(gap, rice), "{gap} by 2^{rice}");
            }
        }
        // Divisor 3: remainders 0, 10, 11.
        assert_eq!([0, 1, 2, 3].map(|gap| golomb_length(gap, 3)), [2, 3, 3, 3]);
    }

    #[test]
    fn more_divisors_or_parameters_never_need_more_bits() {
        let mut random = Random::new(2);
        let gaps = |random: &mut Random, k| (0..k).map(|_| random.below(100) as u32).collect::<Vec<_>>();
        let section = SectionGaps { chunks: (0..5).map(|_| (4096, gaps(&mut random, 40))).collect() };
        assert!(golomb_by_section(&section) <= rice_by_section(&section));
        assert!(rice_by_chunk(&section) <= rice_by_section(&section) + 5 * CHUNK_PARAMETER_BITS);
        assert!(gap_entropy(&section) <= golomb_by_section(&section) as f64);
        assert!((enumerative(&section) as f64) < coin_entropy(&section) + 5.0);
    }
}
