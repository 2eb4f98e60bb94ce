//! Causal attention with grouped heads: softmax of a query's scores with the keys up to its own position, times the
//! values (Vaswani et al., 2017; grouped heads: Ainslie et al., 2023).
//!
//! Queries already include the scale `1/√C`, by which [`rope`](super::rope) multiplies them. Not all scores are in
//! memory at once: a block of queries attends to the keys up to its last one. The backward pass recomputes the block's
//! probabilities from each query's log-sum-exp (Dao et al., "FlashAttention", 2022, section 3.1, with blocks of
//! queries only).

mod cached;
mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cached::{CachedHead, append, forward_cached};
pub use cpu::{backward, forward};

/// Layout of a row: `heads` queries, `kv_heads` keys and `kv_heads` values, each `head_width` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `T`. Row `n` belongs to sequence `n / seq_len`.
    pub seq_len: usize,
    /// `H`
    pub heads: usize,
    /// `K`. Each is shared by `heads / kv_heads` neighbouring query heads.
    pub kv_heads: usize,
    /// `C`
    pub head_width: usize,
}

impl Shape {
    /// Returns `W`, the number of values of a row.
    pub fn row_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width
    }

    /// Returns `R`, the number of query heads per key head.
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

/// Default maximum of scores in a GPU's memory at once: 128 MiB in f32. `Gpu::with_scores` changes it.
pub const SCORES: usize = 1 << 25;
/// Minimum and maximum number of queries of a GPU's block, for sequences that long.
pub const QUERIES: [usize; 2] = [128, 512];
/// Maximum number of matrices of a product: any grid supports at least 65,535 cubes along a side.
const MATRICES: usize = 1 << 14;

/// Returns the number of sequences at once, and of queries of each in a block, for this many scores.
fn block_size(scores: usize, shape: &Shape, sequences: usize) -> [usize; 2] {
    let least = QUERIES[0].min(shape.seq_len);
    let most = sequences.min(MATRICES / shape.kv_heads).max(1);
    let sequences = (scores / (shape.heads * least * shape.seq_len)).clamp(1, most);
    let queries = scores / (sequences * shape.heads * shape.seq_len) / QUERIES[0] * QUERIES[0];
    [sequences, queries.clamp(QUERIES[0], QUERIES[1]).min(shape.seq_len)]
}

/// Number of values of the matrices of a GPU's block.
struct Lengths {
    queries: usize,
    keys: usize,
    scores: usize,
}

impl Lengths {
    fn new(shape: &Shape, [sequences, queries]: [usize; 2]) -> Lengths {
        Lengths {
            queries: sequences * shape.heads * queries * shape.head_width,
            keys: sequences * shape.kv_heads * shape.seq_len * shape.head_width,
            scores: sequences * shape.heads * queries * shape.seq_len,
        }
    }
}

/// Returns the bytes that the backward pass on a GPU needs besides its arguments, with values of `width` bytes and
/// [`SCORES`]. The forward pass needs less.
pub(crate) fn backward_memory(shape: &Shape, sequences: usize, width: usize) -> usize {
    let Lengths { queries, keys, scores } = Lengths::new(shape, block_size(SCORES, shape, sequences));
    (2 * scores + 4 * queries + 2 * keys) * width + (2 * scores + 3 * keys) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stay_within_the_scores_aimed_at() {
        for seq_len in [1, 100, 128, 1000, 2048, 4096, 8192] {
            for (heads, aimed) in
                [(1, SCORES), (12, SCORES), (32, SCORES), (32, SCORES / 8), (32, 4 * SCORES)]
            {
                let shape = Shape { seq_len, heads, kv_heads: 1, head_width: 64 };
                for all in [1, 3, 64, 1000, 100_000] {
                    let [sequences, queries] = block_size(aimed, &shape, all);
                    assert!(sequences >= 1 && sequences <= all && queries >= 1 && queries <= seq_len);
                    let scores = sequences * heads * queries * seq_len;
                    assert!(
                        scores <= aimed || (sequences == 1 && queries <= QUERIES[0]),
                        "{shape:?}: {scores}"
                    );
                    // The presets for GPUs stay within it.
                    assert!(scores <= SCORES || aimed != SCORES, "{shape:?}: {scores}");
                    let least = heads * QUERIES[0].min(seq_len) * seq_len;
                    assert!(sequences == all || sequences == MATRICES || (sequences + 1) * least > aimed);
                }
            }
        }
    }
}
