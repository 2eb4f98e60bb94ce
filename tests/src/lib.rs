#![doc = include_str!("../README.md")]

pub mod chaos;
pub mod heap;
pub mod learning;
pub mod load;
pub mod peer_run;
pub mod sim;

use std::error::Error;

/// Returns the error and its sources, one per line.
pub fn describe_error(error: &dyn Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        text += &format!("\n  because: {source}");
        cause = source.source();
    }
    text
}
