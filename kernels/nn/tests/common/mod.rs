//! What several test programs need.
#![allow(dead_code, reason = "each program uses a part of it")]

/// Numbers between −1 and 1 from a small generator.
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

/// All that equality of values leaves out: zeros have signs.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All values within `bound` of the exact ones, beside those larger than 1 within that share of them.
#[track_caller]
pub fn assert_close(close: &[f32], exact: &[f64], bound: f64) {
    assert_eq!(close.len(), exact.len());
    for (index, (&close, exact)) in close.iter().zip(exact).enumerate() {
        let apart = (f64::from(close) - exact).abs();
        assert!(apart <= bound * exact.abs().max(1.0), "{close} at {index}, exactly {exact}");
    }
}
