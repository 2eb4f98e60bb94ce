//! What every program of ours does around its work: logging, printing, and going when it is told to.

use crate::sign::{self, Paper};
use std::{
    future::Future,
    io::{self, IsTerminal as _, Read as _},
    process::ExitCode,
};

/// Logs, runs `work` to its end, and says on standard error why it failed, if it did.
pub fn run_to_exit(work: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    log();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Error: could not start the threads this program needs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(work);
    // A computation in flight is not waited for: what counts is on disk.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(sign::exit_code(&error))
        }
    }
}

/// Does the work of one command, with standard output to print to and the terminal to ask at.
pub async fn on_paper(
    json: bool,
    work: impl AsyncFnOnce(&mut Paper<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut out, mut aside, mut ask) = (io::stdout(), io::stderr(), sign::ask_terminal);
    let mut paper = Paper::new(json, &mut out, &mut aside, &mut ask);
    let done = work(&mut paper).await;
    paper.finish(&done)?;
    done
}

/// Sends log lines to standard error: for people on a terminal, plain elsewhere. `RUST_LOG` chooses what is said.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,subxt=warn,jsonrpsee=warn,burn=warn"));
    // A second call, in a test's process say, leaves the first in place.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .try_init();
}

/// Waits for Ctrl-C or a polite request to end.
pub async fn told_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// Ends this process when standard input closes: a child whose parent holds the other end never outlives it.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let mut stdin = io::stdin().lock();
        let mut buffer = [0; 64];
        // Whatever comes is thrown away; an end or an error means that the parent is gone.
        while stdin.read(&mut buffer).is_ok_and(|read| 0 < read) {}
        tracing::warn!("the parent process is gone: stopping");
        std::process::exit(EXIT_ORPHANED);
    });
}

/// Exit code of a process that stopped because its parent went away.
pub const EXIT_ORPHANED: i32 = 3;
