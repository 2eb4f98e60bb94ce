//! File formats that need a library of their own. The caller brings the readers, so that programs that read plain text
//! and JSON lines alone do not compile those libraries.

use crate::{bucket::ReadAt, error::SourceError};
use std::{fmt, io::BufRead, path::Path, sync::Arc};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstandard,
}

/// Readers of compressed files and of Parquet.
pub trait Formats: fmt::Debug + Send + Sync {
    /// The decompressed bytes of the file at `path`, whose bytes `file` reads.
    fn decompress(
        &self,
        path: &Path,
        compression: Compression,
        file: Box<dyn BufRead + Send>,
    ) -> Result<Box<dyn BufRead + Send>, SourceError>;

    /// The rows of one text column of the Parquet file at `path`, whose bytes `file` reads.
    fn rows(&self, path: &Path, file: Arc<dyn ReadAt>, column: &str) -> Result<Box<dyn Rows>, SourceError>;
}

/// The rows of one column, in order.
pub trait Rows: Send {
    /// The bytes of the next row's text, empty where the row has none; `None` after the last row.
    fn next(&mut self) -> Result<Option<Vec<u8>>, SourceError>;

    /// About how much of the file is read, in bytes.
    fn file_bytes(&self) -> u64;
}
