//! Measurements of this machine for `doctor`, and their comparison with the requirements: pure functions where
//! possible.

use super::{Check, Verdict};
use crate::plan::{
    figures::{Role as RoleFigures, Value as Figure},
    table::value as figure,
};
use bytes::Bytes;
use protocol::{Digest, Role, RunParams, keys};
use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};
use store::{Store, StoreError};

/// Size of the object for the measurement of the uplink, in bytes.
const UPLINK_BYTES: usize = 8 << 20;
/// Number of small objects for the measurement of the bucket's latency, and their size in bytes.
const LATENCY_WRITES: usize = 3;
const LATENCY_BYTES: usize = 64;
/// Divisor of a role's space for the part that must stay free: a file is written beside its old version.
const FREE_PART: u64 = 16;
/// Minimum limit of descriptors, for connections, buckets and files together.
const OPEN_FILES_MIN: u64 = 1024;
/// Clock difference above which a warning is shown.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(2);
/// Maximum number of files that are counted in a directory.
const FILES_MAX: usize = 1 << 20;

/// Returns a file's permission bits, if it can be read; `None` if the system has none.
pub(super) fn mode_of(path: &Path) -> io::Result<Option<u32>> {
    let file = fs::File::open(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        Ok(Some(file.metadata()?.permissions().mode() & 0o7777))
    }
    #[cfg(not(unix))]
    {
        drop(file);
        Ok(None)
    }
}

/// Returns the total size of all files below `directory`, in bytes; 0 if there are none.
pub(super) fn bytes_in(directory: &Path) -> u64 {
    let (mut bytes, mut left, mut waiting) = (0u64, FILES_MAX, vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            left = left.saturating_sub(1);
            // The metadata of a link itself, so that there is no cycle.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() && 0 < left {
                waiting.push(entry.path());
            }
            bytes = bytes.saturating_add(if found.is_file() { found.len() } else { 0 });
        }
    }
    bytes
}

/// Compares the soft limit of open files, from `/proc/self/limits`.
pub(super) fn check_open_files(limits: Option<&str>) -> Check {
    let line = limits.and_then(|text| text.lines().find_map(|line| line.strip_prefix("Max open files")));
    let soft = line.and_then(|line| line.split_whitespace().next()).map(str::to_owned);
    let number = soft.as_deref().and_then(|soft| soft.parse::<u64>().ok());
    let (verdict, advice) = match number {
        Some(number) if number < OPEN_FILES_MIN => {
            (Verdict::Warning, "raise it: `ulimit -n 65536`, or LimitNOFILE=65536 in a systemd unit")
        }
        _ => (Verdict::Ok, ""),
    };
    Check {
        name: "open files",
        verdict,
        measured: soft.unwrap_or_else(|| "the system does not tell".into()),
        needed: OPEN_FILES_MIN.to_string(),
        advice: advice.into(),
    }
}

/// Compares this machine's clock with the time of the latest finalised block.
pub(super) fn check_clock(now: Duration, block: Duration, block_time: Duration) -> Check {
    let ahead = block.saturating_sub(now);
    let age = now.saturating_sub(block);
    // Finality trails the newest block by some blocks.
    let age_max = CLOCK_OFF_MAX.saturating_add(block_time.saturating_mul(10));
    let (verdict, measured) = if CLOCK_OFF_MAX < ahead {
        (Verdict::Warning, format!("{} s behind the latest finalised block", ahead.as_secs()))
    } else if age_max < age {
        (Verdict::Warning, format!("{} s ahead of the latest finalised block", age.as_secs()))
    } else {
        (Verdict::Ok, format!("the latest finalised block is {} s old", age.as_secs()))
    };
    let advice = match verdict {
        Verdict::Ok => "",
        _ => {
            "set the clock by NTP. No rule reads it, but time-outs, logs and the signatures of an S3 store do. If it is \
             right, finality trails"
        }
    };
    Check {
        name: "clock",
        verdict,
        measured,
        needed: format!("at most {} s", age_max.as_secs()),
        advice: advice.into(),
    }
}

/// Compares the free disk space with that of the role's files and its part of the dataset.
pub(super) fn compare_disk(free: Option<u64>, used: u64, files: u64, data: u64) -> Check {
    let needed = files.saturating_add(data);
    let bytes = |bytes| figure(Figure::Bytes(bytes));
    let Some(free) = free else {
        let measured = "the system does not tell".into();
        let (needed, advice) = (bytes(needed), String::new());
        return Check { name: "disk", verdict: Verdict::Warning, measured, needed, advice };
    };
    let least = files / FREE_PART;
    let has_room = needed <= free.saturating_add(used) && least <= free;
    Check {
        name: "disk",
        verdict: if has_room { Verdict::Ok } else { Verdict::Failed },
        measured: format!("{} free, and {} in use by it", bytes(free), bytes(used)),
        needed: format!("{}, {} of it free", bytes(needed), bytes(least)),
        advice: if has_room { "" } else { "make room, or name a `directory` on a larger disk" }.into(),
    }
}

/// Compares the free memory with a role's requirement.
pub(super) fn check_memory(available: Option<u64>, needed: u64, advice: &str) -> Check {
    let (verdict, measured) = match available {
        None => (Verdict::Ok, "the system does not tell".to_owned()),
        Some(free) if free < needed => (Verdict::Failed, format!("{} free", figure(Figure::Bytes(free)))),
        Some(free) => (Verdict::Ok, format!("{} free", figure(Figure::Bytes(free)))),
    };
    let advice = if verdict == Verdict::Failed { advice } else { "" };
    Check { name: "memory", verdict, measured, needed: figure(Figure::Bytes(needed)), advice: advice.into() }
}

/// Latency and rate of writes to the bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Uplink {
    /// The time that a write of any size takes: the slowest of [`LATENCY_WRITES`].
    pub latency_seconds: f64,
    pub bytes_per_second: f64,
}

impl Uplink {
    /// Writes some small objects at once, then one of 8 MiB, and deletes them.
    pub(super) async fn measure(store: &dyn Store) -> Result<Uplink, StoreError> {
        let body = incompressible(UPLINK_BYTES);
        let small = body.chunks(UPLINK_BYTES / LATENCY_WRITES).filter_map(|chunk| chunk.get(..LATENCY_BYTES));
        let small = small.map(|bytes| write_seconds(store, Bytes::copy_from_slice(bytes)));
        // Even after an error, the other writes delete their objects.
        let latencies = futures::future::join_all(small).await;
        let latencies = latencies.into_iter().collect::<Result<Vec<f64>, StoreError>>()?;
        let seconds = write_seconds(store, Bytes::from(body)).await?;
        Ok(Uplink::of(latencies.into_iter().fold(0.0, f64::max), seconds))
    }

    /// Computes the uplink from the time of a small write and that of [`UPLINK_BYTES`].
    fn of(latency_seconds: f64, seconds: f64) -> Uplink {
        // A small write that took equally long, over a new connection, does not determine the rate.
        let transfer = (seconds - latency_seconds).max(seconds / 10.0).max(1e-6);
        Uplink { latency_seconds, bytes_per_second: UPLINK_BYTES as f64 / transfer }
    }

    /// Returns the time for an object, in seconds.
    fn seconds(&self, bytes: u64) -> f64 {
        self.latency_seconds + bytes as f64 / self.bytes_per_second
    }
}

/// Returns bytes that no proxy compresses, different ones each time.
fn incompressible(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    let mut digest = Digest::of(format!("{:?}", Instant::now()).as_bytes());
    while bytes.len() < length {
        bytes.extend_from_slice(&digest.0);
        digest = Digest::of(&digest.0);
    }
    bytes
}

/// Writes an object and deletes it. Returns the write's duration.
async fn write_seconds(store: &dyn Store, body: Bytes) -> Result<f64, StoreError> {
    let key = keys::piece(&Digest::of(&body));
    let started = Instant::now();
    let put = store.put(&key, body).await;
    let seconds = started.elapsed().as_secs_f64();
    let deleted = store.delete(&key).await;
    put.and(deleted)?;
    Ok(seconds)
}

/// Compares the uplink with a role's upload before a deadline: a miner's contribution in the reveal phase, or a
/// validator's update in the vote phase.
pub(super) fn check_uplink(
    role: Role,
    uplink: Uplink,
    [miner, merging, _]: &[RoleFigures; 3],
    params: &RunParams,
    block_time: Duration,
) -> Check {
    let schedule = params.schedule;
    let (what, bytes, from, to) = match role {
        Role::Miner => {
            ("a contribution", miner.bytes("upload_bytes"), schedule.commit_by, schedule.reveal_by)
        }
        Role::Validator => (
            "an update",
            merging.bytes("update_bytes"),
            schedule.attest_by.saturating_add(params.hidden_blocks).saturating_add(1),
            schedule.vote_by,
        ),
    };
    let has = f64::from(to.saturating_sub(from)) * block_time.as_secs_f64();
    let takes = uplink.seconds(bytes);
    let seconds = |seconds| figure(Figure::Seconds(Some(seconds)));
    let rate = figure(Figure::BitsPerSecond((uplink.bytes_per_second * 8.0) as u64));
    let latency = seconds(uplink.latency_seconds);
    let size = figure(Figure::Bytes(bytes));
    let (verdict, advice) = if takes <= has {
        (Verdict::Ok, "")
    } else {
        (Verdict::Failed, "use a faster uplink, or a bucket nearer to this machine: what is late is unpaid")
    };
    Check {
        name: "uplink",
        verdict,
        measured: format!("{rate} and {latency} per write: {what} of {size} takes {}", seconds(takes)),
        needed: format!("at most {}", seconds(has)),
        advice: advice.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use store::{
        MemoryStore,
        faults::{Faults, FaultyStore},
    };

    #[test]
    fn too_few_open_files_are_a_warning() {
        let limits = |soft: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax open files            {soft}  4096  files\n")
        };
        let verdict = |text: Option<&str>| check_open_files(text).verdict;
        assert_eq!(verdict(Some(&limits("256"))), Verdict::Warning);
        assert_eq!(verdict(Some(&limits("1024"))), Verdict::Ok);
        assert_eq!(verdict(Some(&limits("unlimited"))), Verdict::Ok);
        assert_eq!(verdict(None), Verdict::Ok);
    }

    #[test]
    fn a_clock_that_is_off_either_way_is_a_warning() {
        let second = Duration::from_secs;
        let verdict = |now: u64, block: u64| check_clock(second(now), second(block), second(6)).verdict;
        assert_eq!(verdict(1000, 988), Verdict::Ok);
        assert_eq!(verdict(1000, 1002), Verdict::Ok);
        assert_eq!(verdict(1000, 1003), Verdict::Warning);
        assert_eq!(verdict(1000, 937), Verdict::Warning);
    }

    #[test]
    fn memory_that_is_free_must_be_as_much_as_needed() {
        assert_eq!(check_memory(Some(10), 10, "more").verdict, Verdict::Ok);
        let short = check_memory(Some(9), 10, "more");
        assert_eq!((short.verdict, &*short.advice), (Verdict::Failed, "more"));
        assert_eq!(check_memory(None, 10, "more").verdict, Verdict::Ok);
    }

    #[test]
    fn a_full_disk_fails_however_much_the_node_has_written_to_it() {
        let verdict = |free, used| compare_disk(Some(free), used, 80, 20).verdict;
        assert_eq!(verdict(100, 0), Verdict::Ok);
        assert_eq!(verdict(5, 95), Verdict::Ok);
        assert_eq!(verdict(99, 0), Verdict::Failed);
        assert_eq!(verdict(4, 1_000), Verdict::Failed);
        assert_eq!(compare_disk(None, 0, 80, 20).verdict, Verdict::Warning);
    }

    #[tokio::test]
    async fn the_uplink_is_measured_and_nothing_is_left() {
        let store = MemoryStore::new();
        let uplink = Uplink::measure(&store).await.unwrap();
        assert!(0.0 < uplink.bytes_per_second && 0.0 < uplink.latency_seconds);
        assert!(store.list("", 10).await.unwrap().entries.is_empty());
    }

    #[tokio::test]
    async fn a_bucket_that_answers_late_is_a_slow_uplink_for_the_smallest_contribution() {
        let faults = Faults { delay_max: Duration::from_millis(400), ..Faults::default() };
        let late = FaultyStore::new(Arc::new(MemoryStore::new()), 7, faults);
        let uplink = Uplink::measure(&late).await.unwrap();
        assert!(0.02 < uplink.seconds(1), "{uplink:?}");
    }

    #[test]
    fn the_latency_of_a_large_write_is_not_part_of_its_rate() {
        let uplink = Uplink::of(12.0, 20.0);
        assert_eq!((uplink.latency_seconds, uplink.bytes_per_second), (12.0, (1 << 20) as f64));
        assert_eq!(uplink.seconds(UPLINK_BYTES as u64), 20.0);
        assert_eq!(uplink.seconds(1 << 19), 12.5);
        // Slower small writes, over new connections, do not make the rate infinite.
        assert_eq!(Uplink::of(30.0, 20.0).bytes_per_second, (1 << 22) as f64);
    }

    #[test]
    fn a_directory_is_measured_with_all_that_is_below_it() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(bytes_in(&home.path().join("missing")), 0);
        fs::create_dir(home.path().join("rows")).unwrap();
        fs::write(home.path().join("rows").join("a"), [0; 100]).unwrap();
        fs::write(home.path().join("b"), [0; 11]).unwrap();
        assert_eq!(bytes_in(home.path()), 111);
        assert_eq!(mode_of(&home.path().join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
