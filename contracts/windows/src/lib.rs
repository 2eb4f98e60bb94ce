//! The windows of every run: who takes part, what was committed, attested and voted, and how each window ended.
//!
//! A window's life is a handful of steps at fixed blocks (PROT-1), and between them only calls change anything. `h` is the
//! run's `hidden_blocks`, 0 where attestations and votes are posted in the open (PROT-30):
//!
//! | offset              | what happens by itself                                                           |
//! |---------------------|----------------------------------------------------------------------------------|
//! | 0                   | slots, electorate, data cursor, lineage and weights are taken down               |
//! | 1                   | the hash of the opening block is known; the oldest window kept is forgotten      |
//! | `commit_by + 2`     | the hash that evaluation is drawn from is known                                  |
//! | `attest_by + h + 1` | the selection stands (PROT-16)                                                   |
//! | `vote_by + h + 1`   | the window is merged or void, and never changes again (PROT-19)                  |
//!
//! Each run has one entry in the agenda, at the block of its next step, so a block in which nothing is due costs two
//! reads. Where more is due than a block has room for, the rest is done in the blocks after, in the order in which it was
//! due (`agenda`); a step knows the block that it belongs to, so doing it late changes nothing but when.
//!
//! What decides is in `electorate` and `tally`, plain functions; what is here remembers. `permits` says who may call
//! what, `steps` is what happens by itself, `reads` what others may ask.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(
    clippy::large_enum_variant,
    reason = "the call enum is generated, and two signed statements travel in it by value"
)]

extern crate alloc;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::Weight;
use protocol::{Block, Digest, RunId, Uid, Window, params::Permille, view::Checkpoint};
use scale_info::TypeInfo;

mod agenda;
#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod electorate;
pub mod migrations;
#[cfg(test)]
mod mock;
mod permits;
mod reads;
mod steps;
mod tally;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

/// Of what an equivocation costs, the part that goes to whoever reports it (PROT-21).
pub const REPORTER_SHARE: Permille = Permille(100);

/// Commitments of one seat in one window that cost no fee. A miner needs one, and another after each crash.
pub const FREE_COMMITMENTS: u8 = 4;

/// Where a run stands. What a window needs of it is taken down in the window's record as it opens.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Progress {
    /// The window that opened last.
    pub window: Option<Window>,
    /// First position of the training order that no window has handed out (PROT-5).
    pub cursor: u64,
    /// The model that everyone holds, or will once the last fixed update is applied (PROT-19).
    pub lineage: Digest,
    /// The latest checkpoint that two thirds voted (PROT-20).
    pub checkpoint: Option<Checkpoint>,
    /// Whether the electorate is below its quorum, or the run's owner has stopped it (PROT-3).
    pub paused: bool,
    /// The block of the run's one entry in the agenda.
    pub next_step: Block,
}

/// When a validator was last heard of: what decides whether it is absent, and whether it earns dividends (PROT-3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Presence {
    /// The first window at whose opening the validator had its stake.
    pub since: Window,
    pub last_attested: Option<Window>,
    /// The latest epoch before that of `last_attested` in which it attested: an epoch closes when the next one has
    /// begun already.
    pub epoch_before: Option<u32>,
}

/// A validator that decides, as an epoch closes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Member {
    pub uid: Uid,
    /// Its own and what is nominated behind it.
    pub stake: u128,
    /// Whether it attested at least once in the epoch: who did not earns no dividends (PROT-3).
    pub attested: bool,
    /// Votes in the epoch for another update than the one that two thirds fixed: who has any earns no dividends
    /// (PROT-19).
    pub dissents: u32,
    /// Whether its seat was there for the whole epoch, windows of it were merged, and it voted in none of those: who is
    /// silent earns no dividends (PROT-30).
    pub silent: bool,
}

/// The consensus that selection draws by, made from what validators post once an epoch.
pub trait Epochs {
    /// The consensus weights that stand now, in uid order.
    fn weights(run: RunId) -> Vec<(Uid, u16)>;

    /// Closes `epoch`, whose weights are revealed by now, and returns what that cost. `electorate` is in uid order.
    fn close(run: RunId, epoch: u32, electorate: &[Member]) -> Weight;
}

/// Who decides, for whoever closes epochs.
pub trait Members {
    /// The present holder of a seat, as it would decide in `epoch`: with the stake that it has in the electorate of the
    /// last window that opened; `None` if it is not in it.
    fn member(run: RunId, uid: Uid, epoch: u32) -> Option<Member>;
}

impl Presence {
    /// As it is after an attestation of `window`.
    pub(crate) fn attested(self, window: Window, epoch_windows: u32) -> Presence {
        let before = self.last_attested.map(|last| last.epoch(epoch_windows));
        let epoch_before = match before {
            Some(before) if before != window.epoch(epoch_windows) => Some(before),
            _ => self.epoch_before,
        };
        Presence { last_attested: Some(window), epoch_before, ..self }
    }

    /// Whether the validator attested in `epoch`, which is the one of its last attestation or the one before that.
    pub(crate) fn attested_in(&self, epoch: u32, epoch_windows: u32) -> bool {
        self.last_attested.is_some_and(|last| last.epoch(epoch_windows) == epoch)
            || self.epoch_before == Some(epoch)
    }

    /// Whether the validator was there for all of `epoch`: with its seat and stake as the epoch's first window opened.
    pub(crate) fn there_all(&self, epoch: u32, epoch_windows: u32) -> bool {
        self.since.0 <= epoch.saturating_mul(epoch_windows)
    }
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use frame::{deps::sp_core::H256, prelude::*};
    use pallet_registry::{Nominations, Seats};
    use protocol::{
        Hotkey,
        reveal::Salt,
        select::Selected,
        statement::{Equivocation, SignedStatement, StatementKind},
        view::{Outcome, Verdict, Vote},
    };

    /// 0 was the first layout; [`crate::migrations`] leads from there to this one.
    pub const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config<Hash = H256> {
        type Registry: Seats<Self::AccountId>;

        /// What others have put behind validators: it counts as theirs.
        type Nominations: Nominations<Self::AccountId>;

        /// The key that a seat's account is, and back: statements and hidden hashes name the key.
        type HotkeyOf: ConvertBack<Self::AccountId, Hotkey>;

        type Epochs: Epochs;

        type WeightInfo: WeightInfo;

        /// As many runs as the registry allows.
        #[pallet::constant]
        type MaxRuns: Get<u32>;

        /// As many seats as the registry allows.
        #[pallet::constant]
        type MaxSeats: Get<u32>;

        /// Windows that stay readable. Older ones are forgotten, one for each that opens.
        #[pallet::constant]
        type KeptWindows: Get<u32>;

        /// What the steps of a block may cost together. A step that is begun is finished, so a block may cost as much
        /// as the dearest step more; what is left waits for the next block.
        #[pallet::constant]
        type MaxStepWeight: Get<Weight>;
    }

    /// What is fixed of one window. What comes in by calls is kept beside it, a seat at a time.
    #[derive(
        Encode, Decode, MaxEncodedLen, TypeInfo, CloneNoBound, DebugNoBound, PartialEqNoBound, EqNoBound,
    )]
    #[scale_info(skip_type_params(T))]
    pub struct Record<T: Config> {
        pub opening_hash: Option<Digest>,
        pub evaluation_hash: Option<Digest>,
        /// Miners' seats, in uid order (PROT-5).
        pub slots: BoundedVec<Uid, T::MaxSeats>,
        pub cursor: u64,
        /// In uid order, with their stake and what is nominated behind them (PROT-3).
        pub electorate: BoundedVec<(Uid, u128), T::MaxSeats>,
        pub lineage: Digest,
        /// In uid order (PROT-16).
        pub weights: BoundedVec<(Uid, u16), T::MaxSeats>,
        pub paused: bool,
        pub selection: Option<Choice<T>>,
        pub outcome: Option<Outcome>,
    }

    /// A [`protocol::view::Selection`] with its bounds.
    #[derive(
        Encode, Decode, MaxEncodedLen, TypeInfo, CloneNoBound, DebugNoBound, PartialEqNoBound, EqNoBound,
    )]
    #[scale_info(skip_type_params(T))]
    pub struct Choice<T: Config> {
        pub selected: BoundedVec<Selected, T::MaxSeats>,
        pub valid: BoundedVec<Uid, T::MaxSeats>,
        pub faulty: BoundedVec<Uid, T::MaxSeats>,
    }

    /// What a validator said of the seats it looked at, in uid order.
    pub type Verdicts<T> = BoundedVec<(Uid, Verdict), <T as Config>::MaxSeats>;

    /// Who decided, in uid order, and whether it voted.
    pub type Turnout<T> = BoundedVec<(Uid, bool), <T as Config>::MaxSeats>;

    /// The runs that have a step to take at a block.
    #[pallet::storage]
    pub type Agenda<T: Config> =
        StorageMap<_, Twox64Concat, Block, BoundedVec<RunId, T::MaxRuns>, ValueQuery>;

    /// The first block of the agenda whose steps are not all taken; `None` while nothing is late.
    #[pallet::storage]
    pub type Backlog<T: Config> = StorageValue<_, Block>;

    #[pallet::storage]
    pub type ProgressOf<T: Config> = StorageMap<_, Twox64Concat, RunId, Progress>;

    #[pallet::storage]
    pub type Records<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Window, Record<T>>;

    #[pallet::storage]
    pub type PresenceOf<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Presence>;

    /// Digests of contributions (PROT-11).
    #[pallet::storage]
    pub type Commitments<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// How often each slot of a window has committed, by its place among the slots; short where nobody later has.
    #[pallet::storage]
    pub type TimesCommitted<T: Config> = StorageDoubleMap<
        _,
        Twox64Concat,
        RunId,
        Twox64Concat,
        Window,
        BoundedVec<u8, T::MaxSeats>,
        ValueQuery,
    >;

    /// Digests of the salts that validators will reveal for a window, committed before it opened (PROT-2).
    #[pallet::storage]
    pub type Salts<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    #[pallet::storage]
    pub type Attestations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Verdicts<T>>;

    #[pallet::storage]
    pub type Votes<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Vote>;

    /// Hashes of attestations that are not revealed yet (PROT-30).
    #[pallet::storage]
    pub type HiddenAttestations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// Hashes of votes that are not revealed yet (PROT-30).
    #[pallet::storage]
    pub type HiddenVotes<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// How often a validator voted for another update than two thirds did, by epoch (PROT-19).
    #[pallet::storage]
    pub type Dissents<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, u32, ValueQuery>;

    /// Who decided a window of an epoch that was merged, in uid order, and whether it voted in any such window (PROT-30).
    #[pallet::storage]
    pub type Turnouts<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, u32, Turnout<T>, ValueQuery>;

    /// Digests of validators' receipts (PROT-27).
    #[pallet::storage]
    pub type Receipts<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// Equivocations that were punished: each matter of a seat and window is, once (PROT-21).
    #[pallet::storage]
    pub type Punished<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, (Uid, StatementKind), ()>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A window opened for `slots` miners and `electorate` validators.
        WindowOpened { run: RunId, window: Window, slots: u32, electorate: u32, cursor: u64, lineage: Digest },
        /// The electorate holds too little of the bonded stake: windows are void until absent validators attest again.
        Paused { run: RunId, window: Window, electorate_stake: u128, bonded_stake: u128 },
        /// The run's owner has stopped it: windows are void, and hand out no data, until the owner lets it go on.
        Stopped { run: RunId, window: Window },
        /// The run goes on: its electorate has its quorum, and its owner lets it.
        Resumed { run: RunId, window: Window },
        /// A miner committed to a contribution; `replaced` if it had committed to another one before.
        Committed { run: RunId, window: Window, uid: Uid, digest: Digest, replaced: bool },
        /// A validator said what it could fetch and decode.
        Attested { run: RunId, window: Window, uid: Uid, valid: u32, faulty: u32 },
        /// A validator bound itself to an attestation that it will reveal.
        AttestationHidden { run: RunId, window: Window, uid: Uid },
        /// The selection stands.
        SelectionFixed { run: RunId, window: Window, selected: u32, valid: u32, faulty: u32 },
        /// A validator voted the merged update.
        Voted { run: RunId, window: Window, uid: Uid, vote: Vote },
        /// A validator bound itself to a vote that it will reveal.
        VoteHidden { run: RunId, window: Window, uid: Uid },
        /// A validator voted for another update than two thirds did.
        Dissented { run: RunId, window: Window, uid: Uid, update: Digest },
        /// A window is fixed. `lineage` is the model that everyone holds after it.
        WindowFixed { run: RunId, window: Window, outcome: Outcome, lineage: Digest },
        /// Two thirds voted the state that everyone holds when the checkpoint's window opens.
        CheckpointFixed { run: RunId, checkpoint: Checkpoint },
        /// A validator published its receipts for a window.
        ReceiptsAnchored { run: RunId, window: Window, uid: Uid, digest: Digest },
        /// A validator said two different things of one matter, and lost `slashed`.
        EquivocationPunished {
            run: RunId,
            window: Window,
            uid: Uid,
            kind: StatementKind,
            reporter: T::AccountId,
            slashed: u128,
        },
        /// An epoch closed in which a validator voted in none of the windows that were merged: it earns no dividends for it.
        /// Told of whoever decides windows as it closes.
        NeverVoted { run: RunId, epoch: u32, uid: Uid },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// There is no run with this id. List the runs and pick one of them.
        UnknownRun,
        /// The run has not started. Wait for its first block.
        NotStarted,
        /// It is too early: the window, or its phase for this call, has not begun. Wait for it.
        TooEarly,
        /// The deadline has passed. Take part in the next window.
        TooLate,
        /// The signer holds no seat in this run. Register its hotkey first, and sign with the hotkey.
        NotASeat,
        /// Only miners commit. Sign with a miner's hotkey.
        NotAMiner,
        /// Only validators attest and vote. Sign with a validator's hotkey.
        NotAValidator,
        /// The seat takes no part in this window: it was registered after the window had opened, or the run's owner has
        /// stopped the run. Wait for the next window.
        NotInThisWindow,
        /// The validator does not decide this window: it was absent, registered late, or has too little stake.
        NotInElectorate,
        /// This validator has attested this window. One attestation is final.
        AlreadyAttested,
        /// The verdicts do not ascend by uid. Sort them, and name each seat once.
        VerdictsNotSorted,
        /// A verdict is on a seat that committed to nothing. Leave it out: such a seat is absent, not faulty.
        NothingCommitted,
        /// This validator has voted this window. One vote is final.
        AlreadyVoted,
        /// The selection is empty, so there is nothing to merge: the window will be void.
        NothingSelected,
        /// This window ends in a checkpoint. Vote the state root too.
        StateRootMissing,
        /// This window does not end in a checkpoint. Vote without a state root.
        StateRootUnexpected,
        /// This run hides attestations and votes until their deadline. Commit to a hash first, and reveal it afterwards.
        MustBeHidden,
        /// This run takes attestations and votes in the open. Post them as they are.
        NotHidden,
        /// The validator committed to nothing that it could reveal in this window. Commit by the deadline next time.
        NothingHidden,
        /// What is revealed is not what was committed to. Reveal the same bytes with the same salt.
        OtherThanCommitted,
        /// The window is not kept: it has not opened yet, or is forgotten.
        WindowNotKept,
        /// This validator has anchored its receipts for this window. One digest is final.
        AlreadyAnchored,
        /// The statements are not about the same matter of the same seat, window and run. Report two that are.
        NotOneMatter,
        /// The statements say the same. Report two that differ.
        NoContradiction,
        /// A statement is not signed by the hotkey. Report what the accused signed.
        NotSigned,
        /// The hotkey never held the seat that the statement names. Report the seat's own statements.
        NotItsSeat,
        /// The chain has nothing of this validator on this matter that the statement could contradict.
        NothingOnRecord,
        /// This seat was punished for this matter in this window. Once is enough.
        AlreadyPunished,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(_: BlockNumberFor<T>) -> Weight {
            Self::take_steps(Self::now())
        }

        fn integrity_test() {
            assert!(T::KeptWindows::get() >= 64, "a node that joins needs the windows since a checkpoint");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    /// A call of the protocol costs no fee where it succeeds and its seat has not used up what is free. A seat holds a
    /// stake, and each of these calls succeeds once a seat and window (a commitment four times), so that what is free
    /// is bounded by what is staked; whatever fails, or repeats, pays.
    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Commits the signer, a miner's hotkey, to the bytes with this digest (PROT-11). Until the deadline a later
        /// commitment replaces an earlier one.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::commit())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, _digest: &Digest| -> bool {
            Pallet::<T>::signer(origin)
                .and_then(|hotkey| Pallet::<T>::may_commit(&hotkey, *run, *window).ok())
                .is_some_and(|permit| permit.times < FREE_COMMITMENTS)
        })]
        pub fn commit(origin: OriginFor<T>, run: RunId, window: Window, digest: Digest) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let permit = Self::may_commit(&hotkey, run, window)?;
            let uid = permit.uid;

            TimesCommitted::<T>::mutate(run, window, |times| permit.count_in(times));
            Commitments::<T>::insert((run, window), uid, digest);
            let replaced = permit.times > 0;
            Self::deposit_event(Event::Committed { run, window, uid, digest, replaced });
            Ok(())
        }

        /// Says which contributions the signer, a validator's hotkey, found valid or faulty (PROT-14), and commits it to
        /// its evaluation salt for the next window (PROT-2). A seat that is not named was not observed.
        ///
        /// Every validator may attest: one that is absent comes back into the electorate by it.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::attest(verdicts.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            verdicts: &Verdicts<T>,
            _next_salt: &Digest,
        | -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| Pallet::<T>::may_attest(&hotkey, *run, *window, verdicts).is_ok())
        })]
        pub fn attest(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            verdicts: Verdicts<T>,
            next_salt: Digest,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let (uid, params) = Self::may_attest(&hotkey, run, window, &verdicts)?;

            Salts::<T>::insert((run, window.next()), uid, next_salt);
            Self::note_attestation(run, window, uid, params.epoch_windows, verdicts);
            Ok(())
        }

        /// Votes the merged update that the signer, a validator's hotkey, computed (PROT-19), and at checkpoint windows
        /// the state root after it (PROT-20).
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::vote())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, vote: &Vote| -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| Pallet::<T>::may_vote(&hotkey, *run, *window, vote).is_ok())
        })]
        pub fn vote(origin: OriginFor<T>, run: RunId, window: Window, vote: Vote) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let uid = Self::may_vote(&hotkey, run, window, &vote)?;

            Votes::<T>::insert((run, window), uid, vote);
            Self::deposit_event(Event::Voted { run, window, uid, vote });
            Ok(())
        }

        /// Binds the signer, a validator's hotkey, to an attestation that it reveals after the deadline, in a run that
        /// hides them (PROT-30). `hash` is [`protocol::reveal::commitment`] of the verdicts.
        #[pallet::call_index(3)]
        #[pallet::weight(T::WeightInfo::attest_hidden())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            _hash: &Digest,
            _next_salt: &Digest,
        | -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| Pallet::<T>::may_attest_hidden(&hotkey, *run, *window).is_ok())
        })]
        pub fn attest_hidden(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            hash: Digest,
            next_salt: Digest,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let uid = Self::may_attest_hidden(&hotkey, run, window)?;

            Salts::<T>::insert((run, window.next()), uid, next_salt);
            HiddenAttestations::<T>::insert((run, window), uid, hash);
            Self::deposit_event(Event::AttestationHidden { run, window, uid });
            Ok(())
        }

        /// Shows the attestation that the signer bound itself to. One that is not shown in time does not count.
        #[pallet::call_index(4)]
        #[pallet::weight(T::WeightInfo::reveal_attestation(verdicts.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            verdicts: &Verdicts<T>,
            salt: &Salt,
        | -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| {
                Pallet::<T>::may_reveal_attestation(&hotkey, *run, *window, verdicts, salt).is_ok()
            })
        })]
        pub fn reveal_attestation(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            verdicts: Verdicts<T>,
            salt: Salt,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let (uid, params) = Self::may_reveal_attestation(&hotkey, run, window, &verdicts, &salt)?;

            HiddenAttestations::<T>::remove((run, window), uid);
            Self::note_attestation(run, window, uid, params.epoch_windows, verdicts);
            Ok(())
        }

        /// Binds the signer, a hotkey of the electorate, to a vote that it reveals after the deadline, in a run that hides
        /// them (PROT-30). `hash` is [`protocol::reveal::commitment`] of the vote.
        #[pallet::call_index(5)]
        #[pallet::weight(T::WeightInfo::vote_hidden())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, _hash: &Digest| -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| Pallet::<T>::may_vote_hidden(&hotkey, *run, *window).is_ok())
        })]
        pub fn vote_hidden(origin: OriginFor<T>, run: RunId, window: Window, hash: Digest) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let uid = Self::may_vote_hidden(&hotkey, run, window)?;

            HiddenVotes::<T>::insert((run, window), uid, hash);
            Self::deposit_event(Event::VoteHidden { run, window, uid });
            Ok(())
        }

        /// Shows the vote that the signer bound itself to. One that is not shown in time does not count.
        #[pallet::call_index(6)]
        #[pallet::weight(T::WeightInfo::reveal_vote())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            vote: &Vote,
            salt: &Salt,
        | -> bool {
            Pallet::<T>::signer(origin)
                .is_some_and(|hotkey| Pallet::<T>::may_reveal_vote(&hotkey, *run, *window, vote, salt).is_ok())
        })]
        pub fn reveal_vote(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            vote: Vote,
            salt: Salt,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let uid = Self::may_reveal_vote(&hotkey, run, window, &vote, &salt)?;

            HiddenVotes::<T>::remove((run, window), uid);
            Votes::<T>::insert((run, window), uid, vote);
            Self::deposit_event(Event::Voted { run, window, uid, vote });
            Ok(())
        }

        /// Puts the digest of the receipts that the signer, a validator's hotkey, published for a window that is fixed on
        /// the chain, once (PROT-27).
        #[pallet::call_index(7)]
        #[pallet::weight(T::WeightInfo::anchor_receipts())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, _digest: &Digest| -> bool {
            Pallet::<T>::signer(origin).is_some_and(|hotkey| Pallet::<T>::may_anchor(&hotkey, *run, *window).is_ok())
        })]
        pub fn anchor_receipts(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            digest: Digest,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let uid = Self::may_anchor(&hotkey, run, window)?;

            Receipts::<T>::insert((run, window), uid, digest);
            Self::deposit_event(Event::ReceiptsAnchored { run, window, uid, digest });
            Ok(())
        }

        /// Proves that a validator signed two different statements on one matter of a window that is kept. The validator
        /// is slashed, and the signer gets a tenth of that and its fee back (PROT-21).
        #[pallet::call_index(8)]
        #[pallet::weight(T::WeightInfo::report_equivocation())]
        pub fn report_equivocation(origin: OriginFor<T>, proof: Equivocation) -> DispatchResultWithPostInfo {
            let reporter = ensure_signed(origin)?;
            let statement = proof.check().map_err(Error::<T>::from)?;
            let conviction = Self::may_convict(&proof.hotkey, &statement)?;

            Self::punish(conviction, &statement, reporter);
            Ok(Pays::No.into())
        }

        /// Proves that a validator signed a statement that differs from what it put on the chain itself. As with
        /// [`Pallet::report_equivocation`], which needs two statements (PROT-21).
        #[pallet::call_index(9)]
        #[pallet::weight(T::WeightInfo::report_contradiction())]
        pub fn report_contradiction(
            origin: OriginFor<T>,
            hotkey: Hotkey,
            statement: SignedStatement,
        ) -> DispatchResultWithPostInfo {
            let reporter = ensure_signed(origin)?;
            let conviction = Self::may_contradict(&hotkey, &statement)?;

            Self::punish(conviction, &statement.statement, reporter);
            Ok(Pays::No.into())
        }
    }
}
