//! `miner profile`: measures the phases of a window, or of training steps.
//!
//! The spans with the target `profile`, which loop, trainer and engines always have, are the only measurement. Those
//! at level `debug` are a window's phases, which `daemon::traces` may send to a collector; those at level `trace` are
//! for profiles only. If neither is enabled they cost a comparison each. A profile adds a layer to the log, which
//! measures a span from its creation to its end: the phases of an async loop are not entered and left with every
//! poll.
//!
//! Existing layers for the same format record a span per poll, send all spans through an unbounded channel, and
//! truncate an existing file. This one holds [`SPANS_MAX`] spans in memory and writes the file once, at the end.

pub mod command;
mod phases;
mod recorder;
mod trace;

pub use phases::{PhaseTime, Profile};
pub use recorder::SPANS_MAX;

use recorder::{Lane, Recorder, SpanBegun};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::Notify;
use tracing::{
    Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    layer::Context,
    registry::{LookupSpan, Registry},
};

/// The target of the spans that a profile shows.
const TARGET: &str = "profile";

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("{} exists, and a profile replaces no file: remove it, or name another with --output", path.display())]
    Exists { path: PathBuf },
    #[error("could not write the trace {}: name another with --output", path.display())]
    NotWritten { path: PathBuf, source: io::Error },
}

/// Measures from [`Profiler::begin`], or from the first window with training, until the requested windows are over.
#[derive(Clone)]
pub struct Profiler {
    recorder: Arc<Mutex<Recorder>>,
    began: Instant,
    over: Arc<Notify>,
}

impl Profiler {
    /// Creates a profiler of `windows` windows, or of the time from [`begin`](Self::begin) to [`end`](Self::end).
    pub fn new(windows: Option<u32>) -> Profiler {
        Profiler {
            recorder: Arc::new(Mutex::new(Recorder::new(windows))),
            began: Instant::now(),
            over: Arc::default(),
        }
    }

    /// Returns the layer that measures, for the subscriber of the log.
    pub fn layer(&self) -> impl Layer<Registry> + Send + Sync + use<> {
        Layer::<Registry>::with_filter(
            SpanLayer(self.clone()),
            Targets::new().with_target(TARGET, Level::TRACE),
        )
    }

    /// Begins the measurement now.
    pub fn begin(&self) {
        self.recorder().begin(self.began.elapsed());
    }

    /// Waits until the requested windows are over.
    pub async fn windows_over(&self) {
        self.over.notified().await;
    }

    /// Ends the measurement, if it has not ended yet. `None` if nothing was measured.
    pub fn end(&self) -> Option<Profile> {
        let mut recorder = self.recorder();
        recorder.end(self.began.elapsed());
        recorder.profile()
    }

    /// Writes the trace of a measurement that has ended to `path`.
    ///
    /// # Errors
    /// If `path` exists already, or the disk cannot be written. No file is then created or replaced.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let mut file = beside(path)?;
        let written = trace::write(&self.recorder(), file.as_file_mut());
        written.map_err(|source| ProfileError::NotWritten { path: path.to_owned(), source })?;
        match file.persist_noclobber(path) {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ProfileError::Exists { path: path.to_owned() })
            }
            Err(error) => Err(ProfileError::NotWritten { path: path.to_owned(), source: error.error }),
        }
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a trace can be written to `path`, before anything is measured.
///
/// # Errors
/// If the file exists, or its directory cannot be written.
pub fn check_output(path: &Path) -> Result<(), ProfileError> {
    if path.symlink_metadata().is_ok() {
        return Err(ProfileError::Exists { path: path.to_owned() });
    }
    beside(path).map(drop)
}

/// Creates a new file in the directory of `path`, removed unless it is renamed.
fn beside(path: &Path) -> Result<tempfile::NamedTempFile, ProfileError> {
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    tempfile::NamedTempFile::new_in(directory)
        .map_err(|source| ProfileError::NotWritten { path: path.to_owned(), source })
}

struct SpanLayer(Profiler);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Lane>().copied());
        let name = attributes.metadata().name();
        let lane = Lane::of(name, parent);
        span.extensions_mut().insert(lane);
        let mut window = WindowField(None);
        attributes.record(&mut window);
        let begun = SpanBegun { id: id.into_u64(), name, window: window.0 };
        let mut recorder = self.0.recorder();
        // Under the lock, so that times are in order.
        if recorder.open(lane, begun, self.0.began.elapsed()) {
            self.0.over.notify_one();
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let lane = context.span(&id).and_then(|span| span.extensions().get::<Lane>().copied());
        let Some(lane) = lane else { return };
        let mut recorder = self.0.recorder();
        recorder.close(lane, id.into_u64(), self.0.began.elapsed());
    }
}

/// The field `window` of a span.
struct WindowField(Option<u64>);

impl Visit for WindowField {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "window" {
            self.0 = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::fs;
    use tracing_subscriber::layer::SubscriberExt as _;

    macro_rules! span {
        ($name:literal $(, $field:ident = $value:expr)?) => {
            tracing::trace_span!(target: "profile", $name $(, $field = $value)?)
        };
    }

    #[test]
    fn spans_of_two_lanes_make_a_trace_and_shares() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("trace.json");
        let profiler = Profiler::new(Some(1));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(profiler.layer()), || {
            // Before the first window with training.
            drop(span!("wait"));
            let idle = span!("window", window = 6u32);
            drop(idle);
            let window = span!("window", window = 7u32);
            let train = span!("train");
            span!("training", window = 7u32).in_scope(|| {
                span!("step").in_scope(|| span!("forward").in_scope(|| ()));
                // Not part of a profile, but its child is.
                tracing::info_span!("other").in_scope(|| span!("backward").in_scope(|| ()));
            });
            drop(train);
            drop(window);
            drop(span!("window", window = 8u32));
            // After the end: later spans are in no trace.
            drop(span!("upload"));
        });
        let profile = profiler.end().unwrap();
        profiler.write(&path).unwrap();
        assert_eq!(profile.windows, [7]);
        assert!(profile.is_complete);

        let trace: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let names = |lane: u64| -> Vec<&str> {
            let events = trace["traceEvents"].as_array().unwrap().iter();
            let spans = events.filter(|event| event["ph"] == "X" && event["tid"] == lane);
            spans.map(|event| event["name"].as_str().unwrap()).collect()
        };
        assert_eq!(names(1), ["wait", "window", "window", "train"]);
        assert_eq!(names(2), ["training", "step", "forward", "backward"]);

        let again = profiler.write(&path).unwrap_err();
        assert!(matches!(again, ProfileError::Exists { .. }), "{again}");
        assert!(again.to_string().contains("--output"), "{again}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn without_a_profile_spans_are_disabled_and_nothing_is_measured() {
        let profiler = Profiler::new(Some(1));
        let lines = tracing_subscriber::fmt().with_writer(io::sink).finish();
        tracing::subscriber::with_default(lines, || {
            assert!(span!("train").is_disabled() && span!("window", window = 7u32).is_disabled());
        });
        assert!(profiler.end().is_none());
    }

    #[test]
    fn an_output_that_cannot_be_written_is_refused_before_anything_is_measured() {
        let home = tempfile::tempdir().unwrap();
        check_output(&home.path().join("trace.json")).unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        fs::write(home.path().join("there"), "").unwrap();
        let there = check_output(&home.path().join("there")).unwrap_err();
        assert!(matches!(there, ProfileError::Exists { .. }), "{there}");
        let nowhere = check_output(&home.path().join("none/trace.json")).unwrap_err();
        assert!(nowhere.to_string().contains("none/trace.json"), "{nowhere}");
    }
}
