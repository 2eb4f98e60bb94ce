//! Does not train, or takes one step, and declares the whole window.
//!
//! Sees: the contributions of the last window, for their norm. Stopped by: PROT-14 if it submits nothing (the norm is
//! 0); else PROT-22 and PROT-24: no gain, and none on its own sequences.

use crate::adversary::{Adversary, MinerContext, TrainedWindow, delta, median_norm, moved, norm};
use protocol::{Window, submission::RMS_MAX};

/// Replacement for a window's work.
#[derive(Clone, Debug)]
pub enum Freeloader {
    Zeros,
    /// Noise with the norm of the other contributions.
    Random,
    /// One step's work, scaled to the norm of the other contributions.
    TinySteps,
    /// The work of its first window, repeated.
    Replay {
        trains_until: Option<Window>,
        work: Vec<f32>,
    },
}

/// Number of sequences in the one step.
const STEP: usize = 8;
/// Honest windows at the start, whose work is replayed.
pub const BEGINNING: u32 = 1;
/// Scale of the noise if there is no contribution to compare with.
const RMS: f64 = 1e-3;

impl Freeloader {
    pub fn replay() -> Freeloader {
        Freeloader::Replay { trains_until: None, work: Vec::new() }
    }
}

impl Adversary for Freeloader {
    fn sequences(&mut self, at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        let trains = match self {
            Freeloader::Zeros | Freeloader::Random => 0,
            Freeloader::TinySteps => STEP,
            Freeloader::Replay { trains_until, .. } => {
                let until = *trains_until.get_or_insert(Window(at.window.0.saturating_add(BEGINNING)));
                if at.window < until { assigned.len() } else { 0 }
            }
        };
        assigned.truncate(trains);
        assigned
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn looks_back(&self) -> u32 {
        match self {
            Freeloader::Random | Freeloader::TinySteps => 1,
            Freeloader::Zeros | Freeloader::Replay { .. } => 0,
        }
    }

    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { seen, before, after } = *trained;
        let usual = median_norm(seen);
        match self {
            Freeloader::Zeros => Some(before.to_vec()),
            Freeloader::Random => {
                let mut rng = at.rng("noise");
                let noise: Vec<f32> = before.iter().map(|_| (rng.normal() * RMS) as f32).collect();
                Some(moved(before, &scaled(noise, usual)))
            }
            Freeloader::TinySteps => Some(moved(before, &scaled(delta(before, after), usual))),
            Freeloader::Replay { work, .. } => {
                let new = delta(before, after);
                if new.iter().any(|value| *value != 0.0) {
                    *work = new;
                }
                Some(if work.len() == before.len() { moved(before, work) } else { before.to_vec() })
            }
        }
    }
}

/// Scales to the norm `wanted`, if it is known and the values are not all 0. No value exceeds the legal range.
fn scaled(mut values: Vec<f32>, wanted: Option<f64>) -> Vec<f32> {
    let now = norm(&values);
    if let Some(wanted) = wanted.filter(|_| 0.0 < now) {
        let factor = wanted / now;
        for value in &mut values {
            *value = (f64::from(*value) * factor).clamp(-RMS_MAX, RMS_MAX) as f32;
        }
    }
    values
}
