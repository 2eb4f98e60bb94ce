//! A seat of four ranks as a SLURM job: `miner/examples/seat.sbatch`, on a SLURM of this machine alone.
//!
//! The test needs SLURM and root, so it is ignored by default; `bash .ci/run nightly` runs it where both exist:
//!
//! ```text
//! cargo test -p localnet --test labs -- --ignored slurm::
//! ```

use crate::support::{self, BY_CLOCK, Net, harness};
use daemon::Entry;
use libtest_mimic::Trial;
use localnet::{
    process::last_lines,
    seats::Seats,
    setup::{LOOPBACK, free_port},
};
use protocol::{Digest, RunParams, Schedule, Window};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);
/// Blocks of a window: enough for a preempted job to restart in the same window.
const LONGER_BLOCKS: u32 = 400;
/// Sequences of a window: enough for a preemption to be in time, and half of what a busy machine has time for.
const SEQUENCES: u32 = 256;

pub fn tests() -> Vec<Trial> {
    harness::ignored(harness::on_their_own!(
        "slurm",
        [a_preempted_job_resumes_its_window_to_the_contribution_of_an_undisturbed_seat,]
    ))
}

/// Returns a free port. It stays bound until its process starts, so that no other program takes it.
fn hold_port() -> (TcpListener, u16) {
    let listener = free_port(LOOPBACK).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

#[track_caller]
fn await_that(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < within, "it never came that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Controller, node and authentication, as processes of this test.
struct Slurm {
    directory: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Slurm {
        let directory = tempfile::tempdir().expect("a directory");
        let mut slurm = Slurm { directory, daemons: Vec::new() };
        let mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        mode(slurm.directory.path(), 0o755);
        for name in ["munge", "state", "spool"] {
            fs::create_dir(slurm.path(name)).expect("a new directory");
        }
        mode(&slurm.path("munge"), 0o700);
        let mut key = [0; 1024];
        getrandom::fill(&mut key).expect("random numbers");
        fs::write(slurm.path("munge/key"), key).expect("a file");
        mode(&slurm.path("munge/key"), 0o600);
        let argument = |name: &str, file: &str| format!("--{name}={}", slurm.path(file).display());
        let munge = [
            "--foreground".into(),
            "--force".into(),
            argument("key-file", "munge/key"),
            argument("socket", "munge.socket"),
            argument("pid-file", "munge/pid"),
            argument("log-file", "munge/log"),
            argument("seed-file", "munge/seed"),
        ];
        slurm.daemon("munged", &munge);
        await_that("munged listens", SOON, || slurm.path("munge.socket").exists());

        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux");
        let host = host.trim().split('.').next().expect("a first part").to_owned();
        let at = slurm.directory.path().display();
        let ((held_controller, controller), (held_node, node)) = (hold_port(), hold_port());
        let settings = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nSlurmUser=root\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             MpiDefault=none\nReturnToService=2\nKillWait=5\nSelectType=select/cons_tres\n\
             SlurmdParameters=config_overrides\nSchedulerParameters=sched_interval=1,bf_interval=1\n\
             PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=500 State=UNKNOWN\n\
             PartitionName=all Nodes={host} Default=YES PriorityTier=1\n\
             PartitionName=urgent Nodes={host} PriorityTier=2\n"
        );
        fs::write(slurm.path("slurm.conf"), settings).expect("a file");
        drop(held_controller);
        slurm.daemon("slurmctld", &["-D".into()]);
        drop(held_node);
        slurm.daemon("slurmd", &["-D".into(), "-N".into(), host]);
        await_that("the node is idle", SOON, || slurm.ask("sinfo", "-h -o %T").contains("idle"));
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[String]) {
        let log = fs::File::create(self.path(&format!("{program}.out"))).expect("a file");
        let mut command = self.command(program);
        command.args(arguments).stdout(log.try_clone().expect("a file")).stderr(log);
        self.daemons.push(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")));
    }

    /// Returns the output of a command, or an empty text if it fails.
    fn ask(&self, program: &str, arguments: &str) -> String {
        let output = self.command(program).args(arguments.split(' ')).output().expect("SLURM is installed");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn do_it(&self, program: &str, arguments: &str) {
        let output = self.command(program).args(arguments.split(' ')).output().expect("SLURM is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments}: {said}");
    }

    /// Starts the seat with these settings as a job.
    fn submit(&self, config: &Path, log: &Path) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../miner/examples/seat.sbatch");
        let mut sbatch = self.command("sbatch");
        sbatch.arg("--parsable").arg("--output").arg(log).arg(script);
        sbatch.env("METTLE_MINER", format!("{} role miner", support::PROGRAM));
        sbatch.env("METTLE_CONFIG", config).env("RAYON_NUM_THREADS", "1");
        submitted(sbatch)
    }

    /// Preempts the node by a job of a partition with a higher priority, and calls `meanwhile` before that job ends.
    fn preempt(&self, job: &str, meanwhile: impl FnOnce()) {
        let mut sbatch = self.command("sbatch");
        sbatch.args(["--parsable", "--partition=urgent", "--ntasks=4", "--output=/dev/null"]);
        sbatch.arg("--wrap=exec sleep 600");
        let urgent = submitted(sbatch);
        let state = |job: &str| self.ask("squeue", &format!("-h -j {job} -o %T"));
        await_that("the job is preempted", SOON, || state(job) == "PENDING" && state(&urgent) == "RUNNING");
        meanwhile();
        // Otherwise a requeued job is held back for two minutes.
        self.do_it("scontrol", &format!("update JobId={job} StartTime=now"));
        self.do_it("scancel", &urgent);
    }
}

/// Returns the number of the job that this `sbatch --parsable` submits.
fn submitted(mut sbatch: Command) -> String {
    let output = sbatch.output().expect("SLURM is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.command("scancel").args(["--user", "root"]).output();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(15) && !self.ask("squeue", "-h").is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Copies a miner's directory without the files of an unfinished window.
fn copy_without_the_window(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_owned();
        if path.is_dir() {
            copy_without_the_window(&path, &to.join(name));
        } else if !name.to_string_lossy().starts_with("training.snapshot") {
            fs::copy(&path, to.join(name)).expect("a copy");
        }
    }
}

fn entries(directory: &Path, offset: u64) -> Vec<Entry> {
    daemon::journal::read_from(&directory.join("journal.jsonl"), offset)
        .map_or_else(|_| Vec::new(), |read| read.0)
}

/// Returns window and digest of the contributions that a miner committed.
fn committed(directory: &Path, offset: u64) -> Vec<(Window, Digest)> {
    let commitment = |entry| match entry {
        Entry::Committed { window, digest, .. } => Some((window, digest)),
        _ => None,
    };
    entries(directory, offset).into_iter().filter_map(commitment).collect()
}

async fn a_preempted_job_resumes_its_window_to_the_contribution_of_an_undisturbed_seat(home: &Path) {
    let mut params = support::params(2);
    let Schedule { blocks_per_window, commit_by, reveal_by, attest_by, vote_by, .. } = &mut params.schedule;
    for block in [blocks_per_window, commit_by, reveal_by, attest_by, vote_by] {
        *block += LONGER_BLOCKS;
    }
    let params = RunParams { sequences_per_seat: SEQUENCES, ..params };
    let mut net = Net::start_with(home, BY_CLOCK, Seats::honest(1, 1), params, 2).await;
    net.network.kill("miner-0").await.expect("the miner ran");
    let (seat, data) = (net.directory().join("miner-0"), net.directory().join("miner-0/data"));
    let (settings, log) = (seat.join("settings.toml"), seat.join("job.txt"));
    let secret = seat.join("secret");
    let (rank_port_held, rank_port) = hold_port();
    fs::write(&secret, "the secret of four ranks").expect("a file");
    let text = fs::read_to_string(&settings).expect("its settings");
    let (before, _) = text.split_once("[train]").expect("a miner's settings");
    let train = format!(
        "{before}[train]\nbatch_sequences = 4\nmicro_batch_sequences = 1\ncommit_margin_blocks = 20\nahead = 0.0\n\
         snapshot_every_steps = 1\nrank_address = \"127.0.0.1:{rank_port}\"\nrank_secret_file = {secret:?}\n"
    );
    fs::write(&settings, train).expect("its settings");

    // The unfinished work of the killed process.
    let inside = data.join("training.snapshot");
    for file in [&inside, &data.join("training.snapshot.before")] {
        let _ = fs::remove_file(file);
    }

    let slurm = Slurm::start();
    drop(rank_port_held);
    let job = slurm.submit(&settings, &log);
    let (mut twin, mut attempt) = (None, 0);
    let (window, before, digest) = loop {
        attempt += 1;
        assert!(attempt < 4, "no preempted window was finished\n{}", last_lines(&log, 20));
        let began = Instant::now();
        while !inside.exists() {
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(240), "it does not train\n{}", last_lines(&log, 20));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let offset = fs::metadata(data.join("journal.jsonl")).map_or(0, |file| file.len());
        let undisturbed = seat.join(format!("undisturbed-{attempt}"));
        slurm.preempt(&job, || copy_without_the_window(&data, &undisturbed));
        twin = Some(Twin::start(&settings, &undisturbed, twin.take()));

        // If the preemption was too late, another window follows.
        let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
        let open = open.expect("the run has started");
        net.until("the window is finalised", |seen| seen.outcomes.contains_key(&open)).await;
        let resumed = entries(&data, offset).into_iter().find_map(|entry| match entry {
            Entry::Resumed { window, sequences, .. } if 0 < sequences => Some((window, sequences)),
            _ => None,
        });
        let Some((window, before)) = resumed else { continue };
        // On a busy machine one of them may advance further than the other.
        let finished = |directory: &Path, offset| {
            let is_whole = |entry: &Entry| match entry {
                Entry::Trained { window: of, sequences, .. } => (*of, *sequences) == (window, SEQUENCES),
                _ => false,
            };
            entries(directory, offset).iter().any(is_whole)
        };
        if !finished(&data, offset) || !twin.as_ref().is_some_and(|twin| finished(&twin.directory, 0)) {
            continue;
        }
        let digest = committed(&data, offset).into_iter().find(|(of, _)| *of == window);
        if let Some((_, digest)) = digest {
            break (window, before, digest);
        }
    };
    println!("window {}: preempted after {before} sequences, contribution {digest}", window.0);
    let twin = twin.expect("it was started");
    let path = twin.directory.join("contributions").join(format!("{digest}.contribution"));
    let twins = fs::read_dir(twin.directory.join("contributions")).map_or_else(
        |_| Vec::new(),
        |read| read.filter_map(|entry| Some(entry.ok()?.file_name())).collect::<Vec<_>>(),
    );
    assert!(path.exists(), "{twins:?}\n{}", last_lines(&twin.log, 20));

    let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
    let selection = view.and_then(|view| view.selection);
    let uid = net.uid("miner-0");
    assert!(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    drop((slurm, twin));
    net.down().await;
}

/// The same seat in one process, from the state at the start of the job's window.
struct Twin {
    directory: PathBuf,
    log: PathBuf,
    process: Child,
}

impl Twin {
    /// Starts it after the process `before` has ended.
    fn start(settings: &Path, directory: &Path, before: Option<Twin>) -> Twin {
        drop(before);
        let log = directory.with_extension("txt");
        let file = fs::File::create(&log).expect("a file");
        let mut miner = Command::new(support::PROGRAM);
        miner.args(["role", "miner", "start", "--ranks", "1", "--windows", "1", "--config"]);
        miner.arg(settings).arg("--directory").arg(directory).env("RAYON_NUM_THREADS", "1");
        miner.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
        Twin { directory: directory.to_owned(), log, process: miner.spawn().expect("it starts") }
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
