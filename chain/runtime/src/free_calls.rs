//! Share of a block that free calls may use: of all runs, and of one run (PROT-33).
//!
//! A seat's free calls are bounded per window, but a run may have many seats and short windows, and any account may
//! create a run. In each block, the free calls of one run therefore use at most half of the room of all free calls.
//! All free calls use at most three quarters of the room of ordinary calls, so a paying call always has room. Further
//! calls wait in the pool for a later block. Their priority determines the order (`priority`).

use crate::{RuntimeCall, block_weights};
use frame::{
    deps::frame_support::dispatch::{DispatchClass, DispatchInfo},
    prelude::*,
};
use protocol::RunId;

pub use pallet::*;

#[frame::pallet]
pub mod pallet {
    use super::*;

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config + pallet_registry::Config {}

    /// Reference time of this block's free calls, by run. Empty between blocks.
    #[pallet::storage]
    pub type UsedBy<T: Config> = StorageValue<_, BoundedVec<(RunId, u64), T::MaxRuns>, ValueQuery>;

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        // The value is written and removed in memory: it is in no state.
        fn on_finalize(_: BlockNumberFor<T>) {
            UsedBy::<T>::kill();
        }
    }
}

/// Returns the reference time of ordinary calls in a block.
fn room_of_ordinary() -> u64 {
    let weights = block_weights();
    weights.get(DispatchClass::Normal).max_total.unwrap_or(weights.max_block).ref_time()
}

/// Returns the reference time of the free calls of all runs in a block without tasks.
pub fn room_of_all() -> u64 {
    room_of_ordinary() / 4 * 3
}

/// Returns the reference time of the free calls of one run in a block.
pub fn room_of_one() -> u64 {
    room_of_all() / 2
}

impl<T: Config> Pallet<T> {
    /// Returns whether this block has room for a free call of `run`.
    pub fn has_room(run: RunId, cost: u64) -> bool {
        let used = UsedBy::<T>::get();
        let of_all = used.iter().fold(cost, |sum, (_, used)| sum.saturating_add(*used));
        let of_run = used.iter().find(|(id, _)| *id == run).map_or(0, |(_, used)| *used);
        let is_known = used.len() < T::MaxRuns::get() as usize || used.iter().any(|(id, _)| *id == run);
        // Tasks of a block come first, and may leave less than the room of ordinary calls.
        let tasks = *frame_system::Pallet::<T>::block_weight().get(DispatchClass::Mandatory);
        let left = block_weights().max_block.saturating_sub(tasks).ref_time() / 4 * 3;
        is_known && of_all <= room_of_all().min(left) && of_run.saturating_add(cost) <= room_of_one()
    }

    /// Counts a free call that the block includes.
    pub fn count(run: RunId, cost: u64) {
        UsedBy::<T>::mutate(|used| match used.iter_mut().find(|(id, _)| *id == run) {
            Some((_, used)) => *used = used.saturating_add(cost),
            None => {
                if used.try_push((run, cost)).is_err() {
                    defensive!("a block has room for the free calls of every run");
                }
            }
        });
    }
}

/// Returns the part of a block that a free call of `len` bytes uses, in picoseconds: its weight or, if that is more,
/// the room of ordinary calls in proportion to its bytes.
pub fn cost(info: &DispatchInfo, len: usize) -> u64 {
    let base = block_weights().get(info.class).base_extrinsic;
    let weight = info.total_weight().saturating_add(base).ref_time();
    let lengths: frame_system::limits::BlockLength =
        <crate::Runtime as frame_system::Config>::BlockLength::get();
    let bytes = u128::from(*lengths.max.get(DispatchClass::Normal)).max(1);
    let by_length = u128::from(room_of_ordinary()).saturating_mul(len as u128) / bytes;
    weight.max(u64::try_from(by_length).unwrap_or(u64::MAX))
}

/// Returns the run of a call that may be free. Calls that are not listed here pay.
pub fn run_of(call: &RuntimeCall) -> Option<RunId> {
    use pallet_windows::Call as Windows;
    match call {
        RuntimeCall::Windows(
            Windows::commit { run, .. }
            | Windows::attest { run, .. }
            | Windows::vote { run, .. }
            | Windows::attest_hidden { run, .. }
            | Windows::reveal_attestation { run, .. }
            | Windows::vote_hidden { run, .. }
            | Windows::reveal_vote { run, .. }
            | Windows::anchor_receipts { run, .. },
        )
        | RuntimeCall::Weights(
            pallet_weights::Call::commit { run, .. }
            | pallet_weights::Call::reveal { run, .. }
            | pallet_weights::Call::answer_probes { run, .. },
        )
        | RuntimeCall::Registry(pallet_registry::Call::set_endpoint { run, .. })
        | RuntimeCall::Rewards(pallet_rewards::Call::claim { run, .. }) => Some(*run),
        _ => None,
    }
}
