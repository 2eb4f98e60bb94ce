//! Tests of every decoder against the protocol's: the same accepted bodies and the same numbers, for every vector
//! width and number of threads.

#[path = "../../../protocol/fuzz/fast.rs"]
mod fast;

use crate::common::bits;
use kernels::{
    accumulate::accumulate,
    decode::{self, Rejected, StreamDecoder},
    lanes::{Width, limit},
    merge::{self, MergeError, Rule},
    unpack,
    wire::Layout,
};
use proptest::prelude::*;
use protocol::{
    Digest, RunId, Uid, Window,
    contribution::{self, Schema, Sparse, TensorSpec},
    merge::{Input, open_update},
    norms::RunningNorms,
    params::{Density, MergeRule},
};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    fs,
    path::PathBuf,
    sync::{LazyLock, Mutex, PoisonError},
};

/// Lengths of tensors with a single value, a full chunk, and a short last chunk.
const LENGTHS: [usize; 5] = [1, 4096, 63, 5000, 4097];
/// Lengths of a tensor of three sections, the last one short, between two small tensors.
const SECTIONS: [usize; 3] = [100, 2 * 262_144 + 9_000, 4096];
const DENSITIES: [u16; 7] = [1, 2, 64, 65, 512, 1107, 4096];

fn schema(lengths: &[usize]) -> Schema {
    let row = |(index, length): (usize, &usize)| TensorSpec {
        name: index.to_string(),
        shape: vec![*length as u32],
    };
    Schema::new(lengths.iter().enumerate().map(row).collect()).unwrap()
}

/// Runs `check` at every width that the processor supports, each with another number of threads.
fn at_every_width(check: impl Fn() + Sync) {
    static POOLS: LazyLock<Vec<ThreadPool>> = LazyLock::new(|| {
        let pool = |threads| ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        [1, 2, 3, 7].map(pool).into()
    });
    static TURN: Mutex<usize> = Mutex::new(0);
    // A failed test is reported; the others may continue.
    let _alone = crate::WIDTH.lock().unwrap_or_else(PoisonError::into_inner);
    for width in Width::available() {
        limit(width);
        let mut turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        *turn += 1;
        POOLS[*turn % POOLS.len()].install(&check);
    }
    limit(Width::Avx512);
}

/// Returns standard normal values.
fn gaussian(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    };
    let normal =
        |_| ((-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32;
    (0..count).map(normal).collect()
}

/// Values whose debug output is their start: a failing case is reproduced by its seed.
#[derive(Clone)]
struct Values(Vec<f32>);

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values, {:?}…", self.0.len(), &self.0[..self.0.len().min(8)])
    }
}

/// Generates all kinds of finite floats, alone and mixed, and values that are concentrated at one end of each chunk.
fn values(count: usize) -> impl Strategy<Value = Values> {
    let kinds = prop_oneof![
        Just(0.0f32),
        Just(-0.0f32),
        Just(f32::from_bits(1)),
        Just(f32::MAX),
        Just(-1.5e-9f32),
        (-2.0f32..2.0),
        any::<f32>().prop_filter("finite", |value| value.is_finite()),
    ];
    prop_oneof![
        any::<u64>().prop_map(move |seed| gaussian(seed, count)),
        (any::<u64>(), -30i32..4).prop_map(move |(seed, scale)| gaussian(seed, count)
            .iter()
            .map(|x| x * 2f32.powi(scale))
            .collect()),
        kinds.clone().prop_map(move |value| vec![value; count]),
        (any::<u64>(), 0usize..4096).prop_map(move |(seed, edge)| gaussian(seed, count)
            .into_iter()
            .enumerate()
            .map(|(index, x)| if index % 4096 < edge { x * 1e-9 } else { x })
            .collect()),
        (any::<u64>(), prop::collection::vec(kinds, 1..8)).prop_map(move |(seed, kinds)| {
            let pick = |x: f32| kinds[(x.abs() * 1e4) as usize % kinds.len()];
            gaussian(seed, count).into_iter().map(pick).collect()
        }),
    ]
    .prop_map(Values)
}

fn density() -> impl Strategy<Value = u16> {
    prop_oneof![4 => prop::sample::select(&DENSITIES[..]), 1 => 1u16..=4096]
}

/// Damage to a body.
#[derive(Clone, Debug)]
enum Damage {
    Flip {
        at: usize,
        bits: u8,
    },
    Set {
        at: usize,
        byte: u8,
    },
    Cut {
        at: usize,
    },
    Append(Vec<u8>),
    Remove {
        at: usize,
    },
    Insert {
        at: usize,
        byte: u8,
    },
    /// Changes the first byte of a section, its Rice parameter.
    Rice {
        section: usize,
        rice: u8,
    },
    /// Changes the levels of a section's first chunk.
    Levels {
        section: usize,
        lo: u8,
        hi: u8,
    },
    /// Changes the length before a section.
    Length {
        section: usize,
        length: u32,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let section = 0usize..8;
    prop_oneof![
        6 => (any::<usize>(), 0u32..8).prop_map(|(at, bit)| Damage::Flip { at, bits: 1 << bit }),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set { at, byte }),
        1 => any::<usize>().prop_map(|at| Damage::Cut { at }),
        1 => prop::collection::vec(any::<u8>(), 1..20).prop_map(Damage::Append),
        1 => any::<usize>().prop_map(|at| Damage::Remove { at }),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert { at, byte }),
        2 => (section.clone(), 0u8..15).prop_map(|(section, rice)| Damage::Rice { section, rice }),
        2 => (section.clone(), any::<u8>(), 0u8..3)
            .prop_map(|(section, lo, more)| Damage::Levels { section, lo, hi: lo.wrapping_add(more) }),
        1 => (section, prop_oneof![any::<u32>(), 0u32..9000])
            .prop_map(|(section, length)| Damage::Length { section, length }),
    ]
}

impl Damage {
    fn to(&self, layout: &Layout, body: &mut Vec<u8>) {
        let starts = || {
            let mut at = 0;
            decode::split(layout, body).map_or_else(
                |_| vec![0],
                |sections| {
                    sections
                        .iter()
                        .map(|section| {
                            let start = at;
                            at += 4 + section.len();
                            start
                        })
                        .collect()
                },
            )
        };
        let start = |section: &usize| {
            let starts = starts();
            starts[section % starts.len()]
        };
        if body.len() < 8 {
            return;
        }
        match self {
            Damage::Flip { at, bits } => {
                let at = at % body.len();
                body[at] ^= bits
            }
            Damage::Set { at, byte } => {
                let at = at % body.len();
                body[at] = *byte
            }
            Damage::Cut { at } => body.truncate(at % body.len()),
            Damage::Append(bytes) => body.extend_from_slice(bytes),
            Damage::Remove { at } => {
                body.remove(at % body.len());
            }
            Damage::Insert { at, byte } => body.insert(at % body.len(), *byte),
            Damage::Rice { section, rice } => {
                let at = start(section) + 4;
                body[at] = *rice
            }
            Damage::Levels { section, lo, hi } => {
                let at = start(section) + 5;
                body[at..at + 2].copy_from_slice(&[*lo, *hi]);
            }
            Damage::Length { section, length } => {
                let at = start(section);
                body[at..at + 4].copy_from_slice(&length.to_le_bytes());
            }
        }
    }
}

/// Levels of a chunk, and gap, sign and magnitude of every entry.
type SpelledChunk = ([u8; 2], Vec<(u16, bool, bool)>);

/// Section in explicit form: well-formed for any parameter, canonical or not.
#[derive(Clone, Debug)]
struct Spelling {
    rice: u8,
    chunks: Vec<SpelledChunk>,
    /// Bits after the section.
    behind: Vec<bool>,
}

/// Length of its tensor, of which 32 in 4096 values are sent.
const SPELLED: usize = 4096 + 600;

/// Generates sections with rare mistakes of every kind: most have one or none.
fn spelling() -> impl Strategy<Value = Spelling> {
    let levels = (
        prop_oneof![1 => Just(0u8), 4 => any::<u8>()],
        prop_oneof![12 => 1i8..9, 1 => Just(0i8), 1 => -8i8..0],
    )
        .prop_map(|(lo, more)| [lo, lo.saturating_add_signed(more)]);
    let chunk = move |count: usize, room: u16| {
        let gaps = prop_oneof![
            4 => prop::collection::vec(0..room * 3 / 2 / count as u16, count),
            1 => prop::collection::vec(0..3u16, count),
            1 => (prop::collection::vec(0..3u16, count), 0..count, 0..room + 9)
                .prop_map(|(mut gaps, at, far)| { gaps[at] = far; gaps }),
        ];
        let signs = prop_oneof![1 => Just(u32::MAX), 2 => Just(0), 3 => any::<u32>()];
        let magnitudes = prop_oneof![1 => Just(u32::MAX), 1 => Just(0), 12 => any::<u32>()];
        let entries = (gaps, signs, magnitudes).prop_map(|(gaps, signs, magnitudes)| {
            let entry = |(at, gap)| (gap, signs >> at & 1 == 1, magnitudes >> at & 1 == 1);
            gaps.into_iter().enumerate().map(entry).collect::<Vec<_>>()
        });
        (levels.clone(), entries)
    };
    let rice = prop_oneof![6 => Just(None), 1 => (0u8..=14).prop_map(Some)];
    let off = prop_oneof![6 => Just(0i8), 1 => Just(-1), 1 => Just(1)];
    let behind = prop_oneof![6 => Just(vec![]), 1 => prop::collection::vec(any::<bool>(), 0..16)];
    (chunk(32, 4096), chunk(5, 600), rice, off, behind).prop_map(|(first, second, rice, off, behind)| {
        let gaps = || first.1.iter().chain(&second.1).map(|entry| u32::from(entry.0));
        let length = |rice: &u8| gaps().map(|gap| (gap >> rice) + 1 + u32::from(*rice)).sum::<u32>();
        let best = (0..=12).min_by_key(length).unwrap();
        let rice = rice.unwrap_or(best.saturating_add_signed(off));
        Spelling { rice, chunks: vec![first, second], behind }
    })
}

impl Spelling {
    fn body(&self) -> Vec<u8> {
        let mut bits = Vec::new();
        let entries = || self.chunks.iter().flat_map(|chunk| &chunk.1);
        for (gap, _, _) in entries() {
            bits.extend((0..gap >> self.rice).map(|_| true));
            bits.push(false);
            bits.extend((0..self.rice).map(|bit| gap >> bit & 1 == 1));
        }
        bits.extend(entries().map(|entry| entry.1));
        bits.extend(entries().map(|entry| entry.2));
        bits.extend(&self.behind);
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        let levels: Vec<u8> = self.chunks.iter().flat_map(|chunk| chunk.0).collect();
        let section = [vec![self.rice], levels, bits.chunks(8).map(byte).collect()].concat();
        [&(section.len() as u32).to_le_bytes()[..], &section].concat()
    }
}

/// Returns one contribution, and the protocol's decoding of it.
fn sent(schema: &Schema, density: u16, values: &[f32]) -> (Vec<u8>, Sparse) {
    let body = contribution::encode(schema, Density(density), values).unwrap();
    let update = contribution::decode(schema, Density(density), &body).unwrap();
    (body, update)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded_as_the_protocol_does(
        density in density(), Values(values) in values(13_257), piece in 1usize..5000,
    ) {
        let (schema, layout) = (schema(&LENGTHS), Layout::new(&LENGTHS, density).unwrap());
        let (body, _) = sent(&schema, density, &values);
        at_every_width(|| fast::check(&schema, &layout, &body, piece));
    }

    #[test]
    fn a_damaged_body_is_accepted_if_the_protocol_accepts_it(
        density in density(),
        Values(values) in values(13_257),
        damages in prop::collection::vec(prop::collection::vec(damage(), 1..3), 1..24),
    ) {
        let (schema, layout) = (schema(&LENGTHS), Layout::new(&LENGTHS, density).unwrap());
        let (body, _) = sent(&schema, density, &values);
        for damage in damages {
            let mut damaged = body.clone();
            damage.iter().for_each(|damage| damage.to(&layout, &mut damaged));
            at_every_width(|| fast::check(&schema, &layout, &damaged, 1 + damaged.len() / 3));
        }
    }

    #[test]
    fn any_bytes_are_accepted_if_the_protocol_accepts_them(
        density in density(),
        sections in prop::collection::vec(
            (0u8..14, prop::collection::vec(any::<u8>(), 0..64), 0.0f64..1.0, any::<u8>(), 0.0f64..0.2), 5),
    ) {
        // The lengths are possible, so that the remaining bytes decide.
        let (schema, layout) = (schema(&LENGTHS), Layout::new(&LENGTHS, density).unwrap());
        let mut body = Vec::new();
        for ((rice, pattern, fill, byte, longer), place) in sections.iter().zip(layout.sections()) {
            let (shortest, longest) =
                (unpack::smallest(density, place.values.len()), unpack::largest(density, place.values.len()));
            let length = shortest + ((longest - shortest) as f64 * longer) as usize;
            body.extend_from_slice(&(length as u32).to_le_bytes());
            body.push(*rice);
            let patterned = (length as f64 * fill) as usize;
            let random = pattern.iter().chain([byte]).copied().cycle().take(patterned.min(length - 1));
            let before = body.len();
            body.extend(random);
            body.resize(before + length - 1, *byte);
        }
        at_every_width(|| fast::check(&schema, &layout, &body, 777));
    }

    #[test]
    fn of_all_spellings_those_are_accepted_that_the_protocol_accepts(
        spellings in prop::collection::vec(spelling(), 32),
    ) {
        let (schema, layout) = (schema(&[SPELLED]), Layout::new(&[SPELLED], 32).unwrap());
        for body in spellings.iter().map(Spelling::body) {
            at_every_width(|| fast::check(&schema, &layout, &body, 50));
        }
    }

    #[test]
    fn bytes_without_any_form_are_refused_alike(body in prop::collection::vec(any::<u8>(), 0..300), density in density()) {
        let lengths = [1, 40, 100];
        let (schema, layout) = (schema(&lengths), Layout::new(&lengths, density).unwrap());
        at_every_width(|| fast::check(&schema, &layout, &body, 1));
    }

    #[test]
    fn steps_and_what_is_left_are_the_protocols_to_the_bit(
        density in density(), Values(values) in values(13_257), Values(theta) in values(13_257), rate in -2.0f32..2.0,
    ) {
        let (schema, layout) = (schema(&LENGTHS), Layout::new(&LENGTHS, density).unwrap());
        let mut left = values.clone();
        let body = contribution::encode_with_feedback(&schema, Density(density), &mut left).unwrap();
        let update = contribution::decode(&schema, Density(density), &body).unwrap();
        let mut stepped = theta.clone();
        protocol::merge::apply(&schema, &mut stepped, &update, rate);

        at_every_width(|| {
            let mut ours = theta.clone();
            merge::apply(&layout, &body, rate, &mut ours).unwrap();
            assert!(bits(&ours) == bits(&stepped), "the stepped models differ");
            for rate in [rate, rate * 1e-9, 0.0] {
                let mut stepped = theta.clone();
                protocol::merge::apply(&schema, &mut stepped, &update, rate);
                let changed = theta.iter().zip(&stepped).any(|(before, after)| before != after);
                assert_eq!(merge::changes_any(&layout, &body, rate, &theta), Ok(changed));
            }
            let mut ours = values.clone();
            merge::subtract_sent(&layout, &body, &mut ours).unwrap();
            assert!(bits(&ours) == bits(&left), "what is left differs");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_merge_is_the_protocols_to_the_bit(
        density in density(),
        merged in density(),
        rows in prop::collection::vec(values(13_257), 1..9),
        Values(buffer) in values(13_257),
        small in any::<bool>(),
    ) {
        let scale = |x: f32| if small { x * 1e-5 } else { x.clamp(-1e30, 1e30) };
        let buffer: Vec<f32> = buffer.into_iter().map(scale).collect();
        let rows: Vec<Vec<f32>> = rows.into_iter().map(|Values(row)| row).collect();
        merges_alike(&LENGTHS, density, merged, &rows, &buffer);
    }
}

fn merges_alike(lengths: &[usize], density: u16, merged: u16, rows: &[Vec<f32>], buffer: &[f32]) {
    let schema = schema(lengths);
    let layout = Layout::new(lengths, density).unwrap();
    let merged_layout = Layout::new(lengths, merged).unwrap();
    let (bodies, updates): (Vec<_>, Vec<_>) = rows.iter().map(|row| sent(&schema, density, row)).unzip();
    let bodies: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
    let inputs: Vec<_> =
        (0..).zip(&updates).map(|(uid, update)| Input { uid: Uid(uid), weight: uid % 3, update }).collect();
    let weights: Vec<u16> = inputs.iter().map(|input| input.weight).collect();

    for (rule, slow_rule) in
        [(Rule::MeanOverHits, MergeRule::MeanOverHits), (Rule::MeanOverAll, MergeRule::MeanOverAll)]
    {
        let mut expected_left = buffer.to_vec();
        let expected = protocol::merge::merge(
            &schema,
            slow_rule,
            Density(merged),
            &inputs,
            &RunningNorms::default(),
            &mut expected_left,
        )
        .unwrap()
        .body;
        at_every_width(|| {
            let norms: Vec<_> = bodies.iter().map(|body| decode::norms(&layout, body).unwrap()).collect();
            let references = protocol::merge::reference_norms(&norms, &weights, &RunningNorms::default());
            let scales = protocol::merge::clip_scales(&norms, &references);
            let mut left = buffer.to_vec();
            let body = merge::merge(&layout, rule, &merged_layout, &bodies, &scales, &mut left).unwrap();
            assert!(body == expected, "the merged bodies differ");
            assert!(bits(&left) == bits(&expected_left), "the merge buffers differ");
        });
    }
}

#[test]
fn tensors_of_many_sections_are_decoded_and_merged_as_the_protocol_does() {
    let count = SECTIONS.iter().sum();
    let schema = schema(&SECTIONS);
    let row = gaussian(1, count);
    for density in DENSITIES {
        let layout = Layout::new(&SECTIONS, density).unwrap();
        let (body, _) = sent(&schema, density, &row);
        at_every_width(|| fast::check(&schema, &layout, &body, 100_000));
    }
    let rows: Vec<Vec<f32>> = (0..5u8)
        .map(|seed| gaussian(seed.into(), count).iter().map(|x| x * f32::from(seed + 1)).collect())
        .collect();
    merges_alike(&SECTIONS, 64, 307, &rows, &gaussian(9, count));
}

#[test]
fn more_inputs_than_a_byte_counts_are_merged_as_the_protocol_does() {
    // All inputs have the same positions.
    let row: Vec<f32> = gaussian(5, 5000);
    merges_alike(&[5000], 64, 65, &vec![row; 300], &vec![0.0; 5000]);
}

#[test]
fn a_body_may_arrive_in_pieces_of_any_length() {
    let (schema, layout) = (schema(&LENGTHS), Layout::new(&LENGTHS, 64).unwrap());
    let (body, _) = sent(&schema, 64, &gaussian(3, 13_257));
    for piece in (1..12).chain([100, body.len() - 1, body.len()]) {
        fast::check(&schema, &layout, &body, piece);
    }
}

#[test]
fn after_a_refusal_a_stream_is_refused_for_good() {
    let layout = Layout::new(&[40, 40], 64).unwrap();
    let (body, _) = sent(&schema(&[40, 40]), 64, &gaussian(4, 80));
    let mut decoder = StreamDecoder::new(&layout);
    let mut bad = body.clone();
    bad[4] = 13;
    assert_eq!(decoder.push(&bad, &mut |_| panic!("nothing is decoded")), Err(Rejected { section: 0 }));
    assert_eq!(decoder.push(&body, &mut |_| panic!("nothing is decoded")), Err(Rejected { section: 0 }));
    assert_eq!(decoder.finish(), Err(Rejected { section: 0 }));
}

#[test]
fn a_body_that_ends_early_or_late_is_refused_for_the_section_where_it_does() {
    let layout = Layout::new(&[40, 40], 64).unwrap();
    let (mut body, _) = sent(&schema(&[40, 40]), 64, &gaussian(4, 80));
    let second = 4 + decode::split(&layout, &body).unwrap()[0].len();
    for length in 0..body.len() {
        let section = usize::from(length >= second);
        assert_eq!(decode::decode(&layout, &body[..length]), Err(Rejected { section }));
        let mut decoder = StreamDecoder::new(&layout);
        decoder.push(&body[..length], &mut |_| ()).unwrap();
        assert_eq!(decoder.finish(), Err(Rejected { section }));
    }
    body.push(0);
    assert_eq!(decode::decode(&layout, &body), Err(Rejected { section: 2 }));
    assert_eq!(decode::norms(&layout, &body), Err(Rejected { section: 2 }));
    assert_eq!(StreamDecoder::new(&layout).push(&body, &mut |_| ()), Err(Rejected { section: 2 }));
}

#[test]
fn a_section_that_claims_more_than_its_entries_can_take_is_refused_before_it_arrives() {
    let layout = Layout::new(&[40], 64).unwrap();
    let longest = unpack::largest(64, 40) as u32;
    let mut decoder = StreamDecoder::new(&layout);
    assert_eq!(decoder.push(&longest.to_le_bytes(), &mut |_| ()), Ok(()));
    for length in [u32::MAX, longest + 1, unpack::smallest(64, 40) as u32 - 1, 0] {
        let mut decoder = StreamDecoder::new(&layout);
        let head = [&length.to_le_bytes()[..], &[0]].concat();
        assert_eq!(decoder.push(&head, &mut |_| ()), Err(Rejected { section: 0 }));
    }
}

#[test]
fn of_several_bad_sections_the_first_is_named() {
    let schema = schema(&SECTIONS);
    let layout = Layout::new(&SECTIONS, 64).unwrap();
    let (mut body, _) = sent(&schema, 64, &gaussian(7, SECTIONS.iter().sum()));
    let sections = decode::split(&layout, &body).unwrap();
    let heads =
        [2, 3].map(|section| sections[..section].iter().map(|section| 4 + section.len()).sum::<usize>() + 4);
    heads.into_iter().for_each(|head| body[head] = 13);
    let rejected = Rejected { section: 2 };
    at_every_width(|| {
        assert_eq!(decode::decode(&layout, &body), Err(rejected));
        assert_eq!(decode::norms(&layout, &body), Err(rejected));
        assert_eq!(accumulate(&layout, &body, &[1.0; 3], &mut vec![0.0; layout.values()]), Err(rejected));
    });
}

#[test]
fn a_merge_says_which_input_or_which_value_was_wrong() {
    let layout = Layout::new(&LENGTHS, 64).unwrap();
    let schema = schema(&LENGTHS);
    let (good, _) = sent(&schema, 64, &gaussian(1, 13_257));
    let bad_from =
        decode::split(&layout, &good).unwrap()[..3].iter().map(|section| 4 + section.len()).sum::<usize>();
    let mut bad = good.clone();
    bad[bad_from + 4] = 13;
    let refused = |bodies: &[&[u8]], buffer: &mut [f32]| {
        let scales = vec![vec![1.0; bodies.len()]; LENGTHS.len()];
        merge::merge(&layout, Rule::MeanOverHits, &layout, bodies, &scales, buffer).unwrap_err()
    };
    at_every_width(|| {
        let mut buffer = vec![0.0; 13_257];
        assert_eq!(refused(&[], &mut buffer), MergeError::NoInputs);
        assert_eq!(refused(&[&good, &bad], &mut buffer), MergeError::Rejected { input: 1, section: 3 });
        assert_eq!(refused(&[&good[1..], &bad], &mut buffer), MergeError::Rejected { input: 0, section: 0 });
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut buffer = vec![0.0; 13_257];
            buffer[4097 + 9] = broken;
            buffer[13_256] = broken;
            assert_eq!(refused(&[&good], &mut buffer), MergeError::NotFinite { tensor: 2, position: 9 });
        }
    });
}

#[test]
fn the_mean_of_one_contribution_is_that_one() {
    let layout = Layout::new(&LENGTHS, 64).unwrap();
    let (body, _) = sent(&schema(&LENGTHS), 64, &gaussian(1, 13_257));
    let scales = vec![vec![1.0; 1]; LENGTHS.len()];
    at_every_width(|| {
        let mut buffer = vec![0.0; 13_257];
        let merged = merge::merge(&layout, Rule::MeanOverAll, &layout, &[&body], &scales, &mut buffer);
        assert!(merged.unwrap() == body);
    });
}

#[test]
#[should_panic(expected = "a row has all of its layout's values")]
fn a_row_of_another_layout_is_refused() {
    let layout = Layout::new(&[40], 64).unwrap();
    let (body, _) = sent(&schema(&[40]), 64, &gaussian(4, 40));
    let _ = accumulate(&layout, &body, &[1.0], &mut [0.0; 39]);
}

fn files(folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../protocol").join(folder);
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    };
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(read).collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

#[test]
fn the_golden_bytes_are_read_as_the_protocol_reads_them() {
    let lengths = [1, 59 * 77, 200];
    let schema = schema(&lengths);
    let golden = Schema::new(
        [("scale", &[1][..]), ("layers.0.weight", &[59, 77]), ("bias", &[200])]
            .map(|(name, shape)| TensorSpec { name: name.into(), shape: shape.into() })
            .into(),
    )
    .unwrap();
    let mut seen = 0;
    for (path, bytes) in files("tests/golden/v1") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let (density, body) = match name {
            "normal-dense.body" => (1024, &bytes[..]),
            "everything.body" => (4096, &bytes[..]),
            _ if name.ends_with(".body") => (64, &bytes[..]),
            _ if name.ends_with(".update") => {
                let base = Digest::of(b"base");
                let (_, body) =
                    open_update(&bytes, &golden, Density(256), RunId(3), Window(1000), base).unwrap();
                (256, body)
            }
            _ => continue,
        };
        let layout = Layout::new(&lengths, density).unwrap();
        assert!(decode::decode(&layout, body).is_ok(), "{name} is refused");
        at_every_width(|| fast::check(&schema, &layout, body, 1000));
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn no_body_of_the_corpus_is_read_otherwise_than_the_protocol_reads_it() {
    for folder in ["fuzz/corpus/contribution_body", "fuzz/corpus/fast_decoder"] {
        for (path, bytes) in files(folder) {
            eprintln!("{}", path.display());
            at_every_width(|| fast::fast_decoder(&bytes));
        }
    }
}
