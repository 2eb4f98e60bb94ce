//! The repository's own rules. One program, without a crate of ours: it is built and run in seconds.

mod arrows;
mod documents;
mod features;
mod licences;
mod operations;
mod rules;
