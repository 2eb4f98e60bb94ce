//! The repository's own rules, in one program that uses no crate of ours: it is built and run in seconds.

mod arrows;
mod documents;
mod english;
mod features;
mod licences;
mod operations;
mod rules;
