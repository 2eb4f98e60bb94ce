//! Does it learn as well? The project's own model, trained by several workers in one process, on real text, by this
//! protocol and by what it is measured against. The results are in `docs/log.md`; `learning-study` is the program.
//!
//! Every run of one seed starts from the same weights and sees the same number of tokens in the same number of inner
//! steps: the batch of a step is shared among the workers, so that only the way in which they learn from each other
//! differs.

pub mod exchange;
pub mod plan;
pub mod plot;
pub mod published;
pub mod report;
pub mod train;
