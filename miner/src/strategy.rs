//! The decisions in which miners may differ.
//!
//! How a miner works is its own business; these are the points at which it shows in what it submits. The program uses
//! [`DefaultStrategy`], the adversaries of `localnet` use others.

use crate::contribution_store::PendingContribution;
use async_trait::async_trait;
use chain_client::{Call, ChainError};
use daemon::Follower;
use protocol::{Window, keys, view::SeatWindow};
use std::path::Path;
use store::{Store, StoreError};

/// Makes the sequences that a step trains on from those that it read, each as long as the model takes.
pub type Reading = Box<dyn Fn(Vec<Vec<u32>>) -> Vec<Vec<u32>> + Send>;

/// The decisions of one miner. The defaults are those of an honest one.
#[async_trait]
pub trait Strategy: Send {
    /// The sequences to train on, in order. The chain assigned `assigned` to the seat, out of `of` in the training
    /// split (PROT-5).
    fn sequences(&mut self, _window: Window, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned
    }

    /// What the window's training makes of the text of each step; `None`: it trains on all of it.
    fn reading(&self) -> Option<Reading> {
        None
    }

    /// Whether to train from other weights than the window's model: a step ahead of it, and on the next window's data
    /// before its model is there. [`Strategy::sequences`] is then asked for that window twice.
    fn trains_ahead(&self) -> bool {
        true
    }

    /// The prefix `t` to declare: how many of the `assigned` sequences were trained on (PROT-6). With 0 there is no
    /// contribution.
    fn declares(&mut self, trained: u32, _assigned: u32) -> u32 {
        trained
    }

    /// The weights whose difference from `before` is added to the residual. `before` are the weights that
    /// the training began with, and `after` those that it ended with. All are in
    /// the schema's order.
    async fn outcome(
        &mut self,
        _follower: &Follower,
        _view: &SeatWindow,
        _before: &[f32],
        after: Vec<f32>,
    ) -> Vec<f32> {
        after
    }

    /// Commits to the contribution in `file`. Called again after a crash.
    async fn commit(
        &mut self,
        follower: &Follower,
        pending: &PendingContribution,
        _file: &Path,
    ) -> Result<(), ChainError> {
        let (run, window, digest) = (follower.run.id, pending.window, pending.digest);
        follower.chain.submit(Call::Commit { run, window, digest }).await.map(drop)
    }

    /// Uploads the contribution in `file` to the seat's bucket. Called again after an error.
    async fn upload(
        &mut self,
        follower: &Follower,
        bucket: &dyn Store,
        pending: &PendingContribution,
        file: &Path,
    ) -> Result<(), StoreError> {
        let key = keys::contribution(follower.run.id, pending.window, &pending.digest);
        bucket.put_file(&key, file).await.map(drop)
    }
}

/// Trains on the assigned sequences, and submits the result.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
