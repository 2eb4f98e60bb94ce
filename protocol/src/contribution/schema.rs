//! The tensors of a model, in the order in which every node stores them in one flat vector.

use super::SECTION_CHUNKS;
use crate::{Digest, ensure, params::CHUNK_VALUES};
use alloc::{collections::BTreeSet, string::String, vec::Vec};
use codec::Encode;
use core::ops::Range;

/// Values in a full section: 1 MiB of them.
const SECTION_VALUES: usize = SECTION_CHUNKS * CHUNK_VALUES;

/// Name and shape of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Encode)]
pub struct TensorSpec {
    pub name: String,
    /// Sizes, outermost first; values are row-major.
    pub shape: Vec<u32>,
}

/// The tensors of a model. The model itself is one flat vector of f32: tensor after tensor, in this order.
///
/// Checked on construction: every tensor has a unique name and 1 to 2^32 − 1 values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    tensors: Vec<TensorSpec>,
    /// End of each tensor in the flat row.
    ends: Vec<usize>,
}

/// A part of one tensor that is encoded on its own (PROT-9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Index of the tensor in the schema.
    pub tensor: u32,
    /// Index of the section's first value in its tensor.
    pub start: u32,
    /// Range of its values in the flat row.
    pub values: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("a schema has from 1 to {} tensors", Schema::TENSORS_MAX)]
    TensorCount,
    #[error("tensor {tensor}: a name has from 1 to {} bytes", Schema::NAME_BYTES_MAX)]
    Name { tensor: usize },
    #[error("two tensors are called {name}")]
    SameName { name: String },
    #[error(
        "tensor {name}: a shape has from 1 to {} sizes, all above zero, and under 2^32 values",
        Schema::RANK_MAX
    )]
    Shape { name: String },
    #[error("the model has more values than this machine can count")]
    TooLarge,
}

impl Schema {
    pub const TENSORS_MAX: usize = 65_536;
    pub const NAME_BYTES_MAX: usize = 256;
    pub const RANK_MAX: usize = 8;

    /// Creates a schema.
    ///
    /// # Errors
    /// [`SchemaError`] for an empty or too long list, a bad or repeated name, a bad shape, or too many
    /// values.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Schema, SchemaError> {
        ensure!((1..=Schema::TENSORS_MAX).contains(&tensors.len()), SchemaError::TensorCount);
        let mut names = BTreeSet::new();
        let mut ends = Vec::with_capacity(tensors.len());
        let mut end = 0usize;
        for (index, tensor) in tensors.iter().enumerate() {
            ensure!(
                (1..=Schema::NAME_BYTES_MAX).contains(&tensor.name.len()),
                SchemaError::Name { tensor: index }
            );
            ensure!(names.insert(&tensor.name[..]), SchemaError::SameName { name: tensor.name.clone() });
            let values = tensor.values().ok_or_else(|| SchemaError::Shape { name: tensor.name.clone() })?;
            end = usize::try_from(values)
                .ok()
                .and_then(|values| end.checked_add(values))
                // The factor leaves room to count its bytes, and a body's maximum length, without overflow.
                .filter(|end| *end <= usize::MAX / 16)
                .ok_or(SchemaError::TooLarge)?;
            ends.push(end);
        }
        Ok(Schema { tensors, ends })
    }

    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Returns the number of values of all tensors together: the length of the flat row.
    pub fn values(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the range of each tensor in the flat row.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
        let start = |index: usize| index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends.iter().enumerate().map(move |(index, end)| start(index)..*end)
    }

    /// Returns the digest that every contribution contains, so that two models of the same size are never
    /// confused.
    pub fn digest(&self) -> Digest {
        Digest::of_parts(&[b"mettle/1/schema\0", &self.tensors.encode()])
    }

    /// Returns the sections of a body, in order: each tensor is cut every 2^18 values.
    pub fn sections(&self) -> impl Iterator<Item = Section> + Clone {
        self.ranges().zip(0..).flat_map(|(range, tensor)| {
            range.clone().step_by(SECTION_VALUES).map(move |start| Section {
                tensor,
                start: (start - range.start) as u32,
                values: start..range.end.min(start + SECTION_VALUES),
            })
        })
    }
}

impl Section {
    /// Returns the index in its tensor of the section's first chunk.
    pub fn first_chunk(&self) -> u32 {
        self.start / CHUNK_VALUES as u32
    }
}

impl TensorSpec {
    /// Returns the number of values of the shape; `None` if the shape is invalid.
    fn values(&self) -> Option<u32> {
        let is_shape = (1..=Schema::RANK_MAX).contains(&self.shape.len());
        let values = self.shape.iter().try_fold(1u32, |values, size| values.checked_mul(*size))?;
        (is_shape && values > 0).then_some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    fn tensor(name: &str, shape: &[u32]) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.into() }
    }

    #[test]
    fn tensors_lie_one_after_the_other_and_are_cut_in_sections() {
        let schema =
            Schema::new(vec![tensor("a", &[3, 5]), tensor("b", &[1]), tensor("c", &[600, 1000])]).unwrap();
        assert_eq!(schema.values(), 600_016);
        assert_eq!(schema.ranges().collect::<Vec<_>>(), [0..15, 15..16, 16..600_016]);

        let sections: Vec<_> = schema.sections().collect();
        assert_eq!(sections.len(), 1 + 1 + 3);
        assert_eq!(sections[0], Section { tensor: 0, start: 0, values: 0..15 });
        assert_eq!(
            sections[3],
            Section { tensor: 2, start: 1 << 18, values: 16 + (1 << 18)..16 + (1 << 19) }
        );
        assert_eq!(sections[4].values.end, 600_016);
        assert_eq!(sections[4].first_chunk(), 128);
    }

    #[test]
    fn a_bad_schema_is_refused_for_what_is_wrong_with_it() {
        let refused = |tensors: Vec<TensorSpec>| Schema::new(tensors).unwrap_err();
        assert_eq!(refused(vec![]), SchemaError::TensorCount);
        assert_eq!(refused(vec![tensor("a", &[1]); Schema::TENSORS_MAX + 1]), SchemaError::TensorCount);
        assert_eq!(refused(vec![tensor("", &[1])]), SchemaError::Name { tensor: 0 });
        assert_eq!(refused(vec![tensor(&"x".repeat(257), &[1])]), SchemaError::Name { tensor: 0 });
        assert_eq!(
            refused(vec![tensor("a", &[1]), tensor("a", &[2])]),
            SchemaError::SameName { name: "a".into() }
        );
        for shape in [&[][..], &[0], &[5, 0], &[1 << 16, 1 << 16], &[1; 9]] {
            assert_eq!(refused(vec![tensor("a", shape)]), SchemaError::Shape { name: "a".into() });
        }
    }

    #[test]
    fn a_schema_with_another_name_has_another_digest() {
        let schema = Schema::new(vec![tensor("a", &[3, 5]), tensor("b", &[1])]).unwrap();
        let renamed = Schema::new(vec![tensor("a", &[3, 5]), tensor("c", &[1])]).unwrap();
        assert_ne!(schema.digest(), renamed.digest());
        assert!(format!("{}", SchemaError::TensorCount).contains("65536"));
    }
}
