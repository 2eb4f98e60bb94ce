//! Invariants that hold at every block.

use crate::{DrawnProbe, Participation, Progress, pallet::*};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::Pallet as Registry;
use protocol::{
    Digest, Role, RunId, RunParams, Terms, Uid, Window, lineage,
    select::Selected,
    view::{Outcome, PendingChange},
};

impl<T: Config> Pallet<T> {
    /// Checks the invariants that hold at every block.
    ///
    /// # Errors
    /// Names the first violated invariant.
    pub fn check_invariants() -> Result<(), &'static str> {
        for (run, progress) in ProgressOf::<T>::iter() {
            if Registry::<T>::closed_run(run).is_some() {
                Self::check_task(run, &progress)?;
                continue;
            }
            let details = Registry::<T>::run(run).ok_or("a run with progress does not exist")?;
            Self::check_schedule(run, &details.params, &progress)?;
            let Some(open) = progress.window else {
                continue;
            };
            Self::check_epochs(run, open.epoch(details.params.epoch_windows))?;
            Self::check_punished(run)?;
            Self::check_rewind(run, &progress, open)?;
            Self::check_windows(run, &details.params, &details.terms, &progress, open)?;
        }
        Ok(())
    }

    /// Checks that a run has one task, either scheduled or late and in the queue. Returns whether it is late.
    fn check_task(run: RunId, progress: &Progress) -> Result<bool, &'static str> {
        let scheduled: usize = ScheduledTasks::<T>::iter_values()
            .map(|due| due.iter().filter(|(id, _)| *id == run).count())
            .sum();
        let late = LateTasks::<T>::get().late;
        let late: Vec<_> = late.iter().filter(|(id, ..)| *id == run).collect();
        match (scheduled, late.as_slice()) {
            (1, []) if ScheduledTasks::<T>::get(progress.next_step).iter().any(|(id, _)| *id == run) => {
                Ok(false)
            }
            (0, [_]) => Ok(true),
            _ => Err("a run has not exactly one task, at its next block or in the queue"),
        }
    }

    fn check_schedule(run: RunId, params: &RunParams, progress: &Progress) -> Result<(), &'static str> {
        let now = Registry::<T>::now();
        match Self::check_task(run, progress)? {
            true if progress.next_step > now => Err("a task is late before its block"),
            false if progress.next_step <= now => Err("a task is late and not in the queue"),
            false if progress.window != params.schedule.window_at(now) => {
                Err("the last opened window is not the open one")
            }
            _ => Ok(()),
        }
    }

    /// Checks that minority votes and participations are kept only for unclosed epochs, and only for validators.
    fn check_epochs(run: RunId, open: u32) -> Result<(), &'static str> {
        let is_closed = |epoch: u32| epoch.saturating_add(2) < open;
        if MinorityVotes::<T>::iter_keys().any(|((id, epoch), _)| id == run && is_closed(epoch)) {
            return Err("minority votes of a closed epoch are stored");
        }
        for (epoch, Participation { merged, members }) in Participations::<T>::iter_prefix(run) {
            ensure!(!is_closed(epoch), "the participation of a closed epoch is stored");
            if !members.windows(2).all(|pair| pair[0].uid < pair[1].uid) {
                return Err("an epoch's participation is not in uid order");
            }
            if members.iter().any(|member| member.cast > member.owed || member.owed > merged) {
                return Err(
                    "a validator cast more votes than it owed, or owed more than windows were merged",
                );
            }
            let is_validator =
                |uid: Uid| Registry::<T>::seat(run, uid).is_some_and(|seat| seat.role == Role::Validator);
            if !members.iter().all(|member| is_validator(member.uid)) {
                return Err("an epoch's participation names a seat that is not a validator's");
            }
        }
        Ok(())
    }

    /// Checks that the holder of a punished seat leaves at the next opening.
    fn check_punished(run: RunId) -> Result<(), &'static str> {
        for seat in Punished::<T>::iter_key_prefix(run) {
            let present = Registry::<T>::seat(run, seat.uid).is_some_and(|held| held.id(seat.uid) == seat);
            let change = Registry::<T>::pending_change(run, seat.uid);
            if present && !matches!(change, Some(PendingChange::Leaves | PendingChange::Replaced)) {
                return Err("a punished seat keeps its holder");
            }
        }
        Ok(())
    }

    /// Checks that validators vote only for checkpoints that the next window may open with, and that the last rewound
    /// window has opened.
    fn check_rewind(run: RunId, progress: &Progress, open: Window) -> Result<(), &'static str> {
        let votes = RewindVotes::<T>::get(run);
        if RewindVotes::<T>::contains_key(run) && votes.is_empty() {
            return Err("an empty list of votes to go back is stored");
        }
        ensure!(votes.windows(2).all(|pair| pair[0].0 < pair[1].0), "votes to go back are not in uid order");
        for (uid, to) in &votes {
            let seat = Registry::<T>::seat(run, *uid);
            ensure!(
                seat.is_some_and(|seat| seat.role == Role::Validator),
                "a vote to go back is not of a validator's seat"
            );
            ensure!(
                Self::rewind_target(run, open.next(), *to).is_some(),
                "a vote to go back names no checkpoint, or one that is too old"
            );
        }
        ensure!(progress.rewound <= Some(open), "a window went back before it opened");
        ensure!(
            progress.rewound.is_none() || progress.checkpoint.is_some(),
            "a run went back to no checkpoint"
        );
        Ok(())
    }

    /// Checks that the stored windows are the last ones, and that each begins with the state at the end of the one
    /// before. The second holds from the last rewind: earlier rewinds are not recorded.
    fn check_windows(
        run: RunId,
        params: &RunParams,
        terms: &Terms,
        progress: &Progress,
        open: Window,
    ) -> Result<(), &'static str> {
        let stored = open.0.saturating_sub(T::KeptWindows::get().saturating_sub(1))..=open.0;
        // The oldest is pruned one task after the newest has opened.
        let surplus = Records::<T>::iter_key_prefix(run).count().checked_sub(stored.clone().count());
        if surplus.is_none_or(|surplus| surplus > 1) {
            return Err("a window is stored too long or was pruned too early");
        }
        for (window, drawn) in DrawnProbes::<T>::iter_prefix(run) {
            let in_order = drawn.windows(2).all(|pair| pair[0].probe < pair[1].probe);
            let has_leaf = |one: &DrawnProbe| one.place < one.leaves && one.probe.window < window;
            if !Records::<T>::contains_key(run, window) || !in_order || !drawn.iter().all(has_leaf) {
                return Err("drawn probes are out of order, without a leaf, or of a window that is not kept");
            }
        }
        if RevealedSalts::<T>::iter_key_prefix(run).any(|window| !Records::<T>::contains_key(run, window)) {
            return Err("revealed salts are of a window that is not kept");
        }
        if NextDeal::<T>::get(run).is_some_and(|dealt| {
            dealt.window != open.next() || !dealt.slots.windows(2).all(|pair| pair[0] < pair[1])
        }) {
            return Err("what is dealt is not of the next window, or its seats are not in uid order");
        }
        let mut expected: Option<(u64, Digest)> = None;
        for window in stored.map(Window) {
            let record = Records::<T>::get(run, window).ok_or("a window is missing")?;
            Self::check_record(run, window, &record)?;
            if window == open && record.active_set.len() > usize::from(terms.active_set_max) {
                return Err("the active set is larger than the run allows");
            }
            ensure!(
                record.active_set.len() == record.registered_at.len(),
                "the active set's holders are not those of its seats"
            );
            let counts = CountedStakes::<T>::get(run);
            let is_counted = |(uid, stake): &(Uid, u128)| {
                counts.iter().any(|one| one.seat.uid == *uid && one.counted == *stake)
            };
            if window == open && !record.active_set.iter().all(is_counted) {
                return Err("the active set's stakes are not those that count");
            }
            let rewinds = progress.rewound.is_some_and(|rewound| window <= rewound);
            if expected.is_some_and(|(cursor, lineage)| {
                cursor != record.cursor || (!rewinds && lineage != record.lineage)
            }) {
                return Err("a window does not begin where the one before it ended");
            }
            if let Some(to) = progress.checkpoint
                && progress.rewound == Some(window)
                && to.window < window
                && to.lineage != record.lineage
            {
                return Err("a rewound window does not begin with its checkpoint");
            }
            ensure!(window >= open || record.outcome.is_some(), "a window is over and not finalised");
            let assigned = (record.slots.len() as u64).saturating_mul(u64::from(params.sequences_per_seat));
            let after = match record.outcome {
                Some(Outcome::Merged(vote)) => lineage::next(&record.lineage, &vote.update),
                _ => record.lineage,
            };
            expected = Some((record.cursor.saturating_add(assigned), after));
        }
        if expected != Some((progress.cursor, progress.lineage)) {
            return Err("the run's progress is not where the open window leaves it");
        }
        Ok(())
    }

    fn check_record(run: RunId, window: Window, record: &Record<T>) -> Result<(), &'static str> {
        let key = (run, window);
        let in_uid_order = record.slots.windows(2).all(|pair| pair[0] < pair[1])
            && record.active_set.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && record.weights.windows(2).all(|pair| pair[0].0 < pair[1].0);
        ensure!(in_uid_order, "a window's seats are not in uid order");
        let times = TimesCommitted::<T>::get(run, window);
        let counted: Vec<Uid> =
            (record.slots.iter().zip(&times)).filter(|(_, times)| **times > 0).map(|(uid, _)| *uid).collect();
        let mut committed: Vec<Uid> = Commitments::<T>::iter_key_prefix(key).collect();
        committed.sort_unstable();
        ensure!(committed == counted, "the commitments are not those counted by slot");
        Self::check_votes(key, record)?;
        if record.outcome.is_none() && Receipts::<T>::iter_key_prefix(key).next().is_some() {
            return Err("a window has receipts before it is finalised");
        }
        if let Some(choice) = &record.selection {
            let ascends = choice.selected.windows(2).all(|pair| pair[0].uid < pair[1].uid);
            let is_valid = |seat: &Selected| {
                choice.valid.binary_search(&seat.uid).is_ok()
                    && Commitments::<T>::get(key, seat.uid) == Some(seat.digest)
            };
            if !ascends || !choice.selected.iter().all(is_valid) {
                return Err("a selected contribution was not committed or not valid");
            }
        }
        Ok(())
    }

    fn check_votes(key: (RunId, Window), record: &Record<T>) -> Result<(), &'static str> {
        let decides = |uid: &Uid| record.active_set.binary_search_by_key(uid, |(member, _)| *member).is_ok();
        if Votes::<T>::iter_key_prefix(key).any(|uid| !decides(&uid)) {
            return Err("a vote is from a validator outside the active set");
        }
        if HiddenVotes::<T>::iter_key_prefix(key).any(|uid| !decides(&uid)) {
            return Err("the commitment of a vote is from a validator outside the active set");
        }
        let revealed_too = HiddenVotes::<T>::iter_key_prefix(key)
            .any(|uid| Votes::<T>::contains_key(key, uid))
            || HiddenAttestations::<T>::iter_key_prefix(key)
                .any(|uid| Attestations::<T>::contains_key(key, uid));
        ensure!(!revealed_too, "a revealed attestation or vote still has its commitment");
        Ok(())
    }
}
