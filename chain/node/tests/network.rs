//! Four authorities on this machine: what becomes of finality when one dies, when two cannot hear the other two, and when
//! the chain is given another runtime.
//!
//!     cargo test -p mettle-node --test network -- --ignored --nocapture

use codec::{Decode, Encode};
use mettle_runtime::{Hash, RuntimeCall, TxExtension, UncheckedExtrinsic, VERSION};
use serde_json::{Value, json};
use sp_keyring::Sr25519Keyring::Alice;
use sp_runtime::{
    MultiAddress,
    generic::{Era, SignedPayload},
};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const NODE: &str = env!("CARGO_BIN_EXE_mettle-node");
const NAMES: [&str; 4] = ["alice", "bob", "charlie", "dave"];
/// A busy machine must not fail a test that is right.
const PATIENCE: Duration = Duration::from_secs(300);

struct Node {
    name: &'static str,
    directory: PathBuf,
    /// Where others reach it, with its identity.
    address: String,
    port: u16,
    rpc: u16,
    metrics: u16,
    process: Option<Child>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    number: u32,
    hash: String,
}

impl Node {
    fn new(name: &'static str, index: usize, directory: &Path) -> Node {
        let [port, rpc, metrics] = free_ports();
        let directory = directory.join(name);
        fs::create_dir_all(&directory).unwrap();
        let key = directory.join("node-key");
        fs::write(&key, format!("{:064x}", index + 1)).unwrap();
        let inspected =
            Command::new(NODE).args(["key", "inspect-node-key", "--file"]).arg(&key).output().unwrap();
        let peer = String::from_utf8(inspected.stdout).unwrap();
        let address = format!("/ip4/127.0.0.1/tcp/{port}/p2p/{}", peer.trim());
        Node { name, directory, address, port, rpc, metrics, process: None }
    }

    fn start(&mut self, chain: &str, others: &[String]) {
        let log = fs::File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let mut command = Command::new(NODE);
        command
            .args(["--chain", chain, "--validator", "--reserved-only", "--no-mdns", "--no-telemetry"])
            .args(["--rpc-methods=unsafe", &format!("--{}", self.name)])
            .args([format!("--rpc-port={}", self.rpc), format!("--prometheus-port={}", self.metrics)])
            .arg(format!("--listen-addr=/ip4/127.0.0.1/tcp/{}", self.port))
            .arg("--node-key-file")
            .arg(self.directory.join("node-key"))
            .arg("--base-path")
            .arg(&self.directory);
        for other in others.iter().filter(|other| **other != self.address) {
            command.args(["--reserved-nodes", other]);
        }
        let error = log.try_clone().unwrap();
        let process = command.stdin(Stdio::null()).stdout(log).stderr(error).spawn().unwrap();
        self.process = Some(process);
    }

    /// As a power cut would.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        call(self.rpc, method, params)
    }

    fn answer(&self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{}: {method}: {error}", self.name))
    }

    fn head(&self, hash: Value) -> Option<Block> {
        let header = self.ask("chain_getHeader", json!([hash])).ok()?;
        let number = header["number"].as_str()?.trim_start_matches("0x");
        let number = u32::from_str_radix(number, 16).ok()?;
        let hash = match hash {
            Value::String(hash) => hash,
            _ => self.hash(number)?,
        };
        Some(Block { number, hash })
    }

    fn best(&self) -> Option<Block> {
        self.head(Value::Null)
    }

    fn last_final(&self) -> Option<Block> {
        self.head(self.ask("chain_getFinalizedHead", json!([])).ok()?)
    }

    fn hash(&self, number: u32) -> Option<String> {
        Some(self.ask("chain_getBlockHash", json!([number])).ok()?.as_str()?.to_owned())
    }

    fn spec_version(&self) -> Option<u64> {
        self.ask("state_getRuntimeVersion", json!([])).ok()?["specVersion"].as_u64()
    }

    fn nonce(&self) -> Option<u64> {
        self.ask("system_accountNextIndex", json!([Alice.to_account_id()])).ok()?.as_u64()
    }

    fn storage(&self, pallet: &str, item: &str) -> Option<Vec<u8>> {
        let key =
            [sp_io::hashing::twox_128(pallet.as_bytes()), sp_io::hashing::twox_128(item.as_bytes())].concat();
        Some(from_hex(self.ask("state_getStorage", json!([to_hex(&key)])).ok()?.as_str()?))
    }

    fn megabytes(&self) -> u64 {
        let id = self.process.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0u64) / 1024
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("== {}\n{}", self.name, lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// One JSON-RPC call over HTTP.
fn call(port: u16, method: &str, params: Value) -> Result<Value, String> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let answer = http(port, "POST /", &body)?;
    let mut answer: Value = serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer}"))?;
    match answer.get_mut("error") {
        Some(error) => Err(error.to_string()),
        None => Ok(answer["result"].take()),
    }
}

/// Sends a request and returns the answer's body.
fn http(port: u16, request: &str, body: &str) -> Result<String, String> {
    let length = body.len();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(answer),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.trim_start_matches("0x").as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Asks four times a second until there is an answer, and says how long it took.
fn wait<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            eprintln!("{:6.1} s  {what}", started.elapsed().as_secs_f32());
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// Waits until all of these nodes have this much final, and agree about it.
fn all_final(nodes: &[&Node], number: u32, what: &str) {
    wait(what, || {
        nodes.iter().all(|node| node.last_final().is_some_and(|last| last.number >= number)).then_some(())
    });
    let hashes: Vec<_> = nodes.iter().map(|node| node.hash(number)).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1] && pair[0].is_some()), "{what}: {hashes:?}");
}

/// The last block that is final with each of them.
fn latest(nodes: &[&Node]) -> Block {
    let blocks = nodes.iter().map(|node| node.last_final().expect("the node answers"));
    blocks.max_by_key(|block| block.number).expect("there are nodes")
}

/// A transaction of Alice's as any client signs it.
fn signed(node: &Node, spec_version: u32, call: impl Into<RuntimeCall>) -> String {
    let genesis = Hash::decode(&mut from_hex(&node.hash(0).unwrap()).as_slice()).unwrap();
    let account = Alice.to_account_id();
    let extension: TxExtension = (
        frame_system::AuthorizeCall::new(),
        frame_system::CheckNonZeroSender::new(),
        frame_system::CheckSpecVersion::new(),
        frame_system::CheckTxVersion::new(),
        frame_system::CheckGenesis::new(),
        frame_system::CheckEra::from(Era::Immortal),
        frame_system::CheckNonce::from(node.nonce().expect("the node answers") as u32).into(),
        frame_system::CheckWeight::new(),
        pallet_transaction_payment::ChargeTransactionPayment::from(0).into(),
        frame_system::WeightReclaim::new(),
    );
    let implied = ((), (), spec_version, VERSION.transaction_version, genesis, genesis, (), (), (), ());
    let payload = SignedPayload::from_raw(call.into(), extension, implied);
    let signature = payload.using_encoded(|message| Alice.sign(message));
    let (call, extension, _) = payload.deconstruct();
    let transaction =
        UncheckedExtrinsic::new_signed(call, MultiAddress::Id(account), signature.into(), extension);
    to_hex(&transaction.encode())
}

/// The runtime of the release after this one, with its migration.
fn next_blob(directory: &Path) -> Vec<u8> {
    if let Some(path) = std::env::var_os("METTLE_NEXT_WASM") {
        return fs::read(path).unwrap();
    }
    let path = directory.join("next.wasm");
    let built = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--package=mettle-runtime-wasm", "--features=rehearsal", "--"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(built.success());
    fs::read(path).unwrap()
}

#[test]
#[ignore = "runs four nodes for some minutes"]
fn four_authorities_outlive_a_death_and_a_partition() {
    let directory = tempfile::tempdir().unwrap();
    let mut nodes: Vec<_> = (0..4).map(|index| Node::new(NAMES[index], index, directory.path())).collect();
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    for node in &mut nodes {
        node.start("local", &addresses);
    }

    {
        let nodes: Vec<_> = nodes.iter().collect();
        all_final(&nodes, 3, "four nodes, the first blocks are final");
        let metrics = http(nodes[0].metrics, "GET /metrics", "").unwrap();
        assert!(metrics.contains("substrate_block_height{status=\"finalized\""), "{metrics}");
        let lags: Vec<_> = (0..12)
            .filter_map(|_| {
                std::thread::sleep(Duration::from_millis(700));
                Some(nodes[0].best()?.number - nodes[0].last_final()?.number)
            })
            .collect();
        eprintln!("          finality is behind by {lags:?} blocks");
        eprintln!(
            "          resident: {:?} MB",
            nodes.iter().map(|node| node.megabytes()).collect::<Vec<_>>()
        );
    }

    // One dies: three of four are more than two thirds.
    nodes[3].kill();
    let before = latest(&[&nodes[0], &nodes[1], &nodes[2]]);
    all_final(
        &[&nodes[0], &nodes[1], &nodes[2]],
        before.number + 4,
        "one is dead, four more blocks are final",
    );
    nodes[3].start("local", &addresses);
    let now = latest(&[&nodes[0]]);
    all_final(&nodes.iter().collect::<Vec<_>>(), now.number + 1, "the dead one is back and has caught up");
    assert_eq!(nodes[3].hash(before.number), Some(before.hash));

    // Two against two: blocks on both sides, nothing final on either.
    for (index, node) in nodes.iter_mut().enumerate() {
        node.kill();
        node.start("local", if index < 2 { &addresses[..2] } else { &addresses[2..] });
    }
    wait("two against two, nobody hears the other side", || {
        let alone =
            |node: &Node| node.ask("system_health", json!([])).is_ok_and(|health| health["peers"] == 1);
        nodes.iter().all(alone).then_some(())
    });
    // What was on its way may still become final.
    std::thread::sleep(Duration::from_secs(6));
    let finals: Vec<_> = nodes.iter().map(|node| node.last_final().unwrap()).collect();
    let bests: Vec<_> = nodes.iter().map(|node| node.best().unwrap()).collect();
    wait("both sides have made three more blocks", || {
        let went_on = |(node, before): (&Node, &Block)| Some(node.best()?.number >= before.number + 3);
        nodes.iter().zip(&bests).all(|pair| went_on(pair) == Some(true)).then_some(())
    });
    let still: Vec<_> = nodes.iter().map(|node| node.last_final().unwrap()).collect();
    assert_eq!(still, finals, "two of four are not enough");
    let forks = [nodes[0].best().unwrap(), nodes[2].best().unwrap()];
    let height = forks[0].number.min(forks[1].number);
    assert_ne!(nodes[0].hash(height), nodes[2].hash(height), "both sides made the same block");

    for node in &mut nodes {
        node.kill();
        node.start("local", &addresses);
    }
    all_final(
        &nodes.iter().collect::<Vec<_>>(),
        height + 1,
        "they hear each other again, and agree on what is final",
    );
    for (node, before) in nodes.iter().zip(&finals) {
        for node in nodes.iter() {
            assert_eq!(node.hash(before.number).as_ref(), Some(&before.hash), "final is final");
        }
        assert!(node.last_final().unwrap().number > before.number);
    }
}

#[test]
#[ignore = "runs a node for some minutes, and builds a second runtime"]
fn a_live_chain_takes_another_runtime_and_migrates_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let blob = next_blob(directory.path());
    let mut node = Node::new("alice", 0, directory.path());
    node.start("dev", &[]);
    all_final(&[&node], 2, "the first blocks are final");

    let (before, after) = (VERSION.spec_version, VERSION.spec_version + 1);
    assert_eq!(node.spec_version(), Some(before.into()));
    assert_eq!(node.storage("Authorities", ":__STORAGE_VERSION__:"), Some(1u16.encode()));
    let set_code = frame_system::Call::<mettle_runtime::Runtime>::set_code { code: blob };
    let upgrade = pallet_sudo::Call::sudo_unchecked_weight {
        call: Box::new(set_code.into()),
        weight: Default::default(),
    };
    node.answer("author_submitExtrinsic", json!([signed(&node, before, upgrade)]));
    wait("the node runs the new runtime", || (node.spec_version()? == u64::from(after)).then_some(()));
    wait("its migration has been applied", || {
        (node.storage("Authorities", ":__STORAGE_VERSION__:")? == 2u16.encode()).then_some(())
    });
    assert_eq!(node.storage("Authorities", "Authorities"), Some(vec![Alice.to_account_id()].encode()));

    let remark =
        frame_system::Call::<mettle_runtime::Runtime>::remark_with_event { remark: b"here".to_vec() };
    let refusal =
        node.ask("author_submitExtrinsic", json!([signed(&node, before, remark.clone())])).unwrap_err();
    assert!(refusal.contains("bad signature"), "{refusal}");
    let next = node.nonce().unwrap() + 1;
    node.answer("author_submitExtrinsic", json!([signed(&node, after, remark)]));
    wait("and takes transactions that are signed for it", || {
        let pending = node.ask("author_pendingExtrinsics", json!([])).ok()?;
        (pending == json!([]) && node.nonce()? >= next).then_some(())
    });
    let now = latest(&[&node]);
    all_final(&[&node], now.number + 2, "and blocks become final as before");
}
