//! Compares the fast decoder with the slow one on any bytes: both accept with equal results, or both refuse. The
//! fuzzer calls this on bytes of its own, and `kernels/tests/agree/decode.rs` on the corpora of this folder.

use kernels::{
    accumulate::accumulate,
    decode::{self, StreamDecoder},
    wire::Layout,
};
use mettle_protocol::{
    contribution::{Schema, TensorSpec, decode},
    params::Density,
};

/// A single value, a few values, and a tensor of more than a chunk: as in `checks.rs`, so that both use one corpus.
const LENGTHS: [usize; 3] = [1, 40, 4200];

/// Checks a body; the first byte chooses the density and the size of the pieces in which it arrives.
pub fn fast_decoder(bytes: &[u8]) {
    let Some((first, body)) = bytes.split_first() else { return };
    let densities = [64, 1, 512, 4096];
    let density = densities[usize::from(*first) % densities.len()];
    let pieces = usize::from(*first) / densities.len() + 1;

    let row = |(index, length): (usize, &usize)| TensorSpec {
        name: index.to_string(),
        shape: vec![u32::try_from(*length).expect("the rows are short")],
    };
    let schema = Schema::new(LENGTHS.iter().enumerate().map(row).collect()).expect("three rows are a schema");
    let layout = Layout::new(&LENGTHS, density).expect("three rows are a layout");
    check(&schema, &layout, body, pieces);
}

/// Checks a body that arrives `piece` bytes at a time. `layout` is the schema's, at the density of the body.
pub fn check(schema: &Schema, layout: &Layout, body: &[u8], piece: usize) {
    let slow = decode(schema, Density(layout.density()), body);
    let fast = decode::decode(layout, body);
    let norms = decode::norms(layout, body);
    let mut sums = vec![0.5; layout.values()];
    let scales = vec![0.75; layout.tensors()];
    let added = accumulate(layout, body, &scales, &mut sums);
    let mut decoder = StreamDecoder::new(layout);
    let mut streamed = vec![(Vec::new(), Vec::new()); layout.tensors()];
    let mut each = |section: decode::SectionEntries<'_>| {
        let (positions, values): &mut (Vec<u32>, Vec<f32>) = &mut streamed[section.tensor];
        positions.extend_from_slice(section.positions);
        values.extend_from_slice(section.values);
    };
    let pushed = body.chunks(piece).try_for_each(|piece| decoder.push(piece, &mut each));
    let finished = decoder.finish();

    let Ok(slow) = slow else {
        let rejected = fast.expect_err("the fast decoder accepts what the slow one refuses");
        assert_eq!(norms, Err(rejected), "norms of what is refused");
        assert_eq!(added, Err(rejected), "something refused is added");
        // The section that an error names depends on how many bytes were pushed before it.
        assert!(finished.is_err() && (pushed.is_err() || pushed.is_ok_and(|()| finished.is_err())));
        return;
    };
    let fast = fast.expect("the fast decoder refuses what the slow one accepts");
    let norms = norms.expect("norms are refused of what is accepted");
    added.expect("what is accepted is not added");
    pushed.expect("what is accepted is refused while it arrives");
    let finished = finished.expect("what is accepted is refused when it has arrived");
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let mut expected_sums = vec![0.5f32; layout.values()];
    assert_eq!(fast.len(), slow.tensors.len());
    for (tensor, (range, slow)) in layout.ranges().zip(&slow.tensors).enumerate() {
        assert!(fast[tensor].positions == slow.positions, "the positions differ");
        assert!(bits(&fast[tensor].values) == bits(&slow.values), "the values differ");
        assert!(streamed[tensor].0 == slow.positions, "the positions differ that arrived in pieces");
        assert!(bits(&streamed[tensor].1) == bits(&slow.values), "the values differ that arrived in pieces");
        let norm = slow.square_norm.to_bits();
        assert_eq!(fast[tensor].square_norm.to_bits(), norm);
        assert_eq!(norms[tensor].to_bits(), norm);
        assert_eq!(finished[tensor].to_bits(), norm);
        for (position, value) in slow.positions.iter().zip(&slow.values) {
            expected_sums[range.start + *position as usize] += scales[tensor] * value;
        }
    }
    assert!(bits(&sums) == bits(&expected_sums), "the sums differ");
}
