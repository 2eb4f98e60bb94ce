//! The rows of one text column of a Parquet file, a few at a time.

use crate::{documents::MAX_DOCUMENT_BYTES, source::SourceError};
use parquet::{
    basic::Type,
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, ByteArrayType},
    errors::ParquetError,
    file::reader::{FileReader as _, SerializedFileReader},
};
use std::{collections::VecDeque, fs::File, path::Path};

/// Rows decoded at once.
const ROWS: usize = 64;

pub(crate) struct Rows {
    file: SerializedFileReader<File>,
    column: usize,
    /// A value is there where its definition level is this.
    defined: i16,
    next_group: usize,
    reader: Option<ColumnReaderImpl<ByteArrayType>>,
    waiting: VecDeque<Option<ByteArray>>,
    /// Of the groups that are read or being read.
    file_bytes: u64,
}

impl Rows {
    pub fn open(path: &Path, field: &str) -> Result<Rows, SourceError> {
        let failed = |error: ParquetError| parquet_error(path, &error);
        let opened =
            File::open(path).map_err(|source| SourceError::Unreadable { path: path.to_owned(), source })?;
        let file = SerializedFileReader::new(opened).map_err(failed)?;
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
            let reason = format!("its column {field:?} does not hold one text a row");
            return Err(SourceError::Parquet { path: path.to_owned(), reason });
        }
        let defined = found.max_def_level();
        Ok(Rows {
            file,
            column,
            defined,
            next_group: 0,
            reader: None,
            waiting: VecDeque::new(),
            file_bytes: 0,
        })
    }

    /// The next row's text; nothing in it is an empty one.
    pub fn next(&mut self, path: &Path, number: u64) -> Result<Option<String>, SourceError> {
        while self.waiting.is_empty() {
            if !self.read(path)? {
                return Ok(None);
            }
        }
        let Some(bytes) = self.waiting.pop_front().flatten() else { return Ok(Some(String::new())) };
        if bytes.len() > MAX_DOCUMENT_BYTES {
            return Err(SourceError::TooLong { path: path.to_owned(), number });
        }
        let text = std::str::from_utf8(bytes.data()).map_err(|error| SourceError::Item {
            path: path.to_owned(),
            number,
            reason: error.to_string(),
        })?;
        Ok(Some(text.to_owned()))
    }

    /// About how much of the file is read.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Reads some rows, or opens the next group of them. `false` after the last.
    fn read(&mut self, path: &Path) -> Result<bool, SourceError> {
        let failed = |error: ParquetError| parquet_error(path, &error);
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
}

fn parquet_error(path: &Path, error: &ParquetError) -> SourceError {
    SourceError::Parquet { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use crate::{
        documents::{Documents, Opening},
        source::SourceError,
    };
    use parquet::{
        basic::{Compression, ZstdLevel},
        data_type::{ByteArray, ByteArrayType, Int32Type},
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };
    use std::{fs::File, path::Path, sync::Arc};

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

    fn read(path: &Path, field: &str) -> Result<Vec<String>, SourceError> {
        let mut texts = Vec::new();
        for batch in Documents::open(&Opening { path, field, part_bytes: 100 })? {
            texts.extend(batch?.items.into_iter().map(|item| item.text(field).expect("it is text")));
        }
        Ok(texts)
    }

    #[test]
    fn every_row_is_a_document_however_it_is_compressed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("a.parquet");
        let texts: Vec<String> = (0..301).map(|row| format!("text {row} 😀\n")).collect();
        let rows: Vec<Option<&[u8]>> =
            texts.iter().enumerate().map(|(row, text)| (row % 7 != 3).then_some(text.as_bytes())).collect();
        let expected: Vec<String> = rows
            .iter()
            .map(|row| String::from_utf8(row.unwrap_or_default().to_vec()).expect("text"))
            .collect();
        let zstandard = Compression::ZSTD(ZstdLevel::default());
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, zstandard] {
            write(&path, compression, &rows);
            assert_eq!(read(&path, "text").expect("readable"), expected, "{compression:?}");
        }

        let missing = read(&path, "body").expect_err("no such column");
        assert!(matches!(&missing, SourceError::NoColumn { columns, .. } if columns == "id, text"));
        assert!(matches!(read(&path, "id"), Err(SourceError::Parquet { .. })));
        write(&path, zstandard, &[Some(b"fine"), Some(b"caf\xe9")]);
        assert!(matches!(read(&path, "text"), Err(SourceError::Item { number: 2, .. })));
        let bytes = std::fs::read(&path).expect("readable");
        std::fs::write(&path, &bytes[..bytes.len() - 20]).expect("writable");
        assert!(matches!(read(&path, "text"), Err(SourceError::Parquet { .. })));
    }
}
