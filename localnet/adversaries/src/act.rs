//! Connects an adversary's decisions to its process: a strategy for the miner, and wrappers of its chain and its
//! bucket.
//!
//! The honest program keeps the time. When it commits, the wrapped chain commits to the adversary's digests; when it
//! uploads, the wrapped bucket gets the adversary's bytes. The parts are plain values, so that a process and the
//! simulation use the same.

use crate::adversary::{Adversary, Content, MinerContext, OwnContribution, Presentation, Timing};
use async_trait::async_trait;
use bytes::Bytes;
use chain_client::{Balance, Call, Chain, ChainError, Draft, Head};
use ed25519_dalek::SigningKey;
use miner::{contribution_store::ContributionFiles, strategy::Strategy};
use node::{Contribution, Follower, wait_past};
use protocol::{
    Block, Digest, Hotkey, RunId, Uid, Window, keys,
    keys::ObjectKey,
    submission::Submission,
    view::{Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, WindowView},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use store::{Limits, Listing, Store, StoreError, TrafficTotals};
use tokio::sync::watch;

/// Between two requests for an object or a decision.
const RETRY: Duration = Duration::from_millis(200);

/// State that the wrappers of one adversary share.
struct Act {
    adversary: Mutex<Box<dyn Adversary>>,
    /// The honest view of the chain: its calls are not wrapped.
    follower: Arc<Follower>,
    key: SigningKey,
    uid: Uid,
    contribution_files: ContributionFiles,
    /// The presentation of the window of the last commitment.
    presenting: Mutex<Option<(Window, Presentation)>>,
}

/// The parts of an honest miner that an adversary wraps.
pub struct HonestParts {
    pub follower: Arc<Follower>,
    /// The seat's own bucket.
    pub store: Arc<dyn Store>,
    pub key: SigningKey,
    pub uid: Uid,
    /// The seat's directory, which has its contributions.
    pub directory: PathBuf,
}

/// The parts to give to the honest program instead.
pub struct WrappedParts {
    pub follower: Arc<Follower>,
    pub store: Arc<dyn Store>,
    pub strategy: Box<dyn Strategy>,
}

/// Wraps a miner's parts so that the honest program acts as the adversary decides.
pub fn wrap(parts: HonestParts, adversary: Box<dyn Adversary>) -> WrappedParts {
    let HonestParts { follower, store, key, uid, directory } = parts;
    let act = Arc::new(Act {
        adversary: Mutex::new(adversary),
        key,
        uid,
        contribution_files: ContributionFiles::new(&directory),
        presenting: Mutex::new(None),
        follower: follower.clone(),
    });
    let chain = Arc::new(ActingChain { inner: follower.chain.clone(), act: act.clone() });
    WrappedParts {
        follower: Arc::new(Follower { chain, ..(*follower).clone() }),
        store: Arc::new(ActingStore { inner: store, act: act.clone() }),
        strategy: Box::new(ActingStrategy { act, window: Window::FIRST, seen: BTreeMap::new() }),
    }
}

/// Makes an opened miner an adversary. `directory` is the seat's.
pub fn install_adversary(
    mut opened: node::NodeContext,
    adversary: Box<dyn Adversary>,
    directory: &Path,
) -> (node::NodeContext, Box<dyn Strategy>) {
    let parts = HonestParts {
        follower: opened.follower.clone(),
        store: opened.store.clone(),
        key: opened.key.signing_key().clone(),
        uid: opened.seat.id.uid,
        directory: directory.to_owned(),
    };
    let wrapped = wrap(parts, adversary);
    opened.chain = wrapped.follower.chain.clone();
    opened.follower = wrapped.follower;
    opened.store = wrapped.store;
    (opened, wrapped.strategy)
}

impl Act {
    fn adversary(&self) -> MutexGuard<'_, Box<dyn Adversary>> {
        self.adversary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self, window: Window) -> MinerContext<'_> {
        MinerContext {
            run: self.follower.run.id,
            window,
            uid: self.uid,
            params: &self.follower.run.params,
            codec: &self.follower.sent,
        }
    }

    /// The presentation of `window`, decided once. `digest` is that of the honest contribution.
    async fn presentation(&self, window: Window, digest: &Digest) -> Presentation {
        let decided = || self.presenting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, presentation)) = decided().as_ref().filter(|(of, _)| *of == window) {
            return presentation.clone();
        }
        let commitments = match self.follower.chain.window(self.follower.run.id, window).await {
            Ok(Some(view)) => view.commitments,
            _ => Vec::new(),
        };
        let bytes = Bytes::from(std::fs::read(self.contribution_files.path(digest)).unwrap_or_default());
        let header = Submission::read(&bytes).map(|submission| submission.header);
        let presentation = match header {
            Ok(header) => {
                let own = OwnContribution { header, bytes: bytes.clone(), key: &self.key };
                self.adversary().present(&self.moment(window), &own, &commitments)
            }
            // Without the honest contribution there is nothing to present.
            Err(_) => Presentation::default(),
        };
        *decided() = Some((window, presentation.clone()));
        presentation
    }

    /// The bytes that another seat publishes under `key`; `None` if it has not by `until`.
    async fn bytes_of(&self, victim: Uid, key: &ObjectKey, until: Block) -> Option<Bytes> {
        let limits: Limits = self.follower.contribution_limits();
        let heads = self.follower.chain.heads();
        while heads.borrow().block <= until {
            if let Ok(seats) = self.follower.chain.seats(self.follower.run.id).await
                && let Some(seat) = seats.iter().find(|seat| seat.id.uid == victim)
                && let Ok(bytes) = self.follower.fetch.fetch(&seat.endpoint, key, &limits).await
            {
                return Some(bytes);
            }
            tokio::time::sleep(RETRY).await;
        }
        None
    }

    async fn wait_past(&self, block: Block) {
        // If the chain is gone, the honest program ends.
        wait_past(&mut self.follower.chain.heads(), block).await.ok();
    }
}

/// The adversary's decisions inside the miner.
struct ActingStrategy {
    act: Arc<Act>,
    /// The window that is being trained.
    window: Window,
    /// Fetched contributions of earlier windows.
    seen: BTreeMap<Window, Vec<Contribution>>,
}

impl ActingStrategy {
    /// The other seats' contributions to the `back` windows before `window`, the latest first.
    async fn look_back(&mut self, window: Window, back: u32) -> Vec<Contribution> {
        let first = Window(window.0.saturating_sub(back));
        self.seen.retain(|window, _| first <= *window);
        let mut seen = Vec::new();
        for earlier in (first.0..window.0).rev().map(Window) {
            if !self.seen.contains_key(&earlier) {
                let fetched = fetch_all(&self.act.follower, earlier, self.act.uid).await;
                self.seen.insert(earlier, fetched);
            }
            seen.extend(self.seen.get(&earlier).into_iter().flatten().cloned());
        }
        seen
    }
}

/// The valid contributions of a window except the own one, as far as they can be fetched.
async fn fetch_all(follower: &Follower, window: Window, own: Uid) -> Vec<Contribution> {
    let Ok(Some(view)) = follower.chain.window(follower.run.id, window).await else { return Vec::new() };
    let Ok(seats) = follower.chain.seats(follower.run.id).await else { return Vec::new() };
    let valid = view.selection.as_ref().map(|selection| &selection.valid[..]).unwrap_or_default();
    let mut fetched = Vec::new();
    for (uid, digest) in view.commitments.iter().filter(|(uid, _)| *uid != own && valid.contains(uid)) {
        match follower.fetch_contribution(&view, &seats, *uid, digest).await {
            Ok(contribution) => fetched.push(contribution),
            Err(error) => {
                tracing::debug!(uid = uid.0, %error, "a contribution could not be fetched to copy it")
            }
        }
    }
    fetched.sort_by_key(|contribution| contribution.header.uid);
    fetched
}

#[async_trait]
impl Strategy for ActingStrategy {
    fn sequences(&mut self, window: Window, assigned: Vec<u64>, of: u64) -> Vec<u64> {
        self.window = window;
        self.act.adversary().sequences(&self.act.moment(window), assigned, of)
    }

    fn declares(&mut self, trained: u32, assigned: u32) -> u32 {
        self.act.adversary().declares(&self.act.moment(self.window), trained, assigned)
    }

    async fn outcome(
        &mut self,
        _follower: &Follower,
        view: &WindowView,
        before: &[f32],
        after: Vec<f32>,
    ) -> Vec<f32> {
        let window = view.window;
        let back = self.act.adversary().looks_back();
        let seen = if back == 0 { Vec::new() } else { self.look_back(window, back).await };
        let commit_by = self.act.follower.run.params.schedule.commit_deadline(window);
        let heads = self.act.follower.chain.heads();
        loop {
            let outcome = self.act.adversary().outcome(&self.act.moment(window), &seen, before, &after);
            match outcome {
                Some(outcome) => return outcome,
                None if commit_by <= heads.borrow().block => return after,
                None => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

/// The chain; a commitment is replaced by the adversary's.
struct ActingChain {
    inner: Arc<dyn Chain>,
    act: Arc<Act>,
}

impl ActingChain {
    async fn commit(&self, run: RunId, window: Window, digest: Digest) -> Result<Head, ChainError> {
        let commit_by = self.act.follower.run.params.schedule.commit_deadline(window);
        if self.act.adversary().waits_for_commitments() {
            // The next block is the last one that counts.
            self.act.wait_past(Block(commit_by.0.saturating_sub(2))).await;
        }
        let presentation = self.act.presentation(window, &digest).await;
        let head = *self.inner.heads().borrow();
        let mut included = head;
        for commit in presentation.commits {
            if commit.when == Timing::Late {
                self.act.wait_past(commit_by).await;
            }
            included = self.inner.submit(Call::Commit { run, window, digest: commit.digest }).await?;
        }
        Ok(included)
    }
}

#[async_trait]
impl Chain for ActingChain {
    fn heads(&self) -> watch::Receiver<Head> {
        self.inner.heads()
    }
    async fn best_block(&self) -> Result<Block, ChainError> {
        self.inner.best_block().await
    }
    fn account(&self) -> Option<Account> {
        self.inner.account()
    }
    async fn runs(&self) -> Result<Vec<RunId>, ChainError> {
        self.inner.runs().await
    }
    async fn run(&self, run: RunId) -> Result<RunView, ChainError> {
        self.inner.run(run).await
    }
    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError> {
        self.inner.seats(run).await
    }
    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.inner.window(run, window).await
    }
    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        self.inner.weights(run).await
    }
    async fn balance(&self, account: &Account) -> Result<Balance, ChainError> {
        self.inner.balance(account).await
    }
    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError> {
        self.inner.status(run).await
    }
    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError> {
        self.inner.seat_statuses(run, from, limit).await
    }
    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError> {
        self.inner.account_status(run, account).await
    }
    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError> {
        self.inner.payslips(run, uid).await
    }
    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        self.inner.bonds(run, validator).await
    }
    async fn weight_vote(
        &self,
        run: RunId,
        epoch: u32,
        hotkey: &Hotkey,
    ) -> Result<Option<Vec<(Uid, u16)>>, ChainError> {
        self.inner.weight_vote(run, epoch, hotkey).await
    }
    async fn block_time(&self) -> Result<Duration, ChainError> {
        self.inner.block_time().await
    }
    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError> {
        self.inner.draft(call, from).await
    }
    async fn submit(&self, call: Call) -> Result<Head, ChainError> {
        match call {
            Call::Commit { run, window, digest } => self.commit(run, window, digest).await,
            other => self.inner.submit(other).await,
        }
    }
}

/// The bucket; a contribution is replaced by the adversary's uploads.
struct ActingStore {
    inner: Arc<dyn Store>,
    act: Arc<Act>,
}

impl ActingStore {
    async fn show(&self, window: Window, digest: &Digest) -> Result<(), StoreError> {
        let run = self.act.follower.run.id;
        let schedule = self.act.follower.run.params.schedule;
        let reveal_by = schedule.reveal_deadline(window);
        // A request that a validator sent by the deadline may still find an object just after it. This block is later.
        let late = Block(reveal_by.0.midpoint(schedule.attest_deadline(window).0));
        for show in self.act.presentation(window, digest).await.uploads {
            if show.when == Timing::Late {
                self.act.wait_past(late).await;
            }
            let key = keys::contribution(run, window, &show.under);
            let bytes = match show.what {
                Content::Bytes(bytes) => Some(bytes),
                Content::BytesOf(victim) => self.act.bytes_of(victim, &key, reveal_by).await,
            };
            if let Some(bytes) = bytes {
                self.inner.put(&key, bytes).await?;
            }
        }
        Ok(())
    }

    /// Window and digest, if the file at `path` is a contribution of this run under its own key.
    fn contribution(&self, key: &ObjectKey, path: &Path) -> Option<(Window, Digest)> {
        let bytes = std::fs::read(path).ok()?;
        let window = Submission::read(&bytes).ok()?.header.window;
        let digest = Digest::of(&bytes);
        (*key == keys::contribution(self.act.follower.run.id, window, &digest)).then_some((window, digest))
    }
}

#[async_trait]
impl Store for ActingStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.inner.put(key, bytes).await
    }
    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        match self.contribution(key, path) {
            Some((window, digest)) => {
                self.show(window, &digest).await?;
                Ok(std::fs::metadata(path).map_or(0, |file| file.len()))
            }
            None => self.inner.put_file(key, path).await,
        }
    }
    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.inner.get(key, max_bytes).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete(key).await
    }
    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        self.inner.list(prefix, max_entries).await
    }
    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}
