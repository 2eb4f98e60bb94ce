//! `mettle audit`: recomputes validators' signed statements about a window, and lists the differences.

use crate::{help, output::Output};
use anyhow::Context as _;
use daemon::error_chain;
use daemon::exit::ExitStatus;
use daemon::{Flags, ReadOnlyConfig};
use gauntlet::audit::{TOLERANCE, Unchecked};
use measure::audit::{AuditError, Auditor};
use mettle_sdk::replay::{Checks, Replay, Replayed, replay};
use nn::Device;
use protocol::{
    Role, Uid, Window,
    receipt::{Observed, Receipt},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The exit codes, for the end of the command's help.
const EXIT_CODES: &str = "\
Exit codes: 0 no difference; 1 differences were found; 2 wrong flags, or a part \
could not be audited; 6 the chain is unreachable, try again.";

const EXIT_DIFFERENCES: u8 = 1;
const EXIT_NOT_AUDITED: u8 = 2;

/// Recompute validators' signed statements about a window
///
/// Lists every difference between a validator's receipt, the chain, and the recomputed result. Needs no key.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("{}\n\n{EXIT_CODES}", help::reading(&[
    "mettle audit --window 212",
    "mettle audit --window 212 --validator 3 --json",
])))]
pub struct Audit {
    #[command(flatten)]
    pub flags: Flags,
    /// The window.
    #[arg(long, value_name = "W")]
    pub window: u32,
    /// Audit only the validator with this uid.
    #[arg(long, value_name = "UID")]
    pub validator: Option<u16>,
    /// The allowed difference of a recomputed loss, in nats per token.
    #[arg(long, value_name = "NATS", default_value_t = TOLERANCE)]
    pub tolerance: f64,
}

/// Audits and prints the differences.
pub async fn audit(command: Audit, output: &mut Output<'_>) -> anyhow::Result<()> {
    let reading = ReadOnlyConfig::read(&command.flags)?;
    let reader = daemon::open_read_only(&reading).await?;
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
        all.push(replay(&mut auditor, &view, uid, command.tolerance).await?);
    }
    let list: Vec<Value> = all.iter().map(Replay::json).collect();
    output.result(&text(window, &all), json!({ "window": window, "validators": list }))?;
    let differences: usize = all.iter().map(|one| one.differences.len()).sum();
    let incomplete =
        all.iter().filter(|one| !one.result.as_ref().is_ok_and(|checked| checked.unchecked.is_empty()));
    let (code, text) = match (differences, incomplete.count()) {
        (0, 0) => return Ok(()),
        (0, count) => (
            EXIT_NOT_AUDITED,
            format!("no difference was found, but the audit of {count} validators is incomplete"),
        ),
        (found, _) => (EXIT_DIFFERENCES, format!("{found} differences were found")),
    };
    Err(ExitStatus { code, text }.into())
}

fn not_audited(error: AuditError) -> anyhow::Error {
    match error {
        AuditError::Chain(error) => error.into(),
        error => ExitStatus { code: EXIT_NOT_AUDITED, text: error_chain(&error) }.into(),
    }
}

fn text(window: Window, all: &[Replay]) -> String {
    // Writing to a string does not fail.
    let mut text = format!("window {}\n", window.0);
    for Replay { uid, attested, voted, differences, result } in all {
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
                writeln!(text, "uid {uid}: {found}; {}", extent(&checked.receipt, checked.checks))
            }
        };
        let _ = match (attested, voted) {
            _ if matches!(result, Err(AuditError::NoValidator { .. })) => Ok(()),
            (true, true) => Ok(()),
            (true, false) => writeln!(text, "  it did not vote in this window"),
            (false, true) => writeln!(text, "  it did not attest in this window"),
            (false, false) => writeln!(text, "  it neither attested nor voted in this window"),
        };
        for difference in differences {
            let _ = writeln!(text, "  {}: {difference}", difference.rule());
        }
        let Ok(Replayed { unchecked, evidence, .. }) = result else { continue };
        if !evidence.is_empty() {
            let _ = writeln!(
                text,
                "  its receipt contradicts its calls; the reporter is paid: \
                 mettle report --window {} --validator {uid}",
                window.0
            );
        }
        for Unchecked { what, why, to_do } in unchecked {
            let _ = writeln!(text, "  not checked: {what}, because {why}; {to_do}");
        }
    }
    text
}

/// Describes the extent of the audit.
fn extent(receipt: &Receipt, checks: Checks) -> String {
    let Some(judgement) = &receipt.judgement else {
        return "it evaluated no seat in this window".to_owned();
    };
    let measured = judgement
        .seats
        .iter()
        .filter(|judged| matches!(judged.observed, Observed::Valid { measured: Some(_), .. }))
        .count();
    let weight_vote = if checks.weight_vote {
        "its weight vote for the epoch too"
    } else {
        "its weight vote for the epoch is not revealed, or cannot be checked yet"
    };
    format!(
        "it evaluated {} seats and measured {measured}, of which {} were measured again; {weight_vote}",
        judgement.seats.len(),
        checks.losses,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use chain_client::ChainError;
    use expect_test::expect;
    use protocol::RunId;

    #[test]
    fn an_incomplete_audit_shows_the_reason_and_who_took_part() {
        let audited = |uid: u16, (attested, voted)| Replay {
            uid: Uid(uid),
            attested,
            voted,
            differences: Vec::new(),
            result: Err(AuditError::Chain(ChainError::NoSuchRun(RunId(7)))),
        };
        let all = [audited(2, (true, true)), audited(3, (false, true)), audited(4, (false, false))];
        expect![[r#"
            window 9
            uid 2: not audited: could not read the chain: there is no run 7 on this chain. List the runs with `mettle run list`
            uid 3: not audited: could not read the chain: there is no run 7 on this chain. List the runs with `mettle run list`
              it did not attest in this window
            uid 4: not audited: could not read the chain: there is no run 7 on this chain. List the runs with `mettle run list`
              it neither attested nor voted in this window
        "#]]
        .assert_eq(&text(Window(9), &all));
        assert_eq!(all[0].json()["audited"], false);
    }
}
