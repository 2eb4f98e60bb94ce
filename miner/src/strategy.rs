//! The decisions in which miners may differ.
//!
//! How a miner works is its own business; these are the points at which it shows in what it submits. The program uses
//! [`DefaultStrategy`]. The adversaries of `localnet` use others, and wrap store and chain, which are parameters.

use async_trait::async_trait;
use node::Follower;
use protocol::{Window, view::WindowView};

/// The decisions of one miner. The defaults are those of an honest one.
#[async_trait]
pub trait Strategy: Send {
    /// The sequences to train on, in order. The chain assigned `assigned` to the seat, out of `of` in the training
    /// split (PROT-5).
    fn sequences(&mut self, _window: Window, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned
    }

    /// The prefix `t` to declare: how many of the `assigned` sequences were trained on (PROT-6). With 0 there is no
    /// contribution.
    fn declares(&mut self, trained: u32, _assigned: u32) -> u32 {
        trained
    }

    /// The weights whose difference from `before`, the window's model, is added to the residual. `after` are the
    /// trained weights; both are in the schema's order.
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

/// Trains on the assigned sequences, and submits the result.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
