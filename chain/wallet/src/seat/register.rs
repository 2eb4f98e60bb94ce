//! `mettle register`: takes a seat.

use super::{ColdkeyFlags, required_hotkey};
use crate::{
    block_clock::BlockClock,
    output::Output,
    signing::{ConfirmArgs, SigningSession, TransactionPlan},
};
use chain_client::{
    Amount,
    account::{self, SeatPlan, SeatRequest},
    keys::address,
};
use node::config::ChainFlags;
use protocol::{Role, view::RunStatus};
use serde_json::json;

/// Register a seat; its coldkey pays the price and the stake
///
/// The coldkey owns the seat. The hotkey signs the seat's daily work; only its address is read here.
#[derive(Clone, Debug, clap::Args)]
pub struct Register {
    /// What the seat is for.
    #[arg(value_enum)]
    role: SeatRole,
    #[command(flatten)]
    chain_flags: ChainFlags,
    /// The hotkey: a key file, or a development key such as //Alice. Only its address is read.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    key: Option<String>,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The stake to hold from the coldkey, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    stake: Amount,
    /// Base URL under which everyone can read the seat's bucket.
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// The most that the seat may cost, burnt [default: twice its current price].
    #[arg(long, value_name = "AMOUNT")]
    price_max: Option<Amount>,
    /// The balance for fees that the hotkey should have; the difference is transferred. Daily work costs no fee.
    #[arg(long, value_name = "AMOUNT", default_value = "0.1")]
    hotkey_funds: Amount,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// The two kinds of seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SeatRole {
    Miner,
    Validator,
}

impl From<SeatRole> for Role {
    fn from(role: SeatRole) -> Role {
        match role {
            SeatRole::Miner => Role::Miner,
            SeatRole::Validator => Role::Validator,
        }
    }
}

pub(super) async fn register(command: Register, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.chain_flags.read(command.key.as_deref())?;
    let hotkey = required_hotkey(&args, "add --key FILE, or `key = \"FILE\"` to the settings file")?;
    let mut session = SigningSession::open(&args.chain).await?;
    let request = SeatRequest {
        run: args.run,
        role: command.role.into(),
        hotkey,
        endpoint: command.endpoint,
        stake: command.stake,
        hotkey_funds: command.hotkey_funds,
        price_max: command.price_max,
    };
    let plan = account::plan_seat(&*session.chain, &command.coldkey.owner()?, &request).await?;
    if let Some(seat) = plan.already.as_ref().filter(|_| plan.calls.is_empty()) {
        output.note("The hotkey has its seat already; its stake and endpoint are unchanged.")?;
        let uid = seat.id.uid;
        return Ok(output.result(&format!("uid {uid}"), json!({ "uid": uid, "already": true }))?);
    }
    let status = session.chain.status(args.run).await?;
    let clock = BlockClock::read(&*session.chain, status.run.params.schedule).await?;
    let transaction = TransactionPlan {
        what: format!("register {} as a {} of run {}", address(&hotkey.0), request.role, args.run),
        then: consequences(&request, &plan, &status, &clock),
        calls: plan.calls,
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
    };
    if session.sign(output, &transaction, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let (text, uid) = match account::seat_of(&*session.chain, args.run, &hotkey).await? {
        Some(seat) => (format!("uid {}", seat.id.uid), Some(seat.id.uid)),
        None => {
            let when = clock.until(clock.next_window());
            (format!("registered; the seat changes hands with {when}"), None)
        }
    };
    Ok(output.result(&text, json!({ "uid": uid, "already": plan.already.is_some() }))?)
}

fn consequences(
    request: &SeatRequest,
    plan: &SeatPlan,
    status: &RunStatus,
    clock: &BlockClock,
) -> Vec<String> {
    let terms = status.run.terms;
    let (role, seats) = match request.role {
        Role::Miner => ("miner", status.miners),
        Role::Validator => ("validator", status.validators),
    };
    let mut then = Vec::new();
    if plan.already.is_none() {
        let unbonding = clock.windows(terms.unbonding_windows);
        let when = clock.until(clock.next_window());
        then.push(format!(
            "the seat costs {} now, burnt; the price rises with each registration",
            plan.price
        ));
        then.push(format!("{} is held as stake; unstaked, it is free after {unbonding}", request.stake));
        then.push(if seats.taken < seats.max {
            format!("the seat takes part from {when}")
        } else {
            format!(
                "all {} {role} seats are taken: this one replaces the seat with the least recent pay with {when}",
                seats.max
            )
        });
        then.push(format!("the seat cannot be replaced for {}", clock.windows(terms.immunity_windows)));
    }
    if plan.funded > Amount::ZERO {
        then.push(format!("{} goes to the hotkey for its fees", plan.funded));
    }
    then
}
