//! State of a profile: open spans, ended spans, and the time of each phase. All times are passed in; it reads no
//! clock.

use super::phases::{self, IDLE, OTHER, PHASES, PhaseTime, Profile};
use std::{cmp::Reverse, time::Duration};

/// Maximum number of spans in a trace: about 25 MB. Later ones are counted; their time is in the table.
pub const SPANS_MAX: usize = 250_000;
/// Spans reserved for the loop, which has few, when the training thread has used the others.
const RESERVED: usize = SPANS_MAX / 10;

/// The lanes of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The miner's loop, with its work on other threads and its waits.
    Loop,
    /// The training thread.
    Training,
}

impl Lane {
    pub const ALL: [Lane; 2] = [Lane::Loop, Lane::Training];

    /// Returns the lane of a span with this name and a parent in that lane.
    pub fn of(name: &str, parent: Option<Lane>) -> Lane {
        if name == "training" { Lane::Training } else { parent.unwrap_or(Lane::Loop) }
    }
}

/// A span at its begin.
pub(super) struct SpanBegun {
    pub id: u64,
    pub name: &'static str,
    pub window: Option<u64>,
}

struct OpenSpan {
    begun: SpanBegun,
    at: Duration,
    /// Index of its phase.
    phase: usize,
}

/// A span that ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SpanEnded {
    pub lane: Lane,
    pub name: &'static str,
    pub window: Option<u64>,
    pub at: Duration,
    pub duration: Duration,
}

/// The times of one phase.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// While the training thread is busy, its phase; else the loop's.
    wall: Duration,
    lanes: [Duration; 2],
}

pub(super) struct Recorder {
    windows_wanted: Option<u32>,
    open: [Vec<OpenSpan>; 2],
    ended: Vec<SpanEnded>,
    dropped: u64,
    times: [Times; PHASES.len()],
    /// Time of the last update of `times`.
    last: Duration,
    /// The measured windows, including the current one.
    windows: Vec<u64>,
    /// Begin of the measurement: at the latest window, until one has training.
    from: Option<Duration>,
    has_training: bool,
    to: Option<Duration>,
    is_complete: bool,
}

impl Recorder {
    pub fn new(windows_wanted: Option<u32>) -> Recorder {
        Recorder {
            windows_wanted,
            open: [Vec::new(), Vec::new()],
            ended: Vec::new(),
            dropped: 0,
            times: [Times::default(); PHASES.len()],
            last: Duration::ZERO,
            windows: Vec::new(),
            from: None,
            has_training: false,
            to: None,
            is_complete: false,
        }
    }

    /// Begins the measurement at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.times = [Times::default(); PHASES.len()];
        self.windows.clear();
        (self.last, self.from) = (now, Some(now));
    }

    /// Opens a span. Returns whether it comes after the last requested window: the measurement is over.
    pub fn open(&mut self, lane: Lane, begun: SpanBegun, now: Duration) -> bool {
        if self.to.is_some() {
            return false;
        }
        self.advance(now);
        if let ("window", Some(window), Some(wanted)) = (begun.name, begun.window, self.windows_wanted) {
            if !self.has_training {
                self.begin(now);
            } else if wanted as usize <= self.windows.len() {
                self.is_complete = true;
                self.end(now);
                return true;
            }
            self.windows.push(window);
        }
        self.has_training |= lane == Lane::Training;
        let open = &mut self.open[lane as usize];
        let around = open.last().map_or(OTHER, |around| around.phase);
        let phase = phases::of(begun.name).unwrap_or(around);
        open.push(OpenSpan { begun, at: now, phase });
        false
    }

    /// Closes a span.
    pub fn close(&mut self, lane: Lane, id: u64, now: Duration) {
        if self.to.is_some() {
            return;
        }
        self.advance(now);
        let open = &mut self.open[lane as usize];
        let Some(place) = open.iter().rposition(|span| span.begun.id == id) else { return };
        let span = open.remove(place);
        self.keep(lane, span, now);
    }

    /// Ends the measurement, and all open spans with it.
    pub fn end(&mut self, now: Duration) {
        if self.to.is_some() {
            return;
        }
        self.advance(now);
        for lane in Lane::ALL {
            for span in std::mem::take(&mut self.open[lane as usize]) {
                self.keep(lane, span, now);
            }
        }
        self.is_complete |= self.windows_wanted.is_none();
        self.to = Some(now);
    }

    /// Returns the profile after the end of the measurement; `None` if nothing was measured.
    pub fn profile(&self) -> Option<Profile> {
        let total = self.to?.saturating_sub(self.from.filter(|_| self.has_training)?);
        let busy = total.saturating_sub(self.times[IDLE].lanes[Lane::Training as usize]);
        let share = |time: Duration| time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
        let phases = PHASES.iter().zip(&self.times).map(|(phase, times)| PhaseTime {
            phase: phase.name,
            label: phase.label,
            seconds: times.wall.as_secs_f64(),
            share: share(times.wall),
            loop_share: share(times.lanes[Lane::Loop as usize]),
            training_share: share(times.lanes[Lane::Training as usize]),
        });
        Some(Profile {
            windows: self.windows.clone(),
            seconds: total.as_secs_f64(),
            compute_share: share(busy),
            phases: phases.collect(),
            spans: self.ended.len() as u64,
            spans_dropped: self.dropped,
            is_complete: self.is_complete,
        })
    }

    /// Returns the ended spans, by lane and begin, outer ones first.
    pub fn spans(&self) -> Vec<SpanEnded> {
        let mut spans: Vec<SpanEnded> = self.ended.iter().rev().copied().collect();
        spans.sort_by_key(|span| (span.lane as usize, span.at, Reverse(span.duration)));
        spans
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds the time since the last change to the current phases.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last);
        self.last = now;
        let phase = |lane: Lane| self.open[lane as usize].last().map(|span| span.phase);
        let in_loop = phase(Lane::Loop).unwrap_or(OTHER);
        let training = phase(Lane::Training);
        self.times[in_loop].lanes[Lane::Loop as usize] += passed;
        self.times[training.unwrap_or(IDLE)].lanes[Lane::Training as usize] += passed;
        self.times[training.unwrap_or(in_loop)].wall += passed;
    }

    fn keep(&mut self, lane: Lane, span: OpenSpan, now: Duration) {
        let max = match lane {
            Lane::Loop => SPANS_MAX,
            Lane::Training => SPANS_MAX - RESERVED,
        };
        if max <= self.ended.len() {
            self.dropped += 1;
            return;
        }
        let OpenSpan { begun: SpanBegun { name, window, .. }, at, .. } = span;
        self.ended.push(SpanEnded { lane, name, window, at, duration: now.saturating_sub(at) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens and closes spans by name.
    struct Spans {
        recorder: Recorder,
        ids: u64,
    }

    impl Spans {
        fn new(windows: Option<u32>) -> Spans {
            Spans { recorder: Recorder::new(windows), ids: 0 }
        }

        fn open(&mut self, lane: Lane, name: &'static str, at: u64) -> u64 {
            self.window(lane, name, None, at).0
        }

        fn window(&mut self, lane: Lane, name: &'static str, window: Option<u64>, at: u64) -> (u64, bool) {
            self.ids += 1;
            let begun = SpanBegun { id: self.ids, name, window };
            (self.ids, self.recorder.open(lane, begun, Duration::from_secs(at)))
        }

        fn close(&mut self, lane: Lane, id: u64, at: u64) {
            self.recorder.close(lane, id, Duration::from_secs(at));
        }
    }

    fn phase<'a>(profile: &'a Profile, name: &str) -> &'a PhaseTime {
        profile.phases.iter().find(|phase| phase.phase == name).unwrap()
    }

    #[track_caller]
    fn sums_to_one(profile: &Profile) {
        let sum = |share: fn(&PhaseTime) -> f64| profile.phases.iter().map(share).sum::<f64>();
        for sum in [sum(|time| time.share), sum(|time| time.loop_share), sum(|time| time.training_share)] {
            assert!((sum - 1.0).abs() < 1e-9, "{profile:?}");
        }
    }

    #[test]
    fn time_counts_for_the_innermost_phase_and_once_where_both_lanes_are_busy() {
        let (l, t) = (Lane::Loop, Lane::Training);
        let mut spans = Spans::new(Some(1));
        // A window without training does not count.
        let (early, _) = spans.window(l, "window", Some(3), 0);
        spans.close(l, early, 5);
        let (mine, _) = spans.window(l, "window", Some(4), 10);
        let train = spans.open(l, "train", 11); // 1 s of the window itself
        let training = spans.open(t, "training", 12);
        let step = spans.open(t, "step", 12);
        let forward = spans.open(t, "forward", 13);
        let layer = spans.open(t, "attention", 14);
        spans.close(t, layer, 15);
        spans.close(t, forward, 16);
        spans.close(t, step, 16);
        spans.close(t, training, 16);
        spans.close(l, train, 17);
        let encode = spans.open(l, "encode", 17);
        let snapshot = spans.open(l, "snapshot", 18);
        spans.close(l, snapshot, 20);
        spans.close(l, encode, 20);
        let ahead = spans.open(t, "training", 20);
        let wait = spans.open(l, "wait", 20);
        spans.close(l, wait, 29);
        spans.close(l, mine, 29);
        let (_, over) = spans.window(l, "window", Some(5), 30);
        assert!(over);
        spans.close(t, ahead, 40);

        let profile = spans.recorder.profile().unwrap();
        sums_to_one(&profile);
        assert_eq!((profile.seconds, &profile.windows[..], profile.is_complete), (20.0, &[4][..], true));
        let seconds = |name| phase(&profile, name).seconds;
        assert_eq!(seconds("forward"), 3.0, "a layer is a part of it");
        assert_eq!(seconds("training"), 1.0 + 10.0, "a step outside of its parts, and ahead");
        assert_eq!((seconds("encode"), seconds("snapshot")), (1.0, 2.0));
        assert_eq!(seconds("wait"), 0.0, "meanwhile the thread trained");
        assert_eq!(phase(&profile, "wait").loop_share, 9.0 / 20.0);
        assert_eq!(phase(&profile, "train").loop_share, 6.0 / 20.0);
        assert_eq!(seconds("train"), 2.0, "the thread did not run yet, or no longer");
        assert_eq!(profile.compute_share, 14.0 / 20.0);
        assert_eq!(phase(&profile, "idle").training_share, 6.0 / 20.0);

        let cut = spans.recorder.spans().into_iter().rfind(|span| span.name == "training").unwrap();
        assert_eq!(cut.duration, Duration::from_secs(10), "an open span ends with the measurement");
    }

    #[test]
    fn a_measurement_that_is_stopped_is_not_complete_and_one_without_training_is_none() {
        let mut spans = Spans::new(Some(2));
        spans.window(Lane::Loop, "window", Some(1), 1);
        spans.recorder.end(Duration::from_secs(2));
        assert!(spans.recorder.profile().is_none());

        let mut spans = Spans::new(Some(2));
        spans.window(Lane::Loop, "window", Some(1), 1);
        spans.open(Lane::Training, "training", 2);
        spans.recorder.end(Duration::from_secs(5));
        let profile = spans.recorder.profile().unwrap();
        sums_to_one(&profile);
        assert_eq!((profile.is_complete, profile.seconds, profile.compute_share), (false, 4.0, 0.75));
    }

    #[test]
    fn spans_beyond_the_limit_are_counted_and_the_loop_keeps_some_room() {
        let mut spans = Spans::new(None);
        spans.recorder.begin(Duration::ZERO);
        for at in 0..SPANS_MAX as u64 {
            let step = spans.open(Lane::Training, "step", at);
            spans.close(Lane::Training, step, at);
        }
        let upload = spans.open(Lane::Loop, "upload", SPANS_MAX as u64);
        spans.close(Lane::Loop, upload, SPANS_MAX as u64);
        spans.recorder.end(Duration::from_secs(SPANS_MAX as u64));
        let kept = spans.recorder.spans();
        assert_eq!(kept.len(), SPANS_MAX - RESERVED + 1);
        assert!(kept.iter().any(|span| span.name == "upload"));
        assert_eq!(spans.recorder.profile().unwrap().spans_dropped, RESERVED as u64);
    }
}
