//! The common parts of both roles: chain, bucket, seat, model, journal, and the place in which heavy work runs.

use crate::{
    Blocking, ChainWitness, Entry, Follower, Journal, SyncDriver, SyncError,
    durable::DirectoryLock,
    error_chain,
    step::{Skip, Stop},
    sync::{follow::OwnMerge, until_past},
    witness::WitnessError,
};
use chain_client::{Call, Chain, ChainError, Head, Refusal};
use dataset::Dataset;
use protocol::{
    Block, Digest, RunId, Schedule, Uid, Window,
    identity::Signer,
    view::{RunView, SeatView, SeatWindow, WindowView},
};
use std::{path::PathBuf, sync::Arc};
use store::Store;
use tokio::sync::watch;
use tracing::field::Empty;

/// The common state of miners and validators. Time comes from the chain's heads.
pub struct Node {
    /// The model of the open window and its synchronisation. Also holds chain and fetcher.
    pub sync: SyncDriver,
    /// The node's own bucket.
    pub store: Arc<dyn Store>,
    pub dataset: Arc<Dataset>,
    /// Signs for the chain with the hotkey.
    pub signer: Signer,
    pub seat: SeatView,
    /// Finalised blocks.
    pub heads: watch::Receiver<Head>,
    /// A second node that must have the same blocks, if configured.
    pub witness: Option<ChainWitness>,
    pub journal: Journal,
    /// Directory of the node's files.
    pub directory: PathBuf,
    /// Place in which work on the whole model runs.
    pub blocking: Blocking,
    /// Returns the bytes transferred so far, up and down.
    pub traffic: Box<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// Number of windows after which the node ends; `None` for no limit.
    pub windows_max: Option<u32>,
    /// Excludes other processes from the directory; `None` in tests and the simulation, where each node has its own.
    pub lock: Option<DirectoryLock>,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    Witness(Box<WitnessError>),
    #[error("another account took this seat at block {registered_at}; register again")]
    SeatLost { registered_at: Block },
}

impl Node {
    pub fn follower(&self) -> &Follower {
        &self.sync.follower
    }

    pub fn chain(&self) -> &dyn Chain {
        &*self.sync.follower.chain
    }

    pub fn run(&self) -> &RunView {
        &self.sync.follower.run
    }

    pub fn run_id(&self) -> RunId {
        self.run().id
    }

    pub fn uid(&self) -> Uid {
        self.seat.id.uid
    }

    pub fn schedule(&self) -> Schedule {
        self.run().params.schedule
    }

    /// Returns the window whose model this node holds.
    pub fn window(&self) -> Window {
        self.sync.window()
    }

    /// Returns the latest finalised block.
    pub fn block(&self) -> Block {
        self.heads.borrow().block
    }

    /// Advances the model to the open window, and past `done`, the last window that the caller has finished. `own` is
    /// this node's merge of a window in between. Returns whether the model changed.
    ///
    /// # Errors
    /// If the chain cannot be read or the model cannot be synchronised.
    #[tracing::instrument(
        name = "follow", target = "profile", level = "debug", skip_all,
        fields(window = self.window().0, outcome = Empty), err(level = "debug")
    )]
    pub async fn follow(
        &mut self,
        done: Option<Window>,
        own: &mut Option<OwnMerge>,
    ) -> Result<bool, NodeError> {
        Ok(self.sync.sync_to_open_window(&mut self.heads, done, own, &mut self.journal).await?)
    }

    /// Advances like [`Node::follow`], without an own merge, but returns when block `leave_at` is finalised, if given.
    /// Returns whether the node holds the model of the open window.
    ///
    /// # Errors
    /// As [`Node::follow`].
    #[tracing::instrument(
        name = "follow", target = "profile", level = "debug", skip_all,
        fields(window = self.window().0, outcome = Empty), err(level = "debug")
    )]
    pub async fn follow_until(
        &mut self,
        done: Option<Window>,
        leave_at: Option<Block>,
    ) -> Result<bool, NodeError> {
        let own = &mut None;
        self.sync.sync_until(&mut self.heads, done, leave_at, own, &mut self.journal).await?;
        Ok(self.sync.is_current(self.block(), done))
    }

    /// Returns to an earlier checkpoint if the node holds `window` with another `lineage` (PROT-20).
    ///
    /// # Errors
    /// As [`Node::follow`].
    pub async fn take_rewind(&mut self, window: Window, lineage: Digest) -> Result<(), NodeError> {
        Ok(self.sync.take_rewind(&mut self.heads, window, lineage, &mut self.journal).await?)
    }

    /// Waits until a block above `block` is finalised. Calls included up to `block` are then final, and the block's
    /// own hash is known.
    ///
    /// # Errors
    /// If the connection to the chain has ended.
    #[tracing::instrument(name = "wait", target = "profile", level = "debug", skip_all, fields(block = block.0))]
    pub async fn wait_past(&mut self, block: Block) -> Result<(), NodeError> {
        Ok(until_past(&mut self.heads, block).await?)
    }

    /// Returns the chain's view of a window; `None` if the chain has not opened it yet or has pruned it.
    ///
    /// # Errors
    /// [`NodeError::Witness`] if the second node has a different first block of the window: one of the two is wrong. A
    /// window whose first block has had no hash for long counts as not opened: nothing unconfirmed is signed.
    pub async fn window_view(&self, window: Window) -> Result<Option<WindowView>, NodeError> {
        let seen_at = self.block();
        let Some(view) = self.chain().window(self.run_id(), window).await? else { return Ok(None) };
        Ok(self.is_confirmed(window, view.opening_hash, seen_at).await?.then_some(view))
    }

    /// Returns the own seat's part of a window; `None` as for [`Node::window_view`].
    ///
    /// # Errors
    /// As [`Node::window_view`].
    pub async fn seat_window(&self, window: Window) -> Result<Option<SeatWindow>, NodeError> {
        let seen_at = self.block();
        let view = self.chain().seat_window(self.run_id(), window, self.uid()).await?;
        let Some(view) = view else { return Ok(None) };
        Ok(self.is_confirmed(window, view.opening_hash, seen_at).await?.then_some(view))
    }

    /// Compares the hash of the window's first block with that of the second node, if configured.
    async fn is_confirmed(
        &self,
        window: Window,
        opening_hash: Option<Digest>,
        seen_at: Block,
    ) -> Result<bool, NodeError> {
        let Some(witness) = &self.witness else { return Ok(true) };
        if ChainWitness::is_overdue(self.schedule(), window, opening_hash, seen_at) {
            tracing::warn!(window = window.0, "the chain shows no hash of the window's first block");
            return Ok(false);
        }
        let confirmed = witness.confirm(self.run_id(), self.schedule(), window, opening_hash, seen_at).await;
        confirmed.map_err(|error| NodeError::Witness(Box::new(error)))?;
        Ok(true)
    }

    /// Returns all seats of the run.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub async fn seats(&self) -> Result<Vec<SeatView>, NodeError> {
        Ok(self.chain().seats(self.run_id()).await?)
    }

    /// Refreshes the own seat, so that its endpoint is current.
    ///
    /// # Errors
    /// [`NodeError::SeatLost`] if another hotkey holds the seat now; otherwise if the chain cannot be read.
    pub async fn keep_seat(&mut self) -> Result<(), NodeError> {
        let Some(seat) = self.chain().seat(self.run_id(), self.uid()).await? else { return Ok(()) };
        if seat.hotkey != self.seat.hotkey {
            return Err(NodeError::SeatLost { registered_at: seat.id.registered_at });
        }
        self.seat = seat;
        Ok(())
    }

    /// Sends a call that the chain accepts once. `already` is the refusal of a call that the chain already has, from a
    /// killed process; it counts as success.
    ///
    /// # Errors
    /// [`Stop::Skip`] with the chain's reason if it refuses the call for good; [`Stop::Fail`] if it cannot be reached.
    #[tracing::instrument(name = "submit", target = "profile", level = "debug", skip_all, fields(call = call.name()))]
    pub async fn submit_once<E: From<NodeError>>(&self, call: Call, already: Refusal) -> Result<(), Stop<E>> {
        match self.chain().submit(call).await {
            Ok(_) => Ok(()),
            Err(error) if error.refusal() == Some(already) => Ok(()),
            Err(error) if !error.is_transient() => Err(Skip::new(error_chain(&error)).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the bytes transferred so far to the journal.
    pub fn record_traffic(&mut self) {
        let (bytes_up, bytes_down) = (self.traffic)();
        self.journal.write(&Entry::Traffic { window: self.window(), bytes_up, bytes_down });
    }

    /// Removes this node's old objects from its bucket, every few windows.
    pub async fn prune(&self, window: Window) {
        crate::prune(&*self.store, self.run_id(), window).await;
    }
}
