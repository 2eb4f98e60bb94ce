//! A model's weights as the fused engines multiply them. Matrices with a common input are neighbours in the flat
//! parameter vector and form one stack. Queries, keys and values are one product, gates and ups another.

use model::ModelConfig;
use std::ops::Range;

/// One value per stack of a model, in the order of the flat parameter vector.
pub(super) struct Stacks<T> {
    /// `[V, D]`, also the output matrix.
    pub embedding: T,
    pub layers: Vec<LayerStacks<T>>,
    /// `[D]`
    pub norm: T,
}

pub(super) struct LayerStacks<T> {
    /// `[D]`
    pub attention_norm: T,
    /// `[W, D]`: weights of queries, keys and values.
    pub rows: T,
    /// `[D, D]`
    pub output: T,
    /// `[D]`
    pub feed_forward_norm: T,
    /// `[2F, D]`: weights of gates and ups.
    pub gates_and_ups: T,
    /// `[D, F]`
    pub down: T,
}

/// Neighbouring tensors of the schema that form one matrix.
pub(super) struct Stack {
    pub shape: [usize; 2],
    /// Number of values of each tensor.
    pub tensors: Vec<usize>,
}

impl Stack {
    fn new(shapes: &[[usize; 2]]) -> Stack {
        Stack {
            shape: [shapes.iter().map(|[rows, _]| rows).sum(), shapes[0][1]],
            tensors: shapes.iter().map(|[rows, columns]| rows * columns).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }
}

/// Number of tensors of each stack of a layer.
const LAYER: [usize; 6] = [1, 3, 1, 1, 2, 1];

/// Returns the indices of a layer's stacks.
#[cfg(feature = "gpu")]
pub(super) fn of_layer(layer: usize) -> Range<usize> {
    1 + LAYER.len() * layer..1 + LAYER.len() * (layer + 1)
}

/// Returns the stacks of a model, in the order of the flat parameter vector.
pub(super) fn stacks(config: &ModelConfig) -> Vec<Stack> {
    let shapes: Vec<[usize; 2]> = config.shapes().into_iter().map(|(_, shape)| shape).collect();
    let counts = [1].into_iter().chain(std::iter::repeat_n(LAYER, config.layers).flatten()).chain([1]);
    let mut first = 0;
    let stack = |count| {
        first += count;
        Stack::new(&shapes[first - count..first])
    };
    counts.map(stack).collect()
}

/// Returns the range of each stack in the flat parameter vector.
pub(super) fn ranges(stacks: &[Stack]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |stack: &Stack| {
        end += stack.len();
        end - stack.len()..end
    };
    stacks.iter().map(range).collect()
}

impl<T> Stacks<T> {
    pub fn in_order(stacks: Vec<T>) -> Stacks<T> {
        let layers = (stacks.len() - 2) / 6;
        let mut stacks = stacks.into_iter();
        let mut next = || stacks.next().expect("a model has six stacks per layer, and two more");
        let embedding = next();
        let layer = |_| LayerStacks {
            attention_norm: next(),
            rows: next(),
            output: next(),
            feed_forward_norm: next(),
            gates_and_ups: next(),
            down: next(),
        };
        Stacks { embedding, layers: (0..layers).map(layer).collect(), norm: next() }
    }
}
