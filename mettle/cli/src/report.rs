//! `mettle report`: reports a contradiction between a validator's receipt and its calls to the chain (PROT-21).

use crate::{
    help,
    output::Output,
    signing::{AccountSigner, SigningSession, TransactionPlan},
};
use anyhow::bail;
use chain_client::{Call, terms::percent};
use daemon::{open::fetcher, receipts::receipt_of};
use gauntlet::audit::evidence;
use measure::audit::AuditError;
use protocol::{
    Role, Uid, Window,
    statement::{SignedStatement, StatementKind},
    view::RunStatus,
};
use serde_json::json;

/// Report a validator whose receipt contradicts its calls
///
/// A validator whose receipt contains another attestation or vote than it sent to the chain loses stake, once, and
/// its seat. The reporter receives a part of the validator's own stake. `mettle audit` finds such contradictions.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::signing(&["mettle report --key my-account.json --window 212 --validator 3"]))]
pub struct Report {
    #[command(flatten)]
    pub signer: AccountSigner,
    /// The window.
    #[arg(long, value_name = "W")]
    pub window: u32,
    /// The validator's uid.
    #[arg(long, value_name = "UID")]
    pub validator: u16,
}

/// Compares the receipt with the chain; submits the evidence if they contradict each other.
pub async fn report(command: Report, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.signer.account.read()?;
    let (uid, window) = (Uid(command.validator), Window(command.window));
    let mut session = SigningSession::open(&args.chain).await?;
    let RunStatus { run, window: now, .. } = session.chain.status(args.run).await?;
    let view = session.chain.window(run.id, window).await?.ok_or(AuditError::NoWindow { window })?;
    let seats = session.chain.seats(run.id).await?;
    let seat = seats.iter().find(|seat| seat.id.uid == uid && seat.role == Role::Validator);
    let seat = seat.ok_or(AuditError::NoValidator { uid })?;
    let fetch = fetcher(&*session.chain, &run.params)?;
    let now = now.unwrap_or(Window::FIRST);
    let receipt = receipt_of(&fetch, session.chain.genesis(), &run, now, &view, seat).await?;
    if receipt.run != run.id || receipt.window != window || receipt.validator != seat.id {
        bail!(
            "uid {uid} anchored the receipt of another window or seat for window {}: an audit reports that, and the chain does not punish it",
            window.0
        );
    }

    let attestation = session.chain.attestation(run.id, window, uid).await?;
    let vote = view.votes.iter().find(|(of, _)| *of == uid).map(|(_, vote)| *vote);
    // One proof is enough: a seat is punished once.
    let Some(proof) = evidence(&receipt, attestation.as_deref(), vote).into_iter().next() else {
        let text = format!(
            "nothing to report: the receipt of uid {uid} for window {} agrees with the chain",
            window.0
        );
        return Ok(output.result(&text, json!({ "reported": [] }))?);
    };
    let matter = kind(&proof);
    let plan = TransactionPlan {
        what: format!(
            "report that uid {uid} of run {} signed another {matter} in window {} than it sent to the chain",
            run.id, window.0
        ),
        calls: vec![Call::ReportContradiction { hotkey: receipt.hotkey, statement: proof }],
        signer: command.signer.signer(&args, "the reporter")?,
        then: vec![
            format!(
                "uid {uid} loses {} of its stake, and of what is nominated behind it; its seat ends at the next opening",
                percent(run.terms.equivocation_slash)
            ),
            "the reporter gets a tenth of what the validator itself loses, at most 1 MTL, and the fee back; the rest is \
             burnt"
                .into(),
        ],
    };
    let text = format!("reported: uid {uid} is slashed for its {matter}");
    session.sign_and_print(output, &plan, &text, json!({ "reported": [matter] })).await
}

fn kind(of: &SignedStatement) -> &'static str {
    match of.statement.kind {
        StatementKind::Attestation => "attestation",
        StatementKind::Vote => "vote",
        StatementKind::Receipts => "receipt",
    }
}
