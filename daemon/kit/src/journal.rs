//! Records a node's work window by window, as lines of JSON: for its operator, for `localnet`'s table and for reports.
//!
//! No decision depends on the journal; its loss costs only the record.

use crate::durable::{DiskStatus, owners_file};
use protocol::{Digest, Uid, Window, view::Outcome};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// One event. The JSON form, `{"judged": {…}}`, is stable: fields are added, never renamed.
///
/// The event's name encloses its fields instead of being a tag beside them: the chain's libraries enable a feature of
/// `serde_json` that cannot read fractions beside a tag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The process started, from a saved or a new state.
    Started { window: Window, resumed: bool },
    /// The node holds the model of `window`.
    Holds { window: Window, lineage: Digest, outcome_before: Option<Outcome> },
    /// A miner trained. `data_seconds` is the time that it waited for data.
    Trained {
        window: Window,
        sequences: u32,
        loss_first: f64,
        loss_last: f64,
        train_seconds: f64,
        data_seconds: f64,
    },
    /// A miner resumed a window after `sequences` and `steps`.
    Resumed { window: Window, sequences: u32, steps: u32 },
    /// A miner repeated or abandoned a step, for example because its loss was not finite or above the bound. `found`
    /// is the diagnosis, or the whole error.
    Repeated { window: Window, step: u32, found: String },
    /// A file was damaged or missing, and its backup was used.
    FellBack { file: String },
    /// A miner's commitment is in a finalised block.
    Committed { window: Window, digest: Digest, bytes: u64 },
    /// A miner uploaded its contribution.
    Uploaded { window: Window, bytes: u64 },
    /// A miner missed the window.
    Missed { window: Window, reason: String },
    /// A validator attested.
    Attested { window: Window, valid: Vec<Uid>, faulty: Vec<SeatFault>, not_observed: Vec<SeatFault> },
    /// A validator merged and voted.
    Voted { window: Window, update: Digest, bytes: u64, inputs: Vec<Uid> },
    /// A validator could not vote.
    Abstained { window: Window, reason: String },
    /// A validator did not vote for its merge because the merged model was worse (PROT-19). Losses in nats per token.
    Vetoed { window: Window, loss_before: f64, loss_after: f64 },
    /// A validator judged the window's contributions. `held_out_loss` is the loss of the model with which the window
    /// opened, on `held_out_sequences` of the dataset's sample, starting at the validator's `held_out_first`. A count
    /// of 0 means that there was no time.
    Judged {
        window: Window,
        held_out_loss: f64,
        held_out_standard_error: f64,
        held_out_sequences: u64,
        seats: Vec<SeatJudged>,
        evaluate_seconds: f64,
    },
    /// A validator posted its weights.
    Posted { epoch: u32, weights: Vec<(Uid, u16)> },
    /// A validator revealed its measurements of `answered` of the epoch's `drawn` contributions (PROT-30).
    Answered { epoch: u32, answered: u32, drawn: u32 },
    /// The digest of a validator's receipt for the window is on the chain (PROT-27).
    Anchored { window: Window, receipt: Digest },
    /// A validator's receipt for the window is in its bucket.
    Published { window: Window, receipt: Digest, bytes: u64 },
    /// A validator's receipt is not on the chain or not in its bucket, perhaps only for now.
    Unpublished { window: Window, reason: String },
    /// The state differed from the fixed checkpoint and was repaired (PROT-20).
    Repaired { window: Window, pieces: usize },
    /// Bytes transferred since the process started.
    Traffic { window: Window, bytes_up: u64, bytes_down: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeatFault {
    pub uid: Uid,
    /// One word for statistics, such as `wrong-digest`.
    pub label: String,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeatJudged {
    pub uid: Uid,
    /// Mean reduction of the loss on the common sequences, in nats per token; `None` for a fault.
    pub common_gain: Option<f64>,
    /// The same on the seat's own sequences.
    pub own_gain: Option<f64>,
    pub rating: f64,
    pub uncertainty: f64,
    /// The own-data score, from −1 to 1.
    pub own_data_score: f64,
    pub score: f64,
    pub weight: u16,
    pub reasons: Vec<String>,
}

/// Appends entries to a file, one JSON object per line, or only passes them to watchers.
pub struct Journal {
    file: Option<JournalFile>,
    watchers: Vec<Watcher>,
    /// State of the node's disk: whether the node waits for space.
    pub disk: DiskStatus,
}

struct JournalFile {
    path: PathBuf,
    file: fs::File,
    /// True if the last write may have ended within a line.
    is_torn: bool,
}

/// Callback for every entry that is written.
pub type Watcher = Box<dyn Fn(&Entry) + Send + Sync>;

impl Journal {
    /// Opens the journal at `path` to append to it; creates its directories.
    ///
    /// # Errors
    /// If the file or its directory cannot be created or read.
    pub fn open(path: &Path) -> io::Result<Journal> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = owners_file().create(true).append(true).open(path)?;
        let is_torn = ends_in_a_line(&mut file)?;
        let file = JournalFile { path: path.to_owned(), file, is_torn };
        Ok(Journal { file: Some(file), watchers: Vec::new(), disk: DiskStatus::default() })
    }

    /// Creates a journal without a file: entries are only passed to `watcher`.
    pub fn in_memory(watcher: Watcher) -> Journal {
        Journal { file: None, watchers: vec![watcher], disk: DiskStatus::default() }
    }

    /// Calls `watcher` with every entry from now on. The watcher must return quickly, because the node waits for it.
    pub fn watch(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    /// Writes one line. Failures are logged and ignored.
    pub fn write(&mut self, entry: &Entry) {
        self.watchers.iter().for_each(|watcher| watcher(entry));
        if let Some(file) = &mut self.file {
            file.write(entry);
        }
    }
}

impl JournalFile {
    fn write(&mut self, entry: &Entry) {
        // A partial line, left by a full disk or a kill, is terminated. Readers skip it.
        let mut line = if self.is_torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut line, entry).expect("an entry is plain data");
        line.push(b'\n');
        let written = self.file.write_all(&line);
        self.is_torn = written.is_err();
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "could not write to the journal");
        }
    }
}

/// Returns whether the file ends within a line.
fn ends_in_a_line(file: &mut fs::File) -> io::Result<bool> {
    use std::io::{Read as _, Seek as _};
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(false);
    }
    file.seek(io::SeekFrom::Start(length - 1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != [b'\n'])
}

/// Reads a journal's entries from byte `offset` on; returns them and the offset after the last whole line. Skips lines
/// that this release does not know, so that it can read a newer node's journal. A missing file has no entries.
///
/// # Errors
/// If the file cannot be read.
pub fn read_from(path: &Path, offset: u64) -> io::Result<(Vec<Entry>, u64)> {
    use std::io::{Read as _, Seek as _};
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), offset)),
        Err(error) => return Err(error),
    };
    file.seek(io::SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let entries = bytes[..whole]
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    Ok((entries, offset.saturating_add(u64::try_from(whole).unwrap_or(u64::MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_a_journal() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        Journal::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_journal_in_memory_hands_every_entry_to_its_watcher() {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let seen = entries.clone();
        let mut journal = Journal::in_memory(Box::new(move |entry| seen.lock().unwrap().push(entry.clone())));
        let entry = Entry::Uploaded { window: Window(2), bytes: 7 };
        journal.write(&entry);
        assert_eq!(*entries.lock().unwrap(), [entry]);
    }

    #[test]
    fn a_journal_is_read_line_by_line_and_never_half_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        let entry = Entry::Uploaded { window: Window(2), bytes: 7 };
        journal.write(&entry);
        let (entries, offset) = read_from(&path, 0).unwrap();
        assert_eq!(entries, std::slice::from_ref(&entry));

        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"upl").unwrap();
        assert_eq!(read_from(&path, offset).unwrap(), (vec![], offset));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"?\"}\n").unwrap();
        journal.write(&entry);
        assert_eq!(read_from(&path, offset).unwrap().0, [entry], "an unknown line is passed over");
        assert_eq!(read_from(&directory.path().join("none"), 5).unwrap(), (vec![], 5));
    }

    #[test]
    fn what_a_full_disk_left_of_a_line_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        let entries: Vec<Entry> = (0..3).map(|bytes| Entry::Uploaded { window: Window(2), bytes }).collect();
        let mut journal = Journal::open(&path).unwrap();
        journal.write(&entries[0]);
        // Killed within a line; then the system's own full disk in place of the file.
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"upl").unwrap();
        let mut journal = Journal::open(&path).unwrap();
        journal.write(&entries[1]);
        let file = journal.file.as_mut().unwrap();
        let to_disk = std::mem::replace(&mut file.file, fs::File::create("/dev/full").unwrap());
        file.write(&entries[1]);
        file.file = to_disk;
        file.file.write_all(b"{\"uploaded\":").unwrap();
        journal.write(&entries[2]);
        assert_eq!(read_from(&path, 0).unwrap().0, entries);
    }

    #[test]
    fn fractions_read_back_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        let judged = SeatJudged {
            uid: Uid(3),
            common_gain: Some(0.020254122433741268),
            own_gain: None,
            rating: 32.10108799773595,
            uncertainty: 7.875991527265293,
            own_data_score: -0.5,
            score: 0.0,
            weight: 65535,
            reasons: vec!["late".into()],
        };
        let entries = [
            Entry::Judged {
                window: Window(1),
                held_out_loss: 5.119938077127043,
                held_out_standard_error: 0.017345678901234,
                held_out_sequences: 1536,
                seats: vec![judged],
                evaluate_seconds: 0.25,
            },
            Entry::Trained {
                window: Window(1),
                sequences: 7,
                loss_first: 6.5,
                loss_last: 6.0,
                train_seconds: 1.5,
                data_seconds: 0.25,
            },
        ];
        let mut journal = Journal::open(&path).unwrap();
        entries.iter().for_each(|entry| journal.write(entry));
        assert_eq!(read_from(&path, 0).unwrap().0, entries);
    }

    #[test]
    fn every_entry_reads_back_as_it_was_written() {
        let digest = Digest::of(b"digest");
        let vote = protocol::view::Vote { update: digest, state_root: Some(digest) };
        let fault = SeatFault { uid: Uid(3), label: "missing".into(), reason: "it is not there".into() };
        let judged = SeatJudged {
            uid: Uid(3),
            common_gain: Some(0.011_613_750_424_053_48),
            own_gain: None,
            rating: 29.180_332_385_181_55,
            uncertainty: 7.7,
            own_data_score: -0.25,
            score: 0.0,
            weight: 65_535,
            reasons: vec!["why".into()],
        };
        let window = Window(7);
        for entry in [
            Entry::Started { window, resumed: true },
            Entry::Holds { window, lineage: digest, outcome_before: Some(Outcome::Merged(vote)) },
            Entry::Holds {
                window,
                lineage: digest,
                outcome_before: Some(Outcome::Void(protocol::view::VoidReason::NoAgreement)),
            },
            Entry::Trained {
                window,
                sequences: 4,
                loss_first: 7.6,
                loss_last: 5.25,
                train_seconds: 1.5,
                data_seconds: 0.0,
            },
            Entry::Resumed { window, sequences: 3, steps: 2 },
            Entry::Repeated { window, step: 4, found: "the device".into() },
            Entry::FellBack { file: "miner.snapshot".into() },
            Entry::Committed { window, digest, bytes: 9 },
            Entry::Uploaded { window, bytes: 9 },
            Entry::Missed { window, reason: "late".into() },
            Entry::Attested {
                window,
                valid: vec![Uid(1)],
                faulty: vec![fault.clone()],
                not_observed: vec![fault],
            },
            Entry::Voted { window, update: digest, bytes: 9, inputs: vec![Uid(1)] },
            Entry::Abstained { window, reason: "no buffer".into() },
            Entry::Vetoed { window, loss_before: 2.5, loss_after: 7.0 },
            Entry::Judged {
                window,
                held_out_loss: 7.989_260_414_310_03,
                held_out_standard_error: 0.012,
                held_out_sequences: 128,
                seats: vec![judged],
                evaluate_seconds: 0.5,
            },
            Entry::Posted { epoch: 2, weights: vec![(Uid(1), 65_535)] },
            Entry::Repaired { window, pieces: 1 },
            Entry::Traffic { window, bytes_up: u64::MAX, bytes_down: 0 },
        ] {
            let line = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry, "{line}");
        }
    }
}
