//! Never attests or votes, but posts weights, to be paid for those.
//!
//! Sees: everything that a validator sees. Ends at: PROT-3, it leaves the active set after `absence_windows`, and an
//! epoch in which it never attested earns no dividends.

use protocol::{
    Uid,
    view::{Verdict, Vote, WindowView},
};
use validator::strategy::Strategy;

pub struct Absentee;

impl Strategy for Absentee {
    fn verdicts(&mut self, _view: &WindowView, _own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        None
    }

    fn vote(&mut self, _view: &WindowView, _own: Option<Vote>) -> Option<Vote> {
        None
    }
}
