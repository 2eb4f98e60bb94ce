//! Data parallel training: several ranks, each with an engine that has all weights, train one model (ADR 0050).
//!
//! Each rank owns a part of every tensor: the sum of its gradient, its moments, and its step (ZeRO-2, Rajbhandari et
//! al., 2020; ADR 0050). A step assigns its micro-batches to the ranks in turns. The backward pass runs from the last
//! tensor to the first. Each tensor's gradient is added to the sums of its owners, in the order of the micro-batches,
//! and dropped. After its step every rank sends its weights to all others.
//!
//! On a CPU a turn is one micro-batch per rank. All sums are those of one engine, in the same order, so any number of
//! ranks gives the bits of one. A GPU engine with several micro-batches per step adds them up on the device, in a
//! whole gradient (ADR 0072). Then a step is one turn, its gradient crosses the bus once, and the last bits depend on
//! the number of ranks.
//!
//! Every tensor is divided among all ranks, so that all receive at once. Values pass through the machine's memory in
//! rounds of [`ROUND`] per rank, so it never holds a whole copy of a GPU's gradient or weights.
//!
//! With an NCCL communicator in the collective, gradients and weights move directly between GPUs ([`GpuExchange`], ADR
//! 0072), and the machine's memory holds a rank's own parts only. The sums are the same.
//!
//! Rank 0 is [`DataParallel`], an ordinary engine; the other ranks [`serve`] it. A failed exchange ends the
//! connection, and the moments of the other ranks are lost: steps fail until weights and moments are loaded again. The
//! next step then reconnects. If a batch gives NaN or infinity twice, rank 0 computes it alone: a finite result means
//! that a rank is faulty.

use super::traits::{Blocks, Engine, GpuExchange, Gradients, RankEngine, ReadPart};
use crate::{
    ModelError, StepParams,
    collective::{Collective, CollectiveError},
    optim::{self, Tensor, muon, norm},
    slices::{check_len, take},
};
use model::{ModelConfig, Optimiser, Recipe};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    ops::Range,
    slice::Chunks,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Function that opens a rank's own engine, with weights of this configuration.
pub type OpenLocal<'a> =
    dyn Fn(&ModelConfig, &Recipe, &[f32]) -> Result<Box<dyn RankEngine>, ModelError> + 'a;

/// Function that connects rank 0 with all others.
pub type Connect = Box<dyn FnMut() -> Result<Box<dyn Collective>, ModelError> + Send>;

/// Maximum number of moments that are read or written at once: 4 MiB.
const MOMENTS: usize = 1 << 20;
/// Maximum number of values of each rank's part that are exchanged at once: 4 MiB.
pub const ROUND: usize = 1 << 20;

impl From<CollectiveError> for ModelError {
    fn from(error: CollectiveError) -> ModelError {
        ModelError::Ranks { why: error.to_string() }
    }
}

/// Assignment of a part of each tensor, in schema order, to each rank.
struct Layout(Vec<Divided>);

/// A tensor divided among the ranks.
struct Divided {
    tensor: Tensor,
    /// Position of its first value in the flat parameter vector.
    start: usize,
    len: usize,
    /// Part of the tensor's values of each rank, contiguous in the order of ranks.
    parts: Vec<Range<usize>>,
}

impl Divided {
    /// Converts a range of the tensor into one of the flat parameter vector.
    fn flat(&self, part: &Range<usize>) -> Range<usize> {
        self.start + part.start..self.start + part.end
    }

    fn flat_all(&self, parts: &[Range<usize>]) -> Vec<Range<usize>> {
        parts.iter().map(|part| self.flat(part)).collect()
    }

    /// Returns the number of moments per value.
    fn moments(&self) -> usize {
        match self.tensor.optimiser {
            Optimiser::AdamW => 2,
            Optimiser::Muon => 1,
        }
    }
}

/// Values that are exchanged at once.
struct Round {
    /// Some values of each rank's part.
    parts: Vec<Range<usize>>,
    /// Range of these values in the exchange's buffer, by rank.
    places: Vec<Range<usize>>,
}

/// Returns the rounds in which these parts are exchanged.
fn rounds(parts: &[Range<usize>]) -> impl Iterator<Item = Round> + '_ {
    let longest = parts.iter().map(Range::len).max().unwrap_or(0);
    (0..longest).step_by(ROUND).map(|first| {
        let some = |part: &Range<usize>| {
            let start = part.end.min(part.start + first);
            start..part.end.min(start + ROUND)
        };
        let parts: Vec<Range<usize>> = parts.iter().map(some).collect();
        let mut end = 0;
        let place = |part: &Range<usize>| {
            end += part.len();
            end - part.len()..end
        };
        Round { places: parts.iter().map(place).collect(), parts }
    })
}

/// A range of a rank's moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Piece {
    rank: usize,
    /// Index in the rank's own vector.
    first: usize,
    count: usize,
}

impl Piece {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

impl Layout {
    /// Assigns each rank about the same number of values of each AdamW tensor, in whole chunks of the sum of squares.
    /// A Muon matrix is assigned to the rank with the fewest values of the tensors before it.
    fn new(config: &ModelConfig, recipe: &Recipe, ranks: usize) -> Layout {
        let (mut start, mut values) = (0, vec![0; ranks]);
        let divide = |(index, (_, shape)): (usize, (String, [usize; 2]))| {
            let len = shape[0] * shape[1];
            let tensor = Tensor::of(recipe, index, shape);
            let chunk = match tensor.optimiser {
                Optimiser::AdamW => norm::CHUNK,
                Optimiser::Muon => len,
            };
            let chunks = len.div_ceil(chunk);
            let mut shares = vec![chunks / ranks; ranks];
            let mut least: Vec<usize> = (0..ranks).collect();
            least.sort_by_key(|rank| values[*rank]);
            least[..chunks % ranks].iter().for_each(|rank| shares[*rank] += 1);
            let mut end = 0;
            let part = |(share, values): (usize, &mut usize)| {
                let first = end;
                end = len.min(first + share * chunk);
                *values += end - first;
                first..end
            };
            let parts = shares.into_iter().zip(&mut values).map(part).collect();
            start += len;
            Divided { tensor, start: start - len, len, parts }
        };
        Layout(config.shapes().into_iter().enumerate().map(divide).collect())
    }

    /// Returns the number of values of the whole model.
    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| last.start + last.len)
    }

    /// Returns the number of values of a rank.
    fn values(&self, rank: usize) -> usize {
        self.0.iter().map(|divided| divided.parts[rank].len()).sum()
    }

    /// Returns the number of values of all moments of a rank.
    fn moments(&self, rank: usize) -> usize {
        self.0.iter().map(|divided| divided.moments() * divided.parts[rank].len()).sum()
    }

    /// Returns all moments in the order of [`Engine::moments`].
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut ends = vec![0; self.0.first().map_or(0, |first| first.parts.len())];
        for divided in &self.0 {
            // The means of all ranks' parts, then the squares.
            for moment in 0..divided.moments() {
                let of = |(rank, part): (usize, &Range<usize>)| {
                    let count = part.len();
                    Piece { rank, first: ends[rank] + moment * count, count }
                };
                pieces.extend(divided.parts.iter().enumerate().map(of));
            }
            for (end, part) in ends.iter_mut().zip(&divided.parts) {
                *end += divided.moments() * part.len();
            }
        }
        let cut = |piece: Piece| {
            (0..piece.count).step_by(MOMENTS).map(move |from| Piece {
                first: piece.first + from,
                count: MOMENTS.min(piece.count - from),
                ..piece
            })
        };
        pieces.into_iter().flat_map(cut).collect()
    }
}

/// Command of rank 0 to the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Command {
    Open {
        config: ModelConfig,
        recipe: Recipe,
    },
    /// New weights; they follow.
    Weights,
    /// Tokens of whole sequences.
    Gradients {
        tokens: Vec<u32>,
    },
    /// Learning rate and gradient scale as bits, because text may not preserve them.
    Step {
        step: u64,
        learning_rate: u64,
        gradient_scale: u64,
    },
    /// Sends the moments of this piece to rank 0.
    Give(Piece),
    /// Receives the moments of this piece from rank 0.
    Take(Piece),
    Stop,
}

impl Command {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a command is numbers and text")
    }

    /// Returns `None` if the bytes are not a command.
    fn decode(bytes: &[u8]) -> Option<Command> {
        serde_json::from_slice(bytes).ok()
    }
}

/// One rank's part of the work. All ranks call the same functions in the same order.
struct Rank {
    /// Declared, and so dropped, before the collective: GPUs stop before the others are notified.
    gpus: Option<Box<dyn GpuExchange>>,
    collective: Box<dyn Collective>,
    recipe: Recipe,
    seq_len: usize,
    layout: Layout,
    /// Gradient of this rank's parts, one after the other, summed over micro-batches.
    sum: Vec<f32>,
    /// Losses of all tokens of the last batch, on rank 0.
    losses: Vec<f64>,
    /// Weights of this rank's part of a tensor during a step.
    weights: Vec<f32>,
    /// Buffer of an exchange.
    buffer: Vec<f32>,
    /// Moments of this rank's parts: for each the mean, then the square if there is one.
    moments: Vec<f32>,
    muon: muon::Scratch,
}

impl Rank {
    fn new(collective: Box<dyn Collective>, config: &ModelConfig, recipe: &Recipe) -> Rank {
        let layout = Layout::new(config, recipe, collective.ranks());
        let rank = collective.rank();
        Rank {
            sum: vec![0.0; layout.values(rank)],
            losses: Vec::new(),
            weights: Vec::new(),
            buffer: Vec::new(),
            moments: vec![0.0; layout.moments(rank)],
            recipe: recipe.clone(),
            seq_len: config.seq_len,
            layout,
            muon: muon::Scratch::default(),
            gpus: None,
            collective,
        }
    }

    fn announce(&mut self, command: &Command) -> Result<(), ModelError> {
        Ok(self.collective.announce(&mut command.encode())?)
    }

    /// Waits until all ranks are connected and ready, and their GPUs too if they exchange by NCCL.
    fn meet(&mut self, local: &dyn RankEngine) -> Result<(), ModelError> {
        if let Some(membership) = self.collective.nccl() {
            self.gpus = Some(local.connect_gpus(&membership, &mut self.collective.watch("connecting GPUs"))?);
        }
        let lens = vec![1; self.collective.ranks()];
        Ok(self.collective.gather(&[1.0], &lens).map(drop)?)
    }

    /// Computes the gradient of the mean loss, each rank's parts in its `sum`. Only on rank 0 does the result cover
    /// all ranks.
    fn gradients(
        &mut self,
        local: &mut dyn RankEngine,
        sequences: &[&[u32]],
    ) -> Result<Gradients, ModelError> {
        let Rank { gpus, collective, recipe, seq_len, layout, sum, losses, buffer, .. } = self;
        let (rank, ranks, rows) = (collective.rank(), collective.ranks(), sequences.len() * *seq_len);
        let shares: Vec<&[&[u32]]> = shares(recipe, ranks, local, sequences).collect();
        // GPUs add up the shares of one turn only: several turns would be added in another order than without NCCL.
        if gpus.is_some() && ranks < shares.len() {
            let why =
                "a step has more than one share for each rank: set rank_exchange = \"tcp\" under [train]";
            return Err(ModelError::Ranks { why: why.into() });
        }
        sum.fill(0.0);
        losses.clear();
        for turn in shares.chunks(ranks) {
            let (mut left, mut end) = (layout.0.len(), sum.len());
            let mut reduce = |range: Range<usize>, read: &mut ReadPart<'_>| -> Result<(), ModelError> {
                // The order is the same on all ranks, however many tensors an engine passes at once.
                while let Some(last) = layout.0[..left].last().filter(|last| range.start <= last.start) {
                    left -= 1;
                    let first = end - last.parts[rank].len();
                    let sum = &mut sum[first..end];
                    end = first;
                    for Round { parts, places } in rounds(&last.parts) {
                        buffer.clear();
                        let sum = &mut sum[within(&parts[rank], &last.parts[rank])];
                        if let Some(gpus) = gpus {
                            let watch = &mut collective.watch("adding gradients");
                            gpus.reduce_scatter(&last.flat_all(&parts), turn.len(), buffer, watch)?;
                            sum.iter_mut().zip(&*buffer).for_each(|(sum, value)| *sum += value);
                        } else {
                            parts.iter().try_for_each(|part| read(last.flat(part), buffer))?;
                            collective.reduce_scatter(&places, buffer, turn.len(), sum)?;
                        }
                    }
                }
                Ok(())
            };
            let own = match turn.get(rank) {
                Some(share) => local.micro_batches(share, rows, &mut reduce)?,
                None => {
                    reduce(0..layout.len(), &mut |_, _| Ok(()))?;
                    Vec::new()
                }
            };
            assert_eq!(left, 0, "an engine hands over its whole gradient");
            let lens: Vec<usize> =
                (0..ranks).map(|rank| turn.get(rank).map_or(0, |share| share.len() * *seq_len)).collect();
            losses.extend(collective.gather(&own, &lens)?);
        }
        let mut rest = &sum[..];
        let own = layout
            .0
            .iter()
            .flat_map(|divided| norm::chunks_squared(take(&mut rest, divided.parts[rank].len())));
        let own: Vec<f64> = own.collect();
        let chunks = |divided: &Divided, rank: usize| divided.parts[rank].len().div_ceil(norm::CHUNK);
        let lens: Vec<usize> =
            (0..ranks).map(|rank| layout.0.iter().map(|divided| chunks(divided, rank)).sum()).collect();
        let found = collective.gather(&own, &lens)?;
        if rank != 0 {
            return Ok(Gradients { loss: 0.0, norm: 0.0 });
        }
        let mut rest = &found[..];
        let mut of_ranks: Vec<&[f64]> =
            lens.iter().map(|len| rest.split_off(..*len).expect("as many were gathered")).collect();
        let squares = layout.0.iter().map(|divided| {
            let of_rank = |(rank, of_rank): (usize, &mut &[f64])| {
                of_rank.split_off(..chunks(divided, rank)).expect("as many were gathered").to_vec()
            };
            let of_tensor: Vec<f64> = of_ranks.iter_mut().enumerate().flat_map(of_rank).collect();
            norm::sum_chunks(&of_tensor)
        });
        let norm = squares.sum::<f64>().sqrt();
        Ok(Gradients { loss: losses.iter().sum::<f64>() / rows as f64, norm })
    }

    /// Computes on rank 0 alone a batch that gave NaN or infinity twice: the first share with such a loss, or all
    /// shares if every loss was finite.
    ///
    /// # Errors
    /// If the result is finite, which means that a rank computes wrongly.
    fn compute_alone(&self, local: &mut dyn RankEngine, sequences: &[&[u32]]) -> Result<(), ModelError> {
        let Rank { collective, recipe, seq_len, losses, .. } = self;
        let (ranks, rows) = (collective.ranks(), sequences.len() * *seq_len);
        let shares = shares(recipe, ranks, local, sequences);
        // Values up to this bound have a finite sum over all shares.
        let most = f32::MAX / shares.len() as f32;
        let mut values = Vec::<f32>::new();
        let mut is_number = |share: &[&[u32]]| -> Result<bool, ModelError> {
            let mut is_finite = true;
            let mut check = |range: Range<usize>, read: &mut ReadPart<'_>| -> Result<(), ModelError> {
                for first in range.clone().step_by(ROUND) {
                    values.clear();
                    read(first..range.end.min(first + ROUND), &mut values)?;
                    is_finite &= values.iter().all(|value| value.abs() <= most);
                }
                Ok(())
            };
            let losses = local.micro_batches(share, rows, &mut check)?;
            Ok(is_finite && losses.iter().all(|loss| loss.is_finite()))
        };
        // The losses of a share's tokens are in the order of the shares.
        let of_share = shares.clone().map(|share| share.len() * *seq_len).scan(0, |end, tokens| {
            let first = std::mem::replace(end, *end + tokens);
            Some(&losses[first..*end])
        });
        let mut joint = (0..ranks).cycle().zip(shares.clone()).zip(of_share);
        let refused = joint.find(|(_, losses)| losses.iter().any(|loss| !loss.is_finite()));
        let (who, device) = match refused {
            Some(((rank, share), _)) if is_number(share)? => (format!("rank {rank}"), "its device"),
            Some(_) => return Ok(()),
            None => {
                for share in shares {
                    if !is_number(share)? {
                        return Ok(());
                    }
                }
                ("one of the ranks".to_owned(), "every device")
            }
        };
        let why = format!(
            "{who} computed something that is no number, twice; computed by rank 0 alone, the same sequences give numbers: check the memory, temperature and clock of {device}"
        );
        Err(ModelError::Ranks { why })
    }

    /// Updates this rank's part of each tensor, and receives the others.
    fn step(&mut self, local: &mut dyn RankEngine, params: &StepParams) -> Result<(), ModelError> {
        let Rank { gpus, collective, recipe, layout, sum, weights, buffer, moments, muon, .. } = self;
        let rank = collective.rank();
        let (mut sum, mut moments) = (&sum[..], &mut moments[..]);
        for divided in &layout.0 {
            let own = &divided.parts[rank];
            weights.clear();
            if !own.is_empty() {
                local.read_weights(divided.flat(own), weights)?;
                let gradient = take(&mut sum, own.len());
                optim::step(recipe, params, &divided.tensor, weights, gradient, &mut moments, muon);
            }
            if let Some(gpus) = gpus {
                if !own.is_empty() {
                    local.write_weights(divided.flat(own).start, weights)?;
                }
                gpus.all_gather(&divided.flat_all(&divided.parts), &mut collective.watch("sharing weights"))?;
                continue;
            }
            for Round { parts, places } in rounds(&divided.parts) {
                buffer.resize(places.last().map_or(0, |place| place.end), 0.0);
                buffer[places[rank].clone()].copy_from_slice(&weights[within(&parts[rank], own)]);
                collective.all_gather(&places, buffer)?;
                for (part, place) in parts.iter().zip(places).filter(|(part, _)| !part.is_empty()) {
                    local.write_weights(divided.flat(part).start, &buffer[place])?;
                }
            }
        }
        local.finish_weights()
    }

    /// Sends the weights of rank 0 to all.
    fn share_weights(&mut self, local: &mut dyn RankEngine) -> Result<(), ModelError> {
        let Rank { gpus, collective, layout, buffer, .. } = self;
        let end = layout.len();
        if let Some(gpus) = gpus {
            let parts: Vec<Range<usize>> =
                (0..collective.ranks()).map(|rank| if rank == 0 { 0..end } else { end..end }).collect();
            gpus.all_gather(&parts, &mut collective.watch("sharing weights"))?;
            return if collective.rank() == 0 { Ok(()) } else { local.finish_weights() };
        }
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

    /// Returns the moments of a piece on rank 0, and an empty vector on other ranks.
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

    /// Sends the moments of a piece, `values`, from rank 0 to its rank. On other ranks `values` is empty.
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

/// Splits the sequences of a step into shares, which are assigned to the ranks in turns.
fn shares<'a, 'b>(
    recipe: &Recipe,
    ranks: usize,
    local: &dyn RankEngine,
    sequences: &'a [&'b [u32]],
) -> Chunks<'a, &'b [u32]> {
    let micro_batches = match local.adds_micro_batches() {
        true => sequences.len().div_ceil(recipe.micro_batch).div_ceil(ranks),
        false => 1,
    };
    sequences.chunks(recipe.micro_batch.saturating_mul(micro_batches))
}

/// Returns `some` relative to the start of `part`.
fn within(some: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    some.start - part.start..some.end - part.start
}

fn foreign() -> ModelError {
    ModelError::Ranks { why: "rank 0 sent something that is no command of this release".into() }
}

/// Rank 0: an engine that trains with the other ranks.
pub struct DataParallel {
    config: ModelConfig,
    recipe: Recipe,
    local: Box<dyn RankEngine>,
    /// `true` if a step failed after the weights began to change.
    is_torn: bool,
    /// `true` if the last batch since the weights were loaded gave NaN or infinity.
    was_refused: bool,
    session: Mutex<Session>,
}

struct Session {
    connect: Connect,
    rank: Option<Rank>,
    /// `true` if the other ranks have the weights of `local`.
    has_weights: bool,
    moments: Moments,
}

/// Location of the moments.
enum Moments {
    /// All moments are zero.
    Fresh,
    /// On rank 0, not yet sent to the ranks.
    Here(Vec<f32>),
    /// On the ranks.
    There,
    /// Lost with failed ranks.
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
        let (config, recipe) = (config.clone(), recipe.clone());
        let mut engine = DataParallel { config, recipe, local, is_torn: false, was_refused: false, session };
        engine.with_ranks(|_, _| Ok(()))?;
        Ok(engine)
    }

    /// Runs `work` with ranks that have the current weights and moments.
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
    /// Connects the ranks if necessary, and sends them the current weights and moments.
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
                rank.meet(local)?;
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

    /// Closes the connection, which ends the other ranks.
    fn fail(&mut self, error: &ModelError) {
        if let Some(mut rank) = self.rank.take() {
            rank.gpus = None;
            rank.collective.abort(&error.to_string());
        }
        if matches!(self.moments, Moments::There) {
            self.moments = Moments::Lost;
        }
    }
}

/// Sends all moments to their ranks.
fn give_out(rank: &mut Rank, mut values: &[f32]) -> Result<(), ModelError> {
    for piece in rank.layout.pieces() {
        rank.announce(&Command::Take(piece))?;
        rank.take(&piece, take(&mut values, piece.count))?;
    }
    Ok(())
}

impl Engine for DataParallel {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.local.engine_mut().load(flat)?;
        (self.is_torn, self.was_refused) = (false, false);
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner).has_weights = false;
        Ok(())
    }

    fn weights(&self) -> Blocks<'_> {
        match self.is_torn {
            true => Box::new(std::iter::once(Err(lost("weights")))),
            false => self.local.engine().weights(),
        }
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner).has_weights = false;
        self.local.engine_mut().edit(edit)
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.local.engine().losses(sequences)
    }

    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.local.engine().logits(tokens, rows)
    }

    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        let tokens = sequences.iter().copied().flatten().copied().collect();
        let is_refused = |found: &Gradients| !(found.loss.is_finite() && found.norm.is_finite());
        let was_refused = self.was_refused;
        let found = self.with_ranks(|rank, local| {
            rank.announce(&Command::Gradients { tokens })?;
            let found = rank.gradients(local, sequences)?;
            if was_refused && is_refused(&found) {
                rank.compute_alone(local, sequences)?;
            }
            Ok(found)
        })?;
        self.was_refused = is_refused(&found);
        Ok(found)
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

    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        self.take_moments(moments.to_vec())
    }

    /// Sends the moments to the ranks, or keeps them until the ranks are connected.
    fn take_moments(&mut self, moments: Vec<f32>) -> Result<(), ModelError> {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(rank) = &mut session.rank {
            match give_out(rank, &moments) {
                Ok(()) => {
                    session.moments = Moments::There;
                    return Ok(());
                }
                Err(error) => session.fail(&error),
            }
        }
        session.moments = Moments::Here(moments);
        Ok(())
    }
}

impl Drop for DataParallel {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(rank) = &mut session.rank {
            // Ignored: disconnected ranks need no command.
            let _ = rank.announce(&Command::Stop);
        }
    }
}

/// Runs a rank other than 0: executes rank 0's commands until it stops. `open` opens the rank's own engine.
///
/// # Errors
/// If the exchanges or the engine fail. The other ranks are notified.
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
    let served = rank.meet(&*local).and_then(|()| rank.serve(&config, &mut *local));
    if let Err(error) = &served {
        rank.gpus = None;
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

/// Splits the tokens into sequences and checks them, because an engine does not.
fn sequences<'a>(config: &ModelConfig, tokens: &'a [u32]) -> Result<Vec<&'a [u32]>, ModelError> {
    let sequences: Vec<&[u32]> = tokens.chunks(config.seq_len + 1).collect();
    crate::batch::check(config, &sequences)?;
    if sequences.is_empty() { Err(foreign()) } else { Ok(sequences) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Device,
        collective::threads,
        conformance::{recipe, tiny},
    };
    use model::RateSchedule;
    use proptest::prelude::*;
    use std::time::Duration;

    fn layouts() -> impl Iterator<Item = (ModelConfig, Recipe, usize, Layout)> {
        let configs = [tiny(), ModelConfig::preset("117k").unwrap(), ModelConfig::preset("6m").unwrap()];
        configs.into_iter().flat_map(|config| {
            [Optimiser::AdamW, Optimiser::Muon].into_iter().flat_map(move |optimiser| {
                let (config, recipe) = (config.clone(), Recipe { optimiser, ..recipe() });
                [1, 2, 3, 4, 8, 64].into_iter().map(move |ranks| {
                    let layout = Layout::new(&config, &recipe, ranks);
                    (config.clone(), recipe.clone(), ranks, layout)
                })
            })
        })
    }

    #[test]
    fn parts_cover_the_model_and_cut_no_chunk_and_no_matrix_of_muon() {
        for (config, _, ranks, layout) in layouts() {
            let mut start = 0;
            for divided in &layout.0 {
                assert_eq!((divided.start, divided.parts.len()), (start, ranks));
                start += divided.len;
                let mut end = 0;
                for part in &divided.parts {
                    assert_eq!(part.start, end);
                    end = part.end;
                    assert!(end == divided.len || end % norm::CHUNK == 0);
                    let is_whole = part.is_empty() || part.len() == divided.len;
                    assert!(divided.tensor.optimiser == Optimiser::AdamW || is_whole);
                }
                assert_eq!(end, divided.len);
            }
            assert_eq!((start, layout.len()), (config.parameters(), config.parameters()));
            let values: usize = (0..ranks).map(|rank| layout.values(rank)).sum();
            assert_eq!(values, config.parameters());
        }
    }

    #[test]
    fn ranks_have_the_same_but_for_a_chunk_or_a_matrix_of_muon() {
        let config = ModelConfig::preset("6m").unwrap();
        let largest = config.shapes().into_iter().skip(1).map(|(_, [rows, columns])| rows * columns).max();
        for (optimiser, most) in [(Optimiser::AdamW, norm::CHUNK), (Optimiser::Muon, largest.unwrap())] {
            for ranks in [2, 4, 8] {
                let layout = Layout::new(&config, &Recipe { optimiser, ..recipe() }, ranks);
                let values: Vec<usize> = (0..ranks).map(|rank| layout.values(rank)).collect();
                let apart = values.iter().max().unwrap() - values.iter().min().unwrap();
                assert!(apart <= most, "{optimiser:?}: {values:?}");
            }
        }
    }

    #[test]
    fn rounds_cover_each_part_once_and_leave_no_gap_in_the_buffer() {
        let longer = vec![0..3 * ROUND + 5, 3 * ROUND + 5..3 * ROUND + 5, 3 * ROUND + 5..4 * ROUND];
        let divided = layouts().flat_map(|(_, _, _, layout)| layout.0).map(|divided| divided.parts);
        for whole in divided.chain([longer]) {
            let mut ends: Vec<usize> = whole.iter().map(|part| part.start).collect();
            for Round { parts, places } in rounds(&whole) {
                let mut place_end = 0;
                for ((end, part), place) in ends.iter_mut().zip(parts).zip(places) {
                    assert_eq!((part.start, place.start, part.len()), (*end, place_end, place.len()));
                    assert!(part.len() <= ROUND);
                    (*end, place_end) = (part.end, place.end);
                }
            }
            assert!(ends.iter().zip(&whole).all(|(end, part)| *end == part.end));
        }
    }

    #[test]
    fn the_pieces_of_moments_are_each_ranks_once() {
        for (config, recipe, ranks, layout) in layouts() {
            let pieces = layout.pieces();
            let all: usize = pieces.iter().map(|piece| piece.count).sum();
            assert_eq!(all, optim::moment_count(&config, recipe.optimiser));
            for rank in 0..ranks {
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
    fn moments_that_wait_for_the_ranks_are_not_copied() {
        let (config, recipe) = (tiny(), recipe());
        let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            crate::engine::open_rank(Device::CPU, 1, config, recipe, flat)
        };
        let connect: Connect = Box::new(|| Ok(Box::new(threads(1, Duration::from_secs(1)).remove(0))));
        let flat = vec![0.0; config.parameters()];
        let mut engine = DataParallel::open(&config, &recipe, &flat, &open, connect).unwrap();
        engine.session().rank = None;
        let moments = vec![0.5; optim::moment_count(&config, recipe.optimiser)];
        let address = moments.as_ptr();
        engine.take_moments(moments).unwrap();
        assert!(matches!(&engine.session().moments, Moments::Here(values) if values.as_ptr() == address));
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
