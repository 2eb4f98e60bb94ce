//! `mettle keys`: creates and imports key files, and shows addresses.

use crate::help;
use crate::output::Output;
use anyhow::Context as _;
use chain_client::keys::{
    Key, KeyError, KeyExport, KeyFile, KeyPassword, KeySource, Prompt, Scheme, address,
};
use clap::{
    Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use protocol::{Hotkey, view::Account};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The advice after a key file is written.
pub(crate) const KEEP_A_COPY: &str =
    "Without the file and its password the key is lost: keep a copy of both.";

#[derive(Clone, Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key and write it, encrypted, to a new file
    #[command(after_help = help::reading(&[
        "mettle keys new --key hotkey.json",
        "mettle keys new --key coldkey.json --password-file password.txt",
        "mettle keys new --key coldkey.json --words-file words.txt",
    ]))]
    New {
        /// The key file to create. An existing file is never overwritten.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        /// Read the key's secret seed, 64 hex digits, from this file instead of generating one.
        #[arg(long, value_name = "FILE", conflicts_with = "words_file")]
        seed_file: Option<PathBuf>,
        /// Read the 12 to 24 words of a BIP-39 phrase from this file instead. A derivation path such as //stash may
        /// follow the last word.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
        /// The words' scheme: sr25519 gives the account that wallets show for them. A hotkey is ed25519.
        #[arg(long, value_name = "SCHEME", default_value = "ed25519", requires = "words_file", value_parser = scheme_parser())]
        scheme: Scheme,
    },
    /// Import an account that a wallet exported, as a coldkey
    ///
    /// The export is a JSON file of polkadot-js or a wallet built on it, with an sr25519 or ed25519 account. Its
    /// password protects the new key file too.
    #[command(after_help = help::reading(&[
        "mettle keys import --from account.json --key coldkey.json",
        "mettle keys import --from account.json --key coldkey.json --password-file password",
    ]))]
    Import {
        /// The exported JSON file.
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// The key file to create. An existing file is never overwritten.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// A file whose first line is the export's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Show a key's address; needs no password
    #[command(after_help = help::reading(&["mettle keys show --key hotkey.json"]))]
    Show {
        /// A key file, or a development key such as //Alice.
        #[arg(long, value_name = "KEY")]
        key: String,
    },
}

/// Runs a command; prints through `output`.
pub fn run(command: KeysCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    match command {
        KeysCommand::New { key: path, password_file, seed_file, words_file, scheme } => {
            let key = match (seed_file, words_file) {
                (Some(file), _) => Key::from_hex_seed(&secret_text(&file)?)?,
                (None, Some(file)) => Key::from_words(&secret_text(&file)?, scheme)?,
                (None, None) => Key::generate()?,
            };
            create(&path, password_file.as_deref(), &key)?;
            written(&path, &key, output)
        }
        KeysCommand::Import { from, key: path, password_file } => {
            let export = KeyExport::read(&from)?;
            // Before the password prompt.
            if path.exists() {
                return Err(KeyError::Exists(path).into());
            }
            let what = from.display().to_string();
            let password = KeyPassword::from_environment(&what, password_file.as_deref(), Prompt::Once)?;
            let key = export.unlock(&password)?;
            KeyFile::create(&path, &key, &password)?;
            written(&path, &key, output)
        }
        KeysCommand::Show { key } => {
            let (account, scheme) = key.parse::<KeySource>()?.public()?;
            let address = address(&account);
            Ok(output.result(&address, public_json(&account, scheme))?)
        }
    }
}

fn scheme_parser() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(["ed25519", "sr25519"]).map(|name| match name.as_str() {
        "sr25519" => Scheme::Sr25519,
        _ => Scheme::Ed25519,
    })
}

fn public_json(account: &Account, scheme: Option<Scheme>) -> Value {
    json!({ "address": address(account), "public": Hotkey(*account), "scheme": scheme })
}

/// Prints the written key.
fn written(path: &Path, key: &Key, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut value = public_json(&key.account(), Some(key.scheme()));
    value["file"] = json!(path);
    output.result(&key.address(), value)?;
    Ok(output.note(&format!("Wrote {}. {KEEP_A_COPY}", path.display()))?)
}

/// Reads a file with a key's secret.
fn secret_text(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read the key's secret from {}", path.display()))?;
    Ok(Zeroizing::new(text))
}

/// Writes a key to a new key file.
pub(crate) fn create(path: &Path, password_file: Option<&Path>, key: &Key) -> anyhow::Result<()> {
    let password = KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Twice)?;
    Ok(KeyFile::create(path, key, &password)?)
}
