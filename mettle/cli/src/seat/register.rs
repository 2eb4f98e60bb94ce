//! `mettle register`: registers a seat.

use super::session::{ColdkeyFlags, required_key};
use crate::{
    output::Output,
    signing::{self, ConfirmArgs, OnBehalf, RunSession, TransactionPlan, check_bucket},
};
use chain_client::{
    Amount,
    account::{self, SeatPlan, SeatRequest},
    keys::address,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daemon::{config::ChainFlags, open};
use protocol::Role;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The balance for fees that the hotkey gets.
pub(crate) const HOTKEY_FUNDS: Amount = Amount(Amount::mtl(1).0 / 10);

/// Register a seat; its coldkey pays the price and the stake
///
/// The coldkey owns the seat. The hotkey signs the seat's daily work, and here its consent to the seat: it is opened
/// before the preview, even for a dry run. If the settings file names a bucket, the command first checks it like the
/// node at its start: it writes an object, reads it at the endpoint, and deletes it.
#[derive(Clone, Debug, clap::Args)]
pub struct Register {
    /// The seat's role.
    #[arg(value_parser = role_parser())]
    role: Role,
    #[command(flatten)]
    chain_flags: ChainFlags,
    /// The hotkey: a key file, or a development key such as //Alice. It signs its consent to the seat.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    key: Option<String>,
    /// A file whose first line is the hotkey's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The stake to hold from the coldkey, such as 100 or "12.5 MTL".
    #[arg(long, value_name = "AMOUNT")]
    stake: Amount,
    /// Base URL under which everyone can read the seat's bucket; for a miner without one, the output of `miner
    /// endpoint`.
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// The maximum price of the seat, which is burnt [default: twice its current price].
    #[arg(long, value_name = "AMOUNT")]
    price_max: Option<Amount>,
    /// The hotkey's balance for fees; the difference is transferred. Daily work costs no fee.
    #[arg(long, value_name = "AMOUNT", default_value = "0.1")]
    hotkey_funds: Amount,
}

/// Reads `miner` or `validator`.
pub(crate) fn role_parser() -> impl TypedValueParser<Value = Role> {
    let roles = [Role::Miner, Role::Validator];
    PossibleValuesParser::new(["miner", "validator"]).map(move |name| {
        roles.into_iter().find(|role| role.to_string() == name).expect("it is one of the two")
    })
}

impl Register {
    /// Creates the command for a seat with these settings and keys.
    pub(crate) fn new(
        role: Role,
        settings: &Path,
        coldkey: &Path,
        password_file: Option<PathBuf>,
        stake: Amount,
        endpoint: String,
        yes: bool,
    ) -> Register {
        let chain_flags = ChainFlags { config: Some(settings.to_owned()), ..ChainFlags::default() };
        let coldkey = ColdkeyFlags {
            coldkey: coldkey.display().to_string(),
            coldkey_password_file: password_file.clone(),
            behalf: OnBehalf::default(),
            confirm: ConfirmArgs { yes, ..ConfirmArgs::default() },
        };
        Register {
            role,
            chain_flags,
            key: None,
            password_file,
            coldkey,
            stake,
            endpoint,
            price_max: None,
            hotkey_funds: HOTKEY_FUNDS,
        }
    }
}

pub(crate) async fn register(command: Register, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.chain_flags.read(command.key.as_deref())?;
    let source = required_key(&args, "add --key FILE, or `key = \"FILE\"` to the settings file")?.clone();
    let password_file = command.password_file.or_else(|| args.password_file.clone());
    let signer = command.coldkey.signer()?;
    let mut session = RunSession::open(args).await?;
    open::check_key(&source, session.chain().is_development())?;
    let key = signing::open_key(&source, password_file.as_deref(), "the hotkey")?;
    let hotkey = key.hotkey();
    let request = SeatRequest {
        run: session.run,
        role: command.role,
        hotkey: key,
        endpoint: command.endpoint,
        stake: command.stake,
        hotkey_funds: command.hotkey_funds,
        price_max: command.price_max,
    };
    let plan = account::plan_seat(session.chain(), &signer.account()?, &request).await?;
    if let Some(seat) = plan.already.as_ref().filter(|_| plan.calls.is_empty()) {
        output.note("The hotkey has its seat already; its stake and endpoint are unchanged.")?;
        let uid = seat.id.uid;
        return Ok(output.result(&format!("uid {uid}"), json!({ "uid": uid, "already": true }))?);
    }
    let params = &session.status.run.params;
    let has_bucket = session.args.store.is_some();
    open::check_endpoint(session.chain(), params, request.role, &request.endpoint, has_bucket)?;
    if let Some(bucket) = &session.args.store {
        check_bucket(output, &bucket.open()?, session.chain(), params, &request.endpoint).await?;
    }
    let transaction = TransactionPlan {
        what: format!("register {} as a {} of run {}", address(&hotkey.0), request.role, session.run),
        then: consequences(&request, &plan, &session),
        calls: plan.calls,
        signer,
    };
    if !session.signing.sign(output, &transaction).await? {
        return Ok(());
    }
    let uid = account::seat_of(session.chain(), session.run, &hotkey).await?.map(|seat| seat.id.uid);
    let text = match uid {
        Some(uid) => format!("uid {uid}"),
        None => format!(
            "registered; the seat changes hands with {}",
            session.clock.until(session.clock.next_window())
        ),
    };
    Ok(output.result(&text, json!({ "uid": uid, "already": plan.already.is_some() }))?)
}

fn consequences(request: &SeatRequest, plan: &SeatPlan, session: &RunSession) -> Vec<String> {
    let (role, seats) = match request.role {
        Role::Miner => ("miner", session.status.miners),
        Role::Validator => ("validator", session.status.validators),
    };
    let replaced = match request.role {
        Role::Miner => "one without a consensus weight, or else the one with the least recent pay,",
        Role::Validator => "one that it outbids in stake by a tenth",
    };
    let mut then = Vec::new();
    if plan.already.is_none() {
        let when = session.clock.until(session.clock.next_window());
        then.push(format!(
            "the seat costs {} now, burnt; the price rises with each registration",
            plan.price
        ));
        then.push(format!(
            "{} is held as stake; unstaked, it is free after {}",
            request.stake,
            session.unbonding()
        ));
        then.push(if seats.taken < seats.max {
            format!("the seat takes part from {when}")
        } else {
            format!(
                "all {} {role} seats are taken: this one replaces {replaced} with {when}, or is refused if there is none",
                seats.max
            )
        });
        let immunity = session.clock.windows(session.status.run.terms.immunity_windows);
        then.push(format!("the seat cannot be replaced for {immunity}"));
    }
    if plan.already.is_none() && session.args.store.is_none() && !open::is_peer(&request.endpoint) {
        then.push(
            "the bucket was not tried: --config with a settings file that has a [store] tries it first"
                .into(),
        );
    }
    if plan.funded > Amount::ZERO {
        then.push(format!("{} goes to the hotkey for its fees", plan.funded));
    }
    then
}
