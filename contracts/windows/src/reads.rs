//! What others may ask, and what holds at every block.

use crate::{Presence, Progress, pallet::*};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::Seats;
use protocol::{
    Digest, Role, RunId, Terms, Uid, Window, lineage,
    select::Selected,
    view::{Outcome, Position, Selection, Vote, WindowView},
};

/// What the runtime API reads.
impl<T: Config> Pallet<T> {
    /// When a validator was last heard of; `None` of one that never was bonded as a window opened.
    pub fn presence(run: RunId, uid: Uid) -> Option<Presence> {
        PresenceOf::<T>::get(run, uid)
    }

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
        let mut receipts: Vec<(Uid, Digest)> = Receipts::<T>::iter_prefix(key).collect();
        // Storage iterates in the order of hashed keys, which is nobody's order.
        salts.sort_unstable_by_key(|(uid, _)| *uid);
        attested.sort_unstable();
        votes.sort_unstable_by_key(|(uid, _)| *uid);
        receipts.sort_unstable_by_key(|(uid, _)| *uid);
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
            receipts,
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
            match Backlog::<T>::get() {
                None if progress.next_step <= Self::now() => {
                    return Err("a step is late and not in the backlog");
                }
                None if progress.window != params.schedule.window_at(Self::now()) => {
                    return Err("the window that opened last is not the one that is open");
                }
                Some(late) if progress.next_step < late => return Err("a step is before the backlog"),
                _ => {}
            }
            let Some(open) = progress.window else {
                continue;
            };
            let kept = open.0.saturating_sub(T::KeptWindows::get().saturating_sub(1))..=open.0;
            // The oldest is forgotten a step after the newest has opened.
            let surplus = Records::<T>::iter_key_prefix(run).count().checked_sub(kept.clone().count());
            if surplus.is_none_or(|surplus| surplus > 1) {
                return Err("a window is kept too long or not long enough");
            }
            if Dissents::<T>::iter_keys().any(|((id, epoch), _)| {
                id == run && epoch.saturating_add(2) < open.epoch(params.epoch_windows)
            }) {
                return Err("dissents are kept that no epoch will ask for");
            }
            for (epoch, turnout) in Turnouts::<T>::iter_prefix(run) {
                if epoch.saturating_add(2) < open.epoch(params.epoch_windows) {
                    return Err("a turnout is kept that no epoch will ask for");
                }
                if !turnout.windows(2).all(|pair| pair[0].0 < pair[1].0) {
                    return Err("a turnout is not in uid order");
                }
                let is_validator =
                    |uid: Uid| T::Registry::seat(run, uid).is_some_and(|seat| seat.role == Role::Validator);
                if !turnout.iter().all(|(uid, _)| is_validator(*uid)) {
                    return Err("a turnout names somebody who is no validator");
                }
            }
            let mut expected: Option<(u64, Digest)> = None;
            for window in kept.map(Window) {
                let record = Records::<T>::get(run, window).ok_or("a window is missing")?;
                Self::check_record(run, window, &record)?;
                if window == open {
                    Self::check_open(&record, &details.terms)?;
                }
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

    fn check_open(record: &Record<T>, terms: &Terms) -> Result<(), &'static str> {
        if record.electorate.len() > usize::from(terms.electorate_max) {
            return Err("the electorate is larger than the run allows");
        }
        Ok(())
    }

    fn check_record(run: RunId, window: Window, record: &Record<T>) -> Result<(), &'static str> {
        let key = (run, window);
        let in_uid_order = record.slots.windows(2).all(|pair| pair[0] < pair[1])
            && record.electorate.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && record.weights.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_uid_order {
            return Err("a window's seats are not in uid order");
        }
        let times = TimesCommitted::<T>::get(run, window);
        let committed: Vec<Uid> =
            (record.slots.iter().zip(&times)).filter(|(_, times)| **times > 0).map(|(uid, _)| *uid).collect();
        let mut of_seats: Vec<Uid> = Commitments::<T>::iter_key_prefix(key).collect();
        of_seats.sort_unstable();
        if of_seats != committed {
            return Err("the commitments are not those that were counted, of seats in the window");
        }
        let decides = |uid: &Uid| record.electorate.binary_search_by_key(uid, |(member, _)| *member).is_ok();
        if Votes::<T>::iter_key_prefix(key).any(|uid| !decides(&uid)) {
            return Err("a vote is from a validator outside the electorate");
        }
        if HiddenVotes::<T>::iter_key_prefix(key).any(|uid| !decides(&uid)) {
            return Err("a hidden vote is from a validator outside the electorate");
        }
        let shown_too = HiddenVotes::<T>::iter_key_prefix(key).any(|uid| Votes::<T>::contains_key(key, uid))
            || HiddenAttestations::<T>::iter_key_prefix(key)
                .any(|uid| Attestations::<T>::contains_key(key, uid));
        if shown_too {
            return Err("what was revealed is still there as a hash");
        }
        if record.outcome.is_none() && Receipts::<T>::iter_key_prefix(key).next().is_some() {
            return Err("receipts are for a window that is not fixed");
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
