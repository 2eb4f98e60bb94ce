//! Scheduled tasks of a window: open it, record its hashes, select contributions, finalise it, prune it.

use crate::{
    Anchor, DrawnProbe, Epochs, Member, Members, Presence, Probes,
    active_set::{self, ActiveSet, Bonded},
    pallet::*,
    tally, weight_info,
};
use alloc::{collections::BTreeMap, vec::Vec};
use frame::prelude::*;
use pallet_registry::{Ending, Entry, MinerWeights, OnRunCreated, OnSeats, Pallet as Registry, Run, Seat};
use protocol::{
    Block, Digest, Role, RunId, RunParams, Schedule, Terms, Uid, Window, assign, lineage, probe,
    select::{self, Candidate, two_thirds},
    view::{Checkpoint, Outcome, REWIND_WINDOWS, VoidReason, Vote},
};

/// A task, scheduled at an offset of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Open,
    RecordOpeningHash,
    DealNext,
    RecordEvaluationHash,
    Select,
    Finalise,
}

/// Returns the last offset in a window at which attestations are in time, reveals included.
pub(crate) fn attest_revealed_by(params: &RunParams) -> u32 {
    params.schedule.attest_by.saturating_add(params.hidden_blocks)
}

/// Returns the last offset in a window at which votes are in time, reveals included.
pub(crate) fn vote_revealed_by(params: &RunParams) -> u32 {
    params.schedule.vote_by.saturating_add(params.hidden_blocks)
}

/// Returns the tasks of a window by offset, in order. If votes end with the window's last block, the next window's
/// opening does the last one.
fn tasks(params: &RunParams) -> [(u32, Task); 6] {
    [
        (0, Task::Open),
        (1, Task::RecordOpeningHash),
        (params.schedule.deal_offset(), Task::DealNext),
        (params.schedule.commit_by.saturating_add(2), Task::RecordEvaluationHash),
        (attest_revealed_by(params).saturating_add(1), Task::Select),
        (vote_revealed_by(params).saturating_add(1), Task::Finalise),
    ]
}

impl<T: Config> Pallet<T> {
    /// Runs the task of `run` that is due at block `at`, which is now or earlier. Returns its weight and the block of
    /// the next one; `None` if the run is cleared.
    pub(crate) fn run_task(run: RunId, at: Block) -> (Weight, Option<Block>) {
        let Some(Run { params, .. }) = Registry::<T>::run(run) else {
            // For a closed run, one step per block.
            let (done, weight) = Registry::<T>::clear_step(run);
            let next = Block(Registry::<T>::now().0.saturating_add(1));
            ProgressOf::<T>::mutate_extant(run, |progress| progress.next_step = next);
            return (weight, (!done).then_some(next));
        };
        let schedule = params.schedule;
        let Some((window, offset)) = schedule.locate(at) else {
            defensive!("a run's first task is at its start");
            return (T::DbWeight::get().reads(1), None);
        };
        let tasks = tasks(&params);
        let mut weight = weight_info::task::<T>();
        let mut add = |cost: Weight| weight.saturating_accrue(cost);
        match tasks.iter().find(|(at, _)| *at == offset).map(|(_, task)| task) {
            Some(Task::Open) => {
                // If votes end with a window's last block, the window is finalised here.
                if let Some(previous) = window.previous() {
                    add(Self::finalise(run, previous, &params));
                }
                add(Registry::<T>::window_opens(run, window));
                add(Self::open(run, window));
            }
            Some(Task::RecordOpeningHash) => {
                add(Self::record_hash(run, window, at, |record| &mut record.opening_hash));
                add(Self::record_deal_seed(run, window));
                add(Self::draw_probes(run, window, &params));
                if let Some(oldest) = window.0.checked_sub(T::KeptWindows::get()) {
                    add(Self::prune(run, Window(oldest)));
                }
            }
            Some(Task::DealNext) => add(Self::deal_next(run, window, at)),
            Some(Task::RecordEvaluationHash) => {
                add(Self::record_hash(run, window, at, |record| &mut record.evaluation_hash));
            }
            Some(Task::Select) => add(Self::select(run, window, &params)),
            Some(Task::Finalise) => add(Self::finalise(run, window, &params)),
            None => {
                defensive!("a run's scheduled block is that of a task");
            }
        }
        let next = tasks.into_iter().find(|(at, _)| *at > offset && *at < schedule.blocks_per_window);
        let next = match next {
            Some((next, _)) => Block(schedule.opens_at(window).0.saturating_add(next)),
            None => schedule.opens_at(window.next()),
        };
        ProgressOf::<T>::mutate_extant(run, |progress| progress.next_step = next);
        (weight, Some(next))
    }

    /// Opens a window: records a snapshot of everything that its participants must agree on (PROT-3, 5, 16, 19), and
    /// closes the epoch whose weights are revealed by now.
    pub(crate) fn open(run: RunId, window: Window) -> Weight {
        let (Some(details), Some(mut progress)) = (Registry::<T>::run(run), ProgressOf::<T>::get(run)) else {
            defensive!("run and progress exist since the run was created");
            return T::DbWeight::get().reads(2);
        };
        let Run { params, terms, stopped, .. } = details;
        let mut roster = Registry::<T>::roster(run);
        // A seat registered while this task was late counts from the next window.
        roster.retain(|(_, entry)| entry.since <= window);
        let (miners, validators) = (of_role(&roster, Role::Miner), of_role(&roster, Role::Validator));
        let mut weight = weight_info::open::<T>(miners.len() as u32, validators.len() as u32);

        // A stopped run assigns no data, so that none is consumed.
        let dealt = NextDeal::<T>::take(run).filter(|dealt| dealt.window == window && !stopped);
        let (deal_seed, slots) = match dealt {
            Some(Dealt { seed, slots, .. }) => (Some(seed), slots),
            None if stopped => (None, BoundedVec::new()),
            None => (None, BoundedVec::truncate_from(miners)),
        };
        let bonded = Self::bonded(run, window, &validators);
        let before = CountedStakes::<T>::get(run);
        let counted = active_set::count_stakes(&terms, params.epoch_windows, window, &bonded, &before);
        let active_set = active_set::choose(&terms, window, &bonded, &counted);
        CountedStakes::<T>::insert(run, BoundedVec::truncate_from(counted));
        let has_quorum = active_set.has_quorum(terms.quorum);
        let paused = stopped || !has_quorum;
        Self::count_rewind_votes(run, window, &active_set.members, has_quorum, &mut progress);

        if let Some(epoch) = closed_epoch(window, &params) {
            weight.saturating_accrue(Self::close_epoch(run, epoch, &params, &active_set.members, &bonded));
        }

        let record = Record {
            opening_hash: None,
            deal_seed,
            evaluation_hash: None,
            cursor: progress.cursor,
            lineage: progress.lineage,
            weights: BoundedVec::truncate_from(T::MinerWeights::weights(run)),
            slots,
            active_set: BoundedVec::truncate_from(active_set.members.clone()),
            registered_at: BoundedVec::truncate_from(active_set.registered_at.clone()),
            paused,
            selection: None,
            outcome: None,
        };
        Self::deposit_event(Event::WindowOpened {
            run,
            window,
            slots: record.slots.len() as u32,
            active_set: record.active_set.len() as u32,
            cursor: record.cursor,
            lineage: record.lineage,
        });
        let ActiveSet { stake: active_set_stake, bonded_stake, .. } = active_set;
        match (progress.paused, paused) {
            (false, true) if stopped => Self::deposit_event(Event::Stopped { run, window }),
            (false, true) => {
                Self::deposit_event(Event::Paused { run, window, active_set_stake, bonded_stake })
            }
            (true, false) => Self::deposit_event(Event::Resumed { run, window }),
            _ => {}
        }

        let assigned = (record.slots.len() as u64).saturating_mul(u64::from(params.sequences_per_seat));
        progress.cursor = progress.cursor.saturating_add(assigned);
        progress.window = Some(window);
        progress.paused = paused;
        ProgressOf::<T>::insert(run, progress);
        Records::<T>::insert(run, window, record);
        weight
    }

    /// Rewinds to the checkpoint with two thirds of the stake behind it, if the active set has its quorum (PROT-20).
    /// Drops votes for checkpoints that are too old, and all votes after a rewind.
    fn count_rewind_votes(
        run: RunId,
        window: Window,
        active_set: &[(Uid, u128)],
        has_quorum: bool,
        progress: &mut crate::Progress,
    ) {
        let mut votes = RewindVotes::<T>::get(run);
        if votes.is_empty() {
            return;
        }
        let total = tally::total(active_set);
        let agreed = tally::rewind_stakes(&votes, active_set)
            .into_iter()
            .find(|(_, stake)| has_quorum && select::two_thirds(*stake, total))
            .and_then(|(to, _)| Self::rewind_target(run, window, to));
        match agreed {
            Some(to) => {
                progress.lineage = to.lineage;
                progress.checkpoint = Some(to);
                progress.rewound = Some(window);
                RewindVotes::<T>::remove(run);
                Self::deposit_event(Event::Rewound { run, window, to });
            }
            None => {
                votes.retain(|(_, to)| is_recent(*to, window.next()));
                match votes.is_empty() {
                    true => RewindVotes::<T>::remove(run),
                    false => RewindVotes::<T>::insert(run, votes),
                }
            }
        }
    }

    /// Returns the checkpoint of window `to`, if `window` may open with its state: it was fixed, and every bucket
    /// keeps it for long enough. A checkpoint abandoned by an earlier rewind counts too, so that a rewind can be
    /// undone.
    pub(crate) fn rewind_target(run: RunId, window: Window, to: Window) -> Option<Checkpoint> {
        let record = Records::<T>::get(run, to.previous().filter(|_| is_recent(to, window))?)?;
        match record.outcome? {
            Outcome::Merged(Vote { update, state_root: Some(state_root) }) => {
                Some(Checkpoint { window: to, state_root, lineage: lineage::next(&record.lineage, &update) })
            }
            _ => None,
        }
    }

    /// Closes `epoch` with the active set of the window that opens, and clears the counts of the epoch.
    fn close_epoch(
        run: RunId,
        epoch: u32,
        params: &RunParams,
        active_set: &[(Uid, u128)],
        bonded: &[Bonded],
    ) -> Weight {
        let participation = Participations::<T>::take(run, epoch);
        let members: Vec<Member> = active_set
            .iter()
            .map(|&(uid, stake)| {
                let presence =
                    bonded.iter().find(|validator| validator.seat.uid == uid).map(|bonded| bonded.presence);
                member_of::<T>(run, epoch, params, uid, stake, presence, &participation)
            })
            .collect();
        for Member { uid, .. } in members.iter().filter(|member| member.silent) {
            Self::deposit_event(Event::Inactive { run, epoch, uid: *uid });
        }
        // Minority votes for each member, and the participation.
        let touched = (members.len() as u64).saturating_add(1);
        let weight = T::DbWeight::get().reads_writes(touched, touched);
        let closing = T::Epochs::close(run, epoch, participation.merged, &members);
        let _ = MinorityVotes::<T>::clear_prefix((run, epoch), T::MaxSeats::get(), None);
        weight.saturating_add(closing)
    }

    /// Returns the validators with stake of their own, in uid order, with the stake behind them and presence. Records
    /// the presence of validators seen for the first time.
    ///
    /// The run's minimum applies to validators that register or remove stake. A higher minimum does not exclude
    /// holders of a seat (PROT-3).
    fn bonded(run: RunId, window: Window, validators: &[Uid]) -> Vec<Bonded> {
        validators
            .iter()
            .filter_map(|uid| Some((uid, Registry::<T>::seat(run, *uid)?)))
            .filter(|(_, seat)| seat.stake > 0)
            .map(|(uid, seat)| {
                let presence = PresenceOf::<T>::get(run, uid).unwrap_or_else(|| {
                    let presence = Presence { since: window, last_attested: None, epoch_before: None };
                    PresenceOf::<T>::insert(run, uid, presence);
                    presence
                });
                Bonded { seat: seat.id(*uid), stake: Registry::<T>::stake_behind(run, *uid, &seat), presence }
            })
            .collect()
    }

    /// Records the hash of the block before `at` (PROT-2). If the task runs after the chain has pruned the hash, it
    /// records none, and the window is void.
    pub(crate) fn record_hash(
        run: RunId,
        window: Window,
        at: Block,
        place: impl FnOnce(&mut Record<T>) -> &mut Option<Digest>,
    ) -> Weight {
        let number: BlockNumberFor<T> = at.0.saturating_sub(1).into();
        let hash = frame_system::Pallet::<T>::block_hash(number);
        Records::<T>::mutate(run, window, |record| {
            if let Some(record) = record {
                *place(record) = (hash != T::Hash::default()).then_some(Digest(hash.0));
            }
        });
        weight_info::record_hash::<T>()
    }

    /// Records the seed of the window's assignment, if the previous window did not deal it (PROT-2).
    pub(crate) fn record_deal_seed(run: RunId, window: Window) -> Weight {
        let (salts, members) = Self::revealed_salts_before(run, window);
        Records::<T>::mutate(run, window, |record| {
            if let Some(record) = record
                && record.deal_seed.is_none()
            {
                record.deal_seed = record.opening_hash.map(|hash| salts.unwrap_or(hash));
            }
        });
        weight_info::record_deal_seed::<T>(members)
    }

    /// Deals the data of the window after `window` to the seats of the block before `at` (PROT-5). If the run is
    /// stopped, or the chain has already pruned the hash, nothing is dealt here: the next window is dealt when it
    /// opens.
    pub(crate) fn deal_next(run: RunId, window: Window, at: Block) -> Weight {
        let (salts, members) = Self::revealed_salts_before(run, window);
        let hash = frame_system::Pallet::<T>::block_hash(BlockNumberFor::<T>::from(at.0.saturating_sub(1)));
        let hash = (hash != T::Hash::default()).then_some(Digest(hash.0));
        let mut roster = Registry::<T>::roster(run);
        // A seat registered while this task was late is dealt data in the next window.
        roster.retain(|(_, entry)| entry.since <= window.next() && entry.registered_at < at);
        let miners = of_role(&roster, Role::Miner);
        let weight = weight_info::deal_next::<T>(miners.len() as u32, members);
        let stopped = Registry::<T>::run(run).is_none_or(|run| run.stopped);
        if let Some(seed) = salts.or(hash).filter(|_| !stopped) {
            let dealt = Dealt { window: window.next(), seed, slots: BoundedVec::truncate_from(miners) };
            NextDeal::<T>::insert(run, dealt);
        }
        weight
    }

    /// Returns the mix of the salts revealed with the attestations of the window before `window`, and the number of
    /// its members. There is no mix unless members with two thirds of its stake revealed their salts (PROT-2). A
    /// block's author cannot choose the mix.
    fn revealed_salts_before(run: RunId, window: Window) -> (Option<Digest>, u32) {
        let Some((before, record)) =
            window.previous().and_then(|before| Some((before, Records::<T>::get(run, before)?)))
        else {
            return (None, 0);
        };
        let members = record.active_set.len() as u32;
        let Ok(mixed) = RevealedSalts::<T>::try_get(run, before) else { return (None, members) };
        let revealed =
            record.active_set.iter().filter(|(uid, _)| Attestations::<T>::contains_key((run, before), uid));
        let stake = revealed.fold(0, |sum: u128, (_, stake)| sum.saturating_add(*stake));
        (two_thirds(stake, tally::total(&record.active_set)).then_some(mixed), members)
    }

    /// At the first `window` of an epoch, draws the contributions of the previous epoch for which validators show
    /// their measurements (PROT-30). Validators cannot know the draw before the window opens, and only earlier roots
    /// count.
    pub(crate) fn draw_probes(run: RunId, window: Window, params: &RunParams) -> Weight {
        let epoch = window.epoch(params.epoch_windows);
        let Some(before) =
            epoch.checked_sub(1).filter(|_| window.0 == epoch.saturating_mul(params.epoch_windows))
        else {
            return Weight::zero();
        };
        let Some(hash) = Records::<T>::get(run, window).and_then(|record| record.opening_hash) else {
            return T::DbWeight::get().reads(1);
        };
        // Roots of windows that are pruned before the answers are due could not be checked.
        let due = window.0.saturating_add(params.reveal_windows);
        let kept = due.saturating_sub(T::KeptWindows::get().saturating_sub(1));
        let windows = params.probe_windows(before);
        let windows = windows.start.max(kept)..windows.end;
        let weight = weight_info::draw_probes::<T>(windows.len() as u32);
        let selected: Vec<(Window, Vec<Uid>)> = windows
            .map(Window)
            .filter_map(|window| {
                let record = Records::<T>::get(run, window)?;
                let merged = matches!(record.outcome, Some(Outcome::Merged(_)));
                let choice = record.selection.filter(|_| merged)?;
                Some((window, choice.selected.iter().map(|seat| seat.uid).collect()))
            })
            .collect();
        let probes = probe::draw(run, window, &hash, &selected);
        let drawn = probes.iter().filter_map(|probe| {
            let (_, seats) = selected.iter().find(|(window, _)| *window == probe.window)?;
            let place = seats.iter().position(|uid| *uid == probe.uid)?;
            // A window has at most as many seats as there are uids.
            Some(DrawnProbe { probe: *probe, place: place as u16, leaves: seats.len() as u16 })
        });
        DrawnProbes::<T>::insert(run, window, BoundedVec::truncate_from(drawn.collect()));
        Self::deposit_event(Event::ProbesDrawn { run, window, probes });
        weight
    }

    /// Counts the attestations, records which validators were present, and selects the contributions to merge (PROT-3,
    /// 14, 16).
    pub(crate) fn select(run: RunId, window: Window, params: &RunParams) -> Weight {
        let Some(mut record) = Records::<T>::get(run, window) else {
            defensive!("an open window has a record");
            return T::DbWeight::get().reads(1);
        };
        let commitments = Self::commitments(run, window, &record);
        let attestations: BTreeMap<Uid, Verdicts<T>> =
            Attestations::<T>::iter_prefix((run, window)).collect();
        let total = tally::total(&record.active_set);
        let committed: Vec<Uid> = commitments.iter().map(|(uid, _)| *uid).collect();
        let of_active_set = record.active_set.iter();
        let of_active_set =
            of_active_set.filter_map(|(uid, stake)| Some((*stake, attestations.get(uid)?.as_slice())));
        let found = tally::verdicts(&committed, of_active_set, total);
        let present = attestations.iter().filter(|(_, verdicts)| tally::covers_half(verdicts, &found.valid));
        for (uid, _) in present {
            Self::record_presence(run, window, *uid, params.epoch_windows);
        }

        // Before the first consensus no seat has a weight. If seats stopped counting as newcomers meanwhile, a run
        // whose validators registered late could never merge again. Therefore every seat counts as a newcomer.
        let everyone_is_new = record.weights.is_empty();
        // Seats do not change within a window, so the roster is that of the opening.
        let roster = if everyone_is_new { Vec::new() } else { Registry::<T>::roster(run) };
        let candidates: Vec<Candidate> = commitments
            .iter()
            .filter(|(uid, _)| found.valid.binary_search(uid).is_ok())
            .map(|&(uid, digest)| Candidate {
                uid,
                digest,
                weight: weight_of(&record.weights, uid),
                windows_since_registration: match everyone_is_new {
                    true => 0,
                    false => age(&roster, uid, window, &params.schedule),
                },
            })
            .collect();
        // The hash of a block after the last commitment, so that miners cannot know the draw before they commit
        // (PROT-2). Without a seed, miners did not know their data.
        let selected = match record.evaluation_hash {
            Some(hash) if record.deal_seed.is_some() && !record.paused => {
                let seed = assign::seed(assign::domain::SELECT, run, window, &hash);
                select::select(params, &seed, &candidates)
            }
            _ => Vec::new(),
        };

        Self::deposit_event(Event::SelectionMade {
            run,
            window,
            selected: selected.len() as u32,
            valid: found.valid.len() as u32,
            faulty: found.faulty.len() as u32,
        });
        let attested = record.active_set.len().max(attestations.len()) as u32;
        let weight = weight_info::select::<T>(record.slots.len() as u32, attested);
        record.selection = Some(Choice {
            selected: BoundedVec::truncate_from(selected),
            valid: BoundedVec::truncate_from(found.valid),
            faulty: BoundedVec::truncate_from(found.faulty),
        });
        Records::<T>::insert(run, window, record);
        weight
    }

    fn record_presence(run: RunId, window: Window, uid: Uid, epoch_windows: u32) {
        // A seat registered in this window is bonded from the next opening.
        let presence = PresenceOf::<T>::get(run, uid).unwrap_or(Presence {
            since: window.next(),
            last_attested: None,
            epoch_before: None,
        });
        PresenceOf::<T>::insert(run, uid, presence.attested(window, epoch_windows));
    }

    /// Counts the votes and records the window's outcome (PROT-19, 20). Has no effect on a finalised window.
    pub(crate) fn finalise(run: RunId, window: Window, params: &RunParams) -> Weight {
        let (Some(mut record), Some(mut progress)) =
            (Records::<T>::get(run, window), ProgressOf::<T>::get(run))
        else {
            defensive!("an open window has a record");
            return T::DbWeight::get().reads(2);
        };
        if record.outcome.is_some() {
            return T::DbWeight::get().reads(2);
        }
        let votes: Vec<(Uid, u128, Vote)> = record
            .active_set
            .iter()
            .filter_map(|(uid, stake)| Some((*uid, *stake, Votes::<T>::get((run, window), uid)?)))
            .collect();
        let agreed = tally::agreed(
            votes.iter().map(|(_, stake, vote)| (*stake, *vote)),
            tally::total(&record.active_set),
        );
        let selected_none = record.selection.as_ref().is_none_or(|selection| selection.selected.is_empty());
        let outcome = match agreed {
            _ if record.paused => Outcome::Void(VoidReason::Paused),
            _ if selected_none => Outcome::Void(VoidReason::TooFewContributions),
            Some(vote) => Outcome::Merged(vote),
            None => Outcome::Void(VoidReason::NoAgreement),
        };
        if let Outcome::Merged(agreed) = outcome {
            progress.lineage = lineage::next(&progress.lineage, &agreed.update);
            Self::record_minority_votes(run, window, params, &votes, &agreed);
            Participations::<T>::mutate(run, window.epoch(params.epoch_windows), |participation| {
                let voters: Vec<Uid> = votes.iter().map(|(uid, ..)| *uid).collect();
                let members = tally::participation(&participation.members, &record.active_set, &voters);
                participation.merged = participation.merged.saturating_add(1);
                // Never longer than the number of seats: `vacated` removes a seat that leaves.
                participation.members = BoundedVec::truncate_from(members);
            });
        }
        Self::deposit_event(Event::WindowFinalised { run, window, outcome, lineage: progress.lineage });
        if let Outcome::Merged(Vote { state_root: Some(state_root), .. }) = outcome {
            let checkpoint = Checkpoint { window: window.next(), state_root, lineage: progress.lineage };
            debug_assert!(params.is_checkpoint(window), "only checkpoint windows have a state root");
            progress.checkpoint = Some(checkpoint);
            Self::deposit_event(Event::CheckpointFinalised { run, checkpoint });
        }

        let weight = weight_info::finalise::<T>(record.active_set.len() as u32);
        record.outcome = Some(outcome);
        Records::<T>::insert(run, window, record);
        ProgressOf::<T>::insert(run, progress);
        weight
    }

    /// Counts the minority votes: those for an update other than that of two thirds. Each costs its validator the
    /// epoch's dividends (PROT-19).
    ///
    /// A network fault cannot cause one. The update is a function of the selection and of bytes named by their
    /// digests: a validator that lacks any of them computes no update and casts no vote. A late or missing vote does
    /// not count as a minority vote. counted here.
    fn record_minority_votes(
        run: RunId,
        window: Window,
        params: &RunParams,
        votes: &[(Uid, u128, Vote)],
        agreed: &Vote,
    ) {
        let epoch = window.epoch(params.epoch_windows);
        for (uid, _, vote) in votes.iter().filter(|(_, _, vote)| vote.update != agreed.update) {
            MinorityVotes::<T>::mutate((run, epoch), uid, |count| *count = count.saturating_add(1));
            Self::deposit_event(Event::MinorityVote { run, window, uid: *uid, update: vote.update });
        }
    }

    /// Removes a window and all its entries. Each map has at most one entry per seat.
    pub(crate) fn prune(run: RunId, window: Window) -> Weight {
        weight_info::prune::<T>(Self::remove_window(run, window))
    }

    /// Removes a window; returns the number of entries besides its record.
    pub(crate) fn remove_window(run: RunId, window: Window) -> u32 {
        let key = (run, window);
        let limit = T::MaxSeats::get();
        Records::<T>::remove(run, window);
        TimesCommitted::<T>::remove(run, window);
        DrawnProbes::<T>::remove(run, window);
        RevealedSalts::<T>::remove(run, window);
        let removed = [
            Commitments::<T>::clear_prefix(key, limit, None).unique,
            Salts::<T>::clear_prefix(key, limit, None).unique,
            Attestations::<T>::clear_prefix(key, limit, None).unique,
            Votes::<T>::clear_prefix(key, limit, None).unique,
            HiddenAttestations::<T>::clear_prefix(key, limit, None).unique,
            HiddenVotes::<T>::clear_prefix(key, limit, None).unique,
            Receipts::<T>::clear_prefix(key, limit, None).unique,
        ];
        removed.iter().fold(0, |sum: u32, count| sum.saturating_add(*count))
    }

    /// Returns the window's commitments, in uid order.
    pub(crate) fn commitments(run: RunId, window: Window, record: &Record<T>) -> Vec<(Uid, Digest)> {
        let times = TimesCommitted::<T>::get(run, window);
        let committed = |(slot, uid): (usize, &Uid)| {
            if times.get(slot).is_none_or(|times| *times == 0) {
                return None;
            }
            Some((*uid, Commitments::<T>::get((run, window), uid)?))
        };
        record.slots.iter().enumerate().filter_map(committed).collect()
    }
}

impl<T: Config> OnRunCreated<T::AccountId> for Pallet<T> {
    fn run_created(run: RunId, details: &Run<T::AccountId>) -> DispatchResult {
        let start = details.params.schedule.start;
        ProgressOf::<T>::insert(
            run,
            crate::Progress {
                window: None,
                cursor: 0,
                lineage: lineage::genesis(&details.params, &details.manifest, &details.theta0),
                checkpoint: None,
                rewound: None,
                paused: false,
                next_step: start,
            },
        );
        // The expected maximum cost of a task: the opening of its first window with all seats taken.
        let Terms { miner_seats_max, validator_seats_max, .. } = details.terms;
        let load = weight_info::open::<T>(miner_seats_max.into(), validator_seats_max.into()).ref_time();
        Self::schedule(run, start, crate::Turn { served: 0, load });
        Ok(())
    }
}

/// Returns a validator's record for the close of an epoch.
fn member_of<T: Config>(
    run: RunId,
    epoch: u32,
    params: &RunParams,
    uid: Uid,
    stake: u128,
    presence: Option<Presence>,
    participation: &ParticipationOf<T>,
) -> Member {
    let attested = presence.is_some_and(|presence| presence.attested_in(epoch, params.epoch_windows));
    let present_throughout =
        presence.is_some_and(|presence| presence.present_throughout(epoch, params.epoch_windows));
    let silent = present_throughout && tally::is_inactive(participation.merged, &participation.members, uid);
    Member { uid, stake, attested, minority_votes: MinorityVotes::<T>::get((run, epoch), uid), silent }
}

impl<T: Config> Members for Pallet<T> {
    fn member(run: RunId, uid: Uid, epoch: u32) -> Option<Member> {
        let params = Registry::<T>::run(run)?.params;
        let active_set = Records::<T>::get(run, ProgressOf::<T>::get(run)?.window?)?.active_set;
        let place = active_set.binary_search_by_key(&uid, |(member, _)| *member).ok()?;
        let (_, stake) = *active_set.get(place)?;
        let (presence, participation) =
            (PresenceOf::<T>::get(run, uid), Participations::<T>::get(run, epoch));
        Some(member_of::<T>(run, epoch, &params, uid, stake, presence, &participation))
    }
}

impl<T: Config> Probes for Pallet<T> {
    fn drawn(run: RunId, first: Window) -> Vec<DrawnProbe> {
        DrawnProbes::<T>::get(run, first).into_inner()
    }

    fn anchored(run: RunId, window: Window, validator: Uid) -> Option<Anchor> {
        Receipts::<T>::get((run, window), validator)
    }

    #[cfg(feature = "runtime-benchmarks")]
    fn set(run: RunId, first: Window, drawn: Vec<DrawnProbe>, validator: Uid, anchor: Anchor) {
        for DrawnProbe { probe, .. } in &drawn {
            Receipts::<T>::insert((run, probe.window), validator, anchor);
        }
        DrawnProbes::<T>::insert(run, first, BoundedVec::truncate_from(drawn));
    }
}

impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
    /// Clears the state of the former holder: presence, minority votes, participation, its salt, and its vote to
    /// rewind.
    fn vacated(run: RunId, uid: Uid, _: &Seat<T::AccountId>, _: Ending) -> Weight {
        PresenceOf::<T>::remove(run, uid);
        RewindVotes::<T>::mutate_exists(run, |votes| {
            if let Some(list) = votes {
                list.retain(|(of, _)| *of != uid);
                if list.is_empty() {
                    *votes = None;
                }
            }
        });
        let (Some(details), Some(progress)) = (Registry::<T>::run(run), ProgressOf::<T>::get(run)) else {
            return T::DbWeight::get().reads_writes(3, 2);
        };
        // Called before the opening of the next window, to which the salt belongs.
        let next = progress.window.map_or(Window(0), |window| window.next());
        Salts::<T>::remove((run, next), uid);
        let epoch = progress.window.map_or(0, |window| window.epoch(details.params.epoch_windows));
        for epoch in epoch.saturating_sub(1)..=epoch {
            MinorityVotes::<T>::remove((run, epoch), uid);
            Participations::<T>::mutate_exists(run, epoch, |participation| {
                if let Some(participation) = participation {
                    participation.members.retain(|member| member.uid != uid);
                }
            });
        }
        T::DbWeight::get().reads_writes(5, 7)
    }
}

fn of_role(roster: &[(Uid, Entry)], role: Role) -> Vec<Uid> {
    roster.iter().filter(|(_, entry)| entry.role == role).map(|(uid, _)| *uid).collect()
}

/// Returns whether `window` may open with the state of the checkpoint of window `to`, by their distance.
fn is_recent(to: Window, window: Window) -> bool {
    to < window && window.0.saturating_sub(to.0) <= REWIND_WINDOWS
}

/// Returns the epoch that closes when `window` opens, if any: its weights are revealed by then (PROT-30).
pub(crate) fn closed_epoch(window: Window, params: &RunParams) -> Option<u32> {
    let since = window.0.checked_sub(params.reveal_windows)?;
    let begun = since.checked_div(params.epoch_windows)?;
    if since.checked_rem(params.epoch_windows)? != 0 {
        return None;
    }
    begun.checked_sub(1)
}

/// Returns the number of windows since the seat was registered.
fn age(roster: &[(Uid, Entry)], uid: Uid, window: Window, schedule: &Schedule) -> u32 {
    let place = roster.binary_search_by_key(&uid, |(seat, _)| *seat);
    let entry = place.ok().and_then(|place| roster.get(place));
    let registered = entry.and_then(|(_, entry)| schedule.window_at(entry.registered_at));
    window.0.saturating_sub(registered.map_or(0, |registered| registered.0))
}

fn weight_of(weights: &[(Uid, u16)], uid: Uid) -> u16 {
    weights.binary_search_by_key(&uid, |(seat, _)| *seat).map_or(0, |index| weights[index].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_closes_after_its_reveal_windows() {
        let params = RunParams { epoch_windows: 5, reveal_windows: 2, ..RunParams::default() };
        let closings = |params: RunParams| -> Vec<(u32, u32)> {
            (0..20).filter_map(|window| Some((window, closed_epoch(Window(window), &params)?))).collect()
        };
        assert_eq!(closings(params), [(7, 0), (12, 1), (17, 2)]);
        assert_eq!(closings(RunParams { reveal_windows: 5, ..params }), [(10, 0), (15, 1)]);
        assert_eq!(
            closings(RunParams { epoch_windows: 1, reveal_windows: 1, ..params })[..3],
            [(2, 0), (3, 1), (4, 2)]
        );
    }
}
