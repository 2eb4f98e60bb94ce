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

mod publish;
#[cfg(test)]
mod tests;

pub use publish::{Delivery, Undelivered, anchor, publish};

use crate::{
    run::Validator,
    signed_db::{SignedDb, SignedDbError, WindowReport},
    step::{RunError, Stop, held_seat_in, store_by},
};
use daemon::{Entry, Node, durable::is_full, error_chain};
use gauntlet::{Reputations, form};
use protocol::{
    Block, Digest, Uid, Window,
    receipt::{self, Attestation, Judgement, Receipt, Statements},
    view::{Verdict, Vote},
};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

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

/// Sends signed receipts to the chain and to the bucket, each in a task of its own.
#[derive(Default)]
pub struct Receipts {
    /// Digests of receipts on their way to the chain.
    anchoring: Option<JoinHandle<Vec<Delivery>>>,
    /// Receipts on their way to the bucket.
    publishing: Option<JoinHandle<Vec<Delivery>>>,
}

impl Receipts {
    /// Notes what became of the receipts sent last. Sends the digests that are not on the chain yet, and the receipts
    /// that are public by now and not in the bucket, each in a task of its own.
    pub(crate) async fn deliver(&mut self, node: &mut Node, signed: &mut SignedDb) -> Result<(), RunError> {
        let (run, uid) = (node.run_id(), node.uid());
        if let Some(ended) = take_ended(&mut self.anchoring) {
            for delivery in ended.await.map_err(RunError::PublisherDied)? {
                journal_anchored(node, signed, delivery)?;
            }
        }
        if self.anchoring.is_none() {
            let unanchored = signed.unanchored_receipts();
            if !unanchored.is_empty() {
                let chain = node.sync.follower.chain.clone();
                let run = node.run().clone();
                // No child of the span in which it begins: that would stay open until this ends.
                let window = node.window().0;
                let span = tracing::debug_span!(target: "profile", parent: None, "anchor receipts", window);
                self.anchoring = Some(tokio::spawn(anchor(chain, run, uid, unanchored).instrument(span)));
            }
        }
        if let Some(ended) = take_ended(&mut self.publishing) {
            for delivery in ended.await.map_err(RunError::PublisherDied)? {
                journal_published(node, signed, delivery)?;
            }
        }
        if self.publishing.is_none() {
            let unpublished = signed.unpublished_receipts(first_sealed(node));
            if !unpublished.is_empty() {
                let store = node.store.clone();
                // No child of the span in which it begins: that would stay open until this ends.
                let window = node.window().0;
                let span = tracing::debug_span!(target: "profile", parent: None, "publish receipts", window);
                self.publishing = Some(tokio::spawn(publish(store, run, uid, unpublished).instrument(span)));
            }
        }
        Ok(())
    }
}

/// The first window whose receipt is not public yet. Finality decides: a block that is not final may be replaced
/// by one in which a weight vote is committed.
fn first_sealed(node: &Node) -> Window {
    let now = node.schedule().window_at(node.heads.borrow().block).unwrap_or(Window::FIRST);
    receipt::first_sealed(now, &node.run().params)
}

fn journal_anchored(node: &mut Node, signed: &mut SignedDb, delivery: Delivery) -> Result<(), RunError> {
    let is_over = delivery.is_over();
    let Delivery { window, digest, outcome, .. } = delivery;
    node.journal.write(&match outcome {
        Ok(()) => Entry::Anchored { window, receipt: digest },
        Err(Undelivered::Retry(reason) | Undelivered::Never(reason)) => {
            tracing::warn!(window = window.0, reason, "the receipt is not on the chain");
            Entry::Unpublished { window, reason }
        }
    });
    match is_over {
        true => noted(window, signed.mark_anchored(window)),
        false => Ok(()),
    }
}

fn journal_published(node: &mut Node, signed: &mut SignedDb, delivery: Delivery) -> Result<(), RunError> {
    let is_over = delivery.is_over();
    let Delivery { window, digest, bytes, outcome } = delivery;
    node.journal.write(&match outcome {
        Ok(()) => Entry::Published { window, receipt: digest, bytes },
        Err(Undelivered::Retry(reason) | Undelivered::Never(reason)) => {
            tracing::warn!(window = window.0, reason, "the receipt is not in our bucket");
            Entry::Unpublished { window, reason }
        }
    });
    match is_over {
        true => noted(window, signed.mark_published(window)),
        false => Ok(()),
    }
}

/// Takes the task, if it has ended.
fn take_ended<T>(task: &mut Option<JoinHandle<T>>) -> Option<JoinHandle<T>> {
    task.take_if(|running| running.is_finished())
}

/// Ignores a full disk: the mark is then in memory only, and the receipt is sent again after the next write.
fn noted(window: Window, marked: Result<(), SignedDbError>) -> Result<(), RunError> {
    match marked {
        Err(error) if is_full(&error) => {
            let error = error_chain(&error);
            tracing::warn!(window = window.0, error, "this receipt will be sent again after the next write");
            Ok(())
        }
        marked => Ok(marked?),
    }
}
