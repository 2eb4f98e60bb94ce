#![doc = include_str!("../README.md")]

pub mod accumulate;
pub mod decode;
pub mod encode;
pub mod lanes;
pub mod measure;
pub mod merge;
pub mod pack;
pub mod products;
pub mod quantise;
pub mod sparse;
pub mod topk;
pub mod unpack;
pub mod wire;

mod in_order;
