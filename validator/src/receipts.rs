//! What this validator says of each window under its signature: kept, published, anchored (PROT-27).
//!
//! What was attested and voted is on disk before it is on the chain, and a receipt before its digest is: a validator that is
//! killed in between shows what its predecessor bound itself to, and never signs two receipts for one window. What it attested and
//! voted it signs once more in the receipt, in the form that convicts it if the chain was told something else (PROT-21).
//! What could not be published is tried again with every window, oldest first, and holds nothing up.

pub mod form;

use chain_client::{Call, Chain, Refusal};
use ed25519_dalek::SigningKey;
use node::{
    durable::{self, FileError},
    error_chain,
};
use protocol::{
    Digest, RunId, RunParams, Uid, Window, keys,
    receipt::{Attestation, MergeRecord, PreviousReceipt, Receipt, ReceiptError, Reputations, SignedReceipt},
    view::{Verdict, Vote},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::Store;

/// Windows whose sayings are remembered before their receipt is sealed. More than an evaluation is ever behind.
const SAID_MAX: usize = 16;

/// What was said in one window so far, before it is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowReport {
    /// The lineage of the window's model.
    pub base: Digest,
    #[serde(rename = "attested")]
    pub attestation: Option<Attestation>,
    pub merged: Option<MergeRecord>,
}

/// Of what was said in a window, what the chain has taken, and as it was said: that is signed as statements (PROT-21). What the chain has
/// not, or otherwise, because another process had this seat's key, is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    pub attestation: bool,
    pub vote: bool,
}

impl WindowReport {
    /// Of this, what the chain has taken, given what it has of ours.
    pub fn confirmed(&self, attestation: Option<&[(Uid, Verdict)]>, vote: Option<Vote>) -> Confirmed {
        let said = self.merged.as_ref().map(|said| Vote { update: said.update, state_root: said.state_root });
        Confirmed {
            attestation: attestation.is_some()
                && attestation == self.attestation.as_ref().map(Attestation::verdicts).as_deref(),
            vote: vote.is_some() && vote == said,
        }
    }
}

/// The receipts of one validator.
pub struct Receipts {
    directory: PathBuf,
    key: SigningKey,
    said: BTreeMap<Window, WindowReport>,
    /// Sealed and not yet published, oldest first.
    pending: BTreeMap<Window, SignedReceipt>,
    latest: Option<(PreviousReceipt, Reputations)>,
}

/// What became of one receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub window: Window,
    pub digest: Digest,
    pub bytes: u64,
    /// `Err`: not yet, or never, and why.
    pub anchored: Result<(), NotAnchored>,
}

/// Why a receipt is not on the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnchored {
    pub reason: String,
    /// It never will be: the chain has forgotten the window, or has another receipt for it.
    pub for_good: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReceiptsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{} is damaged; remove it to go on: what it held can be published no more",
        path.display()
    )]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("the receipt in {} is damaged; remove it to go on, and an audit will find it missing", path.display())]
    DamagedReceipt { path: PathBuf, source: ReceiptError },
}

impl ReceiptsError {
    /// Whether the disk took no more. What was said or sealed before stands, and nothing else.
    pub fn is_full(&self) -> bool {
        matches!(self, ReceiptsError::File(error) if error.is_full())
    }
}

impl Receipts {
    /// Reads what a predecessor left below `directory`, which may be nothing.
    pub fn load(
        directory: &Path,
        run: RunId,
        params: &RunParams,
        key: SigningKey,
    ) -> Result<Receipts, ReceiptsError> {
        let directory = directory.join("receipts").join(run.to_string());
        let path = directory.join("said.json");
        let said: Vec<(Window, WindowReport)> = match std::fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|source| ReceiptsError::Damaged { path, source })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(FileError::Read { path, source }.into()),
        };
        let said = said.into_iter().collect();
        let mut receipts = Receipts { directory, key, said, pending: BTreeMap::new(), latest: None };
        let found = receipts.found()?;
        for (window, published) in &found {
            if !published {
                let sealed = receipts.read(*window, false)?;
                receipts.pending.insert(*window, sealed);
            }
        }
        if let Some((window, published)) = found.last_key_value() {
            let SignedReceipt { digest, bytes } = receipts.read(*window, *published)?;
            let path = receipts.path(*window, *published);
            let receipt = Receipt::open(&bytes, params)
                .map_err(|source| ReceiptsError::DamagedReceipt { path, source })?;
            receipts.latest = Some((PreviousReceipt { window: *window, digest }, receipt.after().clone()));
            receipts.said.retain(|said, _| window < said);
        }
        Ok(receipts)
    }

    /// What was remembered after the last window with a receipt, if there is one. Where a predecessor was killed between the
    /// receipt and its standings, the receipt is right: it may be on the chain.
    pub fn reputations(&self) -> Option<&Reputations> {
        self.latest.as_ref().map(|(_, reputations)| reputations)
    }

    /// The last window with a receipt.
    pub fn signed_until(&self) -> Option<Window> {
        self.latest.as_ref().map(|(latest, _)| latest.window)
    }

    /// What is to be attested, on disk when this returns. Asked again it says the same, whatever `attested` is by then: the
    /// first may be on the chain already. On an error nothing is said, on disk or here: nothing may be attested.
    pub fn attest(
        &mut self,
        window: Window,
        base: Digest,
        attested: Attestation,
    ) -> Result<Attestation, ReceiptsError> {
        let said = self.said_in(window, base);
        if let Some(attested) = said.attestation {
            return Ok(attested);
        }
        self.say(window, WindowReport { attestation: Some(attested.clone()), ..said })?;
        Ok(attested)
    }

    /// What is to be voted, on disk when this returns. As [`Receipts::attest`].
    pub fn vote(
        &mut self,
        window: Window,
        base: Digest,
        merged: MergeRecord,
    ) -> Result<MergeRecord, ReceiptsError> {
        let said = self.said_in(window, base);
        if let Some(merged) = said.merged {
            return Ok(merged);
        }
        self.say(window, WindowReport { merged: Some(merged.clone()), ..said })?;
        Ok(merged)
    }

    /// Windows before `window` of which something was said and nothing sealed, oldest first: they were not judged.
    pub fn unsigned_before(&self, window: Window) -> Vec<Window> {
        self.said.keys().copied().filter(|said| *said < window).collect()
    }

    /// What was said in `window`.
    pub fn report(&self, window: Window) -> Option<&WindowReport> {
        self.said.get(&window)
    }

    /// Signs the receipt that `write` makes, given the one before it, and keeps it to be published. It is on disk when this
    /// returns. Where one was sealed for this window or a later one, nothing happens: a window has one receipt.
    pub fn sign_and_store(
        &mut self,
        window: Window,
        taken: Confirmed,
        write: impl FnOnce(Option<PreviousReceipt>, WindowReport) -> Receipt,
    ) -> Result<Option<Digest>, ReceiptsError> {
        if self.signed_until() >= Some(window) {
            return Ok(None);
        }
        let said = self.said.get(&window).cloned().unwrap_or_default();
        let previous = self.latest.as_ref().map(|(latest, _)| *latest);
        let mut receipt = write(previous, said);
        receipt.sign_statements(taken.attestation, taken.vote, &self.key);
        let sealed = receipt.sign(&self.key);
        let digest = sealed.digest;
        durable::write_atomic(&self.path(window, false), &sealed.bytes)?;
        self.latest = Some((PreviousReceipt { window, digest }, receipt.after().clone()));
        self.pending.insert(window, sealed);
        self.said.retain(|said, _| *said > window);
        self.forget_old(window);
        // It is sealed. That what it was made of is still on disk does no harm: a window with a receipt gets no other.
        match self.write(&self.said) {
            Err(error) if error.is_full() => {
                let error = error_chain(&error);
                tracing::warn!(
                    window = window.0,
                    error,
                    "the receipt is sealed; what it was made of is still on disk"
                );
            }
            written => written?,
        }
        Ok(Some(digest))
    }

    /// What is sealed and not published, oldest first.
    pub fn pending(&self) -> Vec<(Window, SignedReceipt)> {
        self.pending.iter().map(|(window, sealed)| (*window, sealed.clone())).collect()
    }

    /// Takes note of what became of a receipt: what is anchored, or never will be, is not tried again. On an error a successor tries it once
    /// more, and the chain tells it what became of it.
    pub fn note(&mut self, published: &Published) -> Result<(), ReceiptsError> {
        let over = published.anchored.as_ref().map_or_else(|not| not.for_good, |()| true);
        if over && self.pending.remove(&published.window).is_some() {
            let (from, to) = (self.path(published.window, false), self.path(published.window, true));
            std::fs::rename(&from, &to).map_err(|source| FileError::Write { path: to, source })?;
        }
        Ok(())
    }

    fn said_in(&self, window: Window, base: Digest) -> WindowReport {
        WindowReport { base, ..self.said.get(&window).cloned().unwrap_or_default() }
    }

    fn say(&mut self, window: Window, what: WindowReport) -> Result<(), ReceiptsError> {
        let mut said = self.said.clone();
        said.insert(window, what);
        while SAID_MAX < said.len() {
            said.pop_first();
        }
        self.write(&said)?;
        self.said = said;
        Ok(())
    }

    fn write(&self, said: &BTreeMap<Window, WindowReport>) -> Result<(), ReceiptsError> {
        let said: Vec<_> = said.iter().collect();
        let bytes = serde_json::to_vec(&said).expect("uids, digests and texts are plain data");
        Ok(durable::write_atomic(&self.directory.join("said.json"), &bytes)?)
    }

    /// Every window with a receipt, and whether it is published.
    fn found(&self) -> Result<BTreeMap<Window, bool>, ReceiptsError> {
        let read = |source| FileError::Read { path: self.directory.clone(), source };
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(read(source).into()),
        };
        let mut found = BTreeMap::new();
        for entry in entries {
            let name = entry.map_err(read)?.file_name();
            let Some((window, kind)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let (Ok(window), true) = (window.parse(), matches!(kind, PUBLISHED | PENDING)) else { continue };
            // Where a predecessor was killed while it was renamed, both may be there.
            let published = found.entry(Window(window)).or_insert(false);
            *published |= kind == PUBLISHED;
        }
        Ok(found)
    }

    fn read(&self, window: Window, published: bool) -> Result<SignedReceipt, ReceiptsError> {
        let path = self.path(window, published);
        let bytes = std::fs::read(&path).map_err(|source| FileError::Read { path, source })?;
        Ok(SignedReceipt { digest: Digest::of(&bytes), bytes })
    }

    fn path(&self, window: Window, published: bool) -> PathBuf {
        let kind = if published { PUBLISHED } else { PENDING };
        self.directory.join(format!("{window}.{kind}"))
    }

    /// Removes copies that are no longer in the bucket either. One that cannot be removed stays.
    fn forget_old(&self, now: Window) {
        let Some(end) = now.0.checked_sub(node::prune::RECEIPT_WINDOWS_KEPT) else { return };
        let _ = std::fs::remove_file(self.path(Window(end), true));
    }
}

const PUBLISHED: &str = "receipt";
const PENDING: &str = "pending";

/// Puts each receipt into our bucket and then its digest on the chain, oldest first. Stops at the first that must be tried
/// again: one that is anchored stands on those before it.
pub async fn publish(
    store: Arc<dyn Store>,
    chain: Arc<dyn Chain>,
    run: RunId,
    uid: Uid,
    pending: Vec<(Window, SignedReceipt)>,
) -> Vec<Published> {
    let mut done = Vec::new();
    for (window, SignedReceipt { digest, bytes }) in pending {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let anchored = publish_one(&*store, &*chain, run, uid, window, digest, bytes).await;
        let again = matches!(&anchored, Err(not) if !not.for_good);
        done.push(Published { window, digest, bytes: length, anchored });
        if again {
            break;
        }
    }
    done
}

async fn publish_one(
    store: &dyn Store,
    chain: &dyn Chain,
    run: RunId,
    uid: Uid,
    window: Window,
    digest: Digest,
    bytes: Vec<u8>,
) -> Result<(), NotAnchored> {
    let not = |reason: String, for_good| Err(NotAnchored { reason, for_good });
    if let Err(error) = store.put(&keys::receipt(run, window, uid, &digest), bytes.into()).await {
        return not(format!("our bucket did not take it: {}", error_chain(&error)), false);
    }
    let error = match chain.submit(Call::AnchorReceipts { run, window, digest }).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.refusal() == Some(Refusal::AlreadyAnchored) {
        // Ours, from a predecessor that was killed; or another's, of whom the disk knows nothing any more.
        let anchored = chain.window(run, window).await.ok().flatten();
        let anchored = anchored
            .and_then(|view| view.receipts.iter().find(|(of, _)| *of == uid).map(|(_, digest)| *digest));
        return match anchored {
            Some(anchored) if anchored != digest => {
                not(format!("the chain holds another receipt of ours for this window, {anchored}"), true)
            }
            _ => Ok(()),
        };
    }
    let for_good = matches!(
        error.refusal(),
        Some(Refusal::WindowNotKept | Refusal::NotInThisWindow | Refusal::NotASeat | Refusal::NotAValidator)
    );
    not(error_chain(&error), for_good)
}

#[cfg(test)]
mod tests;
