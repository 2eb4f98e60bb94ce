//! Readers of compressed files and of Parquet.

use crate::{
    bucket::{ReadAt, ReadFrom},
    error::SourceError,
};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::{
    basic::Type,
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, ByteArrayType},
    errors::ParquetError,
    file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader},
};
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

const BUFFER_BYTES: usize = 256 << 10;
/// Number of rows decoded at once.
const ROWS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstandard,
}

/// Returns a reader of the decompressed bytes of the file at `path`, whose bytes `file` reads.
pub(crate) fn decompress(
    path: &Path,
    compression: Compression,
    file: impl BufRead + Send + 'static,
) -> Result<Box<dyn BufRead + Send>, SourceError> {
    Ok(match compression {
        Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file))),
        Compression::Zstandard => {
            let bytes = zstd::Decoder::with_buffer(file)
                .map_err(|source| SourceError::Unreadable { path: path.to_owned(), source })?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, bytes))
        }
    })
}

/// The bytes of a Parquet file.
struct Chunks(Arc<dyn ReadAt>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.length()
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(ReadFrom::new(self.0.clone(), start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut bytes = Vec::with_capacity(length);
        ReadFrom::new(self.0.clone(), start).take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() != length {
            return Err(ParquetError::EOF(format!("it ends {} bytes early", length - bytes.len())));
        }
        Ok(bytes.into())
    }
}

/// The rows of one text column of a Parquet file, a few at a time.
pub(crate) struct Rows {
    path: PathBuf,
    file: SerializedFileReader<Chunks>,
    column: usize,
    /// Definition level of an existing value.
    defined: i16,
    next_group: usize,
    reader: Option<ColumnReaderImpl<ByteArrayType>>,
    waiting: VecDeque<Option<ByteArray>>,
    /// Size of the groups that have been read or are being read, in bytes.
    file_bytes: u64,
}

impl Rows {
    /// Opens the Parquet file at `path`, whose bytes `file` reads.
    pub fn open(path: &Path, file: Arc<dyn ReadAt>, field: &str) -> Result<Rows, SourceError> {
        let failed = |error: ParquetError| parquet_error(path, &error);
        let file = SerializedFileReader::new(Chunks(file)).map_err(failed)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let columns = schema.columns();
        let Some(column) = columns.iter().position(|column| column.path().string() == field) else {
            let columns: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
            return Err(SourceError::NoColumn {
                path: path.to_owned(),
                field: field.to_owned(),
                columns: columns.join(", "),
            });
        };
        let found = &columns[column];
        if found.physical_type() != Type::BYTE_ARRAY || found.max_rep_level() != 0 {
            let reason = format!("its column {field:?} does not hold one text per row");
            return Err(SourceError::Parquet { path: path.to_owned(), reason });
        }
        let defined = found.max_def_level();
        Ok(Rows {
            path: path.to_owned(),
            file,
            column,
            defined,
            next_group: 0,
            reader: None,
            waiting: VecDeque::new(),
            file_bytes: 0,
        })
    }

    /// Reads some rows, or opens the next group of them. Returns `false` after the last.
    fn read(&mut self) -> Result<bool, SourceError> {
        let failed = |error: ParquetError| parquet_error(&self.path, &error);
        let Some(reader) = &mut self.reader else {
            if self.next_group == self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.next_group).map_err(failed)?;
            let ColumnReader::ByteArrayColumnReader(reader) =
                group.get_column_reader(self.column).map_err(failed)?
            else {
                unreachable!("the column's type was looked at as the file was opened");
            };
            let bytes = self.file.metadata().row_group(self.next_group).compressed_size();
            self.file_bytes += u64::try_from(bytes).unwrap_or(0);
            self.reader = Some(reader);
            self.next_group += 1;
            return Ok(true);
        };
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let levels_wanted = (self.defined > 0).then_some(&mut levels);
        let (rows, _, _) = reader.read_records(ROWS, levels_wanted, None, &mut values).map_err(failed)?;
        if rows == 0 {
            self.reader = None;
            return Ok(true);
        }
        if self.defined == 0 {
            self.waiting.extend(values.into_iter().map(Some));
        } else {
            let mut values = values.into_iter();
            self.waiting.extend(levels.iter().map(
                |&level| {
                    if level == self.defined { values.next() } else { None }
                },
            ));
        }
        Ok(true)
    }

    /// Returns the bytes of the next row's text, empty if the row has none; `None` after the last row.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, SourceError> {
        while self.waiting.is_empty() {
            if !self.read()? {
                return Ok(None);
            }
        }
        let row = self.waiting.pop_front().flatten();
        Ok(Some(row.map(|bytes| bytes.data().to_vec()).unwrap_or_default()))
    }

    /// Returns about how much of the file has been read, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

fn parquet_error(path: &Path, error: &ParquetError) -> SourceError {
    // A failed read may succeed later: all data read so far is kept.
    if let ParquetError::External(cause) = error
        && let Some(read) = cause.downcast_ref::<std::io::Error>()
    {
        let source = std::io::Error::new(read.kind(), read.to_string());
        return SourceError::Unreadable { path: path.to_owned(), source };
    }
    SourceError::Parquet { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::{Compression as Compressed, Rows, decompress};
    use crate::{
        OutputDirectory, PrepareError, PrepareOptions, Prepared, Source, SourceError, TokenizerChoice,
        bucket::ReadAt, prepare,
    };
    use parquet::{
        basic::{Compression, ZstdLevel},
        data_type::{ByteArray, ByteArrayType, Int32Type},
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };
    use std::{
        fs,
        fs::File,
        io::{Read as _, Write as _},
        path::Path,
        sync::Arc,
    };

    /// Two groups of rows: a number, and a text that may be missing.
    fn write(path: &Path, compression: Compression, rows: &[Option<&[u8]>]) {
        let schema = "message rows { required int32 id; optional binary text (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).expect("a schema"));
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let file = File::create(path).expect("writable");
        let mut writer = SerializedFileWriter::new(file, schema, properties).expect("writable");
        for rows in rows.chunks(rows.len().div_ceil(2)) {
            let mut group = writer.next_row_group().expect("open");
            let ids: Vec<i32> = (0..rows.len() as i32).collect();
            let mut column = group.next_column().expect("open").expect("the number");
            column.typed::<Int32Type>().write_batch(&ids, None, None).expect("writable");
            column.close().expect("writable");
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
            let texts: Vec<ByteArray> =
                rows.iter().flatten().map(|text| ByteArray::from(text.to_vec())).collect();
            let mut column = group.next_column().expect("open").expect("the text");
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).expect("writable");
            column.close().expect("writable");
            group.close().expect("writable");
        }
        writer.close().expect("writable");
    }

    /// Returns few bytes at a time.
    struct Given(Vec<u8>);

    impl ReadAt for Given {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, start: u64, into: &mut [u8]) -> std::io::Result<usize> {
            let found = self.0.get(start as usize..).unwrap_or_default();
            let bytes = found.len().min(into.len()).min(100);
            into[..bytes].copy_from_slice(&found[..bytes]);
            Ok(bytes)
        }
    }

    fn read(path: &Path, column: &str) -> Result<Vec<Vec<u8>>, SourceError> {
        let bytes = fs::read(path).map_err(|source| SourceError::Unreadable { path: path.into(), source })?;
        let mut rows = Rows::open(path, Arc::new(Given(bytes)), column)?;
        std::iter::from_fn(|| rows.next().transpose()).collect()
    }

    #[test]
    fn every_row_of_a_parquet_file_is_read_however_it_is_compressed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("a.parquet");
        let texts: Vec<String> = (0..301).map(|row| format!("text {row} 😀\n")).collect();
        let rows: Vec<Option<&[u8]>> =
            texts.iter().enumerate().map(|(row, text)| (row % 7 != 3).then_some(text.as_bytes())).collect();
        let expected: Vec<Vec<u8>> = rows.iter().map(|row| row.unwrap_or_default().to_vec()).collect();
        let zstandard = Compression::ZSTD(ZstdLevel::default());
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, zstandard] {
            write(&path, compression, &rows);
            assert_eq!(read(&path, "text").expect("readable"), expected, "{compression:?}");
        }

        let missing = read(&path, "body").expect_err("no such column");
        assert!(matches!(&missing, SourceError::NoColumn { columns, .. } if columns == "id, text"));
        assert!(matches!(read(&path, "id"), Err(SourceError::Parquet { .. })));
        let bytes = fs::read(&path).expect("readable");
        fs::write(&path, &bytes[..bytes.len() - 20]).expect("writable");
        assert!(matches!(read(&path, "text"), Err(SourceError::Parquet { .. })));
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(bytes).expect("memory");
        to.finish().expect("memory")
    }

    #[test]
    fn a_compressed_file_is_read_whole_and_a_broken_one_is_named() {
        let lines: &[u8] = b"one\ntwo\n";
        // Concatenated gzip files are one file.
        let two = [gzip(&lines[..4]), gzip(&lines[4..])].concat();
        let zstandard = zstd::encode_all(lines, 1).expect("memory");
        for (compression, bytes) in [(Compressed::Gzip, two), (Compressed::Zstandard, zstandard)] {
            let read = |bytes: &[u8]| {
                let file = std::io::Cursor::new(bytes.to_vec());
                let mut text = Vec::new();
                decompress(Path::new("a"), compression, file)?
                    .read_to_end(&mut text)
                    .map_err(|source| SourceError::Unreadable { path: "a".into(), source })?;
                Ok::<_, SourceError>(text)
            };
            assert_eq!(read(&bytes).expect("readable"), lines);
            assert!(matches!(read(&bytes[..bytes.len() - 5]), Err(SourceError::Unreadable { .. })));
            assert!(matches!(read(b"nonsense"), Err(SourceError::Unreadable { .. })));
        }
    }

    fn prepared(root: &Path, name: &str, bytes: &[u8]) -> Result<Prepared, PrepareError> {
        let text = root.join(format!("of-{name}"));
        fs::create_dir(&text).expect("writable");
        fs::write(text.join(name), bytes).expect("writable");
        let place = OutputDirectory::Directory(root.join(format!("dataset-{name}")));
        let options = PrepareOptions {
            tokenizer: TokenizerChoice::Train { vocab: 400 },
            seq_len: 16,
            held_out_sequences_min: 20,
            ..PrepareOptions::new(Source::directory(text), place)
        };
        prepare(options, &mut |_| {})
    }

    #[test]
    fn the_dataset_is_the_same_in_every_format() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let texts: Vec<String> = (0..200)
            .map(|n| format!("{n} times {n} is {}, and half of it is {}. ", n * n, n * n / 2).repeat(4))
            .collect();
        let lines: String = texts.iter().map(|text| format!("{{\"text\": {text:?}}}\n")).collect();
        let parquet = root.path().join("rows");
        let rows: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(text.as_bytes())).collect();
        write(&parquet, Compression::SNAPPY, &rows);

        let plain = prepared(root.path(), "a.jsonl", lines.as_bytes()).expect("enough text");
        let gzip = gzip(lines.as_bytes());
        let zstandard = zstd::encode_all(lines.as_bytes(), 1).expect("memory");
        let parquet = fs::read(parquet).expect("readable");
        for (name, bytes) in [("a.jsonl.gz", &gzip), ("a.jsonl.zst", &zstandard), ("a.parquet", &parquet)] {
            let other = prepared(root.path(), name, bytes).expect("enough text");
            assert_eq!(other.digest, plain.digest, "{name}");
        }
        let error = prepared(root.path(), "b.jsonl.gz", &gzip[..gzip.len() - 5]).expect_err("cut short");
        assert!(matches!(
            error,
            PrepareError::Source(SourceError::Unreadable { path, .. }) if path.ends_with("b.jsonl.gz")
        ));
    }
}
