//! Commits to this validator's measurements, and shows those that are drawn (PROT-27, PROT-30).
//!
//! Each receipt is anchored with a root over the losses that the validator measured on the window's shared sequences.
//! After an epoch the chain draws a few contributions, and the validator shows the losses that belong to its roots.
//! Everything follows from the receipt and the window's selection: nothing else is stored, and an audit recomputes
//! the root.

use crate::{
    signed_db::SignedDb,
    step::{RunError, wait_for_view},
};
use chain_client::{Call, Refusal};
use daemon::{Entry, Node, error_chain};
use gauntlet::probes::{answer, root};
use protocol::{
    Window,
    probe::{Answer, Probe},
    receipt::Receipt,
    select::Selected,
    view::{ProbeRoot, WindowView},
};
use std::collections::BTreeMap;

/// Shows measurements of the contributions that the chain drew of the epoch before.
#[derive(Default)]
pub struct ProbeAnswers {
    /// The latest epoch whose probes were answered by this process.
    answered: Option<u32>,
}

impl ProbeAnswers {
    /// In the first windows of an epoch, shows what this validator measured of the contributions that were drawn of the
    /// epoch before. A validator that shows less is paid less for that epoch.
    pub(crate) async fn answer(
        &mut self,
        node: &mut Node,
        signed: &SignedDb,
        window: Window,
    ) -> Result<(), RunError> {
        let (run, params) = (node.run_id(), node.run().params);
        let Some(epoch) = window.epoch(params.epoch_windows).checked_sub(1) else { return Ok(()) };
        let first = Window((epoch + 1).saturating_mul(params.epoch_windows));
        let is_over = first.0.saturating_add(params.reveal_windows) <= window.0;
        if is_over || Some(epoch) <= self.answered {
            return Ok(());
        }
        // The chain draws as it records the hash of the opening, in the block after it, under load some blocks late.
        node.wait_past(node.schedule().opens_at(first)).await?;
        let until = node.schedule().commit_deadline(window);
        let is_drawn = |view: &WindowView| view.opening_hash.is_some();
        let Some(view) = wait_for_view(node, first, until, is_drawn).await? else { return Ok(()) };
        if view.probes.is_empty() {
            return Ok(());
        }
        let answers = answers(node, signed, first, &view.probes).await?;
        let drawn = u32::try_from(answers.len()).unwrap_or(u32::MAX);
        let measured = answers.iter().flatten().filter(|answer| answer.losses.is_some());
        let answered = u32::try_from(measured.count()).unwrap_or(u32::MAX);
        let shown = Entry::Answered { epoch, answered, drawn };
        let entry = match answered {
            // The chain refuses a call without losses.
            0 => Some(shown),
            _ => match node.chain().submit(Call::AnswerProbes { run, epoch, answers }).await {
                Ok(_) => Some(shown),
                // Answered by an earlier process.
                Err(error) if error.refusal() == Some(Refusal::AlreadyAnswered) => None,
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error) if error.refusal().is_none_or(|refusal| refusal == Refusal::RevealNotBegun) => {
                    let reason = error_chain(&error);
                    tracing::warn!(epoch, reason, "measurements are shown again in the next window");
                    return Ok(());
                }
                Err(error) => {
                    let reason = error_chain(&error);
                    tracing::warn!(epoch, reason, "no measurement is shown, and no dividends for the epoch");
                    let reason = format!("no measurement of epoch {epoch} is shown: {reason}");
                    Some(Entry::Abstained { window, reason })
                }
            },
        };
        self.answered = Some(epoch);
        if let Some(entry) = entry {
            node.journal.write(&entry);
        }
        Ok(())
    }
}

/// One answer for each probe, in order. `None` for a window of which no root was anchored before the window
/// `first`.
async fn answers(
    node: &Node,
    signed: &SignedDb,
    first: Window,
    probes: &[Probe],
) -> Result<Vec<Option<Answer>>, RunError> {
    let mut bound = BTreeMap::new();
    let mut answers = Vec::with_capacity(probes.len());
    for Probe { window, uid } in probes {
        if !bound.contains_key(window) {
            bound.insert(*window, bound_by(node, signed, *window, first).await?);
        }
        let params = &node.run().params;
        let answer = bound
            .get(window)
            .and_then(Option::as_ref)
            .and_then(|(receipt, selected)| answer(receipt, selected, *uid, params));
        answers.push(answer);
    }
    Ok(answers)
}

/// This validator's receipt of `window` and the window's selection, if the chain has the receipt's root since
/// before the window `first`.
async fn bound_by(
    node: &Node,
    signed: &SignedDb,
    window: Window,
    first: Window,
) -> Result<Option<(Receipt, Vec<Selected>)>, RunError> {
    let params = &node.run().params;
    let Some(bytes) = signed.receipt(window).and_then(|stored| stored.bytes) else {
        return Ok(None);
    };
    let Some(view) = node.window_view(window).await? else { return Ok(None) };
    let Ok(receipt) = Receipt::open(&bytes, params, &node.chain().genesis()) else {
        return Ok(None);
    };
    let selected = view.selection.map_or_else(Vec::new, |made| made.selected);
    let ours = root(&receipt, &selected, params);
    let is_bound = |anchored: &ProbeRoot| {
        anchored.validator == node.uid() && anchored.root == ours && anchored.at < first
    };
    Ok(view.probe_roots.iter().any(is_bound).then_some((receipt, selected)))
}
