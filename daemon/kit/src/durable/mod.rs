//! Files that survive a crash at any moment, and writes on a full disk.

pub mod ballast;
pub mod db;
mod disk_full;
mod durable_file;
mod file;
mod lock;

pub use ballast::{Ballast, free_bytes};
pub use db::{Db, DbError, Table, Transaction};
pub use disk_full::{DiskFullRetry, DiskStatus, retry_while_full};
pub use durable_file::{
    DurableFile, DurableReader, Recovered, read_values, read_vector, write_values, write_vector,
};
pub(crate) use durable_file::{read_length, read_values_into};
pub(crate) use file::with_need;
pub use file::{FileError, is_full, owners_file, sweep, write_atomic};
pub use lock::{DirectoryLock, LockError};
