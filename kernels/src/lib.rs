#![doc = include_str!("../README.md")]

pub mod cross_entropy;
pub mod norm;
pub mod sparse;

mod lanes;
