//! Benchmarks of our pallets in the Wasm runtime.

use crate::{AllPalletsWithSystem, Nomination, Registry, Rewards, Weights, Windows};
use alloc::{string::String, vec::Vec};
use frame::deps::{
    frame_benchmarking::{BenchmarkBatch, BenchmarkConfig, BenchmarkList, add_benchmark, list_benchmark},
    frame_support::traits::{StorageInfo, StorageInfoTrait as _, WhitelistedStorageKeys as _},
};

/// Returns the list of benchmarks.
pub fn list(extra: bool) -> (Vec<BenchmarkList>, Vec<StorageInfo>) {
    let mut list = Vec::new();
    list_benchmark!(list, extra, pallet_nomination, Nomination);
    list_benchmark!(list, extra, pallet_registry, Registry);
    list_benchmark!(list, extra, pallet_rewards, Rewards);
    list_benchmark!(list, extra, pallet_weights, Weights);
    list_benchmark!(list, extra, pallet_windows, Windows);
    (list, AllPalletsWithSystem::storage_info())
}

/// Runs one benchmark.
///
/// # Errors
/// Fails if the pallet or benchmark is unknown, or the benchmark fails.
pub fn run(config: BenchmarkConfig) -> Result<Vec<BenchmarkBatch>, String> {
    let whitelist = AllPalletsWithSystem::whitelisted_storage_keys();
    let params = (&config, &whitelist);
    let mut batches = Vec::new();
    add_benchmark!(params, batches, pallet_nomination, Nomination);
    add_benchmark!(params, batches, pallet_registry, Registry);
    add_benchmark!(params, batches, pallet_rewards, Rewards);
    add_benchmark!(params, batches, pallet_weights, Weights);
    add_benchmark!(params, batches, pallet_windows, Windows);
    Ok(batches)
}
