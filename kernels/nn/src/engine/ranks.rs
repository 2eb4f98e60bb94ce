//! Data parallel training: several ranks, each with an engine that has all weights, train one model (ADR 0050).
//!
//! A step deals its micro-batches to the ranks in turns. After each turn every rank adds, for the slice of the flat
//! parameter vector that it owns, the gradients of all ranks in the order of the micro-batches. It has the moments of
//! that slice alone, steps it, and gives its weights to all others: ZeRO-1 (Rajbhandari et al., 2020).
//!
//! On a CPU a turn is one micro-batch per rank. All sums are those of one engine, in the same order, so any number of
//! ranks gives the bits of one. An engine on a GPU adds up its micro-batches on the device (ADR 0055): a step is one
//! turn, its gradient crosses the bus once, and the last bits depend on the number of ranks.
//!
//! Values go through the machine's memory in rounds of [`ROUND`] for each rank, so that all ranks receive at once and
//! neither a gradient nor the weights of a GPU need a whole copy there.
//!
//! Rank 0 is [`DataParallel`], an engine as any other; the other ranks [`serve`] it. A failed exchange ends the
//! connection, and the moments of the other ranks are lost: a step fails until weights and moments are loaded again.
//! The next step after that connects anew.

use super::{Blocks, Engine, Gradients, RankEngine, check_len, take, take_mut};
use crate::{
    ModelError, StepParams,
    collective::{Collective, CollectiveError},
    optim::{self, Tensor, muon, norm},
};
use model::{ModelConfig, Optimiser, Recipe};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Opens a rank's own engine, with the weights of this configuration.
pub type OpenLocal<'a> =
    dyn Fn(&ModelConfig, &Recipe, &[f32]) -> Result<Box<dyn RankEngine>, ModelError> + 'a;

/// Connects rank 0 with all others.
pub type Connect = Box<dyn FnMut() -> Result<Box<dyn Collective>, ModelError> + Send>;

/// Moments that are read or written at once, in values: 4 MiB.
const MOMENTS: usize = 1 << 20;
/// Values of each rank's slice that are exchanged at once: 4 MiB.
const ROUND: usize = 1 << 20;

impl From<CollectiveError> for ModelError {
    fn from(error: CollectiveError) -> ModelError {
        ModelError::Ranks { why: error.to_string() }
    }
}

/// Which rank has what.
struct Layout {
    /// By rank: its part of the flat parameter vector.
    slices: Vec<Range<usize>>,
    /// By rank: the tensors, or parts of them, in its slice.
    parts: Vec<Vec<Part>>,
    /// Values of each tensor.
    tensors: Vec<usize>,
}

/// A tensor, or a part of one, of one rank.
struct Part {
    /// Index of the tensor in schema order.
    index: usize,
    tensor: Tensor,
    range: Range<usize>,
}

impl Part {
    fn moments(&self) -> usize {
        let moments = match self.tensor.optimiser {
            Optimiser::AdamW => 2,
            Optimiser::Muon => 1,
        };
        moments * self.range.len()
    }
}

/// What is exchanged at once.
struct Round {
    /// By rank: a part of its slice.
    parts: Vec<Range<usize>>,
    /// By rank: where the part lies in the buffer of the exchange.
    places: Vec<Range<usize>>,
}

/// Some of a rank's moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Piece {
    rank: usize,
    /// In the rank's own vector.
    first: usize,
    count: usize,
}

impl Piece {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

impl Layout {
    /// Slices of about the same length. A tensor that AdamW steps may be cut where the sum of squares begins a chunk;
    /// Muon needs whole matrices.
    fn new(config: &ModelConfig, recipe: &Recipe, ranks: usize) -> Layout {
        let shapes: Vec<[usize; 2]> = config.shapes().into_iter().map(|(_, shape)| shape).collect();
        let tensors: Vec<usize> = shapes.iter().map(|[rows, columns]| rows * columns).collect();
        let all: usize = tensors.iter().sum();
        let kinds: Vec<Tensor> =
            (0..).zip(&shapes).map(|(index, &shape)| Tensor::of(recipe, index, shape)).collect();
        let starts: Vec<usize> = tensors
            .iter()
            .scan(0, |end, len| {
                *end += len;
                Some(*end - len)
            })
            .collect();
        let cut = |target: usize| {
            let index = starts.partition_point(|start| *start <= target) - 1;
            let (start, len) = (starts[index], tensors[index]);
            let inside = target - start;
            match kinds[index].optimiser {
                Optimiser::AdamW => start + inside / norm::CHUNK * norm::CHUNK,
                Optimiser::Muon if 2 * inside < len => start,
                Optimiser::Muon => start + len,
            }
        };
        let ends = (1..=ranks).map(|rank| if rank == ranks { all } else { cut(all * rank / ranks) });
        let mut first = 0;
        let slices: Vec<Range<usize>> = ends
            .map(|end| {
                let slice = first..end.max(first);
                first = slice.end;
                slice
            })
            .collect();
        let parts_of = |slice: &Range<usize>| {
            let part = |index: usize| {
                let range = starts[index].max(slice.start)..(starts[index] + tensors[index]).min(slice.end);
                (!range.is_empty()).then_some(Part { index, tensor: kinds[index], range })
            };
            (0..tensors.len()).filter_map(part).collect()
        };
        Layout { parts: slices.iter().map(parts_of).collect(), slices, tensors }
    }

    /// The rounds in which all values are exchanged.
    fn rounds(&self) -> impl Iterator<Item = Round> + '_ {
        let longest = self.slices.iter().map(Range::len).max().unwrap_or(0);
        (0..longest).step_by(ROUND).map(|first| {
            let part = |slice: &Range<usize>| {
                let start = slice.end.min(slice.start + first);
                start..slice.end.min(start + ROUND)
            };
            let parts: Vec<Range<usize>> = self.slices.iter().map(part).collect();
            let mut end = 0;
            let place = |part: &Range<usize>| {
                end += part.len();
                end - part.len()..end
            };
            Round { places: parts.iter().map(place).collect(), parts }
        })
    }

    /// Values of all moments of a rank.
    fn moments(&self, rank: usize) -> usize {
        self.parts[rank].iter().map(Part::moments).sum()
    }

    /// All moments in the order of [`Engine::moments`].
    fn pieces(&self) -> Vec<Piece> {
        // By tensor: mean and square of each rank's part.
        let mut of_tensors: Vec<[Vec<Piece>; 2]> = vec![Default::default(); self.tensors.len()];
        for (rank, parts) in self.parts.iter().enumerate() {
            let mut first = 0;
            for part in parts {
                let count = part.range.len();
                for (moment, pieces) in of_tensors[part.index].iter_mut().enumerate() {
                    if (moment + 1) * count <= part.moments() {
                        pieces.push(Piece { rank, first: first + moment * count, count });
                    }
                }
                first += part.moments();
            }
        }
        let cut = |piece: Piece| {
            (0..piece.count).step_by(MOMENTS).map(move |from| Piece {
                first: piece.first + from,
                count: MOMENTS.min(piece.count - from),
                ..piece
            })
        };
        of_tensors.into_iter().flatten().flatten().flat_map(cut).collect()
    }
}

/// What rank 0 asks of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Command {
    Open {
        config: ModelConfig,
        recipe: Recipe,
    },
    /// The weights follow.
    Weights,
    /// Tokens of whole sequences.
    Gradients {
        tokens: Vec<u32>,
    },
    /// Learning rate and scale of the gradient by their bits, which text need not keep.
    Step {
        step: u64,
        learning_rate: u64,
        gradient_scale: u64,
    },
    /// The moments of this piece go to rank 0.
    Give(Piece),
    /// They come from rank 0.
    Take(Piece),
    Stop,
}

impl Command {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a command is numbers and text")
    }

    /// `None` if the bytes are none of a command.
    fn decode(bytes: &[u8]) -> Option<Command> {
        serde_json::from_slice(bytes).ok()
    }
}

/// One rank's part of the work. All ranks call the same functions in the same order.
struct Rank {
    collective: Box<dyn Collective>,
    recipe: Recipe,
    seq_len: usize,
    layout: Layout,
    /// The gradient of the own slice, added over micro-batches.
    sum: Vec<f32>,
    /// The weights of the own slice during a step.
    weights: Vec<f32>,
    /// Of an exchange.
    buffer: Vec<f32>,
    /// The moments of the own parts: of each the mean, then the square where there is one.
    moments: Vec<f32>,
    muon: muon::Scratch,
}

impl Rank {
    fn new(collective: Box<dyn Collective>, config: &ModelConfig, recipe: &Recipe) -> Rank {
        let layout = Layout::new(config, recipe, collective.ranks());
        let rank = collective.rank();
        Rank {
            sum: vec![0.0; layout.slices[rank].len()],
            weights: Vec::new(),
            buffer: Vec::new(),
            moments: vec![0.0; layout.moments(rank)],
            recipe: recipe.clone(),
            seq_len: config.seq_len,
            layout,
            muon: muon::Scratch::default(),
            collective,
        }
    }

    fn announce(&mut self, command: &Command) -> Result<(), ModelError> {
        Ok(self.collective.announce(&mut command.encode())?)
    }

    /// All ranks are there and ready.
    fn meet(&mut self) -> Result<(), ModelError> {
        let lens = vec![1; self.collective.ranks()];
        Ok(self.collective.gather(&[1.0], &lens).map(drop)?)
    }

    /// The gradient of the mean loss, each rank's slice in its `sum`. The result is that of all ranks on rank 0 alone.
    fn gradients(
        &mut self,
        local: &mut dyn RankEngine,
        sequences: &[&[u32]],
    ) -> Result<Gradients, ModelError> {
        let Rank { collective, recipe, seq_len, layout, sum, buffer, .. } = self;
        let (rank, ranks, rows) = (collective.rank(), collective.ranks(), sequences.len() * *seq_len);
        let micro_batches = match local.adds_micro_batches() {
            true => sequences.len().div_ceil(recipe.micro_batch).div_ceil(ranks),
            false => 1,
        };
        let shares: Vec<&[&[u32]]> =
            sequences.chunks(recipe.micro_batch.saturating_mul(micro_batches)).collect();
        sum.fill(0.0);
        let mut losses = Vec::new();
        for turn in shares.chunks(ranks) {
            let own = match turn.get(rank) {
                Some(share) => local.micro_batches(share, rows)?,
                None => Vec::new(),
            };
            for Round { parts, places } in layout.rounds() {
                buffer.clear();
                if rank < turn.len() {
                    parts.iter().try_for_each(|part| local.read_gradient(part.clone(), buffer))?;
                }
                let sum = &mut sum[within(&parts[rank], &layout.slices[rank])];
                collective.reduce_scatter(&places, buffer, turn.len(), sum)?;
            }
            let lens: Vec<usize> =
                (0..ranks).map(|rank| turn.get(rank).map_or(0, |share| share.len() * *seq_len)).collect();
            losses.extend(collective.gather(&own, &lens)?);
        }
        let mut rest = &sum[..];
        let own = layout.parts[rank]
            .iter()
            .flat_map(|part| norm::chunks_squared(take(&mut rest, part.range.len())));
        let own: Vec<f64> = own.collect();
        let chunks =
            |parts: &Vec<Part>| parts.iter().map(|part| part.range.len().div_ceil(norm::CHUNK)).sum();
        let lens: Vec<usize> = layout.parts.iter().map(chunks).collect();
        let chunks = collective.gather(&own, &lens)?;
        if rank != 0 {
            return Ok(Gradients { loss: 0.0, norm: 0.0 });
        }
        let mut chunks = chunks.into_iter();
        let squares = layout.tensors.iter().map(|len| {
            let of_tensor: Vec<f64> = chunks.by_ref().take(len.div_ceil(norm::CHUNK)).collect();
            norm::sum_chunks(&of_tensor)
        });
        let norm = squares.sum::<f64>().sqrt();
        Ok(Gradients { loss: losses.iter().sum::<f64>() / rows as f64, norm })
    }

    /// Steps the own slice of the weights, and takes over the others.
    fn step(&mut self, local: &mut dyn RankEngine, params: &StepParams) -> Result<(), ModelError> {
        let Rank { collective, recipe, layout, sum, weights, buffer, moments, muon, .. } = self;
        let rank = collective.rank();
        weights.clear();
        local.read_weights(layout.slices[rank].clone(), weights)?;
        let (mut rest, mut sum, mut moments) = (&mut weights[..], &sum[..], &mut moments[..]);
        for Part { tensor, range, .. } in &layout.parts[rank] {
            let (weights, gradient) = (take_mut(&mut rest, range.len()), take(&mut sum, range.len()));
            optim::step(recipe, params, tensor, weights, gradient, &mut moments, muon);
        }
        for Round { parts, places } in layout.rounds() {
            buffer.resize(places.last().map_or(0, |place| place.end), 0.0);
            let own = &weights[within(&parts[rank], &layout.slices[rank])];
            buffer[places[rank].clone()].copy_from_slice(own);
            collective.all_gather(&places, buffer)?;
            for (part, place) in parts.iter().zip(places) {
                local.write_weights(part.start, &buffer[place])?;
            }
        }
        local.finish_weights()
    }

    /// Gives the weights of rank 0 to all.
    fn share_weights(&mut self, local: &mut dyn RankEngine) -> Result<(), ModelError> {
        let Rank { collective, layout, buffer, .. } = self;
        let end = layout.slices.last().map_or(0, |slice| slice.end);
        for first in (0..end).step_by(ROUND) {
            let range = first..end.min(first + ROUND);
            if collective.rank() == 0 {
                buffer.clear();
                local.read_weights(range, buffer)?;
                (1..collective.ranks()).try_for_each(|rank| collective.send(rank, buffer))?;
            } else {
                buffer.resize(range.len(), 0.0);
                collective.receive(0, buffer)?;
                local.write_weights(first, buffer)?;
            }
        }
        if collective.rank() == 0 { Ok(()) } else { local.finish_weights() }
    }

    /// Rank 0 takes the moments of a piece. Gives nothing on other ranks.
    fn give(&mut self, piece: &Piece) -> Result<Vec<f32>, ModelError> {
        if piece.rank == self.collective.rank() {
            let own = self.moments.get(piece.range()).ok_or_else(foreign)?;
            if piece.rank == 0 {
                return Ok(own.to_vec());
            }
            self.collective.send(0, own)?;
        } else if self.collective.rank() == 0 {
            let mut values = vec![0.0; piece.count];
            self.collective.receive(piece.rank, &mut values)?;
            return Ok(values);
        }
        Ok(Vec::new())
    }

    /// Rank 0 hands over the moments of a piece, `values`. Other ranks have none.
    fn take(&mut self, piece: &Piece, values: &[f32]) -> Result<(), ModelError> {
        if piece.rank == self.collective.rank() {
            let own = self.moments.get_mut(piece.range()).ok_or_else(foreign)?;
            match piece.rank {
                0 => own.copy_from_slice(values),
                _ => self.collective.receive(0, own)?,
            }
        } else if self.collective.rank() == 0 {
            self.collective.send(piece.rank, values)?;
        }
        Ok(())
    }
}

/// Where `part` lies within `slice`.
fn within(part: &Range<usize>, slice: &Range<usize>) -> Range<usize> {
    part.start - slice.start..part.end - slice.start
}

fn foreign() -> ModelError {
    ModelError::Ranks { why: "rank 0 sent something that is no command of this release".into() }
}

/// Rank 0: an engine that trains with the other ranks.
pub struct DataParallel {
    config: ModelConfig,
    recipe: Recipe,
    local: Box<dyn RankEngine>,
    /// Whether a step failed after the weights began to change.
    is_torn: bool,
    session: Mutex<Session>,
}

struct Session {
    connect: Connect,
    rank: Option<Rank>,
    /// Whether the other ranks have the weights of `local`.
    has_weights: bool,
    moments: Moments,
}

/// Where the moments are.
enum Moments {
    /// They are zero.
    Fresh,
    /// On rank 0, to be given to the ranks.
    Here(Vec<f32>),
    /// With the ranks.
    There,
    /// Of ranks that have failed.
    Lost,
}

impl DataParallel {
    /// Connects the ranks, with moments of zero. `open` opens rank 0's own engine, with the weights `flat`.
    ///
    /// # Errors
    /// If configuration or recipe are invalid, `flat` has another length, or the ranks do not connect.
    pub fn open(
        config: &ModelConfig,
        recipe: &Recipe,
        flat: &[f32],
        open: &OpenLocal<'_>,
        connect: Connect,
    ) -> Result<DataParallel, ModelError> {
        config.validate()?;
        recipe.validate()?;
        check_len(config, flat)?;
        let session = Session { connect, rank: None, has_weights: false, moments: Moments::Fresh };
        let (local, session) = (open(config, recipe, flat)?, Mutex::new(session));
        let mut engine =
            DataParallel { config: config.clone(), recipe: recipe.clone(), local, is_torn: false, session };
        engine.with_ranks(|_, _| Ok(()))?;
        Ok(engine)
    }

    /// Runs `work` with ranks that have the present weights and moments.
    fn with_ranks<T>(
        &mut self,
        work: impl FnOnce(&mut Rank, &mut dyn RankEngine) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        if self.is_torn {
            return Err(lost("weights"));
        }
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        let local = &mut *self.local;
        let done = session.ready(&self.config, &self.recipe, local).and_then(|rank| work(rank, local));
        if let Err(error) = &done {
            session.fail(error);
        }
        done
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lost(what: &str) -> ModelError {
    ModelError::Ranks {
        why: format!(
            "they failed before in this window, and their {what} are lost: the next window connects them anew"
        ),
    }
}

impl Session {
    /// Connects the ranks if they are not, and brings them to the present weights and moments.
    fn ready(
        &mut self,
        config: &ModelConfig,
        recipe: &Recipe,
        local: &mut dyn RankEngine,
    ) -> Result<&mut Rank, ModelError> {
        if matches!(self.moments, Moments::Lost) {
            return Err(lost("optimiser's moments"));
        }
        let rank = match &mut self.rank {
            Some(rank) => rank,
            none => {
                let open = Command::Open { config: config.clone(), recipe: recipe.clone() };
                if Command::decode(&open.encode()).as_ref() != Some(&open) {
                    let why = "a number of the model or recipe changes when it is written and read: give it fewer digits";
                    return Err(ModelError::Ranks { why: why.into() });
                }
                let rank = none.insert(Rank::new((self.connect)()?, config, recipe));
                self.has_weights = false;
                rank.announce(&open)?;
                rank.meet()?;
                rank
            }
        };
        if !self.has_weights {
            rank.announce(&Command::Weights)?;
            rank.share_weights(local)?;
            self.has_weights = true;
        }
        if let Moments::Here(values) = &self.moments {
            give_out(rank, values)?;
        }
        self.moments = Moments::There;
        Ok(rank)
    }

    /// Closes the connection: the other ranks end.
    fn fail(&mut self, error: &ModelError) {
        if let Some(mut rank) = self.rank.take() {
            rank.collective.abort(&error.to_string());
        }
        if matches!(self.moments, Moments::There) {
            self.moments = Moments::Lost;
        }
    }
}

/// Gives all moments to their ranks.
fn give_out(rank: &mut Rank, mut values: &[f32]) -> Result<(), ModelError> {
    for piece in rank.layout.pieces() {
        rank.announce(&Command::Take(piece))?;
        rank.take(&piece, take(&mut values, piece.count))?;
    }
    Ok(())
}

impl Engine for DataParallel {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.local.load(flat)?;
        self.is_torn = false;
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner).has_weights = false;
        Ok(())
    }

    fn weights(&self) -> Blocks<'_> {
        match self.is_torn {
            true => Box::new(std::iter::once(Err(lost("weights")))),
            false => self.local.weights(),
        }
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner).has_weights = false;
        self.local.edit(edit)
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.local.losses(sequences)
    }

    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.local.logits(tokens, rows)
    }

    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        let tokens = sequences.iter().copied().flatten().copied().collect();
        self.with_ranks(|rank, local| {
            rank.announce(&Command::Gradients { tokens })?;
            rank.gradients(local, sequences)
        })
    }

    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let &StepParams { step, learning_rate, gradient_scale } = params;
        let [learning_rate, gradient_scale] = [learning_rate, gradient_scale].map(f64::to_bits);
        let stepped = self.with_ranks(|rank, local| {
            rank.announce(&Command::Step { step, learning_rate, gradient_scale })?;
            rank.step(local, params)
        });
        self.is_torn |= stepped.is_err();
        stepped
    }

    fn moments(&self) -> Blocks<'_> {
        let session = self.session();
        match (&session.moments, &session.rank) {
            (Moments::There, Some(rank)) => {
                let pieces = rank.layout.pieces();
                Box::new(pieces.into_iter().map(|piece| {
                    let mut session = self.session();
                    let Some(rank) = &mut session.rank else { return Err(lost("optimiser's moments")) };
                    let values = rank.announce(&Command::Give(piece)).and_then(|()| rank.give(&piece));
                    if let Err(error) = &values {
                        session.fail(error);
                    }
                    values.map(Cow::Owned)
                }))
            }
            (Moments::Fresh, _) => {
                let count = optim::moment_count(&self.config, self.recipe.optimiser);
                Box::new(
                    (0..count)
                        .step_by(MOMENTS)
                        .map(move |first| Ok(Cow::Owned(vec![0.0; MOMENTS.min(count - first)]))),
                )
            }
            (Moments::Here(values), _) => {
                let count = values.len();
                Box::new((0..count).step_by(MOMENTS).map(move |first| match &self.session().moments {
                    Moments::Here(values) => {
                        Ok(Cow::Owned(values[first..count.min(first + MOMENTS)].to_vec()))
                    }
                    _ => Err(lost("optimiser's moments")),
                }))
            }
            (Moments::There | Moments::Lost, _) => {
                Box::new(std::iter::once(Err(lost("optimiser's moments"))))
            }
        }
    }

    /// Gives the moments to the ranks. If they are not connected, keeps them until they are.
    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(rank) = &mut session.rank {
            match give_out(rank, moments) {
                Ok(()) => {
                    session.moments = Moments::There;
                    return Ok(());
                }
                Err(error) => session.fail(&error),
            }
        }
        session.moments = Moments::Here(moments.to_vec());
        Ok(())
    }
}

impl Drop for DataParallel {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(rank) = &mut session.rank {
            // Ranks that are gone need no word.
            let _ = rank.announce(&Command::Stop);
        }
    }
}

/// A rank other than 0: does what rank 0 asks until it stops. `open` opens its own engine.
///
/// # Errors
/// If the exchanges or the engine fail. The other ranks are told.
pub fn serve(collective: Box<dyn Collective>, open: &OpenLocal<'_>) -> Result<(), ModelError> {
    let mut collective = collective;
    let mut message = Vec::new();
    collective.announce(&mut message)?;
    let (config, recipe) = match Command::decode(&message) {
        Some(Command::Open { config, recipe }) => (config, recipe),
        Some(Command::Stop) => return Ok(()),
        _ => {
            collective.abort(&foreign().to_string());
            return Err(foreign());
        }
    };
    // Weights follow.
    let opened = config.validate().map_err(ModelError::from).and_then(|()| {
        recipe.validate()?;
        open(&config, &recipe, &vec![0.0; config.parameters()])
    });
    let mut local = match opened {
        Ok(local) => local,
        Err(error) => {
            collective.abort(&error.to_string());
            return Err(error);
        }
    };
    let mut rank = Rank::new(collective, &config, &recipe);
    let served = rank.meet().and_then(|()| rank.serve(&config, &mut *local));
    if let Err(error) = &served {
        rank.collective.abort(&error.to_string());
    }
    served
}

impl Rank {
    fn serve(&mut self, config: &ModelConfig, local: &mut dyn RankEngine) -> Result<(), ModelError> {
        let mut message = Vec::new();
        loop {
            self.collective.announce(&mut message)?;
            match Command::decode(&message).ok_or_else(foreign)? {
                Command::Open { .. } => return Err(foreign()),
                Command::Weights => self.share_weights(local)?,
                Command::Gradients { tokens } => {
                    let sequences = sequences(config, &tokens)?;
                    self.gradients(local, &sequences)?;
                }
                Command::Step { step, learning_rate, gradient_scale } => {
                    let [learning_rate, gradient_scale] = [learning_rate, gradient_scale].map(f64::from_bits);
                    self.step(local, &StepParams { step, learning_rate, gradient_scale })?;
                }
                Command::Give(piece) => drop(self.give(&piece)?),
                Command::Take(piece) => self.take(&piece, &[])?,
                Command::Stop => return Ok(()),
            }
        }
    }
}

/// The tokens as sequences, which an engine takes without a check.
fn sequences<'a>(config: &ModelConfig, tokens: &'a [u32]) -> Result<Vec<&'a [u32]>, ModelError> {
    let sequences: Vec<&[u32]> = tokens.chunks(config.seq_len + 1).collect();
    crate::batch::check(config, &sequences)?;
    if sequences.is_empty() { Err(foreign()) } else { Ok(sequences) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{recipe, tiny};
    use model::RateSchedule;
    use proptest::prelude::*;

    fn layouts() -> impl Iterator<Item = (ModelConfig, Recipe, Layout)> {
        let configs = [tiny(), ModelConfig::preset("117k").unwrap(), ModelConfig::preset("6m").unwrap()];
        configs.into_iter().flat_map(|config| {
            [Optimiser::AdamW, Optimiser::Muon].into_iter().flat_map(move |optimiser| {
                let (config, recipe) = (config.clone(), Recipe { optimiser, ..recipe() });
                [1, 2, 3, 4, 8, 64].into_iter().map(move |ranks| {
                    let layout = Layout::new(&config, &recipe, ranks);
                    assert_eq!(layout.slices.len(), ranks);
                    (config.clone(), recipe.clone(), layout)
                })
            })
        })
    }

    #[test]
    fn slices_cover_the_model_and_cut_no_chunk_and_no_matrix_of_muon() {
        for (config, _, layout) in layouts() {
            let mut end = 0;
            for slice in &layout.slices {
                assert_eq!(slice.start, end);
                end = slice.end;
            }
            assert_eq!(end, config.parameters());
            let starts: Vec<usize> =
                (0..layout.tensors.len()).map(|index| layout.tensors[..index].iter().sum()).collect();
            for part in layout.parts.iter().flatten() {
                let (start, len) = (starts[part.index], layout.tensors[part.index]);
                assert_eq!((part.range.start - start) % norm::CHUNK, 0);
                assert!(part.tensor.optimiser == Optimiser::AdamW || part.range == (start..start + len));
            }
        }
    }

    #[test]
    fn slices_of_a_model_for_adamw_are_equal_but_for_a_chunk() {
        let config = ModelConfig::preset("6m").unwrap();
        for ranks in [2, 4, 8] {
            let layout = Layout::new(&config, &recipe(), ranks);
            let fair = config.parameters() / ranks;
            assert!(
                layout.slices.iter().all(|slice| slice.len().abs_diff(fair) <= norm::CHUNK + 1),
                "{ranks}"
            );
        }
    }

    #[test]
    fn rounds_cover_each_slice_once_and_leave_no_gap_in_the_buffer() {
        let large = ModelConfig::preset("6m").unwrap();
        let large = [1, 3, 8].map(|ranks| (large.clone(), recipe(), Layout::new(&large, &recipe(), ranks)));
        for (_, _, layout) in layouts().chain(large) {
            let mut ends: Vec<usize> = layout.slices.iter().map(|slice| slice.start).collect();
            for Round { parts, places } in layout.rounds() {
                let mut place_end = 0;
                for ((end, part), place) in ends.iter_mut().zip(parts).zip(places) {
                    assert_eq!((part.start, place.start, part.len()), (*end, place_end, place.len()));
                    assert!(part.len() <= ROUND);
                    (*end, place_end) = (part.end, place.end);
                }
            }
            assert!(ends.iter().zip(&layout.slices).all(|(end, slice)| *end == slice.end));
        }
    }

    #[test]
    fn the_pieces_of_moments_are_each_ranks_once() {
        for (config, recipe, layout) in layouts() {
            let pieces = layout.pieces();
            let all: usize = pieces.iter().map(|piece| piece.count).sum();
            assert_eq!(all, optim::moment_count(&config, recipe.optimiser));
            for rank in 0..layout.slices.len() {
                let mut own: Vec<Range<usize>> =
                    pieces.iter().filter(|piece| piece.rank == rank).map(Piece::range).collect();
                own.sort_by_key(|range| range.start);
                let end = own.iter().fold(0, |end, range| {
                    assert_eq!(range.start, end);
                    range.end
                });
                assert_eq!(end, layout.moments(rank));
            }
        }
    }

    #[test]
    fn commands_are_read_as_they_were_written() {
        let recipe =
            Recipe { optimiser: Optimiser::Muon, schedule: RateSchedule::Wsd, stable_steps: 7, ..recipe() };
        let bits = f64::to_bits;
        let [learning_rate, gradient_scale] = [bits(0.1 + 0.2), bits(f64::MIN_POSITIVE / 2.0)];
        let piece = Piece { rank: 2, first: 5, count: 9 };
        for command in [
            Command::Open { config: tiny(), recipe },
            Command::Weights,
            Command::Gradients { tokens: vec![1, u32::MAX] },
            Command::Step { step: 3, learning_rate, gradient_scale },
            Command::Give(piece),
            Command::Take(piece),
            Command::Stop,
        ] {
            let bytes = command.encode();
            assert_eq!(Command::decode(&bytes), Some(command));
            assert_eq!(Command::decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_rank_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(command) = Command::decode(&bytes) {
                prop_assert_eq!(Command::decode(&command.encode()), Some(command));
            }
        }
    }
}
