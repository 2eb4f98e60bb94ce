//! CPU time of a training step's matrix products alone. Divided by the step's CPU time, it is their share.
//!
//! Each product has the step's shape and matrices of its own that do not move, so caches help at least as much as in a
//! step. For attention, only blocks of 64 queries on and below the diagonal are counted.

use crate::measure::took;
use model::{ModelConfig, Recipe};
use nn::layers::matmul::{Mat, MatMut, Threads, Write, matmul};

/// Number of attention queries that are multiplied at once.
const QUERIES: usize = 64;
/// Number of logits in memory at once.
const LOGITS: usize = 1 << 19;

/// `[rows, inner] · [inner, columns]`, `times` per micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Product {
    rows: usize,
    inner: usize,
    columns: usize,
    times: usize,
    threads: Threads,
    /// Transposition flags of the left and the right matrix.
    transposed: [bool; 2],
}

/// Returns the multiplications and additions of a training step per token: `6 P + 12 L·H·C·T`, with `P` parameters,
/// `L` layers, `H` heads of width `C`, and `T` tokens of a sequence (Chowdhery et al., "PaLM", 2022, appendix B).
pub fn flops_per_token(config: &ModelConfig) -> f64 {
    6.0 * config.parameters() as f64 + 12.0 * (config.layers * config.d_model * config.seq_len) as f64
}

/// Returns the CPU seconds of a step's products, from the shortest of several rounds.
pub fn seconds(config: &ModelConfig, recipe: &Recipe) -> f64 {
    let &Recipe { batch, micro_batch, .. } = recipe;
    let of = |sequences: usize| -> f64 {
        if sequences == 0 { 0.0 } else { products(config, sequences).iter().map(shortest).sum() }
    };
    (batch / micro_batch) as f64 * of(micro_batch) + of(batch % micro_batch)
}

/// Returns the floating-point operations per second of CPU time in a large product.
pub fn peak_flops() -> f64 {
    let product = Product::new([1024; 3], 1, Threads::Pool, [false, true]);
    2.0 * 1024f64.powi(3) / shortest(&product)
}

impl Product {
    fn new(
        [rows, inner, columns]: [usize; 3],
        times: usize,
        threads: Threads,
        transposed: [bool; 2],
    ) -> Product {
        Product { rows, inner, columns, times, threads, transposed }
    }
}

fn products(config: &ModelConfig, sequences: usize) -> Vec<Product> {
    let &ModelConfig { vocab, d_model, layers, heads, kv_heads, d_ff, seq_len, .. } = config;
    let (tokens, width) = (sequences * seq_len, config.head_width());
    let mut all = Vec::new();

    // A weight's products: forward, and for both gradients.
    let mut weight = |rows, columns, tokens, times| {
        all.push(Product::new([tokens, columns, rows], times, Threads::Pool, [false, true]));
        all.push(Product::new([tokens, rows, columns], times, Threads::Pool, [false, false]));
        all.push(Product::new([rows, tokens, columns], times, Threads::Pool, [true, false]));
    };
    weight(d_model, d_model, tokens, 2 * layers);
    weight(kv_heads * width, d_model, tokens, 2 * layers);
    weight(d_ff, d_model, tokens, 2 * layers);
    weight(d_model, d_ff, tokens, layers);
    let rows = (LOGITS / vocab).clamp(1, tokens);
    weight(vocab, d_model, rows, tokens / rows);

    // Scores and output forward, scores recomputed, and both gradients of each.
    let times = layers * sequences * heads;
    for first in (0..seq_len).step_by(QUERIES) {
        let end = (first + QUERIES).min(seq_len);
        let queries = end - first;
        all.push(Product::new([queries, width, end], 3 * times, Threads::One, [false, true]));
        all.push(Product::new([queries, end, width], 2 * times, Threads::One, [false, false]));
        all.push(Product::new([end, queries, width], 2 * times, Threads::One, [true, false]));
    }
    all
}

/// Returns the CPU seconds of all repetitions of a product, from the shortest of three rounds.
fn shortest(product: &Product) -> f64 {
    let &Product { rows, inner, columns, times, threads, transposed } = product;
    let (a, b) = (vec![0.5; rows * inner], vec![0.25; inner * columns]);
    let mut into = vec![0.0; rows * columns];
    let of = |values, [rows, columns]: [usize; 2], transposed: bool| match transposed {
        true => Mat::new(values, [columns, rows]).transposed(),
        false => Mat::new(values, [rows, columns]),
    };
    let (a, b) = (of(&a, [rows, inner], transposed[0]), of(&b, [inner, columns], transposed[1]));
    let mut into = MatMut::new(&mut into, [rows, columns]);
    // Enough runs for a clock with microsecond resolution.
    let runs = (20_000_000 / (rows * inner * columns)).clamp(1, times);
    let rounds = (0..3).map(|_| {
        let took = took(|| (0..runs).for_each(|_| matmul(Write::Set, &mut into, a, b, threads)));
        took.cpu.as_secs_f64() / runs as f64
    });
    times as f64 * rounds.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_products_are_those_of_the_formula_without_masked_scores() {
        let config = ModelConfig::preset("6m").unwrap();
        let products = products(&config, 2);
        let flops: f64 = products.iter().map(|p| 2.0 * (p.rows * p.inner * p.columns * p.times) as f64).sum();
        let formula = flops_per_token(&config) * 2.0 * config.seq_len as f64;
        // Attention is an eighth of the formula. Half of it is above the diagonal; recomputed scores add a sixth.
        assert!((0.9..1.0).contains(&(flops / formula)), "{flops} of {formula}");
    }
}
