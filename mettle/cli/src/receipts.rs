//! `mettle receipts`: a seat's pay and its reasons, from the validators' signed receipts (PROT-27).
//!
//! Nothing is signed, and `--uid` needs no key.

use crate::{help, output::Output, seat::session::uid_of, signing::SigningSession};
use anyhow::{bail, ensure};
use daemon::{config::SeatFlags, open::fetcher};
use protocol::{Window, receipt};
use serde_json::{Value, json};
use watch::receipts::receipts_of;

/// Show the reasons for the seat's pay, from validators' receipts
///
/// For each window: the numbers of every validator's receipt, and the pay.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle receipts --config miner.toml",
    "mettle receipts --uid 3 --window 212 --json",
]))]
pub struct Receipts {
    #[command(flatten)]
    pub seat: SeatFlags,
    /// Only this window.
    #[arg(long, value_name = "W", conflicts_with = "last")]
    pub window: Option<u32>,
    /// The number of windows to show, the latest ones whose receipts are public.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub last: u32,
}

/// Reads the receipts and prints them.
pub async fn receipts(command: Receipts, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let session = SigningSession::open(&args.chain).await?;
    let chain = &*session.chain;
    let status = chain.status(args.run).await?;
    let uid = uid_of(chain, &command.seat, &args).await?;
    let run = status.run;
    let now = status.window.unwrap_or(Window::FIRST);
    let windows = match command.window {
        Some(window) => vec![Window(window)],
        None => {
            let end = receipt::first_sealed(now, &run.params).0;
            (end.saturating_sub(command.last)..end).map(Window).collect()
        }
    };
    ensure!(
        !windows.is_empty(),
        "no receipt of run {} is public yet: those of its first window are from window {} on",
        args.run,
        receipt::public_from(Window::FIRST, &run.params).0
    );

    let fetch = fetcher(chain, &run.params)?;
    let seats = chain.seats(run.id).await?;
    let payslips = chain.payslips(run.id, uid).await?;
    let mut all = Vec::new();
    for window in windows {
        let Some(view) = chain.window(run.id, window).await? else {
            bail!(
                "the chain has no window {}: it has not opened yet, or the chain has forgotten it",
                window.0
            );
        };
        all.push(receipts_of(&fetch, chain.genesis(), &run, now, &view, &seats, &payslips).await);
    }
    let text: String = all.iter().map(|window| window.text(uid)).collect();
    let windows: Vec<Value> = all.iter().map(|window| window.json(uid)).collect();
    Ok(output.result(&text, json!({ "uid": uid, "windows": windows }))?)
}
