//! A child process: its log and its end. A child never outlives this process.

use anyhow::Context as _;
use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// Number of bytes at a log's end that are searched for its last lines.
const TAIL_BYTES: u64 = 16 * 1024;
/// Maximum time for a child to stop on request.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A program to start.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub executable: PathBuf,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub log: PathBuf,
    /// True if the program starts processes of its own, which are killed with it.
    pub has_children: bool,
}

/// A running program.
#[derive(Debug)]
pub struct Process {
    pub program: Program,
    pub started: Instant,
    child: Child,
    /// The id of its process group.
    group: Option<u32>,
}

impl Program {
    /// Starts the program. Its output is appended to its log. Its standard input is a pipe that closes when this
    /// process ends for any reason.
    ///
    /// # Errors
    /// If the log or the program cannot be opened.
    pub fn start(self) -> anyhow::Result<Process> {
        let log_failed = || format!("could not open the log {}", self.log.display());
        if let Some(parent) = self.log.parent() {
            fs::create_dir_all(parent).with_context(log_failed)?;
        }
        let log =
            fs::OpenOptions::new().create(true).append(true).open(&self.log).with_context(log_failed)?;
        let errors = log.try_clone().with_context(log_failed)?;
        let mut command = Command::new(&self.executable);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .kill_on_drop(true);
        // Ctrl-C on the terminal goes to this process, which stops its children in order.
        #[cfg(unix)]
        command.process_group(0);
        let child = command.spawn();
        let child = child
            .with_context(|| format!("could not start {} from {}", self.name, self.executable.display()))?;
        let group = child.id();
        Ok(Process { program: self, started: Instant::now(), child, group })
    }
}

impl Process {
    /// Returns the exit status, if the process has ended.
    ///
    /// # Errors
    /// If the operating system does not report the state.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let ended = self.child.try_wait();
        ended.with_context(|| self.not_watched())
    }

    fn not_watched(&self) -> String {
        format!("could not watch {}", self.program.name)
    }

    /// Kills the process and its children immediately, like a power cut.
    ///
    /// # Errors
    /// If the process cannot be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.kill_children().await?;
        let killed = self.child.kill().await;
        killed.with_context(|| self.not_watched())
    }

    /// Kills the children of the process, which leads its own process group, even after it has ended.
    async fn kill_children(&self) -> anyhow::Result<()> {
        let Some(group) = self.group.filter(|_| self.program.has_children) else { return Ok(()) };
        // The standard library has no call for this. It fails for an empty group, which is fine.
        let mut kill = Command::new("kill");
        kill.args(["-KILL", "--", &format!("-{group}")]).stdin(Stdio::null()).stderr(Stdio::null());
        kill.status().await.map(drop).with_context(|| self.not_watched())
    }

    /// Requests the process to end by closing its standard input, and kills it if it does not.
    ///
    /// # Errors
    /// If the process can be neither awaited nor killed.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        match tokio::time::timeout(STOP_WITHIN, self.child.wait()).await {
            Ok(ended) => ended.with_context(|| self.not_watched())?,
            Err(_) => return self.kill().await,
        };
        self.kill_children().await
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Returns the last lines of a log, for error messages.
pub fn last_lines(log: &Path, count: usize) -> String {
    let tail = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(count)..].join("\n"))
    };
    tail().unwrap_or_else(|error| format!("(its log {} cannot be read: {error})", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(directory: &Path, script: &str) -> Program {
        Program {
            name: "child".into(),
            executable: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("WORD".into(), "hello".into())],
            log: directory.join("logs").join("log.txt"),
            has_children: false,
        }
    }

    #[tokio::test]
    async fn a_child_logs_and_its_end_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = program(directory.path(), "echo $WORD; echo bad >&2; exit 3").start().unwrap();
        let status = loop {
            if let Some(status) = process.ended().unwrap() {
                break status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!(last_lines(&process.program.log, 5), "hello\nbad");
        assert_eq!(last_lines(&process.program.log, 1), "bad");
    }

    #[tokio::test]
    async fn a_child_that_reads_to_the_end_stops_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = program(directory.path(), "cat; echo done").start().unwrap();
        assert!(process.ended().unwrap().is_none());
        process.stop().await.unwrap();
        assert_eq!(last_lines(&process.program.log, 1), "done");
    }

    #[tokio::test]
    async fn what_a_child_has_started_is_killed_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let script = "sleep 600 & echo $!; wait";
        let mut process =
            Program { has_children: true, ..program(directory.path(), script) }.start().unwrap();
        let grandchild = loop {
            if let Ok(id) = last_lines(&process.program.log, 1).parse::<u32>() {
                break id;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        process.kill().await.unwrap();
        let stat = PathBuf::from(format!("/proc/{grandchild}/stat"));
        // Ended, or a zombie.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_cannot_be_started_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Program { executable: "/no/such/program".into(), ..program(directory.path(), "") };
        let error = missing.start().unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
