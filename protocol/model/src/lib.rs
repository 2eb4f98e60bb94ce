#![doc = include_str!("../README.md")]

mod config;
mod init;
mod recipe;
mod spec;

pub use config::{ConfigError, ModelConfig};
pub use init::{init_flat, init_into};
pub use recipe::{Optimiser, RateSchedule, Recipe, RecipeError};
pub use spec::{RunSpec, SPEC_BYTES_MAX, SpecError};
