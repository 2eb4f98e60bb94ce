//! Joins datasets that several machines prepared with the same tokenizer.
//!
//! The shards stay unchanged, and are linked or copied. So a document in several parts stays in each.

use crate::{
    error::{PrepareError, unwritable},
    options::{OutputDirectory, Progress},
    output_lock::OutputLock,
    prepare::{DigestParts, PrepareStats, Prepared, description, existing, finish},
};
use dataset::{Dataset, Manifest, ManifestError, ShardInfo, shard_path, shards_path};
use protocol::Digest;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// A part, and the totals of its text.
struct Part {
    dataset: Dataset,
    figures: PrepareStats,
}

/// Joins the datasets in these directories, in this order, into a new one in `directory`. An existing one is reused;
/// a killed attempt starts over.
///
/// # Errors
/// [`PrepareError::PartDiffers`] unless all have the same tokenizer, sequence length and token width.
pub fn join(
    directory: &Path,
    parts: &[PathBuf],
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    let parts = parts.iter().map(|part| Part::open(part)).collect::<Result<Vec<_>, _>>()?;
    let manifest = joined(&parts)?;
    let mut inputs = DigestParts::new("join");
    parts.iter().for_each(|part| inputs.add(&part.dataset.digest().0));
    let inputs = inputs.digest();

    let (parent, name) = OutputDirectory::Directory(directory.to_owned()).location(&inputs)?;
    let lock = OutputLock::lock(&parent, &name, progress)?;
    if let Some(prepared) = existing(directory, &inputs)? {
        progress(Progress::Reused { directory: directory.to_owned() });
        lock.finish();
        return Ok(prepared);
    }
    lock.discard()?;
    lock.begin(&inputs.to_string())?;
    let figures = totals(parts.iter().map(|part| &part.figures));
    let tokenizer = parts[0].dataset.tokenizer();
    let made = copy_shards(&parts, &lock.partial, progress)
        .and_then(|()| finish(&manifest, tokenizer, (inputs, figures), directory, &lock, progress));
    match made {
        Ok(_) => lock.finish(),
        Err(_) => lock.discard()?,
    }
    made
}

impl Part {
    fn open(directory: &Path) -> Result<Part, PrepareError> {
        let at = || directory.to_owned();
        let description = description(directory)?.ok_or_else(|| PrepareError::Foreign { directory: at() })?;
        let dataset = Dataset::open(directory, Some(description.manifest))
            .map_err(|source| PrepareError::Damaged { directory: at(), source })?;
        Ok(Part { dataset, figures: description.figures })
    }

    fn shards(&self) -> impl Iterator<Item = &ShardInfo> {
        let manifest = self.dataset.manifest();
        manifest.training.iter().chain(&manifest.held_out)
    }
}

/// Returns the manifest of all parts.
fn joined(parts: &[Part]) -> Result<Manifest, PrepareError> {
    let Some(first) = parts.first() else {
        return Err(ManifestError::EmptySplit { split: "training" }.into());
    };
    let mut manifest = first.dataset.manifest().clone();
    let mut owners: BTreeMap<Digest, &Part> = first.shards().map(|shard| (shard.digest, first)).collect();
    for part in &parts[1..] {
        let other = part.dataset.manifest();
        let facts = [
            ("tokenizer", other.tokenizer.to_string(), manifest.tokenizer.to_string()),
            ("sequence length", other.seq_len().to_string(), manifest.seq_len().to_string()),
            ("token width in bytes", other.token_bytes.to_string(), manifest.token_bytes.to_string()),
        ];
        let place = |part: &Part| part.dataset.directory().to_owned();
        if let Some((what, found, expected)) =
            facts.into_iter().find(|(_, found, expected)| found != expected)
        {
            return Err(PrepareError::PartDiffers {
                part: place(part),
                first: place(first),
                what,
                found,
                expected,
            });
        }
        if let Some((shard, other)) = part.shards().find_map(|shard| owners.get_key_value(&shard.digest)) {
            return Err(PrepareError::PartTwice { part: place(part), other: place(other), shard: *shard });
        }
        owners.extend(part.shards().map(|shard| (shard.digest, part)));
        manifest.training.extend_from_slice(&other.training);
        manifest.held_out.extend_from_slice(&other.held_out);
    }
    manifest.check()?;
    Ok(manifest)
}

/// Links the shards of all parts into `partial`, or copies them if they are on another file system.
fn copy_shards(
    parts: &[Part],
    partial: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), PrepareError> {
    let directory = shards_path(partial);
    fs::create_dir(&directory).map_err(|source| unwritable(&directory, source))?;
    let length = |part: &Part, shard: &ShardInfo| part.dataset.manifest().shard_bytes(shard);
    let of = parts.iter().flat_map(|part| part.shards().map(move |shard| length(part, shard))).sum();
    let mut bytes = 0;
    for part in parts {
        for shard in part.shards() {
            let from = shard_path(part.dataset.directory(), &shard.digest);
            let to = shard_path(partial, &shard.digest);
            link_or_copy(&from, &to).map_err(|source| unwritable(&to, source))?;
            bytes += length(part, shard);
            progress(Progress::Copying { bytes, of });
        }
    }
    Ok(())
}

fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    // A part with several readings may have one shard twice.
    if to.exists() || fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Sums all totals. The sources of the parts stay separate.
fn totals<'a>(parts: impl Iterator<Item = &'a PrepareStats>) -> PrepareStats {
    let mut sum = PrepareStats::default();
    for part in parts {
        sum.documents += part.documents;
        sum.held_out_documents += part.held_out_documents;
        sum.text_bytes += part.text_bytes;
        sum.tokens += part.tokens;
        sum.duplicates += part.duplicates;
        if let Some(near) = part.near_duplicates {
            *sum.near_duplicates.get_or_insert(0) += near;
        }
        for (rule, documents) in &part.refused {
            *sum.refused.entry(rule.clone()).or_default() += documents;
        }
        sum.empty += part.empty;
        sum.skipped_files += part.skipped_files;
        sum.sources.extend_from_slice(&part.sources);
    }
    sum
}
