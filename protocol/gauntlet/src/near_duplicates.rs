//! Contributions that are more similar than independent work can be: copies, replays, and two seats with one
//! training.
//!
//! Every contribution, measured or not, gets a [`Sketch`]: a fixed number of sums over its entries, from which the
//! similarity of any two follows. It is compared with all contributions of the same window and of the last ones,
//! including its own seat's.
//!
//! **Similarity proves nothing against a seat.** One of the two may be the victim of a leak. The own-data gap
//! (PROT-24) and the earlier window distinguish them ([`is_copied`]). A seat with own work is never penalised for the
//! contributions of others.
//!
//! A window of 1,000 contributions has four million pairs of 2,048 terms. [`Sketches::near_duplicates`] compares one
//! pair after the other and is the reference of a faster search with the same bits (`daemon/measure`).

use super::exact;
use protocol::{Digest, Uid, Window, contribution::Sparse};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// Number of sums in a sketch. The similarity of two independent contributions is 0 ± 1/√2048, that is 0.022.
pub const SUMS: usize = 2048;
/// From this similarity on, two contributions are near-duplicates. `docs/gauntlet.md` has measurements of independent
/// work.
pub const ALIKE_MIN: f64 = 0.9;
/// Earlier windows that a window is compared with.
pub const WINDOWS_KEPT: u32 = 3;

/// Interval of a sketch's tail norms, in sums.
pub const STEP: usize = 128;

/// A summary of a contribution, for comparison. Each tensor has the same weight: scaling all values, or one tensor's,
/// hides nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Sketch {
    /// [`SUMS`] values.
    pub sums: Vec<f32>,
    /// The norm of all sums.
    pub norm: f64,
    /// The norm of the sums that follow the first [`STEP`], the first two times `STEP`, and so on.
    pub tails: [f64; SUMS / STEP],
}

/// The contribution that another one is most similar to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NearDuplicate {
    pub uid: Uid,
    /// The window judged, or an earlier one.
    pub window: Window,
    /// The digest of its bytes.
    pub digest: Digest,
    /// The similarity: a cosine from [`ALIKE_MIN`] to 1.
    #[serde(with = "exact")]
    pub alike: f64,
}

/// The sketches of a window and of [`WINDOWS_KEPT`] windows before it: 8 KiB per seat and window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketches {
    windows: BTreeMap<Window, BTreeMap<Uid, (Digest, Arc<Sketch>)>>,
}

impl Sketch {
    /// Sums the entries in `f64` and in order, so that every node gets the same.
    pub fn of(update: &Sparse) -> Sketch {
        let mut sums = vec![0.0f64; SUMS];
        for (index, tensor) in update.tensors.iter().enumerate() {
            if tensor.square_norm.is_nan() || tensor.square_norm <= 0.0 || tensor.positions.is_empty() {
                continue;
            }
            // Scales the tensor to a mean square of one.
            let scale = libm::sqrt(tensor.positions.len() as f64 / tensor.square_norm);
            for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                let hash = mix((index as u64) << 32 | u64::from(*position));
                let signed = if hash >> 63 == 0 { f64::from(*value) } else { -f64::from(*value) };
                sums[(hash % SUMS as u64) as usize] += signed * scale;
            }
        }
        Sketch::from_sums(sums)
    }

    /// A sketch of these sums, [`SUMS`] of them.
    pub fn from_sums(sums: Vec<f64>) -> Sketch {
        let norm = libm::sqrt(sums.iter().map(|sum| sum * sum).sum());
        let sums: Vec<f32> = sums.into_iter().map(|sum| sum as f32).collect();
        let (mut tails, mut squares) = ([0.0; SUMS / STEP], 0.0);
        for (tail, step) in tails.iter_mut().zip(sums.chunks_exact(STEP)).rev() {
            *tail = libm::sqrt(squares);
            squares += step.iter().map(|sum| f64::from(*sum) * f64::from(*sum)).sum::<f64>();
        }
        Sketch { sums, norm, tails }
    }

    /// The similarity, which estimates the cosine of the two contributions: 1 for the same work at any scale, 0 for
    /// independent work.
    pub fn alike(&self, other: &Sketch) -> f64 {
        let product = self.sums.iter().zip(&other.sums).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        cosine(product, self.norm * other.norm)
    }
}

impl Sketches {
    /// Adds the sketch of a contribution, and drops windows that are too old to be compared with it.
    pub fn add(&mut self, window: Window, uid: Uid, digest: Digest, sketch: impl Into<Arc<Sketch>>) {
        self.windows.retain(|kept, _| window.0.saturating_sub(kept.0) <= WINDOWS_KEPT);
        self.windows.entry(window).or_default().insert(uid, (digest, sketch.into()));
    }

    /// The near-duplicate of each seat of `window` that has one: the most similar; among equals the earliest, then
    /// the lowest uid.
    pub fn near_duplicates(&self, window: Window) -> BTreeMap<Uid, NearDuplicate> {
        let mut found = BTreeMap::new();
        for (uid, sketch) in self.of_window(window) {
            for (kept, other, digest, theirs) in self.until(window) {
                if (kept, other) != (window, uid) {
                    let alike = sketch.alike(theirs);
                    keep_closest(&mut found, uid, NearDuplicate { uid: other, window: kept, digest, alike });
                }
            }
        }
        found
    }

    /// Windows, seats and digests of the contributions.
    pub fn contributions(&self) -> impl Iterator<Item = (Window, Uid, Digest)> {
        self.until(Window(u32::MAX)).map(|(window, uid, digest, _)| (window, uid, digest))
    }

    /// The sketches of `window`, in uid order.
    pub fn of_window(&self, window: Window) -> impl Iterator<Item = (Uid, &Sketch)> {
        self.windows.get(&window).into_iter().flatten().map(|(uid, (_, sketch))| (*uid, &**sketch))
    }

    /// The sketches of `window` and of earlier ones, the earliest first, in uid order.
    pub fn until(&self, window: Window) -> impl Iterator<Item = (Window, Uid, Digest, &Sketch)> {
        self.windows.range(..=window).flat_map(|(window, seats)| {
            seats.iter().map(|(uid, (digest, sketch))| (*window, *uid, *digest, &**sketch))
        })
    }
}

/// Notes `candidate` for `uid` if it is similar enough, and more so than those noted before.
pub fn keep_closest(found: &mut BTreeMap<Uid, NearDuplicate>, uid: Uid, candidate: NearDuplicate) {
    if ALIKE_MIN <= candidate.alike && found.get(&uid).is_none_or(|best| best.alike < candidate.alike) {
        found.insert(uid, candidate);
    }
}

/// The similarity of two sketches by the product of their sums and that of their norms. 0 if one has no norm.
pub fn cosine(product: f64, norms: f64) -> f64 {
    if norms.is_nan() || norms <= 0.0 {
        return 0.0;
    }
    (product / norms).clamp(-1.0, 1.0)
}

/// Returns whether a near-duplicate counts as a copy or a replay. `gap` is its own-data gap in standard errors.
///
/// - **The other one is of an earlier window:** work on data assigned later cannot resemble it. It is a copy unless
///   its own-data gap is at least one error.
/// - **The other one is of the same window:** no seat can read another's bytes in time, so the seats share work, or
///   one leaked. It is a copy if its gap is below minus one error; own work was observed at +3.7 errors and more. The
///   own-data score decides the rest over time.
///
/// Without a gap it does not count as a copy.
pub fn is_copied(near_duplicate: &NearDuplicate, window: Window, gap: Option<f64>) -> bool {
    let least = if near_duplicate.window < window { 1.0 } else { -1.0 };
    gap.is_some_and(|gap| gap < least)
}

/// Computes the finaliser of SplitMix64.
fn mix(name: u64) -> u64 {
    let mut mixed = name.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::contribution::SparseTensor;

    /// Pseudo-random entries, independent for each `name`.
    fn work(name: u64, entries: u32) -> Sparse {
        let tensor = |tensor: u64| {
            let mut positions: Vec<u32> = (0..entries)
                .map(|i| (mix(name << 40 | tensor << 32 | u64::from(i)) % 100_000) as u32)
                .collect();
            positions.sort_unstable();
            positions.dedup();
            let values: Vec<f32> = positions
                .iter()
                .map(|p| if mix(name ^ u64::from(*p)) & 1 == 0 { 0.5 } else { -1.5 })
                .collect();
            let square_norm = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            SparseTensor { positions, values, square_norm }
        };
        Sparse { tensors: (0..3).map(tensor).collect() }
    }

    fn scaled(mut update: Sparse, by: f32) -> Sparse {
        for tensor in &mut update.tensors {
            tensor.values.iter_mut().for_each(|value| *value *= by);
            tensor.square_norm *= f64::from(by) * f64::from(by);
        }
        update
    }

    fn sketches(entries: &[(u32, u16, u64)]) -> Sketches {
        let mut sketches = Sketches::default();
        for (window, uid, name) in entries {
            let digest = Digest::of(&name.to_le_bytes());
            sketches.add(Window(*window), Uid(*uid), digest, Sketch::of(&work(*name, 2000)));
        }
        sketches
    }

    #[test]
    fn a_scaled_copy_is_similar_and_independent_work_is_not() {
        let one = Sketch::of(&work(1, 3000));
        assert!((one.alike(&one) - 1.0).abs() < 1e-6);
        assert!(one.alike(&Sketch::of(&scaled(work(1, 3000), 40.0))) > 0.999);
        assert!(
            one.alike(&Sketch::of(&scaled(work(1, 3000), -1.0))) < -0.999,
            "with the opposite sign it is the opposite"
        );
        for name in 2..30 {
            let alike = one.alike(&Sketch::of(&work(name, 3000)));
            assert!(alike.abs() < 0.12, "{alike}");
        }
    }

    #[test]
    fn values_count_as_well_as_indices() {
        let (one, mut other) = (work(1, 3000), work(1, 3000));
        for tensor in &mut other.tensors {
            for (place, value) in tensor.values.iter_mut().enumerate() {
                *value *= if place % 2 == 0 { -1.0 } else { 1.0 };
            }
        }
        let alike = Sketch::of(&one).alike(&Sketch::of(&other));
        assert!(alike.abs() < 0.15, "{alike}");
    }

    #[test]
    fn a_copy_with_a_tenth_of_its_entries_changed_is_found() {
        let (one, mut other) = (work(1, 3000), work(1, 3000));
        for tensor in &mut other.tensors {
            for value in tensor.values.iter_mut().step_by(20) {
                *value = -*value;
            }
        }
        assert!(Sketch::of(&one).alike(&Sketch::of(&other)) > ALIKE_MIN - 0.03);
    }

    #[test]
    fn an_empty_contribution_is_similar_to_none() {
        let nothing = Sketch::of(&Sparse { tensors: vec![] });
        assert_eq!(nothing.alike(&nothing), 0.0);
        assert_eq!(nothing.alike(&Sketch::of(&work(1, 10))), 0.0);
    }

    #[test]
    fn near_duplicates_of_one_window_find_each_other() {
        let found = sketches(&[(5, 1, 10), (5, 2, 11), (5, 3, 10)]).near_duplicates(Window(5));
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [Uid(1), Uid(3)]);
        assert_eq!((found[&Uid(1)].uid, found[&Uid(3)].uid), (Uid(3), Uid(1)));
        assert_eq!(found[&Uid(1)].window, Window(5));
    }

    #[test]
    fn only_the_later_of_two_windows_has_a_near_duplicate() {
        let kept = sketches(&[(4, 1, 10), (5, 1, 12), (5, 2, 10), (5, 3, 10)]);
        assert!(kept.near_duplicates(Window(4)).is_empty());
        let found = kept.near_duplicates(Window(5));
        assert!(!found.contains_key(&Uid(1)), "the first one has none");
        for uid in [2, 3] {
            assert_eq!((found[&Uid(uid)].uid, found[&Uid(uid)].window), (Uid(1), Window(4)));
        }
    }

    #[test]
    fn a_seats_own_old_work_is_a_near_duplicate() {
        let found = sketches(&[(4, 1, 10), (6, 1, 10)]).near_duplicates(Window(6));
        assert_eq!((found[&Uid(1)].uid, found[&Uid(1)].window), (Uid(1), Window(4)));
    }

    #[test]
    fn only_the_last_windows_are_kept() {
        let kept = sketches(&[(1, 1, 10), (2, 1, 11), (3, 1, 12), (4, 1, 13), (5, 2, 10), (5, 3, 11)]);
        assert_eq!(kept.windows.len(), 4);
        let found = kept.near_duplicates(Window(5));
        assert!(!found.contains_key(&Uid(2)), "window 1 is dropped");
        assert_eq!(found[&Uid(3)].window, Window(2));
        assert!(kept.near_duplicates(Window(9)).is_empty());
    }

    #[test]
    fn the_rest_of_the_terms_is_as_long_as_the_tails_say() {
        let sketch = Sketch::of(&work(3, 2000));
        for (step, tail) in sketch.tails.iter().enumerate() {
            let rest = &sketch.sums[(step + 1) * STEP..];
            let norm = rest.iter().map(|sum| f64::from(*sum) * f64::from(*sum)).sum::<f64>().sqrt();
            assert!((tail - norm).abs() <= 1e-12 * norm, "{step}: {tail} {norm}");
        }
        assert_eq!(sketch.tails[SUMS / STEP - 1], 0.0);
    }
}
