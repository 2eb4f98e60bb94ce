//! `mettle stake`, `unstake` and `withdraw`: a seat's stake.

use super::{ColdkeyFlags, Seat, seat_at};
use crate::{
    block_clock::BlockClock,
    output::Output,
    signing::{ConfirmArgs, SigningSession, TransactionPlan, units},
};
use anyhow::ensure;
use chain_client::{Amount, Call, keys::address};
use node::config::{ChainFlags, SeatFlags};
use protocol::view::{RunStatus, UnbondingView};
use serde_json::json;

/// Add to the seat's stake
#[derive(Clone, Debug, clap::Args)]
pub struct Stake {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// How much to add, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    amount: Amount,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// Take stake out, or give the seat up
///
/// The stake stays held, and can be slashed, for the run's unbonding time. Then `mettle withdraw` releases it.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "how_much", required = true, multiple = false, args = ["amount", "all"])]
pub struct Unstake {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// How much to take out, such as 100 or "12.5 MTL". At least the run's minimum must stay.
    #[arg(long, value_name = "AMOUNT")]
    amount: Option<Amount>,
    /// Take all of it out: the seat is given up when the next window opens.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// Release stake that has unbonded
#[derive(Clone, Debug, clap::Args)]
pub struct Withdraw {
    #[command(flatten)]
    chain_flags: ChainFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub(super) async fn stake(command: Stake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut session, found) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.run, found.uid());
    let (has, more) = (Amount(found.seat.seat.stake), command.amount);
    let plan = TransactionPlan {
        what: format!("add {more} to the stake of uid {uid} of run {run}"),
        calls: vec![Call::AddStake { run, uid, amount: more }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![
            format!(
                "the stake rises from {has} to {}; it counts from the next window",
                has.saturating_add(more)
            ),
            format!("unstaked, it is free after {}", found.unbonding()),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let seat = seat_at(&*session.chain, run, uid).await?;
    let stake = Amount(seat.map_or(0, |seat| seat.seat.stake));
    let value = json!({ "uid": uid, "stake": units(stake) });
    Ok(output.result(&format!("uid {uid} has {stake} at stake"), value)?)
}

pub(super) async fn unstake(command: Unstake, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut session, found) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid, clock) = (found.run, found.uid(), &found.clock);
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
    let (signer, proxy_of) = (command.coldkey.signer()?, command.coldkey.behalf.account()?);
    let plan = TransactionPlan { what, calls: vec![call], signer, proxy_of, then };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let unbonding = session.chain.account_status(run, &command.coldkey.owner()?).await?.unbonding;
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

/// The consequences of taking out `amount`.
fn take_out(found: &Seat, amount: Amount) -> anyhow::Result<Vec<String>> {
    let has = Amount(found.seat.seat.stake);
    let left = has.saturating_sub(amount);
    let least = Amount(found.status.run.terms.stake_min(found.seat.seat.role));
    ensure!(
        amount <= has && least <= left,
        "uid {} has {has} at stake, and {least} must stay: take out at most {}, or give the seat up with --all",
        found.uid(),
        has.saturating_sub(least)
    );
    Ok(vec![
        format!("the stake falls from {has} to {left} at once"),
        format!(
            "{amount} stays held, and can be slashed, for {}; then `mettle withdraw` releases it",
            found.unbonding()
        ),
    ])
}

/// The consequences of giving the seat up.
fn give_up(found: &Seat) -> Vec<String> {
    let next = found.clock.until(found.clock.next_window());
    let (has, unbonding) = (Amount(found.seat.seat.stake), found.unbonding());
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

/// What is free at the open window, and what is not.
fn freed(unbonding: &[UnbondingView], status: &RunStatus) -> (Amount, Amount) {
    let (free, waiting): (Vec<&UnbondingView>, Vec<_>) =
        unbonding.iter().partition(|chunk| status.window.is_some_and(|now| chunk.until <= now));
    let sum = |chunks: Vec<&UnbondingView>| {
        chunks.into_iter().fold(Amount::ZERO, |sum, chunk| sum.saturating_add(Amount(chunk.amount)))
    };
    (sum(free), sum(waiting))
}

pub(super) async fn withdraw(command: Withdraw, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.chain_flags.read(None)?;
    let mut session = SigningSession::open(&args.chain).await?;
    let owner = command.coldkey.owner()?;
    let status = session.chain.status(args.run).await?;
    let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
    let unbonding = session.chain.account_status(args.run, &owner).await?.unbonding;
    let (free, waiting) = freed(&unbonding, &status);
    let result = json!({ "withdrawn": units(free), "waiting": units(waiting) });
    if free == Amount::ZERO {
        let text = match unbonding.iter().map(|chunk| chunk.until).min() {
            Some(first) => {
                format!(
                    "nothing to withdraw yet: of {waiting} the first part is free in {}",
                    clock.until(first)
                )
            }
            None => format!("{} has no unbonding stake in run {}", address(&owner), args.run),
        };
        return Ok(output.result(&text, result)?);
    }
    let mut then = vec![format!("{free} is released to {}", address(&owner))];
    if waiting > Amount::ZERO {
        then.push(format!("{waiting} stays held for now"));
    }
    let plan = TransactionPlan {
        what: format!("withdraw unbonded stake in run {}", args.run),
        calls: vec![Call::Withdraw { run: args.run }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then,
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    Ok(output.result(&format!("{free} is free"), result)?)
}
