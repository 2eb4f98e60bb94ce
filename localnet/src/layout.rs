//! The directory of a network: its files, its lock, and the plan of the network.
//!
//! ```text
//! network.json          the plan of the network; written last, so that it marks a complete one
//! lock                  held while a network runs
//! chain/  store/        the data of chain and store; node-0/ … in place of chain/ with real nodes
//! miner-0/ … validator-0/ …
//!     settings.toml  coldkey.json  hotkey.json  password  store-secret  log.txt  data/journal.jsonl  …
//!
//! `password` opens the key files beside it. It and `store-secret` are readable by this user only.
//! ```

use crate::defaults::NODE_BLOCK_MILLIS;
use daemon::durable::{DirectoryLock, FileError, LockError};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The plan of a network, as in `network.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub version: u32,
    pub chain: ChainPlan,
    /// Host at which the seats reach the store and the development chain.
    pub host: String,
    pub store_port: u16,
    pub finality_lag: u32,
    pub run: u32,
    /// Port and token of the store's fault injection; only for networks on this machine.
    pub store_admin: Option<(u16, String)>,
    /// Access key and secret key of the origin's bucket.
    pub origin_keys: (String, String),
    /// Directory of the prepared data. Without it, the seats fetch the data from the origin's bucket.
    pub dataset: Option<PathBuf>,
    /// Device of the seats' computations; by default the CPU.
    #[serde(default)]
    pub device: Option<nn::Device>,
    /// Size of the sample on which the held-out loss is measured; each validator measures a part of it. Without it,
    /// each validator measures its default.
    pub held_out_sequences: Option<u64>,
    /// Buckets of participants outside this network, added by `localnet store add`.
    #[serde(default)]
    pub buckets: Vec<BucketPlan>,
    pub seats: Vec<SeatPlan>,
}

/// The chain of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ChainPlan {
    /// The development chain, in one process, with a block every `block_millis`. For tests, `when_idle`: a block as
    /// soon as all processes of the network wait for it, at the earliest after `block_millis`.
    Embedded {
        port: u16,
        block_millis: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        when_idle: bool,
    },
    /// Real nodes, each an authority of the `local` chain.
    Nodes { binary: PathBuf, nodes: Vec<NodePlan> },
    /// URLs of nodes that are started and stopped by other programs.
    Elsewhere { urls: Vec<String> },
}

impl ChainPlan {
    /// Returns the time between two blocks, for estimates only: the chain sets it.
    pub fn block_time(&self) -> Duration {
        Duration::from_millis(match self {
            ChainPlan::Embedded { block_millis, .. } => *block_millis,
            ChainPlan::Nodes { .. } | ChainPlan::Elsewhere { .. } => NODE_BLOCK_MILLIS,
        })
    }
}

/// One real node on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlan {
    /// Name of the node and of its directory, such as `node-0`.
    pub name: String,
    /// Authority whose well-known keys the node has: `alice`, …
    pub authority: String,
    pub rpc_port: u16,
    pub p2p_port: u16,
    pub metrics_port: u16,
    /// Secret key of its network identity, in hex.
    pub node_key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatPlan {
    pub role: protocol::Role,
    /// Name of the seat, its directory and its bucket, such as `miner-0`.
    pub name: String,
    pub uid: u16,
    /// [`crate::seats::HONEST`], or the name of an adversary.
    pub strategy: String,
    pub access_key: String,
    pub secret_key: String,
    /// True for a miner that sends its contributions to validators and has neither a bucket nor an open port.
    #[serde(default)]
    pub bucketless: bool,
    /// Port at which a validator accepts contributions from such miners.
    #[serde(default)]
    pub peer_port: Option<u16>,
}

/// A bucket and the key that may write to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketPlan {
    pub name: String,
    pub access_key: String,
    pub secret_key: String,
}

pub const PLAN_VERSION: u32 = 2;
/// The bucket of the run's owner.
pub const ORIGIN: &str = "origin";

/// A directory that is locked while this value lives.
#[derive(Debug)]
pub struct LockedDirectory {
    path: PathBuf,
    _lock: DirectoryLock,
    /// Plan of the existing network in this directory, if any.
    pub plan: Option<Plan>,
}

#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("{} is in use by another network that runs right now; stop that network, or use another --dir", path.display())]
    InUse { path: PathBuf },
    #[error(
        "{} holds files that are no network of this program (first: {first}). Use an empty or a new directory", path.display()
    )]
    Foreign { path: PathBuf, first: String },
    #[error(
        "{} was left half set up, and cannot be resumed. Remove it, or use another --dir", path.display()
    )]
    HalfWritten { path: PathBuf },
    #[error("{} was written by another release (version {found}, this one knows {PLAN_VERSION}). Use another --dir", path.display())]
    Version { path: PathBuf, found: u64 },
    #[error("{} is damaged; restore it, or use another --dir", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("could not use {}: is the disk full, or the directory not writable?", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl LockedDirectory {
    /// Locks `path`: the directory of a network to resume, an empty one, or a new one.
    ///
    /// # Errors
    /// If the directory is in use, incomplete or not a network's, its plan is damaged, or a file operation fails.
    pub fn lock(path: &Path) -> Result<LockedDirectory, LayoutError> {
        let failed = |source| LayoutError::Io { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let failed = |source| LayoutError::Io { path: path.clone(), source };

        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        // The lock is the first file of a network. A directory without it has another purpose.
        if !names.is_empty() && !names.iter().any(|name| name == "lock") {
            let first = names.swap_remove(0);
            return Err(LayoutError::Foreign { path, first });
        }
        let lock = DirectoryLock::acquire(&path).map_err(|error| match error {
            LockError::InUse { directory } => LayoutError::InUse { path: directory },
            LockError::Io { source, .. } => failed(source),
        })?;
        let plan = Plan::read(&path.join("network.json"))?;
        if plan.is_none() && names.iter().any(|name| name != "lock") {
            return Err(LayoutError::HalfWritten { path });
        }
        Ok(LockedDirectory { path, _lock: lock, plan })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the plan, which marks the network as complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_plan(&mut self, plan: Plan) -> Result<(), FileError> {
        plan.write(&self.path.join("network.json"))?;
        self.plan = Some(plan);
        Ok(())
    }
}

impl Plan {
    /// Reads a plan; `None` if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn read(file: &Path) -> Result<Option<Plan>, LayoutError> {
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LayoutError::Io { path: file.to_owned(), source }),
        };
        let damaged = |source| LayoutError::Damaged { path: file.to_owned(), source };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        let found = value["version"].as_u64().unwrap_or(0);
        if found != u64::from(PLAN_VERSION) {
            return Err(LayoutError::Version { path: file.to_owned(), found });
        }
        serde_json::from_value(value).map(Some).map_err(damaged)
    }

    /// Replaces the file. Only this user can read it, because it holds the secrets of the buckets.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), FileError> {
        let json = serde_json::to_vec_pretty(self).expect("a plan is plain data");
        daemon::durable::write_atomic(file, &json)
    }

    /// Returns the URL of each node of the chain.
    pub fn chain_urls(&self) -> Vec<String> {
        match &self.chain {
            ChainPlan::Embedded { port, .. } => vec![format!("ws://{}:{port}", self.host)],
            ChainPlan::Nodes { nodes, .. } => {
                nodes.iter().map(|node| format!("ws://127.0.0.1:{}", node.rpc_port)).collect()
            }
            ChainPlan::Elsewhere { urls } => urls.clone(),
        }
    }

    /// Returns the URL that this program uses.
    pub fn chain_url(&self) -> String {
        self.chain_urls().into_iter().next().unwrap_or_default()
    }

    /// Returns the URL that a seat uses: the seats are spread over the nodes.
    pub fn chain_url_of(&self, seat: &str) -> String {
        let urls = self.chain_urls();
        let place = self.seats.iter().position(|planned| planned.name == seat).unwrap_or_default();
        urls.get(place.checked_rem(urls.len()).unwrap_or_default()).cloned().unwrap_or_default()
    }

    pub fn store_url(&self) -> String {
        format!("http://{}:{}", self.host, self.store_port)
    }

    /// Returns the base URL at which others read a bucket.
    pub fn bucket_url(&self, bucket: &str) -> String {
        format!("{}/{bucket}", self.store_url())
    }

    /// Returns the part of the held-out sample that this validator measures: first position and number.
    pub fn held_out_part(&self, seat: &SeatPlan) -> Option<(u64, u64)> {
        let sample = self.held_out_sequences?;
        let validators = || self.seats_of(protocol::Role::Validator);
        let count = u64::try_from(validators().count()).ok()?;
        let at = u64::try_from(validators().position(|validator| validator.name == seat.name)?).ok()?;
        let begin = |part: u64| sample.saturating_mul(part) / count.max(1);
        Some((begin(at), begin(at + 1) - begin(at)))
    }

    pub fn seats_of(&self, role: protocol::Role) -> impl Iterator<Item = &SeatPlan> {
        self.seats.iter().filter(move |seat| seat.role == role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            version: PLAN_VERSION,
            chain: ChainPlan::Embedded { port: 1, block_millis: 500, when_idle: false },
            host: "127.0.0.1".into(),
            store_port: 2,
            finality_lag: 0,
            run: 0,
            store_admin: None,
            origin_keys: ("a".into(), "b".into()),
            dataset: Some("data".into()),
            device: None,
            held_out_sequences: None,
            buckets: vec![],
            seats: vec![],
        }
    }

    #[test]
    fn a_complete_network_is_resumed_by_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net");
        let mut locked = LockedDirectory::lock(&path).unwrap();
        assert!(locked.plan.is_none());
        locked.write_plan(plan()).unwrap();
        assert!(matches!(LockedDirectory::lock(&path), Err(LayoutError::InUse { .. })));
        drop(locked);
        assert_eq!(LockedDirectory::lock(&path).unwrap().plan, Some(plan()));
    }

    #[test]
    fn the_validators_share_the_held_out_sample_out() {
        let seats = crate::setup::new_seats(&crate::seats::Seats::honest(1, 3)).unwrap();
        let plan = Plan { held_out_sequences: Some(1000), seats, ..plan() };
        let parts: Vec<_> = plan.seats.iter().map(|seat| plan.held_out_part(seat)).collect();
        assert_eq!(parts, [Some((0, 333)), Some((333, 333)), Some((666, 334)), None]);
    }

    fn seat(name: &str) -> SeatPlan {
        SeatPlan {
            role: protocol::Role::Miner,
            name: name.into(),
            uid: 0,
            strategy: crate::seats::HONEST.to_owned(),
            access_key: String::new(),
            secret_key: String::new(),
            bucketless: false,
            peer_port: None,
        }
    }

    #[test]
    fn seats_are_spread_over_the_nodes() {
        let chain = ChainPlan::Elsewhere { urls: vec!["ws://a".into(), "ws://b".into()] };
        let seats = vec![seat("miner-0"), seat("miner-1"), seat("miner-2")];
        let plan = Plan { chain, seats, ..plan() };
        let urls: Vec<_> = plan.seats.iter().map(|seat| plan.chain_url_of(&seat.name)).collect();
        assert_eq!(urls, ["ws://a", "ws://b", "ws://a"]);
        assert_eq!(plan.chain_url(), "ws://a");
    }

    #[test]
    fn a_seat_keeps_its_strategy() {
        let seat = seat("miner-0");
        assert_eq!(plan().bucket_url(&seat.name), "http://127.0.0.1:2/miner-0");
        let slow = SeatPlan { strategy: "slow-loris".into(), ..seat };
        let kept = serde_json::to_string(&slow).unwrap();
        assert_eq!(serde_json::from_str::<SeatPlan>(&kept).unwrap(), slow);
    }

    #[test]
    fn a_foreign_directory_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.txt"), "precious").unwrap();
        let refused = LockedDirectory::lock(directory.path()).unwrap_err();
        assert!(matches!(&refused, LayoutError::Foreign { first, .. } if first == "thesis.txt"), "{refused}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was added");
    }

    #[test]
    fn a_half_written_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(LockedDirectory::lock(directory.path()).unwrap());
        fs::create_dir(directory.path().join("chain")).unwrap();
        assert!(matches!(LockedDirectory::lock(directory.path()), Err(LayoutError::HalfWritten { .. })));
    }

    #[test]
    fn a_damaged_or_newer_plan_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(LockedDirectory::lock(directory.path()).unwrap());
        fs::write(directory.path().join("network.json"), "{\"version\": 99}").unwrap();
        assert!(matches!(
            LockedDirectory::lock(directory.path()),
            Err(LayoutError::Version { found: 99, .. })
        ));
        fs::write(directory.path().join("network.json"), "{\"ver").unwrap();
        assert!(matches!(LockedDirectory::lock(directory.path()), Err(LayoutError::Damaged { .. })));
    }
}
