//! Judges contributions by what they do to the loss, merges the best, and votes.

pub mod gauntlet;
