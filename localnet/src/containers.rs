//! A network whose processes a container engine starts: `role plan` writes its plan, `role set-up` creates the run and
//! the seats once chain and store run, and `role check` reports the health of a container.
//!
//! Both preparations may be repeated at any time: they skip completed steps.

use crate::{
    defaults,
    layout::{ChainPlan, PLAN_VERSION, Plan},
    seats::Seats,
    setup::{self, Work},
};
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Maximum time of a health request.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum length of a health response.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
pub struct MakePlan {
    /// The file of the plan; an existing one is kept.
    #[arg(long)]
    pub plan: PathBuf,
    /// The host name of the store.
    #[arg(long)]
    pub store_host: String,
    #[arg(long)]
    pub store_port: u16,
    /// URLs of the chain's nodes.
    #[arg(long = "chain", required = true)]
    pub chains: Vec<String>,
    #[arg(long)]
    pub miners: u16,
    #[arg(long)]
    pub validators: u16,
    #[arg(long, default_value_t = defaults::NODE_FINALITY_LAG)]
    pub finality_lag: u32,
}

#[derive(Debug, clap::Args)]
pub struct SetUp {
    #[arg(long)]
    pub plan: PathBuf,
    /// The directory with the home of each seat.
    #[arg(long)]
    pub dir: PathBuf,
    /// The prepared data to publish.
    #[arg(long)]
    pub dataset: PathBuf,
    #[arg(long, default_value_t = defaults::NODE_TRAIN_BLOCKS)]
    pub train_blocks: u32,
}

#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Checks that a node is synced and finalises blocks.
    Node { address: SocketAddr },
    /// Checks that the store answers.
    Store { address: SocketAddr },
    /// Checks that a miner or validator follows the chain.
    Role { address: SocketAddr },
}

/// Draws the secrets of the network and writes the plan.
///
/// # Errors
/// If the existing plan is damaged, or the new one cannot be written.
pub async fn plan(make: MakePlan) -> anyhow::Result<()> {
    let plan = match Plan::read(&make.plan)? {
        Some(plan) => plan,
        None => {
            let plan = Plan {
                version: PLAN_VERSION,
                chain: ChainPlan::Elsewhere { urls: make.chains },
                host: make.store_host,
                store_port: make.store_port,
                finality_lag: make.finality_lag,
                run: 0,
                store_admin: None,
                origin_keys: setup::new_origin_keys()?,
                dataset: None,
                device: None,
                held_out_sequences: Some(defaults::HELD_OUT_SEQUENCES),
                buckets: Vec::new(),
                seats: setup::new_seats(&Seats::honest(make.miners, make.validators))?,
            };
            plan.write(&make.plan)?;
            plan
        }
    };
    println!("{} seats, {} nodes", plan.seats.len(), plan.chain_urls().len());
    Ok(())
}

/// Creates the run and registers the seats.
///
/// # Errors
/// If there is no plan, or a step of the set-up fails.
pub async fn set_up(set_up: SetUp) -> anyhow::Result<()> {
    let plan = Plan::read(&set_up.plan)?;
    let mut plan = plan.with_context(|| format!("there is no plan at {}", set_up.plan.display()))?;
    let mut params = defaults::params(plan.finality_lag);
    params.schedule = defaults::schedule(set_up.train_blocks, plan.finality_lag);
    let work = Work { dataset: set_up.dataset, params, spec: defaults::spec() };
    setup::establish(&set_up.dir, &mut plan, work, &mut |what| println!("{what} …")).await?;
    plan.write(&set_up.plan)?;
    println!("run {}: {} seats are registered", plan.run, plan.seats.len());
    Ok(())
}

/// Checks the health of a container.
///
/// # Errors
/// If it is not healthy or does not answer.
pub async fn check(check: Check) -> anyhow::Result<()> {
    match check.what {
        What::Node { address } => check_node(address).await,
        What::Store { address } => ask(address, "GET", "/", "").await.map(|_| ()),
        What::Role { address } => {
            let (status, body) = ask(address, "GET", "/health", "").await?;
            ensure!(status == 200, "not healthy: {}", body.trim());
            Ok(())
        }
    }
}

async fn check_node(address: SocketAddr) -> anyhow::Result<()> {
    let health = call(address, "system_health", json!([])).await?;
    ensure!(health["isSyncing"] == json!(false), "the node is not synced yet: {health}");
    let head = call(address, "chain_getFinalizedHead", json!([])).await?;
    let header = call(address, "chain_getHeader", json!([head])).await?;
    let number = header["number"].as_str().and_then(|number| number.strip_prefix("0x"));
    let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
    match number {
        Some(0) => bail!("no block is finalised yet"),
        Some(_) => Ok(()),
        None => bail!("not a block header: {header}"),
    }
}

/// Calls a method of a node's JSON-RPC. Returns its result.
async fn call(address: SocketAddr, method: &str, params: Value) -> anyhow::Result<Value> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let (status, answer) = ask(address, "POST", "/", &body).await?;
    ensure!(status == 200, "{method} was answered with status {status}");
    let mut answer: Value =
        serde_json::from_str(&answer).with_context(|| format!("the answer to {method} is no JSON"))?;
    match answer["result"].take() {
        Value::Null => bail!("{method} failed: {}", answer["error"]),
        result => Ok(result),
    }
}

/// Sends one HTTP request. Returns the status and body of the response.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let conversation = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, conversation)
        .await
        .with_context(|| format!("{address} did not answer within {} s", ANSWER_WITHIN.as_secs()))?
        .with_context(|| format!("{address} does not answer"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("{address} does not speak HTTP"))?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::store_config;
    use std::sync::{Arc, Mutex};
    use tokio::net::TcpListener;

    /// Answers each connection with the next of `answers`, and records the requests.
    async fn server(answers: Vec<String>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let keep = asked.clone();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                keep.lock().unwrap().push(String::from_utf8_lossy(&bytes[..read]).into_owned());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, asked)
    }

    fn http(status: u16, body: &str) -> String {
        format!("HTTP/1.1 {status} said\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    fn result(value: Value) -> String {
        http(200, &json!({ "jsonrpc": "2.0", "id": 1, "result": value }).to_string())
    }

    #[tokio::test]
    async fn a_node_is_healthy_once_it_is_synced_and_has_finalised_a_block() {
        let synced = result(json!({ "isSyncing": false, "peers": 3 }));
        let head = result(json!("0xab"));
        let header = |number: &str| result(json!({ "number": number }));
        let (well, asked) = server(vec![synced.clone(), head.clone(), header("0x1f")]).await;
        check_node(well).await.unwrap();
        assert!(asked.lock().unwrap()[2].contains("\"params\":[\"0xab\"]"));
        let (young, _) = server(vec![synced.clone(), head.clone(), header("0x0")]).await;
        assert!(check_node(young).await.unwrap_err().to_string().contains("no block is finalised yet"));
        let (behind, _) = server(vec![result(json!({ "isSyncing": true }))]).await;
        assert!(check_node(behind).await.unwrap_err().to_string().contains("not synced"));
        let (odd, _) = server(vec![synced, head, header("many")]).await;
        assert!(check_node(odd).await.is_err());
        let (other, _) = server(vec!["hello\r\n".into()]).await;
        assert!(check_node(other).await.unwrap_err().to_string().contains("HTTP"));
    }

    #[tokio::test]
    async fn a_role_is_healthy_if_its_health_endpoint_says_so() {
        let (well, asked) = server(vec![http(200, "{}")]).await;
        check(Check { what: What::Role { address: well } }).await.unwrap();
        assert!(asked.lock().unwrap()[0].starts_with("GET /health HTTP/1.1"));
        let (ill, _) = server(vec![http(503, "catching up")]).await;
        let error = check(Check { what: What::Role { address: ill } }).await.unwrap_err().to_string();
        assert!(error.contains("catching up"), "{error}");
        let (store, _) = server(vec![http(403, "who are you?")]).await;
        check(Check { what: What::Store { address: store } }).await.unwrap();
    }

    #[tokio::test]
    async fn a_plan_is_made_once_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let make = || MakePlan {
            plan: home.path().join("network").join("network.json"),
            store_host: "store".into(),
            store_port: 9000,
            chains: vec!["ws://node-0:9944".into(), "ws://node-1:9944".into()],
            miners: 2,
            validators: 1,
            finality_lag: 3,
        };
        plan(make()).await.unwrap();
        let first = Plan::read(&make().plan).unwrap().unwrap();
        plan(make()).await.unwrap();
        assert_eq!(Plan::read(&make().plan).unwrap().unwrap(), first);
        assert_eq!(first.bucket_url("miner-0"), "http://store:9000/miner-0");
        assert_eq!(first.seats.len(), 3);
        let store = store_config(&first, home.path().join("store"));
        assert_eq!((store.listen.to_string(), store.buckets.len()), ("0.0.0.0:9000".into(), 4));
        let at_home = Plan { host: "127.0.0.1".into(), ..first };
        assert!(store_config(&at_home, home.path().join("store")).listen.ip().is_loopback());
    }

    #[tokio::test]
    async fn without_a_plan_nothing_is_set_up() {
        let home = tempfile::tempdir().unwrap();
        let nothing = SetUp {
            plan: home.path().join("network.json"),
            dir: home.path().into(),
            dataset: home.path().into(),
            train_blocks: 14,
        };
        assert!(set_up(nothing).await.unwrap_err().to_string().contains("no plan"));
    }
}
