//! Commands of a seat's owner. Each creates a [`TransactionPlan`](crate::signing::TransactionPlan).

mod hotkey;
mod pay;
mod proxy;
pub(crate) mod register;
mod rewind;
pub(crate) mod session;
mod stake;

use crate::{
    help,
    output::Output,
    status::{self, Status},
};
use clap::Subcommand;

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
        SeatCommand::Register(command) => register::register(command, output).await,
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
