//! `localnet store add NAME --dir DIR`: a bucket for an additional participant, on the store of a network that runs now
//! or later. The store's process rereads its plan, so no other program has to reach it.

use crate::{
    layout::{BucketPlan, ORIGIN, Plan},
    network::{CHAIN, STORE},
    nodes, setup,
};
use anyhow::{Context as _, bail, ensure};
use daemon::{
    config::StoreFile,
    durable::{DirectoryLock, LockError, write_atomic},
};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};
use store::{Credentials, HttpFetcher, S3Settings, S3Store, check_bucket, fetch::FetchPolicy};

/// Interval between the store process's reads of its plan.
const READ_EVERY: Duration = Duration::from_millis(500);
/// Maximum time until a running store serves a new bucket.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Subcommand)]
pub enum StoreCommand {
    /// Add a bucket for one more miner or validator, and print the [store] section of its settings
    ///
    /// The bucket's secret is written to a file that only this user can read. The same name again prints the same
    /// section.
    Add(AddBucket),
}

#[derive(Debug, clap::Args)]
pub struct AddBucket {
    /// The bucket's name: 3 to 63 lower-case letters, digits and hyphens
    pub name: String,
    /// The directory of the network, as for `up --dir`
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

pub async fn run(command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Add(wanted) => add(&wanted).await,
    }
}

async fn add(wanted: &AddBucket) -> anyhow::Result<()> {
    let directory = &wanted.dir;
    let in_vain =
        || format!("there is no network in {}: make one with `localnet up --dir`", directory.display());
    let directory = directory.canonicalize().with_context(in_vain)?;
    let (plan, bucket, secret_file) = {
        let _lock = DirectoryLock::acquire(&directory.join(STORE)).map_err(|error| match error {
            LockError::InUse { .. } => anyhow::anyhow!("another `localnet store` is at work: try again"),
            error => anyhow::Error::new(error).context(in_vain()),
        })?;
        let file = directory.join("network.json");
        let mut plan = Plan::read(&file)?.with_context(in_vain)?;
        let bucket = planned(&mut plan, &wanted.name)?;
        let home = directory.join(&bucket.name);
        std::fs::create_dir_all(&home).with_context(|| format!("could not make {}", home.display()))?;
        let secret_file = home.join(setup::STORE_SECRET);
        // The secret first: a bucket without its secret would be unusable.
        write_atomic(&secret_file, bucket.secret_key.as_bytes())?;
        plan.write(&file)?;
        plan.write(&directory.join(STORE).join("plan.json"))?;
        (plan, bucket, secret_file)
    };
    let served = until_served(&plan, &bucket).await?;
    print!("{}", section(&plan, &bucket, secret_file)?);
    println!("# To register the seat: --endpoint {}", plan.bucket_url(&bucket.name));
    if !served {
        println!("# The network does not run. The bucket is served from its next start on.");
    }
    Ok(())
}

/// Returns the plan's bucket of this name, and adds it if it does not exist.
fn planned(plan: &mut Plan, name: &str) -> anyhow::Result<BucketPlan> {
    s3_server::check_bucket_name(name)?;
    if let Some(known) = plan.buckets.iter().find(|bucket| bucket.name == name) {
        return Ok(known.clone());
    }
    let is_node = name.strip_prefix(nodes::KIND).is_some_and(|rest| rest.starts_with('-'));
    let is_taken = is_node
        || [ORIGIN, CHAIN, STORE, "mailbox"].contains(&name)
        || plan.seats.iter().any(|seat| seat.name == name);
    ensure!(!is_taken, "{name} is a name of the network's own: choose another one");
    let bucket =
        BucketPlan { name: name.to_owned(), access_key: name.to_owned(), secret_key: setup::random_hex(20)? };
    plan.buckets.push(bucket.clone());
    Ok(bucket)
}

/// Returns the settings for the bucket's owner.
fn section(plan: &Plan, bucket: &BucketPlan, secret_file: PathBuf) -> anyhow::Result<String> {
    #[derive(serde::Serialize)]
    struct Section {
        store: StoreFile,
    }
    let store = StoreFile {
        endpoint: plan.store_url(),
        bucket: bucket.name.clone(),
        access_key: bucket.access_key.clone(),
        secret_key: None,
        secret_key_file: Some(secret_file),
    };
    Ok(toml::to_string_pretty(&Section { store })?)
}

/// Waits until the bucket can be written by its owner and read by others. Returns false if no store runs.
async fn until_served(plan: &Plan, bucket: &BucketPlan) -> anyhow::Result<bool> {
    let address = (plan.host.as_str(), plan.store_port);
    if tokio::net::TcpStream::connect(address).await.is_err() {
        return Ok(false);
    }
    let BucketPlan { access_key, secret_key, name } = bucket.clone();
    let settings = S3Settings {
        retries: 1,
        ..S3Settings::new(plan.store_url(), &name, Credentials { access_key, secret_key })
    };
    let (store, fetcher) = (S3Store::open(&settings)?, HttpFetcher::new(FetchPolicy::localnet())?);
    // A request before the store has read its plan would be an error in its log.
    tokio::time::sleep(READ_EVERY.saturating_mul(2)).await;
    let began = Instant::now();
    loop {
        match check_bucket(&store, &fetcher, &plan.bucket_url(&name)).await {
            Ok(()) => return Ok(true),
            Err(error) if SERVED_WITHIN < began.elapsed() => {
                return Err(error).context("the store of this network does not serve the new bucket");
            }
            Err(_) => tokio::time::sleep(READ_EVERY).await,
        }
    }
}

/// Adds new buckets of the plan to `server`, for ever.
pub async fn follow(plan: &Path, server: &s3_server::S3Server) {
    let mut read: Option<SystemTime> = None;
    loop {
        tokio::time::sleep(READ_EVERY).await;
        let changed = std::fs::metadata(plan).and_then(|metadata| metadata.modified()).ok();
        if changed == read {
            continue;
        }
        read = changed;
        if let Err(error) = add_all(plan, server) {
            tracing::warn!("could not add the buckets of {}: {error:#}", plan.display());
        }
    }
}

fn add_all(plan: &Path, server: &s3_server::S3Server) -> anyhow::Result<()> {
    let Some(plan) = Plan::read(plan)? else { bail!("it is gone") };
    for BucketPlan { name, access_key, secret_key } in &plan.buckets {
        server.add_bucket(&s3_server::BucketConfig::new(name, access_key, secret_key))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::{ChainPlan, LockedDirectory, PLAN_VERSION},
        roles::store_config,
        seats::Seats,
    };
    use s3_server::S3Server;
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn plan() -> Plan {
        Plan {
            version: PLAN_VERSION,
            chain: ChainPlan::Embedded { port: 1, block_millis: 500, when_idle: false },
            host: "127.0.0.1".into(),
            store_port: 0,
            finality_lag: 0,
            run: 0,
            store_admin: None,
            origin_keys: ("origin".into(), "secret".into()),
            dataset: None,
            device: None,
            held_out_sequences: None,
            buckets: Vec::new(),
            seats: setup::new_seats(&Seats::honest(1, 1)).unwrap(),
        }
    }

    #[test]
    fn names_of_the_network_and_impossible_ones_are_refused() {
        let mut plan = plan();
        for name in ["origin", "miner-0", "validator-0", "chain", "store", "node-3"] {
            let error = planned(&mut plan, name).unwrap_err().to_string();
            assert!(error.contains("choose another one"), "{error}");
        }
        for name in ["a", "My-Bucket", "../up", "a/b"] {
            let error = planned(&mut plan, name).unwrap_err().to_string();
            assert!(error.contains("3 to 63 lower-case letters"), "{error}");
        }
        assert!(plan.buckets.is_empty());
    }

    #[tokio::test]
    async fn a_running_store_serves_a_bucket_that_is_added_to_its_plan() {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR);
        let lines = lines.with_writer(move || writer.clone()).finish();
        let _logging = tracing::subscriber::set_default(lines);
        let home = tempfile::tempdir().unwrap();
        let mut locked = LockedDirectory::lock(&home.path().join("net")).unwrap();
        let directory = locked.path().to_owned();
        std::fs::create_dir_all(directory.join(STORE)).unwrap();
        let file = directory.join(STORE).join("plan.json");
        let server = S3Server::start(store_config(&plan(), home.path().join("data"))).await.unwrap();
        let plan = Plan { store_port: server.address().port(), ..plan() };
        plan.write(&file).unwrap();
        locked.write_plan(plan.clone()).unwrap();

        let wanted = AddBucket { name: "my-miner".into(), dir: directory.clone() };
        let added = async {
            add(&wanted).await.unwrap();
            // The same bucket again.
            add(&wanted).await.unwrap();
        };
        tokio::select! {
            () = follow(&file, &server) => {}
            () = added => {}
        }
        let errors = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(errors.is_empty(), "the store's log has errors: {errors}");
        let kept = Plan::read(&directory.join("network.json")).unwrap().unwrap();
        let [bucket] = kept.buckets.as_slice() else { panic!("one bucket: {:?}", kept.buckets) };
        let secret = directory.join("my-miner").join(setup::STORE_SECRET);
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), bucket.secret_key);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let text = section(&kept, bucket, secret).unwrap();
        assert!(text.starts_with("[store]\n") && !text.contains(&bucket.secret_key), "{text}");
        let settings: daemon::config::File = toml::from_str(&text).unwrap();
        assert_eq!(settings.store.unwrap().bucket, "my-miner");

        // After a restart, the bucket is served from the start.
        server.shutdown().await;
        assert!(!until_served(&kept, bucket).await.unwrap());
        let server = S3Server::start(store_config(&kept, home.path().join("data"))).await.unwrap();
        assert!(until_served(&kept, bucket).await.unwrap());
        server.shutdown().await;
    }

    #[tokio::test]
    async fn a_directory_without_a_network_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let wanted = AddBucket { name: "my-miner".into(), dir: home.path().to_owned() };
        let error = format!("{:#}", add(&wanted).await.unwrap_err());
        assert!(error.contains("there is no network in"), "{error}");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
