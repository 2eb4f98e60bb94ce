//! Rotary position embedding, in place: value `i` of a head is rotated with value `i + C/2` by `position ·
//! base^{−2i/C}` (Su et al., "RoFormer", 2021; the rotate-half layout of Llama checkpoints on Hugging Face).
//!
//! Queries are also scaled by attention's `1/√C`. The gradient is the inverse rotation, with the same scale.

mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod reference;

pub use cpu::{rotate, rotate_at};

/// Cosines and sines of all positions.
#[derive(Clone, Debug)]
pub struct Angles {
    /// `C / 2`
    half: usize,
    /// Tables of queries, which include `1/√C`, then of keys, `[positions, C/2]` each.
    cosines: [Vec<f32>; 2],
    sines: [Vec<f32>; 2],
}

/// Direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    Forward,
    Back,
}

const QUERY: usize = 0;
const KEY: usize = 1;

impl Angles {
    /// Computes the angles for `positions` positions and heads of `head_width`, which must be even.
    pub fn new(positions: usize, head_width: usize, base: f64) -> Angles {
        let half = head_width / 2;
        let scale = 1.0 / (head_width as f64).sqrt();
        let table = |of: fn(f64) -> f64, scale: f64| -> Vec<f32> {
            let angle = |i: usize| (i / half) as f64 / base.powf((i % half) as f64 / half as f64);
            (0..positions * half).map(|i| (of(angle(i)) * scale) as f32).collect()
        };
        Angles {
            half,
            cosines: [table(f64::cos, scale), table(f64::cos, 1.0)],
            sines: [table(f64::sin, scale), table(f64::sin, 1.0)],
        }
    }

    /// `C / 2`
    pub fn half(&self) -> usize {
        self.half
    }

    pub fn positions(&self) -> usize {
        self.cosines[KEY].len() / self.half
    }

    /// Returns cosines and sines of queries, then of keys, `[positions, C/2]` each.
    pub fn tables(&self) -> [&[f32]; 4] {
        [&self.cosines[QUERY], &self.sines[QUERY], &self.cosines[KEY], &self.sines[KEY]]
    }
}
