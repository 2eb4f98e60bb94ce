//! A whole network in one process: the programs' own miners and validators, in virtual time.
//!
//! The loops are [`miner::run::Miner`] and [`validator::run::Validator`]; adversaries are the wrappers and strategies
//! of `adversaries`. The simulation supplies the chain, the buckets, the directories and the clock. All random
//! numbers derive from one seed: on one machine, one seed gives the same network, bit for bit.
//!
//! - [`chain`]: the real runtime, without a node;
//! - `state`: its storage;
//! - [`buckets`]: buckets in memory, with faults;
//! - [`world`]: the dataset, model and parameters that several networks share;
//! - [`nodes`]: opens miners and validators with these parts;
//! - [`network`]: runs a network: seats, blocks, restarts;
//! - [`second_thread`]: runs the nodes' blocking work on another thread;
//! - [`planted`]: errors that checks of a network must find;
//! - [`record`]: records a network from its nodes' journals and reports;
//! - [`small`]: a dataset and a model for tests of single nodes;
//! - [`published`]: the published Gauntlet rules, applied to the same evidence;
//! - [`experiment`]: the networks of the gauntlet table;
//! - [`table`]: the gauntlet table, as text and as JSON;
//! - [`bounds`]: the bounds that the table must keep.

pub mod bounds;
pub mod buckets;
pub mod chain;
pub mod experiment;
pub mod network;
pub mod nodes;
pub mod planted;
pub mod published;
pub mod record;
pub mod second_thread;
pub mod small;
mod state;
pub mod table;
pub mod world;
