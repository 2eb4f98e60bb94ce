//! `mettle claim` and `mettle set-payout`: a seat's pay.

use super::session::{ColdkeyFlags, Seat};
use crate::{
    output::Output,
    signing::{ConfirmArgs, OnBehalf, Signer, SigningSession, TransactionPlan, units},
};
use anyhow::bail;
use chain_client::{Amount, Call, Payout, keys::address};
use daemon::config::{EndpointArgs, SeatFlags};
use serde_json::json;
use std::path::PathBuf;

/// Claim the seat's pay, for its coldkey or its stake
///
/// `mettle set-payout` chooses between the two. The hotkey claims without a fee once per epoch.
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

/// Choose the destination of the seat's claimed pay
#[derive(Clone, Debug, clap::Args)]
pub struct SetPayout {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// To the coldkey's account, or into the seat's stake.
    #[arg(long, value_enum)]
    to: PayoutTo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PayoutTo {
    Account,
    Stake,
}

pub(super) async fn claim(command: Claim, output: &mut Output<'_>) -> anyhow::Result<()> {
    let args = command.seat.read()?;
    let signer = signer_of_claim(&command, &args)?;
    if command.former {
        return claim_former(&args, signer, output).await;
    }
    let mut found = Seat::find(&command.seat, args).await?;
    let (run, uid, into_stake) = (found.session.run, found.uid(), found.seat.pays_into_stake);
    let claimable = Amount(found.seat.seat.claimable);
    if claimable == Amount::ZERO {
        return Ok(output.result("nothing to claim", json!({ "uid": uid, "claimed": units(Amount::ZERO) }))?);
    }
    let coldkey = address(&found.seat.seat.coldkey);
    let to = if into_stake { format!("into the stake of uid {uid}") } else { format!("to {coldkey}") };
    let plan = TransactionPlan {
        what: format!("claim the pay of uid {uid} of run {run}"),
        calls: vec![Call::Claim { run, uid }],
        signer,
        then: vec![
            format!("{claimable} goes {to}, whichever key signs"),
            "the hotkey claims without a fee once per epoch".into(),
        ],
    };
    if !found.session.signing.sign(output, &plan).await? {
        return Ok(());
    }
    // An epoch may have been paid meanwhile; its pay was not claimed.
    let left = found.session.seat_at(uid).await?.map_or(0, |seat| seat.seat.claimable);
    let claimed = claimable.saturating_sub(Amount(left));
    let claimed = if claimed == Amount::ZERO { claimable } else { claimed };
    let value =
        json!({ "uid": uid, "claimed": units(claimed), "into_stake": into_stake, "coldkey": coldkey });
    Ok(output.result(&format!("{claimed} went {to}"), value)?)
}

fn signer_of_claim(command: &Claim, args: &EndpointArgs) -> anyhow::Result<Signer> {
    let proxy_of = command.behalf.account()?;
    let (source, whose) = match (&command.coldkey, &args.key) {
        (Some(coldkey), _) if proxy_of.is_some() => (coldkey.parse()?, "a proxy of the coldkey"),
        (Some(coldkey), _) => (coldkey.parse()?, "the coldkey"),
        (None, Some(hotkey)) => (hotkey.clone(), "the seat's hotkey"),
        (None, None) => bail!("no key to sign with: add --key HOTKEY, or --coldkey KEY with --uid UID"),
    };
    // The password file in the settings is the hotkey's.
    let of_hotkey = args.password_file.clone().filter(|_| command.coldkey.is_none());
    let password_file = command.password_file.clone().or(of_hotkey);
    Ok(Signer { source, password_file, whose, proxy_of, confirm: command.confirm.clone() })
}

/// Claims the pay of former seats, given up or replaced.
async fn claim_former(args: &EndpointArgs, signer: Signer, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut session = SigningSession::open(&args.chain).await?;
    let coldkey = signer.account()?;
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
        then: vec![format!("{amount} goes to {to}")],
    };
    let value = json!({ "claimed": units(amount), "coldkey": to });
    session.sign_and_print(output, &plan, &format!("{amount} went to {to}"), value).await
}

pub(super) async fn set_payout(command: SetPayout, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.session.run, found.uid());
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
        signer,
        then: vec![then],
    };
    let text = format!("uid {uid} is paid into its {payout}");
    found.session.signing.sign_and_print(output, &plan, &text, json!({ "uid": uid, "payout": payout })).await
}
