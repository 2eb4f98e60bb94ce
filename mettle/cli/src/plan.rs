//! `mettle plan`: the needs of each role in a run of some size, and whether they fit its window.
//!
//! `figures.rs` computes it from the constants in `constants.rs`. Nothing is read from a chain.

mod constants;
pub(crate) mod figures;
pub(crate) mod table;
pub mod weight;
mod wire;

use crate::{help, output::Output, quantity, run::create::read_json};
use anyhow::Context as _;
use figures::{Link, Plan, PlanInput};
use model::{ModelConfig, RunSpec};
use protocol::{RunParams, Terms, params::Density, view::RunStatus};
use std::{path::PathBuf, time::Duration};

/// Default length of a sequence in tokens, without a preset.
const TOKENS: u64 = 2048;

/// Show a run's needs, and whether they fit its window
///
/// Prints bytes, memory, disk, chain weight and time of each role in a window. The plan is arithmetic: each constant
/// names its source. A need that does not fit is shown with the change that would make it fit.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle plan --params 70e9 --seats 1000 --uplink 110Mbit",
    "mettle plan --preset 8b --seats 64 --validators 8 --uplink 1Gbit --window 1h",
    "mettle plan --params 8b --uplink 200Mbit --validator-uplink 10Gbit --json",
]))]
pub struct PlanRun {
    /// Parameters of the model, such as 70e9, 70b or 400k.
    #[arg(long, value_name = "N", value_parser = quantity::count, required_unless_present = "preset")]
    #[arg(conflicts_with = "preset")]
    params: Option<u64>,
    /// A preset, which adds the activations: 117k, localnet, 1m, 6m, 150m, 1b, 8b or 70b.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Miners. Each counts as having a weight.
    #[arg(long, value_name = "N", default_value_t = Terms::default().miner_seats_max.into())]
    seats: u32,
    /// Validators.
    #[arg(long, value_name = "N", default_value_t = Terms::default().validator_seats_max.into())]
    validators: u32,
    /// Ranks that train a seat, with a GPU and one micro-batch per step each.
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: u32,
    /// A miner's uplink, such as 110Mbit, 1Gbps or 100MB/s.
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    uplink: u64,
    /// A miner's downlink [default: the uplink].
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    downlink: Option<u64>,
    /// A validator's uplink, to its bucket [default: a miner's].
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    validator_uplink: Option<u64>,
    /// A validator's downlink [default: a miner's].
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
    /// Values of the update, in the same form [default: 1024].
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

/// Returns the needs of each role's seats in an existing run with its current seats. Times are over links of 1
/// Gbit/s.
pub(crate) fn of_run(spec: &RunSpec, status: &RunStatus, block_time: Duration) -> [figures::Role; 3] {
    let link = Link { up: 1_000_000_000, down: 1_000_000_000 };
    figures::Plan::seat_roles(&PlanInput {
        parameters: spec.model.parameters() as u64,
        tokens: spec.model.seq_len as u64,
        shape: Some(spec.model.clone()),
        miners: status.miners.taken.max(1).into(),
        validators: status.validators.taken.max(1).into(),
        ranks: 1,
        miner_link: link,
        validator_link: link,
        params: status.run.params,
        block_milliseconds: u64::try_from(block_time.as_millis()).unwrap_or(u64::MAX).max(1),
    })
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
        ranks: command.ranks,
        miner_link: miner,
        validator_link: validator,
        params,
        block_milliseconds: command.block_time,
        tokens: command.sequence.unwrap_or(of_shape),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::Value;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        plan: PlanRun,
    }

    /// Returns the command's output.
    fn run(arguments: &str, json: bool) -> Result<String, String> {
        let arguments = std::iter::once("plan").chain(arguments.split_whitespace());
        let program = Program::try_parse_from(arguments).map_err(|error| error.to_string())?;
        let (mut out, mut err, mut ask) = (Vec::new(), Vec::new(), || Ok(None));
        let mut output = Output::new(json, &mut out, &mut err, &mut ask);
        let done = plan(program.plan, &mut output);
        output.finish(&done).unwrap();
        assert!(err.is_empty());
        done.map_err(|error| format!("{error:#}"))?;
        Ok(String::from_utf8(out).unwrap())
    }

    const EXAMPLE: &str = "--params 70e9 --seats 1000 --uplink 110Mbit --window 20m";

    #[test]
    fn a_plan_reads_well_at_eighty_columns_and_its_json_stays() {
        let text = run(EXAMPLE, false).unwrap();
        let long: Vec<&str> = text.lines().filter(|line| 80 < line.chars().count()).collect();
        assert!(long.is_empty(), "too long: {long:#?}");
        expect_test::expect_file!["../tests/plan.txt"].assert_eq(&text);
        let json: Value = serde_json::from_str(&run(EXAMPLE, true).unwrap()).unwrap();
        let json = serde_json::to_string_pretty(&json).unwrap() + "\n";
        expect_test::expect_file!["../tests/plan.json"].assert_eq(&json);
    }

    #[test]
    fn plans_of_all_sizes_fit_their_lines() {
        for params in
            ["--params 1", "--params 0.4m", "--params 1e9", "--preset 8b", "--preset 70b", "--params 400e9"]
        {
            for link in ["1bit", "110Mbit", "18000000000Gbit"] {
                for rest in [
                    "",
                    "--seats 1024 --validators 64 --ranks 1024",
                    "--window 1h --density 1/1 --merge-density 1/1",
                ] {
                    let text = run(&format!("{params} --uplink {link} {rest}"), false).unwrap();
                    let long: Vec<&str> = text.lines().filter(|line| 80 < line.chars().count()).collect();
                    assert!(long.is_empty(), "{params} {link} {rest}: {long:#?}");
                }
            }
        }
    }

    #[test]
    fn json_tells_whether_it_fits() {
        let fits = |arguments: &str| {
            let json: Value = serde_json::from_str(&run(arguments, true).unwrap()).unwrap();
            (json["fits"].as_bool().unwrap(), json["checks"].as_array().unwrap().len())
        };
        let (does, checks) = fits("--params 1e9 --seats 24 --validators 8 --uplink 10Gbit");
        assert!(does && 10 < checks);
        assert_eq!(fits(EXAMPLE), (false, checks));
    }

    #[test]
    fn ranks_are_shown_one_by_one_and_together() {
        let arguments = "--preset 8b --seats 24 --uplink 10Gbit --ranks 8";
        let text = run(arguments, false).unwrap();
        let line = |label: &str| {
            let found = text.lines().find(|line| line.trim_start().starts_with(label)).expect(label);
            found.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(text.contains("by 8 ranks with a GPU"), "{text}");
        assert!(line("devices:").contains("384 GB") && line("… of each rank").contains("48 GB"), "{text}");
        assert!(line("host memory").contains("210.1 GB"), "{text}");
        assert!(line("… of that").contains("90.06 GB") && line("… for each rank").contains("11.26 GB"));
        let json: Value = serde_json::from_str(&run(arguments, true).unwrap()).unwrap();
        let parameters = 7_504_924_672u64;
        assert_eq!(
            (&json["input"]["ranks"], &json["miner"]["host_bytes"]),
            (&8.into(), &(28 * parameters).into())
        );
        assert_eq!(json["miner"]["ranks_host_bytes"], 12 * parameters);
        assert_eq!(json["miner"]["command_host_bytes"], Value::Null);
    }

    #[test]
    fn a_preset_and_a_run_s_parameters_are_read() {
        let json: Value = serde_json::from_str(&run("--preset 8b --uplink 1Gbit", true).unwrap()).unwrap();
        assert_eq!(json["input"]["parameters"], 7_504_924_672u64);
        assert_eq!(json["input"]["sequence_tokens"], 8192);
        assert!(json["miner"]["activation_bytes"].is_u64());

        let file = tempfile::NamedTempFile::new().unwrap();
        let params = RunParams { sequences_per_seat: 77, places: 5, ..RunParams::default() };
        std::fs::write(file.path(), serde_json::to_vec(&params).unwrap()).unwrap();
        let path = file.path().display();
        let arguments = format!("--params 1b --uplink 1Gbit --density 1/8 --run-params {path}");
        let json: Value = serde_json::from_str(&run(&arguments, true).unwrap()).unwrap();
        assert_eq!(
            (&json["input"]["sequences_per_seat"], &json["input"]["density"]),
            (&77.into(), &512.into())
        );
        assert_eq!(json["merging_validator"]["merged"], 9);
    }

    #[test]
    fn what_is_impossible_is_refused_by_its_flag_or_its_formula() {
        for (arguments, says) in [
            ("", "--params"),
            ("--params 1e9", "--uplink"),
            ("--params 1e9 --preset 8b --uplink 1Gbit", "cannot be used with"),
            ("--params 0 --uplink 1Gbit", "0 parameters: a plan is for 1 to"),
            ("--params 2e12 --uplink 1Gbit", "2000000000000 parameters: a plan is for 1 to"),
            ("--params NaN --uplink 1Gbit", "--params <N>': it has no number in front"),
            ("--params 1.5 --uplink 1Gbit", "no whole number"),
            ("--params 1e99 --uplink 1Gbit", "larger than"),
            ("--preset 7b --uplink 1Gbit", "there is no preset \"7b\""),
            ("--params 1e9 --uplink 0Mbit", "--uplink <RATE>': it must be above zero"),
            ("--params 1e9 --uplink 110", "the unit \"\" is unknown; write it as in 110Mbit"),
            ("--params 1e9 --uplink 1Gbit --seats 1025", "1025 miners + 64 validators = 1089 seats"),
            ("--params 1e9 --uplink 1Gbit --seats 0", "at least one miner"),
            ("--params 1e9 --uplink 1Gbit --ranks 0", "0 ranks: a miner's seat has from 1 to 1024"),
            ("--params 1e9 --uplink 1Gbit --ranks 1025", "1025 ranks"),
            ("--params 1e9 --uplink 1Gbit --window 2m", "a window of 20 blocks of 6 s is too short"),
            ("--params 1e9 --uplink 1Gbit --window 99999999d", "a plan is for at most 1000000"),
            ("--params 1e9 --uplink 1Gbit --density 1/3", "a density is from 1 to 4096"),
            ("--params 1e9 --uplink 1Gbit --density 0", "a density is from 1 to 4096"),
            ("--params 1e9 --uplink 1Gbit --sequences 0", "sequences_per_seat must be above zero"),
            ("--params 1e9 --uplink 1Gbit --sequence 0", "a sequence of 0 tokens"),
            ("--params 1e9 --uplink 1Gbit --run-params no-such-file", "could not read no-such-file"),
        ] {
            let refused = run(arguments, false).expect_err(arguments);
            assert!(refused.contains(says), "{arguments}: {refused}");
        }
    }
}
