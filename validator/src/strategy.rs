//! The points at which one validator may report something else than another.
//!
//! What a validator attests, votes, reports and weighs follows from its measurements. A [`Strategy`] is told each
//! result before it is used, and may change it. The program runs [`DefaultStrategy`]; studies of dishonest validators
//! run others.

use crate::{evaluate::Measurements, signed_db::WindowReport};
use async_trait::async_trait;
use daemon::Follower;
use gauntlet::{Evidence, SeatReport};
use protocol::{
    Block, Uid, Window,
    view::{Verdict, Vote, WindowView},
};

/// Changes what a validator tells the chain. The default of each method changes nothing.
///
/// No method but [`Strategy::wait_and_look`] waits. Each gets what is public at that moment, and `own`: the result of
/// this validator.
#[async_trait]
pub trait Strategy: Send {
    /// Whether the validator gathers, merges and evaluates. Without that it has seen no contribution, has no merge to
    /// vote for, and signs no receipts.
    fn computes(&self) -> bool {
        true
    }

    /// Called before the attestation and before the vote. May wait while the call can still be included by
    /// `deadline`. Returns the window as the chain has it then; `None` if it did not look.
    async fn wait_and_look(
        &mut self,
        _follower: &Follower,
        _window: Window,
        _deadline: Block,
    ) -> Option<WindowView> {
        None
    }

    /// The attestation, seat by seat (PROT-14); `None` attests nothing.
    fn verdicts(&mut self, _view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        Some(own)
    }

    /// The vote (PROT-19); `None` votes nothing. `own` is the vote for this validator's merge, if it merged.
    fn vote(&mut self, _view: &WindowView, own: Option<Vote>) -> Option<Vote> {
        own
    }

    /// The measurements from which receipts, ratings and weights follow (PROT-22).
    fn measured(&mut self, _window: Window, own: Measurements) -> Measurements {
        own
    }

    /// Called when a window is judged, with the evidence and what followed from it for each seat.
    fn judged(&mut self, _window: Window, _evidence: &[Evidence], _reports: &[SeatReport]) {}

    /// The attestation and vote that the window's receipt states (PROT-27).
    fn reported(&mut self, _window: Window, own: WindowReport) -> WindowReport {
        own
    }

    /// The weights of the epoch that ends with the window (PROT-26); none posts nothing.
    fn weights(&mut self, _view: &WindowView, own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        own
    }
}

/// Changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
