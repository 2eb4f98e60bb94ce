//! Tests the format against a second, simple encoder, and the decoder against all other bytes.

use super::*;
use alloc::{format, vec};
use proptest::prelude::*;

/// Returns a schema of vectors of the given lengths.
pub(crate) fn rows(lengths: &[u32]) -> Schema {
    let row =
        |(index, length): (usize, &u32)| TensorSpec { name: format!("row{index}"), shape: vec![*length] };
    Schema::new(lengths.iter().enumerate().map(row).collect()).unwrap()
}

/// Returns standard normal values, the same for a seed on every machine up to the last bits of a logarithm.
pub(crate) fn gaussian(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    };
    let normal =
        |_| ((-2.0 * (1.0 - uniform()).ln()).sqrt() * (core::f64::consts::TAU * uniform()).cos()) as f32;
    (0..count).map(normal).collect()
}

/// Returns every value of an update in its place, and zeros elsewhere.
pub(crate) fn dense(schema: &Schema, update: &Sparse) -> Vec<f32> {
    let mut values = vec![0.0; schema.values()];
    for (range, tensor) in schema.ranges().zip(&update.tensors) {
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            values[range.start + *position as usize] = *value;
        }
    }
    values
}

/// Returns values whose encoding is the given update, if there are any: an entry of level zero was a very
/// small value.
fn witness(schema: &Schema, update: &Sparse) -> Vec<f32> {
    let mut update = update.clone();
    let entries = update.tensors.iter_mut().flat_map(|tensor| &mut tensor.values);
    entries.filter(|value| **value == 0.0).for_each(|value| *value = f32::from_bits(1));
    dense(schema, &update)
}

const LENGTHS: [u32; 5] = [1, 4096, 63, 5000, 4097];

fn density() -> impl Strategy<Value = Density> {
    prop_oneof![Just(64), Just(1), Just(4096), Just(512), 1u16..=4096].prop_map(Density)
}

/// Shown by its first values: a failing case is reproduced by its seed.
struct Values(Vec<f32>);

impl core::fmt::Debug for Values {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} values, {:?}…", self.0.len(), &self.0[..self.0.len().min(8)])
    }
}

/// All kinds of finite floats, alone and mixed.
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
        (any::<u64>(), proptest::collection::vec(kinds, 1..8)).prop_map(move |(seed, kinds)| {
            let pick = |x: f32| kinds[(x.abs() * 1e4) as usize % kinds.len()];
            gaussian(seed, count).into_iter().map(pick).collect()
        }),
    ]
    .prop_map(Values)
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, failure_persistence: None, ..ProptestConfig::default() }
}

/// PROT-7 word by word, with a sort and a vector of booleans.
mod by_the_book {
    use super::*;

    pub fn encode(schema: &Schema, density: Density, values: &[f32]) -> Vec<u8> {
        let mut sections = Vec::new();
        for range in schema.ranges() {
            for part in values[range].chunks(SECTION_CHUNKS * CHUNK_VALUES) {
                sections.push(section(density, part));
            }
        }
        let with_length = |section: &Vec<u8>| [&(section.len() as u32).to_le_bytes(), &section[..]].concat();
        sections.iter().flat_map(with_length).collect()
    }

    fn section(density: Density, values: &[f32]) -> Vec<u8> {
        let (mut levels, mut gaps, mut signs, mut magnitudes) = (vec![], vec![], vec![], vec![]);
        for chunk in values.chunks(CHUNK_VALUES) {
            let mut order: Vec<usize> = (0..chunk.len()).collect();
            order.sort_by(|a, b| chunk[*b].abs().total_cmp(&chunk[*a].abs()).then(a.cmp(b)));
            let mut kept = order[..density.kept(chunk.len())].to_vec();
            kept.sort();

            let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
            let absolute: Vec<f64> = kept.iter().map(|index| chunk[*index].abs() as f64).collect();
            let threshold = mean(&absolute);
            let (high, low): (Vec<f64>, Vec<f64>) = absolute.iter().partition(|x| **x > threshold);
            let low_code = nearest(mean(if low.is_empty() { &high } else { &low }));
            let high_code = nearest(mean(if high.is_empty() { &low } else { &high }));
            levels.extend([low_code, high_code]);

            let mut previous = -1;
            for (index, x) in kept.iter().zip(absolute) {
                gaps.push((*index as i32 - previous - 1) as u32);
                previous = *index as i32;
                let is_high = x > threshold && low_code != high_code;
                let code = if is_high { high_code } else { low_code };
                signs.push(chunk[*index] < 0.0 && code != 0);
                magnitudes.push(is_high);
            }
        }
        let length = |rice: &u32| gaps.iter().map(|gap| (gap >> rice) + 1 + rice).sum::<u32>();
        let rice = (0..=12).min_by_key(length).unwrap();

        let mut bits = Vec::new();
        for gap in gaps {
            bits.extend((0..gap >> rice).map(|_| true));
            bits.push(false);
            bits.extend((0..rice).map(|bit| gap >> bit & 1 == 1));
        }
        bits.extend(signs);
        bits.extend(magnitudes);
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        [vec![rice as u8], levels, bits.chunks(8).map(byte).collect()].concat()
    }

    /// Returns the even one of the two nearest codes, if there are two.
    fn nearest(x: f64) -> u8 {
        let x = x.min(16.0);
        let distance = |code: &u8| (f64::from(value_of(*code)) - x).abs();
        (0..=u8::MAX).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2)))).unwrap()
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn the_encoder_follows_the_book(density in density(), Values(values) in values(13_257)) {
        let schema = rows(&LENGTHS);
        let body = encode(&schema, density, &values).unwrap();
        prop_assert!(body == by_the_book::encode(&schema, density, &values));
        prop_assert!(body.len() <= schema.largest_body(density));
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded(density in density(), Values(values) in values(13_257)) {
        let schema = rows(&LENGTHS);
        let body = encode(&schema, density, &values).unwrap();
        let update = decode(&schema, density, &body).unwrap();
        prop_assert!(encode(&schema, density, &witness(&schema, &update)).unwrap() == body);

        for (range, tensor) in schema.ranges().zip(&update.tensors) {
            let kept: usize = chunk_lengths(range.len()).map(|length| density.kept(length)).sum();
            prop_assert_eq!(tensor.positions.len(), kept);
            prop_assert_eq!(tensor.values.len(), kept);
            prop_assert!(tensor.positions.is_sorted_by(|a, b| a < b));
            for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                let original = values[range.start + *position as usize];
                prop_assert!(*value == 0.0 || (*value < 0.0) == (original < 0.0));
                prop_assert!(value.abs() <= LEVEL_MAX && (*value != 0.0 || value.is_sign_positive()));
            }
            let norm: f64 = tensor.values.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((norm - tensor.square_norm).abs() <= 1e-9 * norm);
        }
    }

    #[test]
    fn what_was_sent_and_what_is_left_make_the_whole(density in density(), Values(values) in values(13_257)) {
        let schema = rows(&LENGTHS);
        let mut residual = values.clone();
        let body = encode_with_feedback(&schema, density, &mut residual).unwrap();
        prop_assert!(body == encode(&schema, density, &values).unwrap());
        let sent = dense(&schema, &decode(&schema, density, &body).unwrap());
        for ((whole, sent), left) in values.iter().zip(sent).zip(residual) {
            prop_assert_eq!(left.to_bits(), (whole - sent).to_bits());
            let lost = f64::from(*whole) - f64::from(sent) - f64::from(left);
            prop_assert!(lost.abs() <= f64::from(left.abs()) * f64::from(f32::EPSILON));
        }
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_flipped_bit_fails_or_is_the_spelling_of_something_else(
        density in prop_oneof![Just(64), Just(16), Just(700)].prop_map(Density),
        Values(values) in values(4200),
    ) {
        let schema = rows(&[1, 4096, 103]);
        let mut body = encode(&schema, density, &values).unwrap();
        for bit in 0..8 * body.len() {
            body[bit / 8] ^= 1 << (bit % 8);
            if let Ok(update) = decode(&schema, density, &body) {
                prop_assert!(encode(&schema, density, &witness(&schema, &update)).unwrap() == body);
            }
            body[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_body_cut_short_or_drawn_out_is_refused(Values(values) in values(4200), extra in any::<u8>()) {
        let schema = rows(&[1, 4096, 103]);
        let body = encode(&schema, Density(64), &values).unwrap();
        for length in 0..body.len() {
            prop_assert!(decode(&schema, Density(64), &body[..length]).is_err());
        }
        let longer = [&body[..], &[extra]].concat();
        prop_assert!(decode(&schema, Density(64), &longer).is_err());
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn random_bytes_never_panic_and_are_accepted_only_if_canonical(
        density in density(),
        rice in 0u8..14,
        levels in proptest::collection::vec(any::<u8>(), 4),
        stream in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let schema = rows(&[4100]);
        let section = [&[rice][..], &levels, &stream].concat();
        let body = [&(section.len() as u32).to_le_bytes(), &section[..]].concat();
        if let Ok(update) = decode(&schema, density, &body) {
            prop_assert!(encode(&schema, density, &witness(&schema, &update)).unwrap() == body);
        }
        prop_assert!(decode(&schema, density, &stream).is_err() || stream.len() > 4);
    }

    #[test]
    fn small_tensors_keep_to_all_rules(
        length in 1u32..40,
        density in density(),
        section in proptest::collection::vec(any::<u8>(), 3..16),
    ) {
        // Short enough that random bits are often a contribution.
        let schema = rows(&[length]);
        let body = [&(section.len() as u32).to_le_bytes(), &section[..]].concat();
        if let Ok(update) = decode(&schema, density, &body) {
            prop_assert!(encode(&schema, density, &witness(&schema, &update)).unwrap() == body);
        }
    }
}

#[test]
fn sections_are_cut_every_64_chunks_of_a_tensor() {
    let schema = rows(&[3 * (1 << 18) + 5000, 7]);
    let values = gaussian(1, schema.values());
    let body = encode(&schema, Density(64), &values).unwrap();
    assert!(body == by_the_book::encode(&schema, Density(64), &values));
    let update = decode(&schema, Density(64), &body).unwrap();
    assert!(encode(&schema, Density(64), &witness(&schema, &update)).unwrap() == body);
    assert!(update.tensors[0].positions.last().unwrap() > &(3 << 18));
}

#[test]
fn ties_go_to_the_lower_index_and_zeros_have_no_sign() {
    let schema = rows(&[4096]);
    let first = |values: &[f32]| {
        let update = decode(&schema, Density(64), &encode(&schema, Density(64), values).unwrap()).unwrap();
        update.tensors[0].clone()
    };
    for nothing in [0.0, -0.0, f32::from_bits(1), -1e-10] {
        let tensor = first(&[nothing; 4096]);
        assert_eq!(tensor.positions, (0..64).collect::<Vec<_>>());
        assert!(tensor.values.iter().all(|value| value.to_bits() == 0));
        assert_eq!(tensor.square_norm, 0.0);
    }
    let mut values = [0.5f32; 4096];
    values[4000] = -2.0;
    let tensor = first(&values);
    assert_eq!(tensor.positions, (0..63).chain([4000]).collect::<Vec<_>>());
    assert_eq!(tensor.values, [[0.5; 63].as_slice(), &[-2.0]].concat());
    assert_eq!(tensor.square_norm, 63.0 * 0.25 + 4.0);
}

#[test]
fn values_that_are_no_numbers_are_refused_by_tensor_and_position() {
    let schema = rows(&[5000, 5000]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0; 10_000];
        values[9500] = bad;
        values[9600] = bad;
        let refused = EncodeError::NotFinite { tensor: "row1".into(), position: 4500 };
        assert_eq!(encode(&schema, Density(64), &values), Err(refused.clone()));

        let before: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(encode_with_feedback(&schema, Density(64), &mut values), Err(refused));
        assert!(values.iter().map(|value| value.to_bits()).eq(before));
    }
}

#[test]
fn a_wrong_number_of_values_or_an_impossible_density_is_refused() {
    let schema = rows(&[10]);
    assert_eq!(
        encode(&schema, Density(64), &[0.0; 9]),
        Err(EncodeError::WrongLength { expected: 10, got: 9 })
    );
    for bad in [0, 4097] {
        assert_eq!(encode(&schema, Density(bad), &[0.0; 10]), Err(EncodeError::BadDensity(bad)));
        assert_eq!(decode(&schema, Density(bad), &[]), Err(DecodeError::BadDensity(bad)));
    }
}

/// Decodes one section of a tensor of 16 values of which 4 are kept.
#[track_caller]
fn check_section(section: &[u8], expected: Result<(), DecodeError>) {
    let (schema, density) = (rows(&[16]), Density(1024));
    let body = [&(section.len() as u32).to_le_bytes(), section].concat();
    assert_eq!(decode(&schema, density, &body).map(|_| ()), expected);
}

#[test]
fn every_other_spelling_is_refused_for_what_is_wrong_with_it() {
    let (tensor, chunk) = (0, 0);
    // Gaps 0, 1, 0, 1 with Rice parameter 0: 0 10 0 10. Then four signs, four magnitudes, LSB first.
    let gaps: u16 = 0b010_010;
    let stream = |signs: u16, magnitudes: u16| (gaps | signs << 6 | magnitudes << 10).to_le_bytes();
    let with = |levels: [u8; 2], [a, b]: [u8; 2]| [0, levels[0], levels[1], a, b];

    check_section(&with([40, 50], stream(0b0101, 0b0011)), Ok(()));
    check_section(&with([0, 50], stream(0b0011, 0b0011)), Ok(()));
    check_section(&with([0, 0], stream(0, 0)), Ok(()));

    let refused = Err(DecodeError::LevelsOutOfOrder { tensor, chunk });
    check_section(&with([50, 40], stream(0b0101, 0b0011)), refused);
    for magnitudes in [0, 0b1111] {
        let refused = Err(DecodeError::UnusedLevel { tensor, chunk });
        check_section(&with([40, 50], stream(0, magnitudes)), refused);
    }
    let refused = Err(DecodeError::MagnitudeWithoutLevel { tensor, chunk });
    check_section(&with([40, 40], stream(0, 0b0001)), refused);
    let refused = Err(DecodeError::SignedZero { tensor, chunk });
    check_section(&with([0, 50], stream(0b0111, 0b0011)), refused.clone());
    check_section(&with([0, 0], stream(0b0001, 0)), refused);

    let padded = (gaps | 1 << 14).to_le_bytes();
    check_section(&with([40, 40], padded), Err(DecodeError::PaddingSet { tensor, chunk }));
    let [a, b] = stream(0, 0);
    check_section(&[0, 40, 40, a, b, 0], Err(DecodeError::TrailingBytes { tensor, chunk }));
    check_section(&[0, 40, 40, a], Err(DecodeError::Truncated { tensor, chunk }));
    check_section(&[0, 40], Err(DecodeError::Truncated { tensor, chunk }));
    // Gaps 12, 0, 0, 0 of the last four indices, their signs and magnitudes cut off.
    check_section(&[1, 40, 40, 0x3f, 0], Err(DecodeError::Truncated { tensor, chunk }));

    // The same gaps with Rice parameter 1, each a zero and the low bit: 00 01 00 01.
    let longer = 0b10_00_10_00u16.to_le_bytes();
    check_section(
        &[1, 40, 40, longer[0], longer[1]],
        Err(DecodeError::RiceParameter { tensor, chunk, expected: 0, got: 1 }),
    );
    check_section(&[13, 40, 40, a, b], Err(DecodeError::RiceTooLarge { tensor, chunk, got: 13 }));
    // Gaps 13, 0, 0, 0: the last index is 16.
    check_section(&[0, 40, 40, 0xff, 0x1f, 0], Err(DecodeError::IndexOutOfRange { tensor, chunk }));
}

#[test]
fn a_fault_is_named_by_its_tensor_and_chunk() {
    let schema = rows(&[100, 3 * 4096]);
    let mut body = encode(&schema, Density(64), &gaussian(3, schema.values())).unwrap();
    let first = u32::from_le_bytes(*body.first_chunk().unwrap()) as usize;
    // Swap the levels of the second tensor's last chunk: after two lengths, a section, a parameter, two
    // pairs.
    let at = 8 + first + 1 + 4;
    body.swap(at, at + 1);
    assert_eq!(
        decode(&schema, Density(64), &body),
        Err(DecodeError::LevelsOutOfOrder { tensor: 1, chunk: 2 })
    );
}

#[test]
fn lengths_that_do_not_add_up_are_refused_before_anything_is_allocated() {
    // If memory were allocated for the schema's size, this would be 100 GB.
    let schema = rows(&[u32::MAX; 7]);
    let refused = |body: &[u8]| decode(&schema, Density(4096), body).unwrap_err();
    assert_eq!(refused(&[0; 3]), DecodeError::WrongLength { expected: 4, got: 3 });
    assert_eq!(refused(&[0; 400]), DecodeError::Truncated { tensor: 0, chunk: 0 });
    let long = [&u32::MAX.to_le_bytes()[..], &[0; 400]].concat();
    assert_eq!(refused(&long), DecodeError::WrongLength { expected: 4 + u64::from(u32::MAX), got: 404 });
    // The first section is complete, the second is missing.
    let first = smallest_section(Density(4096), 1 << 18);
    let cut = [&(first as u32).to_le_bytes()[..], &vec![0; first]].concat();
    let (expected, got) = (8 + first as u64, 4 + first as u64);
    assert_eq!(refused(&cut), DecodeError::WrongLength { expected, got });

    let schema = rows(&[16]);
    let body = [&encode(&schema, Density(1024), &[1.0; 16]).unwrap()[..], &[0]].concat();
    let (expected, got) = (body.len() as u64 - 1, body.len() as u64);
    assert_eq!(decode(&schema, Density(1024), &body), Err(DecodeError::WrongLength { expected, got }));
}

#[test]
fn no_parameter_is_better_than_the_one_found() {
    for seed in 0..200 {
        let scale = 2f32.powi(seed % 12);
        let gaps: Vec<u16> =
            gaussian(seed as u64, 50).iter().map(|x| (x.abs() * scale) as u16 % 4096).collect();
        let length =
            |rice: &u8| gaps.iter().map(|gap| (gap >> rice) as usize + 1 + *rice as usize).sum::<usize>();
        assert_eq!(Some(rice_parameter(&gaps)), (0..=RICE_MAX).min_by_key(length));
    }
    assert_eq!(rice_parameter(&[4095]), 11);
}

#[test]
fn the_largest_body_is_one_that_can_be_sent() {
    // One entry per chunk, at its end: the longest possible gap.
    let schema = rows(&[4096, 2 * 4096, 100]);
    let mut values = vec![0.0; schema.values()];
    for end in [4096, 2 * 4096, 3 * 4096, 3 * 4096 + 100] {
        values[end - 1] = 1.0;
    }
    let body = encode(&schema, Density(1), &values).unwrap();
    assert!(schema.largest_body(Density(1)) - body.len() <= 3);
    assert_eq!(schema.entries(Density(1)), 4);
}

#[test]
fn a_value_sent_of_normal_ones_costs_under_ten_bits_and_keeps_its_size() {
    let schema = rows(&[1 << 20]);
    let values = gaussian(11, schema.values());
    let body = encode(&schema, Density(64), &values).unwrap();
    let update = decode(&schema, Density(64), &body).unwrap();

    let bits = 8.0 * body.len() as f64 / schema.entries(Density(64)) as f64;
    let (mut error, mut norm) = (0.0, 0.0);
    for (position, level) in update.tensors[0].positions.iter().zip(&update.tensors[0].values) {
        let value = f64::from(values[*position as usize]);
        error += (value - f64::from(*level)).powi(2);
        norm += value.powi(2);
    }
    let relative = (error / norm).sqrt();
    std::eprintln!("{bits:.3} bits a value sent, relative error {relative:.4}");
    assert!(bits <= 10.0, "{bits} bits");
    assert!(relative <= 0.075, "relative error {relative}");
}
