//! `mettle why`: the fate of a seat's work in one window, from its commitment to its pay.
//!
//! `watch` reads chain and receipts and derives the result. A missing fact is named with the window from which it is
//! available.

use crate::{help, output::Output, plan::table::wrapped, seat::session::Seat};
use daemon::{config::SeatFlags, open::fetcher};
use protocol::Window;
use serde_json::{Value, json};
use watch::why::{Explanation, Facts, Step, Verdict, explain};

/// Width of a step's label, in columns.
const LABEL: usize = 14;

/// Explain a seat's pay for one window, and how to increase it
///
/// Follows the work through the window: commitment, attestations, selection, outcome, the validators' receipts,
/// weight and pay. Facts that are not public yet are named with the window of their publication. For a validator's
/// seat, it shows the validator's duties.
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
    let chain = session.chain();
    let fetch = fetcher(chain, &session.status.run.params)?;
    let (status, window) = (&session.status, Window(command.window));
    let facts = Facts::read(chain, &fetch, status, session.clock, seat, window, usize::MAX).await?;
    let explanation = explain(&facts);
    Ok(output.result(&text(&facts, &explanation), as_json(&facts, &explanation))?)
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
