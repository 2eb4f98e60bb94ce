//! Attests each committed contribution as valid or faulty (PROT-14), and copies the valid ones to this validator's
//! bucket (PROT-15).

use crate::{gather::Gathered, run::Validator, step::Stop};
use chain_client::{Call, Refusal};
use node::{Contribution, Entry, Follower, error_chain, journal::SeatFault};
use protocol::{
    Uid, Window, keys,
    receipt::{self, Attestation, NotObserved, ReportedFault},
    view::{Verdict, WindowView},
};
use std::collections::BTreeMap;
use store::{Store, StoreError};

/// Copies attested contributions to our bucket under their own names: a miner cannot show its bytes to one validator
/// alone (PROT-15).
pub async fn mirror(
    store: &dyn Store,
    follower: &Follower,
    window: Window,
    contributions: &BTreeMap<Uid, Contribution>,
) -> Result<(), StoreError> {
    for contribution in contributions.values() {
        let key = keys::contribution(follower.run.id, window, &contribution.digest);
        store.put(&key, contribution.bytes.clone()).await?;
    }
    Ok(())
}

impl Validator {
    /// Stores the attestation, then submits it, or its hash in a run that hides attestations. The next window's salt
    /// is committed with it (PROT-2).
    pub(crate) async fn attest(&mut self, view: &WindowView, gathered: &Gathered) -> Result<(), Stop> {
        let window = view.window;
        if view.attested.contains(&self.node.uid()) {
            return Ok(());
        }
        let mut not_observed = gathered.not_observed.clone();
        // Names in a bucket are public: copies made now would tell a hidden attestation. They are made before its
        // reveal (PROT-30).
        let mirrored = if self.hides() {
            Ok(())
        } else {
            mirror(&*self.node.store, self.node.follower(), window, &gathered.valid).await
        };
        let mut verdicts: Vec<(Uid, Verdict)> = Vec::new();
        match mirrored {
            Ok(()) => verdicts.extend(gathered.valid.keys().map(|uid| (*uid, Verdict::Valid))),
            // Without copies we cannot attest them. That is our failure, not the miners'.
            Err(error) => {
                let reason = format!("our bucket did not take its bytes: {}", error_chain(&error));
                not_observed.extend(gathered.valid.keys().map(|uid| (*uid, reason.clone())));
            }
        }
        verdicts.extend(gathered.faulty.keys().map(|uid| (*uid, Verdict::Faulty)));
        verdicts.sort_by_key(|(uid, _)| *uid);
        let deadline = self.node.schedule().attest_deadline(window);
        let looked = self.strategy.wait_and_look(&self.node.sync.follower, window, deadline).await;
        let view = looked.as_ref().unwrap_or(view);
        let Some(verdicts) = self.strategy.verdicts(view, verdicts) else { return Ok(()) };

        let attestation = attestation(&verdicts, gathered, &not_observed);
        let store = self.store_before(deadline, |signed| {
            signed.store_attestation(window, view.lineage, attestation.clone())
        });
        let verdicts = store.await?.verdicts();

        let run = self.node.run_id();
        let next_salt = self.salts.commitment(run, window.next());
        let call = if self.hides() {
            let hash = self.salts.hidden_commitment(run, window, &verdicts, &self.node.seat.hotkey);
            Call::AttestHidden { run, window, hash, next_salt }
        } else {
            Call::Attest { run, window, verdicts: verdicts.clone(), next_salt }
        };
        self.node.submit_once(call, Refusal::AlreadyAttested).await?;
        self.node.journal.write(&attested(window, &verdicts, gathered, not_observed));
        Ok(())
    }

    /// In a run that hides attestations, reveals the one that was committed (PROT-30), after copying what it calls
    /// valid (PROT-15). Without the copies it is not revealed.
    pub(crate) async fn reveal_attestation(
        &mut self,
        window: Window,
        at_hand: &BTreeMap<Uid, Contribution>,
    ) -> Result<(), Stop> {
        let run = self.node.run_id();
        let attestation = self.signed.report(window).and_then(|report| report.attestation.as_ref());
        let Some(attestation) = attestation.filter(|_| self.hides()) else { return Ok(()) };
        let mut attested = BTreeMap::new();
        for uid in &attestation.valid {
            let Some(held) = at_hand.get(uid) else {
                return Err(Stop::skip(format!("the bytes of uid {uid} are not at hand any more")));
            };
            attested.insert(*uid, held.clone());
        }
        let verdicts = attestation.verdicts();
        if let Err(error) = mirror(&*self.node.store, self.node.follower(), window, &attested).await {
            let reason = format!("our bucket did not take what it attests: {}", error_chain(&error));
            return Err(Stop::skip(reason));
        }
        let salt = self.salts.commit_reveal(run, window, &verdicts);
        self.node
            .submit_once(Call::RevealAttestation { run, window, verdicts, salt }, Refusal::AlreadyAttested)
            .await
    }
}

/// The attestation, with the reasons that the window's receipt gives for it.
pub(crate) fn attestation(
    verdicts: &[(Uid, Verdict)],
    gathered: &Gathered,
    not_observed: &BTreeMap<Uid, String>,
) -> Attestation {
    let of = |wanted| verdicts.iter().filter(move |(_, verdict)| *verdict == wanted).map(|(uid, _)| *uid);
    let fault = |uid| match gathered.faulty.get(&uid) {
        Some(fault) => {
            let (label, detail) = (fault.label().to_owned(), receipt::text(&fault.to_string()));
            ReportedFault { uid, label, detail }
        }
        None => ReportedFault { uid, label: "unsaid".to_owned(), detail: String::new() },
    };
    let unseen = not_observed.iter().filter(|(uid, _)| verdicts.iter().all(|(of, _)| of != *uid));
    Attestation {
        valid: of(Verdict::Valid).collect(),
        faulty: of(Verdict::Faulty).map(fault).collect(),
        not_observed: unseen
            .map(|(uid, reason)| NotObserved { uid: *uid, reason: receipt::text(reason) })
            .collect(),
    }
}

fn attested(
    window: Window,
    verdicts: &[(Uid, Verdict)],
    gathered: &Gathered,
    not_observed: BTreeMap<Uid, String>,
) -> Entry {
    let fault = |uid, label: &str, reason| SeatFault { uid, label: label.to_owned(), reason };
    let faulty = gathered.faulty.iter().map(|(uid, of)| fault(*uid, of.label(), of.to_string()));
    let not_observed = not_observed.into_iter().map(|(uid, reason)| fault(uid, "not-observed", reason));
    let valid = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Valid).map(|(uid, _)| *uid);
    Entry::Attested {
        window,
        valid: valid.collect(),
        faulty: faulty.collect(),
        not_observed: not_observed.collect(),
    }
}
