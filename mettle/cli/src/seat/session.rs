//! A seat and the key that owns it, as flags and settings name them.

use crate::signing::{ConfirmArgs, OnBehalf, RunSession, Signer};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Chain, account,
    keys::{KeySource, address},
};
use daemon::config::{EndpointArgs, SeatFlags};
use protocol::{Hotkey, Uid, view::SeatStatus};
use std::path::PathBuf;

/// The key that owns a seat.
#[derive(Clone, Debug, clap::Args)]
pub struct ColdkeyFlags {
    /// The account that owns the seat and its stake, or a proxy of it: a key file, or a development key such as
    /// //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_COLDKEY")]
    pub(super) coldkey: String,
    /// A file whose first line is the coldkey's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub(super) coldkey_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) behalf: OnBehalf,
    #[command(flatten)]
    pub(super) confirm: ConfirmArgs,
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
    /// If there is no such seat, or another account owns it: the chain would refuse the call, for a fee.
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

    /// Finds the seat by its uid, or by its hotkey.
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

/// The uid that the flags name, or that of the hotkey's seat.
pub(crate) async fn uid_of(chain: &dyn Chain, flags: &SeatFlags, args: &EndpointArgs) -> anyhow::Result<Uid> {
    if let Some(uid) = flags.uid {
        return Ok(Uid(uid));
    }
    let hotkey = seat_hotkey(args)?;
    let seat = account::seat_of(chain, args.run, &hotkey).await?;
    let seat = seat.with_context(|| format!("{} has no seat in run {}", address(&hotkey.0), args.run))?;
    Ok(seat.id.uid)
}

/// The hotkey that the flags or the settings name.
pub(crate) fn seat_hotkey(args: &EndpointArgs) -> anyhow::Result<Hotkey> {
    required_hotkey(args, "add --uid UID, --key FILE, or `key = \"FILE\"` to the settings file")
}

fn required_hotkey(args: &EndpointArgs, to_do: &str) -> anyhow::Result<Hotkey> {
    let key = required_key(args, to_do)?;
    key.hotkey().with_context(|| format!("could not read the key {key}"))
}

pub(super) fn required_key<'a>(args: &'a EndpointArgs, to_do: &str) -> anyhow::Result<&'a KeySource> {
    let Some(key) = &args.key else { bail!("no hotkey: {to_do}") };
    Ok(key)
}
