//! The signed receipt of each window: what this validator attested, voted and measured, and what follows from it
//! (PROT-27).
//!
//! A window has one receipt. It is on disk before its digest is on the chain. It states attestation and vote under a
//! signature of their own, which convicts the validator if the chain has others (PROT-21). A receipt that cannot be
//! published is tried again with every window, oldest first, and holds up nothing else.

pub mod form;
mod publish;
#[cfg(test)]
mod tests;

pub use publish::{NotAnchored, Published, publish};

use crate::{
    gauntlet::Reputations,
    run::Validator,
    signed_db::WindowReport,
    step::{RunError, Stop},
};
use node::{Entry, durable::is_full, error_chain};
use protocol::{
    Block, Digest, Uid, Window,
    receipt::{self, Attestation, Judgement, Receipt, Statements},
    view::{Verdict, Vote},
};

/// Which statements of a window the chain has as they were stored. Only these are signed as statements (PROT-21):
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
        if self.signed.signed_until() >= Some(window) || !self.held_seat_in(window) {
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
            merged: report.merged.or_else(|| self.vetoed_in(window).cloned()),
            statements: Statements::default(),
            before: form::reputations(self.signed.reputations()),
            judgement,
        };
        receipt.sign_statements(confirmed.attestation, confirmed.vote, &self.node.signer);
        let signed_receipt = receipt.sign(&self.node.signer);
        let store =
            self.store_by(until, |signed| signed.store_receipt(window, &signed_receipt, reputations.clone()));
        if store.await? {
            tracing::debug!(window = window.0, receipt = %signed_receipt.digest, "signed the receipt");
        }
        Ok(())
    }

    /// Whether this validator held its seat when the window opened. The chain takes no receipt for an earlier window.
    pub(crate) fn held_seat_in(&self, window: Window) -> bool {
        self.node.schedule().window_at(self.node.seat.id.registered_at) < Some(window)
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

    /// Notes what became of the receipts sent last, and sends those that are not published yet, in a task of its own.
    pub(crate) async fn publish_receipts(&mut self) -> Result<(), RunError> {
        if self.publishing.as_ref().is_some_and(|running| !running.is_finished()) {
            return Ok(());
        }
        if let Some(ended) = self.publishing.take() {
            for published in ended.await.map_err(RunError::PublisherDied)? {
                self.journal_published(published)?;
            }
        }
        let pending = self.signed.pending_receipts();
        if !pending.is_empty() {
            let (store, chain) = (self.node.store.clone(), self.node.sync.follower.chain.clone());
            let (run, uid) = (self.node.run_id(), self.node.uid());
            self.publishing = Some(tokio::spawn(publish(store, chain, run, uid, pending)));
        }
        Ok(())
    }

    fn journal_published(&mut self, published: Published) -> Result<(), RunError> {
        let is_over = published.is_over();
        let Published { window, digest, bytes, anchored } = published;
        self.node.journal.write(&match anchored {
            Ok(()) => Entry::Published { window, receipt: digest, bytes },
            Err(NotAnchored::Retry(reason) | NotAnchored::Never(reason)) => {
                tracing::warn!(window = window.0, reason, "the receipt is not on the chain");
                Entry::Unpublished { window, reason }
            }
        });
        if !is_over {
            return Ok(());
        }
        match self.signed.mark_published(window) {
            Err(error) if is_full(&error) => {
                let error = error_chain(&error);
                tracing::warn!(
                    window = window.0,
                    error,
                    "this receipt will be published again after the next write"
                );
                Ok(())
            }
            marked => Ok(marked?),
        }
    }
}
