//! The finalised chain on disk: one redb file, one transaction per block.
//!
//! A block is on disk before any client is notified that it is final. A process killed at any moment therefore resumes
//! at the last finalised block that it announced, or a later one. Unfinalised blocks and the pool are lost.
//!
//! The state is stored for the last block only. Each recent block stores its undo changes, from which earlier states
//! are rebuilt.

use crate::{
    execute::{Genesis, Header},
    state::Changes,
};
use codec::{Decode, DecodeAll, Encode};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use sp_core::H256;
use sp_runtime::traits::Header as _;
use sp_version::RuntimeVersion;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Version of the file. Raised when older releases cannot read it.
const FORMAT: u32 = 1;
const FILE: &str = "chain.redb";
/// Name of the file of a new chain until it is complete.
const NEW_FILE: &str = "chain.redb.new";
const CACHE_BYTES: usize = 16 << 20;

const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const STATE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");
const HEADERS: TableDefinition<u32, &[u8]> = TableDefinition::new("headers");
const BODIES: TableDefinition<u32, &[u8]> = TableDefinition::new("bodies");

/// Number of stored finalised blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Number of blocks with state and extrinsics; at least one.
    pub(crate) states: u32,
    pub(crate) headers: u32,
}

impl Keep {
    /// Returns the first block with state and extrinsics.
    pub(crate) fn first_state(&self, finalised: u32) -> u32 {
        (finalised + 1).saturating_sub(self.states)
    }

    /// Returns the first block with a header, except genesis.
    pub(crate) fn first_header(&self, finalised: u32) -> u32 {
        (finalised + 1).saturating_sub(self.headers.max(self.states))
    }
}

/// Error of using the chain's directory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{dir} holds other files than a chain: choose an empty or new directory")]
    Foreign { dir: PathBuf },
    #[error("the chain in {dir} is in use by another process")]
    InUse { dir: PathBuf },
    #[error(
        "the chain in {dir} was written by a newer release: its format is {found}, this release reads up to {FORMAT}"
    )]
    NewerFormat { dir: PathBuf, found: u32 },
    #[error(
        "the chain in {dir} was last run with version {found} of the runtime, this release has version {ours}: an older \
         runtime cannot follow"
    )]
    NewerRuntime { dir: PathBuf, found: u32, ours: u32 },
    #[error(
        "the chain in {dir} was last run with version {found} of the runtime, and this release continues the state of \
         version {oldest} or newer: run it with the release that made it, or start a new chain in another directory"
    )]
    OlderRuntime { dir: PathBuf, found: u32, oldest: u32 },
    #[error(
        "the chain in {dir} has another genesis: its is {found:?}, this release and these settings give {ours:?}. Start it \
         with the settings it was made with, or choose another directory"
    )]
    OtherGenesis { dir: PathBuf, found: H256, ours: H256 },
    #[error("the chain in {dir} is damaged: {reason}")]
    Damaged { dir: PathBuf, reason: String },
    #[error("cannot use the directory {dir}")]
    Directory { dir: PathBuf, source: io::Error },
    #[error("cannot read or write {file}")]
    File { file: PathBuf, source: Box<redb::Error> },
}

pub(crate) struct Store {
    database: Database,
    dir: PathBuf,
    keep: Keep,
}

/// The extrinsics of a block, and the changes that undo it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Body {
    pub(crate) inherents: u32,
    pub(crate) extrinsics: Vec<Vec<u8>>,
    pub(crate) undo: Changes,
}

/// A stored chain.
pub(crate) struct Resumed {
    /// Stored headers, ascending, from genesis to the finalised head.
    pub(crate) blocks: Vec<(Header, Option<Body>)>,
    /// State after the last block.
    pub(crate) state: Changes,
}

impl Store {
    /// Opens the chain in `dir`, or creates it.
    pub(crate) fn open(
        dir: &Path,
        keep: Keep,
        genesis: &Genesis,
        version: &RuntimeVersion,
        oldest_state: u32,
    ) -> Result<(Store, Resumed), StoreError> {
        let failed = |source| StoreError::Directory { dir: dir.into(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        let file = dir.join(FILE);
        if !file.try_exists().map_err(failed)? {
            create(dir, genesis, version)?;
        }
        let store = Store { database: open(dir, FILE, false)?, dir: dir.into(), keep };
        store.check(genesis, version, oldest_state)?;
        let resumed = store.load()?;
        Ok((store, resumed))
    }

    /// Stores a finalised block. It is on disk on return.
    pub(crate) fn append(&self, header: &Header, body: &Body, changes: &Changes) -> Result<(), StoreError> {
        let number = *header.number();
        let append = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            write_block(&transaction, header, body, changes)?;
            let mut bodies = transaction.open_table(BODIES)?;
            bodies.retain_in(..self.keep.first_state(number), |_, _| false)?;
            drop(bodies);
            let mut headers = transaction.open_table(HEADERS)?;
            let first_header = self.keep.first_header(number).max(1);
            headers.retain_in(1..first_header, |_, _| false)?;
            drop(headers);
            transaction.commit()?;
            Ok(())
        };
        append().map_err(|error| failed(&self.dir, FILE, error))
    }

    /// Checks that this release and these settings can continue the chain.
    fn check(
        &self,
        genesis: &Genesis,
        version: &RuntimeVersion,
        oldest_state: u32,
    ) -> Result<(), StoreError> {
        let dir = self.dir.clone();
        let foreign = || StoreError::Foreign { dir: dir.clone() };
        let format: u32 = self.meta("format")?.ok_or_else(foreign)?;
        if format > FORMAT {
            return Err(StoreError::NewerFormat { dir, found: format });
        }
        let spec_name: String = self.meta("spec_name")?.ok_or_else(foreign)?;
        if spec_name != version.spec_name {
            return Err(StoreError::Foreign { dir });
        }
        let found: u32 = self.meta("spec_version")?.ok_or_else(foreign)?;
        let ours = version.spec_version;
        if found > ours {
            return Err(StoreError::NewerRuntime { dir, found, ours });
        }
        if found < oldest_state {
            return Err(StoreError::OlderRuntime { dir, found, oldest: oldest_state });
        }
        let genesis = genesis.header.hash();
        if found < ours {
            // A newer runtime has another genesis. Its migrations run with the next block.
            tracing::info!(from = found, to = ours, "continuing the chain with a newer runtime");
            return self.follow_runtime(ours, genesis);
        }
        let found: H256 = self.meta("genesis")?.ok_or_else(foreign)?;
        if found != genesis {
            return Err(StoreError::OtherGenesis { dir, found, ours: genesis });
        }
        Ok(())
    }

    fn load(&self) -> Result<Resumed, StoreError> {
        let (headers, bodies, state) = self.read(|transaction| {
            let mut headers = Vec::new();
            for entry in transaction.open_table(HEADERS)?.iter()? {
                let (number, header) = entry?;
                headers.push((number.value(), header.value().to_vec()));
            }
            let mut bodies = std::collections::BTreeMap::new();
            for entry in transaction.open_table(BODIES)?.iter()? {
                let (number, body) = entry?;
                bodies.insert(number.value(), body.value().to_vec());
            }
            let mut state = Changes::new();
            for entry in transaction.open_table(STATE)?.iter()? {
                let (key, value) = entry?;
                state.push((key.value().to_vec(), Some(value.value().to_vec())));
            }
            Ok((headers, bodies, state))
        })?;

        let mut blocks = Vec::<(Header, Option<Body>)>::with_capacity(headers.len());
        for (number, bytes) in headers {
            let header: Header = self.decode(&bytes, &format!("the header of block {number}"))?;
            if header.number != number {
                return Err(
                    self.damaged(&format!("block {number} has the number {} in its header", header.number))
                );
            }
            let parent = blocks.last().filter(|(parent, _)| parent.number + 1 == number);
            if parent.is_some_and(|(parent, _)| parent.hash() != header.parent_hash) {
                return Err(self.damaged(&format!("block {number} does not follow the one before it")));
            }
            let body = bodies.get(&number);
            let body = body.map(|bytes| self.decode(bytes, &format!("the body of block {number}")));
            blocks.push((header, body.transpose()?));
        }
        if blocks.first().is_none_or(|(header, _)| header.number != 0) {
            return Err(self.damaged("it has no genesis block"));
        }
        if blocks.last().is_none_or(|(_, body)| body.is_none()) {
            return Err(self.damaged("its last block has no body"));
        }
        Ok(Resumed { blocks, state })
    }

    fn meta<T: Decode>(&self, key: &str) -> Result<Option<T>, StoreError> {
        let bytes = self.read(|transaction| {
            let table = match transaction.open_table(META) {
                Err(TableError::TableDoesNotExist(_) | TableError::TableTypeMismatch { .. }) => {
                    return Ok(None);
                }
                table => table?,
            };
            let bytes = table.get(key)?.map(|value| value.value().to_vec());
            Ok(bytes)
        })?;
        bytes.map(|bytes| self.decode(&bytes, key)).transpose()
    }

    /// Records a newer runtime version, and the genesis that it would have.
    fn follow_runtime(&self, version: u32, genesis: H256) -> Result<(), StoreError> {
        let follow = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            let mut meta = transaction.open_table(META)?;
            meta.insert("spec_version", version.encode().as_slice())?;
            meta.insert("genesis", genesis.encode().as_slice())?;
            drop(meta);
            transaction.commit()?;
            Ok(())
        };
        follow().map_err(|error| failed(&self.dir, FILE, error))
    }

    fn read<R>(
        &self,
        f: impl FnOnce(&redb::ReadTransaction) -> Result<R, redb::Error>,
    ) -> Result<R, StoreError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from);
        transaction.and_then(|transaction| f(&transaction)).map_err(|error| failed(&self.dir, FILE, error))
    }

    fn decode<T: Decode>(&self, mut bytes: &[u8], what: &str) -> Result<T, StoreError> {
        T::decode_all(&mut bytes).map_err(|error| self.damaged(&format!("{what} cannot be decoded: {error}")))
    }

    pub(crate) fn damaged(&self, reason: &str) -> StoreError {
        StoreError::Damaged { dir: self.dir.clone(), reason: reason.into() }
    }
}

/// Creates a chain in a temporary file, and renames it when it is complete.
fn create(dir: &Path, genesis: &Genesis, version: &RuntimeVersion) -> Result<(), StoreError> {
    let unusable = |source| StoreError::Directory { dir: dir.into(), source };
    for entry in fs::read_dir(dir).map_err(unusable)? {
        if entry.map_err(unusable)?.file_name() != NEW_FILE {
            return Err(StoreError::Foreign { dir: dir.into() });
        }
    }
    let database = match open(dir, NEW_FILE, true) {
        // An earlier process was interrupted while it wrote the file.
        Err(StoreError::Damaged { .. }) => {
            fs::remove_file(dir.join(NEW_FILE)).map_err(unusable)?;
            open(dir, NEW_FILE, true)?
        }
        database => database?,
    };
    let body = Body { inherents: 0, extrinsics: vec![], undo: vec![] };
    let write = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        transaction.delete_table(META)?;
        transaction.delete_table(STATE)?;
        transaction.delete_table(HEADERS)?;
        transaction.delete_table(BODIES)?;
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT.encode().as_slice())?;
        meta.insert("spec_name", version.spec_name.to_string().encode().as_slice())?;
        meta.insert("spec_version", version.spec_version.encode().as_slice())?;
        meta.insert("genesis", genesis.header.hash().encode().as_slice())?;
        drop(meta);
        write_block(&transaction, &genesis.header, &body, &genesis.changes)?;
        transaction.commit()?;
        Ok(())
    };
    write().map_err(|error| failed(dir, NEW_FILE, error))?;
    drop(database);
    fs::rename(dir.join(NEW_FILE), dir.join(FILE)).map_err(unusable)?;
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(unusable)
}

fn write_block(
    transaction: &redb::WriteTransaction,
    header: &Header,
    body: &Body,
    changes: &Changes,
) -> Result<(), redb::Error> {
    let number = *header.number();
    transaction.open_table(HEADERS)?.insert(number, header.encode().as_slice())?;
    transaction.open_table(BODIES)?.insert(number, body.encode().as_slice())?;
    let mut state = transaction.open_table(STATE)?;
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.as_slice(), value.as_slice())?,
            None => state.remove(key.as_slice())?,
        };
    }
    Ok(())
}

fn open(dir: &Path, file: &'static str, create: bool) -> Result<Database, StoreError> {
    let path = dir.join(file);
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let database = if create { builder.create(&path) } else { builder.open(&path) };
    database.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { dir: dir.into() },
        error => failed(dir, file, error.into()),
    })
}

/// Distinguishes a damaged file from a failing disk.
fn failed(dir: &Path, file: &str, error: redb::Error) -> StoreError {
    let damaged = |reason: String| StoreError::Damaged { dir: dir.into(), reason };
    match error {
        redb::Error::Corrupted(reason) => damaged(reason),
        redb::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            damaged(error.to_string())
        }
        redb::Error::UpgradeRequired(version) => damaged(format!("its file format {version} is too old")),
        redb::Error::TableDoesNotExist(table) => damaged(format!("it has no table `{table}`")),
        error => StoreError::File { file: dir.join(file), source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{execute::Runtime, genesis};

    #[test]
    fn a_chain_continues_with_a_newer_runtime_of_another_genesis_unless_its_state_is_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::native();
        let (old, keep) = (runtime.version.spec_version, Keep { states: 1, headers: 1 });
        let newer = RuntimeVersion { spec_version: old + 1, ..runtime.version.clone() };
        let made = genesis::build(&runtime, None, None).unwrap();
        let patch = serde_json::json!({ "authorities": { "slotMillis": 6000 } });
        let other = genesis::build(&runtime, None, Some(patch)).unwrap();
        drop(Store::open(dir.path(), keep, &made, &runtime.version, old).unwrap());

        let refused = Store::open(dir.path(), keep, &other, &newer, old + 1).err().unwrap();
        assert!(
            matches!(refused, StoreError::OlderRuntime { found, oldest, .. } if (found, oldest) == (old, old + 1)),
            "{refused}"
        );
        // A refusal changes nothing: both runtimes still open it.
        drop(Store::open(dir.path(), keep, &made, &runtime.version, old).unwrap());
        for _ in 0..2 {
            let (_, resumed) = Store::open(dir.path(), keep, &other, &newer, old).unwrap();
            assert_eq!(resumed.blocks[0].0.hash(), made.header.hash());
        }
    }
}
