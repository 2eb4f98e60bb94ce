//! Weight votes of the validators, and the consensus computed from them once per epoch (PROT-26, 30, 31).
//!
//! A validator commits to one weight vote per epoch, as a hash, and reveals it in the first `reveal_windows` windows
//! of the next epoch. Before it has committed, a validator cannot read the votes of others on the chain and copy them.
//!
//! ```text
//! epoch e                        epoch e + 1
//! ├────────── commit ───────────┤├── reveal ──┤
//!                                             └ close: consensus, bonds and pay of e
//! ```
//!
//! At the first opening after the reveal windows, the epoch closes: Yuma consensus is computed from the votes of the
//! active set. Selection draws by the resulting weights, the epoch's pay is divided by the shares, and the bonds are
//! stored for the next epoch. The stake of a member without a revealed vote counts, for no seat.
//!
//! A member earns nothing if it:
//!
//! - revealed no vote,
//! - was never present (PROT-3),
//! - cast a minority vote (PROT-19),
//! - was inactive, or
//! - showed wrong measurements of the contributions drawn for the epoch.
//!
//! A member that showed only a part of them earns that part ([`protocol::probe`]). Without a consensus, the last
//! weights and bonds stay, and nothing is paid.
//!
//! A seat may change hands between an epoch's end and its close. Then the holder at the epoch's end is judged: its
//! revealed vote counts, and it is paid like any other (PROT-32). The next holder inherits no consensus, vote or bond.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::{BoundedVec, ConstU32, Weight};
use pallet_registry::Balance;
use pallet_windows::Member;
use protocol::{
    Digest, Role, RunId, SeatId, Uid, Window,
    consensus::Consensus,
    probe::{self, PROBES, PROOF_MAX, SEQUENCES_MAX},
};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod close;
mod closing;
#[cfg(any(test, feature = "runtime-benchmarks"))]
mod full;
mod invariants;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;
pub mod weight_info;

pub use pallet::*;

/// A seat whose holder held it to the end of an epoch and left before the epoch closed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Departed<AccountId> {
    pub seat: SeatId,
    /// First window in which it counted.
    pub since: Window,
    pub role: Role,
    pub coldkey: AccountId,
    /// Its own stake when it left.
    pub stake: Balance,
    /// The validator as a member of the active set; `None` if it was not in it.
    pub member: Option<Member>,
}

/// Losses of one contribution on the probe sequences of its window, in millionths of a nat per token.
pub type Losses = BoundedVec<u32, ConstU32<SEQUENCES_MAX>>;

/// A validator's answers for an epoch, in the order of the draw; `None` for a contribution without measurements.
pub type ProbeAnswers<A> = BoundedVec<Option<A>, ConstU32<PROBES>>;

/// [`probe::Answer`] with bounds.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Answer {
    pub losses: Option<Losses>,
    pub proof: BoundedVec<Digest, ConstU32<PROOF_MAX>>,
}

impl TryFrom<probe::Answer> for Answer {
    type Error = TooLong;

    fn try_from(answer: probe::Answer) -> Result<Answer, TooLong> {
        let probe::Answer { losses, proof } = answer;
        Ok(Answer {
            losses: losses.map(Losses::try_from).transpose().map_err(|_| TooLong)?,
            proof: proof.try_into().map_err(|_| TooLong)?,
        })
    }
}

/// An answer has too many losses or too long a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Pays the earnings of an epoch.
pub trait Payroll<AccountId> {
    /// Pays the `merged` windows of `epoch` by its consensus, and returns the weight. The pay of a uid in
    /// `departed` is due to that seat, not to the uid's present holder.
    fn pay(
        run: RunId,
        epoch: u32,
        merged: u32,
        consensus: &Consensus,
        departed: &[Departed<AccountId>],
    ) -> Weight;
}

impl<AccountId> Payroll<AccountId> for () {
    fn pay(_: RunId, _: u32, _: u32, _: &Consensus, _: &[Departed<AccountId>]) -> Weight {
        Weight::zero()
    }
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::close::{after_epoch, closes_at};
    use frame::prelude::*;
    use pallet_registry::Pallet as Registry;
    use pallet_windows::{Members, Probes};
    use protocol::{
        Hotkey, RunParams,
        probe::Leaves,
        reveal::{Salt, commitment},
        view::SeatConsensus,
        weights::is_canonical,
    };

    /// Storage version.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(2);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config<AccountId: Into<[u8; 32]>> + pallet_registry::Config {
        type Payroll: Payroll<Self::AccountId>;

        /// The active set's record of a validator that leaves.
        type Members: Members;

        /// Draw of an epoch's probes, and the roots that validators anchored.
        type Probes: Probes;
    }

    /// Weights of seats, in uid order, without zeros.
    pub type SeatWeights<T> = BoundedVec<(Uid, u16), <T as pallet_registry::Config>::MaxSeats>;

    /// A validator's bonds to seats, in uid order, without zeros; see [`protocol::consensus::Bonds`].
    pub type SeatBonds<T> = BoundedVec<(Uid, u32), <T as pallet_registry::Config>::MaxSeats>;

    /// The commitment of a weight vote, and the hotkey in its hash.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
    pub struct WeightCommitment {
        pub hash: Digest,
        pub hotkey: Hotkey,
    }

    /// Present consensus weights (PROT-16).
    #[pallet::storage]
    pub type ConsensusWeights<T: Config> = StorageMap<_, Twox64Concat, RunId, SeatWeights<T>, ValueQuery>;

    /// Last consensus on each seat, in uid order.
    #[pallet::storage]
    pub type LastConsensus<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<(Uid, SeatConsensus), T::MaxSeats>, ValueQuery>;

    /// Bonds by run and validator, from the last consensus.
    #[pallet::storage]
    pub type BondsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, SeatBonds<T>, ValueQuery>;

    /// Commitments that are not revealed, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type WeightCommitments<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, WeightCommitment>;

    /// Revealed weight votes, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type WeightVotes<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, SeatWeights<T>>;

    /// Measurements that validators showed, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type ShownProbes<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, ProbeAnswers<Losses>>;

    /// Departed seats that were held to the end of an epoch, by run and epoch, until the epoch closes.
    #[pallet::storage]
    pub type DepartedOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, Departed<T::AccountId>>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A validator committed to a weight vote.
        Committed { run: RunId, epoch: u32, validator: Uid, hash: Digest },
        /// A validator revealed its weight vote on `seats` seats.
        Revealed { run: RunId, epoch: u32, validator: Uid, seats: u32 },
        /// A validator showed its measurements of `answered` of the drawn contributions.
        ProbesAnswered { run: RunId, epoch: u32, validator: Uid, answered: u32 },
        /// A validator did not show the right losses of all probes that count. Of `counted` probes, it showed right
        /// losses for `right` and wrong ones for `wrong`. With a wrong one it earns no dividends, otherwise a part.
        ProbesJudged { run: RunId, epoch: u32, validator: Uid, counted: u32, right: u32, wrong: u32 },
        /// A validator did not reveal the weight vote that it committed to.
        NotRevealed { run: RunId, epoch: u32, validator: Uid },
        /// An epoch closed with a consensus on `seats` seats, from `weight_votes` weight votes.
        ConsensusReached { run: RunId, epoch: u32, weight_votes: u32, seats: u32 },
        /// An epoch closed without a consensus: the weights are unchanged and nothing is paid.
        NoConsensus { run: RunId, epoch: u32, weight_votes: u32 },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The run does not exist. List the runs and pick one of them.
        UnknownRun,
        /// The run has not started. Wait for its first block.
        NotStarted,
        /// The epoch is over. Commit for the current one.
        EpochOver,
        /// The epoch has not begun. Wait for its first window.
        EpochNotBegun,
        /// The epoch is not over. Reveal when the next one has begun.
        RevealNotBegun,
        /// The reveal windows of this epoch are over. Reveal earlier in the next epoch.
        RevealOver,
        /// The signer holds no seat in this run. Register its hotkey first, and sign with the hotkey.
        NotASeat,
        /// The signer is not a validator. Sign with a validator's hotkey.
        NotAValidator,
        /// This validator has already committed in this epoch. One commitment is final.
        AlreadyCommitted,
        /// This validator has no commitment in this epoch, or its seat has changed hands. Commit in the next epoch.
        NothingCommitted,
        /// This validator has already revealed its weight vote for this epoch. One reveal is final.
        AlreadyRevealed,
        /// Weights and salt do not match the commitment. Reveal the committed weights and salt.
        OtherThanCommitted,
        /// No seat has a weight. Do not commit in an epoch in which no seat earned one.
        NoWeights,
        /// The weights are not canonical. Sort by uid, name each seat once, omit zeros.
        NotCanonical,
        /// This validator has already shown its measurements of this epoch. One answer is final.
        AlreadyAnswered,
        /// The contributions of this epoch are not drawn yet, or none was merged. Wait a block after the epoch's end;
        /// if no window of the epoch was merged, there is nothing to show.
        NothingDrawn,
        /// The number of answers differs from that of the drawn contributions. Answer each, in the order of the draw.
        OtherThanDrawn,
        /// The call shows no measurement. Call only with at least one.
        NothingMeasured,
        /// The validator anchored nothing for the contribution's window before the draw. Omit the answer.
        NotAnchored,
        /// The validator anchored a root for the contribution's window before the draw, and omits the answer.
        /// Show the losses, or the leaf without losses.
        AnswerMissing,
        /// A measurement does not belong to the root that the validator anchored. Show the original measurements.
        OtherThanAnchored,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Commits the signer, a validator's hotkey, to a weight vote for the current `epoch`:
        /// `blake2_256(SCALE(weights) ‖ salt ‖ hotkey)` (PROT-30).
        #[pallet::call_index(0)]
        #[pallet::weight(weight_info::commit::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, epoch: &u32, _hash: &Digest| -> bool {
            Pallet::<T>::may_commit(origin.clone(), *run, *epoch).is_ok()
        })]
        pub fn commit(origin: OriginFor<T>, run: RunId, epoch: u32, hash: Digest) -> DispatchResult {
            let (validator, hotkey) = Self::may_commit(origin, run, epoch)?;
            WeightCommitments::<T>::insert((run, epoch), validator, WeightCommitment { hash, hotkey });
            Self::deposit_event(Event::Committed { run, epoch, validator, hash });
            Ok(())
        }

        /// Reveals the weight vote that the signer, a validator's hotkey, committed to in `epoch`. Only proportions
        /// matter. Weights of uids without a miner do not count, as seats may have changed hands since.
        #[pallet::call_index(1)]
        #[pallet::weight(weight_info::reveal::<T>(weights.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>, run: &RunId, epoch: &u32, weights: &SeatWeights<T>, salt: &Salt
        | -> bool {
            Pallet::<T>::may_reveal(origin.clone(), *run, *epoch, weights, salt).is_ok()
        })]
        pub fn reveal(
            origin: OriginFor<T>,
            run: RunId,
            epoch: u32,
            weights: SeatWeights<T>,
            salt: Salt,
        ) -> DispatchResult {
            let validator = Self::may_reveal(origin, run, epoch, &weights, &salt)?;
            let seats = weights.len() as u32;
            WeightCommitments::<T>::remove((run, epoch), validator);
            WeightVotes::<T>::insert((run, epoch), validator, weights);
            Self::deposit_event(Event::Revealed { run, epoch, validator, seats });
            Ok(())
        }

        /// Shows the measurements of the signer, a validator's hotkey, for the contributions drawn for `epoch`, in the
        /// order of the draw. Each answer must belong to the root that the validator anchored before the draw: the
        /// losses, or a leaf without losses. `None` is for a window without an anchored root (PROT-30).
        #[pallet::call_index(2)]
        #[pallet::weight(weight_info::answer_probes::<T>())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>, run: &RunId, epoch: &u32, answers: &ProbeAnswers<Answer>
        | -> bool {
            Pallet::<T>::may_open(origin.clone(), *run, *epoch, answers).is_ok()
        })]
        pub fn answer_probes(
            origin: OriginFor<T>,
            run: RunId,
            epoch: u32,
            answers: ProbeAnswers<Answer>,
        ) -> DispatchResult {
            let validator = Self::may_open(origin, run, epoch, &answers)?;
            let losses: Vec<_> = answers.into_iter().map(|answer| answer?.losses).collect();
            let answered = losses.iter().flatten().count() as u32;
            ShownProbes::<T>::insert((run, epoch), validator, ProbeAnswers::truncate_from(losses));
            Self::deposit_event(Event::ProbesAnswered { run, epoch, validator, answered });
            Ok(())
        }
    }

    /// Checks of each call, without writes. A call runs them first, and is free of charge if they pass.
    impl<T: Config> Pallet<T> {
        /// Returns the seat, and the hotkey that the commitment binds.
        fn may_commit(origin: OriginFor<T>, run: RunId, epoch: u32) -> Result<(Uid, Hotkey), DispatchError> {
            let hotkey = ensure_signed(origin)?;
            let (params, window) = Self::open_window(run)?;
            let current = window.epoch(params.epoch_windows);
            ensure!(epoch >= current, Error::<T>::EpochOver);
            ensure!(epoch <= current, Error::<T>::EpochNotBegun);
            let validator = Self::validator(run, &hotkey)?;
            ensure!(
                !WeightCommitments::<T>::contains_key((run, epoch), validator),
                Error::<T>::AlreadyCommitted
            );
            Ok((validator, Hotkey(hotkey.into())))
        }

        fn may_reveal(
            origin: OriginFor<T>,
            run: RunId,
            epoch: u32,
            weights: &SeatWeights<T>,
            salt: &Salt,
        ) -> Result<Uid, DispatchError> {
            let hotkey = ensure_signed(origin)?;
            let (params, window) = Self::open_window(run)?;
            let begins = after_epoch(&params, epoch);
            ensure!(window >= begins, Error::<T>::RevealNotBegun);
            ensure!(window < closes_at(&params, epoch), Error::<T>::RevealOver);
            let validator = Self::validator(run, &hotkey)?;
            let sealed = WeightCommitments::<T>::get((run, epoch), validator);
            let shown = || match WeightVotes::<T>::contains_key((run, epoch), validator) {
                true => Error::<T>::AlreadyRevealed,
                false => Error::<T>::NothingCommitted,
            };
            let sealed = sealed.ok_or_else(shown)?;
            ensure!(!weights.is_empty(), Error::<T>::NoWeights);
            ensure!(is_canonical(weights), Error::<T>::NotCanonical);
            let opened = commitment(weights, salt, &sealed.hotkey);
            ensure!(opened == sealed.hash, Error::<T>::OtherThanCommitted);
            Ok(validator)
        }

        fn may_open(
            origin: OriginFor<T>,
            run: RunId,
            epoch: u32,
            answers: &[Option<Answer>],
        ) -> Result<Uid, DispatchError> {
            let hotkey = ensure_signed(origin)?;
            let (params, window) = Self::open_window(run)?;
            let first = after_epoch(&params, epoch);
            ensure!(window >= first, Error::<T>::RevealNotBegun);
            ensure!(window < closes_at(&params, epoch), Error::<T>::RevealOver);
            let uid = Self::validator(run, &hotkey)?;
            ensure!(!ShownProbes::<T>::contains_key((run, epoch), uid), Error::<T>::AlreadyAnswered);
            let drawn = T::Probes::drawn(run, first);
            ensure!(!drawn.is_empty(), Error::<T>::NothingDrawn);
            ensure!(answers.len() == drawn.len(), Error::<T>::OtherThanDrawn);
            let measured = answers.iter().flatten().any(|answer| answer.losses.is_some());
            ensure!(measured, Error::<T>::NothingMeasured);
            let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::NotASeat)?;
            let validator = seat.id(uid);
            for (drawn, answer) in drawn.iter().zip(answers) {
                let window = drawn.probe.window;
                // An anchor of a window before the seat's first belongs to the former holder.
                let anchor = T::Probes::anchored(run, window, uid)
                    .filter(|anchor| anchor.at < first && seat.since <= window);
                let Some(Answer { losses, proof }) = answer else {
                    // Otherwise a validator could show only its correct guesses, and earn their part.
                    ensure!(anchor.is_none(), Error::<T>::AnswerMissing);
                    continue;
                };
                let anchor = anchor.ok_or(Error::<T>::NotAnchored)?;
                let losses = losses.as_ref().map(|losses| losses.as_slice());
                let leaf = Leaves { run, window, validator }.leaf(drawn.probe.uid, losses);
                let (leaves, place) = (usize::from(drawn.leaves), usize::from(drawn.place));
                probe::verify(&anchor.probes, leaves, place, leaf, proof)
                    .map_err(|_| Error::<T>::OtherThanAnchored)?;
            }
            Ok(uid)
        }

        pub(crate) fn open_window(run: RunId) -> Result<(RunParams, Window), Error<T>> {
            let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
            let window = Registry::<T>::window_now(&details).ok_or(Error::<T>::NotStarted)?;
            Ok((details.params, window))
        }

        fn validator(run: RunId, hotkey: &T::AccountId) -> Result<Uid, Error<T>> {
            let (uid, role) = Registry::<T>::seat_of(run, hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(role == Role::Validator, Error::<T>::NotAValidator);
            Ok(uid)
        }
    }
}
