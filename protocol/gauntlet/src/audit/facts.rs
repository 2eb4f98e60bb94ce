//! The facts that an audit compares with a receipt.

use crate::{Measured, Seeds, gathering::unweighted_max};
use protocol::{
    Block, Digest, RunParams, SeatId, Uid, Window,
    assign::{self, Assignment},
    receipt::{PreviousReceipt, Receipt, Reputations},
    view::{SeatView, Verdict, Vote, WindowView},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A receipt, and the data to compare it with. Unavailable data is `None`.
#[derive(Clone, Debug)]
pub struct Facts {
    pub params: RunParams,
    /// The window, finalised.
    pub view: WindowView,
    /// The seats now. A seat with another holder since the window is not compared.
    pub seats: Vec<SeatView>,
    pub training_sequences: u64,
    /// The validator of the receipt.
    pub uid: Uid,
    /// Already checked: its digest is anchored on the chain, and the hotkey that it names signed it.
    pub receipt: Receipt,
    /// The attestation on the chain, if there is one.
    pub attestation: Option<Vec<(Uid, Verdict)>>,
    /// The validator's latest receipt on the chain before this one.
    pub earlier: Option<PreviousReceipt>,
    /// The oldest window that the chain keeps.
    pub kept_from: Window,
    /// The reputations after the receipt before this one.
    pub remembered: Option<Reputations>,
    /// True if the window's model was available.
    pub has_model: bool,
    /// The window's contributions as they are in public buckets now.
    pub found: BTreeMap<Uid, Found>,
    /// Similarity of each pair of contributions that the validator held, and of each one and its reported
    /// near-duplicate.
    pub alike: BTreeMap<(Uid, Digest), f64>,
    /// The repeated measurements.
    pub measured: Option<BTreeMap<Uid, Measured>>,
    /// The digest of the repeated merge.
    pub merged: Option<Digest>,
    /// The weight vote for the window's epoch, once it is revealed.
    pub weight_vote: Option<RevealedWeights>,
    pub tolerance: f64,
}

/// A contribution in public buckets now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    Valid {
        trained: u32,
    },
    /// The committed bytes exist, and are faulty.
    Faulty {
        label: String,
        detail: String,
    },
    /// No bucket has it any more: no evidence.
    Gone,
}

/// A revealed weight vote, and the weights that it could be.
#[derive(Clone, Debug, PartialEq)]
pub struct RevealedWeights {
    pub epoch: u32,
    pub posted: Vec<(Uid, u16)>,
    /// The weights that follow from the receipts of the last windows judged before the vote was committed, latest
    /// last. Empty if one of them cannot be read.
    pub earned: Vec<(Window, Vec<(Uid, u16)>)>,
}

impl Facts {
    /// Returns the validator's vote on the chain.
    pub fn vote(&self) -> Option<Vote> {
        self.view.votes.iter().find(|(of, _)| *of == self.uid).map(|(_, vote)| *vote)
    }

    /// Returns the seeds of the validator's sequences (PROT-2). If the chain has no digest of a salt, the receipt's
    /// salt does not enter them.
    pub fn seeds(&self) -> Option<Seeds> {
        let hash = self.view.evaluation_hash?;
        let is_committed = self.view.salts.iter().any(|(of, _)| *of == self.uid);
        let salt = is_committed.then_some(&self.receipt.salt);
        let (run, window) = (self.receipt.run, self.view.window);
        Some(Seeds {
            probe: assign::probe_seed(run, window, &hash),
            own: assign::evaluation_seed(run, window, &hash, salt),
        })
    }

    /// Returns the window's assignment (PROT-5).
    pub fn assignment(&self) -> Option<Assignment<'_>> {
        Some(Assignment {
            run: self.receipt.run,
            window: self.view.window,
            deal_seed: self.view.deal_seed?,
            slots: &self.view.slots,
            cursor: self.view.cursor,
            sequences_per_seat: self.params.sequences_per_seat,
            training_sequences: self.training_sequences,
        })
    }

    /// Returns the holder of a seat, if it has not changed since the window opened.
    pub(super) fn holder(&self, uid: Uid, opened: Block) -> Option<SeatId> {
        let seat = self.seats.iter().find(|seat| seat.id.uid == uid)?;
        (seat.id.registered_at <= opened).then_some(seat.id)
    }
}

/// Returns the seats whose contributions an audit fetches, of those that committed and that the receipt names. They
/// are all selected ones, all with a consensus weight, and as many others as an honest validator fetches (PROT-13).
/// An audit costs at most a validator's window, however many commitments exist and whatever the receipt names.
pub fn to_fetch(view: &WindowView, receipt: &Receipt, params: &RunParams) -> BTreeSet<Uid> {
    let selected: BTreeSet<Uid> =
        view.selection.iter().flat_map(|made| &made.selected).map(|one| one.uid).collect();
    let (mut due, others): (BTreeSet<Uid>, BTreeSet<Uid>) = named(view, receipt)
        .chain(selected.iter().copied())
        .partition(|uid| selected.contains(uid) || 0 < view.weight_of(*uid));
    due.extend(others.into_iter().take(unweighted_max(params)));
    due
}

/// Returns the seats that committed and that the receipt reports as fetched.
pub fn named<'a>(view: &'a WindowView, receipt: &'a Receipt) -> impl Iterator<Item = Uid> + 'a {
    let faulty = receipt.attestation.faulty.iter().map(|said| said.uid);
    let held = receipt.judgement.iter().flat_map(|judgement| &judgement.held).copied();
    let named = receipt.attestation.valid.iter().copied().chain(faulty).chain(held);
    named.filter(|uid| view.commitments.iter().any(|(committed, _)| committed == uid))
}
