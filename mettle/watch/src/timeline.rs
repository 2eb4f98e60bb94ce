//! The fate of every seat in every window, one byte each: a run of a thousand seats and ten thousand windows fits
//! into memory, and a browser fetches only the part that it shows.

use protocol::{
    Uid, Window,
    view::{Outcome, WindowView},
};
use std::{collections::BTreeMap, sync::Arc};

/// Maximum number of cells, one byte each; the oldest windows are removed first.
const CELLS_MAX: usize = 64 << 20;
/// Maximum number of windows.
pub const WINDOWS_MAX: usize = 16_384;

/// Fate of a seat in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// Not a miner with data, and not a validator in the active set.
    Absent = b'.',
    /// A miner that can still commit, or a validator that has done nothing yet.
    Waiting = b'w',
    /// A miner without a commitment.
    Missed = b'm',
    /// A miner's contribution is committed but not attested yet.
    Committed = b'c',
    /// Committed, but two thirds attest it neither as valid nor as faulty.
    Unseen = b'u',
    /// Two thirds attest it as valid, but it is not merged.
    Gathered = b'g',
    /// Gathered and measured by a validator.
    Scored = b's',
    /// Selected, before the window's end.
    Selected = b'l',
    /// Merged into the next model.
    Merged = b'M',
    /// Selected in a window that is void.
    Void = b'v',
    /// Two thirds attest it as faulty.
    Refused = b'r',
    /// A validator attested but has not voted.
    Attested = b'a',
    /// A validator voted, for the update of two thirds if the window was merged.
    Voted = b'V',
    /// A validator voted for another update than two thirds.
    MinorityVote = b'd',
    /// A validator without attestation and vote.
    Silent = b'n',
}

impl Fate {
    const ALL: [Fate; 15] = [
        Fate::Absent,
        Fate::Waiting,
        Fate::Missed,
        Fate::Committed,
        Fate::Unseen,
        Fate::Gathered,
        Fate::Scored,
        Fate::Selected,
        Fate::Merged,
        Fate::Void,
        Fate::Refused,
        Fate::Attested,
        Fate::Voted,
        Fate::MinorityVote,
        Fate::Silent,
    ];

    fn of_letter(letter: u8) -> Option<Fate> {
        Fate::ALL.into_iter().find(|fate| *fate as u8 == letter)
    }
}

/// One window: its outcome and the fate of each seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// `None` while the window is open.
    pub outcome: Option<Outcome>,
    /// Fates by uid; seats beyond the end are absent.
    fates: Vec<Fate>,
}

/// Deadlines of an open window that have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    pub commit: bool,
    pub vote: bool,
}

impl WindowRow {
    /// Creates a row from a window on the chain. `past` matters only for an open window.
    pub fn of(view: &WindowView, past: Past) -> WindowRow {
        let mut row = WindowRow { outcome: view.outcome, fates: Vec::new() };
        let closed = view.outcome.is_some();
        let no_commitment = if closed || past.commit { Fate::Missed } else { Fate::Waiting };
        view.slots.iter().for_each(|uid| row.set(*uid, no_commitment));
        let committed = if view.selection.is_some() { Fate::Unseen } else { Fate::Committed };
        view.commitments.iter().for_each(|(uid, _)| row.set(*uid, committed));
        if let Some(selection) = &view.selection {
            selection.valid.iter().for_each(|uid| row.set(*uid, Fate::Gathered));
            selection.faulty.iter().for_each(|uid| row.set(*uid, Fate::Refused));
            let selected = match view.outcome {
                None => Fate::Selected,
                Some(Outcome::Merged(_)) => Fate::Merged,
                Some(Outcome::Void(_)) => Fate::Void,
            };
            selection.selected.iter().for_each(|seat| row.set(seat.uid, selected));
        }
        let silent = if closed || past.vote { Fate::Silent } else { Fate::Waiting };
        view.active_set.iter().for_each(|(uid, _)| row.set(*uid, silent));
        view.attested.iter().for_each(|uid| row.set(*uid, Fate::Attested));
        for (uid, vote) in &view.votes {
            let minority_votes = matches!(view.outcome, Some(Outcome::Merged(merged)) if merged != *vote);
            row.set(*uid, if minority_votes { Fate::MinorityVote } else { Fate::Voted });
        }
        row
    }

    /// Creates a row with these fates, by uid.
    pub fn with(outcome: Option<Outcome>, fates: Vec<Fate>) -> WindowRow {
        WindowRow { outcome, fates }
    }

    /// Creates a row from its seats' letters; `None` if a letter is unknown.
    pub fn of_letters(outcome: Option<Outcome>, letters: &str) -> Option<WindowRow> {
        let fates = letters.bytes().map(Fate::of_letter).collect::<Option<_>>()?;
        Some(WindowRow { outcome, fates })
    }

    /// Returns one letter per seat.
    pub fn letters(&self) -> String {
        self.fates.iter().map(|fate| char::from(*fate as u8)).collect()
    }

    fn set(&mut self, uid: Uid, fate: Fate) {
        let at = usize::from(uid.0);
        if self.fates.len() <= at {
            self.fates.resize(at + 1, Fate::Absent);
        }
        self.fates[at] = fate;
    }

    pub fn fate(&self, uid: Uid) -> Fate {
        self.fates.get(usize::from(uid.0)).copied().unwrap_or(Fate::Absent)
    }

    /// Returns the letter of the window: as for a cell, or `w` while it is open.
    pub fn letter(&self) -> char {
        match self.outcome {
            None => 'w',
            Some(Outcome::Merged(_)) => 'M',
            Some(Outcome::Void(_)) => 'v',
        }
    }
}

/// The closed windows.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    rows: BTreeMap<Window, Arc<WindowRow>>,
    cells: usize,
}

impl Timeline {
    /// Adds a window, and removes the oldest ones beyond the bounds. A contribution known as scored stays so.
    pub fn add(&mut self, window: Window, mut row: WindowRow) {
        if let Some(before) = self.rows.get(&window) {
            for (fate, before) in row.fates.iter_mut().zip(&before.fates) {
                if (*fate, *before) == (Fate::Gathered, Fate::Scored) {
                    *fate = Fate::Scored;
                }
            }
        }
        self.cells += row.fates.len();
        if let Some(before) = self.rows.insert(window, Arc::new(row)) {
            self.cells -= before.fates.len();
        }
        while WINDOWS_MAX < self.rows.len() || CELLS_MAX < self.cells {
            let Some((_, row)) = self.rows.pop_first() else { break };
            self.cells -= row.fates.len();
        }
    }

    /// Marks these seats' contributions of a window as measured.
    pub fn score(&mut self, window: Window, seats: impl IntoIterator<Item = Uid>) {
        let Some(row) = self.rows.get_mut(&window) else { return };
        for uid in seats {
            if row.fate(uid) == Fate::Gathered {
                Arc::make_mut(row).set(uid, Fate::Scored);
            }
        }
    }

    pub fn row(&self, window: Window) -> Option<&WindowRow> {
        self.rows.get(&window).map(|row| &**row)
    }

    /// Returns the first and the last window.
    pub fn bounds(&self) -> Option<(Window, Window)> {
        Some((*self.rows.first_key_value()?.0, *self.rows.last_key_value()?.0))
    }

    /// Returns up to `count` windows from `first` on, each with its row.
    pub fn range(&self, first: Window, count: u32) -> impl Iterator<Item = (Window, &WindowRow)> {
        let end = Window(first.0.saturating_add(count));
        self.rows.range(first..end).map(|(window, row)| (*window, &**row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use protocol::{
        Digest,
        select::Selected,
        view::{Selection, VoidReason, Vote},
    };

    fn letters(row: &WindowRow) -> String {
        row.letters()
    }

    /// Two validators, and six miners: missed, unseen, gathered, merged, refused; the last has no data.
    fn view() -> WindowView {
        let mut view = sample::window(Window(4));
        let uids = |range: std::ops::Range<u16>| range.map(Uid).collect::<Vec<_>>();
        view.active_set = vec![(Uid(0), 2), (Uid(1), 1)];
        view.slots = uids(2..7);
        view.commitments = uids(3..7).into_iter().map(|uid| (uid, Digest::default())).collect();
        view.selection = Some(Selection {
            selected: vec![Selected { uid: Uid(5), digest: Digest::default() }],
            valid: vec![Uid(4), Uid(5)],
            faulty: vec![Uid(6)],
        });
        view.attested = uids(0..2);
        let vote = |update| Vote { update: Digest([update; 32]), state_root: None };
        view.votes = vec![(Uid(0), vote(1)), (Uid(1), vote(2))];
        view.outcome = Some(Outcome::Merged(vote(1)));
        view
    }

    #[test]
    fn every_seat_of_a_merged_window_has_its_fate() {
        let row = WindowRow::of(&view(), Past::default());
        assert_eq!((letters(&row).as_str(), row.letter()), ("VdmugMr", 'M'));
        assert_eq!(WindowRow::of_letters(row.outcome, &letters(&row)), Some(row.clone()));
        assert_eq!(WindowRow::of_letters(None, "V?"), None);
        assert_eq!([row.fate(Uid(7)), row.fate(Uid(u16::MAX))], [Fate::Absent; 2]);
    }

    #[test]
    fn an_open_window_fills_as_its_deadlines_pass() {
        let mut open = WindowView { outcome: None, selection: None, votes: Vec::new(), ..view() };
        open.attested.clear();
        let at = |view: &WindowView, commit, vote| letters(&WindowRow::of(view, Past { commit, vote }));
        assert_eq!(at(&open, false, false), "wwwcccc");
        assert_eq!(at(&open, true, false), "wwmcccc");
        open.attested = vec![Uid(0)];
        open.selection = view().selection;
        assert_eq!(at(&open, true, false), "awmuglr");
        assert_eq!(at(&open, true, true), "anmuglr");
    }

    #[test]
    fn a_void_window_merges_nothing_and_blames_no_vote() {
        let void = WindowView { outcome: Some(Outcome::Void(VoidReason::NoAgreement)), ..view() };
        let row = WindowRow::of(&void, Past::default());
        assert_eq!((letters(&row).as_str(), row.letter()), ("VVmugvr", 'v'));
    }

    #[test]
    fn what_was_measured_is_scored_and_a_merge_stays_a_merge() {
        let mut timeline = Timeline::default();
        timeline.add(Window(4), WindowRow::of(&view(), Past::default()));
        timeline.score(Window(4), (0..9).map(Uid));
        timeline.score(Window(9), [Uid(1)]);
        assert_eq!(timeline.row(Window(4)).map(letters).as_deref(), Some("VdmusMr"));
    }

    #[test]
    fn the_oldest_windows_are_forgotten_first() {
        let mut timeline = Timeline::default();
        let row = WindowRow::with(None, vec![Fate::Missed; 60_000]);
        for window in (0..2_000).map(Window) {
            timeline.add(window, row.clone());
        }
        let kept = CELLS_MAX / 60_000;
        let first = Window(2_000 - u32::try_from(kept).unwrap());
        assert_eq!(timeline.bounds(), Some((first, Window(1_999))));
        for window in (0..20_000).map(Window) {
            timeline.add(window, WindowRow::with(None, Vec::new()));
        }
        assert_eq!(timeline.rows.len(), WINDOWS_MAX);
        assert_eq!(timeline.range(Window(19_998), 64).count(), 2);
    }
}
