//! The page's content as JSON: bounded parts of one [`Snapshot`] of a run. Nothing here waits.

use crate::{
    block_clock::span,
    observe::{Absence, LossSample, Mark, Observer, Text, outcome_word, phase_word},
    timeline::{Timeline, WindowRow},
};
use chain_client::Amount;
use dataset::LossEstimate;
use protocol::{
    Role, Uid, Window, receipt,
    view::{Outcome, SeatView},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

/// Maximum number of seats in one answer.
pub const SEATS_MAX: usize = 200;
/// Maximum number of points of the curve in one answer.
pub const POINTS_MAX: u32 = 1_000;
/// Number of windows and of seats in a tile.
pub const TILE: u32 = 64;
/// Number of windows after a receipt's publication within which it is read.
const READ_WITHIN_WINDOWS: u32 = 4;
/// Maximum number of reports of trouble; the latest are shown.
const TROUBLES_MAX: usize = 20;
/// Maximum length of a text from other parties, in characters.
const TEXT_MAX: usize = 300;
/// Silence of the chain that is shown as trouble, and …
const SILENCE: Duration = Duration::from_secs(10);
/// … the number of blocks due in it: finality comes in steps.
const SILENT_BLOCKS: u32 = 5;

/// Facts on the run and the session that the observer does not have.
pub struct About<'a> {
    /// The name that the run's owner published; `None` if it is not available.
    pub name: Option<&'a str>,
    pub parameters: Option<u64>,
    /// `None` without the dataset.
    pub text: Option<Text>,
    pub absences: BTreeMap<Uid, Absence>,
    pub block_time: Duration,
    /// Time since the chain's last answer.
    pub silence: Duration,
}

/// A seat in the table. Unknown numbers are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SeatRow {
    uid: Uid,
    role: Role,
    name: String,
    /// `None` for an honest seat, and if no plan is known.
    strategy: Option<String>,
    /// Current state in a word, by which seats are counted.
    state: &'static str,
    detail: String,
    mark: Mark,
    /// Share of all consensus weights.
    weight: Option<f64>,
    stake: String,
    paid: String,
    committed: u32,
    attested: u32,
    selected: u32,
    minority_votes: u32,
    score: Option<f64>,
    tokens_per_second: Option<f64>,
}

/// The run at one moment.
pub struct Snapshot {
    overview: Value,
    metrics: String,
    seats: Vec<SeatRow>,
    losses: Vec<(Window, LossEstimate)>,
    timeline: Timeline,
    open: Option<(Window, WindowRow)>,
    /// Windows before this one are final: their receipts have been read.
    settled_before: Window,
}

/// A question about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Overview,
    /// Up to `limit` seats from the row `from` on.
    Seats {
        from: usize,
        limit: usize,
    },
    /// About `points` of the measured windows between `from` and `to`.
    Losses {
        from: Window,
        to: Window,
        points: u32,
    },
    /// [`TILE`] windows and seats.
    Tile {
        window: Window,
        uid: Uid,
    },
}

impl Snapshot {
    pub fn of(observer: &Observer, about: &About<'_>) -> Snapshot {
        let mut seats: Vec<&SeatView> = observer.seats.iter().collect();
        seats.sort_by_cached_key(|seat| (seat.role, observer.place_of(seat.id.uid)));
        let seats: Vec<SeatRow> = seats.into_iter().map(|seat| seat_row(observer, about, seat)).collect();
        // Uses one series: the fixed sample if some journal has it.
        let (sample, losses) = observer.losses(about.text.is_some());
        let is_sample = sample == LossSample::HeldOut;
        let open = observer.open_row();
        let overview =
            overview(observer, about, &seats, &losses, is_sample, open.as_ref().map(|open| open.0));
        let now = open.as_ref().map_or(Window::FIRST, |(open, _)| *open);
        let public = receipt::first_sealed(now, &observer.run.params);
        let settled_before = Window(public.0.saturating_sub(READ_WITHIN_WINDOWS));
        let metrics = metrics(observer);
        Snapshot {
            overview,
            metrics,
            seats,
            losses,
            timeline: observer.timeline.clone(),
            open,
            settled_before,
        }
    }

    /// Returns the run's metrics in the format of Prometheus.
    pub fn metrics(&self) -> &str {
        &self.metrics
    }

    /// Returns the answer as JSON.
    pub fn answer(&self, question: Question) -> Value {
        match question {
            Question::Overview => self.overview.clone(),
            Question::Seats { from, limit } => {
                let rows: Vec<&SeatRow> = self.seats.iter().skip(from).take(limit.min(SEATS_MAX)).collect();
                json!({ "total": self.seats.len(), "from": from, "seats": rows })
            }
            Question::Losses { from, to, points } => self.losses(from, to, points),
            Question::Tile { window, uid } => self.tile(window, uid),
        }
    }

    /// Returns every n-th window and the last one: at most `points` + 1.
    fn losses(&self, from: Window, to: Window, points: u32) -> Value {
        let first = self.losses.partition_point(|(window, _)| *window < from);
        let end = self.losses.partition_point(|(window, _)| *window <= to).max(first);
        let all = &self.losses[first..end];
        let points = usize::try_from(points.clamp(1, POINTS_MAX)).unwrap_or(1);
        let step = all.len().div_ceil(points).max(1);
        let last = all.len().saturating_sub(1);
        let shown = all.iter().enumerate().filter(|(at, _)| at.is_multiple_of(step) || *at == last);
        let (mut windows, mut losses, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for (_, (window, estimate)) in shown {
            windows.push(window.0);
            losses.push(rounded(estimate.loss));
            errors.push(rounded(estimate.standard_error));
        }
        json!({ "step": step, "windows": windows, "losses": losses, "errors": errors })
    }

    fn tile(&self, first: Window, uid: Uid) -> Value {
        let last = Window(first.0.saturating_add(TILE - 1));
        let mut rows: BTreeMap<Window, &WindowRow> = self.timeline.range(first, TILE).collect();
        rows.extend(
            self.open.iter().filter(|(open, _)| first <= *open && *open <= last).map(|(w, row)| (*w, row)),
        );
        let columns: Vec<Option<&WindowRow>> =
            (first.0..=last.0).map(|window| rows.get(&Window(window)).copied()).collect();
        let letters = |letter: &dyn Fn(&WindowRow) -> char| -> String {
            columns.iter().map(|row| row.map_or('.', letter)).collect()
        };
        let uids = (0..TILE as u16).map(|at| Uid(uid.0.saturating_add(at)));
        let fates: Vec<String> = uids.map(|uid| letters(&|row| char::from(row.fate(uid) as u8))).collect();
        let settled = last < self.settled_before;
        json!({
            "window": first, "uid": uid, "settled": settled,
            "outcomes": letters(&WindowRow::letter), "fates": fates,
        })
    }
}

/// Returns the chain's data on the run in the text format of Prometheus. Nodes export what they know of themselves;
/// this is an outside view. Counters start at the first window that the observer has read.
fn metrics(observer: &Observer) -> String {
    let run = observer.run.id;
    let void = observer.outcomes.values().filter(|outcome| matches!(outcome, Outcome::Void(_))).count();
    let merged = observer.outcomes.len().saturating_sub(void);
    let mut text = String::from(
        "# HELP mettle_run_windows_total Windows that ended, by their outcome\n\
         # TYPE mettle_run_windows_total counter\n",
    );
    for (outcome, windows) in [("merged", merged), ("void", void)] {
        text += &format!("mettle_run_windows_total{{run=\"{run}\",outcome=\"{outcome}\"}} {windows}\n");
    }
    text += "# HELP mettle_run_minority_votes_total Votes of a validator for another update than two thirds of the stake\n\
             # TYPE mettle_run_minority_votes_total counter\n";
    for seat in observer.seats_of(Role::Validator) {
        let uid = seat.id.uid;
        let minority_votes = observer.seen.get(&uid).map_or(0, |seen| seen.minority_votes);
        text += &format!("mettle_run_minority_votes_total{{run=\"{run}\",uid=\"{uid}\"}} {minority_votes}\n");
    }
    text
}

/// Rounds a loss to five decimals, a tenth of any error bar.
fn rounded(loss: f64) -> f64 {
    (loss * 1e5).round() / 1e5
}

/// Shortens a text from other parties and removes control characters.
fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(TEXT_MAX).collect()
}

fn amount(smallest_units: u128) -> String {
    format!("{:.2}", Amount(smallest_units))
}

fn seat_row(observer: &Observer, about: &About<'_>, seat: &SeatView) -> SeatRow {
    let uid = seat.id.uid;
    let seen = observer.seen.get(&uid).cloned().unwrap_or_default();
    let (state, detail, mark) = match about.absences.get(&uid) {
        Some(Absence::Ended { again_in }) => {
            ("ended", format!("again in {}", span(again_in.as_secs())), Mark::Bad)
        }
        Some(Absence::Silent { since }) => ("no answer", format!("for {}", span(since.as_secs())), Mark::Bad),
        Some(Absence::Away { since }) => ("away", format!("since window {}", since.0), Mark::Bad),
        None => {
            let doing = observer.doing(seat);
            (doing.word, String::new(), doing.mark)
        }
    };
    let tokens = about.text.map(|text| text.sequence_tokens as f64);
    let strategy = observer.strategy_of(uid);
    SeatRow {
        uid,
        role: seat.role,
        name: bounded(&observer.name_of(uid)),
        strategy: (strategy != crate::observe::HONEST).then(|| bounded(strategy)),
        state,
        detail,
        mark,
        weight: observer.weight_share(uid),
        stake: amount(seat.stake),
        paid: amount(seat.earned),
        committed: seen.committed,
        attested: seen.attested,
        selected: seen.selected,
        minority_votes: seen.minority_votes,
        score: seen.score.map(rounded),
        tokens_per_second: seen
            .sequences_per_second
            .zip(tokens)
            .map(|(rate, tokens)| (rate * tokens).round()),
    }
}

fn overview(
    observer: &Observer,
    about: &About<'_>,
    seats: &[SeatRow],
    losses: &[(Window, LossEstimate)],
    is_sample: bool,
    open: Option<Window>,
) -> Value {
    let schedule = observer.run.params.schedule;
    let place = schedule.locate(observer.block);
    let phase = schedule.phase_at(observer.block).map(|(_, phase)| phase);
    let loss = |estimate: &LossEstimate| {
        json!({
            "loss": rounded(estimate.loss), "error": rounded(estimate.standard_error),
            "sequences": estimate.sequences,
        })
    };
    let at =
        |(window, estimate): &(Window, LossEstimate)| json!({ "window": window, "estimate": loss(estimate) });
    let text = about.text;
    let tokens = text.map(|text| observer.sequences_trained().saturating_mul(text.sequence_tokens));
    let rate = text.and_then(|text| observer.tokens_per_second(text.sequence_tokens, about.block_time));
    let first = observer.timeline.bounds().map(|(first, _)| first).or(open);
    let last = open.or(observer.timeline.bounds().map(|(_, last)| last));
    let void = observer.outcomes.values().filter(|outcome| outcome_word(outcome) != "merged").count();
    let silence = SILENCE.max(about.block_time.saturating_mul(SILENT_BLOCKS));
    let mut order = DefaultHasher::new();
    seats.iter().for_each(|seat| (seat.uid, seat.role, &seat.name).hash(&mut order));
    json!({
        "run": observer.run.id,
        "name": about.name.map(bounded),
        "parameters": about.parameters,
        "block": observer.block,
        "window": place.map(|(window, _)| window),
        "offset": place.map(|(_, offset)| offset),
        "starts_in_blocks": schedule.start.0.saturating_sub(observer.block.0),
        "phase": phase.map(phase_word),
        "deadlines": [schedule.commit_by, schedule.reveal_by, schedule.attest_by, schedule.vote_by],
        "blocks_per_window": schedule.blocks_per_window,
        "block_seconds": about.block_time.as_secs_f64(),
        "epoch_windows": observer.run.params.epoch_windows,
        "paused": observer.run.paused,
        "silent_seconds": (silence < about.silence).then_some(about.silence.as_secs()),
        "models_agree": (!observer.held.is_empty()).then(|| observer.lineage_agreed()),
        "loss": losses.last().map(at),
        "start_loss": losses.first().map(at),
        "losses": losses.len(),
        "loss_is_of_sample": is_sample,
        "unigram": text.map(|text| loss(&text.unigram)),
        "tokens": tokens,
        "tokens_per_second": rate.map(f64::round),
        "windows": first.zip(last),
        "finalised": observer.windows(),
        "void": void,
        "last_outcome": observer.outcomes.iter().next_back()
            .map(|(window, outcome)| json!({ "window": window, "word": outcome_word(outcome) })),
        "last_merge": observer.last_merge
            .map(|(window, bytes, inputs)| json!({ "window": window, "bytes": bytes, "contributions": inputs })),
        "treasury": amount(observer.run.treasury),
        "seats": { "total": seats.len(), "order": format!("{:016x}", order.finish()) },
        "states": { "miner": states(seats, Role::Miner), "validator": states(seats, Role::Validator) },
        "troubles": troubles(observer),
    })
}

/// Counts the seats of a role by state.
fn states(seats: &[SeatRow], role: Role) -> Value {
    let mut counts: BTreeMap<&str, (Mark, u32)> = BTreeMap::new();
    for seat in seats.iter().filter(|seat| seat.role == role) {
        counts.entry(seat.state).or_insert((seat.mark, 0)).1 += 1;
    }
    let count =
        |(word, (mark, count)): (&str, (Mark, u32))| json!({ "word": word, "mark": mark, "count": count });
    counts.into_iter().map(count).collect()
}

/// Returns the latest faults and missed steps.
fn troubles(observer: &Observer) -> Value {
    let fault = |fault: &crate::observe::FaultSeen| {
        let seat = observer.name_of(Uid(fault.uid));
        let text = format!("{} reports {seat}: {} ({})", fault.by, fault.label, fault.reason);
        (fault.window, bounded(&text))
    };
    let missed =
        |(window, name, reason): &(Window, String, String)| (window.0, bounded(&format!("{name}: {reason}")));
    let mut all: Vec<(u32, String)> = observer.faults.iter().rev().take(TROUBLES_MAX).map(fault).collect();
    all.extend(observer.missed.iter().rev().take(TROUBLES_MAX).map(missed));
    all.sort_by_key(|(window, _)| Reverse(*window));
    all.truncate(TROUBLES_MAX);
    all.into_iter().map(|(window, text)| json!({ "window": window, "text": text })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn about() -> About<'static> {
        About {
            name: Some("a run"),
            parameters: Some(7),
            text: Some(Text {
                sequence_tokens: 64,
                unigram: LossEstimate { sequences: 1536, loss: 6.32, standard_error: 0.017 },
            }),
            absences: BTreeMap::from([(Uid(5), Absence::Silent { since: Duration::from_secs(61) })]),
            block_time: Duration::from_millis(500),
            silence: Duration::from_secs(2),
        }
    }

    #[test]
    fn the_overview_says_what_the_table_says() {
        let overview = Snapshot::of(&sample::network(), &about()).answer(Question::Overview);
        assert_eq!((&overview["window"], &overview["phase"]), (&json!(6), &json!("merge and vote")));
        assert_eq!((&overview["offset"], &overview["blocks_per_window"]), (&json!(36), &json!(40)));
        assert_eq!(overview["loss"]["estimate"]["loss"], 3.07);
        assert_eq!(overview["start_loss"]["estimate"]["loss"], 7.99);
        assert_eq!(overview["unigram"]["loss"], 6.32);
        assert_eq!((&overview["void"], &overview["finalised"]), (&json!(1), &json!(6)));
        assert_eq!(overview["tokens_per_second"], 16384.0);
        assert_eq!(overview["silent_seconds"], Value::Null);
        assert_eq!(overview["windows"], json!([6, 6]));
        let silent = About { silence: Duration::from_secs(75), ..about() };
        let overview = Snapshot::of(&sample::network(), &silent).answer(Question::Overview);
        assert_eq!(overview["silent_seconds"], 75);
    }

    #[test]
    fn prometheus_reads_outcomes_and_the_votes_of_a_minority() {
        let snapshot = Snapshot::of(&sample::network(), &about());
        let samples: Vec<&str> = snapshot.metrics().lines().filter(|line| !line.starts_with('#')).collect();
        expect_test::expect![[r#"
            mettle_run_windows_total{run="0",outcome="merged"} 5
            mettle_run_windows_total{run="0",outcome="void"} 1
            mettle_run_minority_votes_total{run="0",uid="0"} 1
            mettle_run_minority_votes_total{run="0",uid="1"} 1
            mettle_run_minority_votes_total{run="0",uid="2"} 1
        "#]]
        .assert_eq(&(samples.join("\n") + "\n"));
    }

    #[test]
    fn seats_are_miners_first_with_state_weight_and_pay() {
        let snapshot = Snapshot::of(&sample::network(), &about());
        let answer = snapshot.answer(Question::Seats { from: 0, limit: 9 });
        let names: Vec<&str> =
            answer["seats"].as_array().unwrap().iter().filter_map(|seat| seat["name"].as_str()).collect();
        assert_eq!(names[..5], ["miner-0", "miner-1", "miner-2", "miner-3", "uid 7"]);
        let silent = &answer["seats"][2];
        assert_eq!((&silent["state"], &silent["detail"]), (&json!("no answer"), &json!("for 1 min 1 s")));
        assert_eq!(answer["seats"][3]["strategy"], "copycat");
        assert_eq!(answer["seats"][3]["state"], "faulty");
        assert_eq!(answer["seats"][0]["paid"], "297.39 MTL");
        let last = snapshot.answer(Question::Seats { from: 7, limit: 9 });
        assert_eq!((last["seats"].as_array().unwrap().len(), &last["total"]), (1, &json!(8)));
    }

    #[test]
    fn a_curve_of_any_length_has_as_many_points_as_asked_for_and_ends_with_the_last_window() {
        let snapshot = Snapshot::of(&sample::large(16, 9_999), &About { text: None, ..about() });
        let of = |from, to, points| {
            let question = Question::Losses { from: Window(from), to: Window(to), points };
            let answer = snapshot.answer(question);
            let windows = answer["windows"].as_array().unwrap().iter().filter_map(Value::as_u64);
            (answer["step"].as_u64().unwrap(), windows.collect::<Vec<_>>())
        };
        let (step, windows) = of(0, u32::MAX, 600);
        assert_eq!((step, windows.first(), windows.last()), (17, Some(&0), Some(&9_998)));
        assert!(windows.len() <= 601, "{}", windows.len());
        assert_eq!(of(10, 12, 600), (1, vec![10, 11, 12]));
        assert_eq!(of(12, 10, 600).1, Vec::<u64>::new());
        assert_eq!(of(20_000, u32::MAX, 600).1, Vec::<u64>::new());
        assert!(of(0, u32::MAX, u32::MAX).1.len() <= POINTS_MAX as usize + 1);
    }

    #[test]
    fn a_tile_has_the_fates_of_its_windows_and_seats_and_a_bounded_size() {
        let snapshot = Snapshot::of(&sample::large(1_024, 10_000), &about());
        let tile = |window, uid| snapshot.answer(Question::Tile { window: Window(window), uid: Uid(uid) });
        let old = tile(9_024, 64);
        assert_eq!(old["settled"], true);
        assert_eq!(old["fates"].as_array().unwrap().len(), 64);
        assert!(old["fates"].as_array().unwrap().iter().all(|row| row.as_str().unwrap().len() == 64));
        assert!(old.to_string().len() < 5_000, "{} bytes", old.to_string().len());
        let open = tile(9_984, 0);
        assert_eq!(open["settled"], false);
        assert_eq!(&open["outcomes"].as_str().unwrap()[14..20], "MMw...");
        assert_eq!(&open["fates"][1].as_str().unwrap()[16..18], "w.");
        let beyond = tile(u32::MAX - 63, u16::MAX - 63);
        assert_eq!(beyond["fates"][63], ".".repeat(64));
    }

    #[test]
    fn without_a_journal_the_curve_is_of_public_receipts() {
        let mut observer = sample::network();
        observer.held_out.clear();
        observer.common.insert(Window(3), LossEstimate { sequences: 16, loss: 4.5, standard_error: 0.1 });
        let overview = Snapshot::of(&observer, &About { text: None, ..about() }).answer(Question::Overview);
        assert_eq!((&overview["loss_is_of_sample"], &overview["unigram"]), (&json!(false), &Value::Null));
        assert_eq!(overview["loss"]["window"], 3);
    }

    #[test]
    fn texts_of_others_are_bounded_and_have_no_control_characters() {
        assert_eq!(bounded("a\x1b[2J\n\u{202e}b"), "a\u{fffd}[2J\u{fffd}\u{202e}b");
        assert_eq!(bounded(&"x".repeat(1_000)).len(), TEXT_MAX);
    }
}
