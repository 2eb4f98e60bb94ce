//! Decides about the wire format by experiment: the project's own model is trained by several miners in one process, on real
//! text, with codecs that the protocol could have had. The results are in `docs/log.md`; `codec-study` is the program.

pub mod codec;
pub mod index_code;
pub mod level;
pub mod questions;
pub mod random;
pub mod report;
pub mod training;
