//! Four real nodes of the `local` chain: where their program is found, and what each is told.
//!
//! Finality needs more than two thirds of the authorities: of four, one may be away; of three, none could.

use crate::layout::NodePlan;
use anyhow::{Context as _, bail, ensure};
use chain_client::keys::Key;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The first word of a node's name.
pub const KIND: &str = "node";
/// The authorities of the chain named `local`, by the flag that gives a node their keys.
pub const AUTHORITIES: [&str; 4] = ["alice", "bob", "charlie", "dave"];
/// What the program is called.
pub const PROGRAM: &str = "mettle-node";

/// The node's program: the one that was asked for, or one beside this program, in the search path, or built in this checkout.
pub fn find(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(asked) = asked {
        let path = asked
            .canonicalize()
            .with_context(|| format!("there is no node at {}; {}", asked.display(), how_to_build()))?;
        check(&path)?;
        return Ok(path);
    }
    match candidates().into_iter().find(|path| path.is_file()) {
        Some(path) => {
            check(&path)?;
            path.canonicalize().with_context(|| format!("{} has no path", path.display()))
        }
        None => bail!(
            "the node's program was found neither beside this one nor in chain/node/target/release nor in the search path; {}",
            how_to_build()
        ),
    }
}

fn how_to_build() -> String {
    "it is built apart from the rest, in about 20 CPU-minutes: \
     `cargo build --release --manifest-path chain/node/Cargo.toml`, \
     then `--node-binary chain/node/target/release/mettle-node`; see docs/node.md"
        .to_owned()
}

fn candidates() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(ours) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(ours.join(PROGRAM));
    }
    places.push(PathBuf::from("chain/node/target/release").join(PROGRAM));
    let searched = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&searched).map(|directory| directory.join(PROGRAM)));
    places
}

/// Better to hear now that it is something else than from four logs.
fn check(program: &Path) -> anyhow::Result<()> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{} cannot be run", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.starts_with(PROGRAM),
        "{} is no {PROGRAM}: asked for its version, it says {:?}",
        program.display(),
        said.trim()
    );
    Ok(())
}

/// What `node` is told, among all `nodes`: each knows the first two others by address, so that any of them may be started anew.
pub fn arguments(nodes: &[NodePlan], node: &NodePlan, dir: &Path) -> anyhow::Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |flag: &str, value: &str| {
        arguments.push(flag.into());
        arguments.push(value.into());
    };
    add("--chain", "local");
    add("--name", &node.name);
    add("--rpc-port", &node.rpc_port.to_string());
    add("--prometheus-port", &node.metrics_port.to_string());
    add("--node-key", &node.node_key);
    for other in nodes.iter().filter(|other| other.name != node.name).take(2) {
        let peer = peer_id(&other.node_key)?;
        add("--bootnodes", &format!("/ip4/127.0.0.1/tcp/{}/p2p/{peer}", other.p2p_port));
    }
    add("--listen-addr", &format!("/ip4/127.0.0.1/tcp/{}", node.p2p_port));
    for flag in [
        &format!("--{}", node.authority),
        "--no-telemetry",
        "--no-mdns",
        "--disable-log-color",
        "--allow-private-ip",
    ] {
        arguments.push(flag.into());
    }
    arguments.push("--base-path".into());
    arguments.push(dir.into());
    Ok(arguments)
}

/// The name under which the owner of a node key (hex) is known to other nodes: its public key as a multihash, in base 58.
pub fn peer_id(node_key: &str) -> anyhow::Result<String> {
    let public = Key::from_hex_seed(node_key).context("a node key is damaged")?.hotkey();
    // An identity multihash of 36 bytes: a protobuf with key type 1, Ed25519, and 32 bytes of key.
    let mut bytes = vec![0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    bytes.extend_from_slice(&public.0);
    Ok(base58(&bytes))
}

/// Base 58 as Bitcoin and libp2p write it.
fn base58(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut digits: Vec<u32> = Vec::new();
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in &mut digits {
            carry += *digit << 8;
            *digit = carry % 58;
            carry /= 58;
        }
        while 0 < carry {
            digits.push(carry % 58);
            carry /= 58;
        }
    }
    let zeros = bytes.iter().take_while(|byte| **byte == 0).map(|_| '1');
    let digits = digits.iter().rev().map(|digit| char::from(DIGITS[*digit as usize]));
    zeros.chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> String {
        format!("{number:064x}")
    }

    #[test]
    fn a_node_is_known_by_the_name_that_libp2p_gives_it() {
        // What `mettle-node key inspect-node-key` says of these keys.
        assert_eq!(peer_id(&key(1)).unwrap(), "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp");
        assert_eq!(peer_id(&key(2)).unwrap(), "12D3KooWHdiAxVd8uMQR1hGWXccidmfCwLqcMpGwR6QcTP6QRMuD");
        assert!(peer_id("none").is_err());
    }

    #[test]
    fn every_node_knows_two_others_and_its_own_ports() {
        let nodes: Vec<NodePlan> = (0..4_u8)
            .map(|index| NodePlan {
                name: format!("node-{index}"),
                authority: AUTHORITIES[usize::from(index)].into(),
                rpc_port: 100 + u16::from(index),
                p2p_port: 200 + u16::from(index),
                metrics_port: 300 + u16::from(index),
                node_key: key(index + 1),
            })
            .collect();
        for node in &nodes {
            let told = arguments(&nodes, node, Path::new("/data")).unwrap();
            let told: Vec<_> = told.iter().map(|word| word.to_str().unwrap()).collect();
            assert!(told.contains(&format!("--{}", node.authority).as_str()), "{told:?}");
            assert_eq!(told.iter().filter(|word| **word == "--bootnodes").count(), 2);
            let own = format!("tcp/{}/p2p", node.p2p_port);
            assert!(told.iter().all(|word| !word.contains(&own)), "nobody calls themselves: {told:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_how_to_build_it() {
        let error = format!("{:#}", find(Some(Path::new("/no/such/node"))).unwrap_err());
        assert!(error.contains("/no/such/node") && error.contains("chain/node/Cargo.toml"), "{error}");
    }

    #[test]
    fn another_program_is_no_node() {
        let error = format!("{:#}", find(Some(Path::new("/bin/true"))).unwrap_err());
        assert!(error.contains("is no mettle-node"), "{error}");
    }
}
