//! The network in containers, started by `docker compose up`: it trains, survives a killed container and a
//! disconnected one, every seat ends with the same model, and `down -v` leaves nothing.
//!
//! Needs a container engine with a base image, and the node's program, so it is ignored by default:
//!
//! ```text
//! scripts/container-engine.sh
//! cargo build -p miner -p validator -p mettle
//! METTLE_NODE=chain/node/target/release/mettle-node cargo test -p localnet --test labs -- --ignored compose::
//! ```
//!
//! The last stage of `localnet/Dockerfile` builds the image from the programs of this machine.

use crate::support::{PROGRAM, harness};
use chain_client::{Chain, SubxtChain};
use libtest_mimic::Trial;
use localnet::{
    nodes,
    setup::{LOOPBACK, free_port},
};
use protocol::{Role, RunId, Uid, view::Outcome};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use watch::observe::Observer;

pub fn tests() -> Vec<Trial> {
    let whole = harness::on_their_own!(
        "compose",
        [the_network_in_containers_outlives_a_kill_and_a_cut_and_leaves_nothing,]
    );
    let files = harness::plain!("compose", [what_compose_reads_names_only_what_the_image_has]);
    harness::ignored(whole).into_iter().chain(files).collect()
}

const SEATS: [&str; 7] =
    ["validator-0", "validator-1", "validator-2", "miner-0", "miner-1", "miner-2", "miner-3"];
/// Maximum wait for an expected event, far above its duration even on a busy machine.
const AT_LAST: Duration = Duration::from_secs(1200);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the checkout is there")
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed. Returns its output.
#[track_caller]
fn ok(command: &mut Command) -> String {
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{complained}", output.status);
    said
}

fn docker(arguments: &[&str]) -> String {
    ok(Command::new("docker").args(arguments))
}

/// The network in containers. Dropping it removes them.
struct Stack {
    project: String,
    image: String,
    port: u16,
    home: PathBuf,
    /// Copies of the seats' journals, and the copied lengths.
    journals: PathBuf,
}

impl Stack {
    /// Builds the image and starts everything. Copies of journals are in `home`.
    fn up(home: &Path) -> Stack {
        let project = format!("mettle-test-{}", std::process::id());
        // The listener is held until the container binds the port.
        let port = free_port(LOOPBACK).expect("a free port");
        let number = port.local_addr().expect("an address").port();
        let journals = home.join("journals");
        fs::create_dir(&journals).expect("a new directory");
        let stack = Stack {
            image: format!("{project}:latest"),
            project,
            port: number,
            home: home.to_owned(),
            journals,
        };
        stack.build_image();
        let began = Instant::now();
        drop(port);
        stack.compose(&["up", "-d"]);
        println!("{:>6.1} s: compose up", began.elapsed().as_secs_f64());
        stack
    }

    /// Builds the last stage of our Dockerfile, with the programs and data of this machine instead of the stage that
    /// builds them.
    fn build_image(&self) {
        let began = Instant::now();
        let context = self.home.join("image");
        let bin = context.join("image").join("bin");
        fs::create_dir_all(&bin).expect("a new directory");
        let localnet = PathBuf::from(PROGRAM);
        let beside = localnet.parent().expect("a program is in a directory");
        let asked = std::env::var_os("METTLE_NODE").map(|path| root().join(path));
        let node = nodes::find(asked.as_deref()).expect("METTLE_NODE names the node's program");
        let programs =
            [localnet.clone(), beside.join("miner"), beside.join("validator"), beside.join("mettle"), node];
        for program in &programs {
            let to = bin.join(program.file_name().expect("a program has a name"));
            fs::copy(program, &to).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
            // Without `strip`, the image is larger and has the same programs.
            let _ = Command::new("strip").arg(&to).status();
        }
        let dataset = context.join("image").join("dataset");
        ok(Command::new(beside.join("mettle"))
            .args(["dataset", "prepare", "--sequence", "64", "--vocabulary", "2048"])
            .args(["--shard-bytes", "16777216", "--out"])
            .arg(&dataset));
        let dockerfile = fs::read_to_string(root().join("localnet/Dockerfile")).expect("it is there");
        let last = dockerfile.rfind("\nFROM ").expect("the last stage");
        let last = dockerfile[last..].replace("--from=builder /image/", "image/");
        fs::write(context.join("Dockerfile"), last).expect("a new file");
        ok(Command::new("docker")
            .env("DOCKER_BUILDKIT", "0")
            .args(["build", "--quiet", "--tag", &self.image])
            .arg(&context));
        let bytes: f64 = docker(&["image", "inspect", "--format", "{{.Size}}", &self.image])
            .trim()
            .parse()
            .expect("a number");
        println!(
            "{:>6.1} s: image built, {:.0} MB with its base",
            began.elapsed().as_secs_f64(),
            bytes / 1e6
        );
    }

    fn command(&self) -> Command {
        // Either generation of compose: the file works with both.
        let plugin = output(Command::new("docker").args(["compose", "version"])).status.success();
        let mut command = Command::new(if plugin { "docker" } else { "docker-compose" });
        if plugin {
            command.arg("compose");
        }
        command
            .env("METTLE_IMAGE", &self.image)
            .env("METTLE_CHAIN_PORT", self.port.to_string())
            .env("METTLE_TRAIN_BLOCKS", "8")
            .args(["-p", &self.project, "-f"])
            .arg(root().join("localnet/compose.yml"));
        command
    }

    #[track_caller]
    fn compose(&self, arguments: &[&str]) -> String {
        ok(self.command().args(arguments))
    }

    /// Returns the container of a service. Its name differs between the generations of compose.
    fn container(&self, service: &str) -> String {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        docker(&["ps", "--all", "--quiet", "--filter", &project, "--filter", &service]).trim().to_owned()
    }

    fn network(&self) -> String {
        let project = format!("label=com.docker.compose.project={}", self.project);
        docker(&["network", "ls", "--quiet", "--filter", &project]).trim().to_owned()
    }

    fn url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    fn journal(&self, seat: &str) -> PathBuf {
        self.journals.join(seat)
    }

    /// Updates the copies of the journals. A stopped container has nothing new.
    fn copy_journals(&self) {
        for seat in SEATS {
            let copied = fs::metadata(self.journal(seat)).map_or(0, |file| file.len());
            let from = format!("+{}", copied + 1);
            let file = format!("/net/{seat}/data/journal.jsonl");
            let more = output(Command::new("docker").args([
                "exec",
                &self.container(seat),
                "tail",
                "-c",
                &from,
                &file,
            ]));
            if more.status.success() {
                use std::io::Write as _;
                let journal = fs::OpenOptions::new().create(true).append(true).open(self.journal(seat));
                journal.and_then(|mut file| file.write_all(&more.stdout)).expect("a copy is written");
            }
        }
    }

    fn health(&self, service: &str) -> String {
        let format = "{{.State.Health.Status}}";
        docker(&["inspect", "--format", format, &self.container(service)]).trim().to_owned()
    }

    /// Lists the remaining containers, volumes and networks of the project.
    fn left(&self) -> String {
        let project = format!("label=com.docker.compose.project={}", self.project);
        [
            docker(&["ps", "--all", "--quiet", "--filter", &project]),
            docker(&["volume", "ls", "--quiet", "--filter", &project]),
            docker(&["network", "ls", "--quiet", "--filter", &project]),
        ]
        .concat()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = output(self.command().args(["logs", "--no-color", "--tail", "15"]));
            eprintln!("{}", String::from_utf8_lossy(&logs.stdout));
        }
        let _ = output(self.command().args(["down", "--volumes", "--timeout", "5"]));
        let _ = output(Command::new("docker").args(["rmi", "--force", &self.image]));
    }
}

/// The network as observed from outside.
struct Seen {
    stack: Stack,
    chain: SubxtChain,
    observer: Observer,
    began: Instant,
}

impl Seen {
    async fn new(stack: Stack) -> Seen {
        let began = Instant::now();
        let chain = loop {
            // The node opens its port before its RPC answers.
            match SubxtChain::connect(&stack.url(), None).await {
                Ok(chain) => break chain,
                Err(error) => assert!(began.elapsed() < AT_LAST, "{error}"),
            }
        };
        let observer = loop {
            let runs = chain.runs().await.expect("the chain answers");
            if !runs.is_empty() && chain.seats(RunId(0)).await.is_ok_and(|seats| seats.len() == SEATS.len()) {
                let seats = chain.seats(RunId(0)).await.expect("the chain answers");
                // Seats get uids in the order of their registration; their endpoints end with their names.
                let uid = |name: &str| {
                    let of = |endpoint: &str| endpoint.ends_with(&format!("/{name}"));
                    let seat = seats.iter().find(|seat| of(&seat.endpoint));
                    seat.map_or(Uid(u16::MAX), |seat| seat.id.uid)
                };
                let journals = SEATS.iter().map(|name| ((*name).to_owned(), uid(name), stack.journal(name)));
                break Observer::new(&chain, RunId(0), journals.collect()).await.expect("it answers");
            }
            assert!(began.elapsed() < AT_LAST, "the seats were never registered: {}", stack.compose(&["ps"]));
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        Seen { stack, chain, observer, began }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Observer) -> bool) {
        let began = Instant::now();
        loop {
            self.stack.copy_journals();
            let looked = self.observer.look(&self.chain).await;
            if looked.is_ok() && done(&self.observer) {
                println!("{:>6.1} s: {what}", self.began.elapsed().as_secs_f64());
                return;
            }
            assert!(
                began.elapsed() < AT_LAST,
                "it never came that {what}: {:?} {:?} {looked:?}",
                self.observer.outcomes,
                self.observer.missed
            );
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    fn merged(&self) -> usize {
        merged(&self.observer)
    }

    fn fixed(&self) -> u32 {
        self.observer.outcomes.keys().next_back().map_or(0, |window| window.0)
    }
}

fn merged(seen: &Observer) -> usize {
    seen.outcomes.values().filter(|outcome| matches!(outcome, Outcome::Merged(_))).count()
}

/// Returns whether every seat holds the model of a window after `fixed`.
fn all_hold_later(seen: &Observer, fixed: u32) -> bool {
    let later = |seat: &&str| {
        let held = seen.held.get(*seat).and_then(|held| held.keys().next_back());
        held.is_some_and(|window| fixed < window.0)
    };
    SEATS.iter().all(later)
}

async fn the_network_in_containers_outlives_a_kill_and_a_cut_and_leaves_nothing(home: &Path) {
    let mut seen = Seen::new(Stack::up(home)).await;
    println!("{:>6.1} s: seven seats are registered", seen.began.elapsed().as_secs_f64());
    seen.until("three windows are merged", |seen| 3 <= merged(seen)).await;
    let names = ["--format", "{{.Name}} {{.MemUsage}} {{.CPUPerc}}"];
    println!("{}", docker(&[&["stats", "--no-stream"][..], &names].concat()));

    // Kill one miner and one validator.
    for service in ["miner-1", "validator-2"] {
        docker(&["kill", &seen.stack.container(service)]);
    }
    let fixed = seen.fixed();
    seen.until("a window is merged without the killed seats", |seen| {
        let later = |(window, outcome): (&protocol::Window, &Outcome)| {
            fixed + 1 < window.0 && matches!(outcome, Outcome::Merged(_))
        };
        seen.outcomes.iter().any(later)
    })
    .await;
    for service in ["miner-1", "validator-2"] {
        docker(&["start", &seen.stack.container(service)]);
    }

    // Disconnect a node, and with it the seat that uses it.
    let (network, node) = (seen.stack.network(), seen.stack.container("node-3"));
    docker(&["network", "disconnect", &network, &node]);
    let block = seen.observer.block.0;
    seen.until("finality goes on with three of four", |seen| block + 10 < seen.block.0).await;
    docker(&["network", "connect", "--alias", "node-3", &network, &node]);

    let (before, fixed) = (seen.merged(), seen.fixed());
    seen.until("all is healed: windows are merged, and every seat holds the model of a later one", |seen| {
        before < merged(seen) && all_hold_later(seen, fixed)
    })
    .await;
    assert!(seen.observer.lineage_agreed(), "{:?}\n{:?}", seen.observer.lineages, seen.observer.held);
    assert_eq!(seen.observer.seats_of(Role::Validator).count(), 3);

    let deadline = Instant::now() + Duration::from_secs(120);
    for service in SEATS.iter().chain(&["node-0", "node-1", "node-2", "node-3", "store"]) {
        while seen.stack.health(service) != "healthy" {
            assert!(Instant::now() < deadline, "{service} is {}", seen.stack.health(service));
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    for (service, port, line) in
        [("validator-1", "9616", "mettle_votes_total"), ("node-2", "9615", "substrate_block_height")]
    {
        let address = seen.stack.compose(&["port", service, port]);
        let text = get(&format!("http://{}/metrics", address.trim())).await;
        assert!(text.contains(line), "{service}: {text}");
    }

    // The set-up can be repeated.
    seen.stack.compose(&["up", "-d"]);
    let fixed = seen.fixed();
    seen.until("a second `up` changes nothing", |seen| {
        seen.outcomes.keys().next_back().is_some_and(|window| fixed < window.0) && seen.seats.len() == 7
    })
    .await;

    let Seen { stack, .. } = seen;
    stack.compose(&["down", "--volumes", "--timeout", "5"]);
    assert_eq!(stack.left(), "", "`down -v` leaves nothing");
}

/// Returns the body of a GET request.
async fn get(url: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let rest = url.strip_prefix("http://").expect("plain HTTP");
    let (address, path) = rest.split_once('/').expect("a path");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

fn what_compose_reads_names_only_what_the_image_has() {
    let compose = fs::read_to_string(root().join("localnet/compose.yml")).expect("it is there");
    let dockerfile = fs::read_to_string(root().join("localnet/Dockerfile")).expect("it is there");
    for seat in SEATS {
        assert!(compose.contains(&format!("--config=/net/{seat}/settings.toml")), "{seat}");
        assert!(compose.contains(&format!("\"{seat}:/net/{seat}\"")), "{seat}");
    }
    for index in 0..4_u8 {
        let key = format!("{:064x}", index + 1);
        assert!(compose.contains(&format!("--node-key={key}")), "node-{index}");
        if index < 2 {
            let peer = nodes::peer_id(&key).expect("a key");
            assert!(compose.contains(&format!("/dns4/node-{index}/tcp/30333/p2p/{peer}")), "node-{index}");
        }
        assert!(compose.contains(&format!("--{}", nodes::AUTHORITIES[usize::from(index)])));
    }
    assert!(dockerfile.contains("USER mettle"), "nothing runs as root");
    assert!(Path::new(&root().join(".dockerignore")).exists());
}
