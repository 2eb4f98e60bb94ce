//! The decisions in which validators may differ.
//!
//! A validator's attestation, vote, receipt and weights follow from its measurements. A [`Strategy`] gets each result
//! before it is used, and may change it. The program runs [`DefaultStrategy`]; studies of dishonest validators run
//! others.

use crate::signed_db::WindowReport;
use async_trait::async_trait;
use daemon::Follower;
use gauntlet::{Evidence, SeatReport};
use measure::Measurements;
use protocol::{
    Block, Uid, Window,
    view::{Verdict, Vote, WindowView},
};

/// Changes a validator's statements to the chain. The default of each method changes nothing.
///
/// Only [`Strategy::wait_and_look`] waits. Each method gets the public data at that moment, and `own`: the result of
/// this validator.
#[async_trait]
pub trait Strategy: Send {
    /// Returns whether the validator gathers, merges and evaluates. Otherwise it has no contributions and no merge to
    /// vote for, and signs no receipts.
    fn computes(&self) -> bool {
        true
    }

    /// Called before the attestation and before the vote. May wait while the call can still be included by
    /// `deadline`. Returns the window as the chain has it then; `None` if it did not read the chain.
    async fn wait_and_look(
        &mut self,
        _follower: &Follower,
        _window: Window,
        _deadline: Block,
    ) -> Option<WindowView> {
        None
    }

    /// Returns the attestation, seat by seat (PROT-14); `None` attests nothing.
    fn verdicts(&mut self, _view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        Some(own)
    }

    /// Returns the vote (PROT-19); `None` votes nothing. `own` is the vote for this validator's merge, if it merged.
    fn vote(&mut self, _view: &WindowView, own: Option<Vote>) -> Option<Vote> {
        own
    }

    /// Returns the measurements from which receipts, ratings and weights follow (PROT-22).
    fn measured(&mut self, _window: Window, own: Measurements) -> Measurements {
        own
    }

    /// Called when a window is judged, with the evidence and the result for each seat.
    fn judged(&mut self, _window: Window, _evidence: &[Evidence], _reports: &[SeatReport]) {}

    /// Returns the attestation and vote for the window's receipt (PROT-27).
    fn reported(&mut self, _window: Window, own: WindowReport) -> WindowReport {
        own
    }

    /// Returns the weights of the epoch that ends with the window (PROT-26); an empty list posts nothing.
    fn weights(&mut self, _view: &WindowView, own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        own
    }
}

/// Changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
