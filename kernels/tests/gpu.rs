//! Every kernel of `kernels::gpu` gives the bits of `protocol`, on whatever device is here.
//!
//! A software Vulkan device (lavapipe) is enough. Which device is asked for is `GPU_DEVICE`, `vulkan` by default. Where
//! there is none, nothing can be tested, and the tests are counted as ignored, with the reason: so this is a program of its
//! own, which prints what the usual harness prints.

#[path = "common/device.rs"]
mod device;

use device::Test;
use kernels::{
    encode::Feedback,
    gpu::{Decoded, Device, GpuError, OpenError, Source, Values},
    merge::Rule,
    wire::Layout,
};
use protocol::{
    Uid,
    contribution::{self, Schema, Sparse, TensorSpec},
    merge::{self, Input},
    params::{Density, MergeRule},
};

const TESTS: &[Test] = &[
    ("a_residual_is_encoded_as_the_protocol_does", encoded_as_the_protocol),
    ("nasty_chunks_are_encoded_as_the_protocol_does", nasty_chunks),
    ("a_step_comes_before_the_largest_are_chosen", step_before_choice),
    ("steps_in_integers_and_by_the_device_are_the_same", integers_and_hardware),
    ("parts_do_not_show_in_the_bytes", parts_do_not_show),
    ("what_is_not_finite_is_refused_by_tensor_and_position", not_finite),
    ("what_is_decoded_is_what_was_sent", decoded_is_sent),
    ("every_other_spelling_is_refused_where_the_protocol_refuses_it", other_spellings),
    ("sums_and_hits_are_those_of_the_entries", sums_and_hits),
    ("the_merge_is_the_protocols", merge_is_the_protocols),
    ("a_step_is_taken_back_to_the_bit", step_and_back),
    ("norms_are_added_in_the_written_order", norms),
    ("a_row_is_copied", row_is_copied),
    ("rows_of_another_shape_are_refused", other_shapes),
];

fn main() {
    device::main(TESTS)
}

/// Full chunks, short ones, tensors of one value, and one of more than a section.
const LENGTHS: [usize; 6] = [4096, 1, 5000, 300_000, 63, 8192];
const DENSITIES: [u16; 6] = [64, 256, 1, 1000, 4095, 4096];

struct Model {
    schema: Schema,
    layout: Layout,
    density: Density,
}

fn model(lengths: &[usize], density: u16) -> Model {
    let spec = |(index, length): (usize, &usize)| TensorSpec {
        name: format!("tensor {index}"),
        shape: vec![*length as u32],
    };
    Model {
        schema: Schema::new(lengths.iter().enumerate().map(spec).collect()).unwrap(),
        layout: Layout::new(lengths, density).unwrap(),
        density: Density(density),
    }
}

/// The same numbers for the same seed: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let (a, b) = (self.unit().max(1e-300), self.unit());
        ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
    }

    /// A finite f32 of any exponent: also zeros of both signs and denormals.
    fn any(&mut self) -> f32 {
        loop {
            let value = f32::from_bits(self.next() as u32);
            if value.is_finite() {
                return value;
            }
        }
    }

    fn row(&mut self, length: usize, scale: f32) -> Vec<f32> {
        (0..length).map(|_| self.normal() * scale).collect()
    }
}

/// Rows on which a fast encoder may differ from the book.
fn nasty(which: usize, length: usize, random: &mut Random) -> Vec<f32> {
    let tiny = f32::from_bits(1);
    let mut row: Vec<f32> = match which {
        0 => vec![0.0; length],
        1 => (0..length).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect(),
        2 => vec![-0.0; length],
        3 => vec![tiny; length],
        4 => (0..length)
            .map(|i| f32::from_bits(((i as u32 * 37) % 0x0080_0000) | ((i as u32 % 2) << 31)))
            .collect(),
        5 => (0..length).map(|i| if i % 3 == 0 { -0.25 } else { 0.25 }).collect(),
        6 => (0..length).map(|i| [0.5, -0.5, 0.75, -0.125][i % 4]).collect(),
        7 => vec![0.0; length],
        8 => (0..length).map(|_| random.any()).collect(),
        9 => {
            (0..length).map(|_| f32::MAX * if random.next().is_multiple_of(2) { 1.0 } else { -1.0 }).collect()
        }
        10 => (0..length).map(|_| f32::MIN_POSITIVE * (1.0 + random.unit() as f32 - 0.5)).collect(),
        // Sums of 2^24 and small ones, which no f64 of 53 bits holds in every order.
        11 => (0..length)
            .map(|_| (random.unit() * 2.0 - 1.0) as f32 * 2f32.powi(random.next() as i32 % 60))
            .collect(),
        12 => (0..length).map(|i| 1.0 + (i % 7) as f32 * f32::EPSILON).collect(),
        // Levels on both sides of every code, and halfway.
        13 => {
            (0..length).map(|i| 2f32.powi(-32 + (i % 40) as i32) * (1.0 + (i % 16) as f32 / 16.0)).collect()
        }
        // Magnitudes at the encoder's smallest level, and under half of it.
        14 => (0..length).map(|i| [5e-10, 4.6e-10, 9.4e-10, -1.4e-9][i % 4]).collect(),
        _ => random.row(length, 1e-3),
    };
    if which == 7 {
        let at = random.next() as usize % length;
        row[at] = -3.0;
    }
    row
}
const NASTY: usize = 16;

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn same(expected: &[f32], got: &[f32], what: &str) {
    assert_eq!(expected.len(), got.len(), "{what}");
    for (at, (expected, got)) in expected.iter().zip(got).enumerate() {
        assert_eq!(expected.to_bits(), got.to_bits(), "{what}: {expected:e} and not {got:e} at {at}");
    }
}

#[track_caller]
fn same_bytes(expected: &[u8], got: &[u8], what: &str) {
    if expected != got {
        let at = expected.iter().zip(got).position(|(a, b)| a != b);
        panic!("{what}: {} bytes and not {}, first at {at:?}", expected.len(), got.len());
    }
}

/// Encodes on the device and by the book, and compares bytes and what is left.
#[track_caller]
fn check_encode(device: &Device, model: &Model, values: &[f32], what: &str) {
    let mut left = values.to_vec();
    let expected = contribution::encode_with_feedback(&model.schema, model.density, &mut left).unwrap();

    let mut residual = device.upload(&model.layout, values).unwrap();
    let body = device.encode(&model.layout, &mut residual, Source::Nothing, Feedback::Keep).unwrap();
    same_bytes(&expected, &body, what);
    same(values, &device.download(&residual).unwrap(), what);

    let body = device.encode(&model.layout, &mut residual, Source::Nothing, Feedback::Spend).unwrap();
    same_bytes(&expected, &body, what);
    same(&left, &device.download(&residual).unwrap(), what);
}

fn encoded_as_the_protocol(device: &Device) {
    let mut random = Random(1);
    for density in DENSITIES {
        let model = model(&LENGTHS, density);
        let values = random.row(model.layout.values(), 0.01);
        check_encode(device, &model, &values, &format!("density {density}"));
    }
}

fn nasty_chunks(device: &Device) {
    let mut random = Random(2);
    for density in [64, 700, 4096] {
        let model = model(&[3 * 4096 + 100, 9, 4096], density);
        for which in 0..NASTY {
            let values = nasty(which, model.layout.values(), &mut random);
            check_encode(device, &model, &values, &format!("nasty {which} at density {density}"));
        }
    }
}

/// The residual after its step, by the book.
fn stepped(residual: &[f32], decay: f32, delta: impl Fn(usize) -> f32) -> Vec<f32> {
    residual
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let product = decay * value;
            product + delta(at)
        })
        .collect()
}

#[track_caller]
fn check_step(device: &Device, model: &Model, residual: &[f32], before: &[f32], after: &[f32], what: &str) {
    for decay in [0.95f32, 1.0] {
        let upload = |row: &[f32]| device.upload(&model.layout, row).unwrap();
        let mut expected = stepped(residual, decay, |at| before[at]);
        if expected.iter().all(|value| value.is_finite()) {
            let body =
                contribution::encode_with_feedback(&model.schema, model.density, &mut expected).unwrap();
            let mut row = upload(residual);
            let delta = upload(before);
            let source = Source::Delta { decay, delta: &delta };
            let got = device.encode(&model.layout, &mut row, source, Feedback::Spend).unwrap();
            same_bytes(&body, &got, what);
            same(&expected, &device.download(&row).unwrap(), what);
        }
        let expected = stepped(residual, decay, |at| before[at] - after[at]);
        if expected.iter().all(|value| value.is_finite()) {
            let body = contribution::encode(&model.schema, model.density, &expected).unwrap();
            let mut row = upload(residual);
            let (before, after) = (upload(before), upload(after));
            let source = Source::Difference { decay, before: &before, after: &after };
            let got = device.encode(&model.layout, &mut row, source, Feedback::Keep).unwrap();
            same_bytes(&body, &got, what);
            same(&expected, &device.download(&row).unwrap(), what);
        }
    }
}

fn step_before_choice(device: &Device) {
    let mut random = Random(3);
    let model = model(&[5000, 77, 2 * 4096], 64);
    let values = model.layout.values();
    for which in 0..NASTY {
        let residual = nasty(which, values, &mut random);
        let before = nasty((which * 7 + 3) % NASTY, values, &mut random);
        let after = nasty((which * 5 + 1) % NASTY, values, &mut random);
        check_step(device, &model, &residual, &before, &after, &format!("step {which}"));
    }
    let (residual, before) = (random.row(values, 1e-3), random.row(values, 1e-4));
    check_step(device, &model, &residual, &before, &residual, "plain");
    // Denormals meet normal numbers, and what is left of them is denormal.
    let residual: Vec<f32> = (0..values).map(|_| random.normal() * 1e-38).collect();
    let before: Vec<f32> = (0..values).map(|_| random.normal() * 1e-39).collect();
    check_step(device, &model, &residual, &before, &residual, "denormal");
}

fn integers_and_hardware(_: &Device) {
    let name = std::env::var("GPU_DEVICE").unwrap_or_else(|_| "vulkan".into());
    let device = Device::open(&name).unwrap().in_integers();
    assert!(!device.hardware());
    step_before_choice(&device);
}

fn parts_do_not_show(_: &Device) {
    let name = std::env::var("GPU_DEVICE").unwrap_or_else(|_| "vulkan".into());
    let device = Device::open(&name).unwrap().in_parts_of(0);
    let mut random = Random(4);
    let model = model(&[600_000, 5, 300_000, 4096], 64);
    let values = random.row(model.layout.values(), 0.3);
    check_encode(&device, &model, &values, "in parts");
    let body = contribution::encode(&model.schema, model.density, &values).unwrap();
    check_decoded(&device, &model, &body, "in parts");
    check_norms(&device, &model, &values, "in parts");
}

fn not_finite(device: &Device) {
    let model = model(&[5000, 300_000, 70], 64);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (at, tensor, position) in [(4999, 0, 4999), (5000 + 270_000, 1, 270_000), (305_001, 2, 1)] {
            let mut values = vec![1.0; model.layout.values()];
            values[at] = bad;
            values[305_069] = bad;
            let mut row = device.upload(&model.layout, &values).unwrap();
            let refused = device.encode(&model.layout, &mut row, Source::Nothing, Feedback::Spend);
            assert_eq!(refused, Err(GpuError::NotFinite { tensor, position }));
        }
    }
    // A step that overflows, of finite numbers.
    let mut row = device.upload(&model.layout, &vec![f32::MAX; model.layout.values()]).unwrap();
    let delta = device.upload(&model.layout, &vec![f32::MAX; model.layout.values()]).unwrap();
    let source = Source::Delta { decay: 1.0, delta: &delta };
    let refused = device.encode(&model.layout, &mut row, source, Feedback::Spend);
    assert_eq!(refused, Err(GpuError::NotFinite { tensor: 0, position: 0 }));
}

/// A contribution as a dense row, and which positions it sent.
fn dense(model: &Model, update: &Sparse) -> (Vec<f32>, Vec<u32>) {
    let (mut values, mut hits) = (vec![0.0f32; model.layout.values()], vec![0; model.layout.values()]);
    for (range, tensor) in model.schema.ranges().zip(&update.tensors) {
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            values[range.start + *position as usize] += value;
            hits[range.start + *position as usize] += 1;
        }
    }
    (values, hits)
}

/// The entries of a decoded body: what they add to rows of zeros.
fn entries(device: &Device, model: &Model, update: &Decoded) -> (Vec<f32>, Vec<u32>) {
    let (mut sums, mut hits) = (device.zeros(&model.layout), device.zeros(&model.layout));
    device.accumulate(update, &vec![1.0; model.layout.tensors()], &mut sums, &mut hits).unwrap();
    (device.download(&sums).unwrap(), device.download_words(&hits).unwrap())
}

#[track_caller]
fn check_decoded(device: &Device, model: &Model, body: &[u8], what: &str) {
    let expected = contribution::decode(&model.schema, model.density, body).unwrap();
    let update = device.decode(&model.layout, body).unwrap();
    let (sums, hits) = entries(device, model, &update);
    let (expected_sums, expected_hits) = dense(model, &expected);
    same(&expected_sums, &sums, what);
    assert_eq!(expected_hits, hits, "{what}");
    for (tensor, norm) in expected.tensors.iter().zip(update.square_norms()) {
        assert_eq!(tensor.square_norm.to_bits(), norm.to_bits(), "{what}: the norm");
    }
}

fn decoded_is_sent(device: &Device) {
    let mut random = Random(5);
    for density in DENSITIES {
        let model = model(&LENGTHS, density);
        let body =
            contribution::encode(&model.schema, model.density, &random.row(model.layout.values(), 2.0))
                .unwrap();
        check_decoded(device, &model, &body, &format!("density {density}"));
    }
    let model = model(&[3 * 4096 + 100, 9, 4096], 64);
    for which in 0..NASTY {
        let values = nasty(which, model.layout.values(), &mut random);
        let body = contribution::encode(&model.schema, model.density, &values).unwrap();
        check_decoded(device, &model, &body, &format!("nasty {which}"));
    }
}

fn other_spellings(device: &Device) {
    // Many small tensors, each a section: one body carries many faults at a time would hide all but one, so a body a fault.
    let mut random = Random(6);
    let model = model(&[40, 100, 4200], 512);
    let mut values = random.row(model.layout.values(), 0.5);
    values[..20].fill(0.0);
    let good = contribution::encode(&model.schema, model.density, &values).unwrap();
    let mut refused = 0;
    let mut check = |body: &[u8], what: &str| {
        let expected = contribution::decode(&model.schema, model.density, body).is_ok();
        let got = match device.decode(&model.layout, body) {
            Ok(_) => true,
            Err(GpuError::Rejected { .. }) => false,
            Err(error) => panic!("{what}: {error}"),
        };
        assert_eq!(expected, got, "{what}");
        refused += u32::from(!expected);
    };
    check(&good, "the body itself");
    let bits = 8 * good.len();
    // Every bit of the first sections, and some of the rest.
    for bit in (0..bits.min(700)).chain((700..bits).step_by(23)) {
        let mut body = good.clone();
        body[bit / 8] ^= 1 << (bit % 8);
        check(&body, &format!("bit {bit}"));
    }
    for length in [0, 1, 3, 4, 10, good.len() / 2, good.len() - 1] {
        check(&good[..length], &format!("cut to {length}"));
    }
    check(&[&good[..], &[0]].concat(), "drawn out");
    for round in 0..60 {
        let mut body = good.clone();
        for _ in 0..1 + round % 5 {
            let at = random.next() as usize % body.len();
            body[at] = random.next() as u8;
        }
        check(&body, &format!("spoilt {round}"));
    }
    // A length that promises more than there is, and one of all ones.
    for length in [u32::MAX, 1 << 20, 0] {
        let mut body = good.clone();
        body[..4].copy_from_slice(&length.to_le_bytes());
        check(&body, &format!("length {length}"));
    }
    assert!(refused > 300, "{refused} of the bodies were refused");
}

fn sums_and_hits(device: &Device) {
    let mut random = Random(7);
    let model = model(&LENGTHS, 300);
    let tensors = model.layout.tensors();
    let (mut sums, mut hits) = (device.zeros(&model.layout), device.zeros(&model.layout));
    let (mut expected_sums, mut expected_hits) =
        (vec![0.0f32; model.layout.values()], vec![0; model.layout.values()]);
    for round in 0..4 {
        let values = random.row(model.layout.values(), 10f32.powi(-3 * round));
        let body = contribution::encode(&model.schema, model.density, &values).unwrap();
        let scales: Vec<f32> = (0..tensors).map(|_| random.unit() as f32).collect();
        let update = device.decode(&model.layout, &body).unwrap();
        device.accumulate(&update, &scales, &mut sums, &mut hits).unwrap();
        let update = contribution::decode(&model.schema, model.density, &body).unwrap();
        for ((range, tensor), scale) in model.schema.ranges().zip(&update.tensors).zip(&scales) {
            for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                let scaled = scale * value;
                expected_sums[range.start + *position as usize] += scaled;
                expected_hits[range.start + *position as usize] += 1;
            }
        }
    }
    same(&expected_sums, &device.download(&sums).unwrap(), "sums");
    assert_eq!(expected_hits, device.download_words(&hits).unwrap());
}

fn merge_is_the_protocols(device: &Device) {
    let mut random = Random(8);
    for (count, rule, theirs) in [
        (1, Rule::MeanOverHits, MergeRule::MeanOverHits),
        (7, Rule::MeanOverHits, MergeRule::MeanOverHits),
        (5, Rule::MeanOverAll, MergeRule::MeanOverAll),
        (24, Rule::MeanOverHits, MergeRule::MeanOverHits),
    ] {
        let (sent, merged) = (model(&LENGTHS, 64), model(&LENGTHS, 700));
        let values = sent.layout.values();
        let bodies: Vec<Vec<u8>> = (0..count)
            .map(|which| {
                let row = match which % 4 {
                    3 => nasty(which, values, &mut random),
                    _ => random.row(values, 1e-3 * (1 + which) as f32),
                };
                contribution::encode(&sent.schema, sent.density, &row).unwrap()
            })
            .collect();
        let updates: Vec<Sparse> = bodies
            .iter()
            .map(|body| contribution::decode(&sent.schema, sent.density, body).unwrap())
            .collect();
        let inputs: Vec<Input<'_>> =
            (0..).zip(&updates).map(|(uid, update)| Input { uid: Uid(uid), update }).collect();
        let scales = merge::clip_scales(&updates.iter().collect::<Vec<_>>());

        let mut buffer = random.row(values, 1e-4);
        let mut on_device = device.upload(&sent.layout, &buffer).unwrap();
        let expected = merge::merge(&sent.schema, theirs, merged.density, &inputs, &mut buffer).unwrap();
        let slices: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let body =
            device.merge(&sent.layout, rule, &merged.layout, &slices, &scales, &mut on_device).unwrap();
        same_bytes(&expected, &body, &format!("merge of {count}"));
        same(&buffer, &device.download(&on_device).unwrap(), &format!("buffer after a merge of {count}"));
    }
    let model = model(&LENGTHS, 64);
    let mut buffer = device.zeros(&model.layout);
    let nothing = device.merge(&model.layout, Rule::MeanOverHits, &model.layout, &[], &[], &mut buffer);
    assert_eq!(nothing, Err(GpuError::Inputs));
}

fn step_and_back(device: &Device) {
    let mut random = Random(9);
    let model = model(&LENGTHS, 1000);
    let body =
        contribution::encode(&model.schema, model.density, &random.row(model.layout.values(), 0.1)).unwrap();
    let update = contribution::decode(&model.schema, model.density, &body).unwrap();
    let on_device = device.decode(&model.layout, &body).unwrap();
    for which in [1, 4, 8, 12, 15] {
        let theta: Vec<f32> = nasty(which, model.layout.values(), &mut random);
        for rate in [0.7f32, 0.14, 1e-38] {
            let mut row = device.upload(&model.layout, &theta).unwrap();
            let mut expected = theta.clone();
            merge::apply(&model.schema, &mut expected, &update, rate);
            let previous = device.apply(&on_device, rate, &mut row).unwrap();
            same(&expected, &device.download(&row).unwrap(), &format!("{which} at {rate}"));
            device.undo(&on_device, &previous, &mut row).unwrap();
            same(&theta, &device.download(&row).unwrap(), "taken back");
        }
        let (sent, hits) = dense(&model, &update);
        let expected: Vec<f32> = theta
            .iter()
            .zip(sent.iter().zip(hits))
            .map(|(theta, (sent, hits))| if hits > 0 { theta - sent } else { *theta })
            .collect();
        let mut row = device.upload(&model.layout, &theta).unwrap();
        device.subtract_sent(&on_device, &mut row).unwrap();
        same(&expected, &device.download(&row).unwrap(), "spent");
    }
}

#[track_caller]
fn check_norms(device: &Device, model: &Model, values: &[f32], what: &str) {
    let row = device.upload(&model.layout, values).unwrap();
    let norms = device.norms_squared(&model.layout, &row).unwrap();
    for (range, norm) in model.layout.ranges().zip(norms) {
        let expected = kernels::norm::norm_squared_reference(&values[range]);
        assert_eq!(expected.to_bits(), norm.to_bits(), "{what}: {expected:e} and not {norm:e}");
    }
}

fn norms(device: &Device) {
    let mut random = Random(10);
    let model = model(&LENGTHS, 64);
    for which in 0..NASTY {
        let values = nasty(which, model.layout.values(), &mut random);
        check_norms(device, &model, &values, &format!("nasty {which}"));
    }
}

fn row_is_copied(device: &Device) {
    let model = model(&[300_001, 5], 64);
    let values = Random(11).row(model.layout.values(), 1.0);
    let (from, mut to) = (device.upload(&model.layout, &values).unwrap(), device.zeros(&model.layout));
    device.copy(&from, &mut to).unwrap();
    device.finish().unwrap();
    same(&values, &device.download(&to).unwrap(), "a copy");
    assert_eq!(device.copy(&from, &mut device.zeros(&other_layout())), Err(GpuError::OtherParts));
}

fn other_layout() -> Layout {
    Layout::new(&[300_000], 64).unwrap()
}

fn other_shapes(device: &Device) {
    let (one, other) = (model(&[4096], 64), model(&[4097], 64));
    let wrong = GpuError::WrongLength { expected: 4096, got: 4097 };
    assert_eq!(device.upload(&one.layout, &[0.0; 4097]).err(), Some(wrong.clone()));
    let mut row: Values = device.zeros(&other.layout);
    assert_eq!(device.encode(&one.layout, &mut row, Source::Nothing, Feedback::Keep), Err(wrong));
    assert_eq!(bits(&device.download(&row).unwrap()), vec![0; 4097]);
    let body = contribution::encode(&one.schema, one.density, &[1.0; 4096]).unwrap();
    let update = device.decode(&one.layout, &body).unwrap();
    let (mut sums, mut hits) = (device.zeros(&one.layout), device.zeros(&one.layout));
    assert_eq!(
        device.accumulate(&update, &[], &mut sums, &mut hits),
        Err(GpuError::WrongScales { expected: 1, got: 0 })
    );
    assert_eq!(Device::open("vulcan").err(), Some(OpenError::UnknownName("vulcan".into())));
    assert!(matches!(
        Device::open("cuda:4000").err(),
        Some(OpenError::NotBuilt { .. } | OpenError::NotFound { .. })
    ));
}
