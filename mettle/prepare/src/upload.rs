//! Prepares a dataset in a directory of this machine and uploads it to a bucket.

use crate::{
    bucket::{Bucket, BucketUrl, ReadFrom},
    error::{PrepareError, SourceError},
    files::prepared_path,
    options::{PrepareOptions, Progress},
    prepare::{Prepared, prepare},
};
use dataset::{MAX_MANIFEST_BYTES, manifest_path, shard_path, tokenizer_path, unigram_path};
use protocol::{Digest, ensure};
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};
use store::NamedObject;

/// A dataset's place in a bucket.
#[derive(Clone, Debug)]
pub struct BucketOutput {
    pub bucket: Bucket,
    /// Prefix of the dataset's objects.
    pub url: BucketUrl,
}

/// Prepares the dataset in the directory of `options`, where it stays, and uploads it. The manifest is last, so a
/// reader finds all or nothing.
///
/// # Errors
/// [`PrepareError`]. The next call resumes: it uploads the objects that the bucket lacks.
pub fn prepare_into_bucket(
    options: PrepareOptions,
    output: &BucketOutput,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    let place = output.url.to_string();
    let reason = "a dataset needs a name in the bucket";
    ensure!(!output.url.prefix.is_empty(), SourceError::Url { url: place, reason });
    if let Some(text) = options.source.covering(&output.url) {
        return Err(PrepareError::BelowText { place, text: text.to_string() });
    }
    let stored = output.stored()?;
    let mut prepared = prepare(options, progress)?;
    output.upload(&prepared, &stored, progress)?;
    prepared.directory = place.into();
    Ok(prepared)
}

impl BucketOutput {
    /// Returns the objects of the dataset, by their names below the prefix.
    ///
    /// # Errors
    /// If there are other objects.
    fn stored(&self) -> Result<BTreeMap<PathBuf, NamedObject>, PrepareError> {
        let ours =
            [manifest_path, tokenizer_path, unigram_path, prepared_path].map(|path| path(Path::new("")));
        let is_ours = |name: &Path| {
            let digest = name.strip_prefix("shards").ok().and_then(Path::to_str);
            digest.is_some_and(|digest| digest.parse::<Digest>().is_ok())
                || ours.iter().any(|ours| ours == name)
        };
        let mut stored = BTreeMap::new();
        let listed = self.bucket.objects(&self.url).map_err(|error| match error {
            SourceError::Bucket { place, source } => PrepareError::Bucket { place, source },
            other => other.into(),
        })?;
        for object in listed {
            let name = object.name.strip_prefix(&self.url.prefix).unwrap_or_default().trim_start_matches('/');
            let name = PathBuf::from(name);
            ensure!(is_ours(&name), PrepareError::Foreign { directory: self.url.to_string().into() });
            stored.insert(name, object);
        }
        Ok(stored)
    }

    fn upload(
        &self,
        prepared: &Prepared,
        stored: &BTreeMap<PathBuf, NamedObject>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), PrepareError> {
        let Prepared { directory, manifest, .. } = prepared;
        let is_stored = |path: &Path, bytes: u64| {
            let name = path.strip_prefix(directory).unwrap_or(path);
            stored.get(name).is_some_and(|object| object.bytes == bytes)
        };
        let shards = manifest.training.iter().chain(&manifest.held_out);
        let shards = shards.map(|shard| (shard_path(directory, &shard.digest), manifest.shard_bytes(shard)));
        let mut files: Vec<(PathBuf, u64)> =
            shards.filter(|(path, bytes)| !is_stored(path, *bytes)).collect();
        let is_complete = match stored.get(&manifest_path(Path::new(""))) {
            Some(object) => {
                let is_same = self.contents(object)? == manifest.to_bytes();
                ensure!(is_same, PrepareError::OtherInputs { directory: self.url.to_string().into() });
                true
            }
            None => false,
        };
        for path in [tokenizer_path, unigram_path, prepared_path, manifest_path] {
            let path = path(directory);
            // After a full disk, the unigram loss may be missing.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !(is_complete && is_stored(&path, metadata.len())) {
                files.push((path, metadata.len()));
            }
        }
        let (mut done, of) = (0, files.iter().map(|(_, bytes)| bytes).sum());
        for (path, bytes) in files {
            let name = path.strip_prefix(directory).unwrap_or(&path).to_string_lossy();
            let name = format!("{}/{name}", self.url.prefix);
            let place = self.url.of(&name);
            self.bucket.upload(path, name).map_err(|source| PrepareError::Bucket { place, source })?;
            done += bytes;
            progress(Progress::Copying { bytes: done, of });
        }
        Ok(())
    }

    /// Reads the contents of a manifest.
    fn contents(&self, object: &NamedObject) -> Result<Vec<u8>, PrepareError> {
        let mut contents = Vec::new();
        ReadFrom::new(self.bucket.open(object), 0)
            .take(MAX_MANIFEST_BYTES)
            .read_to_end(&mut contents)
            .map_err(|error| PrepareError::Bucket {
                place: self.url.of(&object.name),
                source: error.into(),
            })?;
        Ok(contents)
    }
}
