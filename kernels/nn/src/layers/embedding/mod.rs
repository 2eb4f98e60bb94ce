//! Rows of the embedding matrix for a batch's tokens, and their gradients: `x[n] = embedding[token(n)]`, and backward
//! `grad_embedding[token(n)] += grad_x[n]`. On the CPU both are a loop in `engine/cpu.rs`.

pub mod gpu;
