#![no_main]

#[path = "../fast.rs"]
mod fast;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fast::fast_decoder(bytes));
