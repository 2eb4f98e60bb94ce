//! Causal attention with grouped heads: softmax of a query's scores with the keys up to its own position, times the
//! values (Vaswani et al., 2017; grouped heads: Ainslie et al., 2023).
//!
//! Queries already carry the scale `1/√C`, which [`rope`](super::rope) multiplies in. All scores are never held at
//! once: a block of queries meets the keys up to its last one, and the backward pass computes the block's
//! probabilities again from each query's log-sum-exp (Dao et al., "FlashAttention", 2022, section 3.1, with blocks of
//! queries only).

mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cpu::{backward, forward};

/// How a row is laid out: `heads` queries, `kv_heads` keys and `kv_heads` values, each `head_width` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `T`. Row `n` belongs to sequence `n / seq_len`.
    pub seq_len: usize,
    /// `H`
    pub heads: usize,
    /// `K`. Each serves `heads / kv_heads` neighbouring query heads.
    pub kv_heads: usize,
    /// `C`
    pub head_width: usize,
}

impl Shape {
    /// `W`: values of a row.
    pub fn row_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width
    }

    /// `R`: query heads of each key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl From<&model::ModelConfig> for Shape {
    fn from(config: &model::ModelConfig) -> Shape {
        Shape {
            seq_len: config.seq_len,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: config.head_width(),
        }
    }
}
