//! Whether a device gives the same bits as this machine's processor, asked on the device itself.
//!
//! The tests ask more, and of `protocol`; but they are run where the project is built. This is for a machine that has a GPU
//! and nothing else, before its GPU is trusted with anything.

use super::{Device, GpuError, Source};
use crate::{
    accumulate, decode,
    encode::{self, Feedback},
    merge::{self, Rule},
    norm, sparse,
    wire::Layout,
};

/// What was compared, and found equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// One for each kernel and kind of input.
    pub checks: usize,
    /// Values of rows, and bytes of bodies.
    pub compared: u64,
}

/// Why a device cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    #[error("{what} of {input} differs from the CPU's, first at {at}")]
    Differs { what: &'static str, input: &'static str, at: usize },
    #[error("{what} of {input} failed: {error}")]
    Failed { what: &'static str, input: &'static str, error: GpuError },
    #[error("the CPU's own kernels failed at {what} of {input}")]
    Cpu { what: &'static str, input: &'static str },
}

/// Full chunks and short ones, one value, and more than a section.
const LENGTHS: [usize; 5] = [3 * 4096 + 77, 1, 300_000, 4096, 63];
const SENT: u16 = 64;
const MERGED: u16 = 700;
const DECAY: f32 = 0.95;
const RATE: f32 = 0.7;
const CONTRIBUTIONS: usize = 5;

/// A row's name, and its values from their index and random bits.
type Input = (&'static str, fn(u64, u64) -> f32);

/// Rows on which roundings, ties and denormals decide.
const INPUTS: [Input; 8] = [
    ("plain values", |_, bits| bell(bits) * 1e-3),
    ("equal magnitudes", |index, _| if index.is_multiple_of(3) { -0.25 } else { 0.25 }),
    ("zeros of both signs", |index, _| if index.is_multiple_of(2) { 0.0 } else { -0.0 }),
    ("denormals", |_, bits| f32::from_bits((bits as u32) & 0x803f_ffff)),
    ("values at the edge of denormals", |_, bits| bell(bits) * 2e-38),
    ("one spike", |index, bits| if index % 4096 == 1234 { 3.0 } else { bell(bits) * 1e-30 }),
    ("all exponents", |_, bits| {
        f32::from_bits((bits as u32) & 0x9fff_ffff | (bits >> 32) as u32 & 0x2000_0000)
    }),
    ("magnitudes of many sizes", |_, bits| bell(bits) * 2f32.powi((bits >> 58) as i32 - 32)),
];

/// Roughly normal: the sum of four uniform numbers.
fn bell(bits: u64) -> f32 {
    let uniform = |shift: u32| ((bits >> shift) & 0xffff) as f32 / 65_536.0 - 0.5;
    (uniform(0) + uniform(16) + uniform(32) + uniform(48)) * 1.7
}

/// The same row for the same seed.
fn row(length: usize, seed: u64, value: fn(u64, u64) -> f32) -> Vec<f32> {
    let mut state = seed;
    (0..length as u64)
        .map(|index| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            value(index, bits ^ (bits >> 31))
        })
        .collect()
}

/// Compares every kernel on the device with the CPU's, bit for bit.
pub fn agreement(device: &Device) -> Result<Agreement, Disagreement> {
    let layout =
        |density| Layout::new(&LENGTHS, density).expect("the lengths and densities above are a layout's");
    let (sent, merged) = (layout(SENT), layout(MERGED));
    let mut all = Agreement { checks: 0, compared: 0 };
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for (index, (input, value)) in INPUTS.iter().enumerate() {
        let seed = index as u64;
        let residual = row(sent.values(), 3 * seed, *value);
        let delta = row(sent.values(), 3 * seed + 1, INPUTS[(index * 3 + 1) % INPUTS.len()].1);
        let theta = row(sent.values(), 3 * seed + 2, *value);
        let mut check = Check { device, input, all: &mut all };
        bodies.push(check.encoding(&sent, &residual, &delta)?);
        check.encoding(&merged, &residual, &delta)?;
        check.decoding(&sent, &bodies[index], &theta)?;
        check.norms(&sent, &residual)?;
    }
    for (first, (input, value)) in INPUTS.iter().enumerate() {
        let some: Vec<&[u8]> =
            (0..CONTRIBUTIONS).map(|which| &bodies[(first + which) % bodies.len()][..]).collect();
        let buffer = row(sent.values(), 99 + first as u64, *value);
        Check { device, input, all: &mut all }.merge(&sent, &merged, &some, &buffer)?;
    }
    Ok(all)
}

/// One input, and what was found so far.
struct Check<'a> {
    device: &'a Device,
    input: &'static str,
    all: &'a mut Agreement,
}

impl Check<'_> {
    fn failed(&self, what: &'static str) -> impl Fn(GpuError) -> Disagreement {
        let input = self.input;
        move |error| Disagreement::Failed { what, input, error }
    }

    fn cpu<E>(&self, what: &'static str) -> impl Fn(E) -> Disagreement {
        let input = self.input;
        move |_| Disagreement::Cpu { what, input }
    }

    fn same<T: PartialEq>(
        &mut self,
        what: &'static str,
        cpu: impl ExactSizeIterator<Item = T>,
        gpu: impl ExactSizeIterator<Item = T>,
    ) -> Result<(), Disagreement> {
        let (expected, got) = (cpu.len(), gpu.len());
        let differs = cpu.zip(gpu).position(|(cpu, gpu)| cpu != gpu);
        if let Some(at) = differs.or((expected != got).then_some(expected.min(got))) {
            return Err(Disagreement::Differs { what, input: self.input, at });
        }
        self.all.checks += 1;
        self.all.compared += expected as u64;
        Ok(())
    }

    fn same_row(&mut self, what: &'static str, cpu: &[f32], gpu: &[f32]) -> Result<(), Disagreement> {
        self.same(what, cpu.iter().map(|value| value.to_bits()), gpu.iter().map(|value| value.to_bits()))
    }

    /// Error feedback, choice, levels and packing. Returns the body.
    fn encoding(
        &mut self,
        layout: &Layout,
        residual: &[f32],
        delta: &[f32],
    ) -> Result<Vec<u8>, Disagreement> {
        let what = "an encoding";
        let mut left = residual.to_vec();
        let source = encode::Source::Delta { decay: DECAY, delta };
        let body = encode::encode(layout, &mut left, source, Feedback::Spend).map_err(self.cpu(what))?;

        let device = self.device;
        let mut row = device.upload(layout, residual).map_err(self.failed(what))?;
        let delta = device.upload(layout, delta).map_err(self.failed(what))?;
        let source = Source::Delta { decay: DECAY, delta: &delta };
        let got = device.encode(layout, &mut row, source, Feedback::Spend).map_err(self.failed(what))?;
        self.same(what, body.iter(), got.iter())?;
        let got = device.download(&row).map_err(self.failed(what))?;
        self.same_row("a residual", &left, &got)?;
        Ok(body)
    }

    /// Unpacking, accumulation, the sparse step and its undoing.
    fn decoding(&mut self, layout: &Layout, body: &[u8], theta: &[f32]) -> Result<(), Disagreement> {
        let what = "a decoding";
        let device = self.device;
        let entries = decode::decode(layout, body).map_err(self.cpu(what))?;
        let update = device.decode(layout, body).map_err(self.failed(what))?;
        let norms = entries.iter().map(|entries| entries.square_norm.to_bits());
        self.same(what, norms, update.square_norms().iter().map(|norm| norm.to_bits()))?;

        let what = "an accumulation";
        let scales: Vec<f32> = (0..layout.tensors()).map(|tensor| 0.9f32.powi(tensor as i32)).collect();
        let mut sums = theta.to_vec();
        accumulate::accumulate(layout, body, &scales, &mut sums).map_err(self.cpu(what))?;
        let mut row = device.upload(layout, theta).map_err(self.failed(what))?;
        let mut hits = device.zeros(layout);
        device.accumulate(&update, &scales, &mut row, &mut hits).map_err(self.failed(what))?;
        self.same_row(what, &sums, &device.download(&row).map_err(self.failed(what))?)?;
        let hits = device.download_words(&hits).map_err(self.failed(what))?;
        let mut expected = vec![0u32; hits.len()];
        for (range, entries) in layout.ranges().zip(&entries) {
            entries.positions.iter().for_each(|position| expected[range.start + *position as usize] += 1);
        }
        self.same("hits", expected.iter(), hits.iter())?;

        let what = "a sparse step";
        let mut stepped = theta.to_vec();
        for (range, entries) in layout.ranges().zip(&entries) {
            sparse::apply_reference(&mut stepped[range], &entries.positions, &entries.values, RATE);
        }
        let mut row = device.upload(layout, theta).map_err(self.failed(what))?;
        let previous = device.apply(&update, RATE, &mut row).map_err(self.failed(what))?;
        self.same_row(what, &stepped, &device.download(&row).map_err(self.failed(what))?)?;
        device.undo(&update, &previous, &mut row).map_err(self.failed(what))?;
        self.same_row("an undoing", theta, &device.download(&row).map_err(self.failed(what))?)
    }

    fn norms(&mut self, layout: &Layout, values: &[f32]) -> Result<(), Disagreement> {
        let what = "norms";
        let row = self.device.upload(layout, values).map_err(self.failed(what))?;
        let got = self.device.norms_squared(layout, &row).map_err(self.failed(what))?;
        let expected = layout.ranges().map(|range| norm::norm_squared_reference(&values[range]).to_bits());
        self.same(what, expected, got.iter().map(|norm| norm.to_bits()))
    }

    fn merge(
        &mut self,
        sent: &Layout,
        merged: &Layout,
        bodies: &[&[u8]],
        buffer: &[f32],
    ) -> Result<(), Disagreement> {
        let what = "a merge";
        let norms: Vec<Vec<f64>> = bodies
            .iter()
            .map(|body| decode::norms(sent, body).map_err(self.cpu(what)))
            .collect::<Result<_, _>>()?;
        let scales = merge::clip_scales(&norms);
        let mut left = buffer.to_vec();
        let body = merge::merge(sent, Rule::MeanOverHits, merged, bodies, &scales, &mut left)
            .map_err(self.cpu(what))?;
        let mut row = self.device.upload(sent, buffer).map_err(self.failed(what))?;
        let got = self
            .device
            .merge(sent, Rule::MeanOverHits, merged, bodies, &scales, &mut row)
            .map_err(self.failed(what))?;
        self.same(what, body.iter(), got.iter())?;
        let got = self.device.download(&row).map_err(self.failed(what))?;
        self.same_row("a merge buffer", &left, &got)
    }
}
