//! What this validator has told the chain, or is about to, in one database: `signed.redb`.
//!
//! A validator that contradicts itself loses stake (PROT-21), and one that cannot reveal its weight vote earns no dividends (PROT-30).
//! So each statement is in the database before the chain is told, and a step that runs again gets the stored statement, not a new one.
//! Each step is one transaction: the tables never disagree. Signed receipts are files beside the database, which holds their digests.

mod import;
#[cfg(test)]
mod tests;

use crate::{gauntlet::Reputations, report::form};
use codec::{Decode, DecodeAll as _, Encode};
use node::files::{self, FileError};
use protocol::{
    Digest, Hotkey, RunId, RunParams, Uid, Window,
    receipt::{self, Attestation, MergeRecord, PreviousReceipt, ReceiptError, SignedReceipt},
    reveal::{self, Salt},
    view::Vote,
};
use redb::{Database, DatabaseError, ReadableDatabase as _, TableDefinition, TableError, WriteTransaction};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

const FILE: &str = "signed.redb";
const FORMAT: u32 = 1;
/// The database is a few hundred kilobytes.
const CACHE_BYTES: usize = 1 << 20;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// By run and epoch.
const WEIGHT_VOTES: TableDefinition<'_, (u32, u32), &[u8]> = TableDefinition::new("weight_votes");
/// By run and window.
const REPORTS: TableDefinition<'_, (u32, u32), &[u8]> = TableDefinition::new("window_reports");
/// By run and window.
const RECEIPTS: TableDefinition<'_, (u32, u32), &[u8]> = TableDefinition::new("receipts");
/// By run and 0.
const REPUTATIONS: TableDefinition<'_, (u32, u32), &[u8]> = TableDefinition::new("reputations");

/// Reports kept for windows without a receipt. An evaluation is never this many windows behind.
const REPORTS_MAX: usize = 16;

/// A weight vote, with the salt that hides it until the reveal (PROT-30).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WeightVote {
    pub epoch: u32,
    pub weights: Vec<(Uid, u16)>,
    pub salt: Salt,
}

impl WeightVote {
    /// The hash that `hotkey` commits to.
    pub fn hash(&self, hotkey: &Hotkey) -> Digest {
        reveal::commitment(&self.weights, &self.salt, hotkey)
    }
}

/// This validator's attestation and vote in one window, kept until the window's receipt is signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct WindowReport {
    /// The lineage of the window's model.
    pub base: Digest,
    pub attestation: Option<Attestation>,
    pub merged: Option<MergeRecord>,
}

impl WindowReport {
    pub fn vote(&self) -> Option<Vote> {
        self.merged.as_ref().map(|merged| Vote { update: merged.update, state_root: merged.state_root })
    }
}

/// A signed receipt, whose bytes are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct ReceiptRecord {
    digest: Digest,
    /// It is on the chain, or never will be.
    is_published: bool,
}

/// The open database. One process at a time has it open.
pub struct SignedDb {
    directory: PathBuf,
    run: RunId,
    /// `None` after a failed write, until the next one opens it again: redb requires that.
    database: Option<Database>,
    /// The rows of `run`, as they are on disk.
    rows: Rows,
}

#[derive(Default)]
struct Rows {
    weight_votes: BTreeMap<u32, WeightVote>,
    reports: BTreeMap<Window, WindowReport>,
    receipts: BTreeMap<Window, ReceiptRecord>,
    reputations: Reputations,
}

/// One row to write. A transaction is a list of them.
#[derive(Clone)]
enum Change {
    PutWeightVote(WeightVote),
    RemoveWeightVote(u32),
    PutReport(Window, WindowReport),
    RemoveReport(Window),
    PutReceipt(Window, ReceiptRecord),
    RemoveReceipt(Window),
    PutReputations(Reputations),
}

/// Where the database came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Found,
    /// It was created from these files of an older release.
    Imported(Vec<String>),
    /// It was created empty: on a first start, or after a loss.
    Created,
}

/// Why the database cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum SignedDbError {
    #[error("{} is open in another process; stop that one first", path.display())]
    InUse { path: PathBuf },
    #[error("could not write {}; is the disk full, or the directory not ours?", path.display())]
    Write { path: PathBuf, source: Box<redb::Error> },
    #[error(
        "{} is damaged: {reason}. Restore it from a copy made while this validator was stopped, or remove it and start without it. {LOSS}",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("{} has format {found}, and this release reads format {FORMAT}; start a release that reads {found}", path.display())]
    Format { path: PathBuf, found: u32 },
    #[error("{} is damaged; remove it to start without it. {loss}", path.display())]
    DamagedImport { path: PathBuf, loss: &'static str, source: serde_json::Error },
    #[error("the receipt {} is damaged; remove it, and an audit finds it missing", path.display())]
    DamagedReceipt { path: PathBuf, source: ReceiptError },
    #[error(
        "an older release wrote {} after {FILE} was made. Remove {} to continue with {FILE}, or remove {FILE} to import it again",
        path.display(), path.display()
    )]
    OldFile { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a validator loses with its database.
pub const LOSS: &str = "Without it, a weight vote that waits for its reveal earns no dividends for its epoch, \
    an attestation or vote that is committed and not revealed does not count, and miners are rated afresh";

impl SignedDbError {
    /// Whether the disk was full. The database is then as it was before.
    pub fn is_full(&self) -> bool {
        match self {
            SignedDbError::Write { source, .. } => {
                matches!(&**source, redb::Error::Io(error) if files::is_full(error))
            }
            SignedDbError::File(error) => error.is_full(),
            _ => false,
        }
    }
}

impl SignedDb {
    /// Opens the database in `directory`, or creates it: from the files of an older release if there are some.
    pub fn open(
        directory: &Path,
        run: RunId,
        params: &RunParams,
    ) -> Result<(SignedDb, Origin), SignedDbError> {
        let path = directory.join(FILE);
        fs::create_dir_all(directory)
            .map_err(|source| FileError::Write { path: directory.to_owned(), source })?;
        let database = open_database(&path)?;
        let (rows, imported, origin) = match read(&database, &path, run)? {
            Some((rows, imported)) => (rows, imported, Origin::Found),
            None => {
                let import::Imported { changes, files } = import::read(directory, run, params)?;
                write(&database, &changes, Some(&files), &path)?;
                let mut rows = Rows::default();
                let own = changes.iter().filter(|(of, _)| *of == run).flat_map(|(_, changes)| changes);
                own.for_each(|change| rows.apply(change));
                let names = files.iter().map(|(name, _)| name.clone()).collect();
                let origin = if files.is_empty() { Origin::Created } else { Origin::Imported(names) };
                (rows, files, origin)
            }
        };
        import::rename(directory, &imported)?;
        Ok((SignedDb { directory: directory.to_owned(), run, database: Some(database), rows }, origin))
    }

    /// The weight vote stored for `epoch` and not revealed.
    pub fn weight_vote(&self, epoch: u32) -> Option<&WeightVote> {
        self.rows.weight_votes.get(&epoch)
    }

    /// Weight votes of epochs before `epoch`, oldest first: due to be revealed, or too late.
    pub fn weight_votes_before(&self, epoch: u32) -> Vec<WeightVote> {
        self.rows.weight_votes.range(..epoch).map(|(_, vote)| vote.clone()).collect()
    }

    /// Stores `vote` before it is committed to. If the epoch has one already, returns that: the chain may have its hash.
    ///
    /// # Errors
    /// Nothing is stored, and nothing may be committed to.
    pub fn store_weight_vote(&mut self, vote: WeightVote) -> Result<WeightVote, SignedDbError> {
        if let Some(stored) = self.weight_vote(vote.epoch) {
            return Ok(stored.clone());
        }
        self.commit(&[Change::PutWeightVote(vote.clone())])?;
        Ok(vote)
    }

    /// Removes a weight vote that the chain has, or will never take.
    ///
    /// # Errors
    /// It is removed from memory only. After a restart the chain is asked about it again.
    pub fn remove_weight_vote(&mut self, epoch: u32) -> Result<(), SignedDbError> {
        let removed = Change::RemoveWeightVote(epoch);
        self.rows.apply(&removed);
        self.commit(&[removed])
    }

    /// The report of `window`, until its receipt is signed.
    pub fn report(&self, window: Window) -> Option<&WindowReport> {
        self.rows.reports.get(&window)
    }

    /// Stores an attestation before the chain is told. If the window has one already, returns that.
    ///
    /// # Errors
    /// Nothing is stored, and nothing may be attested.
    pub fn store_attestation(
        &mut self,
        window: Window,
        base: Digest,
        attestation: Attestation,
    ) -> Result<Attestation, SignedDbError> {
        let report = self.report(window).cloned().unwrap_or_default();
        if let Some(stored) = report.attestation {
            return Ok(stored);
        }
        self.store_report(window, WindowReport { base, attestation: Some(attestation.clone()), ..report })?;
        Ok(attestation)
    }

    /// Stores a merge before it is voted. As [`SignedDb::store_attestation`].
    pub fn store_merge(
        &mut self,
        window: Window,
        base: Digest,
        merged: MergeRecord,
    ) -> Result<MergeRecord, SignedDbError> {
        let report = self.report(window).cloned().unwrap_or_default();
        if let Some(stored) = report.merged {
            return Ok(stored);
        }
        self.store_report(window, WindowReport { base, merged: Some(merged.clone()), ..report })?;
        Ok(merged)
    }

    /// Windows before `window` with a report and no receipt, oldest first: they were not judged.
    pub fn unsigned_before(&self, window: Window) -> Vec<Window> {
        self.rows.reports.range(..window).map(|(window, _)| *window).collect()
    }

    /// The latest receipt that was signed.
    pub fn latest_receipt(&self) -> Option<PreviousReceipt> {
        let (window, record) = self.rows.receipts.last_key_value()?;
        Some(PreviousReceipt { window: *window, digest: record.digest })
    }

    /// The window of the latest receipt.
    pub fn signed_until(&self) -> Option<Window> {
        self.latest_receipt().map(|latest| latest.window)
    }

    /// Stores a window's receipt, and the reputations that follow from it if the window was judged. Reports up to `window` are removed.
    /// If this window or a later one has a receipt, returns false and stores nothing: a window has one receipt.
    ///
    /// # Errors
    /// Nothing is stored. The step may be repeated, also with another receipt.
    pub fn store_receipt(
        &mut self,
        window: Window,
        receipt: &SignedReceipt,
        reputations: Option<Reputations>,
    ) -> Result<bool, SignedDbError> {
        if self.signed_until() >= Some(window) {
            return Ok(false);
        }
        // Until the transaction ends, nothing refers to the file.
        files::write_atomic(&self.receipt_path(window), &receipt.bytes)?;
        let record = ReceiptRecord { digest: receipt.digest, is_published: false };
        let mut changes = vec![Change::PutReceipt(window, record)];
        changes.extend(self.rows.reports.range(..=window).map(|(window, _)| Change::RemoveReport(*window)));
        let kept_from = Window(window.0.saturating_sub(node::prune::RECEIPT_WINDOWS_KEPT));
        let old: Vec<Window> = self.rows.receipts.range(..kept_from).map(|(window, _)| *window).collect();
        changes.extend(old.iter().copied().map(Change::RemoveReceipt));
        changes.extend(reputations.map(Change::PutReputations));
        self.commit(&changes)?;
        // No longer in the bucket either. A file that cannot be removed harms nothing.
        old.into_iter().for_each(|window| drop(fs::remove_file(self.receipt_path(window))));
        Ok(true)
    }

    /// Receipts that are not on the chain yet, oldest first, with their bytes where these are still what was signed.
    pub fn pending_receipts(&self) -> Vec<(Window, Digest, Option<Vec<u8>>)> {
        let pending = self.rows.receipts.iter().filter(|(_, record)| !record.is_published);
        let read = |(window, record): (&Window, &ReceiptRecord)| {
            let bytes = fs::read(self.receipt_path(*window)).ok();
            (*window, record.digest, bytes.filter(|bytes| Digest::of(bytes) == record.digest))
        };
        pending.map(read).collect()
    }

    /// Notes that a receipt is on the chain, or never will be.
    ///
    /// # Errors
    /// A restart publishes it again, and the chain answers what became of it.
    pub fn mark_published(&mut self, window: Window) -> Result<(), SignedDbError> {
        let Some(record) = self.rows.receipts.get(&window) else { return Ok(()) };
        let published = Change::PutReceipt(window, ReceiptRecord { is_published: true, ..*record });
        self.rows.apply(&published);
        self.commit(&[published])
    }

    /// The reputations after the last window judged.
    pub fn reputations(&self) -> &Reputations {
        &self.rows.reputations
    }

    fn store_report(&mut self, window: Window, report: WindowReport) -> Result<(), SignedDbError> {
        let mut changes = vec![Change::PutReport(window, report)];
        let kept: Vec<Window> =
            self.rows.reports.keys().copied().filter(|earlier| *earlier != window).collect();
        let excess = (kept.len() + 1).saturating_sub(REPORTS_MAX);
        changes.extend(kept.into_iter().take(excess).map(Change::RemoveReport));
        self.commit(&changes)
    }

    fn receipt_path(&self, window: Window) -> PathBuf {
        receipt_path(&self.directory, self.run, window)
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Writes `changes` in one transaction, then applies them to memory.
    fn commit(&mut self, changes: &[Change]) -> Result<(), SignedDbError> {
        let path = self.path();
        let database = match self.database.take() {
            Some(database) => database,
            None => open_database(&path)?,
        };
        // On an error the database is closed here.
        write(&database, &[(self.run, changes.to_vec())], None, &path)?;
        self.database = Some(database);
        changes.iter().for_each(|change| self.rows.apply(change));
        Ok(())
    }
}

impl Rows {
    fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::PutWeightVote(vote) => drop(self.weight_votes.insert(vote.epoch, vote)),
            Change::RemoveWeightVote(epoch) => drop(self.weight_votes.remove(&epoch)),
            Change::PutReport(window, report) => drop(self.reports.insert(window, report)),
            Change::RemoveReport(window) => drop(self.reports.remove(&window)),
            Change::PutReceipt(window, record) => drop(self.receipts.insert(window, record)),
            Change::RemoveReceipt(window) => drop(self.receipts.remove(&window)),
            Change::PutReputations(reputations) => self.reputations = reputations,
        }
    }
}

fn receipt_path(directory: &Path, run: RunId, window: Window) -> PathBuf {
    directory.join(import::RECEIPTS).join(run.to_string()).join(format!("{window}.receipt"))
}

fn open_database(path: &Path) -> Result<Database, SignedDbError> {
    Database::builder().set_cache_size(CACHE_BYTES).create(path).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => SignedDbError::InUse { path: path.to_owned() },
        other => write_error(path, other.into()),
    })
}

fn write_error(path: &Path, error: redb::Error) -> SignedDbError {
    let damaged = match &error {
        redb::Error::Io(error) => {
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        }
        redb::Error::Corrupted(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::UpgradeRequired(_) => true,
        _ => false,
    };
    if damaged {
        return SignedDbError::Damaged { path: path.to_owned(), reason: error.to_string() };
    }
    SignedDbError::Write { path: path.to_owned(), source: Box::new(error) }
}

/// Files of an older release that were imported: names relative to the directory, and digests.
type ImportedFiles = Vec<(String, Digest)>;

/// Writes the rows of each run in one transaction; with `imported`, the rows of a new database.
fn write(
    database: &Database,
    runs: &[(RunId, Vec<Change>)],
    imported: Option<&ImportedFiles>,
    path: &Path,
) -> Result<(), SignedDbError> {
    let write = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        if let Some(imported) = imported {
            let mut meta = transaction.open_table(META)?;
            meta.insert("format", FORMAT.encode().as_slice())?;
            meta.insert("imported", imported.encode().as_slice())?;
        }
        for (run, changes) in runs {
            changes.iter().try_for_each(|change| change.write(*run, &transaction))?;
        }
        Ok(transaction.commit()?)
    };
    write().map_err(|error| write_error(path, error))
}

impl Change {
    fn write(&self, run: RunId, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let (table, number, value) = match self {
            Change::PutWeightVote(vote) => (WEIGHT_VOTES, vote.epoch, Some(vote.encode())),
            Change::RemoveWeightVote(epoch) => (WEIGHT_VOTES, *epoch, None),
            Change::PutReport(window, report) => (REPORTS, window.0, Some(report.encode())),
            Change::RemoveReport(window) => (REPORTS, window.0, None),
            Change::PutReceipt(window, record) => (RECEIPTS, window.0, Some(record.encode())),
            Change::RemoveReceipt(window) => (RECEIPTS, window.0, None),
            Change::PutReputations(of) => (REPUTATIONS, 0, Some(form::reputations(of).encode())),
        };
        let mut table = transaction.open_table(table)?;
        match value {
            Some(value) => drop(table.insert((run.0, number), value.as_slice())?),
            None => drop(table.remove((run.0, number))?),
        }
        Ok(())
    }
}

/// The rows of `run`, and the files that were imported. `None` if the database is new.
fn read(
    database: &Database,
    path: &Path,
    run: RunId,
) -> Result<Option<(Rows, ImportedFiles)>, SignedDbError> {
    let damaged = |reason: String| SignedDbError::Damaged { path: path.to_owned(), reason };
    let stored = read_tables(database, run).map_err(|error| write_error(path, error))?;
    let Some(Stored { format, imported, tables }) = stored else { return Ok(None) };
    let format: u32 = decode(&format).map_err(damaged)?;
    if format != FORMAT {
        return Err(SignedDbError::Format { path: path.to_owned(), found: format });
    }
    let imported = decode(&imported).map_err(damaged)?;
    let [weight_votes, reports, receipts, reputations] = tables;
    let mut rows = Rows::default();
    for (_, bytes) in weight_votes {
        rows.apply(&Change::PutWeightVote(decode(&bytes).map_err(damaged)?));
    }
    for (window, bytes) in reports {
        rows.apply(&Change::PutReport(Window(window), decode(&bytes).map_err(damaged)?));
    }
    for (window, bytes) in receipts {
        rows.apply(&Change::PutReceipt(Window(window), decode(&bytes).map_err(damaged)?));
    }
    for (_, bytes) in reputations {
        let reputations: receipt::Reputations = decode(&bytes).map_err(damaged)?;
        rows.apply(&Change::PutReputations(form::remembered(&reputations)));
    }
    Ok(Some((rows, imported)))
}

/// Undecoded values.
struct Stored {
    format: Vec<u8>,
    imported: Vec<u8>,
    /// Weight votes, reports, receipts, reputations.
    tables: [Vec<(u32, Vec<u8>)>; 4],
}

fn read_tables(database: &Database, run: RunId) -> Result<Option<Stored>, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        meta => meta?,
    };
    let value = |name| -> Result<Vec<u8>, redb::Error> {
        Ok(meta.get(name)?.map(|value| value.value().to_vec()).unwrap_or_default())
    };
    let mut tables = [const { Vec::new() }; 4];
    for (rows, name) in tables.iter_mut().zip([WEIGHT_VOTES, REPORTS, RECEIPTS, REPUTATIONS]) {
        let table = match transaction.open_table(name) {
            Err(TableError::TableDoesNotExist(_)) => continue,
            table => table?,
        };
        for row in table.range((run.0, 0)..=(run.0, u32::MAX))? {
            let (key, value) = row?;
            rows.push((key.value().1, value.value().to_vec()));
        }
    }
    Ok(Some(Stored { format: value("format")?, imported: value("imported")?, tables }))
}

fn decode<T: Decode>(bytes: &[u8]) -> Result<T, String> {
    T::decode_all(&mut &bytes[..]).map_err(|error| format!("a value cannot be decoded: {error}"))
}
