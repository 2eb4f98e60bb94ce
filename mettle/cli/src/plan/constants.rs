//! The constants of a plan, each with its source. To correct a plan, correct them here.

use serde::Serialize;

/// A number with its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Constant {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub basis: Basis,
    /// A page of this repository, and its section.
    pub source: &'static str,
}

/// Basis of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// A command's output on the machine that the source names.
    Measured,
    /// A consequence of a format or a formula.
    Formula,
    /// A default that a node's owner may change.
    Setting,
    /// A design limit of the program.
    Bound,
}

/// Computes `e ← βe + Δ`, encodes, subtracts the sent values.
pub const ENCODE: Constant = Constant {
    name: "encode, bytes of f32 per second, 2 threads",
    value: 12.4e9,
    unit: "B/s",
    basis: Basis::Measured,
    source: "benchmarks.md, The kernels",
};

/// Decodes an update and applies it to the weights.
pub const APPLY: Constant = Constant {
    name: "decode and apply, bytes of f32 per second, 2 threads",
    value: 61.2e9,
    unit: "B/s",
    basis: Basis::Measured,
    source: "benchmarks.md, The kernels",
};

/// Decodes a contribution to norms, which checks it.
pub const CHECK: Constant = Constant {
    name: "check a contribution, bytes of f32 per second, 2 threads",
    value: 236e9,
    unit: "B/s",
    basis: Basis::Measured,
    source: "benchmarks.md, The kernels",
};

/// Merges 20 contributions: 23 ms for 16 Mi values.
pub const MERGE: Constant = Constant {
    name: "merge, per value and contribution, 2 threads",
    value: 0.023 / 16_777_216.0 / 20.0,
    unit: "s",
    basis: Basis::Measured,
    source: "benchmarks.md, The kernels",
};

/// Receives, checks and writes the pieces of a checkpoint: 0.87 s of processor time for 256 MiB from three mirrors.
pub const JOIN: Constant = Constant {
    name: "join, bytes per second of processor time",
    value: 268_435_456.0 / 0.87,
    unit: "B/s",
    basis: Basis::Measured,
    source: "benchmarks.md, Joining from a checkpoint",
};

pub const JOIN_MEMORY: Constant = Constant {
    name: "memory of a join",
    value: 25.0 * 1_048_576.0,
    unit: "B",
    basis: Basis::Measured,
    source: "benchmarks.md, Joining from a checkpoint",
};

/// Multiplications and additions of training, per parameter and token; attention comes on top.
pub const TRAIN: Constant = Constant {
    name: "training, per parameter and token",
    value: 6.0,
    unit: "FLOP",
    basis: Basis::Formula,
    source: "gpu.md, Speed",
};

/// A forward pass.
pub const FORWARD: Constant = Constant {
    name: "forward pass, per parameter and token",
    value: 2.0,
    unit: "FLOP",
    basis: Basis::Formula,
    source: "gpu.md, Speed",
};

/// A miner's own memory, besides its device: the residual (4), and the largest simultaneous need beside it. While a
/// snapshot is read, that is a second residual (4) and the moments (8). At a rebase it is the weights at the start
/// and the end of training ahead (4 each), and with `residual_share` those at the window's start (4).
pub const MINER_HOST: Constant = Constant {
    name: "miner's host memory beside mapped files, per parameter",
    value: 16.0,
    unit: "B",
    basis: Basis::Formula,
    source: "scaling.md, Memory by role",
};

/// The model in f32: from 32 Mi values on a mapped file, which the system may drop.
pub const MINER_MODEL: Constant = Constant {
    name: "miner's model, per parameter",
    value: 4.0,
    unit: "B",
    basis: Basis::Formula,
    source: "training.md, Files and crash recovery",
};

/// The miner's copy of weights and moments that the program of `engine = "command"` trains.
pub const MINER_COMMAND: Constant = Constant {
    name: "host memory with engine = \"command\", on top, per parameter",
    value: 12.0,
    unit: "B",
    basis: Basis::Formula,
    source: "trainers.md, Settings",
};

/// Weights, gradients and moments in bf16 training, on one device.
pub const MINER_DEVICE: Constant = Constant {
    name: "training state on the device, per parameter",
    value: 18.0,
    unit: "B",
    basis: Basis::Formula,
    source: "gpu.md, Memory",
};

/// Weights of one of several ranks in bf16 training. With several micro-batches per step a whole gradient, 4 B, is on
/// the device too.
pub const RANK_DEVICE: Constant = Constant {
    name: "weights on a rank's device, per parameter",
    value: 6.0,
    unit: "B",
    basis: Basis::Formula,
    source: "ranks.md, Memory and traffic",
};

/// The gradients' sum and the moments, divided among the ranks.
pub const RANK_HOST: Constant = Constant {
    name: "host memory of all ranks on GPUs, on top, per parameter",
    value: 12.0,
    unit: "B",
    basis: Basis::Formula,
    source: "ranks.md, Memory and traffic",
};

pub const MINER_DISK: Constant = Constant {
    name: "miner's disk, per parameter",
    value: 80.0,
    unit: "B",
    basis: Basis::Formula,
    source: "training.md, Files and crash recovery",
};

/// Memory of a validator that merges, beside what the system can drop.
pub const VALIDATOR_HOST: Constant = Constant {
    name: "merging validator's memory beside mapped files",
    value: 32.0 * 8_388_608.0,
    unit: "B",
    basis: Basis::Formula,
    source: "validating.md, Resources",
};

/// The validator's lists of sections, chunks and pieces: 4 MB per billion parameters.
pub const VALIDATOR_LISTS: Constant = Constant {
    name: "merging validator's lists, on top, per parameter",
    value: 0.004,
    unit: "B",
    basis: Basis::Formula,
    source: "benchmarks.md, A large model",
};

/// Weights and merge buffer.
pub const VALIDATOR_STATE: Constant = Constant {
    name: "validator's model, per parameter",
    value: 8.0,
    unit: "B",
    basis: Basis::Formula,
    source: "training.md, Files and crash recovery",
};

/// The model, its predecessor, and the model being written.
pub const VALIDATOR_COPIES: Constant = Constant {
    name: "copies of the validator's model on its disk",
    value: 3.0,
    unit: "",
    basis: Basis::Formula,
    source: "training.md, Files and crash recovery",
};

/// Weights in f32, to which a contribution is applied section by section.
pub const EVALUATOR_DEVICE: Constant = Constant {
    name: "weights on an evaluator's device, per parameter",
    value: 4.0,
    unit: "B",
    basis: Basis::Bound,
    source: "scaling.md, Memory by role",
};

/// The window's weights, and the measured contribution.
pub const EVALUATOR_HOST: Constant = Constant {
    name: "evaluating validator's memory on top, per parameter",
    value: 4.3,
    unit: "B",
    basis: Basis::Formula,
    source: "scaling.md, Memory by role",
};

pub const WINDOWS_KEPT: Constant = Constant {
    name: "windows kept in a bucket",
    value: 64.0,
    unit: "",
    basis: Basis::Setting,
    source: "validating.md, Resources",
};

pub const EVALUATIONS_MAX: Constant = Constant {
    name: "contributions measured in a window, at most",
    value: 64.0,
    unit: "",
    basis: Basis::Setting,
    source: "validating.md, Settings",
};

pub const COMMIT_MARGIN: Constant = Constant {
    name: "blocks before the deadline at which training stops",
    value: 3.0,
    unit: "",
    basis: Basis::Setting,
    source: "taking-part.md, A seat",
};

pub const AHEAD: Constant = Constant {
    name: "part of a window trained before its model is there",
    value: 0.5,
    unit: "",
    basis: Basis::Setting,
    source: "training.md, Training ahead of the model",
};

/// The formula of `wire.rs`, within 1 % of the four measured densities.
pub const WIRE: Constant = Constant {
    name: "bits per value sent, for entries at random places",
    value: 1.0,
    unit: "",
    basis: Basis::Formula,
    source: "benchmarks.md, The wire format",
};

/// The weights of `weight.rs`.
pub const CHAIN: Constant = Constant {
    name: "weights of calls and tasks in the Wasm runtime",
    value: 1.0,
    unit: "",
    basis: Basis::Measured,
    source: "benchmarks.md, The chain",
};

/// All constants, in the numbering of a plan's table.
pub const ALL: [Constant; 27] = [
    WIRE,
    ENCODE,
    APPLY,
    CHECK,
    MERGE,
    JOIN,
    JOIN_MEMORY,
    CHAIN,
    TRAIN,
    FORWARD,
    MINER_HOST,
    MINER_MODEL,
    MINER_COMMAND,
    MINER_DEVICE,
    RANK_DEVICE,
    RANK_HOST,
    MINER_DISK,
    VALIDATOR_HOST,
    VALIDATOR_LISTS,
    VALIDATOR_STATE,
    VALIDATOR_COPIES,
    EVALUATOR_DEVICE,
    EVALUATOR_HOST,
    WINDOWS_KEPT,
    EVALUATIONS_MAX,
    COMMIT_MARGIN,
    AHEAD,
];

impl Constant {
    /// Returns its number in a plan's table, from 1.
    pub fn number(&self) -> usize {
        ALL.iter().position(|one| one.name == self.name).map_or(0, |index| index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_constant_names_a_section_that_exists() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        for constant in ALL {
            let (page, section) = constant.source.split_once(", ").expect("a page and a section");
            let text = std::fs::read_to_string(docs.join(page)).expect(page);
            let found = text
                .lines()
                .any(|line| line.starts_with('#') && line.trim_start_matches('#').trim() == section);
            assert!(found, "{page} has no section {section:?}, which {:?} cites", constant.name);
        }
        let numbers: Vec<usize> = ALL.iter().map(Constant::number).collect();
        assert_eq!(numbers, (1..=ALL.len()).collect::<Vec<_>>(), "each has a name of its own");
    }

    /// The figures, as on the page.
    #[test]
    fn measured_constants_are_those_of_the_benchmarks() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let text = std::fs::read_to_string(docs.join("benchmarks.md")).expect("the page");
        let row = |begin: &str| {
            let found = text.lines().find(|line| line.starts_with(begin)).expect(begin);
            found.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(row("| `e ← βe + Δ`, encode")[4], "12.4");
        assert_eq!(row("| decode and apply")[4], "61.2");
        assert_eq!(row("| decode to norms")[4], "236");
        assert_eq!(row("| merge of 20, 16 Mi values")[2], "23 ms");
        assert_eq!(row("| three mirrors |")[3], "0.87 s");
        assert_eq!(row("| three, one lies in every piece")[4], "25.0 MiB");
        assert!(text.contains("about 4 MB per billion parameters"));
    }
}
