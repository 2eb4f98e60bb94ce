//! A whole network in one process: the programs' own miners and validators, in virtual time.
//!
//! The loops are [`miner::run::Miner`] and [`validator::run::Validator`], as the programs run them; adversaries are the wrappers and
//! strategies of `adversaries`. The simulation supplies the chain, the buckets, the directories and the clock. All that is drawn follows from
//! one seed, so the same seed gives the same network to the last bit on one machine.
//!
//! - [`chain`]: the real runtime, whose blocks the simulation seals;
//! - [`buckets`]: the buckets, and how they answer each reader;
//! - [`world`]: model, data and rules that several networks share;
//! - [`nodes`]: opens miners and validators with these parts;
//! - [`network`]: seats, blocks, and restarts;
//! - [`record`]: the record of a network, from what its nodes report;
//! - [`small`]: a dataset and a model for tests of single nodes;
//! - [`published`]: the published rules, judging the same evidence;
//! - [`experiment`]: the networks that answer the questions of the table;
//! - [`table`]: the result, as text and as JSON;
//! - [`bounds`]: the bounds that the result must keep.

pub mod bounds;
pub mod buckets;
pub mod chain;
pub mod experiment;
pub mod network;
pub mod nodes;
pub mod published;
pub mod record;
pub mod small;
pub mod table;
pub mod world;
