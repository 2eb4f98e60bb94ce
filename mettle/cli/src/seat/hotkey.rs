//! `mettle rotate-key`: changes a seat's hotkey.

use super::session::{ColdkeyFlags, Seat};
use crate::{
    keys,
    output::Output,
    signing::{self, TransactionPlan},
};
use anyhow::ensure;
use chain_client::{
    Call,
    account::{self, HOTKEY_FUNDS_MIN},
    keys::{Key, KeySource, address},
};
use daemon::{config::SeatFlags, open};
use protocol::Role;
use serde_json::json;
use std::path::PathBuf;

/// Change the seat's hotkey, from the next window on
#[derive(Clone, Debug, clap::Args)]
pub struct RotateKey {
    #[command(flatten)]
    seat: SeatFlags,
    #[command(flatten)]
    coldkey: ColdkeyFlags,
    /// The new hotkey, which signs its consent to the seat: a key file, which is created if it does not exist, or a
    /// development key such as //Alice.
    #[arg(long, value_name = "KEY")]
    new_key: String,
    /// A file whose first line is the new key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

pub(super) async fn rotate_key(command: RotateKey, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (mut found, signer) = Seat::open(&command.seat, &command.coldkey).await?;
    let (run, uid) = (found.session.run, found.uid());
    let new_key: KeySource = command.new_key.parse()?;
    open::check_key(&new_key, found.session.chain().is_development())?;
    let password_file = command.new_password_file.as_deref();
    let hotkey = if let KeySource::File(path) = &new_key
        && !path.exists()
    {
        ensure!(
            !signer.confirm.dry_run,
            "there is no key file {} yet, and a dry run creates none: create it with `mettle keys new`",
            path.display()
        );
        let key = Key::generate()?;
        keys::create(path, password_file, &key)?;
        output.note(&format!(
            "Wrote the key {} to {}. {}",
            key.address(),
            path.display(),
            keys::KEEP_A_COPY
        ))?;
        key
    } else {
        signing::open_key(&new_key, password_file, "the new hotkey")?
    };
    let proof = account::possession(found.session.chain(), &hotkey, run, &found.seat.seat.coldkey)?;
    let hotkey = hotkey.hotkey();
    ensure!(hotkey != found.seat.seat.hotkey, "uid {uid} has this hotkey already");
    let from = found.session.clock.next_window();
    let when = found.session.clock.until(from);
    let old = address(&found.seat.seat.hotkey.0);
    let plan = TransactionPlan {
        what: format!("change the hotkey of uid {uid} of run {run}"),
        calls: vec![Call::RotateHotkey { run, uid, hotkey, proof }],
        signer,
        then: vec![
            format!("the new hotkey takes over with {when}"),
            "run the node with the old hotkey until then, and restart it with the new one".into(),
            format!("the old hotkey {old} can never be used in this run again"),
            format!(
                "the new hotkey needs about {HOTKEY_FUNDS_MIN}, only for calls with a fee, such as a new endpoint"
            ),
        ],
    };
    let start = match found.seat.seat.role {
        Role::Miner => "miner start",
        Role::Validator => "validator serve",
    };
    let hotkey = address(&hotkey.0);
    let text = format!(
        "uid {uid} has the hotkey {hotkey} from {when}. Keep the node running as it is until then; then stop it and run \
         `{start} --key {new_key}`"
    );
    let value = json!({ "uid": uid, "hotkey": hotkey, "from_window": from });
    found.session.signing.sign_and_print(output, &plan, &text, value).await
}
