//! What happens by itself: a window opens, its hashes become known, its selection is made, its vote is counted, and in the
//! end it is forgotten.

use crate::{
    Epochs, Member, Members, Presence, WeightInfo,
    electorate::{self, Bonded},
    pallet::*,
    tally,
};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::{Ending, Entry, Nominations, OnRunCreated, OnSeats, Run, Seat, Seats};
use protocol::{
    Block, Digest, Role, RunId, RunParams, Schedule, Terms, Uid, Window, assign, lineage,
    select::{self, Candidate},
    view::{Checkpoint, Outcome, VoidReason, Vote},
};

/// The last offsets in a window at which calls are in time, those of hidden attestations and votes included.
pub(crate) struct Deadlines {
    commit_by: u32,
    /// Where attestations are in the open, their own deadline.
    pub attest_revealed_by: u32,
    /// Where votes are in the open, their own deadline.
    pub vote_revealed_by: u32,
    blocks_per_window: u32,
}

/// What a run does at an offset of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    NoteOpening,
    NoteEvaluation,
    Choose,
    Fix,
}

impl Deadlines {
    pub fn of(params: &RunParams) -> Deadlines {
        let Schedule { commit_by, attest_by, vote_by, blocks_per_window, .. } = params.schedule;
        Deadlines {
            commit_by,
            attest_revealed_by: attest_by.saturating_add(params.hidden_blocks),
            vote_revealed_by: vote_by.saturating_add(params.hidden_blocks),
            blocks_per_window,
        }
    }

    /// The steps after a window's opening, in order. The last one is the next window's opening where the votes end with
    /// the window.
    fn steps(&self) -> [(u32, Step); 4] {
        [
            (1, Step::NoteOpening),
            (self.commit_by.saturating_add(2), Step::NoteEvaluation),
            (self.attest_revealed_by.saturating_add(1), Step::Choose),
            (self.vote_revealed_by.saturating_add(1), Step::Fix),
        ]
    }

    fn step_at(&self, offset: u32) -> Option<Step> {
        if offset == 0 {
            return Some(Step::Open);
        }
        self.steps().into_iter().find(|(at, _)| *at == offset).map(|(_, step)| step)
    }

    /// The offset of the first step after `offset`; `None` if that is the next window's opening.
    fn step_after(&self, offset: u32) -> Option<u32> {
        self.steps().into_iter().map(|(at, _)| at).find(|at| *at > offset && *at < self.blocks_per_window)
    }
}

impl<T: Config> Pallet<T> {
    /// Takes the step that `run` has at block `at`, now or earlier, and notes its next one.
    pub(crate) fn step(run: RunId, at: Block) -> Weight {
        let Some(Run { params, .. }) = T::Registry::run(run) else {
            defensive!("a run in the agenda exists: none is ever removed");
            return T::DbWeight::get().reads(1);
        };
        let schedule = params.schedule;
        let Some((window, offset)) = schedule.locate(at) else {
            defensive!("a run's first entry in the agenda is its start");
            return T::DbWeight::get().reads(1);
        };
        let deadlines = Deadlines::of(&params);
        let mut weight = T::WeightInfo::agenda();
        match deadlines.step_at(offset) {
            Some(Step::Open) => {
                // The window before is fixed here if its votes end with its last block.
                if let Some(previous) = window.previous() {
                    weight.saturating_accrue(Self::fix(run, previous, &params));
                }
                weight.saturating_accrue(T::Registry::window_opens(run, window));
                weight.saturating_accrue(Self::open(run, window));
            }
            Some(Step::NoteOpening) => {
                weight.saturating_accrue(Self::note_hash(run, window, at, |record| &mut record.opening_hash));
                if let Some(forgotten) = window.0.checked_sub(T::KeptWindows::get()) {
                    weight.saturating_accrue(Self::forget(run, Window(forgotten)));
                }
            }
            Some(Step::NoteEvaluation) => {
                weight.saturating_accrue(Self::note_hash(run, window, at, |record| {
                    &mut record.evaluation_hash
                }));
            }
            Some(Step::Choose) => weight.saturating_accrue(Self::choose(run, window, &params)),
            Some(Step::Fix) => weight.saturating_accrue(Self::fix(run, window, &params)),
            None => {
                defensive!("a run's entries in the agenda are at its steps");
            }
        }
        let next = match deadlines.step_after(offset) {
            Some(next) => Block(schedule.opens_at(window).0.saturating_add(next)),
            None => schedule.opens_at(window.next()),
        };
        Self::note_next_step(run, next);
        weight
    }

    /// Takes down everything that the window's parties must agree on (PROT-3, 5, 16, 19).
    pub(crate) fn open(run: RunId, window: Window) -> Weight {
        let (Some(details), Some(mut progress)) = (T::Registry::run(run), ProgressOf::<T>::get(run)) else {
            defensive!("run and progress are there since the run was created");
            return T::DbWeight::get().reads(2);
        };
        let Run { params, terms, stopped, .. } = details;
        let mut roster = T::Registry::roster(run);
        // Who came after the opening's block, while the opening was late, counts from the next one.
        roster.retain(|(_, entry)| entry.since <= window);
        let of_role = |role: Role| -> Vec<Uid> {
            roster.iter().filter(|(_, entry)| entry.role == role).map(|(uid, _)| *uid).collect()
        };
        let (miners, validators) = (of_role(Role::Miner), of_role(Role::Validator));
        let mut weight = T::WeightInfo::open(miners.len() as u32, validators.len() as u32);

        // A window that is stopped hands out nothing, so that no data is spent on it.
        let slots = if stopped { Vec::new() } else { miners };
        let bonded = Self::bonded(run, window, &terms, &validators);
        let electorate = electorate::choose(&terms, window, &bonded);
        let paused = stopped || !electorate.has_quorum(terms.quorum);

        if let Some(closed) = closed_epoch(window, &params) {
            let turnout = Turnouts::<T>::take(run, closed);
            let members: Vec<Member> = electorate
                .members
                .iter()
                .map(|&(uid, stake)| {
                    let bonded = bonded.iter().find(|validator| validator.uid == uid);
                    let presence = bonded.map(|bonded| bonded.presence);
                    member_of::<T>(run, closed, &params, uid, stake, presence, &turnout)
                })
                .collect();
            for Member { uid, .. } in members.iter().filter(|member| member.silent) {
                Self::deposit_event(Event::NeverVoted { run, epoch: closed, uid: *uid });
            }
            // A count of dissents each, and the turnout.
            let touched = (members.len() as u64).saturating_add(1);
            weight.saturating_accrue(T::DbWeight::get().reads_writes(touched, touched));
            weight.saturating_accrue(T::Epochs::close(run, closed, &members));
            let _ = Dissents::<T>::clear_prefix((run, closed), T::MaxSeats::get(), None);
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
            (false, true) if stopped => Self::deposit_event(Event::Stopped { run, window }),
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
        weight
    }

    /// Validators with enough stake of their own, in uid order, each with all that stands behind it and its presence; one
    /// not seen before is noted as present.
    fn bonded(run: RunId, window: Window, terms: &Terms, validators: &[Uid]) -> Vec<Bonded> {
        validators
            .iter()
            .filter_map(|uid| Some((uid, T::Registry::seat(run, *uid)?)))
            .filter(|(_, seat)| seat.stake >= terms.validator_stake_min)
            .map(|(uid, seat)| {
                let presence = PresenceOf::<T>::get(run, uid).unwrap_or_else(|| {
                    let presence = Presence { since: window, last_attested: None, epoch_before: None };
                    PresenceOf::<T>::insert(run, uid, presence);
                    presence
                });
                let stake = seat.stake.saturating_add(T::Nominations::behind(run, *uid));
                Bonded { uid: *uid, stake, presence }
            })
            .collect()
    }

    /// Stores the hash of the block before `at` (PROT-2). A step so late that the chain has forgotten the hash leaves it
    /// out, and the window is void.
    pub(crate) fn note_hash(
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
        T::WeightInfo::note_hash()
    }

    /// Adds the attestations up and selects who is merged (PROT-14, 16).
    pub(crate) fn choose(run: RunId, window: Window, params: &RunParams) -> Weight {
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

        // Before the first consensus nobody has a weight to be drawn by: everyone counts as new, or a run whose validators
        // came late could never merge anything again.
        let everyone_is_new = record.weights.is_empty();
        // Of a seat in the window the roster says what it said as the window opened: none changes within one.
        let roster = if everyone_is_new { Vec::new() } else { T::Registry::roster(run) };
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

    /// Ends a window, once and for all (PROT-19, 20). Does nothing to one that has ended.
    pub(crate) fn fix(run: RunId, window: Window, params: &RunParams) -> Weight {
        let (Some(mut record), Some(mut progress)) =
            (Records::<T>::get(run, window), ProgressOf::<T>::get(run))
        else {
            defensive!("a window is recorded from its first block on");
            return T::DbWeight::get().reads(2);
        };
        if record.outcome.is_some() {
            return T::DbWeight::get().reads(2);
        }
        let votes: Vec<(Uid, u128, Vote)> = record
            .electorate
            .iter()
            .filter_map(|(uid, stake)| Some((*uid, *stake, Votes::<T>::get((run, window), uid)?)))
            .collect();
        let agreed = tally::agreed(
            votes.iter().map(|(_, stake, vote)| (*stake, *vote)),
            tally::total(&record.electorate),
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
            Self::note_dissents(run, window, params, &votes, &agreed);
            Turnouts::<T>::mutate(run, window.epoch(params.epoch_windows), |turnout| {
                let voters = votes.iter().map(|(uid, ..)| *uid);
                let now = tally::turnout(turnout, &record.electorate, voters);
                // No list names more uids than there are seats: who leaves is taken out.
                *turnout = Turnout::<T>::truncate_from(now);
            });
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

    /// Counts who voted for another update than two thirds did: each costs its epoch's dividends (PROT-19).
    ///
    /// This cannot hit the honest after a network fault. An update is a function of what the chain selected and of bytes
    /// that are known by their digests: who lacks any of them can compute no update, and votes none. So a fault of the
    /// network makes a vote late or missing, which never counts here; it cannot make it another one. And where there is no
    /// agreement there is nothing to dissent from.
    fn note_dissents(
        run: RunId,
        window: Window,
        params: &RunParams,
        votes: &[(Uid, u128, Vote)],
        agreed: &Vote,
    ) {
        let epoch = window.epoch(params.epoch_windows);
        for (uid, _, vote) in votes.iter().filter(|(_, _, vote)| vote.update != agreed.update) {
            Dissents::<T>::mutate((run, epoch), uid, |count| *count = count.saturating_add(1));
            Self::deposit_event(Event::Dissented { run, window, uid: *uid, update: vote.update });
        }
    }

    /// Forgets a window whole. Each map holds one entry a seat at most, and `Punished` one a seat and matter.
    pub(crate) fn forget(run: RunId, window: Window) -> Weight {
        let key = (run, window);
        let limit = T::MaxSeats::get();
        Records::<T>::remove(run, window);
        TimesCommitted::<T>::remove(run, window);
        let removed = [
            Commitments::<T>::clear_prefix(key, limit, None).unique,
            Salts::<T>::clear_prefix(key, limit, None).unique,
            Attestations::<T>::clear_prefix(key, limit, None).unique,
            Votes::<T>::clear_prefix(key, limit, None).unique,
            HiddenAttestations::<T>::clear_prefix(key, limit, None).unique,
            HiddenVotes::<T>::clear_prefix(key, limit, None).unique,
            Receipts::<T>::clear_prefix(key, limit, None).unique,
            Punished::<T>::clear_prefix(key, limit.saturating_mul(3), None).unique,
        ];
        T::WeightInfo::forget(removed.iter().fold(0, |sum: u32, count| sum.saturating_add(*count)))
    }

    /// The window's commitments, in uid order.
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
                paused: false,
                next_step: start,
            },
        );
        Self::note_next_step(run, start);
        Ok(())
    }
}

/// What counts of a validator as an epoch closes.
fn member_of<T: Config>(
    run: RunId,
    epoch: u32,
    params: &RunParams,
    uid: Uid,
    stake: u128,
    presence: Option<Presence>,
    turnout: &[(Uid, bool)],
) -> Member {
    let attested = presence.is_some_and(|presence| presence.attested_in(epoch, params.epoch_windows));
    let there_all = presence.is_some_and(|presence| presence.there_all(epoch, params.epoch_windows));
    let silent = there_all && tally::never_voted(turnout, uid);
    Member { uid, stake, attested, dissents: Dissents::<T>::get((run, epoch), uid), silent }
}

impl<T: Config> Members for Pallet<T> {
    fn member(run: RunId, uid: Uid, epoch: u32) -> Option<Member> {
        let params = T::Registry::run(run)?.params;
        let electorate = Records::<T>::get(run, ProgressOf::<T>::get(run)?.window?)?.electorate;
        let place = electorate.binary_search_by_key(&uid, |(member, _)| *member).ok()?;
        let (_, stake) = *electorate.get(place)?;
        let (presence, turnout) = (PresenceOf::<T>::get(run, uid), Turnouts::<T>::get(run, epoch));
        Some(member_of::<T>(run, epoch, &params, uid, stake, presence, &turnout))
    }
}

impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
    /// The next holder of the uid begins anew: it is not present or absent, has not dissented or kept silent, and owes no
    /// salt.
    fn vacated(run: RunId, uid: Uid, _: &Seat<T::AccountId>, _: Ending) -> Weight {
        PresenceOf::<T>::remove(run, uid);
        let (Some(details), Some(progress)) = (T::Registry::run(run), ProgressOf::<T>::get(run)) else {
            return T::DbWeight::get().reads_writes(2, 1);
        };
        // Told of it as a window opens: its salt is for the window after the last one that is open.
        let next = progress.window.map_or(Window(0), |window| window.next());
        Salts::<T>::remove((run, next), uid);
        let epoch = progress.window.map_or(0, |window| window.epoch(details.params.epoch_windows));
        for epoch in epoch.saturating_sub(1)..=epoch {
            Dissents::<T>::remove((run, epoch), uid);
            Turnouts::<T>::mutate_exists(run, epoch, |turnout| {
                if let Some(turnout) = turnout {
                    turnout.retain(|(other, _)| *other != uid);
                }
            });
        }
        T::DbWeight::get().reads_writes(4, 6)
    }
}

/// The epoch that closes as `window` opens, if one does: by then its weights are revealed (PROT-30).
pub(crate) fn closed_epoch(window: Window, params: &RunParams) -> Option<u32> {
    let since = window.0.checked_sub(params.reveal_windows)?;
    let begun = since.checked_div(params.epoch_windows)?;
    if since.checked_rem(params.epoch_windows)? != 0 {
        return None;
    }
    begun.checked_sub(1)
}

/// Windows since the seat was registered.
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
    fn an_epoch_closes_as_its_weights_are_revealed() {
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
