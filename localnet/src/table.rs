//! The live table on a terminal, and plain lines elsewhere. Both show the same [`Observer`].

use crate::{log, observe::Observer, units};
use protocol::{
    Phase, Role, Uid, Window,
    view::{Outcome, SeatView, VoidReason},
};
use ratatui::{
    Terminal, TerminalOptions, Viewport,
    backend::CrosstermBackend,
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Paragraph, Widget as _, Wrap},
};
use std::{
    io::{self, IsTerminal as _, Stdout},
    time::Duration,
};

/// Rows of the loss curve, where there is space.
const CURVE_ROWS: usize = 6;
/// Columns of the curve's labels.
const CURVE_LABEL: usize = 7;
/// Between two columns.
const GAP: usize = 2;
/// A silence of the chain that is shown.
const SILENCE: Duration = Duration::from_secs(3);

/// Where the state of the network is shown.
pub enum Display {
    Live(Live),
    Plain(Plain),
}

/// The table, redrawn in place.
pub struct Live {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    rows: u16,
}

/// One line for each window and for each fault, as far as they have been printed.
#[derive(Default)]
pub struct Plain {
    windows: u32,
    faults: usize,
    missed: usize,
}

/// What is shown.
pub struct View<'a> {
    pub observer: &'a Observer,
    /// In nats per token.
    pub unigram_loss: f64,
    /// Since the chain answered last.
    pub silence: Duration,
}

impl Display {
    /// A live table if standard output is a terminal and `plain` is not asked for.
    pub fn open(plain: bool) -> io::Result<Display> {
        if plain || !io::stdout().is_terminal() {
            return Ok(Display::Plain(Plain::default()));
        }
        let live = Live { terminal: terminal(1)?, rows: 1 };
        log::hold();
        Ok(Display::Live(live))
    }

    /// Shows what is new.
    pub fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        match self {
            Display::Live(live) => live.show(view),
            Display::Plain(plain) => {
                plain.show(view.observer);
                Ok(())
            }
        }
    }

    /// Leaves the terminal as it should be found, with the last table above.
    pub fn close(self) -> io::Result<()> {
        if let Display::Live(mut live) = self {
            // Below the table, wherever on the screen it ended up.
            let bottom = live.terminal.get_frame().area().bottom();
            live.terminal.set_cursor_position((0, bottom.saturating_sub(1)))?;
            live.terminal.show_cursor()?;
            println!();
            log::release();
        }
        Ok(())
    }
}

fn terminal(rows: u16) -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    let options = TerminalOptions { viewport: Viewport::Inline(rows) };
    Terminal::with_options(CrosstermBackend::new(io::stdout()), options)
}

impl Live {
    fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        for line in log::take() {
            self.print_above(line)?;
        }
        let size = self.terminal.size()?;
        let lines = render(view, size.width.into(), size.height.into());
        let rows = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(size.height).max(1);
        if rows != self.rows {
            // An inline viewport has a fixed height: another one takes its place.
            self.terminal.clear()?;
            let top = self.terminal.get_frame().area().top();
            self.terminal.set_cursor_position((0, top))?;
            self.terminal = terminal(rows)?;
            self.rows = rows;
        }
        self.terminal.draw(|frame| frame.render_widget(Paragraph::new(lines), frame.area()))?;
        Ok(())
    }

    fn print_above(&mut self, line: String) -> io::Result<()> {
        let width = usize::from(self.terminal.size()?.width).max(1);
        let rows = u16::try_from(line.chars().count().div_ceil(width).max(1)).unwrap_or(1);
        self.terminal.insert_before(rows, |buffer| {
            Paragraph::new(line).wrap(Wrap { trim: false }).render(buffer.area, buffer);
        })
    }
}

impl Plain {
    fn show(&mut self, observer: &Observer) {
        for fault in &observer.faults[self.faults..] {
            let seat = observer.name_of(Uid(fault.uid));
            println!(
                "window {:>4}  {} reports {seat}: {} ({})",
                fault.window, fault.by, fault.label, fault.reason
            );
        }
        self.faults = observer.faults.len();
        for (window, name, reason) in &observer.missed[self.missed..] {
            println!("window {:>4}  {name}: {reason}", window.0);
        }
        self.missed = observer.missed.len();
        // A window is printed once it is judged, or the next one is finalised.
        while self.windows < observer.windows()
            && (observer.held_out.contains_key(&Window(self.windows))
                || self.windows.saturating_add(1) < observer.windows())
        {
            println!("{}", window_line(observer, Window(self.windows)));
            self.windows += 1;
        }
    }
}

/// One finalised window on one line.
fn window_line(observer: &Observer, window: Window) -> String {
    let outcome = observer.outcomes.get(&window).map_or("", outcome_word);
    let loss = observer.held_out_loss(window).map_or("   -".into(), |loss| format!("{loss:.2}"));
    let shares: Vec<String> = observer
        .seats_of(Role::Miner)
        .filter_map(|seat| observer.weight_share(seat.id.uid))
        .map(units::percent)
        .collect();
    let weights =
        if shares.is_empty() { "no weights yet".to_owned() } else { format!("weights {}", shares.join(" ")) };
    let merged = match observer.last_merge {
        Some((merged, bytes, inputs)) if merged == window => {
            format!("  {}, {}", units::count(inputs, "contribution"), units::bytes(bytes))
        }
        _ => String::new(),
    };
    format!("window {:>4}  {outcome:<6}  held-out loss {loss:>4}  {weights}{merged}", window.0)
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Merged(_) => "merged",
        Outcome::Void(VoidReason::TooFewContributions) => "void: too few contributions",
        Outcome::Void(VoidReason::NoAgreement) => "void: no agreement",
        Outcome::Void(VoidReason::Paused) => "void: paused",
    }
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

/// The whole table for a terminal of this size. Columns that do not fit are left out, the least important first; of
/// seats that do not fit, the number is shown.
fn render(view: &View<'_>, width: usize, height: usize) -> Vec<Line<'static>> {
    let observer = view.observer;
    let mut lines = header(view);
    let (miners, validators) = seats(observer, width);
    let (rows, space) = (miners.len() + validators.len() + 1, height.saturating_sub(lines.len()));
    // The curve takes what is left, if that shows anything.
    let curve_rows = space.saturating_sub(rows + 2).min(CURVE_ROWS);
    if 2 <= curve_rows {
        lines.extend(curve(observer, width, curve_rows));
    }
    let left = height.saturating_sub(lines.len());
    let mut block = miners;
    if rows < left {
        block.insert(0, Line::default());
    }
    if rows <= left {
        block.push(Line::default());
    }
    block.extend(validators);
    if left < block.len() {
        let hidden = block.len() - left.saturating_sub(1);
        block.truncate(left.saturating_sub(1));
        block.push(Line::from(format!("… {hidden} more rows: enlarge the terminal")).yellow());
    }
    lines.extend(block);
    lines
}

fn header(view: &View<'_>) -> Vec<Line<'static>> {
    let observer = view.observer;
    let schedule = observer.run.params.schedule;
    let place = match schedule.locate(observer.block) {
        Some((window, offset)) => {
            let phase = schedule.phase_at(observer.block).map_or("", |(_, phase)| phase_word(phase));
            let left = schedule.blocks_per_window.saturating_sub(offset);
            format!("window {}   {phase}   block {}, {left} left", window.0, observer.block)
        }
        None => format!("block {}, the run starts at {}", observer.block, schedule.start),
    };
    let losses = observer.held_out_losses();
    let loss = match (losses.first(), losses.last()) {
        (Some((_, first)), Some((_, last))) => units::losses(*first, *last, view.unigram_loss),
        _ => "held-out loss: not measured yet".into(),
    };
    let merge = match (&observer.last_merge, observer.outcomes.iter().next_back()) {
        (Some((window, bytes, inputs)), Some((last, outcome))) => {
            let mut text = format!(
                "last merge: window {}, {}, {}",
                window.0,
                units::count(*inputs, "contribution"),
                units::bytes(*bytes)
            );
            if last != window {
                text.push_str(&format!("   window {} is {}", last.0, outcome_word(outcome)));
            }
            text
        }
        (None, Some((last, outcome))) => format!("window {} is {}", last.0, outcome_word(outcome)),
        (_, None) => "no window is finalised yet".into(),
    };
    let state = if SILENCE < view.silence {
        Span::styled(
            format!("no answer from the chain for {} s", view.silence.as_secs()),
            Style::new().red().bold(),
        )
    } else if observer.lineage_agreed() {
        "one model everywhere".green()
    } else {
        "MODELS DIFFER".red().bold()
    };
    let title = vec!["Mettle localnet   ".bold(), state];
    vec![Line::from(title), Line::from(place), Line::from(loss), Line::from(merge)]
}

/// The held-out loss of the latest windows, one column each.
fn curve(observer: &Observer, width: usize, rows: usize) -> Vec<Line<'static>> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let losses = observer.held_out_losses();
    let shown = &losses[losses.len().saturating_sub(width.saturating_sub(CURVE_LABEL))..];
    let Some((first, _)) = shown.first() else { return Vec::new() };
    let highest = shown.iter().map(|(_, loss)| *loss).fold(f64::MIN, f64::max);
    let lowest = shown.iter().map(|(_, loss)| *loss).fold(f64::MAX, f64::min);
    let span = (highest - lowest).max(1e-9);
    let mut lines = vec![Line::from(format!("held-out loss by window, from window {}", first.0)).dim()];
    for row in (0..rows).rev() {
        let label = match row {
            row if row + 1 == rows => format!("{highest:>5.2} "),
            0 => format!("{lowest:>5.2} "),
            _ => " ".repeat(CURVE_LABEL - 1),
        };
        let bars = shown.iter().map(|(_, loss)| {
            // The lowest still shows as one eighth.
            let eighths = 1.0 + (rows as f64 * 8.0 - 1.0) * (loss - lowest) / span;
            EIGHTHS[((eighths - row as f64 * 8.0).clamp(0.0, 8.0)) as usize]
        });
        lines.push(Line::from(vec![label.into(), bars.collect::<String>().cyan()]));
    }
    lines
}

/// A column of a table of seats.
struct Column {
    title: &'static str,
    /// Columns with a higher rank are left out first.
    rank: u8,
    right: bool,
    cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.chain([self.title.chars().count()]).max().unwrap_or(0)
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width();
        if self.right { format!("{text:>width$}") } else { format!("{text:<width$}") }
    }
}

/// The rows of miners and of validators, titles first.
fn seats(observer: &Observer, width: usize) -> (Vec<Line<'static>>, Vec<Line<'static>>) {
    let sorted = |role| {
        let mut seats: Vec<&SeatView> = observer.seats_of(role).collect();
        seats.sort_by_key(|seat| observer.place_of(seat.id.uid));
        seats
    };
    let left = |title, rank, cells| Column { title, rank, right: false, cells };
    let right = |title, rank, cells| Column { title, rank, right: true, cells };
    let of = |seats: &[&SeatView], cell: &dyn Fn(&SeatView) -> String| -> Vec<String> {
        seats.iter().map(|seat| cell(seat)).collect()
    };
    let seen = |seat: &SeatView| observer.seen.get(&seat.id.uid).cloned().unwrap_or_default();
    let name = |seat: &SeatView| observer.name_of(seat.id.uid);
    let strategy = |seat: &SeatView| observer.strategy_of(seat.id.uid).to_owned();
    let paid = |seat: &SeatView| units::amount(seat.earned);
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());

    let miners = sorted(Role::Miner);
    let score = |seat: &SeatView| dash(seen(seat).score.map(|score| format!("{score:.3}")));
    let weight = |seat: &SeatView| dash(observer.weight_share(seat.id.uid).map(units::percent));
    let waits = |seat: &SeatView| dash(seen(seat).data_wait_share().map(units::percent));
    let miners = vec![
        left("miner", 0, of(&miners, &name)),
        left("strategy", 3, of(&miners, &strategy)),
        right("committed", 6, of(&miners, &|seat| seen(seat).committed.to_string())),
        right("attested", 7, of(&miners, &|seat| seen(seat).attested.to_string())),
        right("selected", 4, of(&miners, &|seat| seen(seat).selected.to_string())),
        right("score", 8, of(&miners, &score)),
        right("weight", 5, of(&miners, &weight)),
        right("data wait", 9, of(&miners, &waits)),
        right("paid", 2, of(&miners, &paid)),
        left("now", 1, of(&miners, &|seat| miner_now(observer, seat.id.uid).into())),
    ];
    let validators = sorted(Role::Validator);
    let validators = vec![
        left("validator", 0, of(&validators, &name)),
        left("strategy", 3, of(&validators, &strategy)),
        right("attested", 5, of(&validators, &|seat| seen(seat).attested.to_string())),
        right("voted", 4, of(&validators, &|seat| seen(seat).selected.to_string())),
        right("dissents", 6, of(&validators, &|seat| seen(seat).dissents.to_string())),
        right("paid", 2, of(&validators, &paid)),
        left("now", 1, of(&validators, &|seat| validator_now(observer, seat.id.uid).into())),
    ];
    (grid(miners, width), grid(validators, width))
}

/// Titles and rows of the columns that fit into `width`.
fn grid(mut columns: Vec<Column>, width: usize) -> Vec<Line<'static>> {
    let total = |columns: &[Column]| columns.iter().map(|column| column.width() + GAP).sum::<usize>() - GAP;
    while 1 < columns.len() && width < total(&columns) {
        let last = (0..columns.len()).max_by_key(|&at| columns[at].rank).unwrap_or(0);
        columns.remove(last);
    }
    let row = |cell: &dyn Fn(&Column) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let mut lines = vec![Line::from(row(&|column| column.padded(column.title))).bold()];
    for at in 0..rows {
        let line = Line::from(row(&|column| column.padded(&column.cells[at])));
        let is_faulty = columns.iter().any(|column| column.title == "now" && column.cells[at] == FAULTY);
        lines.push(if is_faulty { line.style(Style::new().fg(Color::Red)) } else { line });
    }
    lines
}

const FAULTY: &str = "faulty";

/// The state of a miner in the window that is open.
fn miner_now(observer: &Observer, uid: Uid) -> &'static str {
    let Some(view) = &observer.current else { return "" };
    let selection = view.selection.as_ref();
    if selection.is_some_and(|selection| selection.faulty.contains(&uid)) {
        FAULTY
    } else if selection.is_some_and(|selection| selection.selected.iter().any(|one| one.uid == uid)) {
        "selected"
    } else if view.commitments.iter().any(|(other, _)| *other == uid) {
        "committed"
    } else {
        "training"
    }
}

/// The state of a validator in the window that is open.
fn validator_now(observer: &Observer, uid: Uid) -> &'static str {
    let Some(view) = &observer.current else { return "" };
    if view.votes.iter().any(|(other, _)| *other == uid) {
        "voted"
    } else if view.attested.contains(&uid) {
        "attested"
    } else {
        "waiting"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::network;
    use expect_test::{Expect, expect};

    fn text(observer: &Observer, width: usize, height: usize) -> String {
        let view = View { observer, unigram_loss: 6.32, silence: Duration::ZERO };
        let lines = render(&view, width, height);
        let lines: Vec<String> = lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
        assert!(lines.len() <= height, "{} lines", lines.len());
        // The header and the title of the curve are cut on a very narrow terminal.
        assert!(lines.iter().skip(5).all(|line| line.chars().count() <= width), "{lines:#?}");
        lines.join("\n")
    }

    fn check(width: usize, height: usize, expected: Expect) {
        expected.assert_eq(&text(&network(), width, height));
    }

    #[test]
    fn at_120_columns_every_column_is_shown() {
        check(
            120,
            40,
            expect![[r#"
                Mettle localnet   one model everywhere
                window 6   merge and vote   block #376, 4 left
                held-out loss 3.07 (start 7.99 · unigram baseline 6.32)
                last merge: window 5, 4 contributions, 91.6 kB
                held-out loss by window, from window 0
                 7.99 █
                      █▄
                      ██
                      ██▆
                      ███▅
                 3.07 ████▆▃▁

                miner    strategy  committed  attested  selected  score  weight  data wait         paid  now
                miner-0  honest            6         5         5  0.300    34 %        0 %   297.39 MTL  committed
                miner-1  honest            6         5         5  0.400    33 %        0 %  1184.71 MTL  committed
                miner-2  honest            6         5         5  0.500    32 %        0 %     0.00 MTL  training
                miner-3  copycat           6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty
                uid 7    external          0         0         0      -       -          -     0.50 MTL  training

                validator    strategy  attested  voted  dissents       paid  now
                validator-0  honest           6      6         1  61.23 MTL  attested
                validator-1  honest           6      6         1  61.23 MTL  voted
                validator-2  honest           6      6         1  61.23 MTL  waiting"#]],
        );
    }

    #[test]
    fn at_80_columns_the_least_important_columns_are_left_out() {
        check(
            80,
            24,
            expect![[r#"
                Mettle localnet   one model everywhere
                window 6   merge and vote   block #376, 4 left
                held-out loss 3.07 (start 7.99 · unigram baseline 6.32)
                last merge: window 5, 4 contributions, 91.6 kB
                held-out loss by window, from window 0
                 7.99 █
                      █▄
                      ██
                      ██▆
                      ███▅
                 3.07 ████▆▃▁

                miner    strategy  committed  attested  selected  weight         paid  now
                miner-0  honest            6         5         5    34 %   297.39 MTL  committed
                miner-1  honest            6         5         5    33 %  1184.71 MTL  committed
                miner-2  honest            6         5         5    32 %     0.00 MTL  training
                miner-3  copycat           6         5         5     0 %    <0.01 MTL  faulty
                uid 7    external          0         0         0       -     0.50 MTL  training

                validator    strategy  attested  voted  dissents       paid  now
                validator-0  honest           6      6         1  61.23 MTL  attested
                validator-1  honest           6      6         1  61.23 MTL  voted
                validator-2  honest           6      6         1  61.23 MTL  waiting"#]],
        );
    }

    #[test]
    fn at_60_columns_seats_strategies_and_pay_are_left() {
        check(
            60,
            24,
            expect![[r#"
                Mettle localnet   one model everywhere
                window 6   merge and vote   block #376, 4 left
                held-out loss 3.07 (start 7.99 · unigram baseline 6.32)
                last merge: window 5, 4 contributions, 91.6 kB
                held-out loss by window, from window 0
                 7.99 █
                      █▄
                      ██
                      ██▆
                      ███▅
                 3.07 ████▆▃▁

                miner    strategy  selected  weight         paid  now
                miner-0  honest           5    34 %   297.39 MTL  committed
                miner-1  honest           5    33 %  1184.71 MTL  committed
                miner-2  honest           5    32 %     0.00 MTL  training
                miner-3  copycat          5     0 %    <0.01 MTL  faulty
                uid 7    external         0       -     0.50 MTL  training

                validator    strategy  attested  voted       paid  now
                validator-0  honest           6      6  61.23 MTL  attested
                validator-1  honest           6      6  61.23 MTL  voted
                validator-2  honest           6      6  61.23 MTL  waiting"#]],
        );
    }

    #[test]
    fn on_a_low_terminal_the_number_of_hidden_rows_is_shown() {
        check(
            80,
            12,
            expect![[r#"
                Mettle localnet   one model everywhere
                window 6   merge and vote   block #376, 4 left
                held-out loss 3.07 (start 7.99 · unigram baseline 6.32)
                last merge: window 5, 4 contributions, 91.6 kB
                miner    strategy  committed  attested  selected  weight         paid  now
                miner-0  honest            6         5         5    34 %   297.39 MTL  committed
                miner-1  honest            6         5         5    33 %  1184.71 MTL  committed
                miner-2  honest            6         5         5    32 %     0.00 MTL  training
                miner-3  copycat           6         5         5     0 %    <0.01 MTL  faulty
                uid 7    external          0         0         0       -     0.50 MTL  training
                validator    strategy  attested  voted  dissents       paid  now
                … 3 more rows: enlarge the terminal"#]],
        );
    }

    #[test]
    fn every_seat_is_told_from_the_others_at_any_width() {
        let observer = network();
        for width in [20, 40, 60, 80, 110, 200] {
            let text = text(&observer, width, 60);
            for seat in &observer.seats {
                assert!(text.contains(&observer.name_of(seat.id.uid)), "at {width}:\n{text}");
            }
        }
    }

    #[test]
    fn a_silent_chain_is_shown() {
        let view = View { observer: &network(), unigram_loss: 6.32, silence: Duration::from_secs(12) };
        let title = render(&view, 80, 24)[0].to_string();
        assert_eq!(title, "Mettle localnet   no answer from the chain for 12 s");
    }

    #[test]
    fn the_plain_line_of_a_window() {
        let observer = network();
        let lines: Vec<String> = [0, 2, 5].map(|window| window_line(&observer, Window(window))).to_vec();
        expect![[r#"
            window    0  merged  held-out loss 7.99  weights 34 % 33 % 32 % 0 %
            window    2  void: no agreement  held-out loss 5.31  weights 34 % 33 % 32 % 0 %
            window    5  merged  held-out loss 3.28  weights 34 % 33 % 32 % 0 %  4 contributions, 91.6 kB"#]]
        .assert_eq(&lines.join("\n"));
    }
}
