//! The process of the command: starts it without the miner's secrets, exchanges frames within deadlines, and ends its
//! whole process group.

use super::{
    CommandError, CommandOptions,
    frame::{self, Answer, HEADER_BYTES_MAX, PREFIX_BYTES, PROTOCOL, Request},
};
use crate::shutdown::ShutdownHandle;
use nn::nccl;
use std::{
    collections::VecDeque,
    io::{self, Read, Write as _},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::CommandExt as _,
    },
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The variable that names the socket to the command.
pub const SOCKET: &str = "METTLE_TRAINER_SOCKET";

/// Interval between two checks of the deadlines.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a command has to end after a stop request, until its group is killed.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of bytes of the command's output in an error.
const OUTPUT_SHOWN: usize = 1024;

/// Variables that the command and ranks inherit by name. No others are passed on, as some hold secrets.
const INHERITED: &[&str] = &[
    "CONDA_PREFIX",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    nccl::VARIABLE,
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];
/// Variables that the command inherits by prefix: those of Python, PyTorch and CUDA.
const INHERITED_PREFIXES: &[&str] = &[
    "CUDA_", "CUBLAS_", "CUDNN_", "GLOO_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "PYTHON", "PYTORCH_", "TORCH",
    "TRITON_",
];

/// Ends the process groups of running commands and ranks when the miner ends.
#[derive(Debug, Default)]
pub struct CommandGroup(Mutex<GroupState>);

#[derive(Debug)]
enum GroupState {
    Running(Vec<u32>),
    /// No process may start: the miner is ending.
    Closed,
}

impl Default for GroupState {
    fn default() -> GroupState {
        GroupState::Running(Vec::new())
    }
}

impl CommandGroup {
    /// Kills all process groups, and lets no other process start.
    pub fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let GroupState::Running(groups) = std::mem::replace(&mut *state, GroupState::Closed) {
            groups.into_iter().for_each(kill_group);
        }
    }

    fn start(&self, command: &mut Command) -> io::Result<Child> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let GroupState::Running(groups) = &mut *state else {
            return Err(io::Error::other("the miner is stopping"));
        };
        let child = command.process_group(0).spawn()?;
        groups.push(child.id());
        Ok(child)
    }

    /// Kills the group of a child that was not waited for, so that its process number is not reused.
    fn end(&self, child: &mut Child) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kill_group(child.id());
        if let GroupState::Running(groups) = &mut *state {
            groups.retain(|group| *group != child.id());
        }
        drop(state);
        // It was killed, so this returns at once.
        let _ = child.wait();
    }
}

fn kill_group(group: u32) {
    let Ok(group) = libc::pid_t::try_from(group) else { return };
    // SAFETY: the call takes two numbers and touches no memory.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// A running command that has sent its hello.
pub(super) struct Session {
    stream: UnixStream,
    process: Process,
    options: CommandOptions,
    shutdown: Arc<ShutdownHandle>,
}

/// A process without the miner's secrets, whose group is killed on drop. Its output is kept for errors.
pub(crate) struct Process {
    child: Child,
    output: Arc<Mutex<VecDeque<u8>>>,
    group: Arc<CommandGroup>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.group.end(&mut self.child);
    }
}

impl Process {
    /// Starts `command` with a selection of this process's environment, and its own variables.
    ///
    /// # Errors
    /// If the process cannot be started, or the miner is ending.
    pub fn start(mut command: Command, group: &Arc<CommandGroup>) -> io::Result<Process> {
        let set: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command.env_clear().envs(inherited());
        command.envs(set.into_iter().filter_map(|(name, value)| Some((name, value?))));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = group.start(&mut command)?;
        let output = Arc::new(Mutex::new(VecDeque::new()));
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let process = Process { child, output: output.clone(), group: group.clone() };
        for pipe in pipes.into_iter().flatten() {
            let output = output.clone();
            let reader = std::thread::Builder::new().name("trainer-output".into());
            reader.spawn(move || read_output(pipe, &output))?;
        }
        Ok(process)
    }

    /// Returns the pipe to its standard input, which closes with the process.
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.child.stdin.as_mut()
    }

    /// Returns whether it has ended. It is not waited for: its group keeps its number until the group is killed.
    pub fn has_exited(&self) -> bool {
        has_exited(&self.child)
    }

    /// Returns the end of its output.
    pub fn output(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = output.iter().copied().collect();
        drop(output);
        let text = String::from_utf8_lossy(&bytes);
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match text.trim() {
            "" => "it printed nothing".into(),
            text => format!("its output ends: {text}"),
        }
    }

    /// A child's last bytes arrive after its end; it is not waited for here, so that its group keeps its number.
    fn ended(&self, doing: &'static str) -> CommandError {
        std::thread::sleep(2 * LOOK);
        CommandError::Ended { doing, output: self.output() }
    }
}

impl Session {
    /// Starts the command and waits for its connection and hello.
    ///
    /// # Errors
    /// [`CommandError`] if it cannot be started, ends, or does not answer in time.
    pub fn start(
        options: &CommandOptions,
        group: &Arc<CommandGroup>,
        shutdown: &Arc<ShutdownHandle>,
    ) -> Result<Session, CommandError> {
        let deadline = Instant::now() + options.start;
        // In a directory that other users cannot enter, and with a path that is short enough for a socket.
        let directory = tempfile::Builder::new().prefix("mettle-").tempdir().map_err(CommandError::Socket)?;
        let path = directory.path().join("trainer");
        let listener = UnixListener::bind(&path).map_err(CommandError::Socket)?;
        listener.set_nonblocking(true).map_err(CommandError::Socket)?;
        let [program, arguments @ ..] = &options.program[..] else { return Err(CommandError::NoProgram) };
        let mut command = Command::new(program);
        command.args(arguments).env(SOCKET, &path).stdin(Stdio::null());
        let started = Process::start(command, group);
        let process = started.map_err(|source| CommandError::Start { program: program.clone(), source })?;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(CommandError::Socket(error)),
            }
            if process.has_exited() {
                return Err(process.ended("starting"));
            }
            if deadline <= Instant::now() {
                let seconds = options.start.as_secs();
                return Err(CommandError::NotConnected { seconds, output: process.output() });
            }
            std::thread::sleep(LOOK);
        };
        stream.set_nonblocking(false).map_err(CommandError::Socket)?;
        stream.set_read_timeout(Some(LOOK)).map_err(CommandError::Socket)?;
        stream.set_write_timeout(Some(LOOK)).map_err(CommandError::Socket)?;
        let mut session = Session { stream, process, options: options.clone(), shutdown: shutdown.clone() };
        let mut limits = Limits::new("starting", deadline, false);
        match session.answer(&mut limits, 0, &mut [])? {
            Answer::Hello { protocol: PROTOCOL, name } => {
                let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
                tracing::info!(name, "the training command is connected");
                Ok(session)
            }
            Answer::Hello { protocol, .. } => Err(CommandError::Version { found: protocol }),
            other => Err(CommandError::Unexpected { doing: "starting", got: name_of(&other) }),
        }
    }

    /// Sends a request and returns its answer. Progress in between resets the heartbeat. The answer's body must have
    /// the length of `expected`, and is read into it.
    ///
    /// # Errors
    /// [`CommandError`] if the command fails, ends, or misses a deadline.
    pub fn ask(
        &mut self,
        request: &Request<'_>,
        body: &[u8],
        expected: &mut [u8],
    ) -> Result<Answer, CommandError> {
        let computes = matches!(request, Request::Gradients { .. } | Request::Step { .. });
        let within =
            if matches!(request, Request::Open { .. }) { self.options.start } else { self.options.step };
        let mut limits = Limits::new(request.doing(), Instant::now() + within, computes);
        let frame = request.frame(body.len());
        self.write(&mut limits, &frame)?;
        self.write(&mut limits, body)?;
        let bytes = expected.len();
        match self.answer(&mut limits, bytes, expected)? {
            Answer::Failed { why } => {
                let why = why.chars().filter(|c| !c.is_control()).take(OUTPUT_SHOWN).collect();
                Err(CommandError::Failed { doing: limits.doing, why })
            }
            answer => Ok(answer),
        }
    }

    /// Requests the command to stop, and kills its group if it has not ended soon after.
    pub fn stop(mut self) {
        let mut limits = Limits::new("stopping", Instant::now() + STOP_WITHIN, false);
        if self.write(&mut limits, &Request::Stop {}.frame(0)).is_ok() {
            while !self.process.has_exited() && Instant::now() < limits.until {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Returns the next frame that is not progress. Its body, if it has one, must have `bytes`.
    fn answer(&mut self, limits: &mut Limits, bytes: usize, body: &mut [u8]) -> Result<Answer, CommandError> {
        loop {
            let mut prefix = [0; PREFIX_BYTES];
            self.read(limits, &mut prefix)?;
            let (header_bytes, body_bytes) = frame::lengths(prefix);
            let header_bytes = usize::try_from(header_bytes).unwrap_or(usize::MAX);
            if HEADER_BYTES_MAX < header_bytes {
                let doing = limits.doing;
                return Err(CommandError::Header { doing, bytes: header_bytes });
            }
            let mut header = vec![0; header_bytes];
            self.read(limits, &mut header)?;
            let answer: Answer = serde_json::from_slice(&header)
                .map_err(|source| CommandError::Garbage { doing: limits.doing, source })?;
            let carries = matches!(answer, Answer::Values {} | Answer::Gradients {});
            let needed = if carries { bytes } else { 0 };
            if body_bytes != needed as u64 {
                let (doing, needed) = (limits.doing, needed as u64);
                return Err(CommandError::Body { doing, got: body_bytes, needed });
            }
            if needed != 0 {
                self.read(limits, body)?;
            }
            match answer {
                Answer::Progress { sequences } => tracing::debug!(sequences, "the training command works"),
                answer => return Ok(answer),
            }
        }
    }

    fn read(&mut self, limits: &mut Limits, mut into: &mut [u8]) -> Result<(), CommandError> {
        while !into.is_empty() {
            match self.stream.read(into) {
                Ok(0) => return Err(self.process.ended(limits.doing)),
                Ok(read) => {
                    into = &mut into[read..];
                    limits.heard = Instant::now();
                }
                Err(error) => self.failed(error, limits)?,
            }
            limits.check(self)?;
        }
        Ok(())
    }

    fn write(&mut self, limits: &mut Limits, mut bytes: &[u8]) -> Result<(), CommandError> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    limits.heard = Instant::now();
                }
                Err(error) => self.failed(error, limits)?,
            }
            limits.check(self)?;
        }
        Ok(())
    }

    /// Returns an error of the socket, unless it was only a timeout.
    fn failed(&self, error: io::Error, limits: &Limits) -> Result<(), CommandError> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
            _ => Err(self.process.ended(limits.doing)),
        }
    }
}

/// The deadlines of one request.
struct Limits {
    doing: &'static str,
    until: Instant,
    /// True if the end of the window's training ends the request.
    stops: bool,
    /// Time when the command last sent or accepted a byte.
    heard: Instant,
    /// Time when the request first found that the window's training has to stop.
    stopped: Option<Instant>,
}

impl Limits {
    fn new(doing: &'static str, until: Instant, stops: bool) -> Limits {
        Limits { doing, until, stops, heard: Instant::now(), stopped: None }
    }

    fn check(&mut self, session: &Session) -> Result<(), CommandError> {
        let (now, doing, options) = (Instant::now(), self.doing, &session.options);
        if self.until <= now {
            return Err(CommandError::Slow { doing, output: session.process.output() });
        }
        if options.heartbeat <= now.duration_since(self.heard) {
            let (seconds, output) = (options.heartbeat.as_secs(), session.process.output());
            return Err(CommandError::Silent { doing, seconds, output });
        }
        if self.stops && session.shutdown.is_training_over() {
            let stopped = *self.stopped.get_or_insert(now);
            if options.stop <= now.duration_since(stopped) {
                return Err(CommandError::WindowOver { seconds: options.stop.as_secs() });
            }
        }
        Ok(())
    }
}

/// Returns whether the child has ended. It is not waited for: its group keeps its number until the group is killed.
fn has_exited(child: &Child) -> bool {
    // SAFETY: all zeros are a valid `siginfo_t`, and the call writes to nothing else.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, child.id(), &mut info, options) == 0 && info.si_signo == libc::SIGCHLD
    }
}

fn inherited() -> impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        INHERITED.contains(&&*name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Keeps the end of the command's output, until all its processes have closed the pipe.
fn read_output(mut pipe: Box<dyn Read + Send>, output: &Mutex<VecDeque<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(read) = pipe.read(&mut bytes) {
        if read == 0 {
            return;
        }
        tracing::debug!(output = %String::from_utf8_lossy(&bytes[..read]).escape_debug(), "the training command");
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend(&bytes[..read]);
        let excess = output.len().saturating_sub(OUTPUT_SHOWN);
        output.drain(..excess);
    }
}

pub(super) fn name_of(answer: &Answer) -> &'static str {
    match answer {
        Answer::Hello { .. } => "hello",
        Answer::Ready {} => "ready",
        Answer::Taken {} => "taken",
        Answer::Values {} => "values",
        Answer::Gradients {} => "gradients",
        Answer::Stepped {} => "stepped",
        Answer::Progress { .. } => "progress",
        Answer::Failed { .. } => "failed",
    }
}
