//! The parameters that a run shares. They are read from the chain, never from a local file: two parties that differ
//! in one of them are in two different runs.

use crate::{Window, ensure, identity::Role, probe, window::Schedule};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use core::ops::Range;
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// Values in a full chunk: the unit in which entries are selected (PROT-7).
pub const CHUNK_VALUES: usize = 4096;

/// Maximum unbonding time of a run, in windows.
pub const UNBONDING_WINDOWS_MAX: u32 = 100_000;

/// Maximum `probe_tolerance` of a run, in millionths of a nat per token: a larger one would accept guesses.
pub const PROBE_TOLERANCE_MAX: u32 = 1_000;

/// Minimum `probe_tolerance`: two machines differ by a millionth, and rounding adds another.
pub const PROBE_TOLERANCE_MIN: u32 = 10;

/// Maximum length of an epoch, in windows. Receipts become public up to two windows after the epoch, and an audit
/// needs contributions, which are kept for 64 windows.
pub const EPOCH_WINDOWS_MAX: u32 = 48;

/// Minimum `min_contributions` of a run: a median of fewer norms is decided by its own members (PROT-16, PROT-17).
pub const MIN_CONTRIBUTIONS: u16 = 4;

/// The parameters of a run that cannot change once it exists: those that models are computed with, and the limits of
/// its terms. The lineage begins with them (PROT-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct RunParams {
    pub schedule: Schedule,
    /// `E`: windows per epoch. Weights are posted and pay is shared once per epoch (PROT-30).
    pub epoch_windows: u32,
    /// Windows at the beginning of an epoch in which validators reveal the last epoch's weight votes; at most
    /// `epoch_windows` (PROT-30).
    pub reveal_windows: u32,
    /// Blocks after the deadline in which a hidden attestation or vote is revealed; 0 if both are public when posted
    /// (PROT-30).
    pub hidden_blocks: u32,
    /// `n`: training sequences assigned to each seat in a window (PROT-5).
    pub sequences_per_seat: u32,
    /// `ρ` of a contribution (PROT-7).
    pub density: Density,
    /// `ρ` of the merged update (PROT-18).
    pub merge_density: Density,
    pub merge_rule: MergeRule,
    /// Factor of a miner's error-feedback buffer per window (PROT-10).
    pub error_feedback_decay: F32Bits,
    /// `α`: the outer step, `θ ← θ − α·u` (PROT-18).
    pub outer_rate: F32Bits,
    /// `c`: contributions are judged at `c·α` (PROT-22).
    pub evaluation_fraction: F32Bits,
    /// `K`: sequences of each kind on which a contribution is judged (PROT-22).
    pub evaluation_sequences: u32,
    /// Maximum difference between a validator's loss and the one that most stake measured, in millionths of a nat per
    /// token (PROT-30).
    pub probe_tolerance: u32,
    /// `E_max`: maximum wait of a seat for its evaluation, in windows (PROT-28).
    pub evaluation_wait_max: u32,
    /// `G`: places in the merge, without the reserve for newcomers (PROT-16).
    pub places: u16,
    /// Further places, for seats within `newcomer_windows` of their registration (PROT-16).
    pub reserve_places: u16,
    pub newcomer_windows: u32,
    /// Minimum of selected contributions; with fewer the window is void. At most `reserve_places`, and at least
    /// [`MIN_CONTRIBUTIONS`], or 1 in a localnet (PROT-16).
    pub min_contributions: u16,
    /// Windows between two votes on the state root (PROT-20).
    pub checkpoint_windows: u32,
    /// True if endpoints may have private addresses: only for a network on one machine (PROT-13).
    pub localnet: bool,
    #[serde(default)]
    pub limits: TermsLimits,
}

/// Upper bounds of a run's terms of the same names, which its owner cannot exceed (PROT-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TermsLimits {
    /// Maximum of `shares.owner`.
    pub owner_share: Permille,
    pub emission_per_epoch: u128,
    pub equivocation_slash: Permille,
    pub unbonding_windows: u32,
    pub validator_stake_min: u128,
    pub miner_stake_min: u128,
    pub seat_price_min: u128,
}

/// The parameters of a run that no model depends on: seats, stake and pay. The run's owner may change them within the
/// run's [`TermsLimits`]. A change takes effect at the beginning of an epoch, so that the terms during the work also
/// decide its pay; see [`RunParams::terms_hold_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Terms {
    /// `V`: maximum number of validators in the active set (PROT-3).
    pub active_set_max: u16,
    /// `M`: windows without an attestation after which a validator leaves the active set, until it attests again
    /// (PROT-3).
    pub absence_windows: u32,
    /// `q_min`: the active set's share of all bonded validator stake under which the run pauses (PROT-3).
    pub quorum: Permille,
    /// Minimum own stake of a validator, without nominations.
    pub validator_stake_min: u128,
    /// Minimum stake of a miner.
    pub miner_stake_min: u128,
    /// Maximum number of miners' seats (PROT-29).
    pub miner_seats_max: u16,
    /// Maximum number of validators' seats (PROT-29).
    pub validator_seats_max: u16,
    /// Windows after its registration in which a seat cannot be replaced (PROT-29).
    pub immunity_windows: u32,
    /// Windows for which unstaked tokens stay locked and can be slashed (PROT-29).
    pub unbonding_windows: u32,
    /// The lowest price of a seat; burnt (PROT-29).
    pub seat_price_min: u128,
    /// Share of a validator's stake that a proven equivocation costs (PROT-21).
    pub equivocation_slash: Permille,
    /// Pay of each epoch out of the treasury, if it holds as much (PROT-32).
    pub emission_per_epoch: u128,
    /// Epochs between two halvings of the emission; 0 if it never halves (PROT-32).
    pub emission_halving_epochs: u32,
    pub shares: PayShares,
}

/// Lower bounds that a chain sets for every run: free calls and scheduled tasks cost the chain time, which a seat
/// pays for by its stake and its price (PROT-33). A chain fixes its floors in the genesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Floors {
    /// Blocks per window.
    pub blocks_per_window: u32,
    pub validator_stake_min: u128,
    pub miner_stake_min: u128,
    pub seat_price_min: u128,
}

/// Number of values kept of a full chunk's 4096. A chunk of `len` values keeps `⌈len · ρ⌉`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Density(pub u16);

/// Divisor of the sum at a coordinate (PROT-17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeRule {
    /// The number of contributions that sent the coordinate.
    MeanOverHits,
    /// The number of contributions.
    MeanOverAll,
}

/// An `f32` as its bits: exact in storage, and comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(from = "f32", into = "f32")]
pub struct F32Bits(pub u32);

/// Thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Permille(pub u16);

/// Shares of an epoch's pay. The four add up to 1000 (PROT-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct PayShares {
    pub miners: Permille,
    pub validators: Permille,
    pub owner: Permille,
    pub burn: Permille,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    #[error("deadlines must rise: 0 < commit_by < reveal_by < attest_by < vote_by < blocks_per_window")]
    Schedule,
    #[error("{name} must be above zero")]
    Zero { name: &'static str },
    #[error("a density is from 1 to 4096 values in 4096")]
    Density,
    #[error("{name} must be finite and in (0, {max}]")]
    Rate { name: &'static str, max: u8 },
    #[error("min_contributions must be at most reserve_places, and reserve_places at most the places in all")]
    Places,
    #[error("min_contributions must be at least {MIN_CONTRIBUTIONS}, except in a localnet")]
    MinContributions,
    #[error("epoch_windows is at most {EPOCH_WINDOWS_MAX}")]
    Epoch,
    #[error("probe_tolerance is from {PROBE_TOLERANCE_MIN} to {PROBE_TOLERANCE_MAX} millionths of a nat")]
    ProbeTolerance,
    #[error("the quorum is from 1 to 1000 thousandths")]
    Quorum,
    #[error("pay shares must add up to 1000 thousandths")]
    Shares,
    #[error("reveal_windows must be at most epoch_windows")]
    Reveal,
    #[error("hidden attestations must be revealed before vote_by, and hidden votes before the window ends")]
    Hidden,
    #[error("the slash for equivocation is at most 1000 thousandths")]
    Slash,
    #[error("stake may stay held for at most {UNBONDING_WINDOWS_MAX} windows")]
    Unbonding,
    #[error("shares.owner is above the limit of this run")]
    OwnerShareLimit,
    #[error("emission_per_epoch is above the limit of this run")]
    EmissionLimit,
    #[error("equivocation_slash is above the limit of this run")]
    SlashLimit,
    #[error("unbonding_windows is above the limit of this run")]
    UnbondingLimit,
    #[error("a minimum stake is above the limit of this run")]
    StakeLimit,
    #[error("seat_price_min is above the limit of this run")]
    PriceLimit,
}

impl RunParams {
    /// Checks every bound that no later rule checks again.
    ///
    /// # Errors
    /// [`ParamsError`] for the first parameter that is out of bounds.
    pub fn validate(&self) -> Result<(), ParamsError> {
        ensure!(self.schedule.is_valid(), ParamsError::Schedule);
        for (name, value) in [
            ("epoch_windows", self.epoch_windows),
            ("reveal_windows", self.reveal_windows),
            ("sequences_per_seat", self.sequences_per_seat),
            ("evaluation_sequences", self.evaluation_sequences),
            ("evaluation_wait_max", self.evaluation_wait_max),
            ("places", self.places.into()),
            ("min_contributions", self.min_contributions.into()),
            ("checkpoint_windows", self.checkpoint_windows),
        ] {
            ensure!(value != 0, ParamsError::Zero { name });
        }
        for density in [self.density, self.merge_density] {
            ensure!((1..=CHUNK_VALUES).contains(&usize::from(density.0)), ParamsError::Density);
        }
        for (name, bits, max) in [
            ("error_feedback_decay", self.error_feedback_decay, 1),
            ("outer_rate", self.outer_rate, 10),
            ("evaluation_fraction", self.evaluation_fraction, 1),
        ] {
            let value = bits.get();
            ensure!(
                value.is_finite() && 0.0 < value && value <= f32::from(max),
                ParamsError::Rate { name, max }
            );
        }
        let places = self.places.checked_add(self.reserve_places);
        ensure!(self.min_contributions <= self.reserve_places && places.is_some(), ParamsError::Places);
        ensure!(self.localnet || MIN_CONTRIBUTIONS <= self.min_contributions, ParamsError::MinContributions);
        ensure!(self.reveal_windows <= self.epoch_windows, ParamsError::Reveal);
        ensure!(self.epoch_windows <= EPOCH_WINDOWS_MAX, ParamsError::Epoch);
        let tolerated = PROBE_TOLERANCE_MIN..=PROBE_TOLERANCE_MAX;
        ensure!(tolerated.contains(&self.probe_tolerance), ParamsError::ProbeTolerance);
        let fits =
            |deadline: u32, end: u32| deadline.checked_add(self.hidden_blocks).is_some_and(|last| last < end);
        let Schedule { attest_by, vote_by, blocks_per_window, .. } = self.schedule;
        ensure!(fits(attest_by, vote_by) && fits(vote_by, blocks_per_window), ParamsError::Hidden);
        Ok(())
    }

    /// Returns the first window with `new` terms if the owner requests them in window `now`; `None` is before the
    /// first window. It is the first of an epoch.
    ///
    /// Terms that worsen the present ones wait `unbonding_windows` and an epoch, so that stake withdrawn within an
    /// epoch of the request has unbonded by then (PROT-29).
    pub fn terms_hold_from(&self, now: Option<Window>, terms: &Terms, new: &Terms) -> Window {
        let opens_next = now.map_or(Window(0), Window::next).0;
        let notice = match terms.worsened_by(new) {
            true => terms.unbonding_windows.saturating_add(self.epoch_windows),
            false => 0,
        };
        let epoch_windows = self.epoch_windows.max(1);
        let epochs = opens_next.saturating_add(notice).div_ceil(epoch_windows);
        Window(epochs.saturating_mul(epoch_windows))
    }

    /// Returns the windows whose measurements validators may have to show after `epoch` (PROT-30): as many as it has
    /// windows, shifted back by [`probe::DELAY_WINDOWS`].
    pub fn probe_windows(&self, epoch: u32) -> Range<u32> {
        let begins =
            |epoch: u32| epoch.saturating_mul(self.epoch_windows).saturating_sub(probe::DELAY_WINDOWS);
        begins(epoch)..begins(epoch.saturating_add(1))
    }

    /// Returns the epoch after which validators may have to show their measurements of `window` (PROT-30). Before its
    /// end, a validator does not disclose them.
    pub fn probe_epoch(&self, window: Window) -> u32 {
        let shifted = window.0.saturating_add(probe::DELAY_WINDOWS);
        shifted.checked_div(self.epoch_windows).unwrap_or(0)
    }

    /// Returns whether validators vote on the state root with `window`'s update: the model after it is a checkpoint
    /// (PROT-20).
    pub fn is_checkpoint(&self, window: crate::Window) -> bool {
        window.next().0.is_multiple_of(self.checkpoint_windows.max(1))
    }

    /// Returns `β = fl(c·α)`, the step at which a contribution is judged (PROT-22).
    pub fn evaluation_rate(&self) -> f32 {
        self.evaluation_fraction.get() * self.outer_rate.get()
    }
}

impl Terms {
    /// Checks every bound that no later rule checks again.
    ///
    /// # Errors
    /// [`ParamsError`] for the first term that is out of bounds.
    pub fn validate(&self) -> Result<(), ParamsError> {
        for (name, value) in [
            ("active_set_max", self.active_set_max.into()),
            ("absence_windows", self.absence_windows),
            ("miner_seats_max", self.miner_seats_max.into()),
            ("validator_seats_max", self.validator_seats_max.into()),
        ] {
            ensure!(value != 0, ParamsError::Zero { name });
        }
        ensure!((1..=1000).contains(&self.quorum.0), ParamsError::Quorum);
        ensure!(self.equivocation_slash.0 <= 1000, ParamsError::Slash);
        ensure!(self.unbonding_windows <= UNBONDING_WINDOWS_MAX, ParamsError::Unbonding);
        let PayShares { miners, validators, owner, burn } = self.shares;
        let total = [miners, validators, owner, burn].iter().map(|share| u32::from(share.0)).sum::<u32>();
        ensure!(total == 1000, ParamsError::Shares);
        Ok(())
    }

    /// Checks the terms against the limits of their run.
    ///
    /// # Errors
    /// [`ParamsError`] for the first term above its limit.
    pub fn check_limits(&self, limits: &TermsLimits) -> Result<(), ParamsError> {
        ensure!(self.shares.owner <= limits.owner_share, ParamsError::OwnerShareLimit);
        ensure!(self.emission_per_epoch <= limits.emission_per_epoch, ParamsError::EmissionLimit);
        ensure!(self.equivocation_slash <= limits.equivocation_slash, ParamsError::SlashLimit);
        ensure!(self.unbonding_windows <= limits.unbonding_windows, ParamsError::UnbondingLimit);
        ensure!(self.validator_stake_min <= limits.validator_stake_min, ParamsError::StakeLimit);
        ensure!(self.miner_stake_min <= limits.miner_stake_min, ParamsError::StakeLimit);
        ensure!(self.seat_price_min <= limits.seat_price_min, ParamsError::PriceLimit);
        Ok(())
    }

    /// Returns whether `new` terms are worse in any respect for holders of seats or for nominators (PROT-29).
    ///
    /// Fewer places, less time and less pay are worse, and so are a higher price, stake or slash. Any change of these
    /// is worse: the quorum (a lower one lets fewer validators decide, a higher one pauses the run earlier), the
    /// unbonding time (a shorter one also shortens the notice of later changes), and the emission (a higher one
    /// empties the treasury sooner).
    pub fn worsened_by(&self, new: &Terms) -> bool {
        let Terms {
            active_set_max,
            absence_windows,
            quorum,
            validator_stake_min,
            miner_stake_min,
            miner_seats_max,
            validator_seats_max,
            immunity_windows,
            unbonding_windows,
            seat_price_min,
            equivocation_slash,
            emission_per_epoch,
            emission_halving_epochs,
            shares: PayShares { miners, validators, owner, burn },
        } = *self;
        let lower = new.active_set_max < active_set_max
            || new.absence_windows < absence_windows
            || new.miner_seats_max < miner_seats_max
            || new.validator_seats_max < validator_seats_max
            || new.immunity_windows < immunity_windows
            || new.shares.miners < miners
            || new.shares.validators < validators;
        let higher = new.validator_stake_min > validator_stake_min
            || new.miner_stake_min > miner_stake_min
            || new.seat_price_min > seat_price_min
            || new.equivocation_slash > equivocation_slash
            || new.shares.owner > owner
            || new.shares.burn > burn;
        let other = new.quorum != quorum
            || new.unbonding_windows != unbonding_windows
            || new.emission_per_epoch != emission_per_epoch
            || new.emission_halving_epochs != emission_halving_epochs;
        lower || higher || other
    }

    /// Returns the minimum stake of a seat of `role`: at registration, and after stake is withdrawn.
    pub fn stake_min(&self, role: Role) -> u128 {
        match role {
            Role::Miner => self.miner_stake_min,
            Role::Validator => self.validator_stake_min,
        }
    }

    /// Returns the maximum number of seats of `role`.
    pub fn seats_max(&self, role: Role) -> u16 {
        match role {
            Role::Miner => self.miner_seats_max,
            Role::Validator => self.validator_seats_max,
        }
    }

    /// Returns the maximum pay of `epoch`, after all halvings (PROT-32).
    pub fn emission(&self, epoch: u32) -> u128 {
        let halvings = epoch.checked_div(self.emission_halving_epochs).unwrap_or(0);
        self.emission_per_epoch.checked_shr(halvings).unwrap_or(0)
    }

    /// Returns the maximum pay of `epoch` if `merged` of its `epoch_windows` windows merged: their part of the
    /// emission, rounded down (PROT-32).
    pub fn earned_emission(&self, epoch: u32, merged: u32, epoch_windows: u32) -> u128 {
        let emission = self.emission(epoch);
        let (windows, merged) = (u128::from(epoch_windows.max(1)), u128::from(merged.min(epoch_windows)));
        // `emission · merged / windows` without overflow: `merged` is at most `windows`.
        emission / windows * merged + emission % windows * merged / windows
    }
}

impl Floors {
    /// The floors of a development chain: any valid run is allowed.
    pub const NONE: Floors =
        Floors { blocks_per_window: 0, validator_stake_min: 0, miner_stake_min: 0, seat_price_min: 0 };
}

/// The stakes and the price of the default terms, and windows of thirty blocks.
impl Default for Floors {
    fn default() -> Floors {
        let Terms { validator_stake_min, miner_stake_min, seat_price_min, .. } = Terms::default();
        Floors { blocks_per_window: 30, validator_stake_min, miner_stake_min, seat_price_min }
    }
}

impl Density {
    /// Returns `⌈len · ρ⌉`: entries kept of a chunk of `len` values (PROT-7). Zero only for an empty chunk.
    pub fn kept(self, len: usize) -> usize {
        (len * usize::from(self.0)).div_ceil(CHUNK_VALUES)
    }
}

impl F32Bits {
    pub fn of(value: f32) -> F32Bits {
        F32Bits(value.to_bits())
    }

    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl From<f32> for F32Bits {
    fn from(value: f32) -> F32Bits {
        F32Bits::of(value)
    }
}

impl From<F32Bits> for f32 {
    fn from(bits: F32Bits) -> f32 {
        bits.get()
    }
}

/// The defaults that PROTOCOL names, with a schedule of 115 blocks. A real run sets its own.
impl Default for RunParams {
    fn default() -> RunParams {
        RunParams {
            schedule: Schedule {
                start: crate::Block(1),
                blocks_per_window: 115,
                commit_by: 80,
                reveal_by: 90,
                attest_by: 98,
                vote_by: 106,
            },
            epoch_windows: 10,
            reveal_windows: 2,
            hidden_blocks: 0,
            sequences_per_seat: 512,
            density: Density(64),
            merge_density: Density(1024),
            merge_rule: MergeRule::MeanOverHits,
            error_feedback_decay: F32Bits::of(0.95),
            // A mean over hits is larger than a mean over all (docs/adr/0008-merge.md).
            outer_rate: F32Bits::of(0.7),
            evaluation_fraction: F32Bits::of(0.2),
            evaluation_sequences: 64,
            // Two hundred times the difference between two machines.
            probe_tolerance: 100,
            evaluation_wait_max: 10,
            places: 20,
            reserve_places: 4,
            newcomer_windows: 20,
            min_contributions: MIN_CONTRIBUTIONS,
            checkpoint_windows: 20,
            localnet: false,
            limits: TermsLimits::default(),
        }
    }
}

/// Enough for any run with terms near the defaults of [`Terms`]. A real run sets its own.
impl Default for TermsLimits {
    fn default() -> TermsLimits {
        TermsLimits {
            owner_share: Permille(200),
            emission_per_epoch: 1_000_000_000_000_000,
            equivocation_slash: Permille(300),
            unbonding_windows: 2_000,
            validator_stake_min: 1_000_000_000_000_000,
            miner_stake_min: 10_000_000_000_000,
            seat_price_min: 1_000_000_000_000,
        }
    }
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            active_set_max: 64,
            absence_windows: 20,
            quorum: Permille(500),
            validator_stake_min: 1_000_000_000_000,
            miner_stake_min: 10_000_000_000,
            miner_seats_max: 192,
            validator_seats_max: 64,
            immunity_windows: 40,
            unbonding_windows: 200,
            seat_price_min: 1_000_000_000,
            equivocation_slash: Permille(100),
            emission_per_epoch: 1_000_000_000_000,
            emission_halving_epochs: 0,
            shares: PayShares {
                miners: Permille(500),
                validators: Permille(400),
                owner: Permille(100),
                burn: Permille(0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(RunParams::default().validate(), Ok(()));
    }

    #[test]
    fn a_parameter_out_of_bounds_is_refused_by_name() {
        let good = RunParams::default();
        let refused = |params: RunParams| params.validate().unwrap_err();

        assert_eq!(
            refused(RunParams { epoch_windows: 0, ..good }),
            ParamsError::Zero { name: "epoch_windows" }
        );
        assert_eq!(refused(RunParams { density: Density(0), ..good }), ParamsError::Density);
        assert_eq!(refused(RunParams { merge_density: Density(4097), ..good }), ParamsError::Density);
        assert_eq!(
            refused(RunParams { outer_rate: F32Bits::of(f32::NAN), ..good }),
            ParamsError::Rate { name: "outer_rate", max: 10 }
        );
        assert_eq!(refused(RunParams { min_contributions: 5, ..good }), ParamsError::Places);
        assert_eq!(refused(RunParams { min_contributions: 3, ..good }), ParamsError::MinContributions);
        assert_eq!(RunParams { min_contributions: 1, localnet: true, ..good }.validate(), Ok(()));
        assert_eq!(refused(RunParams { reveal_windows: 11, ..good }), ParamsError::Reveal);
        assert_eq!(refused(RunParams { probe_tolerance: 1_001, ..good }), ParamsError::ProbeTolerance);
        assert_eq!(refused(RunParams { probe_tolerance: 9, ..good }), ParamsError::ProbeTolerance);
        assert_eq!(refused(RunParams { epoch_windows: 49, ..good }), ParamsError::Epoch);
        assert_eq!(refused(RunParams { hidden_blocks: 8, ..good }), ParamsError::Hidden);
        assert_eq!(RunParams { hidden_blocks: 7, ..good }.validate(), Ok(()));
    }

    #[test]
    fn every_window_is_probed_after_one_epoch() {
        for epoch_windows in 1..6 {
            let params = RunParams { epoch_windows, ..RunParams::default() };
            for window in 0..30 {
                let epoch = params.probe_epoch(Window(window));
                let epochs: Vec<u32> =
                    (0..40).filter(|e| params.probe_windows(*e).contains(&window)).collect();
                assert_eq!(epochs, [epoch], "window {window} of epochs of {epoch_windows}");
                // A root anchored within two windows of the window is on the chain before the epoch ends.
                assert!(window + 2 < (epoch + 1) * epoch_windows);
            }
        }
    }

    #[test]
    fn terms_out_of_bounds_are_refused_by_name() {
        let terms = Terms::default();
        assert_eq!(terms.validate(), Ok(()));
        let refused = |terms: Terms| terms.validate().unwrap_err();
        assert_eq!(refused(Terms { quorum: Permille(1001), ..terms }), ParamsError::Quorum);
        assert_eq!(
            refused(Terms { active_set_max: 0, ..terms }),
            ParamsError::Zero { name: "active_set_max" }
        );
        assert_eq!(refused(Terms { equivocation_slash: Permille(1001), ..terms }), ParamsError::Slash);
        assert_eq!(refused(Terms { unbonding_windows: u32::MAX, ..terms }), ParamsError::Unbonding);
        let shares = PayShares { burn: Permille(1), ..terms.shares };
        assert_eq!(refused(Terms { shares, ..terms }), ParamsError::Shares);
    }

    #[test]
    fn terms_above_a_limit_are_refused_by_name() {
        let (limits, terms) = (TermsLimits::default(), Terms::default());
        assert_eq!(terms.check_limits(&limits), Ok(()));
        let shares = PayShares { owner: Permille(201), miners: Permille(399), ..terms.shares };
        for (terms, error) in [
            (Terms { shares, ..terms }, ParamsError::OwnerShareLimit),
            (
                Terms { emission_per_epoch: limits.emission_per_epoch + 1, ..terms },
                ParamsError::EmissionLimit,
            ),
            (Terms { equivocation_slash: Permille(301), ..terms }, ParamsError::SlashLimit),
            (Terms { unbonding_windows: 2_001, ..terms }, ParamsError::UnbondingLimit),
            (Terms { validator_stake_min: limits.validator_stake_min + 1, ..terms }, ParamsError::StakeLimit),
            (Terms { miner_stake_min: limits.miner_stake_min + 1, ..terms }, ParamsError::StakeLimit),
            (Terms { seat_price_min: limits.seat_price_min + 1, ..terms }, ParamsError::PriceLimit),
        ] {
            assert_eq!((terms.validate(), terms.check_limits(&limits)), (Ok(()), Err(error)));
        }
    }

    #[test]
    fn terms_are_worse_if_any_of_them_is() {
        let now = Terms::default();
        let shares = |miners, validators, owner, burn| {
            let [miners, validators, owner, burn] = [miners, validators, owner, burn].map(Permille);
            Terms { shares: PayShares { miners, validators, owner, burn }, ..now }
        };
        assert!(!now.worsened_by(&now));
        // Each pair: a change for the worse, and its reverse.
        for worse in [
            Terms { active_set_max: 63, ..now },
            Terms { absence_windows: 19, ..now },
            Terms { validator_stake_min: now.validator_stake_min + 1, ..now },
            Terms { miner_stake_min: now.miner_stake_min + 1, ..now },
            Terms { miner_seats_max: 191, ..now },
            Terms { validator_seats_max: 63, ..now },
            Terms { immunity_windows: 39, ..now },
            Terms { seat_price_min: now.seat_price_min + 1, ..now },
            Terms { equivocation_slash: Permille(101), ..now },
            shares(499, 400, 101, 0),
            shares(500, 399, 100, 1),
        ] {
            assert!(now.worsened_by(&worse), "{worse:?}");
            assert!(!worse.worsened_by(&now), "{worse:?}");
        }
        for either in [
            Terms { quorum: Permille(501), ..now },
            Terms { unbonding_windows: 201, ..now },
            Terms { emission_per_epoch: now.emission_per_epoch + 1, ..now },
            Terms { emission_halving_epochs: 1, ..now },
            shares(501, 399, 100, 0),
        ] {
            assert!(now.worsened_by(&either) && either.worsened_by(&now), "{either:?}");
        }
        // One term that is worse outweighs all that are better.
        assert!(now.worsened_by(&Terms { active_set_max: 65, equivocation_slash: Permille(101), ..now }));
    }

    #[test]
    fn worse_terms_wait_until_stake_can_have_unbonded() {
        let params = RunParams { epoch_windows: 10, ..RunParams::default() };
        let terms = Terms { unbonding_windows: 25, ..Terms::default() };
        let from = |now: Option<u32>, new: Terms| params.terms_hold_from(now.map(Window), &terms, &new).0;
        let better = Terms { seat_price_min: 0, ..terms };
        let next_epoch = [None, Some(0), Some(8), Some(9), Some(10)].map(|now| from(now, better));
        assert_eq!(next_epoch, [0, 10, 10, 10, 20]);
        let worse = Terms { equivocation_slash: Permille(101), ..terms };
        assert_eq!([None, Some(0), Some(4), Some(5)].map(|now| from(now, worse)), [40, 40, 40, 50]);
        for now in 0..50 {
            // Withdrawn in the last window of the epoch that follows the request, it unbonds from the next opening.
            let free = now + params.epoch_windows + 1 + terms.unbonding_windows;
            assert!(free <= from(Some(now), worse), "window {now}");
        }
        assert!(params.terms_hold_from(Some(Window(u32::MAX)), &terms, &worse).0 >= u32::MAX - 10);
    }

    #[test]
    fn an_epoch_earns_the_part_of_its_emission_that_its_merged_windows_are() {
        let of = |emission_per_epoch, merged| {
            Terms { emission_per_epoch, ..Terms::default() }.earned_emission(0, merged, 3)
        };
        assert_eq!([0, 1, 2, 3, 4].map(|merged| of(1000, merged)), [0, 333, 666, 1000, 1000]);
        assert_eq!(of(u128::MAX, 3), u128::MAX);
        assert_eq!(of(u128::MAX, 2), u128::MAX / 3 * 2);
        assert_eq!(Terms::default().earned_emission(0, 1, 0), 0);
    }

    #[test]
    fn an_emission_halves_until_nothing_is_left_of_it() {
        let terms = Terms { emission_per_epoch: 100, emission_halving_epochs: 3, ..Terms::default() };
        let emissions = [0, 2, 3, 6, 21, 3 * 128, u32::MAX].map(|epoch| terms.emission(epoch));
        assert_eq!(emissions, [100, 100, 50, 25, 0, 0, 0]);
        assert_eq!(Terms { emission_halving_epochs: 0, ..terms }.emission(u32::MAX), 100);
    }

    #[test]
    fn a_density_keeps_the_share_rounded_up() {
        assert_eq!(Density(64).kept(4096), 64);
        assert_eq!(Density(64).kept(1), 1);
        assert_eq!(Density(64).kept(65), 2);
        assert_eq!(Density(4096).kept(77), 77);
        assert_eq!(Density(64).kept(0), 0);
    }
}
