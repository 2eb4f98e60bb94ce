//! Finds near-duplicates among thousands of sketches, bit-identical to [`Sketches::near_duplicates`].
//!
//! A sketch is multiplied with a block of sixteen others at once. Each lane adds its terms in the order of
//! [`Sketch::alike`], so every complete product has the reference's bits. The work ends early if, by Cauchy–Schwarz,
//! no lane can reach [`ALIKE_MIN`]: the bound is the sum so far plus the product of the norms of the remaining terms.
//! Independent work is excluded after an eighth to a quarter of the terms.

use gauntlet::near_duplicates::{
    ALIKE_MIN, NearDuplicate, STEP, SUMS, Sketch, Sketches, cosine, keep_closest,
};
use kernels::{lanes::LANES, products::add_products};
use protocol::{Digest, Uid, Window};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Similarity below which a pair is excluded. The margin covers rounding: 2,048 additions of `f64` are off by less
/// than 1e-12 of the norms' product.
const RULED_OUT: f64 = ALIKE_MIN - 1e-9;

/// An earlier contribution, or one of the same window.
type Other<'a> = (Window, Uid, Digest, &'a Sketch);

/// Up to [`LANES`] others with interleaved sums.
struct Block<'a> {
    others: &'a [Other<'a>],
    sums: Vec<[f64; LANES]>,
}

/// Returns the near-duplicate of each seat of `window` that has one, like [`Sketches::near_duplicates`]. Uses all
/// threads of the pool; the result does not depend on their number.
pub fn near_duplicates(sketches: &Sketches, window: Window) -> BTreeMap<Uid, NearDuplicate> {
    let others: Vec<Other<'_>> = sketches.until(window).collect();
    let blocks: Vec<BTreeMap<Uid, NearDuplicate>> = others
        .par_chunks(LANES)
        .map(|others| {
            let block = Block::new(others);
            let mut found = BTreeMap::new();
            for (uid, sketch) in sketches.of_window(window) {
                block.compare((window, uid), sketch, &mut found);
            }
            found
        })
        .collect();
    // In the order of the blocks: among equals the first one is kept.
    let mut found = BTreeMap::new();
    for (uid, candidate) in blocks.into_iter().flatten() {
        keep_closest(&mut found, uid, candidate);
    }
    found
}

impl<'a> Block<'a> {
    fn new(others: &'a [Other<'a>]) -> Block<'a> {
        let mut sums = vec![[0.0; LANES]; SUMS];
        for (lane, (_, _, _, sketch)) in others.iter().enumerate() {
            for (row, sum) in sums.iter_mut().zip(&sketch.sums) {
                row[lane] = f64::from(*sum);
            }
        }
        Block { others, sums }
    }

    /// Records the closest of the others except the sketch itself, if it is a near-duplicate.
    fn compare(&self, own: (Window, Uid), sketch: &Sketch, found: &mut BTreeMap<Uid, NearDuplicate>) {
        let Some(products) = self.products(sketch) else { return };
        for ((window, uid, digest, other), product) in self.others.iter().zip(products) {
            if (*window, *uid) != own {
                let alike = cosine(product, sketch.norm * other.norm);
                let candidate = NearDuplicate { uid: *uid, window: *window, digest: *digest, alike };
                keep_closest(found, own.1, candidate);
            }
        }
    }

    /// Returns the product with each of the others; `None` as soon as none of them can be a near-duplicate.
    fn products(&self, sketch: &Sketch) -> Option<[f64; LANES]> {
        let mut products = [0.0; LANES];
        let steps = self.sums.chunks_exact(STEP).zip(sketch.sums.chunks_exact(STEP));
        for (step, (rows, sums)) in steps.enumerate() {
            add_products(sums, rows, &mut products);
            let is_ruled_out = |((_, _, _, other), product): (&Other<'_>, &f64)| {
                let norms = sketch.norm * other.norm;
                let product_max = product + sketch.tails[step] * other.tails[step];
                // A zero norm is similar to none. NaN excludes nothing.
                norms.is_nan() || norms <= 0.0 || product_max < RULED_OUT * norms
            };
            if self.others.iter().zip(&products).all(is_ruled_out) {
                return None;
            }
        }
        Some(products)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The finaliser of SplitMix64.
    fn mix(name: u64) -> u64 {
        let mut mixed = name.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the sums of a sketch: `of` names the work, `kind` is its modification.
    fn sums(of: u64, kind: u8, noise: f64) -> Vec<f64> {
        let random =
            |name: u64, term: usize| (mix(name << 32 | term as u64) >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let own = |term: usize| random(of, term);
        let other = |term: usize| random(of + 1_000, term);
        let term: Box<dyn Fn(usize) -> f64> = match kind {
            // A scaled copy.
            1 => Box::new(|term| 4.0 * own(term)),
            // The opposite.
            2 => Box::new(|term| -own(term)),
            // A near-copy at the threshold.
            3 => Box::new(|term| {
                ALIKE_MIN * own(term) + (1.0 - ALIKE_MIN * ALIKE_MIN).sqrt() * other(term) + noise
            }),
            // Nothing that the first steps could detect.
            4 => Box::new(|term| if term < SUMS - STEP { 0.0 } else { own(term) }),
            5 => Box::new(|_| 0.0),
            6 => Box::new(|term| if term == (of % 64) as usize * 32 { f64::NAN } else { own(term) }),
            7 => Box::new(|term| if term == (of % 64) as usize * 32 { f64::MAX } else { own(term) }),
            // Values whose squares underflow.
            8 => Box::new(|term| 1e-40 * own(term)),
            _ => Box::new(own),
        };
        (0..SUMS).map(term).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_search_finds_what_one_pair_after_the_other_finds(
            seats in prop::collection::vec((0u32..5, 0u16..40, 0u64..6, 0u8..10, -1e-3..1e-3f64), 0..60),
        ) {
            let mut sketches = Sketches::default();
            let (mut seats, last) = (seats, Window(4));
            // Windows come in order.
            seats.sort_by_key(|(window, ..)| *window);
            for (window, uid, of, kind, noise) in seats {
                let digest = Digest::of(&[uid.to_le_bytes(), (window as u16).to_le_bytes()].concat());
                sketches.add(Window(window), Uid(uid), digest, Sketch::from_sums(sums(of, kind, noise)));
            }
            for window in (0..=last.0).map(Window) {
                let bits = |found: BTreeMap<Uid, NearDuplicate>| -> Vec<_> {
                    found.into_iter().map(|(uid, near)| (uid, near, near.alike.to_bits())).collect()
                };
                let found = bits(near_duplicates(&sketches, window));
                prop_assert!(found.iter().all(|(_, near, _)| (ALIKE_MIN..=1.0).contains(&near.alike)));
                prop_assert_eq!(found, bits(sketches.near_duplicates(window)));
            }
        }
    }
}
