//! `mettle stake`, `unstake` and `withdraw`: a seat's stake.

use super::session::{ColdkeyFlags, Seat};
use crate::{
    output::Output,
    signing::{RunSession, TransactionPlan, freed, units},
};
use anyhow::ensure;
use chain_client::{Amount, Call, keys::address};
use daemon::config::{ChainFlags, SeatFlags};
use serde_json::json;

/// Add to the seat's stake
#[derive(Clone, Debug, clap::Args)]
pub struct Stake {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The amount to add, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    amount: Amount,
}

/// Withdraw stake, or give the seat up
///
/// The stake stays held, and can be slashed, for the run's unbonding time. Then `mettle withdraw` releases it.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unstake {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The amount to withdraw, such as 100 or "12.5 MTL". At least the run's minimum must remain.
    #[arg(long, value_name = "AMOUNT")]
    amount: Option<Amount>,
    /// Withdraw all stake: the seat is given up when the next window opens.
    #[arg(long)]
    all: bool,
}

/// Release stake that has unbonded
#[derive(Clone, Debug, clap::Args)]
pub struct Withdraw {
    #[command(flatten)]
    chain_flags: ChainFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
}

pub(super) async fn stake(command: Stake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.session.run, found.uid());
    let (has, more) = (found.stake(), command.amount);
    let plan = TransactionPlan {
        what: format!("add {more} to the stake of uid {uid} of run {run}"),
        calls: vec![Call::AddStake { run, uid, amount: more }],
        signer,
        then: vec![
            format!(
                "the stake rises from {has} to {}; it counts from the next window",
                has.saturating_add(more)
            ),
            format!("unstaked, it is free after {}", found.session.unbonding()),
        ],
    };
    if !found.session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    let stake = Amount(found.session.seat_at(uid).await?.map_or(0, |seat| seat.seat.stake));
    let value = json!({ "uid": uid, "stake": units(stake) });
    Ok(output.result(&format!("uid {uid} has {stake} at stake"), value)?)
}

pub(super) async fn unstake(command: Unstake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid, clock) = (found.session.run, found.uid(), found.session.clock);
    let (what, call, then) = match command.amount {
        Some(amount) => (
            format!("take {amount} out of the stake of uid {uid} of run {run}"),
            Call::Unstake { run, uid, amount },
            take_out(&found, amount)?,
        ),
        None => (
            format!("give up uid {uid} of run {run} and take its whole stake out"),
            Call::Leave { run, uid },
            give_up(&found),
        ),
    };
    let plan = TransactionPlan { what, calls: vec![call], signer, then };
    if !found.session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    let unbonding = found.session.chain().account_status(run, &found.seat.seat.coldkey).await?.unbonding;
    let latest = unbonding.iter().filter(|chunk| chunk.uid == uid).map(|chunk| chunk.until).max();
    Ok(match (command.amount, latest) {
        (Some(amount), Some(until)) => output.result(
            &format!("{amount} is free in {}; then run `mettle withdraw`", clock.until(until)),
            json!({ "uid": uid, "unbonding": units(amount), "until": until }),
        ),
        _ => output.result(
            &format!("uid {uid} is given up with {}", clock.until(clock.next_window())),
            json!({ "uid": uid, "leaves_at": clock.next_window() }),
        ),
    }?)
}

/// Describes the consequences of withdrawing `amount`.
fn take_out(found: &Seat, amount: Amount) -> anyhow::Result<Vec<String>> {
    let has = found.stake();
    let left = has.saturating_sub(amount);
    let least = Amount(found.session.status.run.terms.stake_min(found.seat.seat.role));
    ensure!(
        amount <= has && least <= left,
        "uid {} has {has} at stake, and {least} must stay: take out at most {}, or give the seat up with --all",
        found.uid(),
        has.saturating_sub(least)
    );
    let unbonding = found.session.unbonding();
    Ok(vec![
        format!("the stake falls from {has} to {left} at once"),
        format!(
            "{amount} stays held, and can be slashed, for {unbonding}; then `mettle withdraw` releases it"
        ),
    ])
}

/// Describes the consequences of giving the seat up.
fn give_up(found: &Seat) -> Vec<String> {
    let next = found.session.clock.until(found.session.clock.next_window());
    let (has, unbonding) = (found.stake(), found.session.unbonding());
    let mut then = vec![
        format!("the seat is given up with {next}; keep its node running until then"),
        format!(
            "its {has} stays held, and can be slashed, for {unbonding} after that; then `mettle withdraw` releases it"
        ),
        "unclaimed pay stays claimable: `mettle claim --former`".into(),
        "its hotkey can never have a seat in this run again".into(),
    ];
    if found.seat.nominated > 0 {
        then.push(format!("its nominators may withdraw their {} at once", Amount(found.seat.nominated)));
    }
    then
}

pub(super) async fn withdraw(command: Withdraw, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = RunSession::open(command.chain_flags.read(None)?).await?;
    let (run, signer) = (session.run, command.coldkey.signer()?);
    let owner = signer.account()?;
    let unbonding = session.chain().account_status(run, &owner).await?.unbonding;
    let (free, waiting) = freed(&unbonding, session.status.window);
    let result = json!({ "withdrawn": units(free), "waiting": units(waiting) });
    if free == Amount::ZERO {
        let text = match unbonding.iter().map(|chunk| chunk.until).min() {
            Some(first) => {
                let when = session.clock.until(first);
                format!("nothing to withdraw yet: of {waiting} the first part is free in {when}")
            }
            None => format!("{} has no unbonding stake in run {run}", address(&owner)),
        };
        return Ok(output.result(&text, result)?);
    }
    let mut then = vec![format!("{free} is released to {}", address(&owner))];
    if waiting > Amount::ZERO {
        then.push(format!("{waiting} stays held for now"));
    }
    let what = format!("withdraw unbonded stake in run {run}");
    let plan = TransactionPlan { what, calls: vec![Call::Withdraw { run }], signer, then };
    session.signing.sign_and_print(output, &plan, &format!("{free} is free"), result).await
}
