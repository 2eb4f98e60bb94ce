//! Four authorities on this machine: finality and a client, when one node dies, when links between two halves are
//! cut, and when the runtime is upgraded.
//!
//!     cargo test -p mettle-node --test network -- --ignored --nocapture
//!
//! Nodes connect through relays in the test, one per pair and direction, so that a live link can be cut and restored.
//! The client is a separate process (`chain/client/examples/follow.rs`), built by the test unless METTLE_CLIENT names
//! it. METTLE_NEXT_WASM names the next Wasm runtime, which is built otherwise.

use codec::{Decode, Encode};
use frame_metadata_hash_extension::CheckMetadataHash;
use mettle_runtime::{
    Hash, Runtime, RuntimeCall, TxExtension, UncheckedExtrinsic, VERSION, priority::ProtocolPriority,
};
use serde_json::{Value, json};
use sp_keyring::Sr25519Keyring::{self, Alice, Bob};
use sp_runtime::{
    MultiAddress,
    generic::{Era, SignedPayload},
    traits::TransactionExtension,
};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

const NODE: &str = env!("CARGO_BIN_EXE_mettle-node");
const NAMES: [&str; 4] = ["alice", "bob", "charlie", "dave"];
/// Time limit that suffices on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

struct Node {
    name: &'static str,
    directory: PathBuf,
    /// Peer id of the node.
    identity: String,
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
        let identity = String::from_utf8(inspected.stdout).unwrap().trim().to_owned();
        Node { name, directory, identity, port, rpc, metrics, process: None }
    }

    /// Starts the node on the local network. `others` are the addresses of the other nodes, with their peer ids.
    fn start(&mut self, chain: &Path, others: &[String]) {
        let log = fs::File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let mut command = Command::new(NODE);
        command
            .arg("--chain")
            .arg(chain)
            .args(["--allow-private-ip", "--validator", "--reserved-only", "--no-mdns", "--no-telemetry"])
            .args(["--rpc-methods=unsafe", &format!("--{}", self.name)])
            .args([format!("--rpc-port={}", self.rpc), format!("--prometheus-port={}", self.metrics)])
            .arg(format!("--listen-addr=/ip4/127.0.0.1/tcp/{}", self.port))
            .arg("--node-key-file")
            .arg(self.directory.join("node-key"))
            .arg("--base-path")
            .arg(&self.directory);
        for other in others {
            command.args(["--reserved-nodes", other]);
        }
        let error = log.try_clone().unwrap();
        let process = command.stdin(Stdio::null()).stdout(log).stderr(error).spawn().unwrap();
        self.process = Some(process);
    }

    /// Kills the node without warning.
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

    /// Returns Alice's nonce, with the pool's transactions.
    fn nonce(&self) -> Option<u64> {
        self.nonce_of(&Alice)
    }

    fn nonce_of(&self, account: &Sr25519Keyring) -> Option<u64> {
        self.ask("system_accountNextIndex", json!([account.to_account_id()])).ok()?.as_u64()
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

/// Treatment of traffic by a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Open,
    /// Keeps connections, refuses new ones.
    Full,
    /// Forwards nothing, without closing connections: like a cut cable.
    Silent,
    /// Breaks connections, refuses new ones.
    Closed,
    /// Ends the relay.
    Over,
}

/// Accepts connections on its own port, and forwards traffic in both directions.
#[derive(Clone)]
struct Relay {
    port: u16,
    state: Arc<AtomicU8>,
}

impl Relay {
    fn to(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            state: Arc::new(AtomicU8::new(LinkState::Open as u8)),
        };
        listener.set_nonblocking(true).unwrap();
        let taker = relay.clone();
        std::thread::spawn(move || {
            while taker.state() != LinkState::Over {
                match listener.accept() {
                    Ok((near, _)) if !matches!(taker.state(), LinkState::Full | LinkState::Closed) => {
                        taker.pass_on(near, target)
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
        relay
    }

    fn state(&self) -> LinkState {
        let states =
            [LinkState::Open, LinkState::Full, LinkState::Silent, LinkState::Closed, LinkState::Over];
        states[usize::from(self.state.load(Ordering::SeqCst))]
    }

    fn set(&self, state: LinkState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    fn pass_on(&self, near: TcpStream, target: u16) {
        let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { return };
        for (from, to) in [(&near, &far), (&far, &near)] {
            from.set_nonblocking(false).unwrap();
            from.set_nodelay(true).unwrap();
            let (from, to, relay) = (from.try_clone().unwrap(), to.try_clone().unwrap(), self.clone());
            std::thread::spawn(move || relay.pump(from, to));
        }
    }

    /// Copies until either side ends or the relay closes; then both sides have ended.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        from.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut bytes = vec![0; 1 << 16];
        loop {
            match self.state() {
                LinkState::Open | LinkState::Full => {}
                LinkState::Silent => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                LinkState::Closed | LinkState::Over => break,
            }
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    // Bytes read before the cut wait until the link is restored.
                    while self.state() == LinkState::Silent {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let broken = matches!(self.state(), LinkState::Closed | LinkState::Over);
                    if broken || to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// Four nodes, with a relay from each to each.
struct Network {
    nodes: Vec<Node>,
    /// Relays by source and target.
    relays: Vec<Vec<Relay>>,
    /// Path of the chain specification.
    chain: PathBuf,
}

impl Network {
    fn start(directory: &Path) -> Network {
        let nodes: Vec<_> = (0..4).map(|index| Node::new(NAMES[index], index, directory)).collect();
        let relays = nodes.iter().map(|_| nodes.iter().map(|to| Relay::to(to.port)).collect()).collect();
        // On a chain of type `Local`, nodes exchange their real addresses and bypass the relays.
        let exported = Command::new(NODE).args(["export-chain-spec", "--chain", "local"]).output().unwrap();
        let mut spec: Value = serde_json::from_slice(&exported.stdout).expect("a specification is JSON");
        spec["chainType"] = json!("Live");
        let chain = directory.join("chain.json");
        fs::write(&chain, spec.to_string()).unwrap();
        let mut network = Network { nodes, relays, chain };
        (0..4).for_each(|index| network.start_node(index));
        network
    }

    fn start_node(&mut self, index: usize) {
        let others = self.nodes.iter().zip(&self.relays[index]).enumerate();
        let others: Vec<_> = others
            .filter(|(other, _)| *other != index)
            .map(|(_, (node, relay))| format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", relay.port, node.identity))
            .collect();
        self.nodes[index].start(&self.chain, &others);
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().collect()
    }

    /// Sets the links between the first two and the last two nodes.
    ///
    /// Nodes exchange the addresses by which they reach others, and could connect across through the relays of their
    /// own half, so these take no new connections meanwhile.
    fn set_across(&self, state: LinkState) {
        for (from, relays) in self.relays.iter().enumerate() {
            for (to, relay) in relays.iter().enumerate() {
                let across = (from < 2) != (to < 2);
                relay.set(if across || state == LinkState::Open { state } else { LinkState::Full });
            }
        }
    }

    fn finals(&self) -> Vec<Block> {
        self.nodes.iter().map(|node| node.last_final().expect("the node answers")).collect()
    }

    /// Waits until each node's best block has advanced by `blocks`.
    fn until_further(&self, blocks: u32, what: &str) {
        let bests: Vec<_> = self.nodes.iter().map(|node| node.best().expect("the node answers")).collect();
        wait(what, || {
            let further =
                |(node, before): (&Node, &Block)| Some(node.best()?.number >= before.number + blocks);
            self.nodes.iter().zip(&bests).all(|pair| further(pair) == Some(true)).then_some(())
        });
    }

    fn processes(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id())).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.relays.iter().flatten().for_each(|relay| relay.set(LinkState::Over));
    }
}

/// Our client: follows the chain and makes a call every few blocks.
struct Client {
    process: Child,
    said: Arc<Mutex<Vec<Value>>>,
}

impl Client {
    fn start(node: &Node) -> Client {
        let mut command = match std::env::var_os("METTLE_CLIENT") {
            Some(program) => Command::new(program),
            None => {
                let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
                let example = ["--quiet", "--package=mettle-chain-client", "--example=follow"];
                let cargo = |verb| {
                    let mut cargo = Command::new(env!("CARGO"));
                    cargo.current_dir(&root).arg(verb).args(example);
                    cargo
                };
                assert!(cargo("build").status().unwrap().success());
                let mut run = cargo("run");
                run.arg("--");
                run
            }
        };
        command.args([format!("ws://127.0.0.1:{}", node.rpc), "//Bob".into()]);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push(serde_json::from_str(&line).expect("the client says JSON"));
            }
        });
        Client { process, said }
    }

    fn said(&self, what: &str) -> Vec<Value> {
        let said = self.said.lock().unwrap();
        said.iter().filter_map(|line| line.get(what).cloned()).collect()
    }

    /// Waits until a call of the client is final in a later block than this one, and the client has seen that block.
    fn until_served_after(&mut self, block: u32, what: &str) {
        let later = |value: &Value| value.as_u64().is_some_and(|number| number > block.into());
        wait(what, || {
            let ended = self.process.try_wait().expect("it is our process");
            assert!(ended.is_none(), "the client ended: {ended:?}, {:?}", self.said("failed"));
            (self.said("included").last().is_some_and(later) && self.said("final").last().is_some_and(later))
                .then_some(())
        });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns ports below the kernel's ephemeral range, so that other programs are not assigned one before it is used.
/// Each process starts at a different port.
fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 20_000 + u16::try_from(std::process::id() % 97).unwrap() * 100;
    [(); N].map(|()| {
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let mut ports = std::iter::repeat_with(|| begin + NEXT.fetch_add(1, Ordering::Relaxed)).take(100);
        ports.find(free).expect("one port of a hundred is free")
    })
}

/// Makes a JSON-RPC call over HTTP.
fn call(port: u16, method: &str, params: Value) -> Result<Value, String> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let answer = http(port, "POST /", &body)?;
    let mut answer: Value = serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer}"))?;
    match answer.get_mut("error") {
        Some(error) => Err(error.to_string()),
        None => Ok(answer["result"].take()),
    }
}

/// Sends a request and returns the body of the response.
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

/// Polls four times per second until there is an answer, and prints the elapsed time.
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

/// Waits until all nodes have finalised this block, and checks that they agree.
fn all_final(nodes: &[&Node], number: u32, what: &str) {
    wait(what, || {
        nodes.iter().all(|node| node.last_final().is_some_and(|last| last.number >= number)).then_some(())
    });
    let hashes: Vec<_> = nodes.iter().map(|node| node.hash(number)).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1] && pair[0].is_some()), "{what}: {hashes:?}");
}

/// Returns the latest block that any node has finalised.
fn latest(nodes: &[&Node]) -> Block {
    let blocks = nodes.iter().map(|node| node.last_final().expect("the node answers"));
    blocks.max_by_key(|block| block.number).expect("there are nodes")
}

/// Signs a transaction of Alice as any client does.
fn signed(node: &Node, spec_version: u32, call: impl Into<RuntimeCall>) -> String {
    let genesis = Hash::decode(&mut from_hex(&node.hash(0).unwrap()).as_slice()).unwrap();
    let account = Alice.to_account_id();
    // The next runtime has another digest of its metadata than this build.
    let metadata = CheckMetadataHash::<Runtime>::new(spec_version == VERSION.spec_version);
    let digest =
        TransactionExtension::<RuntimeCall>::implicit(&metadata).expect("the build knows the digest");
    let extension: TxExtension = (
        frame_system::AuthorizeCall::new(),
        frame_system::CheckNonZeroSender::new(),
        frame_system::CheckSpecVersion::new(),
        frame_system::CheckTxVersion::new(),
        frame_system::CheckGenesis::new(),
        frame_system::CheckEra::from(Era::Immortal),
        ProtocolPriority::new(node.nonce().expect("the node answers") as u32, 0),
        metadata,
        frame_system::WeightReclaim::new(),
    );
    let implied =
        ((), (), spec_version, VERSION.transaction_version, genesis, genesis, ((), (), ()), digest, ());
    let payload = SignedPayload::from_raw(call.into(), extension, implied);
    let signature = payload.using_encoded(|message| Alice.sign(message));
    let (call, extension, _) = payload.deconstruct();
    let transaction =
        UncheckedExtrinsic::new_signed(call, MultiAddress::Id(account), signature.into(), extension);
    to_hex(&transaction.encode())
}

/// Returns the next Wasm runtime, with its migration.
fn next_runtime(directory: &Path) -> Vec<u8> {
    if let Some(path) = std::env::var_os("METTLE_NEXT_WASM") {
        return fs::read(path).unwrap();
    }
    let path = directory.join("next.wasm");
    let built = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--package=mettle-runtime-wasm", "--features=upgrade-test", "--"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(built.success());
    fs::read(path).unwrap()
}

#[test]
#[ignore = "runs four nodes for some minutes"]
fn finality_and_a_client_survive_a_dead_node_and_cut_links() {
    let directory = tempfile::tempdir().unwrap();
    let mut network = Network::start(directory.path());
    all_final(&network.nodes(), 3, "four nodes, the first blocks are final");
    let mut client = Client::start(&network.nodes[0]);
    client.until_served_after(0, "a client's call is final");
    {
        let nodes = &network.nodes;
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
    network.nodes[3].kill();
    let before = latest(&network.nodes()[..3]);
    all_final(&network.nodes()[..3], before.number + 4, "one is dead, four more blocks are final");
    client.until_served_after(before.number, "and so is a call of the client's");
    network.start_node(3);
    let now = latest(&network.nodes()[..1]);
    all_final(&network.nodes(), now.number + 1, "the dead one is back and has caught up");
    assert_eq!(network.nodes[3].hash(before.number), Some(before.hash));

    // Two against two: blocks on both sides, none final. At first the nodes do not notice the cut.
    let processes = network.processes();
    network.set_across(LinkState::Silent);
    // Votes already forwarded may still finalise a block.
    std::thread::sleep(Duration::from_secs(6));
    let finals = network.finals();
    network.until_further(3, "the links are cut, both sides have made three more blocks");
    assert_eq!(network.finals(), finals, "two of four are not enough");
    let nodes = network.nodes();
    let height = nodes.iter().filter_map(|node| Some(node.best()?.number)).min().expect("there are nodes");
    assert_ne!(nodes[0].hash(height), nodes[2].hash(height), "both sides made the same block");

    // Then the connections break.
    network.set_across(LinkState::Closed);
    wait("the connections are gone, and nobody finds another way", || {
        let alone =
            |node: &Node| node.ask("system_health", json!([])).is_ok_and(|health| health["peers"] == 1);
        network.nodes.iter().all(alone).then_some(())
    });
    network.until_further(2, "both sides have made two more blocks");
    assert_eq!(network.finals(), finals, "two of four are still not enough");
    let seen = client.said("final").last().and_then(Value::as_u64).expect("it saw final blocks");
    assert!(
        finals.iter().any(|last| u64::from(last.number) == seen),
        "the client saw {seen}, not of {finals:?}"
    );

    let height =
        network.nodes().iter().filter_map(|node| Some(node.best()?.number)).max().expect("there are nodes");
    network.set_across(LinkState::Open);
    all_final(&network.nodes(), height + 1, "the links are mended, and all agree on what is final");
    for before in &finals {
        for node in &network.nodes {
            assert_eq!(node.hash(before.number).as_ref(), Some(&before.hash), "final is final");
        }
    }
    assert_eq!(network.processes(), processes, "no node was started again");
    client.until_served_after(height + 1, "the client goes on");
    eprintln!("          calls that the client gave up: {:?}", client.said("failed"));
}

#[test]
#[ignore = "runs four nodes for some minutes, and builds a second runtime"]
fn a_live_network_upgrades_its_runtime_and_migrates_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let code = next_runtime(directory.path());
    let network = Network::start(directory.path());
    let nodes = network.nodes();
    all_final(&nodes, 2, "four nodes, the first blocks are final");
    let mut client = Client::start(nodes[1]);
    client.until_served_after(0, "a client's call is final");

    let (before, after) = (VERSION.spec_version, VERSION.spec_version + 1);
    let everywhere = |holds: &dyn Fn(&Node) -> Option<bool>| {
        nodes.iter().all(|node| holds(node) == Some(true)).then_some(())
    };
    let version = |node: &Node, version: u16| {
        Some(node.storage("Authorities", ":__STORAGE_VERSION__:")? == version.encode())
    };
    assert_eq!(everywhere(&|node| Some(node.spec_version()? == u64::from(before))), Some(()));
    assert_eq!(everywhere(&|node| version(node, 1)), Some(()));
    let kept = |node: &Node| {
        [("Authorities", "Authorities"), ("Session", "QueuedKeys"), ("Aura", "Authorities")]
            .map(|(pallet, item)| node.storage(pallet, item))
    };
    let mut old = kept(nodes[0]);
    assert_eq!(old[0].as_ref().map(|accounts| accounts.len()), Some(1 + 4 * 32), "four authorities");
    assert!(
        old[1].as_ref().is_some_and(|keys| keys.len() == 1 + 4 * (32 + 64)),
        "with their keys on the chain"
    );

    let set_code = frame_system::Call::<mettle_runtime::Runtime>::set_code { code };
    let upgrade = pallet_sudo::Call::sudo_unchecked_weight {
        call: Box::new(set_code.into()),
        weight: Default::default(),
    };
    nodes[0].answer("author_submitExtrinsic", json!([signed(nodes[0], before, upgrade)]));
    wait("all four run the new runtime", || {
        everywhere(&|node| Some(node.spec_version()? == u64::from(after)))
    });
    wait("its migration has been applied with each", || everywhere(&|node| version(node, 2)));
    // The client was not restarted: it reads the new metadata and signs its pending call again.
    let upgraded = nodes.iter().filter_map(|node| Some(node.best()?.number)).max().expect("there are nodes");
    client.until_served_after(upgraded, "a call of the client's for it is final");
    // The test migration reverses the list of authorities.
    let accounts = old[0].as_mut().expect("there are four");
    let mut turned = Vec::<[u8; 32]>::decode(&mut accounts.as_slice()).expect("a list of accounts");
    turned.reverse();
    *accounts = turned.encode();
    for node in &nodes {
        assert_eq!(kept(node), old, "{}: its keys, and who makes blocks, are as they were", node.name);
    }

    let remark =
        frame_system::Call::<mettle_runtime::Runtime>::remark_with_event { remark: b"here".to_vec() };
    let stale = signed(nodes[2], before, remark.clone());
    let refusal = nodes[2].ask("author_submitExtrinsic", json!([stale])).unwrap_err();
    assert!(refusal.contains("bad signature"), "{refusal}");
    let next = nodes[2].nonce().unwrap() + 1;
    nodes[2].answer("author_submitExtrinsic", json!([signed(nodes[2], after, remark)]));
    wait("and takes transactions that are signed for it", || everywhere(&|node| Some(node.nonce()? >= next)));
    let now = latest(&nodes);
    all_final(&nodes, now.number + 3, "and blocks become final as before");

    assert_eq!(client.said("failed"), Vec::<Value>::new(), "no call was given up");
    // The client makes one call after the other.
    let used = nodes[1].nonce_of(&Bob).expect("the node answers");
    let included = client.said("included").len() as u64;
    eprintln!("          the client's calls: {included}");
    assert!(used <= included + 1, "it used {used} nonces for {included} calls");
}
