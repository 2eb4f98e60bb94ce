//! `mettle why`: what became of a seat's work in one window, from its commitment to its pay.
//!
//! The shell here reads chain and receipts; `explain.rs` concludes, as a pure function. What cannot be known is said,
//! with the window from which it can.

mod explain;

use crate::{
    block_clock::BlockClock,
    help,
    output::Output,
    plan::table::wrapped,
    receipts::{WindowReceipts, receipts_of},
    seat::Seat,
};
use chain_client::{Chain, ChainError};
use explain::{AttestationOf, Explanation, Facts, Step, Verdict, explain};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use node::{config::SeatFlags, open::fetcher};
use protocol::{
    Role, RunId, Uid, Window,
    view::{RunStatus, WindowView},
};
use serde_json::{Value, json};

/// Attestations that are read at once.
const READS_AT_ONCE: usize = 8;
/// Before the text of a step.
const LABEL: usize = 14;

/// Explain a seat's pay for one window, and how to earn more
///
/// Follows the work through the window: commitment, attestations, selection, outcome, the validators' receipts, weight
/// and pay. What is not public yet is named with the window from which it is. A validator reads the same of its own
/// duties.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle why --config miner.toml --window 212",
    "mettle why --uid 3 --window 212 --json",
]))]
pub struct Why {
    #[command(flatten)]
    seat: SeatFlags,
    /// The window.
    #[arg(long, value_name = "N")]
    window: u32,
}

/// Reads chain and receipts, and prints the explanation.
pub async fn why(command: Why, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let Seat { session, seat } = Seat::find(&command.seat, command.seat.read()?).await?;
    let (chain, window, uid) = (session.chain(), Window(command.window), seat.seat.id.uid);
    let RunStatus { run, window: now, .. } = session.status.clone();
    let view = chain.window(run.id, window).await?;
    let payslips = chain.payslips(run.id, uid).await?;
    let attestations = match (&view, seat.seat.role) {
        (Some(view), Role::Miner) => attestations(chain, run.id, view, uid).await?,
        _ => Vec::new(),
    };
    let receipts = match (&view, seat.seat.role) {
        (Some(view), Role::Miner) => {
            let fetch = fetcher(chain, &run.params)?;
            let seats = chain.seats(run.id).await?;
            let now = now.unwrap_or(Window::FIRST);
            Some(receipts_of(&fetch, chain.genesis(), &run, now, view, &seats, &payslips).await)
        }
        _ => None,
    };
    let facts =
        Facts { run, window, now, seat, view, attestations, receipts, payslips, clock: session.clock };
    let explanation = explain(&facts);
    Ok(output.result(&text(&facts, &explanation), as_json(&facts, &explanation))?)
}

/// What each validator that decides the window attested of the seat.
async fn attestations(
    chain: &dyn Chain,
    run: RunId,
    view: &WindowView,
    uid: Uid,
) -> Result<Vec<AttestationOf>, ChainError> {
    let read = |(validator, stake): (Uid, u128)| async move {
        let attestation = chain.attestation(run, view.window, validator).await?;
        let of_seat = |verdicts: Vec<(Uid, _)>| {
            verdicts.into_iter().find(|(of, _)| *of == uid).map(|(_, verdict)| verdict)
        };
        let verdict = attestation.map(of_seat);
        Ok::<_, ChainError>(AttestationOf { validator, stake, verdict })
    };
    stream::iter(view.electorate.clone()).map(read).buffered(READS_AT_ONCE).try_collect().await
}

fn text(facts: &Facts, explanation: &Explanation) -> String {
    let Facts { run, window, seat, .. } = facts;
    let (uid, role, epoch) = (seat.seat.id.uid, seat.seat.role, window.epoch(run.params.epoch_windows));
    let mut text = format!("uid {uid}, {role} of run {}, in window {} of epoch {epoch}\n", run.id, window.0);
    for Step { name, verdict, text: step, .. } in &explanation.steps {
        let mark = match verdict {
            Verdict::Good => "+",
            Verdict::Bad => "-",
            Verdict::Open => ".",
            Verdict::Neutral => " ",
        };
        text += &wrapped(&format!("{mark} {name:LABEL$}"), &" ".repeat(LABEL + 2), step);
    }
    text += "To earn more\n";
    for advice in &explanation.advice {
        text += &wrapped("- ", "  ", advice);
    }
    text
}

fn as_json(facts: &Facts, explanation: &Explanation) -> Value {
    let Facts { run, window, seat, receipts, .. } = facts;
    json!({
        "run": run.id, "window": window, "epoch": window.epoch(run.params.epoch_windows),
        "uid": seat.seat.id.uid, "role": seat.seat.role.to_string(),
        "steps": explanation.steps, "advice": explanation.advice,
        "receipts": receipts.as_ref().map(|receipts| receipts.json(seat.seat.id.uid)),
    })
}

/// The receipts of a window that a seat's explanation is made from.
type Receipts = Option<WindowReceipts>;
