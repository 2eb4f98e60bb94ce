//! Tests of the fast encoder against the reference: the same bytes and the same residual, bit for bit, for every
//! input, density, vector width and number of threads.

use crate::common::bits;
use kernels::{
    encode::{self, EncodeError, Feedback, SectionEncoder, Source},
    lanes::{self, Width},
    wire::{CHUNK, Layout, SECTION},
};
use proptest::prelude::*;
use protocol::{
    contribution::{self, Schema, TensorSpec},
    params::Density,
};
use std::convert::Infallible;

const DENSITIES: [u16; 10] = [1, 2, 63, 64, 65, 256, 512, 1107, 4095, 4096];

/// Runs `body` once for each width that the processor supports, and prints the missing ones.
fn at_every_width(mut body: impl FnMut(Width)) {
    let _turn = crate::WIDTH.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut run = 0;
    for width in Width::ALL {
        if width.is_available() {
            lanes::limit(width);
            assert_eq!(lanes::width(), width);
            body(width);
            run += 1;
        } else {
            println!("{width:?}: not run, this processor lacks it");
        }
    }
    println!("{run} of {} widths run", Width::ALL.len());
    lanes::limit(Width::Avx512);
}

fn schema(lengths: &[usize]) -> Schema {
    let row = |(index, length): (usize, &usize)| TensorSpec {
        name: index.to_string(),
        shape: vec![*length as u32],
    };
    Schema::new(lengths.iter().enumerate().map(row).collect()).unwrap()
}

/// Step before encoding.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    Delta(f32),
    Difference(f32),
}

struct Case {
    lengths: Vec<usize>,
    residual: Vec<f32>,
    before: Vec<f32>,
    after: Vec<f32>,
}

impl Case {
    fn of(lengths: &[usize], residual: Vec<f32>, seed: u32) -> Case {
        let (before, after) = (noise(residual.len(), seed), noise(residual.len(), seed + 1));
        Case { lengths: lengths.to_vec(), residual, before, after }
    }

    fn source(&self, step: Step) -> Source<'_> {
        match step {
            Step::Nothing => Source::Nothing,
            Step::Delta(decay) => Source::Delta { decay, delta: &self.before },
            Step::Difference(decay) => Source::Difference { decay, before: &self.before, after: &self.after },
        }
    }

    /// Returns the body and the new residual, by the reference code.
    fn expected(&self, density: u16, step: Step, feedback: Feedback) -> (Vec<u8>, Vec<f32>) {
        let mut stepped = self.residual.clone();
        match step {
            Step::Nothing => {}
            Step::Delta(decay) => {
                for (entry, delta) in stepped.iter_mut().zip(&self.before) {
                    *entry *= decay;
                    *entry += delta;
                }
            }
            Step::Difference(decay) => {
                for ((entry, before), after) in stepped.iter_mut().zip(&self.before).zip(&self.after) {
                    let difference = before - after;
                    *entry *= decay;
                    *entry += difference;
                }
            }
        }
        let schema = schema(&self.lengths);
        let body = match feedback {
            Feedback::Keep => contribution::encode(&schema, Density(density), &stepped),
            Feedback::Spend => contribution::encode_with_feedback(&schema, Density(density), &mut stepped),
        };
        (body.unwrap(), stepped)
    }

    fn agrees(&self, density: u16, step: Step, feedback: Feedback) {
        let (body, residual) = self.expected(density, step, feedback);
        let layout = Layout::new(&self.lengths, density).unwrap();
        let mut ours = self.residual.clone();
        let encoded = encode::encode(&layout, &mut ours, self.source(step), feedback).unwrap();
        let what =
            || format!("{:?} at {density}, {step:?}, {feedback:?}, {:?}", self.lengths, lanes::width());
        assert!(encoded == body, "the bytes differ: {}", what());
        assert!(bits(&ours) == bits(&residual), "the residual differs: {}", what());
    }
}

/// Returns bell-shaped noise, the same for a seed on every machine.
fn noise(length: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..length).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1e-3).collect()
}

/// Returns difficult inputs for selection, sums or levels, each `length` long.
fn nasty(length: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |value: &dyn Fn(usize) -> f32| (0..length).map(value).collect::<Vec<f32>>();
    let sign = |index: usize| if index.is_multiple_of(2) { 1.0 } else { -1.0 };
    vec![
        ("all zero", of(&|_| 0.0)),
        ("zeros of both signs", of(&|index| 0.0 * sign(index / 3))),
        ("all equal", of(&|_| -0.25)),
        ("equal magnitudes", of(&|index| 0.25 * sign(index / 5))),
        ("one spike", of(&|index| if index == length / 2 { -3.0 } else { 0.0 })),
        ("a spike at the end over ties", of(&|index| if index + 1 == length { 3.0 } else { 1e-4 })),
        ("two values", of(&|index| if index % 97 == 0 { 1e-3 } else { -1e-4 })),
        ("a few ties at the threshold", of(&|index| (index * 7919 % 100) as f32 * 1e-5 * sign(index))),
        ("rising", of(&|index| index as f32 * 1e-6)),
        ("falling", of(&|index| (length - index) as f32 * -1e-6)),
        ("subnormal", of(&|index| f32::from_bits((index * 7919 % 8_388_608) as u32) * sign(index / 2))),
        ("the smallest numbers", of(&|index| f32::from_bits((index % 2) as u32) * sign(index))),
        ("huge", of(&|index| f32::MAX / (1 + index % 5) as f32 * sign(index))),
        ("all the largest", of(&|index| f32::MAX * sign(index))),
        (
            "every exponent",
            of(&|index| f32::from_bits(((index * 37 % 255) << 23 | 0x1234) as u32) * sign(index)),
        ),
        ("alternating magnitudes", of(&|index| if index.is_multiple_of(2) { 1e-20 } else { -1e4 })),
        ("around a level", of(&|index| 2f32.powi(-9) * (1.0 + (index % 16) as f32 / 16.0) * sign(index / 7))),
        (
            "large beside tiny",
            of(&|index| if index % 64 == 3 { 1.0 + index as f32 } else { 1e-30 * index as f32 }),
        ),
        ("noise", noise(length, 5)),
    ]
}

#[test]
fn hard_inputs_give_the_bytes_of_the_format_at_every_width_and_density() {
    at_every_width(|_| {
        for length in [1, 2, 15, 16, 17, 64, 255, 256, 257, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 77]
        {
            for (_, values) in nasty(length) {
                let case = Case::of(&[length], values, 1);
                for density in DENSITIES {
                    case.agrees(density, Step::Nothing, Feedback::Spend);
                }
            }
        }
    });
}

#[test]
fn every_step_and_feedback_gives_the_bits_of_the_format() {
    let lengths = [1, 3 * CHUNK + 5, 1, 300, CHUNK];
    let length = lengths.iter().sum();
    at_every_width(|_| {
        for (_, values) in nasty(length)
            .into_iter()
            .filter(|(name, _)| !["huge", "all the largest", "every exponent"].contains(name))
        {
            let case = Case::of(&lengths, values, 7);
            for step in
                [Step::Nothing, Step::Delta(0.95), Step::Delta(1.0), Step::Delta(0.0), Step::Difference(0.95)]
            {
                for feedback in [Feedback::Keep, Feedback::Spend] {
                    for density in [1, 64, 512, 1107] {
                        case.agrees(density, step, feedback);
                    }
                }
            }
        }
    });
}

#[test]
fn several_sections_give_the_same_bytes_for_every_number_of_threads() {
    let lengths = [5, 2 * SECTION + 3 * CHUNK + 9, 1, SECTION, 700];
    let length = lengths.iter().sum();
    let case = Case::of(&lengths, noise(length, 3), 11);
    for density in [64, 1107] {
        let (body, residual) = case.expected(density, Step::Delta(0.95), Feedback::Spend);
        let layout = Layout::new(&lengths, density).unwrap();
        at_every_width(|_| {
            for threads in [1, 2, 3, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut ours = case.residual.clone();
                let mut encode =
                    || encode::encode(&layout, &mut ours, case.source(Step::Delta(0.95)), Feedback::Spend);
                assert!(pool.install(&mut encode).unwrap() == body);
                assert!(bits(&ours) == bits(&residual));
            }
        });
    }
}

/// Many small sections make more than one batch for any number of threads.
#[test]
fn many_batches_are_handed_on_in_order_as_lengths_and_sections() {
    let lengths: Vec<usize> = (0..333).map(|index| 1 + index * 31 % 300).collect();
    let case = Case::of(&lengths, noise(lengths.iter().sum(), 9), 2);
    let (expected, _) = case.expected(64, Step::Nothing, Feedback::Keep);
    let layout = Layout::new(&lengths, 64).unwrap();
    let mut residual = case.residual.clone();
    let mut in_pieces = || {
        let mut pieces = Vec::new();
        let mut sink = |bytes: &[u8]| {
            pieces.push(bytes.to_vec());
            Ok::<(), Infallible>(())
        };
        let written =
            encode::encode_into(&layout, &mut residual, Source::Nothing, Feedback::Keep, &mut sink).unwrap();
        assert_eq!(written, expected.len() as u64);
        assert_eq!(pieces.len(), 2 * layout.sections().len());
        assert!(pieces.concat() == expected);
    };
    // Called by a thread outside of the pool, and by one inside.
    in_pieces();
    for threads in [1, 2, 3, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&mut in_pieces);
    }
}

fn any_value() -> impl Strategy<Value = f32> {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![-1e-3f32..1e-3, POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO, Just(0.5), Just(-0.5)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_values_give_the_bytes_of_the_format(
        lengths in prop::collection::vec(1usize..6000, 1..4),
        seeds in prop::collection::vec(any_value(), 1..400),
        density in prop_oneof![1u16..=4096, prop::sample::select(&DENSITIES[..])],
        stride in 1usize..1000,
        mixed in any::<bool>(),
    ) {
        let length = lengths.iter().sum();
        let plain = noise(length, stride as u32);
        let values = (0..length).map(|index| {
            let value = seeds[index * stride % seeds.len()];
            if mixed { plain[index] * value.clamp(-1e9, 1e9) } else { value }
        });
        let case = Case::of(&lengths, values.collect(), 4);
        at_every_width(|_| {
            case.agrees(density, Step::Nothing, Feedback::Spend);
            case.agrees(density, Step::Nothing, Feedback::Keep);
        });
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named_whatever_the_threads() {
    let lengths = [10, SECTION + 3 * CHUNK + 9, 5000];
    let length: usize = lengths.iter().sum();
    let layout = Layout::new(&lengths, 64).unwrap();
    let plain = noise(length, 1);
    at_every_width(|_| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for first in [0, 10, 10 + SECTION + CHUNK + 1, 10 + SECTION + 3 * CHUNK + 8, length - 1] {
                let mut values = plain.clone();
                values[first] = bad;
                values[length - 1] = bad;
                let tensor = layout.ranges().position(|range| range.contains(&first)).unwrap();
                let expected = EncodeError::NotFinite {
                    tensor,
                    position: first - layout.ranges().nth(tensor).unwrap().start,
                };

                let mut residual = values.clone();
                let got = encode::encode(&layout, &mut residual, Source::Nothing, Feedback::Keep);
                assert_eq!(got, Err(expected));
                assert!(bits(&residual) == bits(&values), "a residual that is not stepped stays");

                let mut residual = plain.clone();
                let source = Source::Delta { decay: 0.0, delta: &values };
                assert_eq!(encode::encode(&layout, &mut residual, source, Feedback::Keep), Err(expected));
                let mut residual = values.clone();
                let source = Source::Difference { decay: 0.0, before: &plain, after: &plain };
                assert_eq!(encode::encode(&layout, &mut residual, source, Feedback::Spend), Err(expected));
            }
        }
        // Finite before the step, but not after it.
        let mut residual = vec![f32::MAX; length];
        let source = Source::Delta { decay: 1.0, delta: &vec![f32::MAX; length] };
        let expected = EncodeError::NotFinite { tensor: 0, position: 0 };
        assert_eq!(encode::encode(&layout, &mut residual, source, Feedback::Keep), Err(expected));
    });
}

#[test]
fn a_wrong_length_is_refused_and_touches_nothing() {
    let layout = Layout::new(&[10, 20], 64).unwrap();
    let (right, short) = (vec![1.0f32; 30], vec![1.0f32; 29]);
    let refused = |residual: &[f32], source: Source<'_>| {
        let mut stepped = residual.to_vec();
        let error = encode::encode(&layout, &mut stepped, source, Feedback::Spend).unwrap_err();
        assert!(stepped == residual);
        error
    };
    let wrong = EncodeError::WrongLength { expected: 30, got: 29 };
    assert_eq!(refused(&short, Source::Nothing), wrong);
    assert_eq!(refused(&right, Source::Delta { decay: 0.5, delta: &short }), wrong);
    assert_eq!(refused(&right, Source::Difference { decay: 0.5, before: &short, after: &right }), wrong);
    assert_eq!(refused(&right, Source::Difference { decay: 0.5, before: &right, after: &short }), wrong);
}

#[test]
fn what_the_receiver_says_ends_the_encoding() {
    let lengths = vec![100; 200];
    let layout = Layout::new(&lengths, 64).unwrap();
    let mut seen = 0;
    let mut sink = |_: &[u8]| {
        seen += 1;
        if seen == 5 { Err("the disk is full") } else { Ok(()) }
    };
    let got = encode::encode_into(&layout, &mut noise(20_000, 1), Source::Nothing, Feedback::Keep, &mut sink);
    assert_eq!(got, Err(EncodeError::Sink("the disk is full")));
    assert_eq!(seen, 5);
}

#[test]
fn nothing_but_the_chosen_values_changes_when_there_is_no_step() {
    let layout = Layout::new(&[2 * CHUNK], 64).unwrap();
    let mut values = vec![-0.0f32; 2 * CHUNK];
    values[77] = 1.0;
    let mut residual = values.clone();
    encode::encode(&layout, &mut residual, Source::Nothing, Feedback::Keep).unwrap();
    assert!(bits(&residual) == bits(&values));
}

#[test]
fn an_encoder_that_has_refused_a_section_encodes_the_next_as_if_nothing_had_been() {
    let mut encoder = SectionEncoder::default();
    let mut out = vec![7];
    let mut values = noise(3 * CHUNK, 2);
    values[2 * CHUNK + 5] = f32::NAN;
    let refused = encoder.encode(64, &mut values, Source::Nothing, Feedback::Keep, &mut out);
    assert_eq!((refused, &out[..]), (Err(2 * CHUNK + 5), &[7][..]));

    values[2 * CHUNK + 5] = 0.0;
    encoder.encode(64, &mut values.clone(), Source::Nothing, Feedback::Keep, &mut out).unwrap();
    let body = contribution::encode(&schema(&[3 * CHUNK]), Density(64), &values).unwrap();
    assert!(out[1..] == body[4..]);
}
