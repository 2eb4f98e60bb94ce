use super::*;
use gauntlet::gathering::GatherDeadlines;
use protocol::params::Density;

const MBIT: u64 = 1_000_000;
const GBIT: u64 = 1_000 * MBIT;

/// Returns a network that fits: links of a data centre and a long window.
fn input() -> PlanInput {
    let link = Link { up: 10 * GBIT, down: 10 * GBIT };
    let params = RunParams { schedule: scaled(RunParams::default().schedule, 600), ..RunParams::default() };
    PlanInput {
        parameters: 70_600_000_000,
        shape: None,
        miners: 24,
        validators: 8,
        ranks: 1,
        miner_link: link,
        validator_link: link,
        params,
        block_milliseconds: 6_000,
        tokens: 2048,
    }
}

fn plan(input: &PlanInput) -> Plan {
    Plan::new(input).unwrap()
}

#[track_caller]
fn number(plan: &Plan, role: &str, key: &str) -> f64 {
    let role = plan.roles.iter().find(|one| one.key == role).expect("the role");
    role.rows.iter().find(|row| row.key == key).expect("the row").value.number()
}

#[track_caller]
fn check(plan: &Plan, key: &str) -> Check {
    plan.checks.iter().find(|check| check.key == key).expect("the check").clone()
}

#[track_caller]
fn within(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() <= part, "{value} is not within {part} of {expected}");
}

/// docs/benchmarks.md, "The kernels": a model of 70.6 billion parameters.
#[test]
fn a_plan_has_the_sizes_and_times_that_were_measured() {
    let mut input = input();
    // The union of 20 contributions.
    input.params.merge_density = Density(1107);
    input.params.reserve_places = 4;
    let of = plan(&input);
    within(of.sizes.contribution_bytes as f64, 1.345e9, 0.001);
    within(of.sizes.update_bytes as f64, 12.29e9, 0.001);
    assert_eq!(of.sizes.weights_bytes, 282_400_000_000);
    within(number(&of, "miner", "upload_seconds"), 1.345 * 8.0 / 10.0, 0.001);
    within(number(&of, "miner", "encode_seconds"), 282.4 / 12.4, 1e-9);
    within(number(&of, "miner", "apply_seconds"), 282.4 / 61.2, 1e-9);
    // 23 ms for 20 of 16 Mi values.
    within(
        number(&of, "merging_validator", "merge_seconds"),
        0.023 * 70.6e9 / 16_777_216.0 * 24.0 / 20.0,
        1e-9,
    );
    assert_eq!(number(&of, "merging_validator", "merged"), 24.0);
    // docs/validating.md: 19 MiB per billion parameters at most, twice for each seat on the disk; and three copies of
    // 8 bytes per parameter.
    let held = 2.0 * 24.0 * 70.6 * f64::from(19 << 20);
    within(number(&of, "merging_validator", "disk_bytes"), held + 3.0 * 8.0 * 70.6e9, 0.005);
    let kept = 64.0 * (24.0 * 1.345e9 + 12.29e9) + 4.0 * 8.0 * 70.6e9;
    within(number(&of, "merging_validator", "bucket_bytes"), kept, 0.001);
}

#[test]
fn memory_and_disk_are_bytes_per_parameter() {
    let of = plan(&PlanInput { parameters: 1_000_000_000, ..input() });
    assert_eq!(number(&of, "miner", "host_bytes"), 16e9);
    assert_eq!(number(&of, "miner", "command_host_bytes"), 28e9);
    assert_eq!(number(&of, "miner", "mapped_bytes"), 4e9);
    assert_eq!(number(&of, "miner", "device_bytes"), 18e9);
    assert_eq!(number(&of, "miner", "disk_bytes"), 80e9);
    // 32 times 8 MiB, and 4 MB per billion parameters.
    assert_eq!(number(&of, "merging_validator", "host_bytes"), 272_435_456.0);
    assert_eq!(number(&of, "merging_validator", "mapped_bytes"), 8e9);
    assert_eq!(number(&of, "evaluating_validator", "device_bytes"), 4e9 + f64::from(1 << 20));
    // 6 P per token, 512 sequences of 2,048 tokens in an hour.
    within(number(&of, "miner", "training_flop_per_second"), 6e9 * 512.0 * 2048.0 / 3600.0, 1e-9);
    // 24 seats: 64 own sequences before and after, 64 common ones after, and these before once; 2 P per token.
    let flop = (24.0 * 3.0 + 1.0) * 64.0 * 2048.0 * 2e9;
    within(number(&of, "evaluating_validator", "evaluation_flop"), flop, 1e-9);
}

#[test]
fn a_shape_adds_activations_and_attention() {
    let shape = ModelConfig::preset("8b").unwrap();
    let parameters = shape.parameters() as u64;
    let with = plan(&PlanInput { parameters, tokens: 8192, shape: Some(shape.clone()), ..input() });
    // The table of docs/gpu.md: 125.8 GiB, and 29.3 or 7.0 GiB for 8,192 tokens.
    let gib = |key| number(&with, "miner", key) / f64::from(1 << 30);
    within(gib("device_bytes"), 125.8, 0.001);
    within(gib("activation_bytes"), 29.3, 0.01);
    within(gib("activation_least_bytes"), 7.0, 0.01);
    within(number(&with, "miner", "training_flop"), shape.flops_per_token() * 512.0 * 8192.0, 1e-9);
    // The constant equals the estimate's.
    let device = "cuda:0,fused".parse().unwrap();
    let estimate = MemoryEstimate::new(&shape, &Recipe::default(), device);
    let state = estimate.weights + estimate.gradients + estimate.optimiser;
    assert_eq!(state, parameters * known::MINER_DEVICE.value as u64);
}

#[test]
fn ranks_have_whole_weights_and_divide_the_optimiser() {
    let shape = ModelConfig::preset("8b").unwrap();
    let parameters = shape.parameters() as u64;
    let eight = PlanInput { parameters, ranks: 8, ..input() };
    let of = plan(&PlanInput { shape: Some(shape.clone()), ..eight.clone() });
    // ADR 0050: 44.7 GiB on each GPU.
    let rank = number(&of, "miner", "rank_device_bytes");
    within(rank / f64::from(1 << 30), 44.7, 0.001);
    assert_eq!(number(&of, "miner", "device_bytes"), 8.0 * rank);
    assert_eq!(number(&of, "miner", "host_bytes"), 28.0 * parameters as f64);
    assert_eq!(number(&of, "miner", "rank_host_bytes"), 12.0 * parameters as f64 / 8.0);
    // The constants equal the estimate's.
    for (here, ranks) in [(1, 8), (3, 7), (1024, 1024)] {
        let refused = MemoryEstimate::check_rank_slices(&shape, here, ranks, Some(0)).unwrap_err();
        assert_eq!(
            rank_host_bytes(parameters, here as u32, ranks as u32),
            refused.needed,
            "{here} of {ranks}"
        );
    }
    // Without a shape the size of a layer is not known.
    assert_eq!(number(&plan(&eight), "miner", "rank_device_bytes"), 6.0 * parameters as f64);
}

/// The crate of the estimate does not check for overflow.
#[test]
fn the_memory_of_the_largest_model_is_counted_without_overflow() {
    let largest = ModelConfig {
        vocab: 130_561,
        d_model: 1 << 13,
        layers: 255,
        heads: 64,
        kv_heads: 64,
        d_ff: 1 << 15,
        seq_len: 1 << 20,
        ..ModelConfig::preset("8b").unwrap()
    };
    let parameters = largest.parameters() as u64;
    assert_eq!((parameters, largest.validate()), (ModelConfig::VALUES_MAX, Ok(())));
    let of = |micro_batch, device: &str| {
        let recipe = Recipe { micro_batch, ..Recipe::default() };
        MemoryEstimate::new(&largest, &recipe, device.parse().unwrap())
    };
    let one = of(1, "cuda:0,fused");
    assert_eq!([one.weights, one.gradients, one.optimiser], [6, 4, 8].map(|bytes| bytes * parameters));
    // A layer keeps its input in f32, gates and ups, and more.
    let tokens = 1u64 << 20;
    assert!(tokens * 255 * (4 * (1 << 13) + 4 * (1 << 15)) < one.activations);
    assert_eq!(of(8, "cuda:0,fused").activations, 8 * one.activations);
    assert!(18 * parameters < of(1, "cuda:0,fused,recompute=layers").total());
    assert!(of(1, "cuda:0,fused,recompute=layers").total() < one.total());
    assert!(16 * parameters < of(1, "cpu").total());
    let plan = plan(&PlanInput { parameters, tokens, shape: Some(largest.clone()), ..input() });
    assert_eq!(number(&plan, "miner", "device_bytes"), 18.0 * parameters as f64);
    let ranks = RANKS_MAX;
    let of = self::plan(&PlanInput { parameters, tokens, ranks, shape: Some(largest.clone()), ..input() });
    assert!(6.0 * parameters as f64 * f64::from(ranks) < number(&of, "miner", "device_bytes"));
}

#[test]
fn joiners_catch_up_while_windows_go_on() {
    let mut input = input();
    input.miner_link.down = 100 * MBIT;
    input.parameters = 1_000_000_000;
    let of = plan(&input);
    let update = of.sizes.update_bytes as f64;
    let net = 12.5e6 - update / 3600.0;
    within(number(&of, "joiner", "miner_seconds"), (4e9 + 20.0 * update) / net, 1e-9);
    // The processor is the limit: 0.87 s for 256 MiB.
    let rate = f64::from(256 << 20) / 0.87;
    within(
        number(&of, "joiner", "validator_seconds"),
        (8e9 + 20.0 * update) / (rate - update / 3600.0),
        1e-9,
    );

    input.miner_link.down = 350_000;
    let of = plan(&input);
    assert_eq!(number(&of, "joiner", "miner_seconds"), f64::INFINITY);
    assert!(!check(&of, "join").fits() && !of.fits());
}

#[test]
fn the_chain_s_share_is_that_of_its_benchmarks() {
    let of = plan(&PlanInput { miners: 1024, validators: 64, ..input() });
    // docs/benchmarks.md, "The chain": closing 60 ms and paying 149 ms; the runtime adds the probes.
    let epoch = number(&of, "chain", "epoch_seconds");
    assert!((0.209..0.26).contains(&epoch), "{epoch}");
    // 13, 34, 5 and 138 ms, and the small tasks.
    let tasks = number(&of, "chain", "tasks_seconds") - epoch / 10.0;
    assert!((0.190..0.24).contains(&tasks), "{tasks}");
    // A commitment of 0.7 ms, an attestation of 0.9, and their transactions.
    let calls = number(&of, "chain", "calls_seconds");
    assert!((1024.0 * 0.7e-3..1024.0 * 1.5e-3).contains(&calls), "{calls}");
    assert!(check(&of, "chain_room").fits() && check(&of, "chain_tasks").fits());
}

#[test]
fn an_attest_phase_of_four_blocks_has_one_to_ask_again() {
    for (blocks, fits) in [(3, false), (4, true)] {
        let mut input = input();
        input.params.schedule.attest_by = input.params.schedule.reveal_by + blocks;
        let (window, schedule) = (Window::FIRST, input.params.schedule);
        let deadlines = GatherDeadlines::of(&schedule, window);
        assert_eq!(deadlines.reveal_by < deadlines.give_up, fits);
        assert_eq!(check(&plan(&input), "attest_blocks").fits(), fits);
    }
}

#[test]
fn a_validator_of_a_model_above_200_billion_needs_more_than_a_gibibyte() {
    for (parameters, fits) in [(200_000_000_000, true), (202_000_000_000, false)] {
        let of = plan(&PlanInput { parameters, ..input() });
        assert_eq!(check(&of, "validator_memory").fits(), fits, "{parameters}");
    }
}

#[test]
fn a_network_of_fast_links_and_a_long_window_fits() {
    let of = plan(&input());
    let failing: Vec<_> = of.checks.iter().filter(|check| !check.fits()).collect();
    assert!(failing.is_empty(), "{failing:#?}");
    assert!(of.fits() && of.window_needed().is_none());
    assert!(of.checks.iter().all(|check| check.changes.is_empty()), "nothing to change");
}

/// Applies a change that a plan proposes.
fn changed(input: &PlanInput, change: &Change) -> Option<PlanInput> {
    let mut input = input.clone();
    match change {
        Change::Rate("--uplink", rate) => input.miner_link.up = *rate,
        Change::Rate("--downlink", rate) => input.miner_link.down = *rate,
        Change::Rate("--validator-uplink", rate) => input.validator_link.up = *rate,
        Change::Rate("--validator-downlink", rate) => input.validator_link.down = *rate,
        Change::Rate(flag, _) => panic!("there is no flag {flag}"),
        Change::Window(seconds) => {
            let blocks = (seconds * 1000.0 / input.block_milliseconds as f64).ceil() as u32;
            input.params.schedule = scaled(input.params.schedule, blocks);
        }
        Change::Other(_) => return None,
    }
    Some(input)
}

#[test]
fn each_limit_breaks_alone_and_every_change_that_is_proposed_mends_it() {
    let slow = |change: &dyn Fn(&mut PlanInput)| {
        let mut input = input();
        change(&mut input);
        input
    };
    let cases = [
        ("upload", slow(&|input| input.miner_link.up = 20 * MBIT)),
        ("update", slow(&|input| input.miner_link.down = 20 * MBIT)),
        ("no_waiting", slow(&|input| input.miner_link.down = 60 * MBIT)),
        ("gather_merged", slow(&|input| input.validator_link.down = 500 * MBIT)),
        ("gather_all", slow(&|input| (input.miners, input.validator_link.down) = (1000, 20 * GBIT))),
        ("attest_blocks", slow(&|input| input.params.schedule = scaled(RunParams::default().schedule, 30))),
        ("evaluations", slow(&|input| input.miners = 1000)),
        ("vote", slow(&|input| input.validator_link.up = 300 * MBIT)),
        ("copies", slow(&|input| input.validator_link.up = 300 * MBIT)),
        ("checkpoint", slow(&|input| input.validator_link.up = GBIT)),
        ("join", slow(&|input| input.miner_link.down = 20 * MBIT)),
        (
            "chain_room",
            slow(&|input| {
                (input.miners, input.validators) = (1024, 64);
                input.params.schedule = scaled(RunParams::default().schedule, 30);
                input.parameters = 1_000_000;
                input.block_milliseconds = 1;
            }),
        ),
    ];
    for (key, input) in cases {
        let found = check(&plan(&input), key);
        if key == "chain_room" {
            // The largest run fits even the shortest window.
            assert!(found.fits(), "{found:?}");
            continue;
        }
        assert!(!found.fits(), "{key}: {found:?}");
        assert!(1.0 < found.ratio(), "{key}");
        assert!(!found.changes.is_empty(), "{key} proposes nothing");
        for change in &found.changes {
            let Some(mended) = changed(&input, change) else { continue };
            let after = check(&plan(&mended), key);
            assert!(after.fits(), "{key} with {change:?}: {after:?}");
        }
    }
}

#[test]
fn a_window_that_the_plan_asks_for_mends_all_that_breaks() {
    let mut slow = input();
    slow.params.schedule = scaled(RunParams::default().schedule, 200);
    (slow.miners, slow.validators) = (1000, 64);
    slow.miner_link = Link { up: 110 * MBIT, down: 110 * MBIT };
    slow.validator_link = slow.miner_link;
    let of = plan(&slow);
    assert!(!of.fits());
    let window = of.window_needed().expect("longer than this one");
    let mended = changed(&slow, &Change::Window(window)).unwrap();
    let after = plan(&mended);
    let breaking: Vec<_> =
        after.checks.iter().filter(|check| !check.fits() && check.severity == Severity::Breaks).collect();
    assert!(breaking.is_empty(), "{breaking:#?}");
}

#[test]
fn a_model_beyond_today_s_limit_is_planned_and_does_not_fit() {
    let max = ModelConfig::VALUES_MAX;
    assert!(check(&plan(&PlanInput { parameters: max, ..input() }), "model_size").fits());
    let of = plan(&PlanInput { parameters: max + 1, ..input() });
    assert!(!check(&of, "model_size").fits() && !of.fits());
    assert_eq!(
        number(&plan(&PlanInput { parameters: 400_000_000_000, ..input() }), "miner", "host_bytes"),
        6.4e12
    );
}

#[test]
fn impossible_inputs_are_refused_with_the_formula() {
    #[track_caller]
    fn refused(change: impl FnOnce(&mut PlanInput), says: &str) {
        let mut input = input();
        change(&mut input);
        let error = Plan::new(&input).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    refused(
        |input| input.parameters = 0,
        "0 parameters: a plan is for 1 to 1099511627776 of them (4 · 2^38)",
    );
    refused(|input| input.parameters = PARAMETERS_MAX + 1, "1099511627777 parameters");
    refused(|input| input.parameters = u64::MAX, "18446744073709551615 parameters");
    refused(|input| input.miner_link.up = 0, "bytes over an uplink of 0 bit/s take");
    refused(|input| input.miner_link.down = 0, "over a downlink of 0 bit/s");
    refused(|input| input.validator_link.up = 0, "over a validator's uplink of 0 bit/s");
    refused(|input| input.validator_link.down = 0, "over a validator's downlink of 0 bit/s");
    refused(|input| input.miners = 0, "at least one miner and one validator");
    refused(|input| input.validators = 0, "at least one miner and one validator");
    refused(|input| input.ranks = 0, "0 ranks: a miner's seat has from 1 to 1024");
    refused(|input| input.ranks = u32::MAX, "4294967295 ranks");
    refused(
        |input| (input.miners, input.validators) = (1025, 64),
        "1025 miners + 64 validators = 1089 seats, and a run has at most 1088",
    );
    refused(|input| (input.miners, input.validators) = (u32::MAX, u32::MAX), "= 8589934590 seats");
    refused(
        |input| input.params.schedule = scaled(input.params.schedule, 29),
        "a window of 29 blocks of 6 s is too short: a run's windows have at least 30 blocks, here 180 s",
    );
    refused(|input| input.params.schedule.blocks_per_window = u32::MAX, "a plan is for at most 1000000");
    refused(|input| input.block_milliseconds = 0, "a block time of 0 ms");
    refused(|input| input.block_milliseconds = u64::MAX, "it is from 1 ms to 3600000 ms");
    refused(|input| input.tokens = 0, "a sequence of 0 tokens: it has from 1 to 1048576");
    refused(|input| input.tokens = u64::MAX, "a sequence of 18446744073709551615 tokens");
    refused(|input| input.params.density = Density(0), "the run's parameters are impossible");
    refused(|input| input.params.merge_density = Density(4097), "the run's parameters are impossible");
    refused(|input| input.params.schedule.vote_by = 1, "the run's parameters are impossible");
}

#[test]
fn the_largest_and_the_smallest_inputs_overflow_nothing() {
    let fast = Link { up: u64::MAX, down: u64::MAX };
    let slow = Link { up: 1, down: 1 };
    for link in [fast, slow] {
        for parameters in [1, ModelConfig::VALUES_MAX, PARAMETERS_MAX] {
            let mut input = PlanInput { parameters, miner_link: link, validator_link: link, ..input() };
            (input.miners, input.validators, input.ranks) = (1024, 64, RANKS_MAX);
            input.tokens = TOKENS_MAX;
            input.block_milliseconds = BLOCK_MILLISECONDS_MAX;
            input.params.sequences_per_seat = u32::MAX;
            input.params.evaluation_sequences = u32::MAX;
            input.params.checkpoint_windows = u32::MAX;
            (input.params.places, input.params.reserve_places) = (u16::MAX - 4, 4);
            input.params.schedule = scaled(input.params.schedule, BLOCKS_MAX);
            (input.params.density, input.params.merge_density) = (Density(4096), Density(4096));
            let of = plan(&input);
            let numbers = of.roles.iter().flat_map(|role| &role.rows).map(|row| row.value.number());
            assert!(numbers.into_iter().all(|number| 0.0 <= number), "{of:#?}");
        }
    }
}

#[test]
fn a_scaled_schedule_keeps_its_phases_shares() {
    let schedule = RunParams::default().schedule;
    assert_eq!(scaled(schedule, 115), schedule);
    for blocks in [30, 31, 59, 115, 200, 600, 1_000_000] {
        let scaled = scaled(schedule, blocks);
        assert!(scaled.is_valid(), "{scaled:?}");
        let share =
            |schedule: Schedule| f64::from(schedule.commit_by) / f64::from(schedule.blocks_per_window);
        assert!((share(scaled) - share(schedule)).abs() < 0.02, "{scaled:?}");
    }
}
