//! Delivery of signed receipts to the chain and to the bucket, beside the loop.

use super::publish::{Delivery, Undelivered, anchor, publish};
use crate::{
    signed_db::{SignedDb, SignedDbError},
    step::RunError,
};
use daemon::{Entry, Node, durable::is_full, error_chain};
use protocol::{Window, receipt};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

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
