//! The running norm of each tensor: the usual norm of contributions in the last merged windows (PROT-17).
//!
//! Within one window only the median shows the usual norm, and a majority by weight may choose it. The
//! running norm is part of the agreed state and limits the factor by which such a majority moves the norm,
//! in either direction.

use crate::Digest;
use alloc::vec::Vec;
use codec::{Decode, Encode};

/// Merged windows whose norms are kept.
pub const WINDOWS_KEPT: usize = 32;

/// Windows without which a tensor has no running norm.
pub const WINDOWS_MIN: usize = 8;

/// Maximum factor between a window's reference norm and the running norm. A median lags by half of
/// [`WINDOWS_KEPT`]: if honest norms change by more in that time, the reference norm follows them later.
pub const FACTOR_MAX: f64 = 4.0;

/// The reference norms of the last merged windows, per window and tensor, oldest first. At most [`WINDOWS_KEPT`].
#[derive(Clone, Debug, Default, PartialEq, Encode)]
pub struct RunningNorms {
    windows: Vec<Vec<f64>>,
}

impl Decode for RunningNorms {
    /// Refuses more windows than are kept, before it allocates memory for them.
    fn decode<I: codec::Input>(input: &mut I) -> Result<RunningNorms, codec::Error> {
        let windows = codec::Compact::<u32>::decode(input)?.0 as usize;
        if WINDOWS_KEPT < windows {
            return Err("norms of more windows than are kept".into());
        }
        let windows = (0..windows).map(|_| Vec::decode(input)).collect::<Result<_, _>>()?;
        Ok(RunningNorms { windows })
    }
}

impl RunningNorms {
    /// Returns the running norm of a tensor: the lower median of the kept norms. `None` if there are too
    /// few, or if it is 0.
    pub fn of(&self, tensor: usize) -> Option<f64> {
        if self.windows.len() < WINDOWS_MIN {
            return None;
        }
        let mut norms: Vec<f64> =
            self.windows.iter().filter_map(|norms| norms.get(tensor)).copied().collect();
        norms.sort_unstable_by(f64::total_cmp);
        let lower = norms.len().checked_sub(1)? / 2;
        norms.get(lower).copied().filter(|norm| 0.0 < *norm)
    }

    /// Returns the norm to which larger ones of a tensor are scaled down: the window's `median`, kept
    /// within [`FACTOR_MAX`] of the running norm.
    pub fn reference(&self, tensor: usize, median: f64) -> f64 {
        match self.of(tensor) {
            Some(norm) => median.clamp(norm / FACTOR_MAX, norm * FACTOR_MAX),
            None => median,
        }
    }

    /// Adds the reference norms of a merged window, one per tensor, and drops the oldest. An empty list
    /// changes nothing.
    pub fn push(&mut self, norms: Vec<f64>) {
        if norms.is_empty() {
            return;
        }
        let surplus = (self.windows.len() + 1).saturating_sub(WINDOWS_KEPT);
        self.windows.drain(..surplus);
        self.windows.push(norms);
    }

    /// Returns the digest of the norms, a part of the state root (PROT-20).
    pub fn root(&self) -> Digest {
        Digest::of_parts(&[b"mettle/1/norms\0", &self.encode()])
    }

    /// Returns whether these can be the norms of a model with this many tensors.
    pub fn fit(&self, tensors: usize) -> bool {
        self.windows.len() <= WINDOWS_KEPT
            && self.windows.iter().all(|norms| norms.len() == tensors && are_norms(norms))
    }

    /// Returns the maximum encoded length of the norms of a model with this many tensors, in bytes.
    pub fn largest(tensors: usize) -> usize {
        let window = tensors.saturating_mul(8).saturating_add(COUNT_BYTES);
        window.saturating_mul(WINDOWS_KEPT).saturating_add(COUNT_BYTES)
    }
}

/// Maximum bytes of a SCALE vector's length.
const COUNT_BYTES: usize = 5;

/// Returns whether all values are finite and not negative.
pub(crate) fn are_norms(norms: &[f64]) -> bool {
    norms.iter().all(|norm| norm.is_finite() && norm.is_sign_positive())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn norms(windows: impl IntoIterator<Item = f64>) -> RunningNorms {
        let mut norms = RunningNorms::default();
        windows.into_iter().for_each(|norm| norms.push(vec![norm, 0.0]));
        norms
    }

    #[test]
    fn there_is_a_running_norm_after_eight_windows() {
        assert_eq!(norms([2.0; 7]).of(0), None);
        assert_eq!(norms([2.0; 7]).reference(0, 1e9), 1e9);
        assert_eq!(norms([2.0; 8]).of(0), Some(2.0));
        assert_eq!(norms([2.0; 8]).of(1), None, "a tensor that never had a norm has no usual one");
        assert_eq!(norms([2.0; 8]).of(2), None, "there is no such tensor");
    }

    #[test]
    fn norms_of_more_windows_than_are_kept_are_not_decoded() {
        let kept = norms([2.0; WINDOWS_KEPT]);
        assert_eq!(RunningNorms::decode(&mut &kept.encode()[..]), Ok(kept));
        let many = vec![Vec::<f64>::new(); WINDOWS_KEPT + 1].encode();
        assert!(RunningNorms::decode(&mut &many[..]).is_err());
    }

    #[test]
    fn the_reference_is_the_median_within_a_factor_of_four() {
        let norms = norms([2.0; 8]);
        for (median, expected) in [(0.0, 0.5), (0.6, 0.6), (2.0, 2.0), (7.9, 7.9), (7500.0, 8.0)] {
            assert_eq!(norms.reference(0, median), expected);
        }
        assert_eq!(norms.reference(1, 7500.0), 7500.0);
    }

    #[test]
    fn half_of_the_kept_windows_does_not_move_the_running_norm_upwards() {
        let mut norms = norms((0..100).map(|_| 1.0));
        for _ in 0..WINDOWS_KEPT / 2 {
            norms.push(vec![norms.reference(0, 1e9), 0.0]);
            assert_eq!(norms.of(0), Some(1.0));
        }
        // A majority of all windows moves it by the factor, and no further.
        for _ in 0..WINDOWS_KEPT / 2 - 1 {
            norms.push(vec![norms.reference(0, 1e9), 0.0]);
        }
        assert_eq!(norms.of(0), Some(FACTOR_MAX));
    }

    #[test]
    fn the_running_norm_follows_work_that_becomes_quieter() {
        let mut norms = norms([1.0; WINDOWS_KEPT]);
        for _ in 0..3 * WINDOWS_KEPT {
            norms.push(vec![norms.reference(0, 0.02), 0.0]);
        }
        assert_eq!(norms.of(0), Some(0.02));
    }

    #[test]
    fn the_root_names_every_norm_and_their_order() {
        let roots = [norms([]), norms([1.0]), norms([1.0, 2.0]), norms([2.0, 1.0]), norms([1.0, -0.0])];
        for (index, one) in roots.iter().enumerate() {
            assert!(roots[..index].iter().all(|other| other.root() != one.root()));
        }
        assert_eq!(norms((0..40).map(f64::from)), norms((8..40).map(f64::from)), "the oldest are forgotten");
    }

    #[test]
    fn norms_of_another_model_do_not_fit() {
        assert!(RunningNorms::default().fit(2) && norms([1.0; WINDOWS_KEPT]).fit(2));
        assert!(!norms([1.0]).fit(3) && !norms([f64::NAN]).fit(2) && !norms([-1.0]).fit(2));
        let windows = vec![vec![1.0, 2.0]; WINDOWS_KEPT + 1];
        assert!(!RunningNorms { windows }.fit(2));
        assert!(norms([1.0; WINDOWS_KEPT]).encode().len() <= RunningNorms::largest(2));
    }
}
