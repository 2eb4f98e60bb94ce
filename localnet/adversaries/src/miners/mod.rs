//! One file per adversary: the attack, the data it sees, and the rule that stops it.

pub mod clock_liar;
pub mod copycat;
pub mod copycat_last;
pub mod distilled;
pub mod equivocator;
pub mod freeloader;
pub mod late;
pub mod malformed;
pub mod newcomer_bomb;
pub mod noise;
pub mod part_of_model;
pub mod partial_data;
pub mod poison;
pub mod slow_loris;
pub mod sybil;
pub mod truncated;
pub mod useless;
pub mod withholder;
pub mod wrong_data;

#[cfg(test)]
pub(crate) mod tests;
