//! `mettle claim` and `mettle set-payout`: a seat's pay.

use super::{ColdkeyFlags, Seat, seat_at};
use crate::{
    output::Output,
    signing::{ConfirmArgs, OnBehalf, Signer, SigningSession, TransactionPlan, units},
};
use anyhow::bail;
use chain_client::{Amount, Call, Payout, keys::address};
use node::config::{EndpointArgs, SeatFlags};
use serde_json::json;
use std::path::PathBuf;

/// Claim the seat's pay, for its coldkey or its stake
///
/// `mettle set-payout` says which of the two. The hotkey claims without a fee once per epoch.
#[derive(Clone, Debug, clap::Args)]
pub struct Claim {
    #[command(flatten)]
    seat: SeatFlags,
    /// Sign with the coldkey instead of the hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY")]
    coldkey: Option<String>,
    /// Claim the pay of seats that the coldkey held before.
    #[arg(long, requires = "coldkey", conflicts_with = "uid")]
    former: bool,
    /// A file whose first line is the signing key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    behalf: OnBehalf,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// Choose where the seat's pay goes when it is claimed
#[derive(Clone, Debug, clap::Args)]
pub struct SetPayout {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// To the coldkey's account, or into the seat's stake.
    #[arg(long, value_enum)]
    to: PayoutTo,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PayoutTo {
    Account,
    Stake,
}

pub(super) async fn claim(command: Claim, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let signer = signer_of_claim(&command, &args)?;
    let mut session = SigningSession::open(&args.chain).await?;
    if command.former {
        return claim_former(&mut session, &args, signer, &command, output).await;
    }
    let found = Seat::find(&session, &command.seat, &args).await?;
    let (uid, seat) = (found.uid(), &found.seat);
    let claimable = Amount(seat.seat.claimable);
    if claimable == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "uid": uid, "claimed": units(Amount::ZERO) }))?);
    }
    let coldkey = address(&seat.seat.coldkey);
    let to =
        if seat.pays_into_stake { format!("into the stake of uid {uid}") } else { format!("to {coldkey}") };
    let plan = TransactionPlan {
        what: format!("claim the pay of uid {uid} of run {}", args.run),
        calls: vec![Call::Claim { run: args.run, uid }],
        signer,
        proxy_of: command.behalf.account()?,
        then: vec![
            format!("{claimable} goes {to}, whichever key signs"),
            "the hotkey claims without a fee once per epoch".into(),
        ],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    // An epoch may have been paid meanwhile; its pay was not claimed.
    let left = seat_at(&*session.chain, args.run, uid).await?.map_or(0, |seat| seat.seat.claimable);
    let claimed = claimable.saturating_sub(Amount(left));
    let claimed = if claimed == Amount::ZERO { claimable } else { claimed };
    let into_stake = seat.pays_into_stake;
    let value =
        json!({ "uid": uid, "claimed": units(claimed), "into_stake": into_stake, "coldkey": coldkey });
    Ok(output.result(&format!("{claimed} went {to}"), value)?)
}

fn signer_of_claim(command: &Claim, args: &EndpointArgs) -> anyhow::Result<Signer> {
    let (source, whose) = match (&command.coldkey, &args.key) {
        (Some(coldkey), _) if command.behalf.is_given() => (coldkey.parse()?, "a proxy of the coldkey"),
        (Some(coldkey), _) => (coldkey.parse()?, "the coldkey"),
        (None, Some(hotkey)) => (hotkey.clone(), "the seat's hotkey"),
        (None, None) => bail!("no key to sign with: add --key HOTKEY, or --coldkey KEY with --uid UID"),
    };
    // The password file in the settings is the hotkey's.
    let of_hotkey = args.password_file.clone().filter(|_| command.coldkey.is_none());
    Ok(Signer { source, password_file: command.password_file.clone().or(of_hotkey), whose })
}

/// Claims the pay of seats that were given up or replaced.
async fn claim_former(
    session: &mut SigningSession,
    args: &EndpointArgs,
    signer: Signer,
    command: &Claim,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let proxy_of = command.behalf.account()?;
    let coldkey = proxy_of.map_or_else(|| signer.account(), Ok)?;
    let account = session.chain.account_status(args.run, &coldkey).await?;
    let seats = session.chain.seats(args.run).await?;
    let of_seats = seats
        .iter()
        .filter(|seat| seat.coldkey == coldkey)
        .fold(0u128, |sum, seat| sum.saturating_add(seat.claimable));
    let amount = Amount(account.claimable.saturating_sub(of_seats));
    if amount == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "claimed": units(amount) }))?);
    }
    let to = address(&coldkey);
    let plan = TransactionPlan {
        what: format!("claim the pay of former seats of {to} in run {}", args.run),
        calls: vec![Call::ClaimFormer { run: args.run }],
        signer,
        proxy_of,
        then: vec![format!("{amount} goes to {to}")],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let value = json!({ "claimed": units(amount), "coldkey": to });
    Ok(output.result(&format!("{amount} went to {to}"), value)?)
}

pub(super) async fn set_payout(command: SetPayout, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut session, found) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.run, found.uid());
    let (payout, then) = match command.to {
        PayoutTo::Account => {
            (Payout::Account, format!("claimed pay goes to {}", address(&found.seat.seat.coldkey)))
        }
        PayoutTo::Stake => (
            Payout::Stake,
            format!(
                "claimed pay becomes stake of uid {uid}: it can be slashed, and must unbond to be withdrawn"
            ),
        ),
    };
    let plan = TransactionPlan {
        what: format!("set where the pay of uid {uid} of run {run} goes"),
        calls: vec![Call::SetPayout { run, uid, payout }],
        signer: command.coldkey.signer()?,
        proxy_of: command.coldkey.behalf.account()?,
        then: vec![then],
    };
    if session.sign(output, &plan, &command.confirm).await?.is_none() {
        return Ok(());
    }
    let text = format!("uid {uid} is paid into its {payout}");
    Ok(output.result(&text, json!({ "uid": uid, "payout": payout }))?)
}
