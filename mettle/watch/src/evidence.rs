//! Evidence from the chain and the receipts on one seat and one window, read on the page's request.

use crate::{
    block_clock::BlockClock,
    text::{percent_of, share},
    why::{AttestationOf, Facts, explain},
};
use async_trait::async_trait;
use chain_client::{Amount, Chain, ChainError, keys::address};
use protocol::{
    Digest, Role, RunId, Uid, Window, keys,
    receipt::Receipt,
    view::{Outcome, Payslip, PendingChange, SeatStatus, Verdict, WindowView},
};
use serde_json::{Value, json};
use std::sync::Arc;
use store::Fetch;

/// Maximum number of validators whose receipts are read for one answer.
pub const RECEIPTS_MAX: usize = 8;
/// Maximum number of payslips in an answer; the latest are shown.
const PAYSLIPS_MAX: usize = 12;

/// Answers the page's questions that need more than a read from memory.
#[async_trait]
pub trait Evidence: Send + Sync {
    /// Returns the fate of a seat's work in a window, with the proof.
    async fn cell(&self, uid: Uid, window: Window) -> Result<Value, EvidenceError>;

    /// Returns the current state of a seat.
    async fn seat(&self, uid: Uid) -> Result<Value, EvidenceError>;
}

#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    #[error("there is no uid {uid} in this run now: its seat was given up or replaced")]
    NoSeat { uid: Uid },
    #[error("the chain does not answer")]
    Chain(#[from] ChainError),
}

/// Evidence from the chain and the validators' buckets.
pub struct ChainEvidence {
    pub chain: Arc<dyn Chain>,
    pub fetch: Arc<dyn Fetch>,
    pub run: RunId,
}

impl ChainEvidence {
    async fn status(&self, uid: Uid) -> Result<SeatStatus, EvidenceError> {
        let found = self.chain.seat_statuses(self.run, uid, 1).await?.into_iter().next();
        found.filter(|found| found.seat.id.uid == uid).ok_or(EvidenceError::NoSeat { uid })
    }
}

#[async_trait]
impl Evidence for ChainEvidence {
    async fn cell(&self, uid: Uid, window: Window) -> Result<Value, EvidenceError> {
        let seat = self.status(uid).await?;
        let status = self.chain.status(self.run).await?;
        let clock = BlockClock::read(&*self.chain, status.run.params.schedule).await?;
        let facts =
            Facts::read(&*self.chain, &*self.fetch, &status, clock, seat, window, RECEIPTS_MAX).await?;
        Ok(cell(&facts))
    }

    async fn seat(&self, uid: Uid) -> Result<Value, EvidenceError> {
        let seat = self.status(uid).await?;
        let payslips = self.chain.payslips(self.run, uid).await?;
        Ok(self::seat(&seat, &payslips))
    }
}

/// Returns the sentences and the facts behind them.
fn cell(facts: &Facts) -> Value {
    let Facts { run, window, seat, view, .. } = facts;
    let uid = seat.seat.id.uid;
    let explanation = explain(facts);
    let commitment = view.as_ref().and_then(|view| find(&view.commitments, uid));
    json!({
        "uid": uid, "window": window, "epoch": window.epoch(run.params.epoch_windows),
        "role": seat.seat.role,
        "steps": explanation.steps, "advice": explanation.advice,
        "endpoint": seat.seat.endpoint,
        "commitment": commitment,
        "object": commitment.map(|digest| keys::contribution(run.id, *window, &digest).as_str().to_owned()),
        "attestations": attestations(&facts.attestations),
        "vote": view.as_ref().and_then(|view| find(&view.votes, uid)).map(|vote| vote.update),
        "merged": view.as_ref().and_then(|view| match view.outcome {
            Some(Outcome::Merged(vote)) => Some(vote.update),
            _ => None,
        }),
        "lineage": view.as_ref().map(|view| view.lineage),
        "receipts": view.as_ref().map(|view| receipts(facts, view)),
    })
}

fn find<T: Copy>(list: &[(Uid, T)], uid: Uid) -> Option<T> {
    list.iter().find(|(of, _)| *of == uid).map(|(_, found)| *found)
}

fn attestations(all: &[AttestationOf]) -> Value {
    let total = all.iter().map(|one| one.stake).sum();
    let one = |AttestationOf { validator, stake, verdict }: &AttestationOf| {
        let verdict = match verdict {
            None => "no attestation",
            Some(None) => "not named",
            Some(Some(Verdict::Valid)) => "valid",
            Some(Some(Verdict::Faulty)) => "faulty",
        };
        json!({ "validator": validator, "stake": percent_of(*stake, total), "verdict": verdict })
    };
    all.iter().map(one).collect()
}

/// Returns the receipts about the seat: those that judge a miner, or a validator's own.
fn receipts(facts: &Facts, view: &WindowView) -> Value {
    let uid = facts.seat.seat.id.uid;
    let anchored = |of: Uid| find::<Digest>(&view.receipts, of);
    match (&facts.receipts, facts.seat.seat.role) {
        (Some(read), Role::Miner) => {
            let one = |(validator, receipt): &(Uid, Result<Box<Receipt>, String>)| {
                let says = match receipt {
                    Ok(receipt) => read.verdict(uid, receipt),
                    Err(why) => why.clone(),
                };
                json!({ "validator": validator, "digest": anchored(*validator), "says": says })
            };
            read.receipts.iter().map(one).collect()
        }
        _ => anchored(uid).map_or(json!([]), |digest| json!([{ "validator": uid, "digest": digest }])),
    }
}

fn seat(seat: &SeatStatus, payslips: &[Payslip]) -> Value {
    let amount = |units: u128| format!("{:.2}", Amount(units));
    let view = &seat.seat;
    let slip = |slip: &Payslip| {
        let part = if view.role == Role::Miner { slip.consensus.incentive } else { slip.consensus.dividends };
        json!({
            "epoch": slip.epoch, "amount": amount(slip.amount), "pot": amount(slip.pot),
            "merged": slip.merged, "weight": slip.consensus.weight, "share": share(part),
        })
    };
    let pending = seat.pending.map(|pending| match pending {
        PendingChange::Rotates(_) => "changes its hotkey when the next window opens",
        PendingChange::Leaves => "leaves when the next window opens",
        PendingChange::Replaced => "is replaced when the next window opens",
    });
    json!({
        "uid": view.id.uid, "role": view.role, "registered_at": view.id.registered_at,
        "hotkey": address(&view.hotkey.0), "coldkey": address(&view.coldkey), "endpoint": view.endpoint,
        "stake": amount(view.stake), "nominated": amount(seat.nominated), "claimable": amount(view.claimable),
        "earned": amount(view.earned), "weight": seat.consensus.weight,
        "incentive": share(seat.consensus.incentive), "dividends": share(seat.consensus.dividends),
        "trust": share(seat.consensus.trust),
        "immune_until": seat.immune_until, "last_attested": seat.last_attested, "pending": pending,
        "payslips": payslips.iter().rev().take(PAYSLIPS_MAX).map(slip).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::facts;

    #[test]
    fn the_evidence_of_a_cell_names_every_digest_and_every_validator() {
        let value = cell(&facts(30));
        assert_eq!(value["commitment"], Digest([7; 32]).to_string());
        let object = value["object"].as_str().unwrap();
        assert!(object.ends_with(&Digest([7; 32]).to_string()), "{object}");
        let validators: Vec<&Value> = value["attestations"].as_array().unwrap().iter().collect();
        assert_eq!(validators.len(), 3);
        assert_eq!((&validators[0]["stake"], &validators[0]["verdict"]), (&json!("50.0 %"), &json!("valid")));
        assert_eq!(value["merged"], Digest([9; 32]).to_string());
        assert!(value["steps"].as_array().unwrap().iter().any(|step| step["name"] == "pay"));
    }

    #[test]
    fn a_forgotten_window_has_sentences_and_no_digests() {
        let value = cell(&Facts { view: None, ..facts(300) });
        assert_eq!((&value["commitment"], &value["receipts"]), (&Value::Null, &Value::Null));
        assert!(value["steps"][0]["text"].as_str().unwrap().contains("forgotten"));
    }

    #[test]
    fn a_seat_has_its_keys_and_its_latest_pay_first() {
        let Facts { seat: status, payslips, .. } = facts(30);
        let later = Payslip { epoch: 1, ..payslips[0] };
        let value = seat(&status, &[payslips[0], later]);
        assert_eq!(value["payslips"][0]["epoch"], 1);
        assert_eq!(value["payslips"][1]["share"], "25.00 %");
        assert_eq!(value["hotkey"], address(&status.seat.hotkey.0));
    }
}
