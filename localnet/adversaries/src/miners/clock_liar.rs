//! Uploads after the deadline, and has its bucket say that the bytes are older than they are, and that it is another time.
//!
//! Sees: what everybody showed before it.
//! Ends at: PROT-1 and PROT-14, no rule reads a store's time or anybody's clock: what was not there by the block was not there.

use crate::adversary::{Adversary, Door, Moment, Own, Presentation, When};
use protocol::{Digest, Uid};

pub struct ClockLiar;

impl Adversary for ClockLiar {
    fn present(&mut self, _at: &Moment<'_>, own: &Own<'_>, _commitments: &[(Uid, Digest)]) -> Presentation {
        let mut late = Presentation::honest(own);
        late.shows.iter_mut().for_each(|show| show.when = When::Late);
        late
    }

    fn door(&self) -> Door {
        Door::Backdating
    }
}
