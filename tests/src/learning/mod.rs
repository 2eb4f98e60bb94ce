//! Compares this protocol's learning with the dense mean, DiLoCo, SparseLoCo as published, and one worker: several
//! workers train the project's model on real text in one process. The program is `learning-study`; the results are in
//! `docs/log/`.
//!
//! All runs of one seed start from the same weights and use the same number of tokens and inner steps. The workers
//! share the batch of a step, so runs differ only in the exchange of updates.

pub mod exchange;
pub mod plan;
pub mod plot;
pub mod published;
mod random;
pub mod report;
pub mod train;
