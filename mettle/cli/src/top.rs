//! `mettle top`: a run in a terminal, as it changes.

use crate::{help, output::Output, run_feed::RunFeed, signing::SigningSession};
use anyhow::{Context as _, ensure};
use daemon::{
    config::ChainFlags,
    program::{self, StopSignal},
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers},
};
use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use watch::{
    draw::{self, View},
    text,
};

/// Interval between reads of the keyboard.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// Time limit of one read of the chain.
const READ_WITHIN: Duration = Duration::from_secs(3);

/// Watch a run in the terminal
///
/// Shows window and phase, the curve of the loss, and every seat with its weight, its pay and its activity. The loss
/// is that of the window's common sequences, from the validators' public receipts. `q`, Esc or Ctrl-C ends it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle top --chain ws://127.0.0.1:9944 --run 0",
    "mettle top --config miner.toml",
]))]
pub struct Top {
    #[command(flatten)]
    chain_flags: ChainFlags,
}

/// Shows the run until a key ends it.
pub async fn top(command: Top, output: &mut Output<'_>) -> anyhow::Result<()> {
    ensure!(!output.is_json(), "a screen has no JSON: `mettle run show --json` prints a run once");
    ensure!(
        io::stdout().is_terminal() && io::stdin().is_terminal(),
        "this is no terminal: `mettle run show` prints a run once, `mettle web` serves a page"
    );
    let args = command.chain_flags.read(None)?;
    let feed = RunFeed::open(SigningSession::open(&args.chain).await?.chain, args.run, |_| {}).await?;
    let name = match feed.specification().await {
        Ok(spec) => format!("{} (run {})", text::readable(&spec.name), feed.observer.run.id),
        Err(_) => format!("run {}", feed.observer.run.id),
    };
    let stop = StopSignal::listen();
    // A silent chain is a line of the screen; log lines would overwrite the screen.
    program::silence_log();
    let screen = Screen;
    let mut terminal = ratatui::try_init().context("the terminal does not take a full screen")?;
    let shown = show(feed, &name, &mut terminal, stop).await;
    drop(screen);
    shown
}

/// A full screen, restored in every case; after a panic, by ratatui's own hook.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws the run at each block and each change of the terminal's size, until a key or a signal ends it.
async fn show(
    mut feed: RunFeed,
    name: &str,
    terminal: &mut DefaultTerminal,
    mut stop: StopSignal,
) -> anyhow::Result<()> {
    let mut keys = Keys::listen();
    let mut is_first = true;
    loop {
        let view = View {
            title: name,
            observer: &feed.observer,
            text: None,
            absences: feed.absences(),
            block_time: feed.block_time,
            elapsed: None,
            silence: feed.silence(),
        };
        terminal.draw(|frame| {
            let area = frame.area();
            let page = draw::Page::of(&view, area.width.into(), area.height.into());
            frame.render_widget(&page, area);
        })?;
        // An unavailable chain may answer after minutes: the screen shows this, and keys are handled.
        let next = async {
            if !std::mem::take(&mut is_first) {
                feed.changed().await?;
            }
            let _ = tokio::time::timeout(READ_WITHIN, feed.look()).await;
            anyhow::Ok(())
        };
        tokio::select! {
            next = next => next?,
            event = keys.events.recv() => match event.context("the keyboard cannot be read")?? {
                Event::Key(key) if ends(key) => return Ok(()),
                _ => {}
            },
            () = stop.told() => return Ok(()),
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Keys and changes of the terminal's size.
struct Keys {
    events: mpsc::Receiver<io::Result<Event>>,
    ended: Arc<AtomicBool>,
}

impl Keys {
    fn listen() -> Keys {
        let (to, events) = mpsc::channel(16);
        let ended = Arc::new(AtomicBool::new(false));
        let stop = ended.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let read = match event::poll(KEYS_EVERY) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let failed = read.is_err();
                if to.blocking_send(read).is_err() || failed {
                    return;
                }
            }
        });
        Keys { events, ended }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_end_it() {
        let key = |code, modifiers| ends(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE) && key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE) && !key(KeyCode::Enter, KeyModifiers::NONE));
    }
}
