//! The exchange between two windows: from the workers' weights to the weights of the next window.

use super::published::Published;
use protocol::{
    Uid,
    contribution::{self, Schema, Sparse},
    merge::{self, Input},
    norms::RunningNorms,
    params::{Density, MergeRule},
};
use serde::{Deserialize, Serialize};

/// How workers exchange their updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// One worker takes every step on the whole batch; no exchange.
    Alone,
    /// The uncompressed mean of all pseudo-gradients. With Nesterov momentum it is DiLoCo.
    Dense { outer: Outer },
    /// SparseLoCo as published: top-k in tiles, two bits per value, error feedback, a mean, an outer step.
    Published { density: u16, decay: f32, over: Divisor, outer: Outer },
    /// This protocol (PROT-7, PROT-10, PROT-17, PROT-18), by the crate `protocol`.
    Ours { density: u16, merge_density: u16, decay: f32, over: Divisor, outer: Outer },
}

/// The divisor of a coordinate's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Divisor {
    /// The number of workers.
    All,
    /// The number of workers that sent the coordinate.
    Hits,
}

/// The outer optimiser: `v ← μ·v + u`, `θ ← θ − α·(u + μ·v)`. Without momentum it is plain SGD.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outer {
    /// `α`.
    pub rate: f32,
    /// `μ`; 0 for plain SGD.
    pub momentum: f32,
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("could not encode a worker's update")]
    Encode(#[from] contribution::EncodeError),
    #[error("the protocol could not decode its own encoding")]
    Decode(#[from] contribution::DecodeError),
    #[error("could not merge the contributions")]
    Merge(#[from] merge::MergeError),
}

/// The state that workers and merge keep from window to window, and the traffic so far.
pub struct Exchange<'a> {
    schema: &'a Schema,
    scheme: &'a Scheme,
    /// One residual per worker.
    residuals: Vec<Vec<f32>>,
    /// The residual of the merge (PROT-18).
    buffer: Vec<f32>,
    norms: RunningNorms,
    velocity: Vec<f32>,
    /// The dense update.
    update: Vec<f32>,
    /// Workers that sent each coordinate in this window.
    hits: Vec<u32>,
    published: Option<Published>,
    pub traffic: Traffic,
}

/// Totals over the windows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    pub windows: u64,
    /// Bytes sent by all workers.
    pub sent: u64,
    /// Bytes of the updates that one worker fetches.
    pub updates: u64,
    /// Sum over windows of the share of coordinates that at least one worker sent.
    pub union: f64,
}

impl<'a> Exchange<'a> {
    pub fn new(schema: &'a Schema, scheme: &'a Scheme, workers: usize) -> Exchange<'a> {
        let values = schema.values();
        let sparse = matches!(scheme, Scheme::Published { .. } | Scheme::Ours { .. });
        let published = match scheme {
            Scheme::Published { density, .. } => Some(Published::new(schema, Density(*density))),
            _ => None,
        };
        Exchange {
            schema,
            scheme,
            residuals: if sparse { vec![vec![0.0; values]; workers] } else { Vec::new() },
            buffer: vec![0.0; values],
            norms: RunningNorms::default(),
            velocity: vec![0.0; values],
            update: vec![0.0; values],
            hits: vec![0; values],
            published,
            traffic: Traffic::default(),
        }
    }

    /// Turns the workers' weights at the end of a window, `after`, into the next window's `theta`.
    ///
    /// # Errors
    /// If a worker's pseudo-gradient is not finite, or the protocol refuses its own bytes.
    pub fn window(&mut self, after: &[Vec<f32>], theta: &mut [f32]) -> Result<(), ExchangeError> {
        self.traffic.windows += 1;
        match *self.scheme {
            Scheme::Alone => theta.copy_from_slice(&after[0]),
            Scheme::Dense { outer } => {
                let count = after.len() as f32;
                for (at, update) in self.update.iter_mut().enumerate() {
                    *update = after.iter().map(|after| theta[at] - after[at]).sum::<f32>() / count;
                }
                let bytes = 4 * theta.len() as u64;
                self.traffic.sent += bytes * after.len() as u64;
                self.traffic.updates += bytes;
                self.traffic.union += 1.0;
                self.step(outer, theta);
            }
            Scheme::Published { decay, over, outer, .. } => {
                self.accumulate(decay, after, theta);
                let sent = self.encode_published();
                self.count_hits(&sent);
                self.mean(over, &sent);
                self.step(outer, theta);
            }
            Scheme::Ours { density, merge_density, decay, over, outer } => {
                self.accumulate(decay, after, theta);
                let mut sent = Vec::with_capacity(after.len());
                for residual in &mut self.residuals {
                    let body = contribution::encode_with_feedback(self.schema, Density(density), residual)?;
                    self.traffic.sent += body.len() as u64;
                    sent.push(contribution::decode(self.schema, Density(density), &body)?);
                }
                self.count_hits(&sent);
                let inputs: Vec<Input<'_>> = (0..)
                    .zip(&sent)
                    .map(|(uid, update)| Input { uid: Uid(uid), weight: 1, update })
                    .collect();
                let density = Density(merge_density);
                let rule = match over {
                    Divisor::Hits => MergeRule::MeanOverHits,
                    Divisor::All => MergeRule::MeanOverAll,
                };
                let merged =
                    merge::merge(self.schema, rule, density, &inputs, &self.norms, &mut self.buffer)?;
                self.norms.push(merged.norms);
                self.traffic.updates += merged.body.len() as u64;
                let update = contribution::decode(self.schema, density, &merged.body)?;
                if outer.momentum == 0.0 {
                    merge::apply(self.schema, theta, &update, outer.rate);
                } else {
                    self.update.fill(0.0);
                    add(self.schema, &update, &mut self.update);
                    self.step(outer, theta);
                }
            }
        }
        Ok(())
    }

    /// `e ← decay·e + (θ − θ_after)` for each worker (PROT-10).
    fn accumulate(&mut self, decay: f32, after: &[Vec<f32>], theta: &[f32]) {
        for (residual, after) in self.residuals.iter_mut().zip(after) {
            for ((entry, before), after) in residual.iter_mut().zip(theta).zip(after) {
                *entry = decay * *entry + (before - after);
            }
        }
    }

    /// Encodes each worker's residual in the published format and subtracts the sent values from it.
    fn encode_published(&mut self) -> Vec<Sparse> {
        let published = self.published.as_ref().expect("the published scheme has its format");
        let mut sent = Vec::with_capacity(self.residuals.len());
        for residual in &mut self.residuals {
            let (update, bits) = published.encode(residual);
            for (range, tensor) in self.schema.ranges().zip(&update.tensors) {
                let residual = &mut residual[range];
                for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                    residual[*position as usize] -= value;
                }
            }
            self.traffic.sent += bits.div_ceil(8);
            // Every worker fetches every contribution.
            self.traffic.updates += bits.div_ceil(8);
            sent.push(update);
        }
        sent
    }

    /// Counts the workers that sent each coordinate.
    fn count_hits(&mut self, sent: &[Sparse]) {
        self.hits.fill(0);
        for update in sent {
            for (range, tensor) in self.schema.ranges().zip(&update.tensors) {
                let hits = &mut self.hits[range];
                tensor.positions.iter().for_each(|position| hits[*position as usize] += 1);
            }
        }
        let union = self.hits.iter().filter(|hits| **hits > 0).count();
        self.traffic.union += union as f64 / self.hits.len() as f64;
    }

    /// Sets the update to the mean of `sent`, each tensor clipped to the median norm.
    fn mean(&mut self, over: Divisor, sent: &[Sparse]) {
        let norms: Vec<Vec<f64>> = sent.iter().map(merge::square_norms).collect();
        let references = merge::reference_norms(&norms, &vec![0; norms.len()], &RunningNorms::default());
        let scales = merge::clip_scales(&norms, &references);
        self.update.fill(0.0);
        for (which, update) in sent.iter().enumerate() {
            for ((range, tensor), scales) in self.schema.ranges().zip(&update.tensors).zip(&scales) {
                let sums = &mut self.update[range];
                for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                    sums[*position as usize] += scales[which] * value;
                }
            }
        }
        for (sum, hits) in self.update.iter_mut().zip(&self.hits) {
            *sum /= match over {
                Divisor::All => sent.len() as f32,
                Divisor::Hits => (*hits).max(1) as f32,
            };
        }
    }

    fn step(&mut self, outer: Outer, theta: &mut [f32]) {
        for ((value, velocity), update) in theta.iter_mut().zip(&mut self.velocity).zip(&self.update) {
            *velocity = outer.momentum * *velocity + update;
            *value -= outer.rate * (update + outer.momentum * *velocity);
        }
    }
}

fn add(schema: &Schema, update: &Sparse, dense: &mut [f32]) {
    for (range, tensor) in schema.ranges().zip(&update.tensors) {
        let dense = &mut dense[range];
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            dense[*position as usize] += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::contribution::TensorSpec;

    const PLAIN: Outer = Outer { rate: 1.0, momentum: 0.0 };

    fn schema() -> Schema {
        Schema::new(vec![
            TensorSpec { name: "matrix".into(), shape: vec![12, 32] },
            TensorSpec { name: "gain".into(), shape: vec![32] },
        ])
        .unwrap()
    }

    /// The weights of three workers at the end of `window`, from `theta`.
    fn ends(theta: &[f32], window: usize) -> Vec<Vec<f32>> {
        let moved = |worker: usize| {
            let step =
                |(at, value): (usize, &f32)| value - ((at * 7 + worker * 3 + window) as f32).sin() * 0.01;
            theta.iter().enumerate().map(step).collect()
        };
        (0..3).map(moved).collect()
    }

    fn after(scheme: &Scheme, windows: usize) -> (Vec<f32>, Traffic) {
        let schema = schema();
        let mut theta = vec![0.5; schema.values()];
        let mut exchange = Exchange::new(&schema, scheme, 3);
        for window in 0..windows {
            let ends = ends(&theta, window);
            exchange.window(&ends, &mut theta).unwrap();
        }
        (theta, exchange.traffic)
    }

    fn distance(one: &[f32], other: &[f32]) -> f32 {
        one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f32>().sqrt()
    }

    #[test]
    fn a_dense_mean_at_rate_one_is_the_mean_of_the_workers_weights() {
        let (theta, traffic) = after(&Scheme::Dense { outer: PLAIN }, 1);
        let ends = ends(&vec![0.5; theta.len()], 0);
        for (at, value) in theta.iter().enumerate() {
            let mean = ends.iter().map(|end| end[at]).sum::<f32>() / 3.0;
            assert!((value - mean).abs() < 1e-6);
        }
        assert_eq!(traffic, Traffic { windows: 1, sent: 3 * 4 * 416, updates: 4 * 416, union: 1.0 });
    }

    #[test]
    fn nesterov_looks_ahead() {
        let schema = schema();
        let scheme = Scheme::Dense { outer: Outer { rate: 0.5, momentum: 0.9 } };
        let mut exchange = Exchange::new(&schema, &scheme, 1);
        let mut theta = vec![0.0; schema.values()];
        exchange.window(&[vec![-1.0; schema.values()]], &mut theta).unwrap();
        assert!((theta[0] + 0.5 * 1.9).abs() < 1e-6, "u + μ·u: {}", theta[0]);
        let before = theta[0];
        let still = theta.clone();
        exchange.window(&[still], &mut theta).unwrap();
        assert!((theta[0] - before + 0.5 * 0.81).abs() < 1e-6, "only the velocity moves it: {}", theta[0]);
    }

    #[test]
    fn both_sparse_schemes_send_their_residuals_later() {
        // Without decay, every value is sent in the end, so the published scheme, a mean over all, stays near the
        // dense mean. Our mean over hits takes a longer step where only one worker sent a coordinate, but stays
        // bounded.
        let (dense, _) = after(&Scheme::Dense { outer: PLAIN }, 60);
        let start = vec![0.5; dense.len()];
        let moved = distance(&start, &dense);
        let published = Scheme::Published { density: 1024, decay: 1.0, over: Divisor::All, outer: PLAIN };
        let (theirs, traffic) = after(&published, 60);
        assert!(distance(&theirs, &dense) < 0.5 * moved.max(0.3), "{} of {moved}", distance(&theirs, &dense));
        assert!(traffic.union / 60.0 > 0.25 && traffic.union / 60.0 < 0.8, "{}", traffic.union / 60.0);
        assert!(traffic.sent > 0 && traffic.sent == traffic.updates);

        let (over, outer) = (Divisor::Hits, PLAIN);
        let ours = Scheme::Ours { density: 1024, merge_density: 2048, decay: 1.0, over, outer };
        let (ours, traffic) = after(&ours, 60);
        assert!(ours.iter().all(|value| value.is_finite()));
        assert!(traffic.updates < traffic.sent, "one object instead of three");
    }

    #[test]
    fn without_momentum_the_outer_step_equals_the_protocols() {
        let scheme = |momentum| Scheme::Ours {
            density: 512,
            merge_density: 1024,
            decay: 0.95,
            over: Divisor::Hits,
            outer: Outer { rate: 1.0, momentum },
        };
        let (plain, _) = after(&scheme(0.0), 5);
        let (nearly, _) = after(&scheme(1e-6), 5);
        assert!(distance(&plain, &nearly) < 1e-4);
        assert_ne!(plain, vec![0.5; plain.len()]);
    }
}
