//! A live table for a terminal of any size: the state of the network, the curve of the loss, and the seats. Content
//! that does not fit is omitted by importance: whole columns, and seats as a line with their number.

#[cfg(test)]
mod tests;

use crate::{
    observe::{Absence, Doing, HONEST, Mark, Observer, Text, outcome_word, phase_word},
    units,
};
use protocol::{
    Role, Uid,
    view::{Outcome, SeatView},
};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Style},
    symbols::Marker,
    text::{Line, Span},
    widgets::{Axis, Chart, Dataset, GraphType, Widget},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Space between two columns, and between two facts of a line.
const GAP: usize = 2;
/// Space between two tables beside each other.
const TABLES_GAP: usize = 6;
/// Minimum height of a curve: a lower one shows nothing.
const CURVE_ROWS_MIN: usize = 6;
/// Rows of the curve per label of its axis.
const LABEL_ROWS: usize = 4;
/// Number of windows from which the first fifth, where the loss falls fastest, does not stretch the axis.
const CURVE_SETTLED: usize = 10;
const BAR: usize = 20;
/// Silence of the chain that is shown as trouble.
const SILENCE: Duration = Duration::from_secs(3);

const GOOD: Style = Style::new().fg(Color::Green);
const POOR: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);
const TITLE: Style = Style::new().bold();
const DIM: Style = Style::new().dim();
const PLAIN: Style = Style::new();

/// The current state of the network.
pub struct View<'a> {
    /// The title of the view.
    pub title: &'a str,
    pub observer: &'a Observer,
    /// `None` if no journal can be read: tokens and baseline are then unknown.
    pub text: Option<Text>,
    /// The absent seats.
    pub absences: BTreeMap<Uid, Absence>,
    /// Interval between two blocks.
    pub block_time: Duration,
    /// Time since the network's start, if this program started it.
    pub elapsed: Option<Duration>,
    /// Time since the chain's last answer.
    pub silence: Duration,
}

/// A view, laid out for a terminal.
pub struct Page {
    header: Vec<Line<'static>>,
    curve: Option<Curve>,
    seats: Vec<Line<'static>>,
}

struct Curve {
    rows: usize,
    /// Pairs of window and loss.
    losses: Vec<(f64, f64)>,
    title: &'static str,
    unigram_loss: Option<f64>,
}

impl Page {
    /// Lays out a view in at most `height` rows of `width` columns.
    pub fn of(view: &View<'_>, width: usize, height: usize) -> Page {
        let mut header = header(view, width);
        header.truncate(height);
        let space = height.saturating_sub(header.len());
        let mut seats = seats(view, width, space);
        if seats.len() < space {
            seats.insert(0, Line::default());
        }
        let (sample, losses) = view.observer.losses(view.text.is_some());
        let losses: Vec<_> =
            losses.iter().map(|(window, estimate)| (f64::from(window.0), estimate.loss)).collect();
        let rows = space.saturating_sub(seats.len());
        let curve = (CURVE_ROWS_MIN <= rows && 2 <= losses.len()).then_some(Curve {
            rows,
            losses,
            title: sample.name(),
            unigram_loss: view.text.map(|text| text.unigram.loss),
        });
        Page { header, curve, seats }
    }

    pub fn rows(&self) -> usize {
        self.header.len() + self.curve.as_ref().map_or(0, |curve| curve.rows) + self.seats.len()
    }
}

impl Widget for &Page {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let mut y = area.top();
        let lines = |lines: &[Line<'static>], y: &mut u16, buffer: &mut Buffer| {
            for line in lines.iter().take(usize::from(area.bottom().saturating_sub(*y))) {
                buffer.set_line(area.left(), *y, line, area.width);
                *y += 1;
            }
        };
        lines(&self.header, &mut y, buffer);
        if let Some(curve) = &self.curve {
            let rows = u16::try_from(curve.rows).unwrap_or(u16::MAX).min(area.bottom().saturating_sub(y));
            curve.render(Rect { y, height: rows, ..area }, buffer);
            y += rows;
        }
        lines(&self.seats, &mut y, buffer);
    }
}

impl Curve {
    fn render(&self, area: Rect, buffer: &mut Buffer) {
        let (first, last) = match self.losses.as_slice() {
            [(first, _), .., (last, _)] => (*first, *last),
            _ => return,
        };
        let settled = if self.losses.len() < CURVE_SETTLED { 0 } else { self.losses.len() / 5 };
        let of = |losses: &[(f64, f64)], better: fn(f64, f64) -> f64| {
            losses.iter().map(|(_, loss)| *loss).reduce(better).unwrap_or(0.0)
        };
        let (lowest, highest) = (of(&self.losses, f64::min), of(&self.losses[settled..], f64::max));
        let bounds = [lowest, if lowest < highest { highest } else { lowest + 0.01 }];
        let labels = (self.rows / LABEL_ROWS).max(2);
        let label = |at: usize| {
            let part = at as f64 / (labels - 1) as f64;
            format!("{:5.2}", bounds[0] + part * (bounds[1] - bounds[0]))
        };
        let unigram = self.unigram_loss.filter(|loss| (bounds[0]..bounds[1]).contains(loss));
        let baseline = unigram.map(|loss| [(first, loss), (last, loss)]);
        let line = |data, style| {
            Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(style).data(data)
        };
        let baseline = baseline.iter().map(|points| line(points, DIM).name("unigram baseline"));
        let datasets: Vec<_> = baseline.chain([line(&self.losses, Style::new().fg(Color::Cyan))]).collect();
        let middle = ((first + last) / 2.0).round();
        let windows = [first, middle, last].map(|window| format!("{window:.0}"));
        Chart::new(datasets)
            .legend_position(None)
            .x_axis(Axis::default().title("window").bounds([first, last]).labels(windows).style(DIM))
            .y_axis(
                Axis::default().title(self.title).bounds(bounds).labels((0..labels).map(label)).style(DIM),
            )
            .render(area, buffer);
    }
}

/// A fact of a line. Those with a higher rank are omitted first.
struct Fact {
    text: String,
    style: Style,
    rank: u8,
}

fn fact(rank: u8, style: Style, text: impl Into<String>) -> Fact {
    Fact { text: text.into(), style, rank }
}

/// Joins the facts that fit into `width`.
fn fitted(mut facts: Vec<Fact>, width: usize) -> Line<'static> {
    let total = |facts: &[Fact]| facts.iter().map(|fact| fact.text.chars().count() + GAP).sum::<usize>();
    while 1 < facts.len() && width + GAP < total(&facts) {
        let last = (0..facts.len()).max_by_key(|&at| facts[at].rank).unwrap_or(0);
        facts.remove(last);
    }
    let mut spans = Vec::new();
    for Fact { text, style, .. } in facts {
        if !spans.is_empty() {
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

fn header(view: &View<'_>, width: usize) -> Vec<Line<'static>> {
    let observer = view.observer;
    let state = if SILENCE < view.silence {
        fact(0, BAD.bold(), format!("no answer from the chain for {}", units::duration(view.silence)))
    } else if view.text.is_none() {
        // No journal states which model a node holds.
        fact(0, PLAIN, units::count(observer.outcomes.len(), "window") + " finalised")
    } else if observer.lineage_agreed() {
        fact(0, GOOD, "one model everywhere")
    } else {
        fact(0, BAD.bold(), "MODELS DIFFER")
    };
    let mut title = vec![fact(1, TITLE, view.title), state];
    title.extend(view.elapsed.map(|elapsed| fact(2, DIM, format!("up {}", units::duration(elapsed)))));
    let (sample, losses) = observer.losses(view.text.is_some());
    let sample = sample.name();
    let mut loss = match losses.as_slice() {
        [] => vec![fact(0, PLAIN, format!("{sample}: not measured yet"))],
        [(_, first), .., (_, last)] => vec![
            fact(0, PLAIN, format!("{sample} {}", units::loss(*last))),
            fact(1, PLAIN, format!("start {:.2}", first.loss)),
        ],
        [(_, only)] => vec![fact(0, PLAIN, format!("{sample} {}", units::loss(*only)))],
    };
    if let Some(text) = view.text {
        loss.push(fact(2, PLAIN, format!("unigram baseline {:.2}", text.unigram.loss)));
    }
    [title, place(view), loss, work(view)].map(|facts| fitted(facts, width)).to_vec()
}

/// Describes the network's position in its window.
fn place(view: &View<'_>) -> Vec<Fact> {
    let observer = view.observer;
    let schedule = observer.run.params.schedule;
    let time = |blocks: u32| units::duration(view.block_time.saturating_mul(blocks));
    let Some((window, offset)) = schedule.locate(observer.block) else {
        let left = schedule.start.0.saturating_sub(observer.block.0);
        return vec![
            fact(0, PLAIN, format!("the run starts in {}", time(left))),
            fact(1, DIM, format!("block {}", observer.block)),
        ];
    };
    let blocks = schedule.blocks_per_window;
    let done = usize::try_from(u64::from(offset) * BAR as u64 / u64::from(blocks.max(1))).unwrap_or(0);
    let bar = "█".repeat(done.min(BAR)) + &"░".repeat(BAR.saturating_sub(done));
    let phase = schedule.phase_at(observer.block).map_or("", |(_, phase)| phase_word(phase));
    vec![
        fact(0, PLAIN, format!("window {}", window.0)),
        fact(3, DIM, bar),
        fact(1, PLAIN, phase),
        fact(2, PLAIN, format!("{} of {} left", time(blocks.saturating_sub(offset)), time(blocks))),
        fact(4, DIM, format!("block {}", observer.block)),
    ]
}

/// Describes the network's work so far.
fn work(view: &View<'_>) -> Vec<Fact> {
    let observer = view.observer;
    let mut facts = Vec::new();
    if let Some(Text { sequence_tokens, .. }) = view.text {
        let tokens = observer.sequences_trained() as f64 * sequence_tokens as f64;
        facts.push(fact(0, PLAIN, format!("{} tokens", units::thousands(tokens))));
        let rate = observer.tokens_per_second(sequence_tokens, view.block_time);
        facts.extend(rate.map(|rate| fact(1, PLAIN, format!("{} tokens/s", units::thousands(rate)))));
    }
    let last = observer.outcomes.iter().next_back();
    if let Some((window, outcome @ Outcome::Void(_))) = last {
        facts.push(fact(2, POOR, format!("window {} is {}", window.0, outcome_word(outcome))));
    }
    match &observer.last_merge {
        Some((window, bytes, inputs)) => {
            let inputs = units::count(*inputs, "contribution");
            let text = format!("last merge: window {}, {inputs}, {}", window.0, units::bytes(*bytes));
            facts.push(fact(3, PLAIN, text));
        }
        None if last.is_none() => facts.push(fact(3, PLAIN, "no window is finalised yet")),
        None => {}
    }
    facts
}

/// Lays out the tables of miners and validators: beside each other if both fit with every column, else one below the
/// other.
fn seats(view: &View<'_>, width: usize, rows: usize) -> Vec<Line<'static>> {
    let (miners, validators) = (miners(view), validators(view));
    let left = miners.width();
    if left + TABLES_GAP + validators.width() <= width {
        let mut beside = validators.lines(width - left - TABLES_GAP, rows).into_iter();
        let mut lines = miners.lines(left, rows);
        lines.resize_with(lines.len().max(beside.len()), Line::default);
        for line in &mut lines {
            let Some(other) = beside.next() else { break };
            line.push_span(" ".repeat((left + TABLES_GAP).saturating_sub(line.width())));
            other.spans.into_iter().for_each(|span| line.push_span(span));
        }
        return lines;
    }
    // One title, and one row per seat.
    let (above, below) = (miners.seats.len() + 1, validators.seats.len() + 1);
    if above + below < rows {
        let mut lines = miners.lines(width, above);
        lines.push(Line::default());
        lines.extend(validators.lines(width, below));
        return lines;
    }
    // In proportion to their numbers, but each gets a title, a seat and the number of the others.
    let share = (rows * below / (above + below)).max(3).max(rows.saturating_sub(above)).min(below).min(rows);
    let mut lines = miners.lines(width, rows - share);
    lines.extend(validators.lines(width, share));
    lines
}

/// A column of a table of seats.
struct Column {
    title: &'static str,
    /// Columns with a higher rank are omitted first.
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

/// The current activity of a seat.
#[derive(Clone, Debug)]
struct State {
    /// The word by which seats are counted.
    word: &'static str,
    detail: String,
    style: Style,
    /// The row is red, and the seat is omitted last.
    is_trouble: bool,
}

impl State {
    fn new(style: Style, word: &'static str) -> State {
        State { word, detail: String::new(), style, is_trouble: false }
    }

    fn trouble(word: &'static str, detail: String) -> State {
        State { word, detail, style: BAD, is_trouble: true }
    }

    fn of(Doing { word, mark }: Doing) -> State {
        match mark {
            Mark::Plain => State::new(PLAIN, word),
            Mark::Good => State::new(GOOD, word),
            Mark::Poor => State::new(POOR, word),
            Mark::Bad => State::trouble(word, String::new()),
        }
    }

    fn of_absence(absence: &Absence) -> State {
        match absence {
            Absence::Ended { again_in } => {
                State::trouble("ended", format!(", again in {}", units::duration(*again_in)))
            }
            Absence::Silent { since } => {
                State::trouble("no answer", format!(" for {}", units::duration(*since)))
            }
            Absence::Away { since } => State::trouble("away", format!(" since window {}", since.0)),
        }
    }
}

/// Seats, in display order.
struct Table {
    columns: Vec<Column>,
    seats: Vec<(State, bool)>,
}

impl Table {
    fn width(&self) -> usize {
        total_width(&self.columns.iter().collect::<Vec<_>>())
    }

    /// Lays out a title and a row for each seat in at most `rows` lines. Columns that do not fit are omitted.
    fn lines(&self, width: usize, rows: usize) -> Vec<Line<'static>> {
        let mut columns: Vec<&Column> = self.columns.iter().collect();
        while 1 < columns.len() && width < total_width(&columns) {
            let last = (0..columns.len()).max_by_key(|&at| columns[at].rank).unwrap_or(0);
            columns.remove(last);
        }
        let titles: Vec<String> = columns.iter().map(|column| column.padded(column.title)).collect();
        // Styles belong to spans, not to lines: another table may follow on the right.
        let mut lines = vec![Line::from(Span::styled(titles.join(&" ".repeat(GAP)), TITLE))];
        let (shown, hidden) = self.shown(rows.saturating_sub(1));
        for at in shown {
            let (state, _) = &self.seats[at];
            let mut line = Line::default();
            for column in &columns {
                let style = if state.is_trouble || column.title == NOW { state.style } else { PLAIN };
                let gap = if line.spans.is_empty() { 0 } else { GAP };
                line.push_span(" ".repeat(gap));
                line.push_span(Span::styled(column.padded(&column.cells[at]), style));
            }
            lines.push(line);
        }
        if !hidden.is_empty() {
            lines.push(self.folded(&hidden, width));
        }
        lines.truncate(rows);
        lines
    }

    /// Returns the seats with a row and those that share the last one: seats in trouble first, then external ones,
    /// then in order.
    fn shown(&self, rows: usize) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let mut all: Vec<usize> = (0..self.seats.len()).collect();
        if all.len() <= rows {
            return (all.into_iter().collect(), BTreeSet::new());
        }
        all.sort_by_key(|&at| {
            let (state, is_external) = &self.seats[at];
            (!state.is_trouble, !is_external)
        });
        let hidden = all.split_off(rows.saturating_sub(1));
        (all.into_iter().collect(), hidden.into_iter().collect())
    }

    /// Returns a line with the number of seats without a row, by state.
    fn folded(&self, hidden: &BTreeSet<usize>, width: usize) -> Line<'static> {
        let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
        for at in hidden {
            let (state, _) = &self.seats[*at];
            *counts.entry((!state.is_trouble, state.word)).or_default() += 1;
        }
        let style = if counts.keys().any(|(is_well, _)| !is_well) { BAD } else { DIM };
        let counts: Vec<String> = counts.iter().map(|((_, word), count)| format!("{count} {word}")).collect();
        let short = format!("… {} more", hidden.len());
        let long = format!("{short}: {}", counts.join(", "));
        Line::from(Span::styled(if long.chars().count() <= width { long } else { short }, style))
    }
}

fn total_width(columns: &[&Column]) -> usize {
    columns.iter().map(|column| column.width() + GAP).sum::<usize>().saturating_sub(GAP)
}

const NOW: &str = "now";

/// Returns the seats of a role with their states.
fn sorted<'a>(view: &View<'a>, role: Role) -> Vec<(&'a SeatView, State)> {
    let observer = view.observer;
    let mut seats: Vec<&SeatView> = observer.seats_of(role).collect();
    seats.sort_by_key(|seat| observer.place_of(seat.id.uid));
    let state = |seat: &SeatView| match view.absences.get(&seat.id.uid) {
        Some(absence) => State::of_absence(absence),
        None => State::of(observer.doing(seat)),
    };
    seats.into_iter().map(|seat| (seat, state(seat))).collect()
}

/// Returns the name of a seat, with its strategy unless it is honest.
pub fn label(observer: &Observer, uid: Uid) -> String {
    match observer.strategy_of(uid) {
        HONEST => observer.name_of(uid),
        strategy => format!("{} ({strategy})", observer.name_of(uid)),
    }
}

fn column(
    title: &'static str,
    rank: u8,
    right: bool,
    seats: &[(&SeatView, State)],
    cell: impl Fn(&SeatView, &State) -> String,
) -> Column {
    Column { title, rank, right, cells: seats.iter().map(|(seat, state)| cell(seat, state)).collect() }
}

fn miners(view: &View<'_>) -> Table {
    let observer = view.observer;
    let seats = sorted(view, Role::Miner);
    let seen = |seat: &SeatView| observer.seen.get(&seat.id.uid).cloned().unwrap_or_default();
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let score = |seat: &SeatView| dash(seen(seat).score.map(|score| format!("{score:.3}")));
    let weight = |seat: &SeatView| dash(observer.weight_share(seat.id.uid).map(units::percent));
    let waits = |seat: &SeatView| dash(seen(seat).data_wait_share().map(units::percent));
    let columns = vec![
        column("miner", 0, false, &seats, |seat, _| label(observer, seat.id.uid)),
        column("committed", 6, true, &seats, |seat, _| seen(seat).committed.to_string()),
        column("attested", 7, true, &seats, |seat, _| seen(seat).attested.to_string()),
        column("selected", 4, true, &seats, |seat, _| seen(seat).selected.to_string()),
        column("score", 5, true, &seats, |seat, _| score(seat)),
        column("weight", 2, true, &seats, |seat, _| weight(seat)),
        column("data wait", 8, true, &seats, |seat, _| waits(seat)),
        column("paid", 3, true, &seats, |seat, _| units::amount(seat.earned)),
        column(NOW, 1, false, &seats, |_, state| format!("{}{}", state.word, state.detail)),
    ];
    table(view, columns, seats)
}

fn validators(view: &View<'_>) -> Table {
    let observer = view.observer;
    let seats = sorted(view, Role::Validator);
    let seen = |seat: &SeatView| observer.seen.get(&seat.id.uid).cloned().unwrap_or_default();
    let columns = vec![
        column("validator", 0, false, &seats, |seat, _| label(observer, seat.id.uid)),
        column("attested", 4, true, &seats, |seat, _| seen(seat).attested.to_string()),
        column("voted", 3, true, &seats, |seat, _| seen(seat).selected.to_string()),
        column("minority", 5, true, &seats, |seat, _| seen(seat).minority_votes.to_string()),
        column("paid", 2, true, &seats, |seat, _| units::amount(seat.earned)),
        column(NOW, 1, false, &seats, |_, state| format!("{}{}", state.word, state.detail)),
    ];
    table(view, columns, seats)
}

fn table(view: &View<'_>, columns: Vec<Column>, seats: Vec<(&SeatView, State)>) -> Table {
    let of = |(seat, state): (&SeatView, State)| (state, view.observer.is_external(seat.id.uid));
    Table { columns, seats: seats.into_iter().map(of).collect() }
}
