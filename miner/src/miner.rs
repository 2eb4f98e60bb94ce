//! A miner: its node, its local state, and the training of the next window.

use crate::{
    local::LocalState,
    observer::ThreadResult,
    progress::{Progress, SnapshotInterval, SnapshotKey},
    shutdown::ShutdownHandle,
    strategy::Strategy,
    train::Trained,
};
use daemon::{Blocking, Lent, Node, Work};
use protocol::{Block, Digest, Window, view::SeatDeal};
use std::sync::{Arc, atomic::AtomicBool};

/// The default of [`MinerOptions::ahead`].
pub const AHEAD: f64 = 0.5;
/// The default of [`MinerOptions::residual_share`] (ADR 0046).
pub const RESIDUAL_SHARE: f64 = 0.5;

/// A miner. Time comes from the chain's heads; chain, store, data and trainer are passed in.
pub struct Miner {
    pub node: Node,
    /// Moved to the worker thread while it computes.
    pub local: Lent<LocalState>,
    pub strategy: Box<dyn Strategy>,
    pub options: MinerOptions,
    pub shutdown: Arc<ShutdownHandle>,
    /// The planned training of the next window, until it starts.
    pub(crate) due: Option<Due>,
    /// The running training of the next window, which has the local state meanwhile.
    pub(crate) ahead: Option<Ahead>,
    /// Training of the held window, or of the next one, from before its model arrived.
    pub(crate) begun: Option<Begun>,
    /// The last window that the miner contributed to, or abandoned, before its model arrived.
    pub(crate) without_model: Option<Window>,
    /// Sequences trained per block, in the last window that was trained from its model.
    pub(crate) pace: Option<f64>,
}

/// Options of a miner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinerOptions {
    /// Blocks before the commit deadline at which training stops, so that the commitment is included in time.
    pub commit_margin_blocks: u32,
    /// Sequences in one step.
    pub batch_sequences: usize,
    /// Maximum share of a window's sequences that is trained before the window's model arrives; 0: none. It is used
    /// as far as the window itself has no time for them.
    pub ahead: f64,
    /// Sequences per block for planning training ahead. `None`: as measured in the previous window.
    pub pace: Option<f64>,
    /// Fraction `c` of the residual `e` subtracted from `θ` at the start of a window's training; 0: none.
    pub residual_share: f64,
    /// Interval of snapshots inside a window.
    pub snapshot_interval: SnapshotInterval,
}

/// A thread that trains on the next window's data.
pub(crate) struct Ahead {
    pub key: SnapshotKey,
    pub stop: Arc<AtomicBool>,
    pub work: Work<ThreadResult>,
    pub blocking: Blocking,
}

/// The planned training of the window after `window`, until it starts.
pub(crate) struct Due {
    /// The last trained window, and its lineage.
    pub window: Window,
    pub lineage: Digest,
    pub deal: SeatDeal,
    /// The block of the start.
    pub at: Block,
    /// True if the trainer is at the end of the training of `window`. Otherwise only a killed process's snapshot has
    /// the position to resume from.
    pub at_end: bool,
}

/// A window's training from the miner's own weights. The trainer has its result.
pub(crate) struct Begun {
    pub progress: Progress,
    pub trained: Trained,
}

impl Ahead {
    /// Returns the window whose data the thread trains on.
    pub(crate) fn window(&self) -> Window {
        self.key.window
    }
}

/// The thread ends when its owner is dropped.
impl Drop for Ahead {
    fn drop(&mut self) {
        self.blocking.stop(&self.stop);
    }
}
