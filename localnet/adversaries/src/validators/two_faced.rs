//! Reports no fault on the chain, but reports all in its receipts.
//!
//! Sees: everything that a validator sees.
//! Ends at: PROT-21, the receipt has its signature under an attestation that differs from the one on the chain.

use super::whitewasher::Whitewasher;
use protocol::{
    Uid, Window,
    receipt::ReportedFault,
    view::{Verdict, WindowView},
};
use std::collections::BTreeMap;
use validator::{signed_db::WindowReport, strategy::Strategy};

/// Number of windows kept until their receipt is written. An evaluation never lags by as many.
const KEPT: usize = 16;

#[derive(Default)]
pub struct TwoFaced {
    /// Faulty seats that were attested as valid, by window.
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
            // A missing object cannot be examined again.
            let (label, detail) = ("missing".to_owned(), String::new());
            attested.faulty.push(ReportedFault { uid, label, detail });
        }
        attested.faulty.sort_by_key(|said| said.uid);
        own
    }
}
