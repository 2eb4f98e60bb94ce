//! A whole network in one process: real training of a tiny model, the real chain, real validators, and no waiting.
//!
//! Everything that decides is the product's own code: the runtime with its pallets, `miner::train` and `miner::compress`, `validator::gather`,
//! `evaluate`, `gauntlet` and `merge`, `node::Follower`. What is replaced is time: a window's blocks are made by hand, as soon as
//! everybody has done what is due, and all that is drawn follows from one seed. So a window takes a second, and the same seed gives the same
//! network to the last bit on one machine.
//!
//! - [`chain`]: the runtime, and blocks made by hand;
//! - [`buckets`]: what readers are given, and by whom;
//! - [`world`]: model, data and rules that several networks share;
//! - [`network`]: one window, top to bottom;
//! - [`small`]: a dataset and a model for tests of single nodes;
//! - [`published`]: the published rules, judging the same evidence on the side;
//! - [`experiment`]: which networks answer the questions of the table;
//! - [`table`]: what came of them, for people and as JSON;
//! - [`bounds`]: what of it must not be above what.

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
