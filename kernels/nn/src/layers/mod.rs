//! The layers of the network, one folder each, with a reference implementation.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | formula, source, types that all share |
//! | `reference.rs` | plain loops in `f64`, easy to check |
//! | `cpu.rs` | the CPU's kernel: vectors ([`kernels::lanes`]), threads, one pass over memory |
//! | `gpu.rs` | the GPU's kernel and its launch, in CubeCL (feature `gpu`) |
//!
//! A kernel is close to its reference, within bounds that `tests/layers.rs` and `tests/gpu.rs` measure, and gives the
//! same bits in every run. The order of additions depends only on shapes, not on the number of threads.
//!
//! # Letters of shapes
//!
//! Tensors are row-major; a comment beside a buffer has its shape.
//!
//! | letter | length |
//! |---|---|
//! | `B` | sequences in the batch |
//! | `T` | tokens of a sequence |
//! | `N` | `B·T`, all tokens of the batch |
//! | `D` | width of the residual stream |
//! | `H`, `K`, `R` | query heads, key and value heads, `H / K` |
//! | `C` | width of a head |
//! | `W` | width of a row of queries, keys and values: `(H + 2K)·C` |
//! | `F` | width inside the feed-forward half |
//! | `V` | vocabulary |
//!
//! The gradient of the loss with respect to `x` is `grad_x`.

pub mod attention;
pub mod cross_entropy;
#[cfg(feature = "gpu")]
pub mod embedding;
pub mod matmul;
pub mod rms_norm;
pub mod rope;
pub mod swiglu;

use kernels::lanes::LANES;

/// Returns `Σ a·b`, summed in lanes, for the bodies of `widest!`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in a.by_ref().zip(b.by_ref()) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    for ((sum, &a), &b) in sums.iter_mut().zip(a.remainder()).zip(b.remainder()) {
        *sum += a * b;
    }
    sums.iter().sum()
}
