#![doc = include_str!("../README.md")]

pub mod accumulate;
pub mod adamw;
pub mod attention;
pub mod cross_entropy;
pub mod decode;
pub mod encode;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod matmul;
pub mod merge;
pub mod norm;
pub mod pack;
pub mod quantise;
pub mod rms_norm;
pub mod rotary;
pub mod sparse;
pub mod swiglu;
pub mod topk;
pub mod unpack;
pub mod wire;

pub mod lanes;

mod in_order;
