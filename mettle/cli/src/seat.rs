//! Commands of a seat's owner. Each creates a [`TransactionPlan`](crate::signing::TransactionPlan).

mod hotkey;
mod pay;
mod proxy;
mod register;
mod rewind;
mod stake;

pub(crate) use register::{Register, register, role_parser};

use crate::{
    help,
    output::Output,
    signing::{ConfirmArgs, OnBehalf, RunSession, Signer},
    status::{self, Status},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Chain, account,
    keys::{KeySource, address},
};
use clap::Subcommand;
use daemon::config::{EndpointArgs, SeatFlags};
use protocol::{Hotkey, Uid, view::SeatStatus};
use std::path::PathBuf;

#[derive(Clone, Debug, Subcommand)]
pub enum SeatCommand {
    #[command(after_help = help::signing(&[
        "mettle register miner --coldkey coldkey.json --key hotkey.json --stake 100 \\",
        "    --endpoint https://bucket.example.org",
        "mettle register validator --config validator.toml --coldkey coldkey.json \\",
        "    --stake 1000 --endpoint https://bucket.example.org --dry-run",
    ]))]
    Register(register::Register),
    #[command(after_help = help::reading(&[
        "mettle status --config miner.toml",
        "mettle status --uid 3 --json",
    ]))]
    Status(Status),
    #[command(after_help = help::signing(&[
        "mettle claim --config miner.toml",
        "mettle claim --former --coldkey coldkey.json",
    ]))]
    Claim(pay::Claim),
    #[command(after_help = help::signing(&[
        "mettle set-payout --config miner.toml --coldkey coldkey.json --to stake",
    ]))]
    SetPayout(pay::SetPayout),
    #[command(after_help = help::signing(&[
        "mettle stake --config miner.toml --coldkey coldkey.json --amount 100",
    ]))]
    Stake(stake::Stake),
    #[command(after_help = help::signing(&[
        "mettle unstake --config miner.toml --coldkey coldkey.json --amount 12.5",
        "mettle unstake --uid 3 --coldkey coldkey.json --all",
    ]))]
    Unstake(stake::Unstake),
    #[command(after_help = help::signing(&["mettle withdraw --coldkey coldkey.json"]))]
    Withdraw(stake::Withdraw),
    #[command(after_help = help::signing(&[
        "mettle rotate-key --uid 3 --coldkey coldkey.json --new-key new-hotkey.json",
    ]))]
    RotateKey(hotkey::RotateKey),
    #[command(after_help = help::signing(&[
        "mettle rewind --config validator.toml --coldkey coldkey.json --to 1240",
        "mettle rewind --uid 3 --coldkey coldkey.json --withdraw",
    ]))]
    Rewind(rewind::Rewind),
    /// Authorise another key to act for an offline coldkey
    #[command(subcommand)]
    Proxy(proxy::ProxyCommand),
}

/// Runs a command; prints and asks through `output`.
pub async fn run(command: SeatCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        SeatCommand::Register(command) => register(command, output).await,
        SeatCommand::Status(command) => status::status(command, output).await,
        SeatCommand::Claim(command) => pay::claim(command, output).await,
        SeatCommand::SetPayout(command) => pay::set_payout(command, output).await,
        SeatCommand::Stake(command) => stake::stake(command, output).await,
        SeatCommand::Unstake(command) => stake::unstake(command, output).await,
        SeatCommand::Withdraw(command) => stake::withdraw(command, output).await,
        SeatCommand::Rewind(command) => rewind::rewind(command, output).await,
        SeatCommand::RotateKey(command) => hotkey::rotate_key(command, output).await,
        SeatCommand::Proxy(command) => proxy::proxy(command, output).await,
    }
}

/// The key that owns a seat.
#[derive(Clone, Debug, clap::Args)]
pub struct ColdkeyFlags {
    /// The account that owns the seat and its stake, or a proxy of it: a key file, or a development key such as
    /// //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_COLDKEY")]
    coldkey: String,
    /// A file whose first line is the coldkey's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    coldkey_password_file: Option<PathBuf>,
    #[command(flatten)]
    behalf: OnBehalf,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

impl ColdkeyFlags {
    pub(crate) fn signer(&self) -> anyhow::Result<Signer> {
        let proxy_of = self.behalf.account()?;
        Ok(Signer {
            source: self.coldkey.parse()?,
            password_file: self.coldkey_password_file.clone(),
            whose: if proxy_of.is_some() { "a proxy of the coldkey" } else { "the coldkey" },
            proxy_of,
            confirm: self.confirm.clone(),
        })
    }
}

/// A seat, and its run.
pub(crate) struct Seat {
    pub session: RunSession,
    pub seat: SeatStatus,
}

impl Seat {
    /// Connects, and finds a seat that the coldkey owns.
    ///
    /// # Errors
    /// If the seat does not exist or another account owns it: the chain would refuse the call, for a fee.
    pub(crate) async fn open(flags: &SeatFlags, coldkey: &ColdkeyFlags) -> anyhow::Result<(Seat, Signer)> {
        let found = Seat::find(flags, flags.read()?).await?;
        let signer = coldkey.signer()?;
        let (owner, account) = (found.seat.seat.coldkey, signer.account()?);
        ensure!(
            owner == account,
            "uid {} of run {} belongs to {}, not to {}: sign with the coldkey that registered it, or with a proxy of it and \
             --proxy-of {0}",
            found.uid(),
            found.session.run,
            address(&owner),
            address(&account),
        );
        Ok((found, signer))
    }

    /// Finds the seat by its uid or its hotkey.
    pub(crate) async fn find(flags: &SeatFlags, args: EndpointArgs) -> anyhow::Result<Seat> {
        let session = RunSession::open(args).await?;
        let uid = uid_of(session.chain(), flags, &session.args).await?;
        let Some(seat) = session.seat_at(uid).await? else {
            bail!("there is no uid {uid} in run {}", session.run);
        };
        Ok(Seat { session, seat })
    }

    pub(crate) fn uid(&self) -> Uid {
        self.seat.seat.id.uid
    }

    pub(crate) fn stake(&self) -> Amount {
        Amount(self.seat.seat.stake)
    }
}

/// Returns the uid of the flags, or that of the hotkey's seat.
pub(crate) async fn uid_of(chain: &dyn Chain, flags: &SeatFlags, args: &EndpointArgs) -> anyhow::Result<Uid> {
    if let Some(uid) = flags.uid {
        return Ok(Uid(uid));
    }
    let hotkey = seat_hotkey(args)?;
    let seat = account::seat_of(chain, args.run, &hotkey).await?;
    let seat = seat.with_context(|| format!("{} has no seat in run {}", address(&hotkey.0), args.run))?;
    Ok(seat.id.uid)
}

/// Returns the hotkey of the flags or the settings.
pub(crate) fn seat_hotkey(args: &EndpointArgs) -> anyhow::Result<Hotkey> {
    required_hotkey(args, "add --uid UID, --key FILE, or `key = \"FILE\"` to the settings file")
}

fn required_hotkey(args: &EndpointArgs, to_do: &str) -> anyhow::Result<Hotkey> {
    let key = required_key(args, to_do)?;
    key.hotkey().with_context(|| format!("could not read the key {key}"))
}

fn required_key<'a>(args: &'a EndpointArgs, to_do: &str) -> anyhow::Result<&'a KeySource> {
    let Some(key) = &args.key else { bail!("no hotkey: {to_do}") };
    Ok(key)
}
