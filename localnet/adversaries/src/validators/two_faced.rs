//! Skips every fault on the chain, and tells in its receipts that it saw them.
//!
//! Sees: everything that a validator sees.
//! Ends at: PROT-21, the receipt holds its signature under an attestation that is not the one on the chain.

use super::whitewasher::Whitewasher;
use protocol::{
    Uid, Window,
    receipt::ReportedFault,
    view::{Verdict, WindowView},
};
use std::collections::BTreeMap;
use validator::{signed_db::WindowReport, strategy::Strategy};

/// Windows that are remembered until their receipt is written. More than an evaluation is ever behind.
const KEPT: usize = 16;

#[derive(Default)]
pub struct TwoFaced {
    /// Who was faulty, and attested as valid.
    spared: BTreeMap<Window, Vec<Uid>>,
}

impl Strategy for TwoFaced {
    fn verdicts(&mut self, view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        let faulty = own.iter().filter(|(_, verdict)| *verdict == Verdict::Faulty).map(|(uid, _)| *uid);
        self.spared.insert(view.window, faulty.collect());
        while KEPT < self.spared.len() {
            self.spared.pop_first();
        }
        Whitewasher.verdicts(view, own)
    }

    fn reported(&mut self, window: Window, mut own: WindowReport) -> WindowReport {
        let Some(attested) = &mut own.attestation else { return own };
        for uid in self.spared.remove(&window).unwrap_or_default() {
            attested.valid.retain(|valid| *valid != uid);
            // What was not there cannot be looked at again.
            let (label, detail) = ("missing".to_owned(), String::new());
            attested.faulty.push(ReportedFault { uid, label, detail });
        }
        attested.faulty.sort_by_key(|said| said.uid);
        own
    }
}
