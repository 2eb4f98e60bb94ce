//! The frames between miner and command, and their limits.
//!
//! A frame is the header's length (`u32`), the body's length (`u64`), the header as JSON, and the body: values of four
//! bytes, or the numbers of a step as `f64`. All numbers are little-endian. `docs/trainers.md` specifies each frame.

use model::{ModelConfig, Recipe};
use serde::{Deserialize, Serialize};

/// The version of the contract. Both sides send it first; a change of any frame is a new version.
pub const PROTOCOL: u32 = 1;
/// Maximum length of a header that the miner reads, in bytes.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of values in one frame of weights or moments: 4 MiB.
pub const SLICE_VALUES: usize = 1 << 20;
/// Length of the two lengths before a header, in bytes.
pub const PREFIX_BYTES: usize = 12;

/// Message of the miner.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Request<'a> {
    /// Reply to the command's hello.
    Open {
        protocol: u32,
        model: &'a ModelConfig,
        recipe: &'a Recipe,
        tensors: Vec<Tensor>,
        heartbeat_seconds: u64,
        step_seconds: u64,
    },
    /// Replaces `count` values from `first` on by those of the body.
    Put {
        part: Part,
        first: usize,
        count: usize,
    },
    /// Requests `count` values from `first` on.
    Get {
        part: Part,
        first: usize,
        count: usize,
    },
    /// Requests the gradient of the mean loss of the sequences in the body: `u32` tokens, row by row.
    Gradients {
        sequences: usize,
        tokens: usize,
    },
    /// Requests an optimiser step along that gradient. Body: learning rate, factor that clips the gradient.
    Step {
        step: u64,
    },
    Stop {},
}

/// A part of the trainer's state, as one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Weights,
    Moments,
}

/// One tensor of the model, in the order of the vectors.
#[derive(Clone, Debug, Serialize)]
pub struct Tensor {
    pub name: String,
    pub shape: [usize; 2],
    /// 2 for AdamW's mean and square, 1 for Muon's mean.
    pub moments: usize,
}

/// Message of the command.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The first frame after the connection.
    Hello {
        protocol: u32,
        name: String,
    },
    /// The model is built.
    Ready {},
    Taken {},
    /// Body: the requested values.
    Values {},
    /// Body: loss in nats per token, length of the gradient.
    Gradients {},
    Stepped {},
    /// Shows that the command works on the request: number of the step's sequences that are done.
    Progress {
        sequences: u64,
    },
    /// The command cannot answer.
    Failed {
        why: String,
    },
}

impl Request<'_> {
    /// Returns the text for error messages.
    pub fn doing(&self) -> &'static str {
        match self {
            Request::Open { .. } => "building the model",
            Request::Put { .. } => "taking values",
            Request::Get { .. } => "sending values",
            Request::Gradients { .. } => "computing a gradient",
            Request::Step { .. } => "stepping",
            Request::Stop {} => "stopping",
        }
    }

    /// Returns the bytes of a frame before its body.
    pub fn frame(&self, body_bytes: usize) -> Vec<u8> {
        let header = serde_json::to_vec(self).expect("a request is numbers and names");
        let length = u32::try_from(header.len()).expect("a bounded model has a bounded header");
        [&length.to_le_bytes()[..], &(body_bytes as u64).to_le_bytes(), &header].concat()
    }
}

/// Returns the lengths of header and body from a frame's first bytes.
pub fn lengths(prefix: [u8; PREFIX_BYTES]) -> (u32, u64) {
    let (header, body) = prefix.split_at(4);
    let header = u32::from_le_bytes(header.try_into().expect("four bytes"));
    (header, u64::from_le_bytes(body.try_into().expect("eight bytes")))
}

/// Converts `values` to the bytes of a body.
pub fn values_to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_bytes_of_the_specification() {
        let frame = Request::Get { part: Part::Moments, first: 7, count: 2 }.frame(0);
        let header = br#"{"get":{"part":"moments","first":7,"count":2}}"#;
        assert_eq!(lengths(frame[..12].try_into().unwrap()), (header.len() as u32, 0));
        assert_eq!(&frame[12..], header);
        let frame = Request::Step { step: 3 }.frame(16);
        assert_eq!(lengths(frame[..12].try_into().unwrap()), (19, 16));
        assert_eq!(&frame[12..], br#"{"step":{"step":3}}"#);
        let hello: Answer = serde_json::from_str(r#"{"hello":{"protocol":1,"name":"x"}}"#).unwrap();
        assert_eq!(hello, Answer::Hello { protocol: 1, name: "x".into() });
        assert!(
            serde_json::from_str::<Answer>(r#"{"stepped":{"x":[]}}"#).is_ok(),
            "later fields are ignored"
        );
        for wrong in [r#"{"progress":{"sequences":-1}}"#, r#"{"other":{}}"#, "7", "{", ""] {
            assert!(serde_json::from_str::<Answer>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(values_to_bytes(&[1.0, -0.0]), [0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]);
    }
}
