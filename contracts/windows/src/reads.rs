//! Reads for the runtime API.

use crate::{Anchor, pallet::*, tally};
use alloc::vec::Vec;
use pallet_registry::Pallet as Registry;
use protocol::{
    Digest, RunId, Uid, Window,
    view::{
        Deal, Outcome, Position, ProbeRoot, RewindTally, SeatDeal, SeatWindow, Selection, Vote,
        WindowSummary, WindowView,
    },
};

impl<T: Config> Pallet<T> {
    /// Returns the current block and window of `run`.
    pub fn position(run: RunId) -> Option<Position> {
        let schedule = Registry::<T>::run(run)?.params.schedule;
        let block = Registry::<T>::now();
        Some(Position { block, window: schedule.window_at(block) })
    }

    /// Returns the checkpoints to which validators want to rewind, by window, with the stake behind each in the
    /// active set of the last window.
    pub fn rewind_tallies(run: RunId) -> Vec<RewindTally> {
        let votes = RewindVotes::<T>::get(run);
        let last = ProgressOf::<T>::get(run).and_then(|progress| progress.window);
        // Most runs have no vote, so the record is not needed.
        let record = last.filter(|_| !votes.is_empty()).and_then(|last| Records::<T>::get(run, last));
        let active_set = record.map(|record| record.active_set.into_inner()).unwrap_or_default();
        let of = tally::total(&active_set);
        let stakes = tally::rewind_stakes(&votes, &active_set);
        stakes.into_iter().map(|(to, stake)| RewindTally { to, stake, of }).collect()
    }

    /// Returns a window without its lists; `None` before it opens and after it is pruned.
    pub fn window_summary(run: RunId, window: Window) -> Option<WindowSummary> {
        let Record { opening_hash, lineage, outcome, .. } = Records::<T>::get(run, window)?;
        Some(WindowSummary { opening_hash, lineage, outcome })
    }

    /// Returns a seat's part of a window; `None` before it opens and after it is pruned.
    pub fn seat_window(run: RunId, window: Window, uid: Uid) -> Option<SeatWindow> {
        let record = Records::<T>::get(run, window)?;
        let slot = record.slots.iter().position(|seat| *seat == uid);
        let times = || TimesCommitted::<T>::get(run, window);
        let has_committed = slot.is_some_and(|slot| times().get(slot).is_some_and(|times| 0 < *times));
        let commitment = has_committed.then(|| Commitments::<T>::get((run, window), uid)).flatten();
        let next = NextDeal::<T>::get(run).filter(|deal| deal.window == window.next());
        let next_cursor = Self::next_cursor(run, &record);
        Some(SeatWindow {
            window,
            opening_hash: record.opening_hash,
            lineage: record.lineage,
            outcome: record.outcome,
            deal: record.deal_seed.and_then(|seed| SeatDeal::of(uid, seed, &record.slots, record.cursor)),
            commitment,
            next_deal: next.and_then(|next| SeatDeal::of(uid, next.seed, &next.slots, next_cursor)),
        })
    }

    /// Returns the validators that voted for the merged update of the window, in uid order.
    pub fn voters(run: RunId, window: Window) -> Vec<Uid> {
        let outcome = Records::<T>::get(run, window).and_then(|record| record.outcome);
        let Some(Outcome::Merged(merged)) = outcome else { return Vec::new() };
        let votes = Votes::<T>::iter_prefix((run, window));
        let mut voters: Vec<Uid> =
            votes.filter(|(_, vote)| vote.update == merged.update).map(|(uid, _)| uid).collect();
        voters.sort_unstable();
        voters
    }

    /// Returns the first position that the window after `record` assigns.
    fn next_cursor(run: RunId, record: &Record<T>) -> u64 {
        let each = Registry::<T>::run(run).map_or(0, |run| u64::from(run.params.sequences_per_seat));
        record.cursor.saturating_add((record.slots.len() as u64).saturating_mul(each))
    }

    /// Returns a window; `None` before it opens and after it is pruned.
    pub fn window_view(run: RunId, window: Window) -> Option<WindowView> {
        let record = Records::<T>::get(run, window)?;
        let key = (run, window);
        let commitments = Self::commitments(run, window, &record);
        let mut salts: Vec<(Uid, Digest)> = Salts::<T>::iter_prefix(key).collect();
        let mut attested: Vec<Uid> = Attestations::<T>::iter_key_prefix(key).collect();
        let mut votes: Vec<(Uid, Vote)> = Votes::<T>::iter_prefix(key).collect();
        let mut anchors: Vec<(Uid, Anchor)> = Receipts::<T>::iter_prefix(key).collect();
        // Storage iterates in the order of hashed keys.
        salts.sort_unstable_by_key(|(uid, _)| *uid);
        attested.sort_unstable();
        votes.sort_unstable_by_key(|(uid, _)| *uid);
        anchors.sort_unstable_by_key(|(uid, _)| *uid);
        let next_deal = NextDeal::<T>::get(run).filter(|deal| deal.window == window.next());
        let next_cursor = Self::next_cursor(run, &record);
        Some(WindowView {
            window,
            opening_hash: record.opening_hash,
            deal_seed: record.deal_seed,
            evaluation_hash: record.evaluation_hash,
            slots: record.slots.into_inner(),
            cursor: record.cursor,
            active_set: record.active_set.into_inner(),
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
            receipts: anchors.iter().map(|(uid, anchor)| (*uid, anchor.receipts)).collect(),
            probe_roots: anchors
                .iter()
                .map(|(uid, Anchor { probes, at, .. })| ProbeRoot { validator: *uid, root: *probes, at: *at })
                .collect(),
            probes: DrawnProbes::<T>::get(run, window).iter().map(|drawn| drawn.probe).collect(),
            next_deal: next_deal.map(|Dealt { seed, slots, .. }| Deal {
                seed,
                slots: slots.into_inner(),
                cursor: next_cursor,
            }),
        })
    }
}
