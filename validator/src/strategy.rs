//! Where one validator may say otherwise than another.
//!
//! What a validator attests, votes, posts and tells comes from what it measured; these are the points at which a dishonest one says something
//! else. The program is [`DefaultStrategy`]. Whoever tries what a dishonest validator would gain puts another strategy here.

use crate::{evaluate::Measurements, receipts::WindowReport};
use protocol::{
    Uid, Window,
    view::{Verdict, Vote, WindowView},
};

/// What one validator says of what it found. What is not written otherwise is as an honest one says it.
///
/// Nothing here waits, and all that it is given anybody can see at that time, but for what is called `own`.
pub trait Strategy: Send {
    /// What to attest, seat by seat (PROT-14); `None`: nothing at all.
    fn verdicts(&mut self, _view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        Some(own)
    }

    /// What to vote (PROT-19); `None`: nothing at all. `own` is the vote for what was merged, where anything was.
    fn vote(&mut self, _view: &WindowView, own: Option<Vote>) -> Option<Vote> {
        own
    }

    /// What to say was measured: receipts, ratings and weights follow from it (PROT-22).
    fn measured(&mut self, _window: Window, own: Measurements) -> Measurements {
        own
    }

    /// What to tell in the window's receipt of what was attested and voted (PROT-27).
    fn reported(&mut self, _window: Window, own: WindowReport) -> WindowReport {
        own
    }

    /// The weights to post for the epoch that ends with the window (PROT-26); none: nothing is posted.
    fn weights(&mut self, _view: &WindowView, own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        own
    }
}

/// Says what it found.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
