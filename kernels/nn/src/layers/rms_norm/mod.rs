//! RMSNorm: `y = x / √(mean x² + ε) · gain`, row by row (Zhang and Sennrich, 2019).

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
pub mod reference;

pub use cpu::{backward, forward, forward_from_roots};
