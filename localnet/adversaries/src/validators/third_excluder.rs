//! Omits a rival's contribution from its attestations, and gives it no weight.
//!
//! Sees: everything that a validator sees. With more than a third of the stake, it keeps the rival out of every merge.
//! Ends at: PROT-14, other validators score what they hold unless two thirds attest it as faulty, and PROT-31, a
//! weight follows from more than half of the stake.

use protocol::{
    Uid,
    view::{Verdict, WindowView},
};
use validator::strategy::Strategy;

/// Seat of the rival: the first miner.
pub const RIVAL: Uid = Uid(0);

pub struct ThirdExcluder;

impl Strategy for ThirdExcluder {
    fn verdicts(&mut self, _view: &WindowView, mut own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        own.retain(|(uid, _)| *uid != RIVAL);
        Some(own)
    }

    fn weights(&mut self, _view: &WindowView, mut own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        own.retain(|(uid, _)| *uid != RIVAL);
        own
    }
}
