//! A file of the windows that a page has shown. A later page begins with them, as the chain keeps only the last 128.
//!
//! Each line of the file is a window as JSON. Of several lines of one window the last counts, as receipts add to a
//! window that has ended. Lines are appended. A line that a crash has cut is dropped; any other unreadable line is
//! skipped. The file is rewritten with the kept windows when it is too long.
//! left out. The file is written anew, with the windows that are kept, when it is too long.

use crate::{observe::Observer, timeline::WindowRow};
use dataset::{
    LossEstimate,
    durable::{Readers, write_atomic},
};
use protocol::{GenesisHash, RunId, Window, view::Outcome};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

const FORMAT: &str = "mettle/1/history";
/// Size above which the file is rewritten, in bytes: twice the cells of a timeline.
const BYTES_MAX: u64 = 256 << 20;
/// Maximum length of a line: a window has at most 2^16 seats, one letter each.
const LINE_MAX: u64 = (1 << 16) + 1024;
/// Number of latest windows that may still change.
const CHANGING: u32 = 256;

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("cannot use {} for the history of the page", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is in use by another program; stop it, or name another directory", path.display())]
    InUse { path: PathBuf },
    #[error("{} is no history of run {run} on this chain; name another directory, or move the file away", path.display())]
    Foreign { path: PathBuf, run: RunId },
}

/// The first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    chain: GenesisHash,
    run: RunId,
}

/// A window, as stored in a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    window: Window,
    outcome: Outcome,
    /// A letter for each seat, by uid.
    fates: String,
    /// Loss on the window's common sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<Loss>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Loss {
    sequences: u64,
    loss: f64,
    standard_error: f64,
}

/// The file of one run.
pub struct History {
    path: PathBuf,
    file: File,
    header: Vec<u8>,
    /// Length of the file, without a line that was not written completely.
    bytes: u64,
    /// The latest windows, as they were written.
    written: BTreeMap<Window, Record>,
    bytes_max: u64,
    _lock: File,
}

impl History {
    /// Opens or creates the file of a run in `directory`, and gives its windows to `observer`, which has read nothing
    /// yet.
    ///
    /// # Errors
    /// If the file is another run's or in use, or the disk fails.
    pub fn open(
        directory: &Path,
        chain: GenesisHash,
        observer: &mut Observer,
    ) -> Result<History, HistoryError> {
        let run = observer.run.id;
        let path = directory.join(format!("run-{run}.history"));
        let failed = |source| HistoryError::File { path: path.clone(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(path.with_extension("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HistoryError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let header = Header { format: FORMAT.to_owned(), chain, run };
        let mut first = serde_json::to_vec(&header).expect("strings and numbers are always JSON");
        first.push(b'\n');
        let mut file = open_file(&path).map_err(failed)?;
        let mut begins = Vec::new();
        (&file).take(first.len() as u64).read_to_end(&mut begins).map_err(failed)?;
        if begins.len() < first.len() && first.starts_with(&begins) {
            // The file is new, or was cut by a crash.
            file.set_len(0).map_err(failed)?;
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            file.write_all(&first).map_err(failed)?;
        }
        let (bytes, written) = match read(&file, &header, observer).map_err(failed)? {
            Some(read) => read,
            None => return Err(HistoryError::Foreign { path, run }),
        };
        file.set_len(bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(History { path, file, header: first, bytes, written, bytes_max: BYTES_MAX, _lock: lock })
    }

    /// Appends the changes since the last call.
    ///
    /// # Errors
    /// If the disk is full or fails; the next call tries again.
    pub fn record(&mut self, observer: &Observer) -> Result<(), HistoryError> {
        let Some((_, last)) = observer.timeline.bounds() else { return Ok(()) };
        let first = Window(last.0.saturating_sub(CHANGING - 1));
        let mut lines = Vec::new();
        let mut new = Vec::new();
        for (window, row) in observer.timeline.range(first, CHANGING) {
            let Some(record) = Record::of(window, row, observer) else { continue };
            if self.written.get(&window) != Some(&record) {
                record.write(&mut lines);
                new.push(record);
            }
        }
        let failed = |source| HistoryError::File { path: self.path.clone(), source };
        if self.bytes_max < self.bytes + lines.len() as u64 {
            return self.write_anew(observer);
        }
        if let Err(error) = self.file.write_all(&lines) {
            // A partial line would corrupt the next one.
            let _ = self.file.set_len(self.bytes);
            let _ = self.file.seek(SeekFrom::Start(self.bytes));
            return Err(failed(error));
        }
        self.bytes += lines.len() as u64;
        self.written.extend(new.into_iter().map(|record| (record.window, record)));
        self.written = self.written.split_off(&first);
        Ok(())
    }

    /// Rewrites the file with the later half of the windows that may be kept.
    fn write_anew(&mut self, observer: &Observer) -> Result<(), HistoryError> {
        let failed = |source| HistoryError::File { path: self.path.clone(), source };
        let rows = |(window, row)| Record::of(window, row, observer);
        let records: Vec<Record> =
            observer.timeline.range(Window::FIRST, u32::MAX).filter_map(rows).collect();
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for record in records.iter().rev() {
            let mut line = Vec::new();
            record.write(&mut line);
            bytes += line.len() as u64;
            if self.bytes_max / 2 < bytes {
                break;
            }
            kept.push(line);
        }
        let all: Vec<u8> =
            [self.header.clone()].into_iter().chain(kept.into_iter().rev()).flatten().collect();
        write_atomic(&self.path, &all, Readers::Umask).map_err(failed)?;
        self.file = open_file(&self.path).map_err(failed)?;
        self.file.seek(SeekFrom::End(0)).map_err(failed)?;
        self.bytes = all.len() as u64;
        let changing = records.into_iter().rev().take(CHANGING as usize);
        self.written = changing.map(|record| (record.window, record)).collect();
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Passes all windows to `observer`. Returns the bytes of complete lines and the latest windows, or `None` if the
/// file belongs to another run.
fn read(
    file: &File,
    header: &Header,
    observer: &mut Observer,
) -> io::Result<Option<(u64, BTreeMap<Window, Record>)>> {
    let mut lines = BufReader::new(file);
    lines.seek(SeekFrom::Start(0))?;
    let (mut bytes, mut written, mut unread) = (0, BTreeMap::new(), 0);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        let is_first = bytes == 0;
        if is_first && serde_json::from_slice::<Header>(&line).ok().as_ref() != Some(header) {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            // The line was cut by a crash, or is not ours.
            if LINE_MAX <= line.len() as u64 {
                return Ok(None);
            }
            break;
        }
        bytes += line.len() as u64;
        if is_first {
            continue;
        }
        let record = serde_json::from_slice::<Record>(&line).ok();
        let row =
            record.as_ref().and_then(|record| WindowRow::of_letters(Some(record.outcome), &record.fates));
        let (Some(record), Some(row)) = (record, row) else {
            unread += 1;
            continue;
        };
        observer.restore(record.window, row, record.loss.map(LossEstimate::from));
        written.insert(record.window, record);
        while CHANGING < written.len() as u32 {
            written.pop_first();
        }
    }
    if 0 < unread {
        tracing::warn!(
            lines = unread,
            "a kept history has lines that this release cannot read: they are left out"
        );
    }
    Ok(Some((bytes, written)))
}

impl Record {
    fn of(window: Window, row: &WindowRow, observer: &Observer) -> Option<Record> {
        // A receipt may contain any number; JSON has only finite ones.
        let is_finite =
            |estimate: &&LossEstimate| estimate.loss.is_finite() && estimate.standard_error.is_finite();
        let loss = observer.common.get(&window).filter(is_finite).map(|estimate| Loss {
            sequences: estimate.sequences,
            loss: estimate.loss,
            standard_error: estimate.standard_error,
        });
        Some(Record { window, outcome: row.outcome?, fates: row.letters(), loss })
    }

    fn write(&self, lines: &mut Vec<u8>) {
        serde_json::to_writer(&mut *lines, self).expect("strings and finite numbers are always JSON");
        lines.push(b'\n');
    }
}

impl From<Loss> for LossEstimate {
    fn from(loss: Loss) -> LossEstimate {
        let Loss { sequences, loss, standard_error } = loss;
        LossEstimate { sequences, loss, standard_error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sample,
        timeline::{Fate, Timeline},
    };
    use protocol::{
        Digest, Uid,
        view::{VoidReason, Vote},
    };

    const CHAIN: GenesisHash = GenesisHash([7; 32]);

    /// Creates an observer that has read nothing.
    fn empty() -> Observer {
        let Observer { run, seats, block, .. } = sample::network();
        Observer::from_start(run, seats, block, Vec::new())
    }

    fn row(window: u32) -> WindowRow {
        let outcome = match window % 5 {
            0 => Outcome::Void(VoidReason::NoAgreement),
            _ => Outcome::Merged(Vote { update: Digest([window as u8; 32]), state_root: None }),
        };
        let fate = |uid: u32| if (window + uid).is_multiple_of(3) { Fate::Missed } else { Fate::Gathered };
        WindowRow::with(Some(outcome), (0..6).map(fate).collect())
    }

    fn add(observer: &mut Observer, windows: std::ops::Range<u32>) {
        windows.for_each(|window| observer.timeline.add(Window(window), row(window)));
    }

    fn rows(timeline: &Timeline) -> Vec<(Window, WindowRow)> {
        timeline.range(Window::FIRST, u32::MAX).map(|(window, row)| (window, row.clone())).collect()
    }

    #[test]
    fn a_later_page_begins_with_the_windows_of_the_earlier_one() {
        let root = tempfile::tempdir().unwrap();
        let mut first = empty();
        let mut history = History::open(root.path(), CHAIN, &mut first).unwrap();
        add(&mut first, 0..300);
        history.record(&first).unwrap();
        // Receipts add to a window that has ended.
        first.timeline.score(Window(298), [Uid(1)]);
        let estimate = LossEstimate { sequences: 16, loss: 4.25, standard_error: 0.125 };
        first.common.insert(Window(297), estimate);
        history.record(&first).unwrap();
        let bytes = history.bytes;
        history.record(&first).unwrap();
        assert_eq!(history.bytes, bytes, "nothing is new");
        let again = History::open(root.path(), CHAIN, &mut empty());
        assert!(matches!(again, Err(HistoryError::InUse { .. })));
        drop(history);

        let mut second = empty();
        let mut history = History::open(root.path(), CHAIN, &mut second).unwrap();
        // The first read of the first page came after more windows than may still change.
        assert_eq!(rows(&second.timeline), rows(&first.timeline)[300 - CHANGING as usize..]);
        assert_eq!(second.timeline.row(Window(298)).unwrap().fate(Uid(1)), Fate::Scored);
        assert_eq!(second.common.get(&Window(297)), Some(&estimate));
        // The chain's view of a window does not contain measurements.
        add(&mut second, 290..310);
        assert_eq!(second.timeline.row(Window(298)).unwrap().fate(Uid(1)), Fate::Scored);
        history.record(&second).unwrap();
        drop(history);
        let mut third = empty();
        drop(History::open(root.path(), CHAIN, &mut third).unwrap());
        assert_eq!(rows(&third.timeline), rows(&second.timeline));
    }

    #[test]
    fn a_cut_line_is_dropped_and_a_foreign_file_refused() {
        let root = tempfile::tempdir().unwrap();
        let mut observer = empty();
        let mut history = History::open(root.path(), CHAIN, &mut observer).unwrap();
        add(&mut observer, 0..10);
        history.record(&observer).unwrap();
        let path = history.path.clone();
        drop(history);
        let whole = fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let kept = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let mut observer = empty();
            let history = History::open(root.path(), CHAIN, &mut observer).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), history.bytes);
            rows(&observer.timeline).len()
        };
        assert_eq!(kept(&whole), 10);
        assert_eq!(kept(&whole[..whole.len() - 1]), 9);
        assert_eq!(kept(&[lines[..4].concat(), b"nonsense\n".to_vec(), lines[4..].concat()].concat()), 10);
        let hostile = String::from_utf8(lines[1].to_vec()).unwrap().replace("\"fates\":\"", "\"fates\":\"<");
        assert_eq!(kept(&[lines[0], hostile.as_bytes()].concat()), 0);

        // The first write of a new file was cut.
        assert_eq!(kept(&whole[..7]), 0);
        assert_eq!(fs::read(&path).unwrap(), lines[0]);
        for (chain, contents) in
            [(GenesisHash([8; 32]), &whole[..]), (CHAIN, &b"my diary\n"[..]), (CHAIN, &b"{a}"[..])]
        {
            fs::write(&path, contents).unwrap();
            let opened = History::open(root.path(), chain, &mut empty());
            assert!(matches!(opened, Err(HistoryError::Foreign { .. })));
            assert_eq!(fs::read(&path).unwrap(), contents, "it is left alone");
        }
    }

    #[test]
    fn a_long_history_forgets_its_oldest_windows() {
        let root = tempfile::tempdir().unwrap();
        let mut observer = empty();
        let mut history = History::open(root.path(), CHAIN, &mut observer).unwrap();
        history.bytes_max = 20_000;
        for window in 0..400 {
            add(&mut observer, window..window + 1);
            history.record(&observer).unwrap();
            assert!(fs::metadata(&history.path).unwrap().len() <= history.bytes_max);
        }
        drop(history);
        let mut later = empty();
        drop(History::open(root.path(), CHAIN, &mut later).unwrap());
        let (first, last) = later.timeline.bounds().unwrap();
        assert!(last == Window(399) && 250 < first.0 && first.0 < 350, "{first:?} {last:?}");
        assert_eq!(rows(&later.timeline).len() as u32, last.0 - first.0 + 1);
    }
}
