//! The decisions in which miners may differ.
//!
//! Miners are free in how they work; these are the decisions that show in their submissions. The program uses
//! [`DefaultStrategy`], the adversaries of `localnet` use others.

use crate::contribution_store::PendingContribution;
use async_trait::async_trait;
use chain_client::{Call, ChainError};
use daemon::Follower;
use protocol::{Window, keys, view::SeatWindow};
use std::path::Path;
use store::{Store, StoreError};

/// Converts the sequences that a step read to those that it trains on, each of the model's length.
pub type Reading = Box<dyn Fn(Vec<Vec<u32>>) -> Vec<Vec<u32>> + Send>;

/// The decisions of one miner. The defaults are those of an honest one.
#[async_trait]
pub trait Strategy: Send {
    /// Returns the sequences to train on, in order. The chain assigned `assigned` to the seat, out of `of` in the
    /// training split (PROT-5).
    fn sequences(&mut self, _window: Window, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned
    }

    /// Returns the conversion of each step's text; `None`: the training uses all of it.
    fn reading(&self) -> Option<Reading> {
        None
    }

    /// Returns whether to train from other weights than the window's model: a step ahead of it, and on the next
    /// window's data before its model arrives. [`Strategy::sequences`] is then called twice for that window.
    fn trains_ahead(&self) -> bool {
        true
    }

    /// Returns the prefix `t` to declare: the number of `assigned` sequences that were trained on (PROT-6). With 0
    /// there is no contribution.
    fn declares(&mut self, trained: u32, _assigned: u32) -> u32 {
        trained
    }

    /// Returns the weights whose difference from `before` is added to the residual. `before` are the weights at the
    /// start of the training, `after` those at its end. All are in the schema's order.
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
