//! Leaves a rival's contribution out of its attestations, and gives it no weight.
//!
//! Sees: everything that a validator sees. With more than a third of the stake the rival is in no merge. Ends at:
//! PROT-14, other validators score what they hold unless two thirds attest it as faulty, and PROT-31: a weight follows
//! from more than half of the stake.

use protocol::{
    Uid,
    view::{Verdict, WindowView},
};
use validator::strategy::Strategy;

/// The rival is the first miner's seat.
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
