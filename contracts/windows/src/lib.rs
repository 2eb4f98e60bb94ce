//! Windows of every run: participants, commitments, attestations, votes and outcomes.
//!
//! A window runs a few scheduled tasks at fixed blocks (PROT-1); between them, only calls change the state. `h` is the
//! run's `hidden_blocks`: 0 in a run without commit–reveal (PROT-30).
//!
//! | offset              | task                                                                        |
//! |---------------------|-----------------------------------------------------------------------------|
//! | 0                   | records a snapshot: slots, active set, data cursor, lineage and weights     |
//! | 1                   | records the hash of the opening block; in an epoch's first window, draws    |
//! |                     | the probes of the epoch before (PROT-30); prunes the oldest window          |
//! | `deal_offset`       | deals the data of the next window: its slots and seed (PROT-5)              |
//! | `commit_by + 2`     | records the hash from which evaluation is drawn                             |
//! | `attest_by + h + 1` | records which validators were present (PROT-3); makes the selection         |
//! | `vote_by + h + 1`   | finalises the window as merged or void, permanently (PROT-19)               |
//!
//! Each run has one scheduled task, so a block without due tasks costs two reads. If a block's budget does not
//! suffice, overdue tasks are scheduled fairly between runs by their recent cost (`scheduler`). A task knows its
//! block, so a delay does not change its result.
//!
//! Start reading at `tasks`, then `permits`, which lists the permitted calls. `active_set` and `tally` are plain
//! functions.
#![cfg_attr(not(test), no_std)]
#![allow(
    clippy::large_enum_variant,
    reason = "the call enum is generated, and two signed statements travel in it by value"
)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::Weight;
use protocol::{
    Block, Digest, RunId, SeatId, Uid, Window,
    probe::{self, Probe},
    view::Checkpoint,
};
use scale_info::TypeInfo;

mod active_set;
#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod closing;
mod invariants;
#[cfg(test)]
mod mock;
mod permits;
mod reads;
mod scheduler;
mod tally;
mod tasks;
#[cfg(test)]
mod tests;
pub mod weight_info;

pub use pallet::*;

/// Number of free commitments per seat and window. A miner needs one, and one more after each crash.
pub const FREE_COMMITMENTS: u8 = 4;

/// Progress of a run. The part that a window needs is copied to the window's record when it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Progress {
    /// The last opened window.
    pub window: Option<Window>,
    /// First position of the training order that no window has assigned (PROT-5).
    pub cursor: u64,
    /// Lineage of the model after the last finalised window (PROT-19).
    pub lineage: Digest,
    /// The latest checkpoint with two thirds of the votes, or the one of a later rewind (PROT-20).
    pub checkpoint: Option<Checkpoint>,
    /// The last window that opened with the state of an earlier checkpoint (PROT-20). `checkpoint` is that one until a
    /// later window fixes another.
    pub rewound: Option<Window>,
    /// True if the active set is below its quorum, or the run's owner has stopped it (PROT-3).
    pub paused: bool,
    /// Block of the run's scheduled task.
    pub next_step: Block,
}

/// Place of a run among the runs whose tasks are due, in picoseconds of reference time (`scheduler`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Turn {
    /// Service time up to which the run was served.
    pub served: u64,
    /// Expected cost of its next task: a decaying maximum of its last ones.
    pub load: u64,
}

/// Presence of a validator. It is present in a window if its attestation covers at least half of the seats that two
/// thirds called valid. Determines its absence and its dividends (PROT-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Presence {
    /// First window at whose opening the validator had its stake.
    pub since: Window,
    pub last_attested: Option<Window>,
    /// The latest epoch with an attestation before that of `last_attested`. An epoch closes after the next one has
    /// begun.
    pub epoch_before: Option<u32>,
}

/// Counted stake of a validator as of the last opening (PROT-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct CountedStake {
    pub seat: SeatId,
    /// Counted stake at the start of the epoch. It counts at once, up to the validator's present stake.
    pub established: u128,
    /// Stake that counts.
    pub counted: u128,
}

/// A member of the active set at the close of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Member {
    pub uid: Uid,
    /// Stake that counts.
    pub stake: u128,
    /// True if it attested in the epoch; without an attestation it earns no dividends (PROT-3).
    pub attested: bool,
    /// Number of minority votes in the epoch: votes for an update other than that of two thirds. With any, it earns no
    /// dividends (PROT-19).
    pub minority_votes: u32,
    /// True if it is inactive: it held its seat all epoch, and voted in less than two thirds of the merged windows
    /// that it had to decide. Then it earns no dividends (PROT-30).
    pub silent: bool,
}

/// Digests that a validator anchored for a window (PROT-27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Anchor {
    /// Digest of its receipt.
    pub receipts: Digest,
    /// Root over its measurements ([`protocol::probe`]).
    pub probes: Digest,
    /// Window in which it anchored them.
    pub at: Window,
}

/// A contribution drawn for validators to show their measurements, and its place in their trees (PROT-30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct DrawnProbe {
    pub probe: Probe,
    /// Leaf of its seat: the seat's place among the selected ones, in uid order.
    pub place: u16,
    /// Number of leaves of the tree.
    pub leaves: u16,
}

/// Votes of an epoch. `L` is a bounded list of [`MemberParticipation`], in uid order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Participation<L> {
    /// Number of merged windows of the epoch.
    pub merged: u32,
    pub members: L,
}

/// Votes of a validator in an epoch's merged windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct MemberParticipation {
    pub uid: Uid,
    /// Number of merged windows with it in the active set.
    pub owed: u32,
    /// Number of these in which it voted.
    pub cast: u32,
}

/// The pallet that closes epochs.
pub trait Epochs {
    /// Closes `epoch`, which had `merged` merged windows and whose weights are revealed by now. Returns the weight.
    /// `active_set` is in uid order.
    fn close(run: RunId, epoch: u32, merged: u32, active_set: &[Member]) -> Weight;
}

/// Access to the active set, for the pallet that closes epochs.
pub trait Members {
    /// Returns the present holder of a seat as a member in `epoch`, with its stake in the active set of the last
    /// window; `None` if it is not in that active set.
    fn member(run: RunId, uid: Uid, epoch: u32) -> Option<Member>;
}

/// Draw of an epoch's probes and the roots that verify answers, for the pallet that closes epochs.
pub trait Probes {
    /// Returns the draw at the opening of `first`, the first window after an epoch; empty before that opening.
    fn drawn(run: RunId, first: Window) -> Vec<DrawnProbe>;

    /// Returns the anchor of the present or last holder of a validator's seat for `window`.
    fn anchored(run: RunId, window: Window, validator: Uid) -> Option<Anchor>;

    /// Sets the draw, and a validator's anchor for each window of it.
    #[cfg(feature = "runtime-benchmarks")]
    fn set(run: RunId, first: Window, drawn: Vec<DrawnProbe>, validator: Uid, anchor: Anchor);
}

impl Presence {
    /// Returns the presence after an attestation of `window`.
    pub(crate) fn attested(self, window: Window, epoch_windows: u32) -> Presence {
        let before = self.last_attested.map(|last| last.epoch(epoch_windows));
        let epoch_before = match before {
            Some(before) if before != window.epoch(epoch_windows) => Some(before),
            _ => self.epoch_before,
        };
        Presence { last_attested: Some(window), epoch_before, ..self }
    }

    /// Returns whether the validator attested in `epoch`: the epoch of its last attestation, or the one before.
    pub(crate) fn attested_in(&self, epoch: u32, epoch_windows: u32) -> bool {
        self.last_attested.is_some_and(|last| last.epoch(epoch_windows) == epoch)
            || self.epoch_before == Some(epoch)
    }

    /// Returns whether the validator had its seat and stake when the first window of `epoch` opened.
    pub(crate) fn present_throughout(&self, epoch: u32, epoch_windows: u32) -> bool {
        self.since.0 <= epoch.saturating_mul(epoch_windows)
    }
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use frame::{deps::sp_core::H256, prelude::*};
    use protocol::{
        Hotkey,
        reveal::Salt,
        select::Selected,
        statement::{Equivocation, SignedStatement, StatementKind},
        view::{Outcome, Verdict, Vote},
    };

    /// Storage version, raised by each migration.
    pub const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config:
        frame_system::Config<Hash = H256, AccountId: From<[u8; 32]> + Into<[u8; 32]>>
        + pallet_registry::Config
    {
        type Epochs: Epochs;

        /// Number of windows that stay readable. Each opening prunes the oldest.
        #[pallet::constant]
        type KeptWindows: Get<u32>;

        /// Budget for the tasks of one block. A started task is finished, so a block may exceed it by one task; the
        /// rest is delayed to the next blocks.
        #[pallet::constant]
        type MaxTaskWeight: Get<Weight>;
    }

    /// The agreed state of one window. Entries added by calls are stored separately, by seat.
    #[derive(CloneNoBound, DebugNoBound, PartialEqNoBound, EqNoBound)]
    #[derive(Encode, Decode, MaxEncodedLen, TypeInfo)]
    #[scale_info(skip_type_params(T))]
    pub struct Record<T: Config> {
        pub opening_hash: Option<Digest>,
        pub deal_seed: Option<Digest>,
        pub evaluation_hash: Option<Digest>,
        /// Miners' seats, in uid order (PROT-5).
        pub slots: BoundedVec<Uid, T::MaxSeats>,
        pub cursor: u64,
        /// Members and their counted stake, in uid order (PROT-3).
        pub active_set: BoundedVec<(Uid, u128), T::MaxSeats>,
        /// Blocks of the members' registrations, in the same order: a uid has other holders later.
        pub registered_at: BoundedVec<Block, T::MaxSeats>,
        pub lineage: Digest,
        /// Consensus weights, in uid order (PROT-16).
        pub weights: BoundedVec<(Uid, u16), T::MaxSeats>,
        pub paused: bool,
        pub selection: Option<Choice<T>>,
        pub outcome: Option<Outcome>,
    }

    /// [`protocol::view::Selection`] with bounds.
    #[derive(CloneNoBound, DebugNoBound, PartialEqNoBound, EqNoBound)]
    #[derive(Encode, Decode, MaxEncodedLen, TypeInfo)]
    #[scale_info(skip_type_params(T))]
    pub struct Choice<T: Config> {
        pub selected: BoundedVec<Selected, T::MaxSeats>,
        pub valid: BoundedVec<Uid, T::MaxSeats>,
        pub faulty: BoundedVec<Uid, T::MaxSeats>,
    }

    /// Verdicts of a validator on the contributions that it checked, in uid order.
    pub type Verdicts<T> = BoundedVec<(Uid, Verdict), <T as pallet_registry::Config>::MaxSeats>;

    pub type ParticipationOf<T> =
        Participation<BoundedVec<MemberParticipation, <T as pallet_registry::Config>::MaxSeats>>;

    /// Runs with a task scheduled at a later block, each with its place in the queue.
    #[pallet::storage]
    pub type ScheduledTasks<T: Config> =
        StorageMap<_, Twox64Concat, Block, BoundedVec<(RunId, Turn), T::MaxRuns>, ValueQuery>;

    /// Late tasks, and the service time of the run that was served last.
    #[pallet::storage]
    pub type LateTasks<T: Config> = StorageValue<_, TaskQueue<T>, ValueQuery>;

    /// Late tasks of a chain.
    #[derive(CloneNoBound, DebugNoBound, DefaultNoBound, PartialEqNoBound, EqNoBound)]
    #[derive(Encode, Decode, MaxEncodedLen, TypeInfo)]
    #[scale_info(skip_type_params(T))]
    pub struct TaskQueue<T: Config> {
        /// Current service time. A run with less served time starts here: it receives no credit for the past.
        pub served: u64,
        /// Each late task, with its block.
        pub late: BoundedVec<(RunId, Block, Turn), T::MaxRuns>,
    }

    #[pallet::storage]
    pub type ProgressOf<T: Config> = StorageMap<_, Twox64Concat, RunId, Progress>;

    #[pallet::storage]
    pub type Records<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Window, Record<T>>;

    #[pallet::storage]
    pub type PresenceOf<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Presence>;

    /// Counted stakes of the validators with stake of their own, in uid order.
    #[pallet::storage]
    pub type CountedStakes<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<CountedStake, T::MaxSeats>, ValueQuery>;

    /// Digests of contributions (PROT-11).
    #[pallet::storage]
    pub type Commitments<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// Number of commitments of each slot of a window, by position among the slots. Missing entries are 0.
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

    /// Exclusive or of the salts revealed with attestations in a window (PROT-2): the order in which an author
    /// includes them does not affect it.
    #[pallet::storage]
    pub type RevealedSalts<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Window, Digest, ValueQuery>;

    /// Data of a run's next window, until that window opens (PROT-5).
    #[pallet::storage]
    pub type NextDeal<T: Config> = StorageMap<_, Twox64Concat, RunId, Dealt<T>>;

    /// [`protocol::view::Deal`] with bounds; the cursor is the run's.
    #[derive(CloneNoBound, DebugNoBound, PartialEqNoBound, EqNoBound)]
    #[derive(Encode, Decode, MaxEncodedLen, TypeInfo)]
    #[scale_info(skip_type_params(T))]
    pub struct Dealt<T: Config> {
        pub window: Window,
        pub seed: Digest,
        pub slots: BoundedVec<Uid, T::MaxSeats>,
    }

    #[pallet::storage]
    pub type Attestations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Verdicts<T>>;

    #[pallet::storage]
    pub type Votes<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Vote>;

    /// Commitments of attestations, until they are revealed (PROT-30).
    #[pallet::storage]
    pub type HiddenAttestations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// Commitments of votes, until they are revealed (PROT-30).
    #[pallet::storage]
    pub type HiddenVotes<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    /// Minority votes by epoch and validator (PROT-19).
    #[pallet::storage]
    pub type MinorityVotes<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, u32), Twox64Concat, Uid, u32, ValueQuery>;

    /// Votes in the merged windows of epochs that are not closed (PROT-30).
    #[pallet::storage]
    pub type Participations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, u32, ParticipationOf<T>, ValueQuery>;

    /// Validators' receipts and the roots over their measurements (PROT-27).
    #[pallet::storage]
    pub type Receipts<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Anchor>;

    /// Probes of the previous epoch, drawn at the opening of an epoch's first window (PROT-30).
    #[pallet::storage]
    pub type DrawnProbes<T: Config> = StorageDoubleMap<
        _,
        Twox64Concat,
        RunId,
        Twox64Concat,
        Window,
        BoundedVec<DrawnProbe, ConstU32<{ probe::PROBES }>>,
        ValueQuery,
    >;

    /// Seats punished for equivocation, once and permanently (PROT-21). Each entry cost a seat and a slash.
    #[pallet::storage]
    pub type Punished<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, SeatId, ()>;

    /// Checkpoints to which validators want to rewind, by the checkpoint's window, in uid order: standing votes
    /// (PROT-20).
    #[pallet::storage]
    pub type RewindVotes<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<(Uid, Window), T::MaxSeats>, ValueQuery>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A window opened for `slots` miners and `active_set` validators.
        WindowOpened { run: RunId, window: Window, slots: u32, active_set: u32, cursor: u64, lineage: Digest },
        /// The active set holds too little of the bonded stake. Windows are void until absent validators attest
        /// again.
        Paused { run: RunId, window: Window, active_set_stake: u128, bonded_stake: u128 },
        /// The run's owner stopped it. Windows are void and assign no data until the owner restarts it.
        Stopped { run: RunId, window: Window },
        /// The run continues: its active set has its quorum, and its owner has not stopped it.
        Resumed { run: RunId, window: Window },
        /// A miner committed to a contribution; `replaced` if it replaces an earlier commitment.
        Committed { run: RunId, window: Window, uid: Uid, digest: Digest, replaced: bool },
        /// A validator attested which contributions it could fetch and decode.
        Attested { run: RunId, window: Window, uid: Uid, valid: u32, faulty: u32 },
        /// A validator committed to an attestation, to reveal later.
        AttestationHidden { run: RunId, window: Window, uid: Uid },
        /// The selection was made.
        SelectionMade { run: RunId, window: Window, selected: u32, valid: u32, faulty: u32 },
        /// A validator voted for a merged update.
        Voted { run: RunId, window: Window, uid: Uid, vote: Vote },
        /// A validator committed to a vote, to reveal later.
        VoteHidden { run: RunId, window: Window, uid: Uid },
        /// A validator cast a minority vote: for an update other than that of two thirds.
        MinorityVote { run: RunId, window: Window, uid: Uid, update: Digest },
        /// A window was finalised. `lineage` names the model after it.
        WindowFinalised { run: RunId, window: Window, outcome: Outcome, lineage: Digest },
        /// Two thirds voted for the state that every participant holds when the checkpoint's window opens.
        CheckpointFinalised { run: RunId, checkpoint: Checkpoint },
        /// A validator votes to rewind the run to the checkpoint of a window; `None` withdraws its vote.
        RewindVoted { run: RunId, uid: Uid, to: Option<Window> },
        /// Two thirds voted to rewind to a checkpoint: `window` opens with its state. The merges since then are
        /// undone.
        Rewound { run: RunId, window: Window, to: Checkpoint },
        /// A validator published its receipts for a window, and committed to its measurements.
        ReceiptsAnchored { run: RunId, window: Window, uid: Uid, digest: Digest, probes: Digest },
        /// At the opening of `window`, these contributions were drawn for validators to show their measurements.
        ProbesDrawn { run: RunId, window: Window, probes: Vec<Probe> },
        /// A validator signed two contradicting statements, lost `slashed`, and is expelled at the next opening.
        EquivocationPunished {
            run: RunId,
            window: Window,
            uid: Uid,
            kind: StatementKind,
            reporter: T::AccountId,
            slashed: u128,
        },
        /// A validator was inactive in an epoch: it voted in less than two thirds of the merged windows that it
        /// had to decide, and earns no dividends. Emitted for members of the active set at the close of the epoch.
        Inactive { run: RunId, epoch: u32, uid: Uid },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The run does not exist. List the runs and pick one of them.
        UnknownRun,
        /// The run has not started. Wait for its first block.
        NotStarted,
        /// The window, or its phase for this call, has not begun. Wait for it.
        TooEarly,
        /// The deadline has passed. Participate in the next window.
        TooLate,
        /// The signer holds no seat in this run. Register its hotkey first, and sign with the hotkey.
        NotASeat,
        /// The signer is not a miner. Sign with a miner's hotkey.
        NotAMiner,
        /// The signer is not a validator. Sign with a validator's hotkey.
        NotAValidator,
        /// The seat does not participate in this window: it was registered after the window's data was dealt, or the
        /// run is stopped. Wait for the next window.
        NotInThisWindow,
        /// The validator does not decide this window, and cannot be punished for it: it was absent, registered late,
        /// or has too little stake. Wait for a window that it decides.
        NotInActiveSet,
        /// This validator has already attested this window. One attestation is final.
        AlreadyAttested,
        /// The verdicts do not ascend by uid. Sort them, and name each seat once.
        VerdictsNotSorted,
        /// A verdict names a seat without a commitment. Omit it: such a seat is absent, not faulty.
        NothingCommitted,
        /// This validator has already voted on this window. One vote is final.
        AlreadyVoted,
        /// The selection is empty, so the window will be void. Do not vote on it.
        NothingSelected,
        /// This window ends in a checkpoint. Vote for the state root too.
        StateRootMissing,
        /// This window does not end in a checkpoint. Vote without a state root.
        StateRootUnexpected,
        /// This run uses commit–reveal. Commit to a hash first, and reveal after the deadline.
        MustBeHidden,
        /// This run does not use commit–reveal. Post attestations and votes directly.
        NotHidden,
        /// The validator has no commitment to reveal in this window. Commit by the deadline next time.
        NothingHidden,
        /// The revealed values do not match the commitment. Reveal the same bytes with the same salt.
        OtherThanCommitted,
        /// The window is not stored: it has not opened yet, or it was pruned. Choose a stored window.
        WindowNotKept,
        /// This validator has already anchored its receipts for this window. One digest is final.
        AlreadyAnchored,
        /// The statements differ in kind, seat, window or run. Report two on the same subject.
        DifferentSubjects,
        /// The statements do not contradict each other. Report two with different digests.
        NoContradiction,
        /// A statement is not signed by this hotkey. Report statements that the accused signed.
        NotSigned,
        /// The hotkey never held the seat that the statement names. Report the seat's own statements.
        NotItsSeat,
        /// The chain has no record of this seat that the statement could contradict. Report another statement.
        NothingOnRecord,
        /// The run has no checkpoint of this window, or it is too old to be fetched from every bucket. Vote for one of
        /// the last 32 windows.
        NotACheckpoint,
        /// The validator has no standing vote to rewind. There is nothing to withdraw.
        NoRewindVote,
        /// This seat was already punished. Its holder is expelled; do not report it again.
        AlreadyPunished,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(_: BlockNumberFor<T>) -> Weight {
            Self::run_due_tasks(pallet_registry::Pallet::<T>::now())
        }

        fn integrity_test() {
            assert!(T::KeptWindows::get() >= 64, "a joining node needs the windows since a checkpoint");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    /// A call of the protocol is free if it would succeed and its seat has free calls left. Each succeeds once per
    /// seat and window (a commitment four times), and a seat holds a stake, so the number of free calls is bounded.
    /// Other calls pay.
    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Commits the signer, a miner's hotkey, to the bytes with this digest (PROT-11). Until the deadline, a later
        /// commitment replaces an earlier one.
        #[pallet::call_index(0)]
        #[pallet::weight(weight_info::commit::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, _digest: &Digest| -> bool {
            Pallet::<T>::may_commit(origin.clone(), *run, *window).is_ok_and(|permit| permit.times < FREE_COMMITMENTS)
        })]
        pub fn commit(origin: OriginFor<T>, run: RunId, window: Window, digest: Digest) -> DispatchResult {
            let permit = Self::may_commit(origin, run, window)?;
            let uid = permit.uid;

            TimesCommitted::<T>::mutate(run, window, |times| permit.count_in(times));
            Commitments::<T>::insert((run, window), uid, digest);
            let replaced = permit.times > 0;
            Self::deposit_event(Event::Committed { run, window, uid, digest, replaced });
            Ok(())
        }

        /// Attests which contributions the signer, a validator's hotkey, found valid or faulty (PROT-14), and commits
        /// to its evaluation salt for the next window (PROT-2). An omitted seat was not observed.
        ///
        /// Every validator may attest: an absent one returns to the active set by an attestation that covers at least
        /// half of the seats that two thirds call valid (PROT-3).
        #[pallet::call_index(1)]
        #[pallet::weight(weight_info::attest::<T>(verdicts.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            verdicts: &Verdicts<T>,
            _next_salt: &Digest,
        | -> bool {
            Pallet::<T>::may_attest(origin.clone(), *run, *window, verdicts).is_ok()
        })]
        pub fn attest(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            verdicts: Verdicts<T>,
            next_salt: Digest,
        ) -> DispatchResult {
            let uid = Self::may_attest(origin, run, window, &verdicts)?;

            Salts::<T>::insert((run, window.next()), uid, next_salt);
            Self::record_attestation(run, window, uid, verdicts);
            Ok(())
        }

        /// Votes for the merged update that the signer, a validator's hotkey, computed (PROT-19); at checkpoint
        /// windows also for the state root after it (PROT-20).
        #[pallet::call_index(2)]
        #[pallet::weight(weight_info::vote::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, vote: &Vote| -> bool {
            Pallet::<T>::may_vote(origin.clone(), *run, *window, vote).is_ok()
        })]
        pub fn vote(origin: OriginFor<T>, run: RunId, window: Window, vote: Vote) -> DispatchResult {
            let uid = Self::may_vote(origin, run, window, &vote)?;

            Votes::<T>::insert((run, window), uid, vote);
            Self::deposit_event(Event::Voted { run, window, uid, vote });
            Ok(())
        }

        /// Commits the signer, a validator's hotkey, to an attestation, in a run with commit–reveal (PROT-30). `hash`
        /// is [`protocol::reveal::commitment`] of the verdicts.
        #[pallet::call_index(3)]
        #[pallet::weight(weight_info::attest_hidden::<T>())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            _hash: &Digest,
            _next_salt: &Digest,
        | -> bool {
            Pallet::<T>::may_attest_hidden(origin.clone(), *run, *window).is_ok()
        })]
        pub fn attest_hidden(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            hash: Digest,
            next_salt: Digest,
        ) -> DispatchResult {
            let uid = Self::may_attest_hidden(origin, run, window)?;

            Salts::<T>::insert((run, window.next()), uid, next_salt);
            HiddenAttestations::<T>::insert((run, window), uid, hash);
            Self::deposit_event(Event::AttestationHidden { run, window, uid });
            Ok(())
        }

        /// Reveals the attestation that the signer committed to. An attestation that is not revealed in time does not
        /// count.
        #[pallet::call_index(4)]
        #[pallet::weight(weight_info::reveal_attestation::<T>(verdicts.len() as u32))]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            verdicts: &Verdicts<T>,
            salt: &Salt,
        | -> bool {
            Pallet::<T>::may_reveal_attestation(origin.clone(), *run, *window, verdicts, salt).is_ok()
        })]
        pub fn reveal_attestation(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            verdicts: Verdicts<T>,
            salt: Salt,
        ) -> DispatchResult {
            let uid = Self::may_reveal_attestation(origin, run, window, &verdicts, &salt)?;

            HiddenAttestations::<T>::remove((run, window), uid);
            RevealedSalts::<T>::mutate(run, window, |mixed| {
                mixed.0.iter_mut().zip(salt).for_each(|(mixed, byte)| *mixed ^= byte);
            });
            Self::record_attestation(run, window, uid, verdicts);
            Ok(())
        }

        /// Commits the signer, a hotkey of the active set, to a vote, in a run with commit–reveal (PROT-30). `hash`
        /// is [`protocol::reveal::commitment`] of the vote.
        #[pallet::call_index(5)]
        #[pallet::weight(weight_info::vote_hidden::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, window: &Window, _hash: &Digest| -> bool {
            Pallet::<T>::may_vote_hidden(origin.clone(), *run, *window).is_ok()
        })]
        pub fn vote_hidden(origin: OriginFor<T>, run: RunId, window: Window, hash: Digest) -> DispatchResult {
            let uid = Self::may_vote_hidden(origin, run, window)?;

            HiddenVotes::<T>::insert((run, window), uid, hash);
            Self::deposit_event(Event::VoteHidden { run, window, uid });
            Ok(())
        }

        /// Reveals the vote that the signer committed to. A vote that is not revealed in time does not count.
        #[pallet::call_index(6)]
        #[pallet::weight(weight_info::reveal_vote::<T>())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            vote: &Vote,
            salt: &Salt,
        | -> bool {
            Pallet::<T>::may_reveal_vote(origin.clone(), *run, *window, vote, salt).is_ok()
        })]
        pub fn reveal_vote(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            vote: Vote,
            salt: Salt,
        ) -> DispatchResult {
            let uid = Self::may_reveal_vote(origin, run, window, &vote, &salt)?;

            HiddenVotes::<T>::remove((run, window), uid);
            Votes::<T>::insert((run, window), uid, vote);
            Self::deposit_event(Event::Voted { run, window, uid, vote });
            Ok(())
        }

        /// Records, once, the digest of the receipt that the signer, a validator's hotkey, published for a finalised
        /// window, and the root over its measurements ([`protocol::probe::root`]; PROT-27).
        #[pallet::call_index(7)]
        #[pallet::weight(weight_info::anchor_receipts::<T>())]
        #[pallet::feeless_if(|
            origin: &OriginFor<T>,
            run: &RunId,
            window: &Window,
            _digest: &Digest,
            _probes: &Digest,
        | -> bool {
            Pallet::<T>::may_anchor(origin.clone(), *run, *window).is_ok()
        })]
        pub fn anchor_receipts(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            digest: Digest,
            probes: Digest,
        ) -> DispatchResult {
            let (uid, at) = Self::may_anchor(origin, run, window)?;

            Receipts::<T>::insert((run, window), uid, Anchor { receipts: digest, probes, at });
            Self::deposit_event(Event::ReceiptsAnchored { run, window, uid, digest, probes });
            Ok(())
        }

        /// Proves that a member of the active set of a stored window signed two different statements on the same
        /// subject. The validator is slashed and expelled. The signer receives a part of the validator's own slashed
        /// stake, and a refund of its fee (PROT-21).
        #[pallet::call_index(8)]
        #[pallet::weight((weight_info::report_equivocation::<T>(), DispatchClass::Operational))]
        pub fn report_equivocation(origin: OriginFor<T>, proof: Equivocation) -> DispatchResultWithPostInfo {
            let reporter = ensure_signed(origin)?;
            let statement =
                proof.check(&pallet_registry::Pallet::<T>::genesis()).map_err(Error::<T>::from)?;
            let conviction = Self::may_convict(&proof.hotkey, &statement)?;

            Self::punish(conviction, &statement, reporter);
            Ok(Pays::No.into())
        }

        /// Proves that a validator signed a statement that differs from the chain's record of it (PROT-21). Otherwise
        /// the same as [`Pallet::report_equivocation`].
        #[pallet::call_index(9)]
        #[pallet::weight((weight_info::report_contradiction::<T>(), DispatchClass::Operational))]
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

        /// Sets the vote of a validator, signed by its coldkey, to rewind to the checkpoint of window `to`; `None`
        /// withdraws it. The vote remains until it is replaced or withdrawn, the seat changes hands, or the checkpoint
        /// is too old. Two thirds of the active set's stake decide when a window opens (PROT-20).
        #[pallet::call_index(10)]
        #[pallet::weight(weight_info::vote_rewind::<T>())]
        pub fn vote_rewind(origin: OriginFor<T>, run: RunId, uid: Uid, to: Option<Window>) -> DispatchResult {
            Self::may_vote_rewind(origin, run, uid, to)?;

            RewindVotes::<T>::try_mutate_exists(run, |stored| {
                let mut votes = stored.take().unwrap_or_default();
                let place = votes.binary_search_by_key(&uid, |(of, _)| *of);
                match (place, to) {
                    (Ok(place), Some(to)) => votes[place] = (uid, to),
                    (Ok(place), None) => drop(votes.remove(place)),
                    // The list has room for all seats of a run.
                    (Err(place), Some(to)) => {
                        votes.try_insert(place, (uid, to)).map_err(|_| Error::<T>::NotAValidator)?
                    }
                    (Err(_), None) => return Err(Error::<T>::NoRewindVote),
                }
                *stored = (!votes.is_empty()).then_some(votes);
                Ok(())
            })?;
            Self::deposit_event(Event::RewindVoted { run, uid, to });
            Ok(())
        }
    }
}
