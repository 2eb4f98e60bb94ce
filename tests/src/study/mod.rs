//! Compares alternative codecs of the wire format: several miners train the project's model on real text in one
//! process, with each codec. The program is `codec-study`; the results are in `docs/log/`.

pub mod codec;
pub mod index_code;
pub mod level;
pub mod questions;
pub mod random;
pub mod report;
pub mod training;
