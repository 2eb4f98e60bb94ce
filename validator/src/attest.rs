//! Attests each committed contribution as valid or faulty (PROT-14), and copies the selected ones to this validator's
//! bucket (PROT-15).

use crate::{
    gather::Gathered,
    signed_db::SignedDb,
    step::{Stop, hides, store_before},
    validator::Validator,
};
use chain_client::{Call, Refusal};
use daemon::{Entry, HeldContribution, error_chain, journal::SeatFault};
use futures::StreamExt as _;
use protocol::{
    RunId, Uid, Window,
    keys::{self, ObjectKey},
    receipt::{self, Attestation, NotObserved, ReportedFault},
    view::{Verdict, WindowView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use store::Store;

/// Concurrent uploads: the update is uploaded meanwhile, and is needed earlier.
const UPLOADS: usize = 1;

/// Returns the selected ones of `held`, with their names in a bucket.
pub fn selected_of(
    run: RunId,
    view: &WindowView,
    held: &BTreeMap<Uid, HeldContribution>,
) -> Vec<(ObjectKey, HeldContribution)> {
    let selected = view.selection.iter().flat_map(|selection| &selection.selected);
    let held = selected.filter_map(|one| held.get(&one.uid).filter(|held| held.digest == one.digest));
    held.map(|held| (keys::contribution(run, view.window, &held.digest), held.clone())).collect()
}

/// Copies selected contributions to this validator's bucket under their own names, for validators that could not get
/// them from the miner (PROT-15). A failure is logged: other validators copy them too.
pub async fn mirror(store: Arc<dyn Store>, contributions: Vec<(ObjectKey, HeldContribution)>) {
    let store = &*store;
    let copies = contributions.into_iter().map(|(key, held)| async move {
        if let Err(error) = held.put(store, &key).await {
            let error = error_chain(&error);
            tracing::warn!(object = %key, error, "could not copy a selected contribution to our bucket");
        }
    });
    futures::stream::iter(copies).buffer_unordered(UPLOADS).collect::<()>().await;
}

impl Validator {
    /// Stores the attestation, then submits it, or its hash in a run that hides attestations. The next window's salt
    /// is committed with it (PROT-2).
    #[tracing::instrument(
        name = "attest", target = "profile", level = "debug", skip_all,
        fields(window = view.window.0, valid = gathered.valid.len(), faulty = gathered.faulty.len()),
        err(level = "debug")
    )]
    pub(crate) async fn attest(&mut self, view: &WindowView, gathered: &Gathered) -> Result<(), Stop> {
        let window = view.window;
        if view.attested.contains(&self.node.uid()) {
            return Ok(());
        }
        let mut verdicts: Vec<(Uid, Verdict)> =
            gathered.valid.keys().map(|uid| (*uid, Verdict::Valid)).collect();
        verdicts.extend(gathered.faulty.keys().map(|uid| (*uid, Verdict::Faulty)));
        verdicts.sort_by_key(|(uid, _)| *uid);
        let deadline = self.node.schedule().attest_deadline(window);
        let looked = self.strategy.wait_and_look(&self.node.sync.follower, window, deadline).await;
        let view = looked.as_ref().unwrap_or(view);
        let Some(verdicts) = self.strategy.verdicts(view, verdicts) else { return Ok(()) };

        let attestation = attestation(&verdicts, gathered);
        let store =
            |signed: &mut SignedDb| signed.store_attestation(window, view.lineage, attestation.clone());
        let verdicts = store_before(&mut self.node, &mut self.signed, deadline, store).await?.verdicts();

        let run = self.node.run_id();
        let next_salt = self.salts.commitment(run, window.next());
        let call = if hides(&self.node) {
            let hash = self.salts.hidden_commitment(run, window, &verdicts, &self.node.seat.hotkey);
            Call::AttestHidden { run, window, hash, next_salt }
        } else {
            Call::Attest { run, window, verdicts: verdicts.clone(), next_salt }
        };
        self.node.submit_once(call, Refusal::AlreadyAttested).await?;
        self.node.journal.write(&attested(window, &verdicts, gathered));
        Ok(())
    }

    /// In a run that hides attestations, reveals the one that was committed (PROT-30), if this validator still holds
    /// the contributions that it attests as valid (PROT-15).
    pub(crate) async fn reveal_attestation(
        &mut self,
        window: Window,
        held: &BTreeMap<Uid, HeldContribution>,
    ) -> Result<(), Stop> {
        let run = self.node.run_id();
        let attestation = self.signed.report(window).and_then(|report| report.attestation.as_ref());
        let Some(attestation) = attestation.filter(|_| hides(&self.node)) else { return Ok(()) };
        if let Some(uid) = attestation.valid.iter().find(|uid| !held.contains_key(uid)) {
            return Err(Stop::skip(format!("the bytes of uid {uid} are not at hand any more")));
        }
        let verdicts = attestation.verdicts();
        let salt = self.salts.commit_reveal(run, window, &verdicts);
        self.node
            .submit_once(Call::RevealAttestation { run, window, verdicts, salt }, Refusal::AlreadyAttested)
            .await
    }
}

/// Returns the attestation, with the reasons for the window's receipt.
pub(crate) fn attestation(verdicts: &[(Uid, Verdict)], gathered: &Gathered) -> Attestation {
    let of = |wanted| verdicts.iter().filter(move |(_, verdict)| *verdict == wanted).map(|(uid, _)| *uid);
    let fault = |uid| match gathered.faulty.get(&uid) {
        Some(fault) => {
            let (label, detail) = (fault.label().to_owned(), receipt::text(&fault.to_string()));
            ReportedFault { uid, label, detail }
        }
        None => ReportedFault { uid, label: "unsaid".to_owned(), detail: String::new() },
    };
    let judged: BTreeSet<Uid> = verdicts.iter().map(|(uid, _)| *uid).collect();
    let unseen = gathered.not_observed.iter().filter(|(uid, _)| !judged.contains(uid));
    Attestation {
        valid: of(Verdict::Valid).collect(),
        faulty: of(Verdict::Faulty).map(fault).collect(),
        not_observed: unseen
            .map(|(uid, reason)| NotObserved { uid: *uid, reason: receipt::text(reason) })
            .collect(),
    }
}

fn attested(window: Window, verdicts: &[(Uid, Verdict)], gathered: &Gathered) -> Entry {
    let fault = |uid, label: &str, reason| SeatFault { uid, label: label.to_owned(), reason };
    let faulty = gathered.faulty.iter().map(|(uid, of)| fault(*uid, of.label(), of.to_string()));
    let not_observed = gathered.not_observed.iter();
    let not_observed = not_observed.map(|(uid, reason)| fault(*uid, "not-observed", reason.clone()));
    let valid = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid).map(|(uid, _)| *uid);
    Entry::Attested {
        window,
        valid: valid.collect(),
        faulty: faulty.collect(),
        not_observed: not_observed.collect(),
    }
}
