//! Votes for another model than the one that the selection gives.
//!
//! Sees: everything that a validator sees.
//! Ends at: PROT-19, a digest needs two thirds, and PROT-17, any participant can repeat the merge and detect it.

use protocol::{
    Digest,
    view::{Vote, WindowView},
};
use validator::strategy::Strategy;

pub struct FalseMerge;

impl Strategy for FalseMerge {
    fn vote(&mut self, view: &WindowView, own: Option<Vote>) -> Option<Vote> {
        let false_one =
            |digest: Digest| Digest::of(&[&b"another model"[..], &view.lineage.0, &digest.0].concat());
        own.map(|vote| Vote { update: false_one(vote.update), state_root: vote.state_root.map(false_one) })
    }
}
