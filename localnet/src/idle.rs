//! Makes a block of the development chain as soon as all processes of its network wait for it. Only tests use this: on
//! an idle machine they do not wait for a clock, and on a busy one no window ends before its work is done.
//!
//! The operating system reports which processes wait. A process computes if one of its threads runs, is ready to run
//! (it may wait for a core), or waits for the disk. A scan of all threads takes about a millisecond, in which work may
//! move from one process to another. So two scans in a row must find no such thread, and almost no CPU time between
//! them.
//!
//! Timers of miners and validators still follow the clock, so the time between two blocks has a minimum.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Maximum time between two blocks, regardless of the processes.
const BLOCK_MAX: Duration = Duration::from_secs(2);
/// Time between two blocks while no miner or validator runs. The process that sets a network up is not watched.
const BLOCK_WITHOUT_SEATS: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Interval between searches for new processes.
const LIST_EVERY: Duration = Duration::from_millis(250);
/// Maximum share of a core between two scans of processes that only serve their timers.
const TIMERS_SHARE: f64 = 0.05;

/// Requests each block when it is due, at the earliest `block_min` after the last one, and waits until it is made.
/// Returns when the receiver closes. `directory` is the network's.
pub fn ask_for_blocks(directory: &Path, block_min: Duration, ask: &mpsc::Sender<oneshot::Sender<()>>) {
    let mut watch = Watch::new(directory);
    let mut made_at = Instant::now();
    loop {
        watch.wait(made_at, block_min);
        let (done, made) = oneshot::channel();
        if ask.blocking_send(done).is_err() || made.blocking_recv().is_err() {
            return;
        }
        made_at = Instant::now();
    }
}

/// Observes the processes of a network from a thread of its chain.
struct Watch {
    /// Directory of the network, with a separator at its end.
    directory: Vec<u8>,
    /// `PROCESS/task/THREAD` of this thread, which computes during a scan.
    this_thread: String,
    processes: BTreeSet<u32>,
    /// Processes of others, and the number of searches that found each. After two, its command line is final and it is
    /// not examined again.
    others: BTreeMap<u32, u8>,
    has_seats: bool,
    listed_at: Option<Instant>,
    /// The process that computed in the last scan. It is examined first.
    busy: Option<u32>,
    /// Time of the last scan that found no computing thread, and the CPU time of all processes at that time.
    quiet: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    NoSeats,
    Computing,
    Idle,
}

impl Watch {
    fn new(directory: &Path) -> Watch {
        let this_thread = fs::read_link("/proc/thread-self").unwrap_or_default();
        Watch {
            directory: [directory.as_os_str().as_encoded_bytes(), b"/"].concat(),
            this_thread: this_thread.display().to_string(),
            processes: BTreeSet::new(),
            others: BTreeMap::new(),
            has_seats: false,
            listed_at: None,
            busy: None,
            quiet: None,
        }
    }

    /// Waits until the block after the one made at `made_at` is due.
    fn wait(&mut self, made_at: Instant, block_min: Duration) {
        thread::sleep(block_min.saturating_sub(made_at.elapsed() + LOOK_EVERY));
        self.quiet = None;
        let (mut waits_for, mut looks) = (None, 0);
        loop {
            let activity = self.look();
            let due = match activity {
                Activity::NoSeats => BLOCK_WITHOUT_SEATS.max(block_min),
                Activity::Computing => BLOCK_MAX.max(block_min),
                Activity::Idle => block_min,
            };
            if due <= made_at.elapsed() {
                let after = made_at.elapsed();
                tracing::debug!(?activity, ?after, looks, waits_for, "a block is due");
                return;
            }
            (waits_for, looks) = (self.busy.or(waits_for), looks + 1);
            thread::sleep(LOOK_EVERY);
        }
    }

    fn look(&mut self) -> Activity {
        if self.listed_at.is_none_or(|at| LIST_EVERY <= at.elapsed()) {
            self.list();
            self.listed_at = Some(Instant::now());
        }
        if !self.has_seats {
            return Activity::NoSeats;
        }
        let mut in_order = self.busy.into_iter().chain(self.processes.iter().copied());
        self.busy = in_order.find(|process| self.threads(*process).any(|thread| computes(&thread)));
        if self.busy.is_some() {
            self.quiet = None;
            return Activity::Computing;
        }
        let of_process =
            |process: &u32| self.threads(*process).map(|thread| cpu_time(&thread)).sum::<Duration>();
        let (now, used): (Instant, Duration) = (Instant::now(), self.processes.iter().map(of_process).sum());
        let before = self.quiet.replace((now, used));
        // Less than before: a thread has ended in between, and its CPU time is no longer counted.
        let spent = before.and_then(|(at, before)| Some((now - at, used.checked_sub(before)?)));
        match spent {
            Some((passed, spent)) if spent <= passed.mul_f64(TIMERS_SHARE) => Activity::Idle,
            _ => Activity::Computing,
        }
    }

    /// Finds the processes whose command line names a file of the network, and their descendants.
    fn list(&mut self) {
        self.processes.clear();
        self.has_seats = false;
        let found_before = std::mem::take(&mut self.others);
        let mut new = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let times = found_before.get(&process).copied().unwrap_or(0);
            if times == 2 {
                self.others.insert(process, times);
                continue;
            }
            // A process may have ended by now.
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if contains(&line, &self.directory) {
                self.processes.insert(process);
                self.has_seats |= contains(&line, b"/settings.toml\0");
            } else if let Some(parent) = parent_of(process) {
                new.push((process, parent));
                self.others.insert(process, times + 1);
            }
        }
        loop {
            let known = self.processes.len();
            let children = new.iter().filter(|(_, parent)| self.processes.contains(parent));
            let children: Vec<u32> = children.map(|(process, _)| *process).collect();
            self.processes.extend(children);
            if self.processes.len() == known {
                break;
            }
        }
        self.others.retain(|process, _| !self.processes.contains(process));
    }

    /// Returns the directories of a process's threads, except this thread.
    fn threads(&self, process: u32) -> impl Iterator<Item = String> {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let names = tasks.map(move |task| format!("{process}/task/{}", task.file_name().to_string_lossy()));
        names.filter(move |name| *name != self.this_thread).map(|name| format!("/proc/{name}"))
    }
}

/// Returns whether a thread runs, is ready to run, or waits for the disk.
fn computes(thread: &str) -> bool {
    matches!(stat(thread).as_deref().and_then(|words| words.split(' ').next()), Some("R" | "D"))
}

fn parent_of(process: u32) -> Option<u32> {
    stat(&format!("/proc/{process}"))?.split(' ').nth(1)?.parse().ok()
}

/// Returns the words of a `stat` from the state on. The program's name before it may contain any character.
fn stat(of: &str) -> Option<String> {
    let text = fs::read_to_string(format!("{of}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.to_owned())
}

/// Returns the CPU time that a thread has used; zero on a kernel that does not count it in nanoseconds.
fn cpu_time(thread: &str) -> Duration {
    let text = fs::read_to_string(format!("{thread}/schedstat")).unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn contains(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|bytes| bytes == word)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell whose command line names `settings.toml` of the directory, as a seat's does.
    fn seat(directory: &Path, script: &str) -> Child {
        let settings = directory.join("miner-0/settings.toml");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg("seat").arg(settings).stdin(Stdio::piped());
        command.spawn().expect("sh is everywhere")
    }

    /// Scans until the result is `wanted`.
    fn until(watch: &mut Watch, wanted: Activity) {
        let began = Instant::now();
        while watch.look() != wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "it never was {wanted:?}");
            thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn a_network_is_idle_when_its_processes_and_their_children_wait() {
        let home = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(home.path());
        assert_eq!(watch.look(), Activity::NoSeats);

        let mut waits = seat(home.path(), "read line; exit");
        until(&mut watch, Activity::Idle);
        // The shell waits for its child, whose command line names no file of the network.
        let mut computes = seat(home.path(), "sh -c 'while :; do :; done' & read line; kill $!");
        until(&mut watch, Activity::Computing);
        let began = Instant::now();
        while began.elapsed() < LIST_EVERY {
            assert_eq!(watch.look(), Activity::Computing);
        }
        drop(computes.stdin.take());
        computes.wait().unwrap();
        until(&mut watch, Activity::Idle);
        drop(waits.stdin.take());
        waits.wait().unwrap();
        until(&mut watch, Activity::NoSeats);
    }

    #[test]
    fn a_block_is_due_at_once_when_seats_wait_and_late_when_one_computes() {
        let home = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(home.path());
        let after = |watch: &mut Watch| {
            let made_at = Instant::now();
            watch.wait(made_at, Duration::from_millis(40));
            made_at.elapsed()
        };
        assert!(BLOCK_WITHOUT_SEATS <= after(&mut watch));
        let mut computes = seat(home.path(), "while :; do :; done");
        until(&mut watch, Activity::Computing);
        assert!(BLOCK_MAX <= after(&mut watch));
        computes.kill().unwrap();
        computes.wait().unwrap();
        let mut waits = seat(home.path(), "read line; exit");
        until(&mut watch, Activity::Idle);
        // On a busy machine, a scan may see the shell once during its start.
        let mut waited = (0..20).map(|_| after(&mut watch));
        assert!(waited.any(|waited| (Duration::from_millis(40)..BLOCK_WITHOUT_SEATS).contains(&waited)));
        drop(waits.stdin.take());
        waits.wait().unwrap();
    }
}
