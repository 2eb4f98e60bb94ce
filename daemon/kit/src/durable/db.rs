//! A small database for a node's signed statements: tables of SCALE values in one file, with atomic transactions over
//! several tables.
//!
//! A transaction is either on the disk when [`Db::write`] returns, or has no effect. If the disk is full, the node's
//! [`Ballast`] is deleted and the transaction repeated.

use super::{
    ballast::Ballast,
    file::{is_full, owners_file},
};
use codec::{Decode, DecodeAll as _, Encode};
use redb::{Database, ReadableTable as _, TableDefinition, TableHandle as _, WriteTransaction};
use std::{
    io,
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A database in a file.
#[derive(Debug)]
pub struct Db {
    path: PathBuf,
    ballast: Ballast,
    /// Closed after a disk error, and reopened by the next transaction.
    open: Mutex<Option<Database>>,
}

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error("could not open the database {}", path.display())]
    Open { path: PathBuf, source: redb::Error },
    #[error("could not read or write the database {}", path.display())]
    Access { path: PathBuf, source: redb::Error },
    #[error("table {table} of the database has an entry that this release cannot read")]
    Entry { table: &'static str, source: codec::Error },
}

impl DbError {
    /// Returns whether the file is damaged or not a database.
    pub fn is_damaged(&self) -> bool {
        match self {
            DbError::Open { source, .. } | DbError::Access { source, .. } => match source {
                redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => true,
                redb::Error::Io(error) => {
                    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
                }
                _ => false,
            },
            DbError::Entry { .. } => true,
        }
    }
}

/// A value with a SCALE encoding.
pub trait Scale: Encode + Decode {}

impl<T: Encode + Decode> Scale for T {}

/// A table with a fixed name, whose keys and values are SCALE-encoded.
pub struct Table<K, V> {
    name: &'static str,
    entries: PhantomData<fn(K) -> V>,
}

impl<K: Scale, V: Scale> Table<K, V> {
    pub const fn new(name: &'static str) -> Table<K, V> {
        Table { name, entries: PhantomData }
    }

    fn decode<T: Decode>(&self, bytes: &[u8]) -> Result<T, DbError> {
        T::decode_all(&mut &bytes[..]).map_err(|source| DbError::Entry { table: self.name, source })
    }
}

type Opened<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;

/// A transaction of a [`Db`].
pub struct Transaction<'a> {
    inner: WriteTransaction,
    path: &'a Path,
}

impl Transaction<'_> {
    /// Returns the entry of a key, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read, or the entry cannot be decoded.
    pub fn get<K: Scale, V: Scale>(&self, table: &Table<K, V>, key: &K) -> Result<Option<V>, DbError> {
        let Some(opened) = self.open_existing(table)? else { return Ok(None) };
        let found = opened.get(&key.encode()[..]).map_err(|error| self.failed(error))?;
        found.map(|bytes| table.decode(bytes.value())).transpose()
    }

    /// Inserts an entry or replaces the one with the same key.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put<K: Scale, V: Scale>(&self, table: &Table<K, V>, key: &K, value: &V) -> Result<(), DbError> {
        let mut opened = self.open(table)?;
        opened.insert(&key.encode()[..], &value.encode()[..]).map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Removes the entry of a key, if there is one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn remove<K: Scale, V: Scale>(&self, table: &Table<K, V>, key: &K) -> Result<(), DbError> {
        let mut opened = self.open(table)?;
        opened.remove(&key.encode()[..]).map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Returns all entries in the order of their keys.
    ///
    /// # Errors
    /// If the file cannot be read, or an entry cannot be decoded.
    pub fn entries<K: Scale + Ord, V: Scale>(&self, table: &Table<K, V>) -> Result<Vec<(K, V)>, DbError> {
        let mut entries = Vec::new();
        let Some(opened) = self.open_existing(table)? else { return Ok(entries) };
        for entry in opened.iter().map_err(|error| self.failed(error))? {
            let (key, value) = entry.map_err(|error| self.failed(error))?;
            entries.push((table.decode::<K>(key.value())?, table.decode::<V>(value.value())?));
        }
        // SCALE writes the lowest byte of a number first, so the file's order differs.
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(entries)
    }

    /// Opens a table; `None` if it was never written. Reading does not create it, which would need space on the disk.
    fn open_existing<K: Scale, V: Scale>(&self, table: &Table<K, V>) -> Result<Option<Opened<'_>>, DbError> {
        let mut tables = self.inner.list_tables().map_err(|error| self.failed(error))?;
        if tables.any(|existing| existing.name() == table.name) {
            self.open(table).map(Some)
        } else {
            Ok(None)
        }
    }

    fn open<K: Scale, V: Scale>(&self, table: &Table<K, V>) -> Result<Opened<'_>, DbError> {
        self.inner.open_table(TableDefinition::new(table.name)).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl Into<redb::Error>) -> DbError {
        DbError::Access { path: self.path.to_owned(), source: error.into() }
    }
}

impl Db {
    /// Opens the database at `path`, or creates an empty one. Blocks, like all methods.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is [damaged](DbError::is_damaged).
    pub fn open(path: impl Into<PathBuf>, ballast: Ballast) -> Result<Db, DbError> {
        let db = Db { path: path.into(), ballast, open: Mutex::new(None) };
        db.retry_without_ballast(|| db.opened().map(drop))?;
        db.ballast.restore();
        Ok(db)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` and discards its changes.
    ///
    /// # Errors
    /// If `work` fails or the file cannot be read.
    pub fn read<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>) -> Result<T, DbError> {
        let open = self.opened()?;
        let transaction = self.begin(&open)?;
        let result = work(&transaction);
        drop(transaction);
        result
    }

    /// Runs `work` and commits its changes atomically. `work` runs again if the disk was full and the ballast was
    /// deleted.
    ///
    /// # Errors
    /// If `work` fails or the file cannot be written. Nothing is then changed.
    pub fn write<T>(&self, work: impl Fn(&Transaction<'_>) -> Result<T, DbError>) -> Result<T, DbError> {
        let written = self.retry_without_ballast(|| {
            let mut open = self.opened()?;
            let done = self.begin(&open).and_then(|transaction| {
                let result = work(&transaction)?;
                transaction.inner.commit().map_err(|error| self.access(error))?;
                Ok(result)
            });
            if matches!(done, Err(DbError::Access { .. })) {
                // After a disk error, this handle refuses every access.
                *open = None;
            }
            done
        })?;
        self.ballast.restore();
        Ok(written)
    }

    fn retry_without_ballast<T>(&self, attempt: impl Fn() -> Result<T, DbError>) -> Result<T, DbError> {
        match attempt() {
            Err(full) if is_full(&full) && self.ballast.release() => {
                tracing::warn!(path = %self.path.display(), "the disk is full: deleted the ballast to write what is signed");
                attempt()
            }
            done => done,
        }
    }

    fn begin(&self, open: &Option<Database>) -> Result<Transaction<'_>, DbError> {
        let database = open.as_ref().expect("it was opened above");
        let inner = database.begin_write().map_err(|error| self.access(error))?;
        Ok(Transaction { inner, path: &self.path })
    }

    /// Returns the open database. A poisoned lock is harmless, because only transactions change the data under it.
    fn opened(&self) -> Result<MutexGuard<'_, Option<Database>>, DbError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            let failed = |source| DbError::Open { path: self.path.clone(), source };
            let file = owners_file().create(true).open(&self.path);
            let file = file.map_err(|error| failed(redb::Error::Io(error)))?;
            *open = Some(redb::Builder::new().create_file(file).map_err(|error| failed(error.into()))?);
        }
        Ok(open)
    }

    fn access(&self, error: impl Into<redb::Error>) -> DbError {
        DbError::Access { path: self.path.clone(), source: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NAMES: Table<u32, String> = Table::new("names");
    const COUNTS: Table<(u8, u32), u64> = Table::new("counts");

    fn open(directory: &Path) -> Result<Db, DbError> {
        Db::open(directory.join("node.redb"), Ballast::new(directory, 0))
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_a_database() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let db = open(directory.path()).unwrap();
        assert_eq!(fs::metadata(db.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_transaction_changes_several_tables_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let db = open(directory.path()).unwrap();
        db.write(|tx| {
            tx.put(&NAMES, &256, &"b".to_owned())?;
            tx.put(&NAMES, &1, &"a".to_owned())?;
            tx.put(&COUNTS, &(1, 2), &3)
        })
        .unwrap();
        let failed: Result<(), _> = db.write(|tx| {
            tx.put(&NAMES, &1, &"changed".to_owned())?;
            tx.remove(&COUNTS, &(1, 2))?;
            Err(DbError::Entry { table: "names", source: "on purpose".into() })
        });
        assert!(failed.is_err());
        drop(db);

        let db = open(directory.path()).unwrap();
        db.read(|tx| {
            assert_eq!(tx.entries(&NAMES)?, [(1, "a".to_owned()), (256, "b".to_owned())]);
            assert_eq!((tx.get(&COUNTS, &(1, 2))?, tx.get(&COUNTS, &(1, 3))?), (Some(3), None));
            tx.put(&NAMES, &2, &"dropped".to_owned())
        })
        .unwrap();
        assert_eq!(db.read(|tx| tx.get(&NAMES, &2)).unwrap(), None);
        db.write(|tx| tx.remove(&NAMES, &1)).unwrap();
        assert_eq!(db.read(|tx| tx.get(&NAMES, &1)).unwrap(), None);
    }

    #[test]
    fn a_read_makes_no_table_as_that_would_need_space_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let db = open(directory.path()).unwrap();
        db.write(|tx| tx.put(&NAMES, &1, &"name".to_owned())).unwrap();
        let names = |tx: &Transaction<'_>| -> Vec<String> {
            tx.inner.list_tables().unwrap().map(|table| table.name().to_owned()).collect()
        };
        db.read(|tx| {
            assert_eq!((tx.get(&COUNTS, &(1, 2))?, tx.entries(&COUNTS)?), (None, Vec::new()));
            assert_eq!(names(tx), ["names"]);
            tx.put(&COUNTS, &(1, 2), &3)?;
            assert_eq!((tx.get(&COUNTS, &(1, 2))?, names(tx).len()), (Some(3), 2));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_damaged_database_is_refused_by_its_path() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("node.redb"), "no database").unwrap();
        let refused = open(directory.path()).unwrap_err();
        assert!(refused.is_damaged() && !is_full(&refused), "{refused:?}");
        assert!(refused.to_string().contains("node.redb"));
    }

    #[test]
    fn an_entry_of_another_form_is_refused_by_its_table() {
        let directory = tempfile::tempdir().unwrap();
        let db = open(directory.path()).unwrap();
        db.write(|tx| tx.put(&NAMES, &1, &"name".to_owned())).unwrap();
        let other: Table<u32, u64> = Table::new("names");
        let refused = db.read(|tx| tx.get(&other, &1)).unwrap_err();
        assert!(refused.is_damaged() && refused.to_string().contains("names"), "{refused}");
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors() {
        let error = |kind: io::ErrorKind| DbError::Access {
            path: "node.redb".into(),
            source: redb::Error::Io(kind.into()),
        };
        assert!(is_full(&error(io::ErrorKind::StorageFull)));
        assert!(!is_full(&error(io::ErrorKind::PermissionDenied)));
    }
}
