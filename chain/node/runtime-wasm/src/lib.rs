//! The Wasm runtime that a chain stores in its state.
//!
//! Compiled for a host, this crate contains the Wasm binary as a constant. Its `build.rs` compiles this crate for
//! Wasm, where it is the runtime itself: its functions are the exports of the binary.
#![cfg_attr(target_family = "wasm", no_std)]

#[cfg(target_family = "wasm")]
pub use mettle_runtime::api;

#[cfg(not(target_family = "wasm"))]
include!(concat!(env!("OUT_DIR"), "/wasm_binary.rs"));
