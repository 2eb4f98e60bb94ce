//! The runtime as the blob that a chain keeps.
//!
//! Built for a machine, this crate is a constant with the blob in it. Built for Wasm, by its own `build.rs`, it is the
//! blob: nothing but the runtime, whose functions are the blob's exports.
#![cfg_attr(target_family = "wasm", no_std)]

#[cfg(target_family = "wasm")]
pub use mettle_runtime::api;

#[cfg(not(target_family = "wasm"))]
include!(concat!(env!("OUT_DIR"), "/blob.rs"));
