//! The plan of a run as a pure function: from the desired run to each role's needs, and whether they fit the window.

mod checks;

use super::{
    constants::{self as known, Constant},
    weight, wire,
};
use codec::Encode as _;
use daemon::config::RANKS_MAX;
use model::{ModelConfig, Recipe};
use nn::{Device, MemoryEstimate};
use protocol::{
    Digest, RunId, RunParams, Schedule, Terms, Uid, Window,
    contribution::SECTION_CHUNKS,
    ensure,
    params::{CHUNK_VALUES, Floors, ParamsError},
    view::{Verdict, Vote},
};
use serde::Serialize;

/// The desired run.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    pub parameters: u64,
    /// The model's shape, if known: it adds the activations.
    pub shape: Option<ModelConfig>,
    pub miners: u32,
    pub validators: u32,
    /// Processes that train a miner's seat together. Several have a GPU and one micro-batch per step each.
    pub ranks: u32,
    pub miner_link: Link,
    pub validator_link: Link,
    pub params: RunParams,
    pub block_milliseconds: u64,
    /// Tokens of a sequence.
    pub tokens: u64,
}

/// Rates in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    pub up: u64,
    pub down: u64,
}

/// Reason why no plan can be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("{parameters} parameters: a plan is for 1 to {PARAMETERS_MAX} of them (4 · 2^38)")]
    Parameters { parameters: u64 },
    #[error("{bytes} bytes over {name} of 0 bit/s take {bytes} · 8 / 0 seconds: it must be above zero")]
    Link { name: &'static str, bytes: u64 },
    #[error("{ranks} ranks: a miner's seat has from 1 to {RANKS_MAX}")]
    Ranks { ranks: u32 },
    #[error("there must be at least one miner and one validator")]
    NoSeats,
    #[error(
        "{miners} miners + {validators} validators = {} seats, and a run has at most {}",
        u64::from(*miners) + u64::from(*validators),
        weight::SEATS_MAX
    )]
    Seats { miners: u32, validators: u32 },
    #[error(
        "a window of {blocks} blocks of {} s is too short: a run's windows have at least {min} blocks, here {} s",
        seconds_of(*block_milliseconds),
        seconds_of(block_milliseconds.saturating_mul(u64::from(*min)))
    )]
    Window { blocks: u32, block_milliseconds: u64, min: u32 },
    #[error("a window of {blocks} blocks: a plan is for at most {BLOCKS_MAX}")]
    LongWindow { blocks: u32 },
    #[error("a block time of {block_milliseconds} ms: it is from 1 ms to {BLOCK_MILLISECONDS_MAX} ms")]
    BlockTime { block_milliseconds: u64 },
    #[error("a sequence of {tokens} tokens: it has from 1 to {TOKENS_MAX}")]
    Tokens { tokens: u64 },
    #[error("the run's parameters are impossible")]
    Params(#[from] ParamsError),
}

/// Maximum number of parameters: a plan is arithmetic, and exceeds the limit of today's runs.
pub const PARAMETERS_MAX: u64 = 4 * ModelConfig::VALUES_MAX;
/// The longest sequence of a model.
pub const TOKENS_MAX: u64 = 1 << 20;
const BLOCKS_MAX: u32 = 1_000_000;
/// An hour.
const BLOCK_MILLISECONDS_MAX: u64 = 3_600_000;

fn seconds_of(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// The needs of each role in a window, and whether they fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub sizes: Sizes,
    pub phases: Phases,
    pub roles: Vec<Role>,
    pub checks: Vec<Check>,
}

/// Sizes of a window's objects.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    pub contribution_bytes: u64,
    pub contribution_largest_bytes: u64,
    pub contribution_bits_per_value: f64,
    pub update_bytes: u64,
    pub update_bits_per_value: f64,
    /// Weights in f32.
    pub weights_bytes: u64,
}

/// Durations of a window's phases, in seconds (PROT-1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phases {
    pub window: f64,
    /// Time until the commit deadline. Training continues after it with the next window's data.
    pub commit: f64,
    pub reveal: f64,
    pub attest: f64,
    pub vote: f64,
    /// Time until the next window opens.
    pub finalise: f64,
}

/// A role's rows, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    pub key: &'static str,
    pub title: &'static str,
    pub rows: Vec<Row>,
}

impl Role {
    /// Returns the bytes of a row; 0 without such a row.
    pub fn bytes(&self, key: &str) -> u64 {
        match self.rows.iter().find(|row| row.key == key).map(|row| row.value) {
            Some(Value::Bytes(bytes)) => bytes,
            _ => 0,
        }
    }
}

/// One number of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name in JSON, which ends in its unit.
    pub key: &'static str,
    pub label: String,
    pub value: Value,
    pub from: Vec<Constant>,
}

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Bytes(u64),
    /// `None`: infinite.
    Seconds(Option<f64>),
    BitsPerSecond(u64),
    Flop(f64),
    FlopPerSecond(f64),
    Count(u64),
    /// From 0 to 1; above 1 if it does not fit.
    Share(f64),
}

/// Comparison of a need with the available time or another limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Its name in JSON.
    pub key: &'static str,
    pub role: &'static str,
    pub what: String,
    pub needs: Value,
    pub has: Value,
    pub severity: Severity,
    /// Consequence if it does not fit.
    pub otherwise: &'static str,
    /// Changes that would make it fit; empty if it does.
    pub changes: Vec<Change>,
}

/// Consequence of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The run does not work.
    Breaks,
    /// The run works, with a loss.
    Costs,
}

/// A change that would make a check pass, alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A link of at least this many bits per second, by its flag.
    Rate(&'static str, u64),
    /// A window of at least this many seconds, with the phases' shares as they are.
    Window(f64),
    Other(String),
}

impl Check {
    pub fn fits(&self) -> bool {
        self.needs.number() <= self.has.number()
    }

    /// Returns the ratio of the need to the limit; infinite if nothing is available.
    pub fn ratio(&self) -> f64 {
        self.needs.number() / self.has.number().max(0.0)
    }
}

impl Value {
    /// Returns the number in its unit, possibly infinite.
    pub fn number(self) -> f64 {
        match self {
            Value::Bytes(value) | Value::BitsPerSecond(value) | Value::Count(value) => value as f64,
            Value::Seconds(value) => value.unwrap_or(f64::INFINITY),
            Value::Flop(value) | Value::FlopPerSecond(value) | Value::Share(value) => value,
        }
    }
}

impl Plan {
    /// Computes the plan.
    ///
    /// # Errors
    /// If a number is impossible, with the formula that it violates.
    pub fn new(input: &PlanInput) -> Result<Plan, PlanError> {
        check_input(input)?;
        let context = Context::new(input);
        Ok(Plan {
            sizes: context.sizes,
            phases: context.phases,
            roles: vec![
                context.miner(),
                context.merging_validator(),
                context.evaluating_validator(),
                context.joiner(),
                context.mirror(),
                context.chain(),
            ],
            checks: context.checks(),
        })
    }

    /// Returns only the roles of seats, even for a run whose windows are too short for a plan, as on a development
    /// chain.
    pub fn seat_roles(input: &PlanInput) -> [Role; 3] {
        let context = Context::new(input);
        [context.miner(), context.merging_validator(), context.evaluating_validator()]
    }

    /// Returns whether no check breaks the run.
    pub fn fits(&self) -> bool {
        self.checks.iter().all(|check| check.fits() || check.severity == Severity::Costs)
    }

    /// Returns the shortest window, in seconds, that passes all checks that depend on its length; `None` if this one
    /// does.
    pub fn window_needed(&self) -> Option<f64> {
        let failing = self.checks.iter().filter(|check| !check.fits() && check.severity == Severity::Breaks);
        let windows = failing.flat_map(|check| &check.changes).filter_map(|change| match change {
            Change::Window(seconds) => Some(*seconds),
            _ => None,
        });
        windows.fold(None, |longest, seconds| Some(seconds.max(longest.unwrap_or(0.0))))
    }
}

/// Returns a schedule of this many blocks with the phases of another one.
pub fn scaled(schedule: Schedule, blocks: u32) -> Schedule {
    let of = u64::from(schedule.blocks_per_window.max(1));
    let scale = |offset: u32| {
        let scaled = (u64::from(offset) * u64::from(blocks) + of / 2) / of;
        u32::try_from(scaled).unwrap_or(u32::MAX)
    };
    Schedule {
        start: schedule.start,
        blocks_per_window: blocks,
        commit_by: scale(schedule.commit_by),
        reveal_by: scale(schedule.reveal_by),
        attest_by: scale(schedule.attest_by),
        vote_by: scale(schedule.vote_by),
    }
}

fn check_input(input: &PlanInput) -> Result<(), PlanError> {
    let &PlanInput { parameters, miners, validators, ranks, block_milliseconds, tokens, .. } = input;
    ensure!((1..=PARAMETERS_MAX).contains(&parameters), PlanError::Parameters { parameters });
    ensure!(0 < miners && 0 < validators, PlanError::NoSeats);
    let seats = u64::from(miners) + u64::from(validators);
    ensure!(seats <= u64::from(weight::SEATS_MAX), PlanError::Seats { miners, validators });
    ensure!((1..=RANKS_MAX).contains(&ranks), PlanError::Ranks { ranks });
    let possible = (1..=BLOCK_MILLISECONDS_MAX).contains(&block_milliseconds);
    ensure!(possible, PlanError::BlockTime { block_milliseconds });
    ensure!((1..=TOKENS_MAX).contains(&tokens), PlanError::Tokens { tokens });
    let (blocks, min) = (input.params.schedule.blocks_per_window, Floors::default().blocks_per_window);
    ensure!(min <= blocks, PlanError::Window { blocks, block_milliseconds, min });
    ensure!(blocks <= BLOCKS_MAX, PlanError::LongWindow { blocks });
    input.params.validate()?;
    let contribution = wire::body_bytes(parameters, input.params.density);
    let update = wire::body_bytes(parameters, input.params.merge_density);
    for (name, rate, bytes) in [
        ("an uplink", input.miner_link.up, contribution),
        ("a downlink", input.miner_link.down, update),
        ("a validator's uplink", input.validator_link.up, update),
        ("a validator's downlink", input.validator_link.down, contribution),
    ] {
        ensure!(0 < rate, PlanError::Link { name, bytes });
    }
    Ok(())
}

/// The input of all roles' computations.
struct Context<'a> {
    input: &'a PlanInput,
    sizes: Sizes,
    phases: Phases,
    /// Duration of a block, in seconds.
    block: f64,
    /// Number of merged contributions.
    selected: u64,
    /// Number of contributions that a validator fetches: those of all seats, as each has a weight (PROT-13).
    fetched: u64,
}

impl Context<'_> {
    fn new(input: &PlanInput) -> Context<'_> {
        let PlanInput { parameters, params, .. } = input;
        let block = seconds_of(input.block_milliseconds);
        let Schedule { blocks_per_window, commit_by, reveal_by, attest_by, vote_by, .. } = params.schedule;
        let between = |from: u32, to: u32| f64::from(to.saturating_sub(from)) * block;
        let places = u64::from(params.places) + u64::from(params.reserve_places);
        Context {
            input,
            sizes: Sizes {
                contribution_bytes: wire::body_bytes(*parameters, params.density),
                contribution_largest_bytes: wire::largest_bytes(*parameters, params.density),
                contribution_bits_per_value: wire::bits_per_value(params.density),
                update_bytes: wire::body_bytes(*parameters, params.merge_density),
                update_bits_per_value: wire::bits_per_value(params.merge_density),
                weights_bytes: 4 * parameters,
            },
            phases: Phases {
                window: between(0, blocks_per_window),
                commit: between(0, commit_by),
                reveal: between(commit_by, reveal_by),
                attest: between(reveal_by, attest_by),
                vote: between(attest_by, vote_by),
                finalise: between(vote_by, blocks_per_window),
            },
            block,
            selected: places.min(input.miners.into()),
            fetched: input.miners.into(),
        }
    }

    fn per_parameter(&self, constant: Constant) -> u64 {
        (self.input.parameters as f64 * constant.value).round() as u64
    }

    /// Returns the duration of a kernel over the dense vector, in seconds.
    fn dense(&self, constant: Constant) -> f64 {
        self.sizes.weights_bytes as f64 / constant.value
    }

    fn merge_seconds(&self) -> f64 {
        known::MERGE.value * self.input.parameters as f64 * self.selected as f64
    }

    /// Returns the size of the update's upload and a copy of each selected contribution, in bytes.
    fn mirrored_bytes(&self) -> u64 {
        self.selected * self.sizes.contribution_bytes + self.sizes.update_bytes
    }

    /// Returns the size of weights and merge buffer in pieces, in bytes.
    fn checkpoint_bytes(&self) -> u64 {
        2 * self.sizes.weights_bytes
    }

    fn bucket_bytes(&self) -> u64 {
        let windows = known::WINDOWS_KEPT.value as u64;
        let checkpoints = windows.div_ceil(self.input.params.checkpoint_windows.max(1).into()).max(1);
        windows * self.mirrored_bytes() + checkpoints * self.checkpoint_bytes()
    }

    /// Returns the number of contributions that a validator must measure per window: the selected ones, and each
    /// other seat in rotation (PROT-28).
    fn evaluations(&self) -> u64 {
        let others = self.fetched.saturating_sub(self.selected);
        let turns = others.div_ceil(self.input.params.evaluation_wait_max.max(1).into());
        (self.selected + turns).min(self.fetched)
    }

    /// Returns the work of the forward passes of `contributions` measurements: own sequences before and after, common
    /// ones after, and the common ones before once.
    fn evaluation_flop(&self, contributions: u64) -> f64 {
        let sequences = u64::from(self.input.params.evaluation_sequences);
        let passes = (3 * contributions + 1) as f64 * sequences as f64;
        passes * self.input.tokens as f64 * known::FORWARD.value * self.input.parameters as f64
    }

    fn training_flop(&self) -> f64 {
        let tokens = u64::from(self.input.params.sequences_per_seat) as f64 * self.input.tokens as f64;
        match &self.input.shape {
            Some(shape) => {
                // With this plan's sequence length.
                let shape = ModelConfig { seq_len: self.input.tokens as usize, ..shape.clone() };
                shape.flops_per_token() * tokens
            }
            None => known::TRAIN.value * self.input.parameters as f64 * tokens,
        }
    }

    fn data_bytes(&self) -> u64 {
        // A token takes at most four bytes, and a stored sequence has one more than the model reads.
        u64::from(self.input.params.sequences_per_seat) * (self.input.tokens + 1) * 4
    }

    fn miner(&self) -> Role {
        let link = self.input.miner_link;
        let Sizes { contribution_bytes, update_bytes, .. } = self.sizes;
        let flop = self.training_flop();
        let mut rows = vec![
            row(
                "upload_bytes",
                "uploads: its contribution",
                Value::Bytes(contribution_bytes),
                &[known::WIRE],
            ),
            row("upload_seconds", "… over its uplink", transfer(contribution_bytes, link.up), &[known::WIRE]),
            row("download_bytes", "downloads: the update", Value::Bytes(update_bytes), &[known::WIRE]),
            row("download_seconds", "… over its downlink", transfer(update_bytes, link.down), &[known::WIRE]),
            row("data_bytes", "training data, at most", Value::Bytes(self.data_bytes()), &[]),
            row(
                "encode_seconds",
                "encodes its contribution",
                seconds(self.dense(known::ENCODE)),
                &[known::ENCODE],
            ),
            row("apply_seconds", "applies the update", seconds(self.dense(known::APPLY)), &[known::APPLY]),
            row("training_flop", "training of all its sequences", Value::Flop(flop), &[known::TRAIN]),
            row(
                "training_flop_per_second",
                "… which needs a sustained rate of",
                Value::FlopPerSecond(flop / self.phases.window),
                &[known::TRAIN],
            ),
        ];
        rows.extend(self.device_rows());
        if let Some([all, recomputed]) = self.activations() {
            let value = Value::Bytes(all);
            rows.push(row(
                "activation_bytes",
                "… activations of one sequence",
                value,
                &[known::MINER_DEVICE],
            ));
            let value = Value::Bytes(recomputed);
            rows.push(row(
                "activation_least_bytes",
                "… the same, recomputed by layer",
                value,
                &[known::MINER_DEVICE],
            ));
        }
        rows.extend(self.host_rows());
        rows.extend([
            row(
                "mapped_bytes",
                "mapped files",
                Value::Bytes(self.per_parameter(known::MINER_MODEL)),
                &[known::MINER_MODEL],
            ),
            row(
                "disk_bytes",
                "disk",
                Value::Bytes(self.per_parameter(known::MINER_DISK)),
                &[known::MINER_DISK],
            ),
            row("chain_bytes", "on the chain, about", Value::Bytes(call_bytes(&commit_arguments())), &[]),
        ]);
        Role { key: "miner", title: "Miner", rows }
    }

    /// Returns the memory of the devices: of one, or of the ranks' GPUs.
    fn device_rows(&self) -> Vec<Row> {
        let ranks = u64::from(self.input.ranks);
        if ranks == 1 {
            let bytes = Value::Bytes(self.per_parameter(known::MINER_DEVICE));
            return vec![row(
                "device_bytes",
                "devices: weights, gradients, moments",
                bytes,
                &[known::MINER_DEVICE],
            )];
        }
        let gradient = self.rank_gradient();
        let rank = self.per_parameter(known::RANK_DEVICE) + gradient.unwrap_or(0);
        let (all, each) = match gradient {
            Some(_) => ("devices: weights, a layer's gradient", "… of each rank"),
            None => ("devices: weights", "… of each rank, without its gradient"),
        };
        vec![
            row("device_bytes", all, Value::Bytes(ranks * rank), &[known::RANK_DEVICE]),
            row("rank_device_bytes", each, Value::Bytes(rank), &[known::RANK_DEVICE]),
        ]
    }

    /// Returns the gradient that a rank's GPU holds with one micro-batch per step: that of one layer and of the
    /// embedding. Unknown without the model's shape.
    fn rank_gradient(&self) -> Option<u64> {
        let shape = self.input.shape.as_ref()?;
        let ranks = self.input.ranks as usize;
        let recipe = Recipe { batch: ranks, micro_batch: 1, ..Recipe::default() };
        let device: Device = "cuda:0,fused".parse().ok()?;
        Some(MemoryEstimate::new(shape, &recipe, device).of_rank(shape, &recipe, device, ranks).gradients)
    }

    /// Returns a miner's own memory over all its machines.
    fn host_rows(&self) -> Vec<Row> {
        let PlanInput { parameters, ranks, .. } = *self.input;
        let host = self.per_parameter(known::MINER_HOST);
        let label = "host memory beside mapped files";
        if ranks == 1 {
            let command = host + self.per_parameter(known::MINER_COMMAND);
            return vec![
                row("host_bytes", label, Value::Bytes(host), &[known::MINER_HOST]),
                row(
                    "command_host_bytes",
                    "… with engine = \"command\"",
                    Value::Bytes(command),
                    &[known::MINER_HOST, known::MINER_COMMAND],
                ),
            ];
        }
        let of = |here| rank_host_bytes(parameters, here, ranks);
        let (all, each) = (Value::Bytes(of(ranks)), Value::Bytes(of(1)));
        vec![
            row("host_bytes", label, Value::Bytes(host + of(ranks)), &[known::MINER_HOST, known::RANK_HOST]),
            row("ranks_host_bytes", "… of that, gradients and moments", all, &[known::RANK_HOST]),
            row("rank_host_bytes", "… for each rank", each, &[known::RANK_HOST]),
        ]
    }

    /// Returns the activations and work space of one sequence on a device with the fused engine in bf16: kept, and
    /// recomputed by layer.
    fn activations(&self) -> Option<[u64; 2]> {
        let shape = self.input.shape.as_ref()?;
        let shape = ModelConfig { seq_len: self.input.tokens as usize, ..shape.clone() };
        let recipe = Recipe { micro_batch: 1, ..Recipe::default() };
        let of = |device: &str| {
            let device: Device = device.parse().ok()?;
            let estimate = MemoryEstimate::new(&shape, &recipe, device);
            Some(estimate.total() - estimate.weights - estimate.gradients - estimate.optimiser)
        };
        Some([of("cuda:0,fused")?, of("cuda:0,fused,recompute=layers")?])
    }

    fn merging_validator(&self) -> Role {
        let link = self.input.validator_link;
        let fetched = self.fetched * self.sizes.contribution_bytes;
        let held = 2 * self.fetched * self.sizes.contribution_largest_bytes;
        let model = self.per_parameter(known::VALIDATOR_STATE);
        let own = self.validator_bytes();
        let disk = model * known::VALIDATOR_COPIES.value as u64 + held;
        let rows = vec![
            row("fetched", "fetches the contributions of seats", Value::Count(self.fetched), &[]),
            row("fetched_bytes", "downloads: contributions", Value::Bytes(fetched), &[known::WIRE]),
            row("fetched_seconds", "… over its downlink", transfer(fetched, link.down), &[known::WIRE]),
            row(
                "check_seconds",
                "checks them as they arrive",
                seconds(self.fetched as f64 * self.dense(known::CHECK)),
                &[known::CHECK],
            ),
            row("merged", "merges", Value::Count(self.selected), &[]),
            row("merge_seconds", "… which takes", seconds(self.merge_seconds()), &[known::MERGE]),
            row("update_bytes", "uploads: the update", Value::Bytes(self.sizes.update_bytes), &[known::WIRE]),
            row(
                "update_seconds",
                "… over its uplink",
                transfer(self.sizes.update_bytes, link.up),
                &[known::WIRE],
            ),
            row(
                "copies_bytes",
                "uploads: copies of those merged",
                Value::Bytes(self.selected * self.sizes.contribution_bytes),
                &[known::WIRE],
            ),
            row(
                "checkpoint_bytes",
                "uploads per checkpoint",
                Value::Bytes(self.checkpoint_bytes()),
                &[known::VALIDATOR_STATE],
            ),
            row(
                "checkpoint_seconds",
                "… over its uplink",
                transfer(self.checkpoint_bytes(), link.up),
                &[known::VALIDATOR_STATE],
            ),
            row(
                "host_bytes",
                "memory beside mapped files, about",
                Value::Bytes(own),
                &[known::VALIDATOR_HOST, known::VALIDATOR_LISTS],
            ),
            row("mapped_bytes", "mapped files", Value::Bytes(model), &[known::VALIDATOR_STATE]),
            row("disk_bytes", "disk", Value::Bytes(disk), &[known::VALIDATOR_STATE, known::VALIDATOR_COPIES]),
            row("bucket_bytes", "its bucket", Value::Bytes(self.bucket_bytes()), &[known::WINDOWS_KEPT]),
            row("chain_bytes", "on the chain, about", Value::Bytes(self.validator_calls()), &[]),
        ];
        Role { key: "merging_validator", title: "Validator that merges", rows }
    }

    /// Returns the memory of a validator that merges, beside mapped files.
    fn validator_bytes(&self) -> u64 {
        let gathers = (known::VALIDATOR_HOST.value as u64).min(32 * self.sizes.contribution_largest_bytes);
        gathers + self.per_parameter(known::VALIDATOR_LISTS)
    }

    fn evaluating_validator(&self) -> Role {
        let needed = self.evaluations();
        let flop = self.evaluation_flop(needed);
        let section = 4 * (SECTION_CHUNKS * CHUNK_VALUES) as u64;
        let rows = vec![
            row("evaluations", "has to measure contributions", Value::Count(needed), &[]),
            row("evaluation_flop", "forward passes of these", Value::Flop(flop), &[known::FORWARD]),
            row(
                "evaluation_flop_per_second",
                "… which need a sustained rate of",
                Value::FlopPerSecond(flop / self.phases.window),
                &[known::FORWARD],
            ),
            row(
                "device_bytes",
                "device: weights and one section",
                Value::Bytes(self.per_parameter(known::EVALUATOR_DEVICE) + section),
                &[known::EVALUATOR_DEVICE],
            ),
            row(
                "host_bytes",
                "memory on top",
                Value::Bytes(self.per_parameter(known::EVALUATOR_HOST)),
                &[known::EVALUATOR_HOST],
            ),
        ];
        Role { key: "evaluating_validator", title: "Validator that evaluates, on top", rows }
    }

    fn joiner(&self) -> Role {
        let params = self.input.params;
        let updates = u64::from(params.checkpoint_windows).saturating_mul(self.sizes.update_bytes);
        let rows = vec![
            row("miner_bytes", "a miner downloads: weights", Value::Bytes(self.sizes.weights_bytes), &[]),
            row(
                "validator_bytes",
                "a validator: weights and buffer",
                Value::Bytes(self.checkpoint_bytes()),
                &[known::VALIDATOR_STATE],
            ),
            row("updates_bytes", "updates since, at most", Value::Bytes(updates), &[known::WIRE]),
            row(
                "miner_seconds",
                "a miner has joined after, at most",
                self.join(self.input.miner_link.down, 1),
                &[known::JOIN],
            ),
            row(
                "validator_seconds",
                "a validator, at most",
                self.join(self.input.validator_link.down, 2),
                &[known::JOIN],
            ),
            row(
                "memory_bytes",
                "memory while it joins",
                Value::Bytes(known::JOIN_MEMORY.value as u64),
                &[known::JOIN_MEMORY],
            ),
        ];
        Role { key: "joiner", title: "Joiner", rows }
    }

    /// Returns the duration of a join with `rows` rows of values and all updates since the checkpoint, while each
    /// window adds one.
    fn join(&self, down: u64, rows: u64) -> Value {
        let rate = (down as f64 / 8.0).min(known::JOIN.value);
        let updates = f64::from(self.input.params.checkpoint_windows) * self.sizes.update_bytes as f64;
        let bytes = (rows * self.sizes.weights_bytes) as f64 + updates;
        let net = rate - self.sizes.update_bytes as f64 / self.phases.window;
        Value::Seconds((0.0 < net).then(|| bytes / net))
    }

    fn mirror(&self) -> Role {
        let readers = u64::from(self.input.miners) + u64::from(self.input.validators) - 1;
        let all = readers * self.sizes.update_bytes;
        let out = all / u64::from(self.input.validators);
        let rate = out as f64 * 8.0 / self.phases.window;
        let rows = vec![
            row("served_bytes", "serves the update to its share", Value::Bytes(out), &[known::WIRE]),
            row("served_bits_per_second", "… on average", Value::BitsPerSecond(rate as u64), &[known::WIRE]),
            row("all_served_bytes", "all mirrors together", Value::Bytes(all), &[known::WIRE]),
            row("stored_bytes", "stores", Value::Bytes(self.bucket_bytes()), &[known::WINDOWS_KEPT]),
        ];
        Role { key: "mirror", title: "Mirror: a validator's bucket", rows }
    }

    fn active_set(&self) -> u64 {
        u64::from(self.input.validators).min(Terms::default().active_set_max.into())
    }

    /// Returns the weights of a window's tasks and of its calls, in picoseconds.
    fn chain_weights(&self) -> [u64; 2] {
        let (miners, validators) = (u64::from(self.input.miners), u64::from(self.input.validators));
        let epoch = self.input.params.epoch_windows.into();
        [
            weight::tasks(miners, validators, self.active_set(), epoch),
            weight::calls(miners, validators, epoch),
        ]
    }

    fn chain(&self) -> Role {
        let (miners, validators) = (u64::from(self.input.miners), u64::from(self.input.validators));
        let [tasks, calls] = self.chain_weights();
        let blocks = u64::from(self.input.params.schedule.blocks_per_window);
        let share = (tasks + calls) as f64 / (blocks as f64 * weight::BLOCK as f64);
        let epoch = weight::epoch(miners, validators, self.input.params.epoch_windows.into());
        let bytes = miners * call_bytes(&commit_arguments()) + validators * self.validator_calls();
        let of = |picoseconds: u64| seconds(picoseconds as f64 / 1e12);
        let rows = vec![
            row("calls", "calls", Value::Count(miners + 3 * validators), &[]),
            row("calls_seconds", "… weigh", of(calls), &[known::CHAIN]),
            row("tasks_seconds", "scheduled tasks weigh", of(tasks), &[known::CHAIN]),
            row("block_share", "share of the window's blocks", Value::Share(share), &[known::CHAIN]),
            row("epoch_seconds", "an epoch's end weighs", of(epoch), &[known::CHAIN]),
            row("calls_bytes", "bytes of the calls, about", Value::Bytes(bytes), &[]),
        ];
        Role { key: "chain", title: "Chain", rows }
    }

    /// Returns the size of a validator's calls in a window, in bytes.
    fn validator_calls(&self) -> u64 {
        let miners = u16::try_from(self.input.miners).unwrap_or(u16::MAX);
        let verdicts: Vec<(Uid, Verdict)> = (0..miners).map(|uid| (Uid(uid), Verdict::Valid)).collect();
        let head = (RunId::default(), Window::FIRST);
        let attest = (head, verdicts, Digest::default()).encode();
        let vote = (head, Vote { update: Digest::default(), state_root: None }).encode();
        let anchor = (head, Digest::default(), Digest::default()).encode();
        [attest, vote, anchor].iter().map(|arguments| call_bytes(arguments)).sum()
    }
}

/// Returns the bytes that `here` of a seat's `ranks` ranks on GPUs keep in the memory of their machine.
pub fn rank_host_bytes(parameters: u64, here: u32, ranks: u32) -> u64 {
    known::RANK_HOST.value as u64 * (parameters / u64::from(ranks.max(1))) * u64::from(here)
}

fn row(key: &'static str, label: &str, value: Value, from: &[Constant]) -> Row {
    Row { key, label: label.into(), value, from: from.to_vec() }
}

fn seconds(value: f64) -> Value {
    Value::Seconds(Some(value))
}

fn seconds_for(bytes: u64, bits_per_second: u64) -> f64 {
    bytes as f64 * 8.0 / bits_per_second as f64
}

fn transfer(bytes: u64, bits_per_second: u64) -> Value {
    seconds(seconds_for(bytes, bits_per_second))
}

/// Size of a signed transaction beside its call's arguments, in bytes: length, version, address, signature, era,
/// nonce, tip, mode, and the numbers of pallet and call.
const TRANSACTION_BYTES: u64 = 4 + 1 + 33 + 65 + 2 + 4 + 1 + 2;

fn call_bytes(arguments: &[u8]) -> u64 {
    TRANSACTION_BYTES + arguments.len() as u64
}

fn commit_arguments() -> Vec<u8> {
    (RunId::default(), Window::FIRST, Digest::default()).encode()
}

#[cfg(test)]
mod tests;
