//! Commits an epoch's weight vote in the epoch's last window, and reveals it in the next epoch (PROT-26, PROT-30).

use crate::{
    signed_db::{SignedDb, WeightVote},
    step::{RunError, Stop, store_before},
    validator::Validator,
};
use chain_client::{Call, Refusal};
use daemon::{Entry, durable::is_full, error_chain};
use protocol::{Block, Window, view::WindowView};
use tracing::Instrument as _;

impl Validator {
    /// In the last window of an epoch, stores the weight vote and commits to its hash. The chain pays dividends only
    /// for a vote that is revealed in the next epoch.
    pub(crate) async fn commit_weights(&mut self, view: &WindowView) -> Result<(), RunError> {
        let window = view.window;
        let (run, epoch_windows) = (self.node.run_id(), self.node.run().params.epoch_windows);
        let epoch = window.epoch(epoch_windows);
        if window.next().epoch(epoch_windows) == epoch {
            return Ok(());
        }
        let weights = self.strategy.weights(view, gauntlet::weights(self.signed.reputations()));
        if weights.is_empty() {
            return Ok(());
        }
        // A stored one may be committed already, by an earlier process.
        let is_repeated = self.signed.weight_vote(epoch).is_some();
        let vote = WeightVote { epoch, salt: self.salts.weight_vote(run, epoch, &weights), weights };
        let deadline = self.node.schedule().vote_deadline(window);
        let store = |signed: &mut SignedDb| signed.store_weight_vote(vote.clone());
        let vote = match store_before(&mut self.node, &mut self.signed, deadline, store).await {
            Ok(vote) => vote,
            Err(Stop::Skip(skip)) => {
                self.journal_no_weights(window, epoch, &skip.reason);
                return Ok(());
            }
            Err(Stop::Fail(error)) => return Err(error),
        };
        let hash = vote.hash(&self.node.seat.hotkey);
        let span = tracing::debug_span!(target: "profile", "commit weights", window = window.0, epoch);
        match self.node.chain().submit(Call::CommitWeights { run, epoch, hash }).instrument(span).await {
            Ok(_) => tracing::info!(epoch, seats = vote.weights.len(), "committed to weights"),
            Err(error) if is_repeated && error.refusal() == Some(Refusal::AlreadyCommitted) => {}
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                self.remove_weight_vote(epoch)?;
                self.journal_no_weights(window, epoch, &error_chain(&error));
            }
        }
        Ok(())
    }

    /// Reveals the weight votes of earlier epochs.
    pub(crate) async fn reveal_weights(&mut self, window: Window) -> Result<(), RunError> {
        let (run, epoch_windows) = (self.node.run_id(), self.node.run().params.epoch_windows);
        let due = self.signed.weight_votes_before(window.epoch(epoch_windows));
        if due.is_empty() {
            return Ok(());
        }
        // A node holds the window's model some blocks before the window opens. Until then the chain accepts no
        // reveal.
        self.node.wait_past(Block(self.node.schedule().opens_at(window).0.saturating_sub(1))).await?;
        for WeightVote { epoch, weights, salt } in due {
            let call = Call::RevealWeights { run, epoch, weights: weights.clone(), salt };
            let span = tracing::debug_span!(target: "profile", "reveal weights", window = window.0, epoch);
            let reason = match self.node.chain().submit(call).instrument(span).await {
                Ok(_) => None,
                // Revealed by an earlier process.
                Err(error) if error.refusal() == Some(Refusal::AlreadyRevealed) => None,
                // Kept for the next window.
                Err(error) if error.refusal() == Some(Refusal::RevealNotBegun) => continue,
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error) => Some(error_chain(&error)),
            };
            self.remove_weight_vote(epoch)?;
            match reason {
                None => self.node.journal.write(&Entry::Posted { epoch, weights }),
                Some(reason) => self.journal_no_weights(window, epoch, &reason),
            }
        }
        Ok(())
    }

    /// Removes a weight vote that the chain has, or will never accept. On a full disk its row stays, and is removed
    /// with the next write.
    fn remove_weight_vote(&mut self, epoch: u32) -> Result<(), RunError> {
        match self.signed.remove_weight_vote(epoch) {
            Err(error) if is_full(&error) => {
                tracing::warn!(epoch, error = error_chain(&error), "a finished weight vote is still on disk");
                Ok(())
            }
            removed => Ok(removed?),
        }
    }

    fn journal_no_weights(&mut self, window: Window, epoch: u32, reason: &str) {
        tracing::warn!(epoch, reason, "no weights, and no dividends for the epoch");
        let reason = format!("no weights for epoch {epoch}: {reason}");
        daemon::traces::failed(&reason);
        self.node.journal.write(&Entry::Abstained { window, reason });
    }
}
