//! Uploads after the deadline, and has its bucket say that the bytes are older than they are, and that it is another time.
//!
//! Sees: what everybody showed before it.
//! Ends at: PROT-1 and PROT-14, no rule reads a store's time or anybody's clock: what was not there by the block was not there.

use crate::adversary::{Adversary, FaultyProxy, MinerContext, OwnContribution, Presentation, Timing};
use protocol::{Digest, Uid};

pub struct ClockLiar;

impl Adversary for ClockLiar {
    fn present(
        &mut self,
        _at: &MinerContext<'_>,
        own: &OwnContribution<'_>,
        _commitments: &[(Uid, Digest)],
    ) -> Presentation {
        let mut late = Presentation::honest(own);
        late.uploads.iter_mut().for_each(|show| show.when = Timing::Late);
        late
    }

    fn proxy(&self) -> FaultyProxy {
        FaultyProxy::Backdating
    }
}
