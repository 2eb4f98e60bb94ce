//! `mettle keys`: creates key files and shows addresses.

use crate::help;
use crate::output::Output;
use anyhow::Context as _;
use chain_client::keys::{Key, KeyFile, KeyPassword, KeySource, Prompt, address};
use clap::Subcommand;
use serde_json::json;
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
        /// Read the 12 to 24 words of a BIP-39 phrase from this file instead. They give an ed25519 key: the address
        /// differs from that of an sr25519 wallet with the same words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
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
        KeysCommand::New { key: path, password_file, seed_file, words_file } => {
            let key = match (seed_file, words_file) {
                (Some(file), _) => Key::from_hex_seed(&secret_text(&file)?)?,
                (None, Some(file)) => Key::from_words(&secret_text(&file)?)?,
                (None, None) => Key::generate()?,
            };
            create(&path, password_file.as_deref(), &key)?;
            let value = json!({ "address": key.address(), "public": key.hotkey(), "file": path });
            output.result(&key.address(), value)?;
            Ok(output.note(&format!("Wrote {}. {KEEP_A_COPY}", path.display()))?)
        }
        KeysCommand::Show { key } => {
            let public = key.parse::<KeySource>()?.public()?;
            let address = address(&public.0);
            Ok(output.result(&address, json!({ "address": address, "public": public }))?)
        }
    }
}

/// A file with a key's secret.
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
