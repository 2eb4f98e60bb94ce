//! The engine of `[train] engine = "command"`: an external program computes gradients and steps, the miner does
//! everything else. `docs/trainers.md` specifies their messages.
//!
//! The command is not trusted with the seat. Its output is checked, every wait has a deadline, and a failure costs
//! the window. The engine holds weights and moments as of the last exchange, so that loading and snapshots never need
//! the command, and the next window restarts it.

mod frame;
mod process;

pub(crate) use process::Process;
pub use process::{CommandGroup, SOCKET};

use crate::shutdown::ShutdownHandle;
use daemon::error_chain;
use frame::{Answer, PROTOCOL, Part, Request, SLICE_VALUES, Tensor, values_to_bytes};
use model::{ModelConfig, Optimiser, Recipe};
use nn::{
    Blocks, Engine, Gradients, ModelError, StepParams,
    optim::{moment_count, optimiser_of},
};
use process::{Session, name_of};
use std::{
    borrow::Cow,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Command line and deadlines of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOptions {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Deadline from the start until the model is built.
    pub start: Duration,
    /// Maximum time without any byte while a request is open.
    pub heartbeat: Duration,
    /// Deadline of one request.
    pub step: Duration,
    /// Deadline of a gradient or step that still runs at the end of the window's training.
    pub stop: Duration,
}

/// Failure of a command. Each costs the window.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("`program` under [train.command] is empty: name a program and its arguments")]
    NoProgram,
    #[error("could not start `{program}`: check `program` under [train.command]")]
    Start { program: String, source: io::Error },
    #[error("no socket for it: check the directory for temporary files (TMPDIR)")]
    Socket(#[source] io::Error),
    #[error(
        "it did not connect to the socket in {SOCKET} within {seconds} s: mend it, or raise `start_seconds`; {output}"
    )]
    NotConnected { seconds: u64, output: String },
    #[error("it ended, or closed its socket, while {doing}; {output}")]
    Ended { doing: &'static str, output: String },
    #[error(
        "it speaks version {found} of the contract, and this miner version {PROTOCOL}: use a command of that version"
    )]
    Version { found: u32 },
    #[error(
        "nothing was heard of it for {seconds} s while {doing}: send `progress` more often, or raise `heartbeat_seconds`; {output}"
    )]
    Silent { doing: &'static str, seconds: u64, output: String },
    #[error(
        "it took too long while {doing}: train fewer sequences per step (`batch_sequences`), or raise `step_seconds` (`start_seconds` for the model); {output}"
    )]
    Slow { doing: &'static str, output: String },
    #[error(
        "its step still ran {seconds} s after the window's training had to stop: train fewer sequences per step (`batch_sequences`), or stop earlier (`commit_margin_blocks`)"
    )]
    WindowOver { seconds: u64 },
    #[error(
        "while {doing} it announced a header of {bytes} bytes, and {} are allowed",
        frame::HEADER_BYTES_MAX
    )]
    Header { doing: &'static str, bytes: usize },
    #[error("while {doing} it sent a header that is none of the contract's")]
    Garbage { doing: &'static str, source: serde_json::Error },
    #[error("while {doing} it announced a body of {got} bytes instead of {needed}")]
    Body { doing: &'static str, got: u64, needed: u64 },
    #[error("while {doing} it answered `{got}`")]
    Unexpected { doing: &'static str, got: &'static str },
    #[error(
        "it sent {part:?} that are not finite, the first at {position}: check its learning rate and its device"
    )]
    NotFinite { part: Part, position: usize },
    #[error("it gave up while {doing}: {why}")]
    Failed { doing: &'static str, why: String },
    #[error("it failed before in this window, and its {part:?} are lost: the next window starts it afresh")]
    Lost { part: Part },
}

/// An engine that delegates computations to a command.
pub struct CommandEngine {
    starter: Starter,
    state: Mutex<State>,
}

/// Configuration that a command is started with.
struct Starter {
    config: ModelConfig,
    recipe: Recipe,
    options: CommandOptions,
    group: Arc<CommandGroup>,
    shutdown: Arc<ShutdownHandle>,
}

struct State {
    session: Option<Session>,
    weights: Vector,
    moments: Vector,
}

/// The miner's copy of a part of the state.
struct Vector {
    values: Vec<f32>,
    place: Place,
}

/// Location of the present values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The miner.
    Here,
    /// Miner and command.
    Both,
    /// The command, which has taken a step since.
    There,
    /// A command that has failed.
    Lost,
}

impl State {
    fn part(&mut self, part: Part) -> &mut Vector {
        match part {
            Part::Weights => &mut self.weights,
            Part::Moments => &mut self.moments,
        }
    }

    /// Ends the command: state that only it had is lost.
    fn fail(&mut self) {
        self.session = None;
        for vector in [&mut self.weights, &mut self.moments] {
            vector.place = match vector.place {
                Place::Here | Place::Both => Place::Here,
                Place::There | Place::Lost => Place::Lost,
            };
        }
    }
}

impl CommandEngine {
    /// Starts the command, at the weights `flat` and with moments of zero.
    ///
    /// # Errors
    /// If configuration or recipe are invalid, `flat` has another length, or the command does not start.
    pub fn open(
        config: &ModelConfig,
        recipe: &Recipe,
        flat: &[f32],
        options: CommandOptions,
        group: Arc<CommandGroup>,
        shutdown: Arc<ShutdownHandle>,
    ) -> Result<CommandEngine, ModelError> {
        config.validate()?;
        recipe.validate()?;
        let (expected, got) = (config.parameters(), flat.len());
        if expected != got {
            return Err(ModelError::FlatLength { expected, got });
        }
        let here = |values| Vector { values, place: Place::Here };
        let moments = here(vec![0.0; moment_count(config, recipe.optimiser)]);
        let state = State { session: None, weights: here(flat.to_vec()), moments };
        let starter = Starter { config: config.clone(), recipe: recipe.clone(), options, group, shutdown };
        let mut engine = CommandEngine { starter, state: Mutex::new(state) };
        engine.exchange(|_| Ok(()))?;
        Ok(engine)
    }

    /// Runs `exchange` with a command that has the present weights and moments.
    fn exchange<T>(
        &mut self,
        exchange: impl FnOnce(&mut Session) -> Result<T, CommandError>,
    ) -> Result<T, ModelError> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let done = self.starter.put(state).and_then(exchange);
        if done.is_err() {
            state.fail();
        }
        done.map_err(failure)
    }

    /// Returns the present values of a part, slice by slice.
    fn read(&self, part: Part) -> Blocks<'_> {
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let len = {
            let mut state = lock();
            if let Err(error) = fetch(&mut state) {
                state.fail();
                return Box::new(std::iter::once(Err(failure(error))));
            }
            if state.part(part).place == Place::Lost {
                return Box::new(std::iter::once(Err(failure(CommandError::Lost { part }))));
            }
            state.part(part).values.len()
        };
        Box::new((0..len).step_by(SLICE_VALUES).map(move |first| {
            let last = len.min(first + SLICE_VALUES);
            Ok(Cow::Owned(lock().part(part).values[first..last].to_vec()))
        }))
    }
}

impl Starter {
    /// Returns a command with the present weights and moments: the running one, or a new one.
    fn put<'a>(&self, state: &'a mut State) -> Result<&'a mut Session, CommandError> {
        let State { session, weights, moments } = state;
        let parts = [(Part::Weights, weights), (Part::Moments, moments)];
        if let Some((part, _)) = parts.iter().find(|(_, vector)| vector.place == Place::Lost) {
            return Err(CommandError::Lost { part: *part });
        }
        let session = match session {
            Some(session) => session,
            none => none.insert(self.start()?),
        };
        for (part, vector) in parts {
            if vector.place != Place::Here {
                continue;
            }
            for (index, values) in vector.values.chunks(SLICE_VALUES).enumerate() {
                let put = Request::Put { part, first: index * SLICE_VALUES, count: values.len() };
                match session.ask(&put, &values_to_bytes(values), &mut [])? {
                    Answer::Taken {} => {}
                    other => return Err(unexpected(&put, &other)),
                }
            }
            vector.place = Place::Both;
        }
        Ok(session)
    }

    fn start(&self) -> Result<Session, CommandError> {
        let mut session = Session::start(&self.options, &self.group, &self.shutdown)?;
        let tensors = self.config.shapes().into_iter().enumerate().map(|(index, (name, shape))| {
            let moments = match optimiser_of(self.recipe.optimiser, index, shape) {
                Optimiser::AdamW => 2,
                Optimiser::Muon => 1,
            };
            Tensor { name, shape, moments }
        });
        let open = Request::Open {
            protocol: PROTOCOL,
            model: &self.config,
            recipe: &self.recipe,
            tensors: tensors.collect(),
            heartbeat_seconds: self.options.heartbeat.as_secs(),
            step_seconds: self.options.step.as_secs(),
        };
        match session.ask(&open, &[], &mut [])? {
            Answer::Ready {} => Ok(session),
            other => Err(unexpected(&open, &other)),
        }
    }
}

/// Copies weights and moments from the command, if only it has them. Both at once: the snapshots after a window's
/// training then do not need the command.
fn fetch(state: &mut State) -> Result<(), CommandError> {
    let State { session, weights, moments } = state;
    let Some(session) = session else { return Ok(()) };
    for (part, vector) in [(Part::Weights, weights), (Part::Moments, moments)] {
        if vector.place != Place::There {
            continue;
        }
        let mut bytes = vec![0; 4 * SLICE_VALUES.min(vector.values.len())];
        for (index, values) in vector.values.chunks_mut(SLICE_VALUES).enumerate() {
            let (first, bytes) = (index * SLICE_VALUES, &mut bytes[..4 * values.len()]);
            let get = Request::Get { part, first, count: values.len() };
            match session.ask(&get, &[], bytes)? {
                Answer::Values {} => {}
                other => return Err(unexpected(&get, &other)),
            }
            for (position, (value, bytes)) in values.iter_mut().zip(bytes.chunks_exact(4)).enumerate() {
                *value = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
                if !value.is_finite() {
                    return Err(CommandError::NotFinite { part, position: first + position });
                }
            }
        }
        vector.place = Place::Both;
    }
    Ok(())
}

impl Engine for CommandEngine {
    /// Loads the weights without the command. If the command has moments that cannot be fetched, those of the last
    /// exchange stay.
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = fetch(state) {
            tracing::warn!(
                error = error_chain(&error),
                "the training command lost its optimiser's last steps"
            );
            state.fail();
        }
        state.weights = Vector { values: flat.to_vec(), place: Place::Here };
        if state.moments.place == Place::Lost {
            state.moments.place = Place::Here;
        }
        Ok(())
    }

    fn weights(&self) -> Blocks<'_> {
        self.read(Part::Weights)
    }

    fn edit(&mut self, _: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        Err(no_evaluation())
    }

    fn losses(&self, _: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        Err(no_evaluation())
    }

    fn logits(&self, _: &[u32], _: usize) -> Result<Vec<f32>, ModelError> {
        Err(no_evaluation())
    }

    #[tracing::instrument(name = "gradients", target = "profile", level = "trace", skip_all)]
    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        let request =
            Request::Gradients { sequences: sequences.len(), tokens: self.starter.config.seq_len + 1 };
        let body: Vec<u8> =
            sequences.iter().copied().flatten().flat_map(|token| token.to_le_bytes()).collect();
        self.exchange(|session| {
            let mut numbers = [0; 16];
            match session.ask(&request, &body, &mut numbers)? {
                Answer::Gradients {} => {}
                other => return Err(unexpected(&request, &other)),
            }
            let (loss, norm) = numbers.split_at(8);
            let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            Ok(Gradients { loss: number(loss), norm: number(norm) })
        })
    }

    #[tracing::instrument(name = "optimiser", target = "profile", level = "trace", skip_all)]
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let request = Request::Step { step: params.step };
        let body = [params.learning_rate.to_le_bytes(), params.gradient_scale.to_le_bytes()].concat();
        let stepped = self.exchange(|session| match session.ask(&request, &body, &mut [])? {
            Answer::Stepped {} => Ok(()),
            other => Err(unexpected(&request, &other)),
        });
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A step without an answer may have been taken.
        let place = if stepped.is_ok() { Place::There } else { Place::Lost };
        (state.weights.place, state.moments.place) = (place, place);
        stepped
    }

    fn moments(&self) -> Blocks<'_> {
        self.read(Part::Moments)
    }

    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        self.take_moments(moments.to_vec())
    }

    fn take_moments(&mut self, moments: Vec<f32>) -> Result<(), ModelError> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.moments = Vector { values: moments, place: Place::Here };
        Ok(())
    }
}

impl Drop for CommandEngine {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = state.session.take() {
            session.stop();
        }
    }
}

fn unexpected(request: &Request<'_>, answer: &Answer) -> CommandError {
    CommandError::Unexpected { doing: request.doing(), got: name_of(answer) }
}

fn failure(error: CommandError) -> ModelError {
    ModelError::Command { why: error_chain(&error) }
}

fn no_evaluation() -> ModelError {
    ModelError::Command { why: "it trains, and evaluates nothing".into() }
}
