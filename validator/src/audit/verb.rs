//! `validator audit`: what a validator, or every one, says of a window beside what is so.

use super::{
    Difference, Unchecked, audit,
    gather::{AuditError, Auditor},
    unchecked,
};
use anyhow::Context as _;
use model::{DeviceChoice, Evaluator};
use protocol::{
    Role, Uid, Window,
    receipt::{Observed, Receipt},
};
use replica::causes;
use seat::{
    Flags, Reading,
    sign::{Ends, Paper},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

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
    #[arg(long, value_name = "NATS", default_value_t = super::TOLERANCE)]
    pub tolerance: f64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What came of one validator's audit.
struct Audited {
    uid: Uid,
    result: Result<Checked, AuditError>,
}

struct Checked {
    receipt: Receipt,
    differences: Vec<Difference>,
    unchecked: Vec<Unchecked>,
    checks: Value,
}

/// Audits, and prints what was found.
pub async fn act(verb: Audit, paper: &mut Paper<'_>) -> anyhow::Result<()> {
    let reading = Reading::read(&verb.flags)?;
    let reader = seat::open_to_read(&reading).await?;
    let device = DeviceChoice::parse(&reading.device)?;
    let values = reader.follower.schema().values();
    let evaluator = Evaluator::new(&reader.spec.model, device, &vec![0.0; values])
        .context("could not make the evaluator")?;
    let mut auditor = Auditor {
        follower: reader.follower,
        dataset: reader.dataset,
        evaluator: Some(evaluator),
        model_at: Some(reading.directory.join("model.state")),
        state: None,
    };
    let window = Window(verb.window);
    let view = match auditor.window(window).await {
        Ok(view) => view,
        Err(error) => return Err(not_audited(error)),
    };
    let uids = match verb.validator {
        Some(uid) => vec![Uid(uid)],
        None => {
            let seats = reader.chain.seats(reading.run).await?;
            seats.iter().filter(|seat| seat.role == Role::Validator).map(|seat| seat.id.uid).collect()
        }
    };
    let mut all = Vec::new();
    for uid in uids {
        let result = match auditor.facts(&view, uid).await {
            Ok(mut facts) => {
                facts.tolerance = verb.tolerance;
                Ok(Checked {
                    differences: audit(&facts),
                    unchecked: unchecked(&facts),
                    checks: json!({
                        "salt": facts.view.salts.iter().any(|(of, _)| *of == uid),
                        "history": facts.remembered.is_some() || facts.receipt.previous.is_none(),
                        "losses": facts.measured.as_ref().map_or(0, |seats| seats.len()),
                        "merge": facts.merged.is_some(),
                        "ballot": facts.ballot.is_some(),
                    }),
                    receipt: facts.receipt,
                })
            }
            Err(AuditError::Chain(error)) => return Err(error.into()),
            Err(error) => Err(error),
        };
        all.push(Audited { uid, result });
    }
    let list: Vec<Value> = all.iter().map(Audited::json).collect();
    paper.result(&text(window, &all), json!({ "window": window, "validators": list }))?;
    let differences: usize =
        all.iter().filter_map(|one| Some(one.result.as_ref().ok()?.differences.len())).sum();
    let missing =
        all.iter().filter(|one| !one.result.as_ref().is_ok_and(|checked| checked.unchecked.is_empty()));
    let missing = missing.count();
    match (differences, missing) {
        (0, 0) => Ok(()),
        (0, missing) => Err(Ends {
            code: EXIT_NOT_AUDITED,
            text: format!(
                "no difference was found, but of {missing} validators not everything could be audited"
            ),
        }
        .into()),
        (found, _) => {
            Err(Ends { code: EXIT_DIFFERENCES, text: format!("{found} differences were found") }.into())
        }
    }
}

fn not_audited(error: AuditError) -> anyhow::Error {
    match error {
        AuditError::Chain(error) => error.into(),
        error => Ends { code: EXIT_NOT_AUDITED, text: causes(&error) }.into(),
    }
}

fn text(window: Window, all: &[Audited]) -> String {
    let mut text = format!("window {}\n", window.0);
    for Audited { uid, result } in all {
        // Writing to a text does not fail.
        let _ = match result {
            Err(error) => writeln!(text, "uid {uid}: not audited: {}", causes(error)),
            Ok(Checked { receipt, differences, unchecked, checks }) => {
                let found = match differences.len() {
                    0 => "no difference".to_owned(),
                    1 => "1 difference".to_owned(),
                    count => format!("{count} differences"),
                };
                let _ = writeln!(text, "uid {uid}: {found}; {}", about(receipt, checks));
                for difference in differences {
                    let _ = writeln!(text, "  {}: {difference}", difference.rule());
                }
                for Unchecked { what, why, to_do } in unchecked {
                    let _ = writeln!(text, "  not checked: {what}, since {why}; {to_do}");
                }
                Ok(())
            }
        };
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
    let ballot = if checks["ballot"] == true {
        "its epoch's weights too"
    } else {
        "its epoch's weights are not revealed"
    };
    format!(
        "it judged {} seats, {measured} of them measured, of which {} were measured again; {ballot}",
        judgement.seats.len(),
        checks["losses"],
    )
}

impl Audited {
    fn json(&self) -> Value {
        match &self.result {
            Err(error) => json!({ "uid": self.uid, "audited": false, "why": causes(error) }),
            Ok(Checked { receipt: _, differences, unchecked, checks }) => {
                let difference = |difference: &Difference| {
                    json!({
                        "rule": difference.rule(), "message": difference.to_string(), "difference": difference,
                    })
                };
                json!({
                    "uid": self.uid, "audited": true, "checks": checks, "unchecked": unchecked,
                    "differences": differences.iter().map(difference).collect::<Vec<_>>(),
                })
            }
        }
    }
}
