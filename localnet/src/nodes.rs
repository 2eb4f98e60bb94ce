//! Four real nodes of the `local` chain: their program and their arguments.
//!
//! Finality needs more than two thirds of the authorities: four can lose one, three cannot.

use crate::layout::NodePlan;
use anyhow::{Context as _, bail, ensure};
use chain_client::keys::Key;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// First word of a node's name.
pub const KIND: &str = "node";
/// Authorities of the chain named `local`, by the flag that gives a node their keys.
pub const AUTHORITIES: [&str; 4] = ["alice", "bob", "charlie", "dave"];
/// The name of the program.
pub const PROGRAM: &str = "mettle-node";

/// Returns the node's program: the requested one, or one next to this program, built in this checkout, or in PATH.
///
/// # Errors
/// If no program is found, or it is not a node.
pub fn find(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    let found = match asked {
        Some(asked) => asked.canonicalize().ok(),
        None => candidates().into_iter().find(|path| path.is_file()),
    };
    let Some(path) = found else {
        let missing = asked.map_or_else(
            || format!("{PROGRAM} beside this program, in chain/node/target/release, or in PATH"),
            |asked| format!("node at {}", asked.display()),
        );
        bail!("there is no {missing}; {HOW_TO_BUILD}");
    };
    check(&path)?;
    path.canonicalize().with_context(|| format!("{} has no path", path.display()))
}

const HOW_TO_BUILD: &str = "build it, in about 20 CPU-minutes: \
     `cargo build --release --manifest-path chain/node/Cargo.toml`, \
     then `--node-binary chain/node/target/release/mettle-node`; see docs/node.md";

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

/// Fails if the program is not a node; otherwise only four logs would show that.
fn check(program: &Path) -> anyhow::Result<()> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{} cannot be run", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.starts_with(PROGRAM),
        "{} is no {PROGRAM}: its --version prints {:?}",
        program.display(),
        said.trim()
    );
    Ok(())
}

/// Returns the arguments of `node`. Each node knows the addresses of two others, so any of them may be restarted.
///
/// # Errors
/// If a node key is invalid.
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

/// Returns the peer id of a node key (in hex): its public key as a multihash, in base 58.
///
/// # Errors
/// If the key is not 32 bytes in hex.
pub fn peer_id(node_key: &str) -> anyhow::Result<String> {
    let public = Key::from_hex_seed(node_key).context("a node key is damaged")?.hotkey();
    // An identity multihash of 36 bytes: a protobuf with key type 1, Ed25519, and 32 bytes of key.
    let mut bytes = vec![0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    bytes.extend_from_slice(&public.0);
    Ok(base58(&bytes))
}

/// Encodes bytes in base 58 like Bitcoin and libp2p.
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
    fn a_peer_id_is_that_of_libp2p() {
        // From `mettle-node key inspect-node-key`.
        assert_eq!(peer_id(&key(1)).unwrap(), "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp");
        assert_eq!(peer_id(&key(2)).unwrap(), "12D3KooWHdiAxVd8uMQR1hGWXccidmfCwLqcMpGwR6QcTP6QRMuD");
        assert!(peer_id("none").is_err());
    }

    #[test]
    fn every_node_knows_two_peers_and_its_own_ports() {
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
            assert!(told.iter().all(|word| !word.contains(&own)), "a node is not its own peer: {told:?}");
        }
    }

    #[test]
    fn a_missing_program_is_named_with_the_command_that_builds_it() {
        let error = format!("{:#}", find(Some(Path::new("/no/such/node"))).unwrap_err());
        assert!(error.contains("/no/such/node") && error.contains("chain/node/Cargo.toml"), "{error}");
    }

    #[test]
    fn another_program_is_refused() {
        let error = format!("{:#}", find(Some(Path::new("/bin/true"))).unwrap_err());
        assert!(error.contains("is no mettle-node"), "{error}");
    }
}
