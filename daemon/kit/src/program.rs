//! Logging, output and shutdown of every program.

use crate::{exit, traces};
use futures::future::LocalBoxFuture;
use std::{
    io::{self, IsTerminal as _, Read as _},
    process::ExitCode,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{
        self, MakeWriter,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// Sets up logging and a runtime, runs `work`, and prints its error to standard error.
pub fn run_to_exit(work: LocalBoxFuture<'_, anyhow::Result<()>>) -> ExitCode {
    log();
    run(work)
}

/// Runs `work` for an interactive client. Without `RUST_LOG` the log has warnings, and the client's own crate at level
/// `info`.
pub fn run_client_to_exit(client: &str, work: LocalBoxFuture<'_, anyhow::Result<()>>) -> ExitCode {
    subscribe(|| StandardError, io::stderr().is_terminal(), &client_lines(client), None);
    run(work)
}

fn client_lines(client: &str) -> String {
    format!("warn,{client}::=info")
}

/// Runs `work` with `layer` beside the log. The log's filter does not apply to the layer.
pub fn run_to_exit_with(
    layer: impl Layer<Registry> + Send + Sync + 'static,
    work: LocalBoxFuture<'_, anyhow::Result<()>>,
) -> ExitCode {
    subscribe(|| StandardError, io::stderr().is_terminal(), DAEMON_LINES, Some(layer.boxed()));
    run(work)
}

fn run(work: LocalBoxFuture<'_, anyhow::Result<()>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Error: could not start the threads this program needs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(work);
    // The spans that the work left open have ended now.
    runtime.block_on(traces::flush());
    // Running computations are not awaited: all state that matters is on the disk.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Printed regardless of the log's filter.
            match LogFormat::wanted() {
                LogFormat::Text => eprintln!("Error: {error:#}"),
                LogFormat::Json => eprintln!("{}", error_line(&format!("{error:#}"))),
            }
            ExitCode::from(exit::code(&error))
        }
    }
}

/// Sends log lines to standard error, with colours on a terminal. `RUST_LOG` selects the lines, and
/// `METTLE_LOG_FORMAT` their format.
pub fn log() {
    subscribe(|| StandardError, io::stderr().is_terminal(), DAEMON_LINES, None);
}

/// Sends log lines to `writer`, without colours. Only the first call of this or [`log`] has an effect.
pub fn log_to<W: io::Write>(writer: impl Fn() -> W + Send + Sync + 'static) {
    subscribe(writer, false, DAEMON_LINES, None);
}

/// Installs the log, the traces if enabled, and another layer. Each has its own filter. `usual` selects the log's
/// lines unless `RUST_LOG` is set.
fn subscribe(
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    colours: bool,
    usual: &str,
    other: Option<Box<dyn Layer<Registry> + Send + Sync>>,
) {
    let lines = lines::<Registry>(LogFormat::wanted(), writer, colours).with_filter(filter(usual)).boxed();
    let layers: Vec<_> =
        [Some(lines), traces::layer().map(|layer| layer.boxed()), other].into_iter().flatten().collect();
    // A second call, for example in a test process, keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(layers).try_init();
}

static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Drops all later log lines, for a program that draws on the whole terminal.
pub fn silence_log() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Standard error until [`silence_log`] is called.
struct StandardError;

impl io::Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if IS_SILENT.load(Ordering::Relaxed) { Ok(bytes.len()) } else { io::stderr().write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    Text,
    /// One object per line: `timestamp`, `level`, `target`, `message`, and the fields of the event.
    Json,
}

impl LogFormat {
    /// The format in `METTLE_LOG_FORMAT` at the first call: `text` or `json`.
    fn wanted() -> LogFormat {
        static WANTED: OnceLock<LogFormat> = OnceLock::new();
        *WANTED.get_or_init(LogFormat::of_environment)
    }

    fn of_environment() -> LogFormat {
        match std::env::var_os("METTLE_LOG_FORMAT").as_deref().map(|value| value.to_string_lossy()).as_deref()
        {
            None | Some("" | "text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => {
                eprintln!(
                    "METTLE_LOG_FORMAT is {other:?}, but must be \"text\" or \"json\": text is written"
                );
                LogFormat::Text
            }
        }
    }
}

/// Formats the error that ends a program as a JSON log line.
fn error_line(message: &str) -> String {
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let target = env!("CARGO_CRATE_NAME");
    serde_json::json!({ "timestamp": timestamp, "level": "ERROR", "target": target, "message": message })
        .to_string()
}

/// Returns a layer that writes events as lines.
fn lines<S: Subscriber + for<'s> LookupSpan<'s>>(
    format: LogFormat,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    colours: bool,
) -> Box<dyn Layer<S> + Send + Sync> {
    let layer = fmt::layer().with_writer(writer).with_ansi(colours);
    match format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_ansi(false).boxed(),
    }
}

/// The log filter of a daemon without `RUST_LOG`.
const DAEMON_LINES: &str =
    "info,subxt=warn,jsonrpsee=warn,libp2p_swarm=warn,burn=warn,cubecl=warn,pliron=warn";

/// The filter in `RUST_LOG`, or the `usual` one.
fn filter(usual: &str) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual))
}

/// Receives SIGINT (Ctrl-C) and SIGTERM.
///
/// After [`StopSignal::listen`], no signal is lost. A program with several phases creates one value before the first
/// phase: with a new one per phase, a signal between two phases would be ignored.
pub struct StopSignal {
    #[cfg(unix)]
    signals: Vec<tokio::signal::unix::Signal>,
}

impl StopSignal {
    /// Starts to listen. Must be called in a tokio runtime.
    pub fn listen() -> StopSignal {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            let heard = |kind| {
                signal(kind)
                    .inspect_err(|error| tracing::warn!(%error, "a request to end would not be heard"))
            };
            StopSignal { signals: kinds.into_iter().filter_map(|kind| heard(kind).ok()).collect() }
        }
        #[cfg(not(unix))]
        StopSignal {}
    }

    /// Waits for the next signal; returns immediately if one arrived since the last call.
    ///
    /// # Cancel safety
    /// On Unix, no signal is lost if the future is dropped before it completes.
    pub async fn told(&mut self) {
        #[cfg(unix)]
        {
            let told = std::future::poll_fn(|context| {
                let mut polled = self.signals.iter_mut().map(|signal| signal.poll_recv(context).is_ready());
                // Polls all of them, so that each wakes this task.
                let any = polled.by_ref().fold(false, |any, told| any | told);
                if any { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            told.await;
        }
        #[cfg(not(unix))]
        {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

/// Waits for SIGINT or SIGTERM, from the first poll on. For a program with a single phase.
pub async fn stop_requested() {
    StopSignal::listen().told().await;
}

/// Ends this process when standard input closes, so that it does not outlive its parent.
pub fn exit_with_parent() {
    std::thread::spawn(|| {
        let mut stdin = io::stdin().lock();
        let mut buffer = [0; 64];
        // Input is discarded; an end or an error means that the parent has exited.
        while stdin.read(&mut buffer).is_ok_and(|read| 0 < read) {}
        tracing::warn!("the parent process is gone: stopping");
        std::process::exit(EXIT_ORPHANED);
    });
}

/// Exit code of a process that stopped because its parent exited.
pub const EXIT_ORPHANED: i32 = 3;

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::{
        process::Command,
        sync::{Arc, Mutex},
    };

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_as_json_has_one_object_per_event_whatever_a_peer_sends() {
        let written = Lines::default();
        let writer = written.clone();
        let layer = lines(LogFormat::Json, move || writer.clone(), true);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(window = 7, peer = "a\n{\"level\":\"ERROR\"}", "it was refused");
            tracing::info!("next");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let events: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(events.len(), 2);
        let event = &events[0];
        assert_eq!((&event["level"], &event["window"]), (&"WARN".into(), &7.into()), "{event}");
        assert_eq!(event["message"], "it was refused");
        assert!(event["target"].as_str().unwrap().ends_with("program::tests"), "{event}");
        let last: serde_json::Value = serde_json::from_str(&error_line("a\nb")).expect("an object");
        assert!(last["timestamp"].as_str().unwrap().starts_with("20") && last["message"] == "a\nb");
        assert!(event["timestamp"].is_string() && event["peer"].as_str().unwrap().contains('\n'));
    }

    #[test]
    fn a_client_logs_warnings_and_its_own_lines() {
        let written = Lines::default();
        let writer = written.clone();
        let layer = lines(LogFormat::Text, move || writer.clone(), false)
            .with_filter(EnvFilter::new(client_lines("mettle")));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("reconnected to the chain");
            tracing::warn!("the clock is off");
            tracing::info!(target: "mettle::serve", "a newer model");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("the clock is off") && text.contains("a newer model"), "{text}");
        assert!(!text.contains("reconnected"), "{text}");
    }

    #[tokio::test]
    async fn a_request_to_end_is_heard_although_nobody_waited_for_it_when_it_came() {
        let mut stop = StopSignal::listen();
        for signal in ["INT", "TERM"] {
            let tell = format!("kill -{signal} {}", std::process::id());
            assert!(Command::new("sh").args(["-c", &tell]).status().expect("sh is everywhere").success());
            stop.told().await;
        }
    }
}
