//! Loss and gradient at the vocabulary, from logits.
//!
//! For a row of logits `x` and the target token `t`: loss `= ln Σ exp(x − max) + max − x_t` in nats, gradient
//! `softmax(x) − onehot(t)`.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
pub mod reference;

pub(crate) use cpu::exponentiate;
pub use cpu::{exp, losses, losses_and_gradient};
