#![doc = include_str!("../README.md")]

pub mod accumulate;
pub mod cross_entropy;
pub mod decode;
pub mod encode;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod merge;
pub mod norm;
pub mod pack;
pub mod quantise;
pub mod sparse;
pub mod topk;
pub mod unpack;
pub mod wire;

pub mod lanes;

mod in_order;
