//! A long-running client: follows a chain and makes a small transfer every few blocks, even while its node restarts.
//!
//! ```text
//! cargo run -p mettle-chain-client --example follow -- ws://HOST:PORT //Bob
//! ```
//!
//! Prints one line of JSON per event: `{"final":12}`, a block; `{"included":14}`, a call in that block;
//! `{"failed":"…"}`, a failed call, after which it makes the next one. Runs until it is killed.

use mettle_chain_client::{Amount, Call, Chain, SubxtChain, keys::Key};
use std::{error::Error, time::Duration};

/// Pause between a call's inclusion and the next call.
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, key] = arguments.as_slice() else {
        return Err("two arguments: a ws:// URL, and a development account such as //Bob".into());
    };
    let to = Key::dev("//Alice")?.account();
    let chain = SubxtChain::connect(url, Some(Key::dev(key)?)).await?;

    let mut heads = chain.heads();
    tokio::spawn(async move {
        loop {
            let block = heads.borrow_and_update().block;
            print("final", serde_json::json!(block.0));
            if heads.changed().await.is_err() {
                return;
            }
        }
    });
    loop {
        match chain.submit(Call::Transfer { to, amount: Amount(1_000_000_000) }).await {
            Ok(included) => print("included", serde_json::json!(included.block.0)),
            Err(error) => print("failed", serde_json::json!(error.to_string())),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn print(what: &str, value: serde_json::Value) {
    println!("{}", serde_json::json!({ what: value }));
}
