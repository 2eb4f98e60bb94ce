//! `mettle plan`: what a run of some size needs of each role, and whether it fits its window.
//!
//! `figures.rs` computes it, from the constants in `constants.rs`. Nothing is read from a chain.

mod constants;
mod figures;
mod table;
pub mod weight;
mod wire;

use crate::{help, output::Output, quantity, run::read_json};
use anyhow::Context as _;
use figures::{Link, Plan, PlanInput};
use model::ModelConfig;
use protocol::{RunParams, Terms, params::Density};
use std::path::PathBuf;

/// Tokens of a sequence, if no preset tells.
const TOKENS: u64 = 2048;

/// Show what a run of some size needs, and whether it fits its window
///
/// Prints bytes, memory, disk, chain weight and time of each role in a window. It is arithmetic: each constant names
/// its source. What does not fit is shown with the change that would make it fit.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle plan --params 70e9 --seats 1000 --uplink 110Mbit",
    "mettle plan --preset 8b --seats 64 --validators 8 --uplink 1Gbit --window 1h",
    "mettle plan --params 8b --uplink 200Mbit --downlink 1Gbit --validator-uplink 10Gbit --json",
]))]
pub struct PlanRun {
    /// Parameters of the model, such as 70e9, 70b or 400k.
    #[arg(long, value_name = "N", value_parser = quantity::count, required_unless_present = "preset")]
    #[arg(conflicts_with = "preset")]
    params: Option<u64>,
    /// A preset, which also tells the activations: 117k, localnet, 1m, 6m, 150m, 1b, 8b or 70b.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Miners. All of them count as having a weight.
    #[arg(long, value_name = "N", default_value_t = Terms::default().miner_seats_max.into())]
    seats: u32,
    /// Validators.
    #[arg(long, value_name = "N", default_value_t = Terms::default().validator_seats_max.into())]
    validators: u32,
    /// A miner's uplink, such as 110Mbit, 1Gbps or 100MB/s.
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    uplink: u64,
    /// A miner's downlink [default: as its uplink].
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    downlink: Option<u64>,
    /// A validator's uplink, to its bucket [default: as a miner's].
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    validator_uplink: Option<u64>,
    /// A validator's downlink [default: as a miner's].
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    validator_downlink: Option<u64>,
    /// Length of a window, such as 20m or 1h30m; its phases keep their shares [default: the run's blocks].
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    window: Option<u64>,
    /// Time of a block.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "6s")]
    block_time: u64,
    /// Values of a contribution, of each 4096, or a fraction such as 1/64 [default: 64].
    #[arg(long, value_name = "DENSITY", value_parser = quantity::density)]
    density: Option<Density>,
    /// Values of the update, in the same way [default: 1024].
    #[arg(long, value_name = "DENSITY", value_parser = quantity::density)]
    merge_density: Option<Density>,
    /// Training sequences of a seat in a window [default: 512].
    #[arg(long, value_name = "N")]
    sequences: Option<u32>,
    /// Tokens of a sequence [default: the preset's, else 2048].
    #[arg(long, value_name = "N", value_parser = quantity::count)]
    sequence: Option<u64>,
    /// The run's parameters as JSON, as for `run create --params` [default: the protocol's].
    #[arg(long, value_name = "FILE")]
    run_params: Option<PathBuf>,
}

/// Prints the plan.
pub fn plan(command: PlanRun, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let input = input(command)?;
    let plan = Plan::new(&input).context("there is no plan for this")?;
    Ok(output.result(&table::text(&input, &plan), table::json(&input, &plan))?)
}

fn input(command: PlanRun) -> anyhow::Result<PlanInput> {
    let shape = command.preset.as_deref().map(ModelConfig::preset).transpose()?;
    let parameters = match &shape {
        Some(shape) => shape.parameters() as u64,
        None => command.params.context("--params or --preset is needed")?,
    };
    let mut params: RunParams = command.run_params.as_deref().map(read_json).transpose()?.unwrap_or_default();
    params.density = command.density.unwrap_or(params.density);
    params.merge_density = command.merge_density.unwrap_or(params.merge_density);
    params.sequences_per_seat = command.sequences.unwrap_or(params.sequences_per_seat);
    if let Some(window) = command.window {
        let blocks = window / command.block_time.max(1);
        params.schedule = figures::scaled(params.schedule, u32::try_from(blocks).unwrap_or(u32::MAX));
    }
    let miner = Link { up: command.uplink, down: command.downlink.unwrap_or(command.uplink) };
    let validator = Link {
        up: command.validator_uplink.unwrap_or(miner.up),
        down: command.validator_downlink.unwrap_or(miner.down),
    };
    let of_shape = shape.as_ref().map_or(TOKENS, |shape| shape.seq_len as u64);
    Ok(PlanInput {
        parameters,
        shape,
        miners: command.seats,
        validators: command.validators,
        miner_link: miner,
        validator_link: validator,
        params,
        block_milliseconds: command.block_time,
        tokens: command.sequence.unwrap_or(of_shape),
    })
}
