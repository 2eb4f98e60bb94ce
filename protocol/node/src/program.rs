//! What every program does around its work: logging, printing, and stopping.

use crate::exit;
use futures::future::LocalBoxFuture;
use std::{
    io::{self, IsTerminal as _, Read as _},
    process::ExitCode,
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Sets up logging and a runtime, runs `work`, and prints its error to standard error.
pub fn run_to_exit(work: LocalBoxFuture<'_, anyhow::Result<()>>) -> ExitCode {
    log();
    run(work)
}

/// The same, with `layer` beside the log. The log's filter does not hold for it.
pub fn run_to_exit_with(
    layer: impl Layer<Registry> + Send + Sync,
    work: LocalBoxFuture<'_, anyhow::Result<()>>,
) -> ExitCode {
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let _ = tracing_subscriber::registry().with(layer).with(lines.with_filter(filter())).try_init();
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
    // Running computations are not waited for: what counts is on the disk.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(exit::code(&error))
        }
    }
}

/// Sends log lines to standard error, with colours on a terminal. `RUST_LOG` chooses the lines.
pub fn log() {
    subscribe(io::stderr, io::stderr().is_terminal());
}

/// Sends log lines to `writer`, without colours. The first of this and [`log`] counts.
pub fn log_to<W: io::Write>(writer: impl Fn() -> W + Send + Sync + 'static) {
    subscribe(writer, false);
}

fn subscribe(
    writer: impl for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
    colours: bool,
) {
    // A second call leaves the first in place, in the process of a test for example.
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter()).with_writer(writer).with_ansi(colours).try_init();
}

/// The lines that `RUST_LOG` names, or the usual ones.
fn filter() -> EnvFilter {
    EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,subxt=warn,jsonrpsee=warn,burn=warn"))
}

/// Receives SIGINT (Ctrl-C) and SIGTERM.
///
/// From [`StopSignal::listen`] on, no signal is lost. A program with several phases makes one value before the first:
/// with a new one per phase, a signal between two would be ignored.
pub struct StopSignal {
    #[cfg(unix)]
    signals: Vec<tokio::signal::unix::Signal>,
}

impl StopSignal {
    /// Listens from now on. Called in a tokio runtime.
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

    /// Waits for the next signal; returns at once if one came since the last call.
    pub async fn told(&mut self) {
        #[cfg(unix)]
        {
            let told = std::future::poll_fn(|context| {
                let mut polled = self.signals.iter_mut().map(|signal| signal.poll_recv(context).is_ready());
                // All are polled, so that each wakes this task.
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

/// Ends this process when standard input closes, so that it does not outlive the parent that holds the other end.
pub fn exit_with_parent() {
    std::thread::spawn(|| {
        let mut stdin = io::stdin().lock();
        let mut buffer = [0; 64];
        // Input is dropped; an end or an error means that the parent is gone.
        while stdin.read(&mut buffer).is_ok_and(|read| 0 < read) {}
        tracing::warn!("the parent process is gone: stopping");
        std::process::exit(EXIT_ORPHANED);
    });
}

/// Exit code of a process that stopped because its parent went away.
pub const EXIT_ORPHANED: i32 = 3;

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

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
