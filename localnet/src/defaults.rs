//! The default network of `up`: small enough for two cores, and it learns in minutes.

use chain_client::Amount;
use model::{ModelConfig, Recipe, RunSpec};
use protocol::{
    Block, RunParams, Schedule, Terms,
    params::{Density, F32Bits, MergeRule, TermsLimits},
};

pub const MINERS: u16 = 4;
pub const VALIDATORS: u16 = 3;
pub const BLOCK_MILLIS: u64 = 500;
/// Blocks of a window in which miners train.
pub const TRAIN_BLOCKS: u32 = 28;
/// Time between two blocks of the real nodes' chain `local`, for estimates only: the runtime sets it.
pub const NODE_BLOCK_MILLIS: u64 = 2_000;
/// Twice the training time on the development chain, because four nodes compute as well.
pub const NODE_TRAIN_BLOCKS: u32 = 14;
/// Blocks by which GRANDPA's finality trails the best block: two, and one more for a busy machine.
pub const NODE_FINALITY_LAG: u32 = 3;
/// Tokens in the vocabulary that is learned from the text.
pub const VOCABULARY: usize = 2048;
/// Predicted tokens of a sequence.
pub const SEQUENCE: usize = 64;
/// Size of the sample on which the held-out loss is reported. Losses of sequences spread by about 0.7 nats, so its
/// standard error is below 0.02; the measurement takes 1.7 CPU-seconds per window, which the validators share.
pub const HELD_OUT_SEQUENCES: u64 = 1536;

pub const VALIDATOR_STAKE: Amount = Amount::mtl(1_000);
pub const MINER_STAKE: Amount = Amount::mtl(10);
/// Endowment of each coldkey, for stake, deposits and fees.
pub const COLDKEY_FUNDS: Amount = Amount::mtl(2_000);
/// Endowment of each hotkey, for fees.
pub const HOTKEY_FUNDS: Amount = Amount::mtl(10);
pub const TREASURY: Amount = Amount::mtl(100_000);

/// Returns the run's parameters. `finality_lag` widens the phases that wait for finality.
pub fn params(finality_lag: u32) -> RunParams {
    RunParams {
        schedule: schedule(TRAIN_BLOCKS, finality_lag),
        // With two, chance decides the first pay: the gaps of the first window hardly exceed their errors.
        epoch_windows: 4,
        reveal_windows: 1,
        hidden_blocks: 0,
        sequences_per_seat: 1280,
        // A run of a few dozen windows needs a high density: sparse schemes lag by about 1/ρ windows (PROT-18).
        density: Density(512),
        merge_density: Density(1695),
        merge_rule: MergeRule::MeanOverHits,
        // At 0.95 old residuals still act after the model has changed, and a short run overshoots.
        error_feedback_decay: F32Bits::of(0.5),
        outer_rate: F32Bits::of(1.0),
        evaluation_fraction: F32Bits::of(0.2),
        evaluation_sequences: 64,
        probe_tolerance: 100,
        evaluation_wait_max: 4,
        places: 4,
        reserve_places: 2,
        // A demonstration has no strangers: a miner without a weight stays a newcomer.
        newcomer_windows: 1_000,
        min_contributions: 1,
        checkpoint_windows: 4,
        localnet: true,
        limits: TermsLimits::default(),
    }
}

/// Returns the economic parameters of the run.
pub fn terms() -> Terms {
    Terms {
        active_set_max: 16,
        absence_windows: 6,
        validator_stake_min: Amount::mtl(100).0,
        miner_stake_min: Amount::mtl(1).0,
        emission_per_epoch: Amount::mtl(200).0,
        ..Terms::default()
    }
}

/// Returns a schedule with `train_blocks` for training and the shortest safe phases after it.
pub fn schedule(train_blocks: u32, finality_lag: u32) -> Schedule {
    // Each phase acts on finalised blocks, and its extrinsics are included a block or two later.
    let step = 3 + finality_lag;
    let commit_by = train_blocks + finality_lag;
    Schedule {
        start: Block(0),
        blocks_per_window: commit_by + 4 * step,
        commit_by,
        reveal_by: commit_by + step,
        attest_by: commit_by + 2 * step,
        vote_by: commit_by + 3 * step,
    }
}

pub fn spec() -> RunSpec {
    RunSpec {
        version: 1,
        name: "localnet".into(),
        model: ModelConfig::preset("localnet").expect("the preset is in the list"),
        seed: 0,
        weights: None,
        recipe: Recipe::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_on_real_nodes_takes_less_than_two_minutes_and_mostly_waits_for_finality() {
        let schedule = schedule(NODE_TRAIN_BLOCKS, NODE_FINALITY_LAG);
        assert_eq!(schedule.blocks_per_window, 41);
        assert!(u64::from(schedule.blocks_per_window) * NODE_BLOCK_MILLIS < 120_000);
    }

    #[test]
    fn the_defaults_are_valid_whatever_the_finality_lag() {
        for lag in 0..5 {
            params(lag).validate().unwrap();
        }
        RunSpec::from_bytes(&spec().to_bytes()).unwrap();
    }
}
