//! Skips every fault: attests as valid what it saw is none.
//!
//! Sees: everything that a validator sees. Ends at: PROT-14, what it attests does not stand alone; PROT-27, the bytes
//! are there for anybody, and their fault with them.

use protocol::{
    Uid,
    view::{Verdict, WindowView},
};
use validator::strategy::Strategy;

pub struct Whitewasher;

impl Strategy for Whitewasher {
    fn verdicts(&mut self, _view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        Some(own.into_iter().map(|(uid, _)| (uid, Verdict::Valid)).collect())
    }
}
