//! The run on the simulated chain for tests of contributions without a bucket: its first window, and keys.

use ed25519_dalek::SigningKey;
use protocol::{Block, Digest, RunId, RunParams, Schedule, Window};

pub const RUN: RunId = RunId(0);
pub const WINDOW: Window = Window(0);
/// One token.
pub const MTL: u128 = 1_000_000_000_000;

/// Returns parameters with a window long enough for all transfers of a test.
pub fn params() -> RunParams {
    let schedule = Schedule {
        start: Block(20),
        blocks_per_window: 60,
        commit_by: 20,
        reveal_by: 30,
        attest_by: 40,
        vote_by: 50,
    };
    RunParams {
        schedule,
        epoch_windows: 2,
        reveal_windows: 1,
        hidden_blocks: 0,
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

/// Returns the hotkey of a seat.
pub fn key(seat: u16) -> SigningKey {
    SigningKey::from_bytes(&Digest::of_parts(&[b"peers", &seat.to_le_bytes()]).0)
}
