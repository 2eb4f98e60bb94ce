//! Reads the files in which releases before `signed.redb` kept the same rows, and renames them once they are imported.
//!
//! | file | rows |
//! |---|---|
//! | `ballots.json` | weight votes of every run |
//! | `hidden.json` | attestation and vote of one window, in a run that hides them |
//! | `receipts/RUN/said.json` | window reports |
//! | `receipts/RUN/WINDOW.pending`, `.receipt` | signed receipts: these files stay, under the name `.receipt` |
//! | `standings.json` | reputations of the run |

use super::{ImportedFiles, LOSS, ReceiptRecord, Rows, SignedDbError, WeightVote, WindowReport};
use crate::{attest::attestation, gather::Gathered, gauntlet::Reputations, report::form};
use node::durable::FileError;
use protocol::{
    Digest, RunId, RunParams, Uid, Window,
    receipt::{Attestation, MergeRecord, Receipt},
    view::{Verdict, Vote},
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The directory of signed receipts, a folder per run.
pub(super) const RECEIPTS: &str = "receipts";
const WEIGHT_VOTES: &str = "ballots.json";
const COMMITTED: &str = "hidden.json";
const REPUTATIONS: &str = "standings.json";
const REPORTS: &str = "said.json";
const PENDING: &str = "pending";
const PUBLISHED: &str = "receipt";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OldWeightVote {
    run: RunId,
    epoch: u32,
    weights: Vec<(Uid, u16)>,
    salt: Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OldCommitted {
    run: RunId,
    window: Window,
    verdicts: Option<Vec<(Uid, Verdict)>>,
    vote: Option<Vote>,
}

/// Everything that an older release kept in `directory`: the rows of each run, and the files that they were read from.
/// `run` is the run of the reputations, which were not kept by run.
pub(super) fn read(
    directory: &Path,
    run: RunId,
    params: &RunParams,
) -> Result<(BTreeMap<RunId, Rows>, ImportedFiles), SignedDbError> {
    let mut files = ImportedFiles::new();
    let mut rows = BTreeMap::<RunId, Rows>::new();
    let loss = "A weight vote that it held earns no dividends for its epoch";
    let votes: Option<Vec<OldWeightVote>> = read_json(directory, WEIGHT_VOTES, loss, &mut files)?;
    for OldWeightVote { run, epoch, weights, salt } in votes.into_iter().flatten() {
        let vote = WeightVote { epoch, weights, salt: salt.0 };
        rows.entry(run).or_default().weight_votes.insert(epoch, vote);
    }

    let loss = "An attestation or vote that it held and that is not revealed does not count";
    let committed: Option<OldCommitted> = read_json(directory, COMMITTED, loss, &mut files)?;
    let mut signed = None;
    for of in runs(directory)? {
        let name = format!("{RECEIPTS}/{of}/{REPORTS}");
        let loss = "Receipts of the windows that it held say nothing of attestation and vote";
        let reports: Option<Vec<(Window, WindowReport)>> = read_json(directory, &name, loss, &mut files)?;
        let receipts = receipts(directory, of)?;
        if let Some((path, _)) = receipts.values().next_back().filter(|_| of == run) {
            let receipt = Receipt::open(&read_file(path)?.unwrap_or_default(), params)
                .map_err(|source| SignedDbError::DamagedReceipt { path: path.clone(), source })?;
            signed = Some(form::remembered(receipt.after()));
        }
        let rows = rows.entry(of).or_default();
        rows.reports.extend(reports.into_iter().flatten());
        rows.receipts = receipts.into_iter().map(|(window, (_, record))| (window, record)).collect();
    }
    if let Some(committed) = committed {
        restore(&mut rows.entry(committed.run).or_default().reports, committed);
    }
    for rows in rows.values_mut() {
        if let Some((latest, _)) = rows.receipts.last_key_value() {
            rows.reports.retain(|window, _| latest < window);
        }
    }

    let stored: Option<Reputations> = read_json(directory, REPUTATIONS, LOSS, &mut files)?;
    // Where the process was killed between the two files, the receipt is the later one.
    let later = [stored, signed]
        .into_iter()
        .flatten()
        .reduce(|stored, signed| if stored.judged < signed.judged { signed } else { stored });
    rows.entry(run).or_default().reputations = later.unwrap_or_default();
    Ok((rows, files))
}

/// Renames imported files to `NAME.migrated`, and pending receipts to their names of today.
///
/// # Errors
/// If a file of the old layout is there that was not imported: an older release has run in this directory since.
pub(super) fn rename(directory: &Path, imported: &ImportedFiles) -> Result<(), SignedDbError> {
    let mut names = vec![WEIGHT_VOTES.to_owned(), COMMITTED.to_owned(), REPUTATIONS.to_owned()];
    names.extend(runs(directory)?.iter().map(|run| format!("{RECEIPTS}/{run}/{REPORTS}")));
    for name in names {
        let path = directory.join(&name);
        let Some(bytes) = read_file(&path)? else { continue };
        if !imported.contains(&(name, Digest::of(&bytes))) {
            return Err(SignedDbError::OldFile { path });
        }
        let mut migrated = path.clone().into_os_string();
        migrated.push(".migrated");
        rename_file(&path, Path::new(&migrated))?;
    }
    for run in runs(directory)? {
        for (path, window, kind) in receipt_files(directory, run)? {
            if kind == PENDING {
                rename_file(&path, &super::receipt_path(directory, run, window))?;
            }
        }
    }
    Ok(())
}

/// Puts what was committed into the window's report. It wins over the report: its hash is on the chain.
fn restore(reports: &mut BTreeMap<Window, WindowReport>, committed: OldCommitted) {
    let OldCommitted { run: _, window, verdicts, vote } = committed;
    if verdicts.is_none() && vote.is_none() {
        return;
    }
    let report = reports.entry(window).or_default();
    if let Some(verdicts) = verdicts
        && report.attestation.as_ref().map(Attestation::verdicts).as_ref() != Some(&verdicts)
    {
        report.attestation = Some(attestation(&verdicts, &Gathered::default(), &BTreeMap::new()));
    }
    if let Some(vote) = vote.filter(|vote| report.vote() != Some(*vote)) {
        let Vote { update, state_root } = vote;
        report.merged = Some(MergeRecord { inputs: Vec::new(), update, state_root });
    }
}

/// Runs with a folder of receipts.
fn runs(directory: &Path) -> Result<Vec<RunId>, SignedDbError> {
    let names = list(&directory.join(RECEIPTS))?;
    let mut runs: Vec<RunId> = names.iter().filter_map(|name| name.parse().ok().map(RunId)).collect();
    runs.sort();
    Ok(runs)
}

/// Each window's receipt, with its file.
fn receipts(
    directory: &Path,
    run: RunId,
) -> Result<BTreeMap<Window, (PathBuf, ReceiptRecord)>, SignedDbError> {
    let mut receipts = BTreeMap::new();
    for (path, window, kind) in receipt_files(directory, run)? {
        let is_published = kind == PUBLISHED;
        if is_published || !receipts.contains_key(&window) {
            let digest = Digest::of(&read_file(&path)?.unwrap_or_default());
            receipts.insert(window, (path, ReceiptRecord { digest, is_published }));
        }
    }
    Ok(receipts)
}

fn receipt_files(
    directory: &Path,
    run: RunId,
) -> Result<Vec<(PathBuf, Window, &'static str)>, SignedDbError> {
    let folder = directory.join(RECEIPTS).join(run.to_string());
    let file = |name: &String| {
        let (window, kind) = name.split_once('.')?;
        let kind = [PENDING, PUBLISHED].into_iter().find(|known| *known == kind)?;
        Some((folder.join(name), Window(window.parse().ok()?), kind))
    };
    Ok(list(&folder)?.iter().filter_map(file).collect())
}

/// The names in a folder, which may not exist.
fn list(folder: &Path) -> Result<Vec<String>, SignedDbError> {
    let failed = |source| FileError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

fn read_json<T: DeserializeOwned>(
    directory: &Path,
    name: &str,
    loss: &'static str,
    files: &mut ImportedFiles,
) -> Result<Option<T>, SignedDbError> {
    let path = directory.join(name);
    let Some(bytes) = read_file(&path)? else { return Ok(None) };
    files.push((name.to_owned(), Digest::of(&bytes)));
    serde_json::from_slice(&bytes).map(Some).map_err(|source| SignedDbError::DamagedImport {
        path,
        loss,
        source,
    })
}

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, SignedDbError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read { path: path.to_owned(), source }.into()),
    }
}

fn rename_file(from: &Path, to: &Path) -> Result<(), SignedDbError> {
    fs::rename(from, to).map_err(|source| FileError::Write { path: to.to_owned(), source }.into())
}
