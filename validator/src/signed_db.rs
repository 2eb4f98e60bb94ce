//! The database of this validator's statements to the chain: `signed.redb`.
//!
//! A validator that contradicts itself loses stake (PROT-21), and one that cannot reveal its weight vote earns no
//! dividends (PROT-30). So each statement is in the database before it is sent to the chain, and a repeated step gets
//! the stored statement, not a new one. Each step is one transaction: the tables never disagree. Signed receipts are
//! files beside the database, which holds their digests.
//!
//! A database belongs to one chain. Chains number runs and windows alike, so on another chain its rows could be
//! mistaken for statements that were never made there.

#[cfg(test)]
mod tests;

use codec::{Decode, Encode, Error as CodecError, Input};
use daemon::durable::{Ballast, Db, DbError, FileError, Table, Transaction, write_atomic};
use gauntlet::{Reputations, form};
use protocol::{
    Digest, GenesisHash, Hotkey, RunId, Uid, Window,
    receipt::{self, Attestation, MergeRecord, PreviousReceipt, SignedReceipt},
    reveal::{self, Salt},
    view::Vote,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

const FILE: &str = "signed.redb";
const FORMAT: u32 = 3;
/// The directory of signed receipts, a folder per run.
const RECEIPT_FOLDER: &str = "receipts";

const META: Table<(), Meta> = Table::new("meta");
/// Keys: run and epoch.
const WEIGHT_VOTES: Table<(RunId, u32), WeightVote> = Table::new("weight_votes");
const REPORTS: Table<(RunId, Window), WindowReport> = Table::new("window_reports");
const RECEIPTS: Table<(RunId, Window), ReceiptRecord> = Table::new("receipts");
const REPUTATIONS: Table<RunId, receipt::Reputations> = Table::new("reputations");

/// Written with the first transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode)]
struct Meta {
    format: u32,
    /// The chain of all statements. Zero in another format, of which only the number is read.
    genesis: GenesisHash,
}

impl Decode for Meta {
    fn decode<I: Input>(from: &mut I) -> Result<Meta, CodecError> {
        let format = u32::decode(from)?;
        if format == FORMAT {
            return Ok(Meta { format, genesis: GenesisHash::decode(from)? });
        }
        while from.read_byte().is_ok() {}
        Ok(Meta { format, genesis: GenesisHash::default() })
    }
}

/// Maximum number of reports kept for windows without a receipt. An evaluation is never this many windows behind.
const REPORTS_MAX: usize = 16;

/// A weight vote, with the salt that hides it until the reveal (PROT-30).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WeightVote {
    pub epoch: u32,
    pub weights: Vec<(Uid, u16)>,
    pub salt: Salt,
}

impl WeightVote {
    /// Returns the hash that `hotkey` commits to.
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
    /// True if its digest is on the chain, or never will be.
    is_anchored: bool,
    /// True if its bytes are in the bucket, or never will be.
    is_published: bool,
}

/// A signed receipt on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReceipt {
    pub window: Window,
    pub digest: Digest,
    /// `None` if the file is missing or differs from the signed bytes.
    pub bytes: Option<Vec<u8>>,
}

/// The open database. The directory's lock keeps other processes out.
pub struct SignedDb {
    directory: PathBuf,
    run: RunId,
    db: Db,
    /// The rows of `run`, as they are on disk.
    rows: Rows,
    /// Kept apart from the rows: they grow with the seats, and most transactions do not change them.
    reputations: Arc<Reputations>,
    /// True if the last transaction failed. It may still have changed the disk.
    has_failed: bool,
}

#[derive(Default)]
struct Rows {
    weight_votes: BTreeMap<u32, WeightVote>,
    reports: BTreeMap<Window, WindowReport>,
    receipts: BTreeMap<Window, ReceiptRecord>,
}

/// Origin of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Found,
    /// It was created empty: on a first start, or after a loss.
    Created,
}

/// Reason why the database cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum SignedDbError {
    #[error(transparent)]
    Db(Box<DbError>),
    #[error(
        "{} is damaged. Restore it from a copy made while this validator was stopped, or remove it and start without it. {LOSS}",
        path.display()
    )]
    Damaged { path: PathBuf, source: Box<DbError> },
    #[error(
        "{} has format {found}, and this release reads format {FORMAT}. Start a release that reads {found}, or on a new \
         chain an empty directory",
        path.display()
    )]
    Format { path: PathBuf, found: u32 },
    #[error(
        "{} was signed on the chain with genesis {found}, and the node is on the one with genesis {chain}. Use another \
         directory for each chain",
        path.display()
    )]
    OtherChain { path: PathBuf, found: GenesisHash, chain: GenesisHash },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Consequences of losing the database.
pub const LOSS: &str = "Without it, a weight vote that waits for its reveal earns no dividends for its epoch, \
    an attestation or vote that is committed and not revealed does not count, and miners are rated afresh";

impl SignedDb {
    /// Opens the database of the chain in `directory`, or creates it. A transaction on a full disk deletes a ballast
    /// of `ballast_bytes`, so that it fits.
    ///
    /// # Errors
    /// [`SignedDbError::OtherChain`] if the database is of another chain: its statements do not count here.
    pub fn open(
        directory: &Path,
        genesis: GenesisHash,
        run: RunId,
        ballast_bytes: u64,
    ) -> Result<(SignedDb, Origin), SignedDbError> {
        let path = directory.join(FILE);
        fs::create_dir_all(directory)
            .map_err(|source| FileError::Write { path: directory.to_owned(), source })?;
        let failed = |error| db_error(&path, error);
        let db = Db::open(&path, Ballast::new(directory, ballast_bytes)).map_err(failed)?;
        let (meta, origin) = match db.read(|tx| tx.get(&META, &())).map_err(failed)? {
            Some(meta) => (meta, Origin::Found),
            None => {
                let meta = Meta { format: FORMAT, genesis };
                db.write(|tx| tx.put(&META, &(), &meta)).map_err(failed)?;
                (meta, Origin::Created)
            }
        };
        if meta.format != FORMAT {
            return Err(SignedDbError::Format { path, found: meta.format });
        }
        if meta.genesis != genesis {
            return Err(SignedDbError::OtherChain { path, found: meta.genesis, chain: genesis });
        }
        let stored = db.read(|tx| Ok((Rows::read(run, tx)?, tx.get(&REPUTATIONS, &run)?)));
        let (rows, reputations) = stored.map_err(failed)?;
        let reputations = Arc::new(reputations.as_ref().map(form::remembered).unwrap_or_default());
        Ok((
            SignedDb { directory: directory.to_owned(), run, db, rows, reputations, has_failed: false },
            origin,
        ))
    }

    /// Returns the weight vote stored for `epoch` and not revealed.
    pub fn weight_vote(&self, epoch: u32) -> Option<&WeightVote> {
        self.rows.weight_votes.get(&epoch)
    }

    /// Returns the weight votes of epochs before `epoch`, oldest first: due to be revealed, or too late.
    pub fn weight_votes_before(&self, epoch: u32) -> Vec<WeightVote> {
        self.rows.weight_votes.range(..epoch).map(|(_, vote)| vote.clone()).collect()
    }

    /// Stores `vote` before the chain gets its hash. If the epoch has one already, returns that: the chain may have
    /// its hash.
    ///
    /// # Errors
    /// If the database cannot be written. Nothing is stored; commit to nothing.
    pub fn store_weight_vote(&mut self, vote: WeightVote) -> Result<WeightVote, SignedDbError> {
        if let Some(stored) = self.weight_vote(vote.epoch) {
            return Ok(stored.clone());
        }
        self.commit(|run, tx| tx.put(&WEIGHT_VOTES, &(run, vote.epoch), &vote))?;
        Ok(vote)
    }

    /// Removes a weight vote that the chain has, or will never accept.
    ///
    /// # Errors
    /// If the database cannot be written. It is removed from memory only, until the next write. Then the chain is
    /// queried again.
    pub fn remove_weight_vote(&mut self, epoch: u32) -> Result<(), SignedDbError> {
        self.rows.weight_votes.remove(&epoch);
        self.commit(|run, tx| tx.remove(&WEIGHT_VOTES, &(run, epoch)))
    }

    /// Returns the report of `window`, until its receipt is signed.
    pub fn report(&self, window: Window) -> Option<&WindowReport> {
        self.rows.reports.get(&window)
    }

    /// Stores an attestation before it is sent to the chain. If the window has one already, returns that.
    ///
    /// # Errors
    /// If the database cannot be written. Nothing is stored; attest nothing.
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

    /// Stores a merge before the vote for it. If the window has one already, returns that.
    ///
    /// # Errors
    /// If the database cannot be written. Nothing is stored; vote for nothing.
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

    /// Returns the windows before `window` with a report and no receipt, oldest first: they were not judged.
    pub fn unsigned_before(&self, window: Window) -> Vec<Window> {
        self.rows.reports.range(..window).map(|(window, _)| *window).collect()
    }

    /// Returns the latest signed receipt.
    pub fn latest_receipt(&self) -> Option<PreviousReceipt> {
        let (window, record) = self.rows.receipts.last_key_value()?;
        Some(PreviousReceipt { window: *window, digest: record.digest })
    }

    /// Returns the window of the latest receipt.
    pub fn signed_until(&self) -> Option<Window> {
        self.latest_receipt().map(|latest| latest.window)
    }

    /// Stores a window's receipt, and the reputations that follow from it if the window was judged. Reports up to
    /// `window` are removed. If this window or a later one has a receipt, returns false and stores nothing: a window
    /// has one receipt.
    ///
    /// # Errors
    /// If the receipt's file or the database cannot be written. Nothing is stored. The step may be repeated, even
    /// with another receipt.
    pub fn store_receipt(
        &mut self,
        window: Window,
        receipt: &SignedReceipt,
        reputations: Option<Reputations>,
    ) -> Result<bool, SignedDbError> {
        if self.signed_until() >= Some(window) {
            return Ok(false);
        }
        // Nothing refers to the file until the transaction ends.
        write_atomic(&self.receipt_path(window), &receipt.bytes)?;
        let record = ReceiptRecord { digest: receipt.digest, is_anchored: false, is_published: false };
        let reported: Vec<Window> = self.rows.reports.range(..=window).map(|(window, _)| *window).collect();
        let kept_from = Window(window.0.saturating_sub(daemon::prune::RECEIPT_WINDOWS_KEPT));
        let old: Vec<Window> = self.rows.receipts.range(..kept_from).map(|(window, _)| *window).collect();
        let encoded = reputations.as_ref().map(form::reputations);
        self.commit(|run, tx| {
            tx.put(&RECEIPTS, &(run, window), &record)?;
            reported.iter().try_for_each(|window| tx.remove(&REPORTS, &(run, *window)))?;
            old.iter().try_for_each(|window| tx.remove(&RECEIPTS, &(run, *window)))?;
            encoded.iter().try_for_each(|encoded| tx.put(&REPUTATIONS, &run, encoded))
        })?;
        if let Some(encoded) = &encoded {
            self.reputations = Arc::new(form::remembered(encoded));
        }
        // They are no longer in the bucket either. A file that cannot be removed does no harm.
        old.into_iter().for_each(|window| drop(fs::remove_file(self.receipt_path(window))));
        Ok(true)
    }

    /// Returns the receipts whose digest is not on the chain yet, oldest first.
    pub fn unanchored_receipts(&self) -> Vec<StoredReceipt> {
        let unanchored = self.rows.receipts.iter().filter(|(_, record)| !record.is_anchored);
        unanchored.map(|(window, record)| self.stored_receipt(*window, record)).collect()
    }

    /// Returns the receipts of windows before `end` that are not in the bucket yet, oldest first.
    pub fn unpublished_receipts(&self, end: Window) -> Vec<StoredReceipt> {
        let unpublished = self.rows.receipts.range(..end).filter(|(_, record)| !record.is_published);
        unpublished.map(|(window, record)| self.stored_receipt(*window, record)).collect()
    }

    /// Returns the signed receipt of `window`, if there is one.
    pub fn receipt(&self, window: Window) -> Option<StoredReceipt> {
        let record = self.rows.receipts.get(&window)?;
        Some(self.stored_receipt(window, record))
    }

    fn stored_receipt(&self, window: Window, record: &ReceiptRecord) -> StoredReceipt {
        let bytes = fs::read(self.receipt_path(window)).ok();
        let bytes = bytes.filter(|bytes| Digest::of(bytes) == record.digest);
        StoredReceipt { window, digest: record.digest, bytes }
    }

    /// Marks a receipt's digest as on the chain, or as never to be.
    ///
    /// # Errors
    /// If the database cannot be written. The mark is in memory only, until the next write. Then the receipt is
    /// anchored again, and the chain returns its state.
    pub fn mark_anchored(&mut self, window: Window) -> Result<(), SignedDbError> {
        self.mark(window, |record| record.is_anchored = true)
    }

    /// Marks a receipt as in the bucket, or as never to be.
    ///
    /// # Errors
    /// If the database cannot be written. The mark is in memory only, until the next write. Then the receipt is
    /// uploaded again, as the same object.
    pub fn mark_published(&mut self, window: Window) -> Result<(), SignedDbError> {
        self.mark(window, |record| record.is_published = true)
    }

    fn mark(&mut self, window: Window, note: impl Fn(&mut ReceiptRecord)) -> Result<(), SignedDbError> {
        let Some(record) = self.rows.receipts.get_mut(&window) else { return Ok(()) };
        note(record);
        let noted = *record;
        self.commit(|run, tx| tx.put(&RECEIPTS, &(run, window), &noted))
    }

    /// Returns the reputations after the last judged window.
    pub fn reputations(&self) -> &Arc<Reputations> {
        &self.reputations
    }

    fn store_report(&mut self, window: Window, report: WindowReport) -> Result<(), SignedDbError> {
        let kept: Vec<Window> =
            self.rows.reports.keys().copied().filter(|earlier| *earlier != window).collect();
        let excess = (kept.len() + 1).saturating_sub(REPORTS_MAX);
        self.commit(|run, tx| {
            tx.put(&REPORTS, &(run, window), &report)?;
            kept[..excess].iter().try_for_each(|earlier| tx.remove(&REPORTS, &(run, *earlier)))
        })
    }

    fn receipt_path(&self, window: Window) -> PathBuf {
        receipt_path(&self.directory, self.run, window)
    }

    /// Runs `write` in one transaction, which also reads the rows that follow from it.
    fn commit(
        &mut self,
        write: impl Fn(RunId, &Transaction<'_>) -> Result<(), DbError>,
    ) -> Result<(), SignedDbError> {
        let (run, has_failed) = (self.run, self.has_failed);
        self.has_failed = true;
        let written = self.db.write(|tx| {
            write(run, tx)?;
            let reputations = if has_failed { Some(tx.get(&REPUTATIONS, &run)?) } else { None };
            Ok((Rows::read(run, tx)?, reputations))
        });
        let (rows, reputations) = written.map_err(|error| db_error(self.db.path(), error))?;
        (self.rows, self.has_failed) = (rows, false);
        if let Some(found) = reputations {
            self.reputations = Arc::new(found.as_ref().map(form::remembered).unwrap_or_default());
        }
        Ok(())
    }
}

impl Rows {
    fn read(run: RunId, tx: &Transaction<'_>) -> Result<Rows, DbError> {
        fn of<N, V>(run: RunId, rows: Vec<((RunId, N), V)>) -> impl Iterator<Item = (N, V)> {
            rows.into_iter().filter(move |((of, _), _)| *of == run).map(|((_, number), row)| (number, row))
        }
        Ok(Rows {
            weight_votes: of(run, tx.entries(&WEIGHT_VOTES)?).collect(),
            reports: of(run, tx.entries(&REPORTS)?).collect(),
            receipts: of(run, tx.entries(&RECEIPTS)?).collect(),
        })
    }
}

fn receipt_path(directory: &Path, run: RunId, window: Window) -> PathBuf {
    directory.join(RECEIPT_FOLDER).join(run.to_string()).join(format!("{window}.receipt"))
}

fn db_error(path: &Path, error: DbError) -> SignedDbError {
    if error.is_damaged() {
        return SignedDbError::Damaged { path: path.to_owned(), source: Box::new(error) };
    }
    SignedDbError::Db(Box::new(error))
}
