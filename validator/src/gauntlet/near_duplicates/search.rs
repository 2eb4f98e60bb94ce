//! Near-duplicates among thousands of sketches, with the same bits as one pair after the other.
//!
//! Sixteen others stand side by side, and a sketch is multiplied with all of them at once. Each lane adds its terms in
//! the order of [`Sketch::alike`], so every finished product has the reference's bits. The work ends early where
//! Cauchy–Schwarz says that no lane can reach [`ALIKE_MIN`]: what the terms so far sum to, and at most the product of
//! the norms of the rest. Independent work is ruled out after an eighth to a quarter of the terms.

use super::{ALIKE_MIN, NearDuplicate, STEP, SUMS, Sketch, Sketches, cosine, keep_closest};
use kernels::{lanes::LANES, products::add_products};
use protocol::{Digest, Uid, Window};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// A pair is ruled out below this similarity. The margin is for rounding: 2,048 additions of `f64` are off by less
/// than 1e-12 of the norms' product.
const RULED_OUT: f64 = ALIKE_MIN - 1e-9;

/// An earlier contribution, or one of the same window.
type Other<'a> = (Window, Uid, Digest, &'a Sketch);

/// Up to [`LANES`] others, their sums side by side.
struct Block<'a> {
    others: &'a [Other<'a>],
    sums: Vec<[f64; LANES]>,
}

pub(super) fn near_duplicates(sketches: &Sketches, window: Window) -> BTreeMap<Uid, NearDuplicate> {
    let Some(current) = sketches.windows.get(&window) else { return BTreeMap::new() };
    let others: Vec<Other<'_>> = sketches.until(window).collect();
    let blocks: Vec<BTreeMap<Uid, NearDuplicate>> = others
        .par_chunks(LANES)
        .map(|others| {
            let block = Block::new(others);
            let mut found = BTreeMap::new();
            for (uid, (_, sketch)) in current {
                block.compare((window, *uid), sketch, &mut found);
            }
            found
        })
        .collect();
    // In the order of the blocks: among equals the first one stays.
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

    /// Notes the closest of the others but the sketch itself, if it is a near-duplicate.
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

    /// The product with each of the others. `None` once none of them can be a near-duplicate.
    fn products(&self, sketch: &Sketch) -> Option<[f64; LANES]> {
        let mut products = [0.0; LANES];
        let steps = self.sums.chunks_exact(STEP).zip(sketch.sums.chunks_exact(STEP));
        for (step, (rows, sums)) in steps.enumerate() {
            add_products(sums, rows, &mut products);
            let is_ruled_out = |((_, _, _, other), product): (&Other<'_>, &f64)| {
                let norms = sketch.norm * other.norm;
                let product_max = product + sketch.tails[step] * other.tails[step];
                // Without a norm it is similar to none. What is not a number rules nothing out.
                norms.is_nan() || norms <= 0.0 || product_max < RULED_OUT * norms
            };
            if self.others.iter().zip(&products).all(is_ruled_out) {
                return None;
            }
        }
        Some(products)
    }
}
