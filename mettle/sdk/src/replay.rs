//! Replays windows: compares validators' signed statements with public data, and repeats the merge and the
//! measurements (PROT-27). `mettle audit` prints the same.

use crate::{Error, Run, model::follower};
use chain_client::ChainError;
use codec::Encode as _;
use daemon::{
    Follower,
    data::{DataSource, fetch_dataset},
};
pub use gauntlet::audit::TOLERANCE;
use gauntlet::audit::{self as rules, Difference, Unchecked, dissent, evidence, unchecked};
use measure::audit::{AuditError, Auditor};
use nn::{Device, Evaluator};
use protocol::{Role, Uid, Window, receipt::Receipt, statement::SignedStatement, view::WindowView};
use serde::Serialize;
use serde_json::{Value, json};
use std::{path::Path, sync::Arc};
use store::error_chain;

/// Maximum size of a run's data on this disk, in bytes, if the data is larger.
const DATA_BYTES_MAX: u64 = 16 << 30;

/// One validator's window, judged again.
#[derive(Debug)]
pub struct Replay {
    pub uid: Uid,
    /// The chain has the validator's attestation.
    pub attested: bool,
    /// The chain has the validator's vote.
    pub voted: bool,
    /// Differences between the receipt, the chain and the recomputed result. Without a receipt, those that the chain
    /// alone shows.
    pub differences: Vec<Difference>,
    /// `Err` is the reason why there is no receipt to compare.
    pub result: Result<Replayed, AuditError>,
}

/// Result of a comparison with a receipt.
#[derive(Debug)]
pub struct Replayed {
    pub receipt: Receipt,
    /// Data that is no longer available. It is not evidence.
    pub unchecked: Vec<Unchecked>,
    /// Signed statements that contradict the validator's calls.
    pub evidence: Vec<SignedStatement>,
    pub checks: Checks,
}

/// Extent of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Checks {
    /// The salt was committed before the window opened.
    pub salt: bool,
    /// The previous receipt was available.
    pub history: bool,
    /// Seats that were measured again.
    pub losses: usize,
    /// The merge was repeated.
    pub merge: bool,
    /// The weight vote of the window's epoch was checked.
    pub weight_vote: bool,
}

impl Replay {
    /// Returns whether everything was compared and nothing differs.
    pub fn agrees(&self) -> bool {
        let complete = self.result.as_ref().is_ok_and(|replayed| replayed.unchecked.is_empty());
        self.differences.is_empty() && complete
    }

    /// Returns the object that `mettle audit --json` lists.
    pub fn json(&self) -> Value {
        let Replay { uid, attested, voted, differences, result } = self;
        let difference = |difference: &Difference| {
            json!({
                "rule": difference.rule(), "message": difference.to_string(), "difference": difference,
            })
        };
        let mut value = json!({
            "uid": uid, "attested": attested, "voted": voted,
            "differences": differences.iter().map(difference).collect::<Vec<_>>(),
        });
        let more = match result {
            Err(error) => json!({ "audited": false, "why": error_chain(error) }),
            Ok(Replayed { receipt, unchecked, evidence, checks }) => {
                let proof = |signed: &SignedStatement| {
                    json!({
                        "call": "Windows.report_contradiction", "hotkey": receipt.hotkey,
                        "statement": format!("0x{}", hex::encode(signed.encode())),
                    })
                };
                json!({
                    "audited": true, "checks": checks, "unchecked": unchecked,
                    "evidence": evidence.iter().map(proof).collect::<Vec<_>>(),
                })
            }
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }
}

/// Judges the window of one validator again. `tolerance` is the allowed difference of a loss, in nats per token.
///
/// # Errors
/// If the chain fails. All other missing data is part of the result.
pub async fn replay(
    auditor: &mut Auditor,
    view: &WindowView,
    uid: Uid,
    tolerance: f64,
) -> Result<Replay, ChainError> {
    let voted = view.votes.iter().any(|(of, _)| *of == uid);
    let attested = view.attested.contains(&uid);
    let mut facts = match auditor.facts(view, uid).await {
        Ok(facts) => facts,
        Err(AuditError::Chain(error)) => return Err(error),
        Err(error) => {
            let differences = dissent(view, uid).into_iter().collect();
            return Ok(Replay { uid, attested, voted, differences, result: Err(error) });
        }
    };
    facts.tolerance = tolerance;
    let differences = rules::audit(&facts);
    let replayed = Replayed {
        unchecked: unchecked(&facts),
        evidence: evidence(&facts.receipt, facts.attestation.as_deref(), facts.vote()),
        checks: Checks {
            salt: facts.view.salts.iter().any(|(of, _)| *of == uid),
            history: facts.remembered.is_some() || facts.receipt.previous.is_none(),
            losses: facts.measured.as_ref().map_or(0, |seats| seats.len()),
            merge: facts.merged.is_some(),
            weight_vote: facts.weight_vote.as_ref().is_some_and(|vote| !vote.earned.is_empty()),
        },
        receipt: facts.receipt,
    };
    Ok(Replay { uid, attested, voted, differences, result: Ok(replayed) })
}

/// Judges windows of a run again on this machine's CPU. The model of the last window is kept for the next.
pub struct Replayer {
    auditor: Auditor,
    pub tolerance: f64,
}

impl Replayer {
    /// Fetches the run's data into `directory`, where a later replayer finds it.
    ///
    /// # Errors
    /// If specification or data cannot be fetched or used.
    pub async fn open(run: &Run, directory: &Path) -> Result<Replayer, Error> {
        let published = run.published().await?;
        let data = directory.join("dataset");
        let source = DataSource { mirrors: Vec::new(), cache_bytes: DATA_BYTES_MAX };
        let fetch = published.fetch.clone();
        let dataset = fetch_dataset(fetch, &published.run, &data, &source, None).await?;
        let follower = follower(&published, daemon::Storage::memory(), true)?;
        let auditor = Auditor {
            evaluator: Some(evaluator(&follower)?),
            follower: Arc::new(follower),
            dataset: Arc::new(dataset),
            model_at: None,
            state: None,
        };
        Ok(Replayer { auditor, tolerance: TOLERANCE })
    }

    /// Judges a window again, of one validator or of all current validators.
    ///
    /// # Errors
    /// If the chain fails, does not have the window, or has not finalised it. Missing data of one validator is part
    /// of its result.
    pub async fn window(&mut self, window: Window, only: Option<Uid>) -> Result<Vec<Replay>, Error> {
        let follower = self.auditor.follower.clone();
        // A future that was dropped during a measurement has lost the evaluator.
        if self.auditor.evaluator.is_none() {
            self.auditor.evaluator = Some(evaluator(&follower)?);
        }
        let view = match self.auditor.window(window).await {
            Err(AuditError::NoWindow { window }) => {
                return Err(Error::NoWindow { run: follower.run.id, window });
            }
            view => view?,
        };
        let uids = match only {
            Some(uid) => vec![uid],
            None => {
                let seats = follower.chain.seats(follower.run.id).await?;
                seats.iter().filter(|seat| seat.role == Role::Validator).map(|seat| seat.id.uid).collect()
            }
        };
        let mut all = Vec::new();
        for uid in uids {
            all.push(replay(&mut self.auditor, &view, uid, self.tolerance).await?);
        }
        Ok(all)
    }
}

fn evaluator(follower: &Follower) -> Result<Evaluator, Error> {
    let values = follower.schema().values();
    Ok(Evaluator::new(&follower.spec.model, Device::CPU, &vec![0.0; values])?)
}
