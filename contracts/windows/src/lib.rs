//! The windows of every run: who takes part, what was committed, attested and voted, and how each window ended.
//!
//! A window's life is a handful of steps at fixed blocks (PROT-1), and between them only calls change anything:
//!
//! | offset          | what happens by itself                                                           |
//! |-----------------|----------------------------------------------------------------------------------|
//! | 0               | slots, electorate, data cursor, lineage and weights are taken down               |
//! | 1               | the hash of the opening block is known                                           |
//! | `commit_by + 2` | the hash that evaluation is drawn from is known                                  |
//! | `attest_by + 1` | the selection stands (PROT-16)                                                   |
//! | `vote_by + 1`   | the window is merged or void, and never changes again (PROT-19)                  |
//!
//! Each run has one entry in the agenda, at the block of its next step, so a block in which nothing is due costs one
//! read. What decides is in `electorate` and `tally`, plain functions; what is here remembers.
//!
//! Not here yet: hidden attestations and votes (PROT-30), and proofs of equivocation (PROT-21).
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::Weight;
use protocol::{Block, Digest, RunId, Uid, Window, view::Checkpoint};
use scale_info::TypeInfo;

mod electorate;
#[cfg(test)]
mod mock;
mod tally;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

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
    /// Whether the electorate is below its quorum (PROT-3).
    pub paused: bool,
    /// The block of the run's one entry in the agenda.
    pub next_step: Block,
}

/// When a validator was last heard of: what decides whether it is absent (PROT-3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Presence {
    /// The first window at whose opening the validator had its stake.
    pub since: Window,
    pub last_attested: Option<Window>,
}

/// A validator that decides, as an epoch closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub uid: Uid,
    pub stake: u128,
    /// Whether it attested at least once in the epoch: who did not earns no dividends (PROT-3).
    pub attested: bool,
}

/// The consensus that selection draws by, made from what validators post once an epoch.
pub trait Epochs {
    /// The consensus weights that stand now, in uid order.
    fn weights(run: RunId) -> Vec<(Uid, u16)>;

    /// Closes `epoch`, whose last window is over, and returns what that cost. `electorate` is in uid order.
    fn close(run: RunId, epoch: u32, electorate: &[Member]) -> Weight;
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::{Member, electorate::Bonded, tally};
    use frame::{deps::sp_core::H256, prelude::*};
    use pallet_registry::{OnRunCreated, Run, Seat, Seats};
    use protocol::{
        Role, RunParams, Schedule, Terms, assign, lineage,
        select::{self, Candidate, Selected},
        view::{Outcome, Position, Selection, Verdict, VoidReason, Vote, WindowView},
    };

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config<Hash = H256> {
        type Registry: Seats<Self::AccountId>;

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
        /// In uid order, with their stake (PROT-3).
        pub electorate: BoundedVec<(Uid, u128), T::MaxSeats>,
        pub lineage: Digest,
        /// In uid order (PROT-16).
        pub weights: BoundedVec<(Uid, u16), T::MaxSeats>,
        pub paused: bool,
        pub selection: Option<Choice<T>>,
        pub outcome: Option<Outcome>,
    }

    /// A [`Selection`] with its bounds.
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

    /// The runs that have a step to take at a block.
    #[pallet::storage]
    pub type Agenda<T: Config> =
        StorageMap<_, Twox64Concat, Block, BoundedVec<RunId, T::MaxRuns>, ValueQuery>;

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

    /// Digests of the salts that validators will reveal for a window, committed before it opened (PROT-2).
    #[pallet::storage]
    pub type Salts<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Digest>;

    #[pallet::storage]
    pub type Attestations<T: Config> =
        StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Verdicts<T>>;

    #[pallet::storage]
    pub type Votes<T: Config> = StorageDoubleMap<_, Twox64Concat, (RunId, Window), Twox64Concat, Uid, Vote>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A window opened for `slots` miners and `electorate` validators.
        WindowOpened { run: RunId, window: Window, slots: u32, electorate: u32, cursor: u64, lineage: Digest },
        /// The electorate holds too little of the bonded stake: windows are void until absent validators attest again.
        Paused { run: RunId, window: Window, electorate_stake: u128, bonded_stake: u128 },
        /// The electorate has its quorum again.
        Resumed { run: RunId, window: Window },
        /// A miner committed to a contribution; `replaced` if it had committed to another one before.
        Committed { run: RunId, window: Window, uid: Uid, digest: Digest, replaced: bool },
        /// A validator said what it could fetch and decode.
        Attested { run: RunId, window: Window, uid: Uid, valid: u32, faulty: u32 },
        /// The selection stands.
        SelectionFixed { run: RunId, window: Window, selected: u32, valid: u32, faulty: u32 },
        /// A validator voted the merged update.
        Voted { run: RunId, window: Window, uid: Uid, vote: Vote },
        /// A window is fixed. `lineage` is the model that everyone holds after it.
        WindowFixed { run: RunId, window: Window, outcome: Outcome, lineage: Digest },
        /// Two thirds voted the state that everyone holds when the checkpoint's window opens.
        CheckpointFixed { run: RunId, checkpoint: Checkpoint },
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
        /// The seat was registered after the window had opened. It counts from the next one.
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
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(_: BlockNumberFor<T>) -> Weight {
            let now = Self::now();
            let due = Agenda::<T>::get(now);
            if due.is_empty() {
                return T::DbWeight::get().reads(1);
            }
            Agenda::<T>::remove(now);
            due.into_iter().fold(T::DbWeight::get().reads_writes(1, 1), |weight, run| {
                weight.saturating_add(Self::advance(run, now))
            })
        }

        fn integrity_test() {
            assert!(T::KeptWindows::get() >= 64, "a node that joins needs the windows since a checkpoint");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Commits the signer, a miner's hotkey, to the bytes with this digest (PROT-11). Until the deadline a later
        /// commitment replaces an earlier one.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::commit())]
        pub fn commit(origin: OriginFor<T>, run: RunId, window: Window, digest: Digest) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let (params, offset) = Self::open_window(run, window)?;
            ensure!(offset <= params.schedule.commit_by, Error::<T>::TooLate);
            let (uid, role) = T::Registry::seat_of(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(role == Role::Miner, Error::<T>::NotAMiner);
            let record = Records::<T>::get(run, window).ok_or(Error::<T>::NotStarted)?;
            ensure!(record.slots.binary_search(&uid).is_ok(), Error::<T>::NotInThisWindow);

            let replaced = Commitments::<T>::contains_key((run, window), uid);
            Commitments::<T>::insert((run, window), uid, digest);
            Self::deposit_event(Event::Committed { run, window, uid, digest, replaced });
            Ok(())
        }

        /// Says which contributions the signer, a validator's hotkey, found valid or faulty (PROT-14), and commits it to
        /// its evaluation salt for the next window (PROT-2). A seat that is not named was not observed.
        ///
        /// Every validator may attest: one that is absent comes back into the electorate by it.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::attest(verdicts.len() as u32))]
        pub fn attest(
            origin: OriginFor<T>,
            run: RunId,
            window: Window,
            verdicts: Verdicts<T>,
            next_salt: Digest,
        ) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let (params, offset) = Self::open_window(run, window)?;
            ensure!(offset > params.schedule.commit_by, Error::<T>::TooEarly);
            ensure!(offset <= params.schedule.attest_by, Error::<T>::TooLate);
            let uid = Self::validator(run, &hotkey)?;
            ensure!(!Attestations::<T>::contains_key((run, window), uid), Error::<T>::AlreadyAttested);
            ensure!(verdicts.windows(2).all(|pair| pair[0].0 < pair[1].0), Error::<T>::VerdictsNotSorted);
            let committed = |uid: &Uid| Commitments::<T>::contains_key((run, window), uid);
            ensure!(verdicts.iter().all(|(uid, _)| committed(uid)), Error::<T>::NothingCommitted);

            let valid = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid).count() as u32;
            let faulty = (verdicts.len() as u32).saturating_sub(valid);
            Attestations::<T>::insert((run, window), uid, verdicts);
            Salts::<T>::insert((run, window.next()), uid, next_salt);
            let since = PresenceOf::<T>::get(run, uid).map_or(window.next(), |presence| presence.since);
            PresenceOf::<T>::insert(run, uid, Presence { since, last_attested: Some(window) });
            Self::deposit_event(Event::Attested { run, window, uid, valid, faulty });
            Ok(())
        }

        /// Votes the merged update that the signer, a validator's hotkey, computed (PROT-19), and at checkpoint windows
        /// the state root after it (PROT-20).
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::vote())]
        pub fn vote(origin: OriginFor<T>, run: RunId, window: Window, vote: Vote) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            let (params, offset) = Self::open_window(run, window)?;
            ensure!(offset > params.schedule.attest_by, Error::<T>::TooEarly);
            ensure!(offset <= params.schedule.vote_by, Error::<T>::TooLate);
            let uid = Self::validator(run, &hotkey)?;
            let record = Records::<T>::get(run, window).ok_or(Error::<T>::NotStarted)?;
            let decides = record.electorate.binary_search_by_key(&uid, |(member, _)| *member).is_ok();
            ensure!(decides, Error::<T>::NotInElectorate);
            let selection = record.selection.ok_or(Error::<T>::TooEarly)?;
            ensure!(!selection.selected.is_empty(), Error::<T>::NothingSelected);
            match (params.is_checkpoint(window), vote.state_root) {
                (true, None) => return Err(Error::<T>::StateRootMissing.into()),
                (false, Some(_)) => return Err(Error::<T>::StateRootUnexpected.into()),
                _ => {}
            }
            ensure!(!Votes::<T>::contains_key((run, window), uid), Error::<T>::AlreadyVoted);

            Votes::<T>::insert((run, window), uid, vote);
            Self::deposit_event(Event::Voted { run, window, uid, vote });
            Ok(())
        }
    }

    /// What calls have in common.
    impl<T: Config> Pallet<T> {
        fn now() -> Block {
            Block(frame_system::Pallet::<T>::block_number().saturated_into())
        }

        /// The run's parameters and the offset in `window`, which must be the one that is open.
        fn open_window(run: RunId, window: Window) -> Result<(RunParams, u32), Error<T>> {
            let params = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?.params;
            let (open, offset) = params.schedule.locate(Self::now()).ok_or(Error::<T>::NotStarted)?;
            ensure!(window >= open, Error::<T>::TooLate);
            ensure!(window <= open, Error::<T>::TooEarly);
            Ok((params, offset))
        }

        fn validator(run: RunId, hotkey: &T::AccountId) -> Result<Uid, Error<T>> {
            let (uid, role) = T::Registry::seat_of(run, hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(role == Role::Validator, Error::<T>::NotAValidator);
            Ok(uid)
        }
    }

    /// What happens by itself.
    impl<T: Config> Pallet<T> {
        /// Takes every step that `run` has at block `now`, and notes its next one.
        fn advance(run: RunId, now: Block) -> Weight {
            let Some(details) = T::Registry::run(run) else {
                defensive!("a run in the agenda exists: none is ever removed");
                return T::DbWeight::get().reads(1);
            };
            let schedule = details.params.schedule;
            let Some((window, offset)) = schedule.locate(now) else {
                defensive!("a run's first entry in the agenda is its start");
                return T::DbWeight::get().reads(1);
            };
            let mut weight = T::WeightInfo::agenda();
            if offset == 0 {
                // The window before is fixed here if its votes end with its last block.
                if let Some(previous) = window.previous() {
                    weight.saturating_accrue(Self::fix(run, previous, &details.params));
                }
                weight.saturating_accrue(Self::open(run, window, &details));
            } else if offset == 1 {
                weight.saturating_accrue(Self::note_hash(run, window, |record| &mut record.opening_hash));
            } else if offset == schedule.commit_by.saturating_add(2) {
                weight.saturating_accrue(Self::note_hash(run, window, |record| &mut record.evaluation_hash));
            } else if offset == schedule.attest_by.saturating_add(1) {
                weight.saturating_accrue(Self::choose(run, window, &details.params));
            } else if offset == schedule.vote_by.saturating_add(1) {
                weight.saturating_accrue(Self::fix(run, window, &details.params));
            }
            Self::note_next_step(run, next_step(&schedule, window, offset));
            weight
        }

        fn note_next_step(run: RunId, at: Block) {
            if Agenda::<T>::try_append(at, run).is_err() {
                defensive!("a run has one entry in the agenda, which has room for every run");
            }
            ProgressOf::<T>::mutate_extant(run, |progress| progress.next_step = at);
        }

        /// Takes down everything that the window's parties must agree on (PROT-3, 5, 16, 19).
        fn open(run: RunId, window: Window, details: &Run<T::AccountId>) -> Weight {
            let Some(mut progress) = ProgressOf::<T>::get(run) else {
                defensive!("progress is there since the run was created");
                return T::DbWeight::get().reads(1);
            };
            let params = &details.params;
            let seats = T::Registry::seats(run);

            let slots: Vec<Uid> =
                seats.iter().filter(|(_, seat)| seat.role == Role::Miner).map(|(uid, _)| *uid).collect();
            let bonded = Self::bonded(run, window, &details.terms, &seats);
            let electorate = electorate::choose(&details.terms, window, &bonded);
            let paused = !electorate.has_quorum(details.terms.quorum);

            let mut weight = T::WeightInfo::open(seats.len() as u32);
            if let Some(closed) = closed_epoch(window, params.epoch_windows) {
                let began = Window(closed.saturating_mul(params.epoch_windows));
                let attested = |uid: Uid| {
                    let presence = bonded.iter().find(|validator| validator.uid == uid);
                    presence.and_then(|validator| validator.presence.last_attested) >= Some(began)
                };
                let members: Vec<Member> = electorate
                    .members
                    .iter()
                    .map(|&(uid, stake)| Member { uid, stake, attested: attested(uid) })
                    .collect();
                weight.saturating_accrue(T::Epochs::close(run, closed, &members));
            }

            let record = Record {
                opening_hash: None,
                evaluation_hash: None,
                cursor: progress.cursor,
                lineage: progress.lineage,
                weights: BoundedVec::truncate_from(T::Epochs::weights(run)),
                slots: BoundedVec::truncate_from(slots),
                electorate: BoundedVec::truncate_from(electorate.members.clone()),
                paused,
                selection: None,
                outcome: None,
            };
            Self::deposit_event(Event::WindowOpened {
                run,
                window,
                slots: record.slots.len() as u32,
                electorate: record.electorate.len() as u32,
                cursor: record.cursor,
                lineage: record.lineage,
            });
            match (progress.paused, paused) {
                (false, true) => Self::deposit_event(Event::Paused {
                    run,
                    window,
                    electorate_stake: electorate.stake,
                    bonded_stake: electorate.bonded_stake,
                }),
                (true, false) => Self::deposit_event(Event::Resumed { run, window }),
                _ => {}
            }

            let handed_out = (record.slots.len() as u64).saturating_mul(u64::from(params.sequences_per_seat));
            progress.cursor = progress.cursor.saturating_add(handed_out);
            progress.window = Some(window);
            progress.paused = paused;
            ProgressOf::<T>::insert(run, progress);
            Records::<T>::insert(run, window, record);
            if let Some(forgotten) = window.0.checked_sub(T::KeptWindows::get()) {
                Self::forget(run, Window(forgotten));
            }
            weight
        }

        /// Validators with enough stake, in uid order, each with its presence; one not seen before is noted as present.
        fn bonded(
            run: RunId,
            window: Window,
            terms: &Terms,
            seats: &[(Uid, Seat<T::AccountId>)],
        ) -> Vec<Bonded> {
            seats
                .iter()
                .filter(|(_, seat)| seat.role == Role::Validator && seat.stake >= terms.validator_stake_min)
                .map(|(uid, seat)| {
                    let presence = PresenceOf::<T>::get(run, uid).unwrap_or_else(|| {
                        let presence = Presence { since: window, last_attested: None };
                        PresenceOf::<T>::insert(run, uid, presence);
                        presence
                    });
                    Bonded { uid: *uid, stake: seat.stake, presence }
                })
                .collect()
        }

        /// Stores the hash of the block before this one (PROT-2).
        fn note_hash(
            run: RunId,
            window: Window,
            place: impl FnOnce(&mut Record<T>) -> &mut Option<Digest>,
        ) -> Weight {
            let hash = Digest(frame_system::Pallet::<T>::parent_hash().0);
            Records::<T>::mutate(run, window, |record| {
                if let Some(record) = record {
                    *place(record) = Some(hash);
                }
            });
            T::WeightInfo::note_hash()
        }

        /// Adds the attestations up and selects who is merged (PROT-14, 16).
        fn choose(run: RunId, window: Window, params: &RunParams) -> Weight {
            let Some(mut record) = Records::<T>::get(run, window) else {
                defensive!("a window is recorded from its first block on");
                return T::DbWeight::get().reads(1);
            };
            let commitments = Self::commitments(run, window, &record);
            let attestations: Vec<(u128, Verdicts<T>)> = record
                .electorate
                .iter()
                .filter_map(|(uid, stake)| Some((*stake, Attestations::<T>::get((run, window), uid)?)))
                .collect();
            let total = tally::total(&record.electorate);
            let committed: Vec<Uid> = commitments.iter().map(|(uid, _)| *uid).collect();
            let found = tally::verdicts(
                &committed,
                attestations.iter().map(|(stake, verdicts)| (*stake, verdicts.as_slice())),
                total,
            );

            let candidates: Vec<Candidate> = commitments
                .iter()
                .filter(|(uid, _)| found.valid.binary_search(uid).is_ok())
                .map(|&(uid, digest)| Candidate {
                    uid,
                    digest,
                    weight: weight_of(&record.weights, uid),
                    // Before the first consensus nobody has a weight to be drawn by: everyone counts as new, or a run whose validators came
                    // late could never merge anything again.
                    windows_since_registration: match record.weights.is_empty() {
                        true => 0,
                        false => Self::age(run, uid, window, &params.schedule),
                    },
                })
                .collect();
            let selected = match record.opening_hash {
                Some(hash) if !record.paused => {
                    let seed = assign::seed(assign::domain::SELECT, run, window, &hash);
                    select::select(params, &seed, &candidates)
                }
                _ => Vec::new(),
            };

            Self::deposit_event(Event::SelectionFixed {
                run,
                window,
                selected: selected.len() as u32,
                valid: found.valid.len() as u32,
                faulty: found.faulty.len() as u32,
            });
            let weight = T::WeightInfo::choose(record.slots.len() as u32, record.electorate.len() as u32);
            record.selection = Some(Choice {
                selected: BoundedVec::truncate_from(selected),
                valid: BoundedVec::truncate_from(found.valid),
                faulty: BoundedVec::truncate_from(found.faulty),
            });
            Records::<T>::insert(run, window, record);
            weight
        }

        /// Windows since the seat could first take part.
        fn age(run: RunId, uid: Uid, window: Window, schedule: &Schedule) -> u32 {
            let registered =
                T::Registry::seat(run, uid).and_then(|seat| schedule.window_at(seat.registered_at));
            window.0.saturating_sub(registered.map_or(0, |registered| registered.0))
        }

        /// Ends a window, once and for all (PROT-19, 20). Does nothing to one that has ended.
        fn fix(run: RunId, window: Window, params: &RunParams) -> Weight {
            let (Some(mut record), Some(mut progress)) =
                (Records::<T>::get(run, window), ProgressOf::<T>::get(run))
            else {
                defensive!("a window is recorded from its first block on");
                return T::DbWeight::get().reads(2);
            };
            if record.outcome.is_some() {
                return T::DbWeight::get().reads(2);
            }
            let votes: Vec<(u128, Vote)> = record
                .electorate
                .iter()
                .filter_map(|(uid, stake)| Some((*stake, Votes::<T>::get((run, window), uid)?)))
                .collect();
            let agreed = tally::agreed(&votes, tally::total(&record.electorate));
            let selected_none =
                record.selection.as_ref().is_none_or(|selection| selection.selected.is_empty());
            let outcome = match agreed {
                _ if record.paused => Outcome::Void(VoidReason::Paused),
                _ if selected_none => Outcome::Void(VoidReason::TooFewContributions),
                Some(vote) => Outcome::Merged(vote),
                None => Outcome::Void(VoidReason::NoAgreement),
            };
            if let Outcome::Merged(vote) = outcome {
                progress.lineage = lineage::next(&progress.lineage, &vote.update);
            }
            Self::deposit_event(Event::WindowFixed { run, window, outcome, lineage: progress.lineage });
            if let Outcome::Merged(Vote { state_root: Some(state_root), .. }) = outcome {
                let checkpoint = Checkpoint { window: window.next(), state_root, lineage: progress.lineage };
                debug_assert!(params.is_checkpoint(window), "state roots are voted at checkpoints only");
                progress.checkpoint = Some(checkpoint);
                Self::deposit_event(Event::CheckpointFixed { run, checkpoint });
            }

            let weight = T::WeightInfo::fix(record.electorate.len() as u32);
            record.outcome = Some(outcome);
            Records::<T>::insert(run, window, record);
            ProgressOf::<T>::insert(run, progress);
            weight
        }

        fn forget(run: RunId, window: Window) {
            let key = (run, window);
            let limit = T::MaxSeats::get();
            Records::<T>::remove(run, window);
            let _ = Commitments::<T>::clear_prefix(key, limit, None);
            let _ = Salts::<T>::clear_prefix(key, limit, None);
            let _ = Attestations::<T>::clear_prefix(key, limit, None);
            let _ = Votes::<T>::clear_prefix(key, limit, None);
        }

        /// The window's commitments, in uid order.
        fn commitments(run: RunId, window: Window, record: &Record<T>) -> Vec<(Uid, Digest)> {
            let committed = |uid: &Uid| Some((*uid, Commitments::<T>::get((run, window), uid)?));
            record.slots.iter().filter_map(committed).collect()
        }
    }

    /// What the runtime API reads.
    impl<T: Config> Pallet<T> {
        pub fn progress(run: RunId) -> Option<Progress> {
            ProgressOf::<T>::get(run)
        }

        /// Where the chain stands in `run`, at the block whose state this is.
        pub fn position(run: RunId) -> Option<Position> {
            let schedule = T::Registry::run(run)?.params.schedule;
            let block = Self::now();
            Some(Position { block, window: schedule.window_at(block) })
        }

        /// A window as it stands; `None` before it opens and once it is forgotten.
        pub fn window_view(run: RunId, window: Window) -> Option<WindowView> {
            let record = Records::<T>::get(run, window)?;
            let key = (run, window);
            let commitments = Self::commitments(run, window, &record);
            let mut salts: Vec<(Uid, Digest)> = Salts::<T>::iter_prefix(key).collect();
            let mut attested: Vec<Uid> = Attestations::<T>::iter_key_prefix(key).collect();
            let mut votes: Vec<(Uid, Vote)> = Votes::<T>::iter_prefix(key).collect();
            // Storage iterates in the order of hashed keys, which is nobody's order.
            salts.sort_unstable_by_key(|(uid, _)| *uid);
            attested.sort_unstable();
            votes.sort_unstable_by_key(|(uid, _)| *uid);
            Some(WindowView {
                window,
                opening_hash: record.opening_hash,
                evaluation_hash: record.evaluation_hash,
                slots: record.slots.into_inner(),
                cursor: record.cursor,
                electorate: record.electorate.into_inner(),
                lineage: record.lineage,
                weights: record.weights.into_inner(),
                commitments,
                salts,
                attested,
                selection: record.selection.map(|choice| Selection {
                    selected: choice.selected.into_inner(),
                    valid: choice.valid.into_inner(),
                    faulty: choice.faulty.into_inner(),
                }),
                votes,
                outcome: record.outcome,
                receipts: Vec::new(),
            })
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            for (run, progress) in ProgressOf::<T>::iter() {
                let details = T::Registry::run(run).ok_or("progress of a run that does not exist")?;
                let params = details.params;
                let entries: usize =
                    Agenda::<T>::iter_values().map(|due| due.iter().filter(|id| **id == run).count()).sum();
                let at_its_step = Agenda::<T>::get(progress.next_step).contains(&run);
                if entries != 1 || !at_its_step {
                    return Err("a run has exactly one entry in the agenda, at its next step");
                }
                if progress.window != params.schedule.window_at(Self::now()) {
                    return Err("the window that opened last is not the one that is open");
                }
                let Some(open) = progress.window else {
                    continue;
                };
                let kept = open.0.saturating_sub(T::KeptWindows::get().saturating_sub(1))..=open.0;
                if Records::<T>::iter_key_prefix(run).count() != kept.clone().count() {
                    return Err("a window is kept too long or not long enough");
                }
                let mut expected: Option<(u64, Digest)> = None;
                for window in kept.map(Window) {
                    let record = Records::<T>::get(run, window).ok_or("a window is missing")?;
                    Self::check_record(run, window, &record, &details.terms)?;
                    if expected.is_some_and(|expected| expected != (record.cursor, record.lineage)) {
                        return Err("a window does not begin where the one before it ended");
                    }
                    if window < open && record.outcome.is_none() {
                        return Err("a window is over and not fixed");
                    }
                    let handed_out =
                        (record.slots.len() as u64).saturating_mul(u64::from(params.sequences_per_seat));
                    let after = match record.outcome {
                        Some(Outcome::Merged(vote)) => lineage::next(&record.lineage, &vote.update),
                        _ => record.lineage,
                    };
                    expected = Some((record.cursor.saturating_add(handed_out), after));
                }
                if expected != Some((progress.cursor, progress.lineage)) {
                    return Err("progress is not where the open window leaves it");
                }
            }
            Ok(())
        }

        fn check_record(
            run: RunId,
            window: Window,
            record: &Record<T>,
            terms: &Terms,
        ) -> Result<(), &'static str> {
            let key = (run, window);
            let in_uid_order = record.slots.windows(2).all(|pair| pair[0] < pair[1])
                && record.electorate.windows(2).all(|pair| pair[0].0 < pair[1].0)
                && record.weights.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !in_uid_order {
                return Err("a window's seats are not in uid order");
            }
            if record.electorate.len() > usize::from(terms.electorate_max) {
                return Err("the electorate is larger than the run allows");
            }
            if Commitments::<T>::iter_key_prefix(key).any(|uid| record.slots.binary_search(&uid).is_err()) {
                return Err("a commitment is from a seat that is not in the window");
            }
            let decides =
                |uid: &Uid| record.electorate.binary_search_by_key(uid, |(member, _)| *member).is_ok();
            if Votes::<T>::iter_key_prefix(key).any(|uid| !decides(&uid)) {
                return Err("a vote is from a validator outside the electorate");
            }
            if let Some(choice) = &record.selection {
                let ascends = choice.selected.windows(2).all(|pair| pair[0].uid < pair[1].uid);
                let valid = |seat: &Selected| {
                    choice.valid.binary_search(&seat.uid).is_ok()
                        && Commitments::<T>::get(key, seat.uid) == Some(seat.digest)
                };
                if !ascends || !choice.selected.iter().all(valid) {
                    return Err("a selected contribution is not one that was committed and found valid");
                }
            }
            Ok(())
        }
    }

    impl<T: Config> OnRunCreated<T::AccountId> for Pallet<T> {
        fn run_created(run: RunId, details: &Run<T::AccountId>) -> DispatchResult {
            let start = details.params.schedule.start;
            ProgressOf::<T>::insert(
                run,
                Progress {
                    window: None,
                    cursor: 0,
                    lineage: lineage::genesis(&details.params, &details.manifest, &details.theta0),
                    checkpoint: None,
                    paused: false,
                    next_step: start,
                },
            );
            Self::note_next_step(run, start);
            Ok(())
        }
    }

    /// The block of the first step after `offset` in `window`.
    fn next_step(schedule: &Schedule, window: Window, offset: u32) -> Block {
        let steps = [
            1,
            schedule.commit_by.saturating_add(2),
            schedule.attest_by.saturating_add(1),
            schedule.vote_by.saturating_add(1),
        ];
        let opening = schedule.opens_at(window).0;
        let in_window = steps.into_iter().find(|step| *step > offset && *step < schedule.blocks_per_window);
        in_window.map_or(schedule.opens_at(window.next()), |step| Block(opening.saturating_add(step)))
    }

    /// The epoch that is over when `window` opens, if one is.
    fn closed_epoch(window: Window, epoch_windows: u32) -> Option<u32> {
        let epoch = window.epoch(epoch_windows);
        let previous = window.previous()?.epoch(epoch_windows);
        (previous != epoch).then_some(previous)
    }

    fn weight_of(weights: &[(Uid, u16)], uid: Uid) -> u16 {
        weights.binary_search_by_key(&uid, |(seat, _)| *seat).map_or(0, |index| weights[index].1)
    }
}
