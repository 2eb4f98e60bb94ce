//! The safetensors format: eight bytes with the header's length, the header as JSON, then the values of all tensors.
//!
//! The format's own crate is unsuitable. It cannot read a header if any library of the program enables `serde_json`'s
//! arbitrary precision, as the chain's libraries do. It also writes entries in random order, while equal models should
//! give equal files.
//!
//! <https://github.com/huggingface/safetensors#format>

use crate::Precision;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek as _, SeekFrom},
};

/// Maximum length of a header in bytes, far above that of any real model.
const HEADER_BYTES_MAX: u64 = 100 << 20;
/// Number of values that are converted at a time.
const BLOCK_VALUES: usize = 64 * 1024;

/// Returns the name of a type in a header.
fn label(dtype: Precision) -> &'static str {
    match dtype {
        Precision::F32 => "F32",
        Precision::Bf16 => "BF16",
        Precision::F16 => "F16",
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: Precision,
    pub shape: Vec<u64>,
    /// Offset of the tensor's values from the end of the header.
    pub start: u64,
}

impl Entry {
    /// Returns the bytes of a tensor; `None` on overflow.
    fn size(shape: &[u64], dtype: Precision) -> Option<u64> {
        shape.iter().try_fold(dtype.bytes() as u64, |size, length| size.checked_mul(*length))
    }
}

/// Reason why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error("it is not in the safetensors format: {0}")]
    Malformed(String),
    #[error("tensor {tensor} holds values of type {dtype}, and only F32, BF16 and F16 are read")]
    Dtype { tensor: String, dtype: String },
}

/// Returns the bytes before the values: length and header, padded with spaces so that the values start at a multiple
/// of eight. Entries are in the given order, without gaps.
pub(crate) fn header(metadata: &BTreeMap<String, String>, entries: &[Entry]) -> Vec<u8> {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut parts = Vec::new();
    if !metadata.is_empty() {
        let pairs: Vec<String> =
            metadata.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        parts.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    for Entry { name, dtype, shape, start } in entries {
        let end = start + Entry::size(shape, *dtype).expect("the shapes of a model are bounded");
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        parts.push(format!(
            "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            quoted(name),
            label(*dtype),
            shape.join(",")
        ));
    }
    let mut json = format!("{{{}}}", parts.join(","));
    json.push_str(&" ".repeat(json.len().next_multiple_of(8) - json.len()));
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// A file whose header is read and matches its length.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    /// Offset of the values in the file.
    values_at: u64,
    entries: BTreeMap<String, Entry>,
}

impl Reader {
    /// Reads the header, and checks that its tensors fill the file without gaps or overlaps.
    pub fn open(mut file: File) -> Result<Reader, FormatError> {
        let malformed = |what: &str| FormatError::Malformed(what.to_owned());
        let file_bytes = file.metadata()?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| malformed("it is shorter than eight bytes"))?;
        let length = u64::from_le_bytes(length);
        let values_at = length.checked_add(8).filter(|end| *end <= file_bytes);
        let values_at = values_at.ok_or_else(|| malformed("its header is longer than the file"))?;
        if length > HEADER_BYTES_MAX {
            return Err(malformed("its header is longer than any model needs"));
        }
        let mut json = vec![0; usize::try_from(length).map_err(|_| malformed("its header is too long"))?];
        file.read_exact(&mut json)?;
        let header: Value = serde_json::from_slice(&json)
            .map_err(|error| FormatError::Malformed(format!("its header is no JSON: {error}")))?;
        let header = header.as_object().ok_or_else(|| malformed("its header is no JSON object"))?;

        let mut entries = BTreeMap::new();
        let mut extents = Vec::new();
        for (name, value) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let bad = |what: &str| FormatError::Malformed(format!("tensor {name} {what}"));
            let label = value["dtype"].as_str().ok_or_else(|| bad("has no type"))?;
            let known = Precision::ALL.into_iter().find(|dtype| self::label(*dtype) == label);
            let dtype =
                known.ok_or_else(|| FormatError::Dtype { tensor: name.clone(), dtype: label.to_owned() });
            let numbers = |field: &str| {
                value[field]
                    .as_array()
                    .and_then(|array| array.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>())
            };
            let shape = numbers("shape").ok_or_else(|| bad("has no shape"))?;
            let offsets = numbers("data_offsets").ok_or_else(|| bad("has no data_offsets"))?;
            let [start, end] = offsets[..] else { return Err(bad("has no two data_offsets")) };
            let bytes = end.checked_sub(start).ok_or_else(|| bad("ends before it begins"))?;
            extents.push((start, end));
            match dtype {
                Ok(dtype) if Entry::size(&shape, dtype) == Some(bytes) => {
                    entries.insert(name.clone(), Entry { name: name.clone(), dtype, shape, start });
                }
                Ok(_) => return Err(bad("has another size than its shape says")),
                Err(error) if is_needed(name) => return Err(error),
                // An unused tensor may have any type.
                Err(_) => {}
            }
        }
        extents.sort_unstable();
        let mut end_of_last = 0;
        for (start, end) in extents {
            if start != end_of_last {
                return Err(malformed("its tensors overlap, or leave gaps"));
            }
            end_of_last = end;
        }
        if values_at.checked_add(end_of_last) != Some(file_bytes) {
            return Err(malformed("its length is not the one that its header says; was it cut short?"));
        }
        Ok(Reader { file, values_at, entries })
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Streams the values of a tensor to a sink in blocks.
    pub fn values<E: From<io::Error>>(
        &mut self,
        entry: &Entry,
        mut each: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.file.seek(SeekFrom::Start(self.values_at + entry.start))?;
        let mut left =
            Entry::size(&entry.shape, entry.dtype).unwrap_or_default() / entry.dtype.bytes() as u64;
        let (mut bytes, mut values) = (Vec::new(), Vec::with_capacity(BLOCK_VALUES));
        while left > 0 {
            let block = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_VALUES);
            bytes.resize(block * entry.dtype.bytes(), 0);
            self.file.read_exact(&mut bytes)?;
            values.clear();
            entry.dtype.decode(&bytes, &mut values);
            each(&values)?;
            left -= block as u64;
        }
        Ok(())
    }
}

/// Returns whether a tensor is needed. Old checkpoints also contain rotary frequencies, which follow from the
/// configuration.
pub(crate) fn is_needed(name: &str) -> bool {
    !name.ends_with(".rotary_emb.inv_freq")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    }

    fn file_with(header: &str, values: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), values].concat()
    }

    fn entries() -> Vec<Entry> {
        let entry = |name: &str, dtype, shape: &[u64], start| Entry {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            start,
        };
        vec![
            entry("b", Precision::F32, &[2, 1], 0),
            entry("a", Precision::Bf16, &[2], 8),
            entry("c", Precision::F16, &[1], 12),
        ]
    }

    #[test]
    fn values_of_every_type_read_back_under_their_names() {
        let metadata =
            BTreeMap::from([("format".to_owned(), "pt".to_owned()), ("who".into(), "\"us\"".into())]);
        let mut bytes = header(&metadata, &entries());
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(bytes, header(&metadata, &entries()), "equal models give equal files");
        Precision::F32.encode(&[1.5, -0.0], &mut bytes);
        Precision::Bf16.encode(&[3.0, -1.0], &mut bytes);
        Precision::F16.encode(&[0.5], &mut bytes);
        let mut reader = Reader::open(file_of(&bytes)).unwrap();
        for (entry, expected) in entries().iter().zip([vec![1.5f32, -0.0], vec![3.0, -1.0], vec![0.5]]) {
            let mut read = Vec::new();
            let take = |values: &[f32]| {
                read.extend_from_slice(values);
                Ok::<_, io::Error>(())
            };
            reader.values(entry, take).unwrap();
            assert_eq!(
                read.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            );
            assert_eq!(reader.entries().find(|read| read.name == entry.name), Some(entry));
        }
    }

    #[track_caller]
    fn check(bytes: &[u8], says: &str) {
        let error = Reader::open(file_of(bytes)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn a_file_of_another_format_is_refused_before_memory_is_taken() {
        let tensor = |shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        check(b"short", "shorter than eight bytes");
        check(&u64::MAX.to_le_bytes(), "header is longer than the file");
        check(&file_with("[]", &[]), "no JSON object");
        check(&file_with("{", &[]), "no JSON");
        check(&file_with(&tensor("[2]", "[0,8]"), &[0; 7]), "was it cut short?");
        check(&file_with(&tensor("[2]", "[0,8]"), &[0; 9]), "was it cut short?");
        check(&file_with(&tensor("[2]", "[4,12]"), &[0; 12]), "overlap, or leave gaps");
        check(&file_with(&tensor("[2]", "[8,0]"), &[0; 8]), "ends before it begins");
        check(&file_with(&tensor("[3]", "[0,8]"), &[0; 8]), "another size than its shape says");
        check(&file_with(&tensor("[18446744073709551615,2]", "[0,8]"), &[0; 8]), "another size");
        check(&file_with(&tensor("[-1]", "[0,8]"), &[0; 8]), "has no shape");
        check(&file_with(&tensor("[2]", "[0]"), &[0; 8]), "no two data_offsets");
        check(
            &file_with(r#"{"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#, &[0; 8]),
            "of type F64",
        );
    }

    #[test]
    fn rotary_frequencies_of_any_type_are_skipped() {
        let json = r#"{"model.layers.0.self_attn.rotary_emb.inv_freq":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
        assert_eq!(Reader::open(file_of(&file_with(json, &[0; 8]))).unwrap().entries().count(), 0);
    }
}
