//! Connects an adversary's decisions to the honest program: as its strategy.
//!
//! The honest program controls the timing. When it commits, the strategy commits to the adversary's digests; when it
//! uploads, the bucket gets the adversary's bytes. Processes and simulations use the same strategy.

use crate::adversary::{
    Adversary, Content, MinerContext, OwnContribution, Presentation, Timing, TrainedWindow,
};
use async_trait::async_trait;
use bytes::Bytes;
use chain_client::{Call, ChainError};
use daemon::{Contribution, Follower, wait_past};
use miner::{
    contribution_store::PendingContribution,
    strategy::{Reading, Strategy},
};
use protocol::{
    Block, Uid, Window, identity::Signer, keys, keys::ObjectKey, submission::Submission, view::SeatWindow,
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use store::{Store, StoreError};

/// Interval between requests for an object or a decision.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum number of contributions of a window that an adversary reads.
const SEEN_MAX: usize = 16;

/// Strategy of a miner that acts on an adversary's decisions.
pub struct ActingStrategy {
    adversary: Box<dyn Adversary>,
    follower: Arc<Follower>,
    /// Signer with the seat's key.
    signer: Signer,
    uid: Uid,
    /// Window in training.
    window: Window,
    /// Fetched contributions of earlier windows.
    seen: BTreeMap<Window, Vec<Contribution>>,
    /// The presentation of the window of the last commitment.
    presenting: Option<(Window, Presentation)>,
}

impl ActingStrategy {
    pub fn new(
        adversary: Box<dyn Adversary>,
        follower: Arc<Follower>,
        signer: Signer,
        uid: Uid,
    ) -> ActingStrategy {
        let (window, seen) = (Window::FIRST, BTreeMap::new());
        ActingStrategy { adversary, follower, signer, uid, window, seen, presenting: None }
    }

    /// Returns the presentation of a window, which is decided once. `file` is the honest contribution.
    async fn presentation(&mut self, window: Window, file: &Path) -> Presentation {
        if let Some((_, presentation)) = self.presenting.as_ref().filter(|(of, _)| *of == window) {
            return presentation.clone();
        }
        let commitments = match self.follower.chain.window(self.follower.run.id, window).await {
            Ok(Some(view)) => view.commitments,
            _ => Vec::new(),
        };
        let bytes = Bytes::from(std::fs::read(file).unwrap_or_default());
        let header = Submission::read(&bytes).map(|submission| submission.header);
        let presentation = match header {
            Ok(header) => {
                let own = OwnContribution { header, bytes: bytes.clone(), signer: &self.signer };
                let at =
                    MinerContext { commitments: &commitments, ..context(&self.follower, self.uid, window) };
                self.adversary.present(&at, &own)
            }
            // Without the honest contribution, present nothing.
            Err(_) => Presentation::default(),
        };
        self.presenting = Some((window, presentation.clone()));
        presentation
    }

    /// Fetches other seats' contributions to the `back` windows before `window`, the latest first.
    async fn look_back(&mut self, window: Window, back: u32) -> Vec<Contribution> {
        let first = Window(window.0.saturating_sub(back));
        self.seen.retain(|window, _| first <= *window);
        let mut seen = Vec::new();
        for earlier in (first.0..window.0).rev().map(Window) {
            if !self.seen.contains_key(&earlier) {
                let fetched = fetch_some(&self.follower, earlier, self.uid).await;
                self.seen.insert(earlier, fetched);
            }
            seen.extend(self.seen.get(&earlier).into_iter().flatten().cloned());
        }
        seen
    }
}

fn context(follower: &Follower, uid: Uid, window: Window) -> MinerContext<'_> {
    let run = &follower.run;
    MinerContext { run: run.id, window, uid, params: &run.params, codec: &follower.sent, commitments: &[] }
}

/// Fetches the bytes that another seat publishes under `key`; `None` if they are not published by `until`.
async fn bytes_of(follower: &Follower, victim: Uid, key: &ObjectKey, until: Block) -> Option<Bytes> {
    let limits = follower.contribution_limits();
    let heads = follower.chain.heads();
    while heads.borrow().block <= until {
        if let Ok(seats) = follower.chain.seats(follower.run.id).await
            && let Some(seat) = seats.iter().find(|seat| seat.id.uid == victim)
            && let Ok(bytes) = follower.fetch.fetch(&seat.endpoint, key, &limits).await
        {
            return Some(bytes);
        }
        tokio::time::sleep(RETRY).await;
    }
    None
}

async fn wait_until_past(follower: &Follower, block: Block) {
    // If the chain is unreachable, the honest program ends.
    wait_past(&mut follower.chain.heads(), block).await.ok();
}

/// Fetches valid contributions of a window except the own one: at most [`SEEN_MAX`], of seats spread over the window,
/// because each costs a download.
async fn fetch_some(follower: &Follower, window: Window, own: Uid) -> Vec<Contribution> {
    let Ok(Some(view)) = follower.chain.window(follower.run.id, window).await else { return Vec::new() };
    let Ok(seats) = follower.chain.seats(follower.run.id).await else { return Vec::new() };
    let valid = view.selection.as_ref().map(|selection| &selection.valid[..]).unwrap_or_default();
    let sources = follower.contribution_sources(&view, &seats);
    let mut fetched = Vec::new();
    let mut others: Vec<_> =
        view.commitments.iter().filter(|(uid, _)| *uid != own && valid.contains(uid)).collect();
    others.sort_by_key(|(uid, _)| (*uid < own, *uid));
    let step = others.len().div_ceil(SEEN_MAX).max(1);
    for (uid, digest) in (0..step).flat_map(|first| others.iter().skip(first).step_by(step)) {
        if SEEN_MAX <= fetched.len() {
            break;
        }
        match follower.fetch_contribution(&sources, *uid, digest).await {
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
        self.adversary.sequences(&context(&self.follower, self.uid, window), assigned, of)
    }

    fn trains_ahead(&self) -> bool {
        self.adversary.trains_ahead()
    }

    fn reading(&self) -> Option<Reading> {
        self.adversary.reading()
    }

    fn declares(&mut self, trained: u32, assigned: u32) -> u32 {
        self.adversary.declares(&context(&self.follower, self.uid, self.window), trained, assigned)
    }

    async fn outcome(
        &mut self,
        follower: &Follower,
        view: &SeatWindow,
        before: &[f32],
        after: Vec<f32>,
    ) -> Vec<f32> {
        let window = view.window;
        let back = self.adversary.looks_back();
        let seen = if back == 0 { Vec::new() } else { self.look_back(window, back).await };
        let commit_by = follower.run.params.schedule.commit_deadline(window);
        let heads = follower.chain.heads();
        loop {
            let trained = TrainedWindow { seen: &seen, before, after: &after };
            match self.adversary.outcome(&context(follower, self.uid, window), &trained) {
                Some(outcome) => return outcome,
                None if commit_by <= heads.borrow().block => return after,
                None => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn commit(
        &mut self,
        follower: &Follower,
        pending: &PendingContribution,
        file: &Path,
    ) -> Result<(), ChainError> {
        let (run, window) = (follower.run.id, pending.window);
        let commit_by = follower.run.params.schedule.commit_deadline(window);
        if self.adversary.waits_for_commitments() {
            // The next block is the last one that counts.
            wait_until_past(follower, Block(commit_by.0.saturating_sub(2))).await;
        }
        for commit in self.presentation(window, file).await.commits {
            if commit.when == Timing::Late {
                wait_until_past(follower, commit_by).await;
            }
            follower.chain.submit(Call::Commit { run, window, digest: commit.digest }).await?;
        }
        Ok(())
    }

    async fn upload(
        &mut self,
        follower: &Follower,
        bucket: &dyn Store,
        pending: &PendingContribution,
        file: &Path,
    ) -> Result<(), StoreError> {
        let schedule = follower.run.params.schedule;
        let window = pending.window;
        let reveal_by = schedule.reveal_deadline(window);
        // A validator's request sent by the deadline may still find an object published just after it. This block is
        // later.
        let late = Block(reveal_by.0.midpoint(schedule.attest_deadline(window).0));
        for show in self.presentation(window, file).await.uploads {
            if show.when == Timing::Late {
                wait_until_past(follower, late).await;
            }
            let key = keys::contribution(follower.run.id, window, &show.under);
            let bytes = match show.what {
                Content::Bytes(bytes) => Some(bytes),
                Content::BytesOf(victim) => bytes_of(follower, victim, &key, reveal_by).await,
            };
            if let Some(bytes) = bytes {
                bucket.put(&key, bytes).await?;
            }
        }
        Ok(())
    }
}
