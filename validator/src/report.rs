//! The signed receipt of each window: this validator's attestation, vote and measurements, with the results
//! (PROT-27).
//!
//! A window has one receipt. It is on disk before its digest is on the chain. It has a separate signature under
//! attestation and vote, which proves a contradiction if the chain has others (PROT-21).
//!
//! The digest is anchored at once. The bytes stay on this machine while other validators could use them: they contain
//! the weights that this validator is about to vote, and its answers to the epoch's probes
//! ([`receipt::public_from`]). Failed anchors and uploads are retried with every window, oldest first, and delay
//! nothing else.

pub(crate) mod delivery;
mod publish;
#[cfg(test)]
mod tests;

pub use publish::{Delivery, Undelivered, anchor, publish};

use crate::{
    signed_db::{SignedDb, WindowReport},
    step::{RunError, Stop, held_seat_in, store_by},
    validator::Validator,
};
use gauntlet::{Reputations, form};
use protocol::{
    Block, Digest, Uid, Window,
    receipt::{self, Attestation, Judgement, Receipt, Statements},
    view::{Verdict, Vote},
};

/// Statements of a window that the chain has as they were stored. Only these are signed as statements (PROT-21):
/// another process may have had this seat's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    pub attestation: bool,
    pub vote: bool,
}

impl Confirmed {
    /// Compares a report with the attestation and vote that the chain has.
    pub fn of(
        report: &WindowReport,
        attestation: Option<&[(Uid, Verdict)]>,
        vote: Option<Vote>,
    ) -> Confirmed {
        Confirmed {
            attestation: attestation.is_some()
                && attestation == report.attestation.as_ref().map(Attestation::verdicts).as_deref(),
            vote: vote.is_some() && vote == report.vote(),
        }
    }
}

impl Validator {
    /// Signs the receipt of `window`, once, and stores it together with the reputations that follow from `judgement`.
    /// While the disk is full, retries until the chain reaches `until`.
    pub(crate) async fn sign_receipt(
        &mut self,
        window: Window,
        base: Digest,
        judgement: Option<(Judgement, Reputations)>,
        until: Block,
    ) -> Result<(), Stop> {
        if self.signed.signed_until() >= Some(window) || !held_seat_in(&self.node, window) {
            return Ok(());
        }
        let confirmed = self.confirmed(window).await?;
        let report = self.signed.report(window).cloned().unwrap_or_default();
        let report = self.strategy.reported(window, report);
        let (judgement, reputations) = judgement.unzip();
        let run = self.node.run_id();
        let mut receipt = Receipt {
            format: receipt::FORMAT,
            run,
            window,
            validator: self.node.seat.id,
            hotkey: self.node.seat.hotkey,
            base,
            previous: self.signed.latest_receipt(),
            salt: self.salts.salt(run, window),
            attestation: report.attestation.unwrap_or_default(),
            merged: report.merged.or_else(|| self.merger.vetoed_in(window).cloned()),
            statements: Statements::default(),
            before: form::reputations(self.signed.reputations()),
            judgement,
        };
        receipt.sign_statements(confirmed.attestation, confirmed.vote, &self.node.signer);
        let signed_receipt = receipt.sign(&self.node.signer);
        let store =
            |signed: &mut SignedDb| signed.store_receipt(window, &signed_receipt, reputations.clone());
        if store_by(&mut self.node, &mut self.signed, until, store).await? {
            tracing::debug!(window = window.0, receipt = %signed_receipt.digest, "signed the receipt");
        }
        Ok(())
    }

    async fn confirmed(&self, window: Window) -> Result<Confirmed, RunError> {
        let (run, uid) = (self.node.run_id(), self.node.uid());
        let Some(report) = self.signed.report(window) else { return Ok(Confirmed::default()) };
        let Some(view) = self.node.chain().window(run, window).await? else {
            return Ok(Confirmed::default());
        };
        let attestation = self.node.chain().attestation(run, window, uid).await?;
        let vote = view.votes.iter().find(|(of, _)| *of == uid).map(|(_, vote)| *vote);
        Ok(Confirmed::of(report, attestation.as_deref(), vote))
    }
}
