//! `mettle proxy`: authorises another key to act for the coldkey.

use super::session::ColdkeyFlags;
use crate::{
    help,
    output::Output,
    signing::{SigningSession, TransactionPlan},
};
use chain_client::{
    Call, ProxyKind,
    keys::{address, parse_address},
};
use clap::Subcommand;
use daemon::config::ChainFlags;
use serde_json::json;

#[derive(Clone, Debug, Subcommand)]
pub enum ProxyCommand {
    /// Authorise another account to act for the coldkey, with --proxy-of; a small deposit is held
    #[command(after_help = help::signing(&[
        "mettle proxy add --coldkey coldkey.json --proxy 5FA9nQDV… --may claims",
    ]))]
    Add(Proxy),
    /// Withdraw that authorisation; the deposit is released
    #[command(after_help = help::signing(&[
        "mettle proxy remove --coldkey coldkey.json --proxy 5FA9nQDV… --may claims",
    ]))]
    Remove(Proxy),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Proxy {
    #[command(flatten)]
    chain_flags: ChainFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The address of the account that acts.
    #[arg(long, value_name = "ADDRESS")]
    proxy: String,
    /// The proxy's permissions.
    #[arg(long, value_enum)]
    may: ProxyScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProxyScope {
    /// Full control, including transfers
    Any,
    /// Everything except transfers
    NonTransfer,
    /// Registered seats and their stake
    Staking,
    /// Claim pay, into the coldkey's own account
    Claims,
}

impl ProxyScope {
    fn kind(self) -> ProxyKind {
        match self {
            ProxyScope::Any => ProxyKind::Any,
            ProxyScope::NonTransfer => ProxyKind::NonTransfer,
            ProxyScope::Staking => ProxyKind::Staking,
            ProxyScope::Claims => ProxyKind::Claims,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            ProxyScope::Any => "everything, also send all of its money away",
            ProxyScope::NonTransfer => "everything that cannot send its money away",
            ProxyScope::Staking => "manage seats and the stake behind them",
            ProxyScope::Claims => "claim pay, into that account itself",
        }
    }
}

pub(super) async fn proxy(command: ProxyCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (command, adds) = match command {
        ProxyCommand::Add(command) => (command, true),
        ProxyCommand::Remove(command) => (command, false),
    };
    let args = command.chain_flags.read(None)?;
    let (proxy, may, delay) = (parse_address(&command.proxy)?, command.may.kind(), 0);
    let signer = command.coldkey.signer()?;
    let (real, name) = (address(&signer.account()?), address(&proxy));
    let (what, call, then) = if adds {
        let then = vec![
            format!("{name} may act in the name of {real}: {}", command.may.describe()),
            "a deposit is held until the permission is taken back".into(),
        ];
        (format!("let {name} act for {real}"), Call::AddProxy { proxy, may, delay }, then)
    } else {
        let then = vec!["the deposit is released".into()];
        (
            format!("no longer let {name} act for {real} ({may})"),
            Call::RemoveProxy { proxy, may, delay },
            then,
        )
    };
    let mut session = SigningSession::open(&args.chain).await?;
    let plan = TransactionPlan { what, calls: vec![call], signer, then };
    let text = if adds { "may act for" } else { "may no longer act for" };
    let value = json!({ "proxy": name, "account": real, "may": may, "stands": adds });
    session.sign_and_print(output, &plan, &format!("{name} {text} {real}"), value).await
}
