//! Prepares a dataset in a bucket: on one machine, or by stages on machines that share nothing but the bucket.
//!
//! All work happens in a directory of this machine, where it resumes. A stage first copies what it reads from the
//! bucket, and at its end what it made to the bucket: its marker last, as a marker says that all else is there. Names in
//! the bucket are those of the directory. What is copied is checked as on a shared disk: by the digests in markers,
//! logs and manifest.

use crate::{
    bucket::{Bucket, BucketError, BucketUrl, ObjectInfo},
    error::{PrepareError, SourceError, unwritable},
    files::{MANIFEST, SHARDS, SHARDS_ELSEWHERE, SMALL_FILES},
    options::{OutputDirectory, PrepareOptions, Progress},
    output_lock::{OutputLock, REQUEST},
    parts::{
        DROPPED, ENCODED, Encoded, JOB, JobFile, SCANNED, SELECTED, SPLITS, Stage, StageResult, TOKENS,
        job_name, joined_name, part_name, read_note, run_stage, selection_name,
    },
    prepare::{Prepared, prepare},
    scan::{LOG, record_names},
};
use dataset::{MAX_MANIFEST_BYTES, ShardInfo, read_bounded};
use protocol::{Digest, ensure};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files that are copied between two calls of `progress`.
const COPIED_AT_ONCE: usize = 64;
/// The file that says of which place in a bucket a directory is a copy.
const COPY_OF: &str = "copy-of";
/// The ending of a marker that is not in force yet.
const PENDING: &str = "pending";

/// A place for a dataset in a bucket.
#[derive(Clone, Debug)]
pub struct BucketOutput {
    pub bucket: Arc<dyn Bucket>,
    /// Of the dataset: its objects are below.
    pub url: BucketUrl,
    /// A directory of this machine. What is in it may be removed at any time; work that is not in the bucket then
    /// begins anew.
    pub work: PathBuf,
}

/// Makes the dataset, or does one stage of the work; `options.place` does not count. The same bytes as
/// [`prepare`] and [`crate::prepare_stage`] make in a directory.
///
/// # Errors
/// [`PrepareError`]. The next call resumes.
pub fn prepare_into_bucket(
    options: PrepareOptions,
    stage: Option<Stage>,
    output: &BucketOutput,
    progress: &mut dyn FnMut(Progress),
) -> Result<StageResult, PrepareError> {
    let copy = Copy::of(output)?;
    if let Some(text) = options.source.covering(&output.url) {
        return Err(PrepareError::BelowText { place: output.url.to_string(), text: text.to_string() });
    }
    let place = OutputDirectory::Directory(copy.local(&copy.name));
    let options = PrepareOptions { place, ..options };
    copy.claim()?;
    let lock = OutputLock::lock(&copy.output.work, &format!("{}.copy", copy.name), progress)?;
    let stored = copy.fetch_dataset(progress)?;
    let markers = match stage {
        None => Vec::new(),
        Some(stage) => copy.fetch_stage(&options, stage, progress)?,
    };
    // Processes that share the directory may go on; their stages have locks of their own.
    drop(lock);
    let done = match stage {
        None => prepare(options.clone(), progress).map(|prepared| StageResult::Joined(Box::new(prepared))),
        Some(stage) => run_stage(&options, stage, true, progress),
    };
    let mut done = done.map_err(|error| copy.named(error))?;
    match (&mut done, stage) {
        (StageResult::Joined(prepared), _) => {
            copy.send_dataset(prepared, &stored, stage.is_some(), progress)?;
            prepared.directory = output.url.to_string().into();
        }
        (_, Some(stage)) => copy.send_stage(&options, stage, &markers, progress)?,
        (_, None) => {}
    }
    Ok(done)
}

/// The objects below a prefix: names relative to the dataset's parent, and bytes.
type Listed = BTreeMap<String, ObjectInfo>;

/// The directory that is a copy of a part of the bucket.
struct Copy<'a> {
    output: &'a BucketOutput,
    /// Of the dataset.
    name: String,
    /// What the names of all objects begin with: nothing, or a prefix and a slash.
    parent: String,
}

impl Copy<'_> {
    fn of(output: &BucketOutput) -> Result<Copy<'_>, PrepareError> {
        let prefix = &output.url.prefix;
        let reason = "a dataset needs a name in the bucket";
        ensure!(!prefix.is_empty(), SourceError::Url { url: output.url.to_string(), reason });
        let (parent, name) = match prefix.rsplit_once('/') {
            Some((parent, name)) => (format!("{parent}/"), name.to_owned()),
            None => (String::new(), prefix.clone()),
        };
        Ok(Copy { output, name, parent })
    }

    /// Takes the directory for this place. It must be a new or an empty one, as what is in it may be removed.
    fn claim(&self) -> Result<(), PrepareError> {
        let work = &self.output.work;
        let failed = |source| unwritable(work, source);
        fs::create_dir_all(work).map_err(failed)?;
        let (note, place) = (work.join(COPY_OF), self.output.url.to_string());
        let entries = fs::read_dir(work).map_err(failed)?.flatten().map(|entry| entry.file_name());
        let is_new = entries.into_iter().all(|name| name == COPY_OF);
        let write = || fs::write(&note, &place).map_err(|source| unwritable(&note, source));
        match read_bounded(&note, place.len() as u64) {
            Ok(Some(found)) if found == place.as_bytes() => Ok(()),
            // One that a crash has cut.
            Ok(Some(found)) if is_new && place.as_bytes().starts_with(&found) => write(),
            Err(error) if is_new && error.kind() == io::ErrorKind::NotFound => write(),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(PrepareError::Unreadable { directory: note, source })
            }
            _ => Err(PrepareError::ForeignWork { directory: work.clone(), place }),
        }
    }

    fn bucket(&self) -> &(dyn Bucket + 'static) {
        &*self.output.bucket
    }

    fn failed(&self, source: BucketError) -> PrepareError {
        PrepareError::Bucket { place: self.output.url.to_string(), source }
    }

    /// The path of an object's copy.
    fn local(&self, name: &str) -> PathBuf {
        self.output.work.join(name)
    }

    fn object(&self, name: &str) -> String {
        format!("{}{name}", self.parent)
    }

    fn url(&self, name: &str) -> String {
        self.output.url.of(&self.object(name))
    }

    fn list(&self, name: &str) -> Result<Listed, PrepareError> {
        let url = BucketUrl { prefix: self.object(name), ..self.output.url.clone() };
        let found = self.bucket().objects(&url).map_err(|error| match error {
            SourceError::Bucket { source, .. } => self.failed(source),
            other => other.into(),
        })?;
        let relative =
            |object: ObjectInfo| Some((object.name.strip_prefix(&self.parent)?.to_owned(), object));
        Ok(found.into_iter().filter_map(relative).collect())
    }

    /// Copies objects into files, and reports it.
    fn fetch(
        &self,
        wanted: &[(&ObjectInfo, PathBuf)],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), PrepareError> {
        let (mut bytes, of) = (0, wanted.iter().map(|(object, _)| object.bytes).sum());
        for some in wanted.chunks(COPIED_AT_ONCE) {
            let files: Vec<_> =
                some.iter().map(|(object, path)| (object.name.clone(), path.clone())).collect();
            for (_, path) in &files {
                let directory = path.parent().unwrap_or(Path::new(""));
                fs::create_dir_all(directory).map_err(|source| unwritable(directory, source))?;
            }
            self.bucket().download(&files).map_err(|source| self.failed(source))?;
            bytes += some.iter().map(|(object, _)| object.bytes).sum::<u64>();
            progress(Progress::Copying { bytes, of });
        }
        Ok(())
    }

    /// Copies files to the objects of these names, and reports it.
    fn send(&self, names: &[String], progress: &mut dyn FnMut(Progress)) -> Result<(), PrepareError> {
        let length = |name: &String| fs::metadata(self.local(name)).map_or(0, |metadata| metadata.len());
        let (mut bytes, of) = (0, names.iter().map(length).sum());
        for some in names.chunks(COPIED_AT_ONCE) {
            let files: Vec<_> = some.iter().map(|name| (self.local(name), self.object(name))).collect();
            self.bucket().upload(&files).map_err(|source| self.failed(source))?;
            bytes += some.iter().map(length).sum::<u64>();
            progress(Progress::Copying { bytes, of });
        }
        Ok(())
    }

    /// The contents of a small object.
    fn contents(&self, object: &ObjectInfo, limit: u64) -> Result<Vec<u8>, PrepareError> {
        let failed =
            |source: BucketError| PrepareError::Bucket { place: self.output.url.of(&object.name), source };
        if limit < object.bytes {
            return Err(failed(format!("it has {} bytes, more than {limit}", object.bytes).into()));
        }
        let mut contents = Vec::new();
        let mut from = crate::bucket::ReadFrom::new(self.bucket().open(object), 0);
        io::Read::read_to_end(&mut from, &mut contents).map_err(|error| failed(error.into()))?;
        Ok(contents)
    }

    /// Copies all but the shards of a dataset that is complete in the bucket, so that it is compared with what is asked
    /// for. Returns what the bucket has.
    fn fetch_dataset(&self, progress: &mut dyn FnMut(Progress)) -> Result<Listed, PrepareError> {
        let listed = self.list(&self.name)?;
        for name in listed.keys() {
            let rest = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('/'));
            let is_ours = rest.is_some_and(|rest| {
                rest == MANIFEST
                    || SMALL_FILES.contains(&rest)
                    || rest
                        .strip_prefix(SHARDS)
                        .and_then(|rest| rest.strip_prefix('/'))
                        .is_some_and(|digest| digest.parse::<Digest>().is_ok())
            });
            ensure!(is_ours, PrepareError::Foreign { directory: self.output.url.to_string().into() });
        }
        let local = self.local(&self.name);
        let manifest = self.within(&self.name, MANIFEST);
        let Some(stored) = listed.get(&manifest) else {
            // The notes of a dataset that is gone. A whole copy is kept: it is on its way to the bucket.
            if local.join(SHARDS_ELSEWHERE).exists() {
                remove(&local)?;
            }
            return Ok(listed);
        };
        let contents = self.contents(stored, MAX_MANIFEST_BYTES)?;
        let is_same = |found: &Vec<u8>| *found == contents;
        if read_bounded(&local.join(MANIFEST), MAX_MANIFEST_BYTES)
            .ok()
            .flatten()
            .as_ref()
            .is_some_and(is_same)
        {
            return Ok(listed);
        }
        remove(&local)?;
        let note = local.join(SHARDS_ELSEWHERE);
        fs::create_dir_all(&local).map_err(|source| unwritable(&local, source))?;
        fs::write(&note, "").map_err(|source| unwritable(&note, source))?;
        let small = SMALL_FILES.iter();
        let small = small.filter_map(|name| listed.get_key_value(&self.within(&self.name, name)));
        let small: Vec<_> = small.map(|(name, object)| (object, self.local(name))).collect();
        self.fetch(&small, progress)?;
        let joined = joined_name(&self.name);
        if let Some(object) = self.list(&joined)?.get(&joined) {
            self.fetch(&[(object, self.local(&joined))], progress)?;
        }
        // The last, as above it says that the others are there.
        self.fetch(&[(stored, self.local(&manifest))], progress)?;
        Ok(listed)
    }

    /// Copies what a stage reads. Returns the markers in the bucket.
    fn fetch_stage(
        &self,
        options: &PrepareOptions,
        stage: Stage,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<(String, Vec<u8>)>, PrepareError> {
        let job = job_name(&self.name);
        let listed = self.list(&job)?;
        let job_file = self.within(&job, JOB);
        let own = match stage {
            Stage::Scan(part) | Stage::Encode(part) => Some(part.index()),
            Stage::Select | Stage::Join => None,
        };
        let is_scan = matches!(stage, Stage::Scan(_));
        let Some(object) = listed.get(&job_file) else {
            match stage {
                Stage::Scan(part) => {
                    remove(&self.local(&self.within(&self.within(&job, &part_name(part.index())), SCANNED)))?;
                }
                _ => remove(&self.local(&job_file))?,
            }
            return Ok(Vec::new());
        };
        self.fetch(&[(object, self.local(&job_file))], progress)?;
        let parts = read_note::<JobFile>(&self.local(&job_file)).map_or(0, |(_, job)| job.parts);

        let records: Vec<String> = record_names(options.banding()).collect();
        let logs: Vec<String> = vec![LOG.to_owned(), REQUEST.to_owned()];
        let tokens: Vec<String> = SPLITS.iter().map(|split| format!("{TOKENS}/{split}")).collect();
        let mut markers = Vec::new();
        let mut take = |directory: &str,
                        marker: &str,
                        notes: &[String],
                        bulk: &[String],
                        progress: &mut dyn FnMut(Progress)| {
            let found = self.fetch_marked(&listed, directory, (marker, notes, bulk), progress)?;
            markers.extend(found.map(|contents| (self.within(directory, marker), contents)));
            Ok::<_, PrepareError>(())
        };

        let indices: Vec<u32> = match stage {
            Stage::Scan(part) => vec![part.index()],
            _ => (0..parts).collect(),
        };
        for index in indices {
            let directory = self.within(&job, &part_name(index));
            if listed.contains_key(&self.within(&directory, SCANNED)) {
                let reads = matches!(stage, Stage::Select) || (!is_scan && own == Some(index));
                take(&directory, SCANNED, &logs, if reads { &records } else { &[] }, progress)?;
            } else {
                // It was removed, or never arrived.
                remove(&self.local(&self.within(&directory, SCANNED)))?;
            }
        }
        if is_scan {
            return Ok(markers);
        }
        let selection = self.within(&job, &selection_name());
        let selected = self.within(&selection, SELECTED);
        if listed.contains_key(&selected) {
            let below = |name: &&String| {
                name.strip_prefix(&selection).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned)
            };
            let trained =
                listed.keys().filter_map(|name| below(&name)).filter(|name| is_trained_tokenizer(name));
            let notes: Vec<String> =
                [DROPPED.to_owned(), REQUEST.to_owned()].into_iter().chain(trained).collect();
            take(&selection, SELECTED, &notes, &[], progress)?;
        } else if stage != Stage::Select {
            remove(&self.local(&selected))?;
        }
        let decided = read_bounded(&self.local(&selected), u64::MAX).ok().flatten();
        let decided = decided.map(|bytes| Digest::of(&bytes));
        let indices: Vec<u32> = match (stage, own) {
            (Stage::Encode(_), Some(index)) => vec![index],
            (Stage::Join, _) => (0..parts).collect(),
            _ => Vec::new(),
        };
        for index in indices {
            let directory = self.within(&job, &part_name(index));
            let marker = self.within(&directory, ENCODED);
            let stored =
                listed.get(&marker).map(|object| self.contents(object, MAX_MANIFEST_BYTES)).transpose()?;
            let encoded = stored.and_then(|bytes| serde_json::from_slice::<Encoded>(&bytes).ok());
            if encoded.is_some_and(|encoded| Some(encoded.selection) == decided) {
                let reads = matches!(stage, Stage::Join);
                take(&directory, ENCODED, &[], if reads { &tokens } else { &[] }, progress)?;
            } else if stage == Stage::Join {
                remove(&self.local(&marker))?;
            }
        }
        Ok(markers)
    }

    /// Copies a marker, `notes` if the marker is another than before, and `bulk` where it is missing. The marker is in
    /// force when all is there. Returns it.
    fn fetch_marked(
        &self,
        listed: &Listed,
        directory: &str,
        (marker, notes, bulk): (&str, &[String], &[String]),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Vec<u8>>, PrepareError> {
        let name = self.within(directory, marker);
        let Some(object) = listed.get(&name) else { return Ok(None) };
        let local = self.local(&name);
        let pending = local.with_extension(PENDING);
        self.fetch(&[(object, pending.clone())], &mut |_| {})?;
        let failed = |source| unwritable(&pending, source);
        let contents = fs::read(&pending).map_err(failed)?;
        let is_same = fs::read(&local).is_ok_and(|found| found == contents);
        if !is_same {
            // What belongs to the old one.
            remove(&local)?;
            match marker {
                ENCODED => remove(&self.local(&self.within(directory, TOKENS)))?,
                _ => {
                    let local = self.local(directory);
                    let stale =
                        fs::read_dir(&local).into_iter().flatten().flatten().map(|entry| entry.path());
                    stale.filter(|path| *path != pending).try_for_each(|path| remove(&path))?;
                }
            }
        }
        let is_wanted = |name: &String| {
            let (name, object) = listed.get_key_value(&self.within(directory, name))?;
            let has = fs::metadata(self.local(name)).is_ok_and(|found| found.len() == object.bytes);
            (!has).then(|| (object, self.local(name)))
        };
        let wanted: Vec<_> = notes.iter().chain(bulk).filter_map(is_wanted).collect();
        self.fetch(&wanted, progress)?;
        fs::rename(&pending, &local).map_err(failed)?;
        Ok(Some(contents))
    }

    /// Copies what a stage has made, unless the bucket has it: `markers` are those that it had.
    fn send_stage(
        &self,
        options: &PrepareOptions,
        stage: Stage,
        markers: &[(String, Vec<u8>)],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), PrepareError> {
        let job = job_name(&self.name);
        let (directory, marker, files) = match stage {
            Stage::Scan(part) => {
                let files = record_names(options.banding()).chain([LOG.to_owned(), REQUEST.to_owned()]);
                (part_name(part.index()), SCANNED, files.collect())
            }
            Stage::Select => {
                let selection = self.local(&self.within(&job, &selection_name()));
                let entries = fs::read_dir(&selection).into_iter().flatten().flatten();
                let trained = entries.filter_map(|entry| entry.file_name().into_string().ok());
                let trained = trained.filter(|name| is_trained_tokenizer(name));
                let files = trained.chain([DROPPED.to_owned(), REQUEST.to_owned()]).collect();
                (selection_name(), SELECTED, files)
            }
            Stage::Encode(part) => {
                let files: Vec<String> = SPLITS.iter().map(|split| format!("{TOKENS}/{split}")).collect();
                (part_name(part.index()), ENCODED, files)
            }
            Stage::Join => return Ok(()),
        };
        let directory = self.within(&job, &directory);
        let marker = self.within(&directory, marker);
        let job_file = self.within(&job, JOB);
        if let Stage::Scan(part) = stage {
            // Of two first scans with different numbers of parts, one ends here.
            let listed = self.list(&job_file)?;
            match listed.get(&job_file) {
                None => self.send(&[job_file], progress)?,
                Some(object) => {
                    let stored = self.contents(object, MAX_MANIFEST_BYTES)?;
                    let stored = serde_json::from_slice::<JobFile>(&stored).map(|job| job.parts).unwrap_or(0);
                    let directory = self.url(&job).into();
                    ensure!(
                        stored == part.count(),
                        PrepareError::PartCount { directory, given: part.count(), parts: stored }
                    );
                }
            }
        }
        let local = self.local(&marker);
        let made = fs::read(&local)
            .map_err(|source| PrepareError::Unreadable { directory: local.clone(), source })?;
        if markers.iter().any(|(name, contents)| *name == marker && *contents == made) {
            return Ok(());
        }
        // A split without tokens has no file.
        let files: Vec<String> = files.iter().map(|name| self.within(&directory, name)).collect();
        let files: Vec<String> = files.into_iter().filter(|name| self.local(name).exists()).collect();
        self.send(&files, progress)?;
        self.send(&[marker], progress)
    }

    /// Copies a complete dataset, the manifest last; then removes what its stages have left.
    fn send_dataset(
        &self,
        prepared: &Prepared,
        stored: &Listed,
        by_stages: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), PrepareError> {
        let place = || self.output.url.to_string();
        let Prepared { manifest, .. } = prepared;
        let shards = manifest.training.iter().chain(&manifest.held_out);
        let missing = |shard: &&ShardInfo| {
            let found = stored.get(&self.shard(&shard.digest));
            found.is_none_or(|object| object.bytes != manifest.shard_bytes(shard))
        };
        let missing: Vec<&ShardInfo> = shards.filter(missing).collect();
        for shard in &missing {
            let has = self.local(&self.shard(&shard.digest)).is_file();
            ensure!(has, PrepareError::ShardMissing { place: place(), shard: shard.digest });
        }
        let names: Vec<String> = missing.iter().map(|shard| self.shard(&shard.digest)).collect();
        self.send(&names, progress)?;
        let manifest = self.within(&self.name, MANIFEST);
        if !stored.contains_key(&manifest) {
            // Another command may have been quicker.
            if let Some(object) = self.list(&self.name)?.get(&manifest) {
                let ours = read_bounded(&self.local(&manifest), MAX_MANIFEST_BYTES).map_err(|source| {
                    PrepareError::Unreadable { directory: self.local(&manifest), source }
                })?;
                let is_same = ours == Some(self.contents(object, MAX_MANIFEST_BYTES)?);
                ensure!(is_same, PrepareError::OtherInputs { directory: place().into() });
            }
            let small = SMALL_FILES.map(|name| self.within(&self.name, name));
            let small: Vec<String> = small.into_iter().filter(|name| self.local(name).exists()).collect();
            self.send(&small, progress)?;
            self.send(&[manifest], progress)?;
        }
        if by_stages {
            let note = joined_name(&self.name);
            if self.local(&note).exists() {
                self.send(&[note], progress)?;
            }
            let left: Vec<String> =
                self.list(&job_name(&self.name))?.into_values().map(|object| object.name).collect();
            self.bucket().delete(&left).map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn within(&self, directory: &str, name: &str) -> String {
        format!("{directory}/{name}")
    }

    fn shard(&self, digest: &Digest) -> String {
        format!("{}/{SHARDS}/{digest}", self.name)
    }

    /// An error that names a directory here names the place in the bucket too: to remove only one of them would not do.
    fn named(&self, mut error: PrepareError) -> PrepareError {
        use PrepareError as E;
        match &mut error {
            E::OtherInputs { directory }
            | E::Foreign { directory }
            | E::Damaged { directory, .. }
            | E::NoParts { directory }
            | E::OtherParts { directory, .. }
            | E::PartCount { directory, .. }
            | E::OtherPart { directory, .. }
            | E::PartChanged { directory, .. }
            | E::PartDamaged { directory, .. }
            | E::NotSelected { directory } => {
                if let Ok(name) = directory.strip_prefix(&self.output.work) {
                    let url = self.url(&name.to_string_lossy());
                    *directory = format!("{url} with its copy {}", directory.display()).into();
                }
            }
            _ => {}
        }
        error
    }
}

/// The name of a tokenizer that `select` has trained.
fn is_trained_tokenizer(name: &str) -> bool {
    let inputs = name.strip_prefix("tokenizer-").and_then(|rest| rest.strip_suffix(".json"));
    inputs.is_some_and(|inputs| inputs.parse::<Digest>().is_ok())
}

/// Removes a file or a directory, if it is there.
fn remove(path: &Path) -> Result<(), PrepareError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(path, error)),
        _ => Ok(()),
    }
}
