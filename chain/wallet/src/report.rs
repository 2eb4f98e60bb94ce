//! `mettle report`: brings before the chain what a validator's own receipt proves against it (PROT-21).

use crate::sign::{ConfirmArgs, OnBehalf, SigningSession, TransactionPlan};
use anyhow::{Context as _, bail};
use chain_client::Call;
use node::config::AccountFlags;
use node::output::{EXIT_CODES, Output};
use protocol::{
    Role, Uid, Window,
    statement::{SignedStatement, StatementKind},
};
use serde_json::json;
use store::{HttpFetcher, fetch::FetchPolicy};
use validator::audit::{
    evidence,
    gather::{AuditError, receipt_of},
};

/// Report a validator that signed in its receipt something else than it told the chain: it loses stake, and the reporter gets a part.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Report {
    #[command(flatten)]
    pub account: AccountFlags,
    /// The window.
    #[arg(long, value_name = "W")]
    pub window: u32,
    /// The validator.
    #[arg(long, value_name = "UID")]
    pub validator: u16,
    #[command(flatten)]
    pub behalf: OnBehalf,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

/// Looks at the receipt and the chain; where they contradict each other, shows the evidence, asks, and submits it.
pub async fn act(command: Report, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.account.read()?;
    let (uid, window) = (Uid(command.validator), Window(command.window));
    let mut session = SigningSession::open(&args.chain).await?;
    let run = session.chain.run(args.run).await?;
    let view = session.chain.window(run.id, window).await?.ok_or(AuditError::NoWindow { window })?;
    let seats = session.chain.seats(run.id).await?;
    let seat = seats.iter().find(|seat| seat.id.uid == uid && seat.role == Role::Validator);
    let seat = seat.ok_or(AuditError::NoValidator { uid })?;
    let policy = if run.params.localnet { FetchPolicy::localnet() } else { FetchPolicy::public() };
    let receipt = receipt_of(&HttpFetcher::new(policy)?, &run, &view, seat).await?;
    if receipt.run != run.id || receipt.window != window || receipt.validator != seat.id {
        bail!(
            "what uid {uid} anchored for window {} is the receipt of another window or seat: an audit says so, and the chain does not punish it",
            window.0
        );
    }

    let attestation = session.chain.attestation(run.id, window, uid).await?;
    let vote = view.votes.iter().find(|(of, _)| *of == uid).map(|(_, vote)| *vote);
    let proofs = evidence(&receipt, attestation.as_deref(), vote);
    if proofs.is_empty() {
        let text = format!(
            "nothing to report: what uid {uid} signed for window {} is what it told the chain",
            window.0
        );
        return Ok(output.result(&text, json!({ "reported": [] }))?);
    }
    let matters: Vec<&str> = proofs.iter().map(kind).collect();
    let source =
        args.key.clone().context("nobody signs: add --key KEY, or `key = \"FILE\"` to the settings file")?;
    let whose = if command.behalf.proxy_of.is_some() { "a proxy" } else { "the reporter" };
    let plan = TransactionPlan {
        what: format!(
            "report that uid {uid} of run {} signed another {} in window {} than it told the chain",
            run.id,
            matters.join(" and another "),
            window.0
        ),
        calls: proofs
            .into_iter()
            .map(|statement| Call::ReportContradiction { hotkey: receipt.hotkey, statement })
            .collect(),
        signer: crate::sign::Signer { source, password_file: args.password_file.clone(), whose },
        proxy_of: command.behalf.account()?,
        then: vec![
            format!(
                "uid {uid} loses {} thousandths of all that it has at stake, and of what is nominated behind it",
                run.terms.equivocation_slash.0
            ),
            "a tenth of what is taken is the reporter's, as is the fee; the rest is burnt".into(),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_some() {
        let text = format!("reported: uid {uid} is punished for its {}", matters.join(" and its "));
        output.result(&text, json!({ "reported": matters }))?;
    }
    Ok(())
}

fn kind(of: &SignedStatement) -> &'static str {
    match of.statement.kind {
        StatementKind::Attestation => "attestation",
        StatementKind::Vote => "vote",
        StatementKind::Receipts => "receipt",
    }
}
