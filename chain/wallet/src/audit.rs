//! `mettle audit`: what a validator, or every one, says of a window beside what is so.

use anyhow::Context as _;
use codec::Encode as _;
use nn::Device;
use node::error_chain;
use node::output::{ExitStatus, Output};
use node::{Flags, ReadOnlyConfig};
use protocol::{
    Role, Uid, Window,
    receipt::{Observed, Receipt},
    statement::SignedStatement,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use validator::audit::{
    Difference, TOLERANCE, Unchecked, audit, dissent, evidence,
    gather::{AuditError, Auditor},
    unchecked,
};

/// What the exit codes mean, as the end of the command's help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 no difference; 1 differences were found; 2 something could not be audited, or wrong flags: what is missing is said; 6 the \
chain is away, try again.";

const EXIT_DIFFERENCES: u8 = 1;
const EXIT_NOT_AUDITED: u8 = 2;

/// Work out again what validators said of a window, and list every difference. Needs no key.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Audit {
    #[command(flatten)]
    pub flags: Flags,
    /// The window.
    #[arg(long, value_name = "W")]
    pub window: u32,
    /// Only this validator.
    #[arg(long, value_name = "UID")]
    pub validator: Option<u16>,
    /// By how much a loss that is measured again may differ, in nats per token.
    #[arg(long, value_name = "NATS", default_value_t = TOLERANCE)]
    pub tolerance: f64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What came of one validator's audit.
struct Audited {
    uid: Uid,
    /// Whether the chain has its attestation, and its vote.
    took_part: (bool, bool),
    /// Without a receipt, those that the chain shows by itself.
    differences: Vec<Difference>,
    result: Result<Checked, AuditError>,
}

struct Checked {
    receipt: Receipt,
    unchecked: Vec<Unchecked>,
    /// What its own signatures prove against it.
    evidence: Vec<SignedStatement>,
    checks: Value,
}

/// Audits, and prints what was found.
pub async fn act(command: Audit, output: &mut Output<'_>) -> anyhow::Result<()> {
    let reading = ReadOnlyConfig::read(&command.flags)?;
    let reader = node::open_read_only(&reading).await?;
    let device: Device = reading.device.clone().try_into().context("device")?;
    let values = reader.follower.schema().values();
    let evaluator = engines::evaluator(device, &reader.spec.model, &vec![0.0; values])
        .context("could not make the evaluator")?;
    let mut auditor = Auditor {
        follower: reader.follower,
        dataset: reader.dataset,
        evaluator: Some(evaluator),
        model_at: Some(reading.directory.join("model.state")),
        state: None,
    };
    let window = Window(command.window);
    let view = match auditor.window(window).await {
        Ok(view) => view,
        Err(error) => return Err(not_audited(error)),
    };
    let uids = match command.validator {
        Some(uid) => vec![Uid(uid)],
        None => {
            let seats = reader.chain.seats(reading.run).await?;
            seats.iter().filter(|seat| seat.role == Role::Validator).map(|seat| seat.id.uid).collect()
        }
    };
    let mut all = Vec::new();
    for uid in uids {
        let voted = view.votes.iter().any(|(of, _)| *of == uid);
        let took_part = (view.attested.contains(&uid), voted);
        let mut differences: Vec<Difference> = dissent(&view, uid).into_iter().collect();
        let result = match auditor.facts(&view, uid).await {
            Ok(mut facts) => {
                facts.tolerance = command.tolerance;
                differences = audit(&facts);
                Ok(Checked {
                    unchecked: unchecked(&facts),
                    evidence: evidence(&facts.receipt, facts.attestation.as_deref(), facts.vote()),
                    checks: json!({
                        "salt": facts.view.salts.iter().any(|(of, _)| *of == uid),
                        "history": facts.remembered.is_some() || facts.receipt.previous.is_none(),
                        "losses": facts.measured.as_ref().map_or(0, |seats| seats.len()),
                        "merge": facts.merged.is_some(),
                        "ballot": facts.weight_vote.is_some(),
                    }),
                    receipt: facts.receipt,
                })
            }
            Err(AuditError::Chain(error)) => return Err(error.into()),
            Err(error) => Err(error),
        };
        all.push(Audited { uid, took_part, differences, result });
    }
    let list: Vec<Value> = all.iter().map(Audited::json).collect();
    output.result(&text(window, &all), json!({ "window": window, "validators": list }))?;
    let differences: usize = all.iter().map(|one| one.differences.len()).sum();
    let missing =
        all.iter().filter(|one| !one.result.as_ref().is_ok_and(|checked| checked.unchecked.is_empty()));
    let missing = missing.count();
    match (differences, missing) {
        (0, 0) => Ok(()),
        (0, missing) => Err(ExitStatus {
            code: EXIT_NOT_AUDITED,
            text: format!(
                "no difference was found, but of {missing} validators not everything could be audited"
            ),
        }
        .into()),
        (found, _) => {
            Err(ExitStatus { code: EXIT_DIFFERENCES, text: format!("{found} differences were found") }.into())
        }
    }
}

fn not_audited(error: AuditError) -> anyhow::Error {
    match error {
        AuditError::Chain(error) => error.into(),
        error => ExitStatus { code: EXIT_NOT_AUDITED, text: error_chain(&error) }.into(),
    }
}

fn text(window: Window, all: &[Audited]) -> String {
    // Writing to a text does not fail.
    let mut text = format!("window {}\n", window.0);
    for Audited { uid, took_part, differences, result } in all {
        let found = match differences.len() {
            0 => "no difference".to_owned(),
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        };
        let _ = match result {
            Err(error) if differences.is_empty() => {
                writeln!(text, "uid {uid}: not audited: {}", error_chain(error))
            }
            Err(error) => {
                writeln!(text, "uid {uid}: {found}; the rest was not audited: {}", error_chain(error))
            }
            Ok(checked) => {
                writeln!(text, "uid {uid}: {found}; {}", about(&checked.receipt, &checked.checks))
            }
        };
        let _ = match took_part {
            _ if matches!(result, Err(AuditError::NoValidator { .. })) => Ok(()),
            (true, true) => Ok(()),
            (true, false) => writeln!(text, "  it did not vote in this window"),
            (false, true) => writeln!(text, "  it did not attest in this window"),
            (false, false) => writeln!(text, "  it neither attested nor voted in this window"),
        };
        for difference in differences {
            let _ = writeln!(text, "  {}: {difference}", difference.rule());
        }
        let Ok(Checked { unchecked, evidence, .. }) = result else { continue };
        if !evidence.is_empty() {
            let _ = writeln!(
                text,
                "  it signed what it did not tell the chain, and whoever shows that is paid: \
                 validator report --window {} --validator {uid}",
                window.0
            );
        }
        for Unchecked { what, why, to_do } in unchecked {
            let _ = writeln!(text, "  not checked: {what}, since {why}; {to_do}");
        }
    }
    text
}

/// What there was to audit.
fn about(receipt: &Receipt, checks: &Value) -> String {
    let Some(judgement) = &receipt.judgement else {
        return "it judged nobody in this window".to_owned();
    };
    let measured = judgement
        .seats
        .iter()
        .filter(|judged| matches!(judged.observed, Observed::Valid { measured: Some(_), .. }))
        .count();
    let weight_vote = if checks["ballot"] == true {
        "its epoch's weights too"
    } else {
        "no weights of its for the epoch are on the chain"
    };
    format!(
        "it judged {} seats, {measured} of them measured, of which {} were measured again; {weight_vote}",
        judgement.seats.len(),
        checks["losses"],
    )
}

impl Audited {
    fn json(&self) -> Value {
        let difference = |difference: &Difference| {
            json!({
                "rule": difference.rule(), "message": difference.to_string(), "difference": difference,
            })
        };
        let (attested, voted) = self.took_part;
        let mut value = json!({
            "uid": self.uid, "attested": attested, "voted": voted,
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
        });
        let more = match &self.result {
            Err(error) => json!({ "audited": false, "why": error_chain(error) }),
            Ok(Checked { receipt, unchecked, evidence, checks }) => {
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
