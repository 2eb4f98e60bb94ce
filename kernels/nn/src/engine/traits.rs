//! The engines' common interface.

use crate::{
    ModelError, StepParams, collective::error::Watch, layers::attention::CachedHead, memory::DeviceMemory,
    nccl::Membership,
};
use model::ModelConfig;
use std::{borrow::Cow, ops::Range};

/// Values read from a device, block by block. A block may have any length.
pub type Blocks<'a> = Box<dyn Iterator<Item = Result<Cow<'a, [f32]>, ModelError>> + 'a>;

/// Holds one model on one device, and computes its losses, gradients and steps.
///
/// [`Trainer`](crate::Trainer) and [`Evaluator`](crate::Evaluator) check their arguments: sequences have `seq_len + 1`
/// tokens of the vocabulary.
pub trait Engine: Send + Sync {
    /// Replaces the weights with `flat`, in schema order. The moments do not change. The caller has checked the
    /// length.
    ///
    /// # Errors
    /// If the device fails.
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError>;

    /// Returns the weights. Together, the blocks are the flat parameter vector in schema order.
    fn weights(&self) -> Blocks<'_>;

    /// Calls `edit` with each tensor's index and values in schema order, and copies the changes to the device.
    ///
    /// # Errors
    /// If the device fails. `edit` may have been called for all tensors; losses fail until another edit succeeds.
    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError>;

    /// Returns the loss of each token `[N]`, in nats, sequence by sequence.
    ///
    /// # Errors
    /// If the device fails.
    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError>;

    /// Returns the logits `[rows, V]` after the first `rows` of `seq_len` tokens.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError>;

    /// Returns an empty cache with capacity for `tokens` tokens, if this engine can [extend](Self::extend) one.
    fn cache(&self, _tokens: usize) -> Option<KvCache> {
        None
    }

    /// Appends tokens to caches: any number to one cache, or one to each of several. Returns the logits `[rows, V]`
    /// after the last `rows` of all tokens. A read does not change another's bits. The caller has checked that a cache
    /// then holds at most `seq_len` tokens, all of the vocabulary.
    ///
    /// # Errors
    /// If the engine has no caches, or the device fails.
    fn extend(&self, _reads: &mut [Read<'_>], _rows: usize) -> Result<Vec<f32>, ModelError> {
        Err(ModelError::NoCache)
    }

    /// Computes the gradient of the mean loss of `sequences` and keeps it for [`step`](Self::step). A batch is
    /// computed in micro-batches of the recipe's size.
    ///
    /// # Errors
    /// If the device fails or runs out of memory, or the engine was opened for evaluation.
    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError>;

    /// Updates weights and moments with the gradient of the last call of [`gradients`](Self::gradients).
    ///
    /// # Errors
    /// If the device fails, or the engine was opened for evaluation.
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError>;

    /// Returns the optimiser's moments, tensor by tensor in schema order: mean, then square where there is one
    /// ([`optim::moment_count`](crate::optim::moment_count)). Nothing where the engine was opened for evaluation.
    fn moments(&self) -> Blocks<'_>;

    /// Replaces the moments with those that [`moments`](Self::moments) returned. The caller has checked the length.
    ///
    /// # Errors
    /// If the device fails, or the engine was opened for evaluation.
    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError>;

    /// Same as [`load_moments`](Self::load_moments), for an engine that can keep the vector without a copy.
    ///
    /// # Errors
    /// Same as [`load_moments`](Self::load_moments).
    fn take_moments(&mut self, moments: Vec<f32>) -> Result<(), ModelError> {
        self.load_moments(&moments)
    }

    /// Returns the use of the device's memory, if the engine reports it.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }
}

/// Function that appends a part of a flat vector to the values.
pub type ReadPart<'a> = dyn FnMut(Range<usize>, &mut Vec<f32>) -> Result<(), ModelError> + 'a;

/// Function that receives the gradient of neighbouring tensors, a range of the flat vector, and reads its parts.
pub type Reduce<'a> = dyn FnMut(Range<usize>, &mut ReadPart<'_>) -> Result<(), ModelError> + 'a;

/// An engine without an optimiser, for one of several ranks that train as one: [`DataParallel`](crate::engine::DataParallel) steps the weights.
pub trait RankEngine: Send + Sync {
    /// Returns the engine for weights, losses and logits, which [`DataParallel`](crate::engine::DataParallel) does not divide among the ranks.
    fn engine(&self) -> &dyn Engine;

    fn engine_mut(&mut self) -> &mut dyn Engine;

    /// Returns whether several micro-batches are added up on the device, so that only their sum is exchanged.
    /// Otherwise each is exchanged on its own, in the order of the batch, and any number of ranks gives the same bits.
    fn adds_micro_batches(&self) -> bool;

    /// Returns the loss of each token, in nats. Passes the gradient of `Σ losses / rows` to `reduce`, for one
    /// micro-batch, or for several if they are [added up](Self::adds_micro_batches). The order is from the last tensor
    /// to the first, some at a time. Gradients need not be kept after that.
    ///
    /// # Errors
    /// If the device fails or runs out of memory, or `reduce` fails.
    fn micro_batches(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Vec<f64>, ModelError>;

    /// Appends a part of the flat parameter vector to `values`.
    ///
    /// # Errors
    /// If the device fails.
    fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError>;

    /// Writes `values` into the flat parameter vector from `first` on. The caller must call
    /// [`finish_weights`](Self::finish_weights) before the next computation.
    ///
    /// # Errors
    /// If the device fails.
    fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError>;

    /// Ends a series of writes, by this engine or a [`GpuExchange`].
    ///
    /// # Errors
    /// If the device fails.
    fn finish_weights(&mut self) -> Result<(), ModelError>;

    /// Connects this engine's GPU with those of the other ranks by NCCL. All ranks call it at the same time.
    ///
    /// # Errors
    /// If the engine has no NVIDIA GPU, NCCL is missing or fails, or `watch` fails.
    fn connect_gpus(
        &self,
        _: &Membership,
        _watch: &mut Watch<'_>,
    ) -> Result<Box<dyn GpuExchange>, ModelError> {
        let why = "this engine has no exchange by NCCL: set rank_exchange = \"tcp\" under [train]";
        Err(ModelError::Ranks { why: why.into() })
    }
}

/// Exchanges between the GPUs of ranks that do not go through their machines' memory. All ranks make the same calls in
/// the same order. Ranges are of the flat parameter vector, one for each rank. A failed call ends all exchanges.
pub trait GpuExchange: Send {
    /// Appends to `sum` the gradients of the first `contributors` ranks in this rank's range, added up in the order of
    /// ranks. A range has at most `ROUND` values.
    ///
    /// # Errors
    /// If the exchange, a device or `watch` fails.
    fn reduce_scatter(
        &mut self,
        parts: &[Range<usize>],
        contributors: usize,
        sum: &mut Vec<f32>,
        watch: &mut Watch<'_>,
    ) -> Result<(), ModelError>;

    /// Gives all ranks the weights of each rank's range. The caller must call [`RankEngine::finish_weights`]
    /// afterwards.
    ///
    /// # Errors
    /// Same as [`reduce_scatter`](Self::reduce_scatter).
    fn all_gather(&mut self, parts: &[Range<usize>], watch: &mut Watch<'_>) -> Result<(), ModelError>;
}

/// Keys and values of one text's tokens.
pub struct KvCache {
    pub(super) tokens: usize,
    /// `[L][K]`
    pub(super) layers: Vec<Vec<CachedHead>>,
}

impl KvCache {
    pub(super) fn new(config: &ModelConfig, tokens: usize) -> KvCache {
        let head = || CachedHead::with_room(tokens * config.head_width());
        let layer = || (0..config.kv_heads).map(|_| head()).collect();
        KvCache { tokens: 0, layers: (0..config.layers).map(|_| layer()).collect() }
    }

    /// Returns the bytes reserved for keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().flatten().map(CachedHead::bytes).sum()
    }
}

/// Tokens that follow those in a cache.
pub struct Read<'a> {
    pub cache: &'a mut KvCache,
    pub tokens: &'a [u32],
}

/// Loss and gradient norm of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradients {
    /// Mean loss, in nats per token.
    pub loss: f64,
    /// Euclidean length of the whole gradient.
    pub norm: f64,
}
