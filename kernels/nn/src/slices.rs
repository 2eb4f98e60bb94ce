//! Parts of flat vectors.

use crate::ModelError;
use model::ModelConfig;
use std::ops::Range;

/// Returns the parts of `range` within neighbouring vectors of these lengths: index of the vector, and range in it.
pub fn parts_of(
    range: Range<usize>,
    lens: impl IntoIterator<Item = usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = 0;
    lens.into_iter().enumerate().filter_map(move |(index, len)| {
        let (first, last) = (range.start.max(start), range.end.min(start + len));
        let part = (first < last).then(|| (index, first - start..last - start));
        start += len;
        part
    })
}

/// Checks the length of a flat parameter vector.
///
/// # Errors
/// If `flat` does not have as many values as the model has parameters.
pub(crate) fn check_len(config: &ModelConfig, flat: &[f32]) -> Result<(), ModelError> {
    match (config.parameters(), flat.len()) {
        (expected, got) if expected == got => Ok(()),
        (expected, got) => Err(ModelError::FlatLength { expected, got }),
    }
}

/// Takes the first `len` values off `rest`.
///
/// # Panics
/// If there are fewer.
pub fn take<'a>(rest: &mut &'a [f32], len: usize) -> &'a [f32] {
    rest.split_off(..len).expect("the lengths of the parts add up to the whole")
}

pub(crate) fn take_mut<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    rest.split_off_mut(..len).expect("the lengths of the parts add up to the whole")
}
