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

/// Scheme by which workers exchange their updates.
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
    Ours {
        density: u16,
        merge_density: u16,
        decay: f32,
        over: Divisor,
        outer: Outer,
        #[serde(default, skip_serializing_if = "Start::is_agreed")]
        start: Start,
    },
}

/// The weights from which a worker starts a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// `θ` with the last update: workers wait for it.
    #[default]
    Agreed,
    /// `θ − share·e` with the last update, `e` the worker's residual: step-ahead error feedback (Xu et al., SAEF).
    Ahead { share: f32 },
    /// The last update arrives `steps` inner steps into the window; 0 is [`Start::Agreed`]. The worker trains from
    /// `from` until then, and on arrival rebases: it adds `θ − share·e` less its start to its weights.
    Late {
        steps: usize,
        from: StandIn,
        #[serde(default, skip_serializing_if = "is_zero")]
        share: f32,
    },
}

/// The weights from which a worker trains until the last update arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StandIn {
    /// The worker's own weights at the end of the last window.
    Own,
    /// `θ` without the last update.
    Agreed,
    /// `θ` without the last update, minus the worker's sent values times the outer rate.
    Eager,
}

/// Returns whether serde omits the value.
fn is_zero(value: &f32) -> bool {
    *value == 0.0
}

impl Start {
    fn is_agreed(&self) -> bool {
        *self == Start::Agreed
    }
}

impl Scheme {
    fn start(&self) -> Start {
        match self {
            Scheme::Ours { start, .. } => *start,
            _ => Start::Agreed,
        }
    }

    /// Returns the number of inner steps of a window before the last update arrives.
    pub fn late_steps(&self) -> usize {
        match self.start() {
            Start::Late { steps, .. } => steps,
            _ => 0,
        }
    }
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

/// State that workers and merge keep from window to window, and the traffic so far.
pub struct Exchange<'a> {
    schema: &'a Schema,
    scheme: &'a Scheme,
    /// One residual per worker.
    residuals: Vec<Vec<f32>>,
    /// Weights with which each worker compares its own at the end of the window.
    references: Vec<Vec<f32>>,
    /// For late updates: `θ` without the last update, and each worker's sent values for it.
    before: Vec<f32>,
    sent: Vec<Sparse>,
    /// Residual of the merge (PROT-18).
    buffer: Vec<f32>,
    norms: RunningNorms,
    velocity: Vec<f32>,
    /// The dense update.
    update: Vec<f32>,
    /// Number of workers that sent each coordinate in this window.
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

/// Returns `θ − share·e`.
fn ahead(theta: &[f32], share: f32, residual: &[f32]) -> Vec<f32> {
    theta.iter().zip(residual).map(|(value, held)| value - share * held).collect()
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
            references: if sparse { vec![Vec::new(); workers] } else { Vec::new() },
            before: Vec::new(),
            sent: Vec::new(),
            buffer: vec![0.0; values],
            norms: RunningNorms::default(),
            velocity: vec![0.0; values],
            update: vec![0.0; values],
            hits: vec![0; values],
            published,
            traffic: Traffic::default(),
        }
    }

    /// Returns the weights from which `worker` starts the next window; `own` are its weights at the end of the last
    /// one.
    pub fn start(&mut self, worker: usize, own: &[f32], theta: &[f32]) -> Vec<f32> {
        let start = match (self.scheme.start(), self.scheme) {
            (Start::Ahead { share }, _) => ahead(theta, share, &self.residuals[worker]),
            // The first window has no update in transit.
            (Start::Late { steps: 1.., from, .. }, Scheme::Ours { outer, .. })
                if self.traffic.windows > 0 =>
            {
                match from {
                    StandIn::Own => own.to_vec(),
                    StandIn::Agreed => self.before.clone(),
                    StandIn::Eager => {
                        let mut start = self.before.clone();
                        merge::apply(self.schema, &mut start, &self.sent[worker], outer.rate);
                        start
                    }
                }
            }
            _ => theta.to_vec(),
        };
        if let Some(reference) = self.references.get_mut(worker) {
            reference.clone_from(&start);
        }
        start
    }

    /// Moves the weights of `worker` onto `base` when the last update arrives, and keeps the inner steps since the
    /// start: `x ← x + (base − start)`. `base` is `theta`, or with a share ahead of it. From now on the worker
    /// compares with `base`, so its pseudo-gradient remains minus the sum of the window's inner steps.
    pub fn rebase(&mut self, worker: usize, weights: &mut [f32], theta: &[f32]) {
        let base = match self.scheme.start() {
            Start::Late { share, .. } if share != 0.0 => ahead(theta, share, &self.residuals[worker]),
            _ => theta.to_vec(),
        };
        let reference = &mut self.references[worker];
        for ((weight, start), value) in weights.iter_mut().zip(reference.iter()).zip(&base) {
            *weight += value - start;
        }
        *reference = base;
    }

    /// Turns the workers' weights at the end of a window, `after`, into the next window's `theta`. [`Exchange::start`]
    /// was called for each worker.
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
                self.accumulate(decay, after);
                let sent = self.encode_published();
                self.count_hits(&sent);
                self.mean(over, &sent);
                self.step(outer, theta);
            }
            Scheme::Ours { density, merge_density, decay, over, outer, start } => {
                self.accumulate(decay, after);
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
                if matches!(start, Start::Late { .. }) {
                    self.before = theta.to_vec();
                    self.sent = sent;
                }
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

    /// Computes `e ← decay·e + (θ − θ_after)` for each worker (PROT-10); `θ` is its reference.
    fn accumulate(&mut self, decay: f32, after: &[Vec<f32>]) {
        for ((residual, reference), after) in self.residuals.iter_mut().zip(&self.references).zip(after) {
            for ((entry, before), after) in residual.iter_mut().zip(reference).zip(after) {
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

    /// Returns the weights of three workers at the end of `window`, from `theta`.
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
        let mut weights = vec![theta.clone(); 3];
        for window in 0..windows {
            for (worker, weights) in weights.iter_mut().enumerate() {
                let start = exchange.start(worker, weights, &theta);
                *weights = ends(&start, window)[worker].clone();
            }
            exchange.window(&weights, &mut theta).unwrap();
        }
        (theta, exchange.traffic)
    }

    fn ours(start: Start) -> Scheme {
        let outer = Outer { rate: 0.7, momentum: 0.0 };
        Scheme::Ours { density: 512, merge_density: 1024, decay: 0.95, over: Divisor::Hits, outer, start }
    }

    const STAND_INS: [StandIn; 3] = [StandIn::Own, StandIn::Agreed, StandIn::Eager];

    #[test]
    fn no_delay_and_no_step_ahead_equal_waiting_bit_for_bit() {
        let waiting = after(&ours(Start::Agreed), 6);
        for from in STAND_INS {
            assert_eq!(after(&ours(Start::Late { steps: 0, from, share: 0.5 }), 6), waiting, "{from:?}");
        }
        assert_eq!(after(&ours(Start::Ahead { share: 0.0 }), 6), waiting);
    }

    #[test]
    fn the_pseudo_gradient_of_a_rebased_worker_is_minus_the_sum_of_its_inner_steps() {
        let schema = schema();
        for (from, share) in STAND_INS.map(|from| (from, 0.0)).into_iter().chain([(StandIn::Own, 0.5)]) {
            let scheme = ours(Start::Late { steps: 1, from, share });
            let mut exchange = Exchange::new(&schema, &scheme, 3);
            let mut theta = vec![0.5; schema.values()];
            let mut weights = vec![theta.clone(); 3];
            let mut moved = 0.0;
            for window in 0..6 {
                for (worker, weights) in weights.iter_mut().enumerate() {
                    let start = exchange.start(worker, weights, &theta);
                    let mut end = ends(&start, window)[worker].clone();
                    let mut steps: Vec<f32> =
                        end.iter().zip(&start).map(|(end, start)| end - start).collect();
                    if window > 0 {
                        moved += distance(&start, &theta);
                        exchange.rebase(worker, &mut end, &theta);
                        let held = &exchange.residuals[worker];
                        assert_eq!(exchange.references[worker], super::ahead(&theta, share, held));
                    }
                    let second = ends(&end, window + 100)[worker].clone();
                    for ((steps, second), end) in steps.iter_mut().zip(&second).zip(&end) {
                        *steps += second - end;
                    }
                    for ((reference, end), steps) in
                        exchange.references[worker].iter().zip(&second).zip(&steps)
                    {
                        assert!((reference - end + steps).abs() < 1e-6, "{from:?}, {share}, window {window}");
                    }
                    *weights = second;
                }
                exchange.window(&weights, &mut theta).unwrap();
            }
            assert!(moved > 0.0, "{from:?}: a rebase that moves nothing shows nothing");
        }
    }

    #[test]
    fn a_worker_that_steps_ahead_starts_from_what_it_holds_back() {
        let schema = schema();
        let scheme = ours(Start::Ahead { share: 0.5 });
        let mut exchange = Exchange::new(&schema, &scheme, 3);
        let mut theta = vec![0.5; schema.values()];
        let first: Vec<Vec<f32>> = (0..3).map(|worker| exchange.start(worker, &[], &theta)).collect();
        assert!(first.iter().all(|start| *start == theta), "a residual of zero starts from θ");
        exchange.window(&ends(&theta, 0), &mut theta).unwrap();
        let start = exchange.start(1, &[], &theta);
        for ((start, value), held) in start.iter().zip(&theta).zip(&exchange.residuals[1]) {
            assert_eq!(*start, value - 0.5 * held);
        }
        assert_ne!(start, theta);
    }

    #[test]
    fn results_without_a_start_are_of_workers_that_wait() {
        let old = r#"{"ours":{"density":512,"merge_density":1024,"decay":0.95,"over":"hits","outer":{"rate":0.7,"momentum":0.0}}}"#;
        assert_eq!(serde_json::from_str::<Scheme>(old).unwrap(), ours(Start::Agreed));
        assert_eq!(serde_json::to_string(&ours(Start::Agreed)).unwrap(), old);
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
        // Without decay, every value is sent eventually, so the published scheme, a mean over all, stays near the
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
        let start = Start::Agreed;
        let ours = Scheme::Ours { density: 1024, merge_density: 2048, decay: 1.0, over, outer, start };
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
            start: Start::Agreed,
        };
        let (plain, _) = after(&scheme(0.0), 5);
        let (nearly, _) = after(&scheme(1e-6), 5);
        assert!(distance(&plain, &nearly) < 1e-4);
        assert_ne!(plain, vec![0.5; plain.len()]);
    }
}
