//! `mettle rewind`: a validator's vote to return to an earlier checkpoint.

use super::session::{ColdkeyFlags, Seat};
use crate::{output::Output, signing::TransactionPlan};
use anyhow::ensure;
use chain_client::Call;
use daemon::config::SeatFlags;
use protocol::{Role, Window, view::REWIND_WINDOWS};
use serde_json::json;

/// Vote to return to an earlier checkpoint
///
/// For validators, after a harmful merge. The vote is valid until it is replaced or withdrawn. When a window opens,
/// two thirds of the active set's stake decide. `mettle status` shows the stake of the votes and their target.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "wish", required = true, multiple = false, args = ["to", "withdraw"])]
pub struct Rewind {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// Return to the state at this window's start: a checkpoint of the last 32 windows.
    #[arg(long, value_name = "WINDOW")]
    to: Option<u32>,
    /// Withdraw the vote.
    #[arg(long)]
    withdraw: bool,
}

pub(super) async fn rewind(command: Rewind, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.session.run, found.uid());
    ensure!(
        found.seat.seat.role == Role::Validator,
        "uid {uid} is a miner: only validators vote to go back to a checkpoint"
    );
    let (what, then, text) = match command.to {
        Some(to) => (
            format!("vote with uid {uid} of run {run} to go back to the checkpoint of window {to}"),
            vec![
                format!(
                    "if two thirds of the active set's stake vote for it, the next window opens with the model of window {to}; the \
                     merges since are undone, and their pay stays"
                ),
                format!(
                    "the vote stands until you withdraw it, or until the checkpoint is {REWIND_WINDOWS} windows old"
                ),
            ],
            format!("uid {uid} votes to go back to the checkpoint of window {to}"),
        ),
        None => (
            format!("withdraw the vote of uid {uid} of run {run} to go back to a checkpoint"),
            vec!["a rewind that took place stays".to_owned()],
            format!("uid {uid} votes for no checkpoint"),
        ),
    };
    let to = command.to.map(Window);
    let plan = TransactionPlan { what, calls: vec![Call::VoteRewind { run, uid, to }], signer, then };
    found.session.signing.sign_and_print(output, &plan, &text, json!({ "uid": uid, "to": to })).await
}
