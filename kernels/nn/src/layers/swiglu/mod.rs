//! SwiGLU: `h = g · σ(g) · u`, with `σ(g) = 1 / (1 + e^{−g})` (Shazeer, 2020).
//!
//! A row of the input has all gates `g`, then all ups `u`, so that one product computes both.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
pub mod reference;

pub use cpu::{backward, forward, sigmoid};
