//! Every kernel against its reference, bit for bit, and the figures that do not depend on the machine.

// The shared checks use the name that the fuzz targets know the crate by.
extern crate protocol as mettle_protocol;

#[path = "../common/mod.rs"]
mod common;
mod decode;
mod encode;
mod report;
mod sparse;

use std::sync::Mutex;

/// Which width is in use is the whole process's: tests that choose it take turns.
static WIDTH: Mutex<()> = Mutex::new(());
