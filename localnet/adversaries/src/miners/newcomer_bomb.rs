//! Sends the largest values that are not a fault, from its first window on.
//!
//! Sees: nothing. A new seat has not been judged: if most merged seats are newcomers, their norm is the median, and
//! one window destroys the model. Stopped by: PROT-16, newcomers are at most a quarter of the merged seats once seats
//! have weights; PROT-17, the median counts weight; PROT-19, validators do not vote for a model that became worse.

use super::useless::of_level;
use crate::adversary::{Adversary, MinerContext, OwnContribution, Presentation};
use protocol::submission::RMS_MAX;

#[derive(Clone, Copy, Debug)]
pub struct NewcomerBomb;

impl Adversary for NewcomerBomb {
    fn sequences(&mut self, _at: &MinerContext<'_>, _assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        Vec::new()
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn present(&mut self, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        of_level(RMS_MAX as f32 * 0.9, at, own)
    }
}
