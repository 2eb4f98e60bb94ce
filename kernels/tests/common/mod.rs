//! Helpers of several test programs.
#![allow(dead_code, reason = "each program uses a part of it")]

/// Returns numbers between −1 and 1 from a small generator.
pub fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the bits of values, which unlike equality distinguish the signs of zeros.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Checks that all values are within `bound` of the exact ones, or within that share of those larger than 1.
#[track_caller]
pub fn assert_close(close: &[f32], exact: &[f64], bound: f64) {
    assert_eq!(close.len(), exact.len());
    for (index, (&close, exact)) in close.iter().zip(exact).enumerate() {
        let apart = (f64::from(close) - exact).abs();
        assert!(apart <= bound * exact.abs().max(1.0), "{close} at {index}, exactly {exact}");
    }
}
