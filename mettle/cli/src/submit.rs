//! `mettle submit`: submits transactions that were signed elsewhere, after `--sign-elsewhere` of another command.

use crate::{network_flags::NetworkFlags, output::Output, signing::SigningSession, unsigned};
use anyhow::{Context as _, ensure};
use chain_client::Chain;
use serde_json::{Value, json};
use std::path::PathBuf;
use watch::text::readable;

/// Submit transactions that another machine or a wallet signed
///
/// FILE comes from a command with --sign-elsewhere. Each of its transactions is an object as polkadot-js and the
/// wallets built on it sign it (`SignerPayloadJSON`); its `payload` has the bytes to sign for any other signer. The
/// command may be repeated: the chain includes a transaction once.
#[derive(Clone, Debug, clap::Args)]
pub struct Submit {
    #[command(flatten)]
    network: NetworkFlags,
    /// The file with the transactions.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The signature as hex digits; once for each transaction, in the order of the file.
    #[arg(long = "signature", value_name = "HEX", required = true)]
    signatures: Vec<String>,
}

/// Checks every signature, then submits the transactions in order.
pub(crate) async fn submit(command: Submit, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let calls = unsigned::read(&command.file)?;
    let (wanted, given) = (calls.len(), command.signatures.len());
    ensure!(
        wanted == given,
        "{} has {wanted} transactions, and {given} signatures are given: add --signature for each, in the same order",
        command.file.display()
    );
    let args = command.network.read()?;
    let session = SigningSession::open(&args.chain).await?;
    let chain: &dyn Chain = &*session.chain;
    let mut signed = Vec::new();
    for (call, signature) in calls.iter().zip(&command.signatures) {
        ensure!(
            call.genesis_hash.0 == chain.genesis().0,
            "{} is for the chain with genesis {}, and this is another one",
            command.file.display(),
            String::from(call.genesis_hash.clone())
        );
        signed.push(call.signed(signature).with_context(|| readable(&call.what))?);
    }
    let mut included: Vec<Value> = Vec::new();
    for (index, call) in signed.iter().enumerate() {
        let block = chain.submit_signed(call).await.with_context(|| {
            format!(
                "transaction {} of {wanted} failed; those before it were included",
                index.saturating_add(1)
            )
        })?;
        included.push(json!({ "block": block.block, "hash": format!("0x{}", block.hash) }));
        output.note(&format!("{}: in block {}", readable(&call.what), block.block.0))?;
    }
    let text = format!("{wanted} of {wanted} transactions are included");
    Ok(output.result(&text, json!({ "included": included }))?)
}
