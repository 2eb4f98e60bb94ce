//! The live table on a terminal, and plain lines elsewhere. Both draw the same [`Observer`].

use crate::observe::Observer;
use protocol::{
    Phase, Role, Window,
    view::{Outcome, VoidReason},
};
use ratatui::{
    Terminal, TerminalOptions, Viewport,
    backend::{Backend, CrosstermBackend},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table as Grid},
};
use std::io::{self, IsTerminal as _, Stdout};

/// Rows around the seats: the header lines, the loss curve, the borders.
const FIXED_ROWS: u16 = 11;

/// Where the network's state is shown.
pub enum Display {
    /// Redrawn in place.
    Live { terminal: Box<Terminal<CrosstermBackend<Stdout>>> },
    /// One line for each window, and for each thing that happens.
    Plain { windows_said: u32, faults_said: usize, missed_said: usize },
}

impl Display {
    /// A live table if standard output is a terminal and `plain` is not asked for.
    pub fn open(plain: bool, seats: usize) -> io::Result<Display> {
        if plain || !io::stdout().is_terminal() {
            return Ok(Display::Plain { windows_said: 0, faults_said: 0, missed_said: 0 });
        }
        let rows = u16::try_from(seats).unwrap_or(u16::MAX).saturating_add(FIXED_ROWS);
        let options = TerminalOptions { viewport: Viewport::Inline(rows) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stdout()), options)?;
        Ok(Display::Live { terminal: Box::new(terminal) })
    }

    /// Shows what is new.
    pub fn show(&mut self, observer: &Observer, unigram_loss: f64) -> io::Result<()> {
        match self {
            Display::Live { terminal } => draw(terminal, observer, unigram_loss),
            Display::Plain { windows_said, faults_said, missed_said } => {
                for fault in &observer.faults[*faults_said..] {
                    let who = observer.name_of(protocol::Uid(fault.uid));
                    println!(
                        "window {:>4}  {} says of {who}: {} ({})",
                        fault.window, fault.by, fault.label, fault.reason
                    );
                }
                *faults_said = observer.faults.len();
                for (window, name, reason) in &observer.missed[*missed_said..] {
                    println!("window {:>4}  {name}: {reason}", window.0);
                }
                *missed_said = observer.missed.len();
                // A window is said once it is judged, or the next one is fixed.
                while *windows_said < observer.windows()
                    && (observer.held_out.contains_key(&Window(*windows_said))
                        || windows_said.saturating_add(1) < observer.windows())
                {
                    println!("{}", window_line(observer, Window(*windows_said)));
                    *windows_said += 1;
                }
                Ok(())
            }
        }
    }

    /// Leaves the terminal as it should be found, with the last table above.
    pub fn close(self) -> io::Result<()> {
        if let Display::Live { mut terminal } = self {
            // Below the table, wherever on the screen it ended up.
            let bottom = terminal.get_frame().area().bottom();
            terminal.set_cursor_position((0, bottom.saturating_sub(1)))?;
            terminal.show_cursor()?;
            println!();
        }
        Ok(())
    }
}

/// One fixed window on one line.
fn window_line(observer: &Observer, window: Window) -> String {
    let outcome = observer.outcomes.get(&window).map_or("", outcome_word);
    let loss = loss_at(observer, window).map_or("      -".into(), |loss| format!("{loss:>7.4}"));
    let weights: Vec<String> = observer
        .seats_of(Role::Miner)
        .map(|seat| observer.weights.get(&seat.id.uid).copied().unwrap_or(0).to_string())
        .collect();
    let merged = match observer.last_merge {
        Some((merged, bytes, inputs)) if merged == window => format!("{inputs} contributions, {bytes} bytes"),
        _ => String::new(),
    };
    format!(
        "window {:>4}  {outcome:<8} held-out loss {loss}  weights {}  {merged}",
        window.0,
        weights.join(" ")
    )
}

fn loss_at(observer: &Observer, window: Window) -> Option<f64> {
    let losses = observer.held_out.get(&window)?;
    Some(losses.values().sum::<f64>() / losses.len().max(1) as f64)
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Merged(_) => "merged",
        Outcome::Void(VoidReason::TooFewContributions) => "void: too few contributions",
        Outcome::Void(VoidReason::NoAgreement) => "void: no agreement",
        Outcome::Void(VoidReason::Paused) => "void: paused",
    }
}

fn draw<B: Backend<Error = io::Error>>(
    terminal: &mut Terminal<B>,
    observer: &Observer,
    unigram_loss: f64,
) -> io::Result<()> {
    terminal.draw(|frame| {
        let [head, curve, seats] =
            Layout::vertical([Constraint::Length(4), Constraint::Length(4), Constraint::Min(3)])
                .areas(frame.area());
        frame.render_widget(header(observer, unigram_loss), head);
        frame.render_widget(loss_curve(observer).as_sparkline(), curve);
        frame.render_widget(grid(observer), seats);
    })?;
    Ok(())
}

fn header(observer: &Observer, unigram_loss: f64) -> Paragraph<'static> {
    let schedule = observer.run.params.schedule;
    let place = match schedule.locate(observer.block) {
        Some((window, offset)) => {
            let phase = schedule.phase_at(observer.block).map_or("", |(_, phase)| phase_word(phase));
            let left = schedule.blocks_per_window.saturating_sub(offset);
            format!("window {}   {phase}   block {} ({left} left in the window)", window.0, observer.block)
        }
        None => format!("block {}, the run starts at {}", observer.block, schedule.start),
    };
    let losses = observer.held_out_losses();
    let loss = match (losses.first(), losses.last()) {
        (Some((_, first)), Some((_, last))) => {
            format!(
                "held-out loss {last:.4} (began at {first:.4}; how often a token occurs: {unigram_loss:.4})"
            )
        }
        _ => "held-out loss: not measured yet".into(),
    };
    let merge = match (&observer.last_merge, observer.outcomes.iter().next_back()) {
        (Some((window, bytes, inputs)), Some((last, outcome))) => format!(
            "last merge: window {}, {inputs} contributions, {:.1} kB   window {} is {}",
            window.0,
            *bytes as f64 / 1e3,
            last.0,
            outcome_word(outcome)
        ),
        _ => "no window is fixed yet".into(),
    };
    let lineage = if observer.lineage_agreed() {
        Span::styled("one model everywhere", Style::new().fg(Color::Green))
    } else {
        Span::styled("MODELS DIFFER", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD))
    };
    Paragraph::new(vec![
        Line::from(vec![Span::raw("Mettle localnet   ").bold(), lineage]),
        Line::from(place),
        Line::from(loss),
        Line::from(merge),
    ])
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Commit => "train and commit",
        Phase::Reveal => "reveal",
        Phase::Attest => "attest",
        Phase::Vote => "merge and vote",
        Phase::Finalise => "finalise",
    }
}

/// The held-out loss over time, as heights.
struct Curve {
    heights: Vec<u64>,
}

fn loss_curve(observer: &Observer) -> Curve {
    let losses: Vec<f64> = observer.held_out_losses().into_iter().map(|(_, loss)| loss).collect();
    let highest = losses.iter().copied().fold(f64::MIN, f64::max);
    let lowest = losses.iter().copied().fold(f64::MAX, f64::min);
    let span = (highest - lowest).max(1e-9);
    // A floor under the lowest, so that it still shows.
    let heights = losses.iter().map(|loss| (10.0 + 90.0 * (loss - lowest) / span) as u64).collect();
    Curve { heights }
}

impl Curve {
    fn as_sparkline(&self) -> Sparkline<'_> {
        Sparkline::default()
            .block(Block::new().borders(Borders::TOP).title(" held-out loss, window by window "))
            .data(&self.heights)
            .max(100)
            .style(Style::new().fg(Color::Cyan))
    }
}

fn grid(observer: &Observer) -> Grid<'static> {
    let header =
        ["seat", "strategy", "committed", "attested", "selected", "score", "weight", "waits", "paid", "now"];
    let mut seats: Vec<_> = observer.seats.iter().collect();
    seats.sort_by_key(|seat| (seat.role, observer.name_of(seat.id.uid)));
    let rows = seats.into_iter().map(|seat| {
        let uid = seat.id.uid;
        let seen = observer.seen.get(&uid).cloned().unwrap_or_default();
        let miner = seat.role == Role::Miner;
        let score = seen.score.filter(|_| miner).map_or("-".into(), |score| format!("{score:.3}"));
        let weight = match observer.weights.get(&uid) {
            Some(weight) if miner => weight.to_string(),
            _ => "-".into(),
        };
        // For data, of the time that it trained.
        let waits = seen.data_wait_share().map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
        let committed = if miner { seen.committed.to_string() } else { "-".into() };
        Row::new(vec![
            Cell::from(observer.name_of(uid)),
            Cell::from(observer.strategy_of(uid).to_owned()),
            Cell::from(committed),
            Cell::from(seen.attested.to_string()),
            Cell::from(seen.selected.to_string()),
            Cell::from(score),
            Cell::from(weight),
            Cell::from(waits),
            Cell::from(observer.paid(uid).to_string()),
            Cell::from(doing_now(observer, uid, miner)),
        ])
    });
    let widths = [
        Constraint::Length(13),
        Constraint::Length(17),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(14),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(20),
        Constraint::Min(10),
    ];
    let titles = Row::new(header.map(|title| if title == "selected" { "selected/voted" } else { title }))
        .style(Style::new().add_modifier(Modifier::BOLD));
    Grid::new(rows, widths).header(titles).block(Block::new().borders(Borders::TOP).title(" seats "))
}

/// What a seat has done in the window that is open.
fn doing_now(observer: &Observer, uid: protocol::Uid, miner: bool) -> String {
    let Some(view) = &observer.current else { return String::new() };
    if miner {
        let committed = view.commitments.iter().any(|(other, _)| *other == uid);
        let chosen =
            view.selection.as_ref().is_some_and(|selection| selection.selected.iter().any(|s| s.uid == uid));
        let faulty = view.selection.as_ref().is_some_and(|selection| selection.faulty.contains(&uid));
        return match (committed, chosen, faulty) {
            (_, _, true) => "faulty".into(),
            (_, true, _) => "selected".into(),
            (true, ..) => "committed".into(),
            _ => "training".into(),
        };
    }
    match (view.attested.contains(&uid), view.votes.iter().any(|(other, _)| *other == uid)) {
        (_, true) => "voted".into(),
        (true, _) => "attested".into(),
        _ => "waiting".into(),
    }
}
