//! Selection and order of the contributions that a validator fetches in a window (PROT-13).
//!
//! All seats with a consensus weight are fetched, as consensus has judged their work: first those that delivered last
//! time, so that many seats with more weight than work cannot starve them. Seats without a weight cost little, so a
//! bounded number of them is fetched: half in the drawn order in which the selection takes newcomers, half by their
//! wait. Both orders are about the same for all validators, so two thirds can attest the contributions that the
//! selection may take.

use gauntlet::gathering::unweighted_max;
use protocol::{
    Digest, RunParams, SeatId, Uid, Window, select,
    view::{SeatView, WindowView},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The result of the last fetch from each seat. It is in memory: after a restart every seat's wait counts from its
/// registration.
#[derive(Debug, Default)]
pub struct FetchHistory(BTreeMap<SeatId, LastFetch>);

#[derive(Clone, Copy, Debug)]
struct LastFetch {
    window: Window,
    /// True if it brought no valid contribution, for any reason.
    failed: bool,
}

impl FetchHistory {
    /// Records a fetch from `seat` in `window`. It failed if it brought no valid contribution, for any reason: this
    /// is not evidence, and decides only the order.
    pub fn record(&mut self, seat: SeatId, window: Window, failed: bool) {
        self.0.insert(seat, LastFetch { window, failed });
    }

    /// Removes seats that no longer exist.
    pub fn retain(&mut self, seats: &[SeatView]) {
        let seats: BTreeSet<SeatId> = seats.iter().map(|seat| seat.id).collect();
        self.0.retain(|seat, _| seats.contains(seat));
    }
}

/// The committed seats of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchOrder {
    /// Seats with a consensus weight: those whose last fetch brought a valid contribution, then those that were not
    /// fetched yet, then those whose last fetch failed; each highest weight first.
    pub weighted: Vec<Uid>,
    /// Seats without one, at most [`unweighted_max`].
    pub unweighted: Vec<Uid>,
    /// Seats that are not fetched in this window.
    pub unfetched: BTreeSet<Uid>,
}

/// A committed seat without a consensus weight.
#[derive(Clone, Copy)]
struct Candidate {
    uid: Uid,
    is_newcomer: bool,
    failed: bool,
    /// Windows since the last fetch, or since the registration.
    waited: u32,
    rank: Digest,
}

/// Returns the order of the commitments of `view`. `seed` is that of the selection ([`select::select`]).
///
/// Newcomers whose last fetch failed come after the others in the draw: a seat that commits and delivers nothing
/// displaces another only once. By their wait they are fetched like all others. With `u` seats without a weight, no
/// seat waits longer than `u` over half of [`unweighted_max`] windows, rounded up.
pub fn fetch_order(
    params: &RunParams,
    seed: &Digest,
    view: &WindowView,
    seats: &[SeatView],
    history: &FetchHistory,
) -> FetchOrder {
    let weights: BTreeMap<Uid, u16> = view.weights.iter().copied().collect();
    let weight = |uid: &Uid| weights.get(uid).copied().unwrap_or(0);
    let committed = || view.commitments.iter().map(|(uid, _)| *uid);
    let seats: BTreeMap<Uid, SeatId> = seats.iter().map(|seat| (seat.id.uid, seat.id)).collect();
    let has_delivered = |uid: &Uid| Some(!history.0.get(seats.get(uid)?)?.failed);
    let mut weighted: Vec<Uid> = committed().filter(|uid| 0 < weight(uid)).collect();
    weighted.sort_by_key(|uid| {
        let group = match has_delivered(uid) {
            Some(true) => 0,
            None => 1,
            Some(false) => 2,
        };
        (group, Reverse(weight(uid)), *uid)
    });

    let candidate = |uid: Uid| {
        let seat = seats.get(&uid);
        let last = seat.and_then(|seat| history.0.get(seat));
        let registered = seat.and_then(|seat| params.schedule.window_at(seat.registered_at));
        let registered = registered.unwrap_or(Window::FIRST);
        let since = |from: Window| view.window.0.saturating_sub(from.0);
        Candidate {
            uid,
            // As in the selection: without a consensus every seat is new.
            is_newcomer: weights.is_empty() || since(registered) <= params.newcomer_windows,
            failed: last.is_some_and(|last| last.failed),
            waited: since(last.map_or(registered, |last| last.window)),
            rank: select::newcomer_rank(seed, uid),
        }
    };
    let unweighted = committed().filter(|uid| weight(uid) == 0).map(candidate);
    let (mut newcomers, mut waiting): (Vec<Candidate>, Vec<Candidate>) =
        unweighted.partition(|candidate| candidate.is_newcomer);
    newcomers.sort_unstable_by_key(|candidate| (candidate.failed, candidate.rank));
    let max = unweighted_max(params);
    waiting.extend(newcomers.split_off(newcomers.len().min(max / 2)));
    waiting.sort_unstable_by_key(|candidate| (Reverse(candidate.waited), candidate.rank));
    let rest = waiting.split_off(waiting.len().min(max.saturating_sub(newcomers.len())));
    FetchOrder {
        weighted,
        unweighted: newcomers.iter().chain(&waiting).map(|candidate| candidate.uid).collect(),
        unfetched: rest.iter().map(|candidate| candidate.uid).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, Hotkey, Role};

    const JUNK: std::ops::Range<u16> = 20..170;
    const NEWCOMER: Uid = Uid(170);
    const HONEST: std::ops::Range<u16> = 0..8;

    fn params() -> RunParams {
        RunParams::default()
    }

    fn seat(uid: u16) -> SeatView {
        SeatView {
            id: SeatId { uid: Uid(uid), registered_at: Block(0) },
            role: Role::Miner,
            hotkey: Hotkey([0; 32]),
            coldkey: [0; 32],
            endpoint: String::new(),
            stake: 0,
            claimable: 0,
            earned: 0,
        }
    }

    /// Returns eight honest seats with these weights, 150 junk seats, and an honest newcomer: all of them commit.
    fn view(window: u32, weights: &[(u16, u16)]) -> (WindowView, Vec<SeatView>) {
        let uids: Vec<u16> = HONEST.chain(JUNK).chain([NEWCOMER.0]).collect();
        let view = WindowView {
            window: Window(window),
            opening_hash: None,
            deal_seed: None,
            evaluation_hash: None,
            slots: uids.iter().copied().map(Uid).collect(),
            cursor: 0,
            active_set: Vec::new(),
            lineage: Digest::default(),
            weights: weights.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect(),
            commitments: uids.iter().map(|uid| (Uid(*uid), Digest::default())).collect(),
            salts: Vec::new(),
            attested: Vec::new(),
            selection: None,
            votes: Vec::new(),
            outcome: None,
            receipts: Vec::new(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        };
        (view, uids.into_iter().map(seat).collect())
    }

    fn seed(window: u32) -> Digest {
        Digest::of(&window.to_le_bytes())
    }

    /// Returns the seats fetched in each of `windows` windows. Junk delivers if `junk_delivers`.
    fn fetched(windows: u32, weights: &[(u16, u16)], junk_delivers: bool) -> Vec<BTreeSet<Uid>> {
        let mut history = FetchHistory::default();
        (0..windows)
            .map(|window| {
                let (view, seats) = view(window, weights);
                let order = fetch_order(&params(), &seed(window), &view, &seats, &history);
                let fetched: BTreeSet<Uid> =
                    order.weighted.iter().chain(&order.unweighted).copied().collect();
                assert_eq!(fetched.len() + order.unfetched.len(), view.commitments.len());
                assert!(fetched.is_disjoint(&order.unfetched));
                for uid in &fetched {
                    let failed = JUNK.contains(&uid.0) && !junk_delivers;
                    history.record(seat(uid.0).id, Window(window), failed);
                }
                fetched
            })
            .collect()
    }

    fn weights_of_honest() -> Vec<(u16, u16)> {
        HONEST.map(|uid| (uid, 100 + uid)).collect()
    }

    #[test]
    fn beside_150_junk_seats_a_validator_fetches_8_and_48_of_159() {
        let (view, seats) = view(3, &weights_of_honest());
        let order = fetch_order(&params(), &seed(3), &view, &seats, &FetchHistory::default());
        assert_eq!(order.weighted, HONEST.rev().map(Uid).collect::<Vec<_>>(), "all, highest weight first");
        assert_eq!((order.unweighted.len(), order.unfetched.len()), (48, 159 - 8 - 48));
    }

    #[test]
    fn seats_that_delivered_are_fetched_before_heavier_ones_that_did_not() {
        let (view, seats) = view(3, &[(0, 100), (1, 200), (2, 300), (3, 400)]);
        let mut history = FetchHistory::default();
        for (uid, failed) in [(0, false), (1, false), (3, true)] {
            history.record(seat(uid).id, Window(2), failed);
        }
        let order = fetch_order(&params(), &seed(3), &view, &seats, &history);
        assert_eq!(order.weighted, [1, 0, 2, 3].map(Uid));
    }

    #[test]
    fn few_seats_are_all_fetched() {
        let (mut view, seats) = view(3, &weights_of_honest());
        view.commitments.truncate(8 + 48);
        let order = fetch_order(&params(), &seed(3), &view, &seats, &FetchHistory::default());
        assert_eq!((order.unweighted.len(), order.unfetched.len()), (48, 0));
    }

    #[test]
    fn beside_junk_that_delivers_an_honest_seat_without_a_weight_waits_at_most_seven_windows() {
        let weights = weights_of_honest();
        // In windows 0 to 20 the seats are newcomers, later none of them is.
        let windows = fetched(60, &weights, true);
        for uid in JUNK.map(Uid).chain([NEWCOMER]) {
            let turns: Vec<usize> = (0..60).filter(|window| windows[*window].contains(&uid)).collect();
            let longest = turns.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(60);
            assert!(turns[0] < 7 && longest <= 7, "uid {uid}: {turns:?}");
        }
        assert!(7 <= params().evaluation_wait_max);
        assert!(windows.iter().all(|fetched| HONEST.map(Uid).all(|uid| fetched.contains(&uid))));
    }

    #[test]
    fn junk_that_delivers_nothing_keeps_no_newcomer_out_for_long() {
        let windows = fetched(21, &weights_of_honest(), false);
        // Once each junk seat has failed, the honest newcomer is first in every draw.
        assert!(windows[4..].iter().all(|fetched| fetched.contains(&NEWCOMER)));
    }

    #[test]
    fn before_the_first_consensus_silent_junk_does_not_stop_the_run() {
        let windows = fetched(60, &[], false);
        for fetched in &windows[4..] {
            let honest = HONEST.chain([NEWCOMER.0]).filter(|uid| fetched.contains(&Uid(*uid))).count();
            assert_eq!(honest, 9);
        }
    }

    #[test]
    fn the_draw_is_that_of_the_selection() {
        let (view, seats) = view(3, &weights_of_honest());
        let order = fetch_order(&params(), &seed(3), &view, &seats, &FetchHistory::default());
        let valid: Vec<select::Candidate> = view
            .commitments
            .iter()
            .map(|(uid, digest)| select::Candidate {
                uid: *uid,
                digest: *digest,
                weight: view.weight_of(*uid),
                windows_since_registration: 3,
            })
            .collect();
        for one in select::select(&params(), &seed(3), &valid) {
            assert!(order.weighted.contains(&one.uid) || order.unweighted.contains(&one.uid));
        }
    }
}
