//! Where one miner may act otherwise than another.
//!
//! How a miner works is its own business; these are the few points at which that shows in what it submits. The program is [`DefaultStrategy`].
//! Whoever tries what a dishonest miner would gain puts another strategy here, and wraps store and chain, which are parameters already.

use async_trait::async_trait;
use node::Follower;
use protocol::{Window, view::WindowView};

/// The decisions of one miner. What is not written otherwise is as an honest one decides.
#[async_trait]
pub trait Strategy: Send {
    /// The sequences to train on, in order. `assigned` are those that the chain dealt to the seat, out of `of` in the training split (PROT-5).
    fn sequences(&mut self, _window: Window, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned
    }

    /// The prefix `t` to declare: how many of its `assigned` sequences it says it finished (PROT-6). With none there is no contribution.
    fn declares(&mut self, trained: u32, _assigned: u32) -> u32 {
        trained
    }

    /// The weights whose difference from `before`, the window's model, goes into the residual. `after` is what training came to; both are
    /// in the schema's order.
    async fn outcome(
        &mut self,
        _follower: &Follower,
        _view: &WindowView,
        _before: &[f32],
        after: Vec<f32>,
    ) -> Vec<f32> {
        after
    }
}

/// Trains on what it was dealt, and sends what came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
