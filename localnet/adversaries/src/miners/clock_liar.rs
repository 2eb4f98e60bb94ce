//! Uploads after the deadline, and has its bucket report false times.
//!
//! Sees: all contributions that were published before its own. Stopped by: PROT-1 and PROT-14. No rule reads a store's
//! clock: an object that is absent at the deadline block is missing.

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
