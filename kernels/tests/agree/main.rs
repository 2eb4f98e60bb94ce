//! Tests of every kernel against its reference, bit for bit, and of the figures that do not depend on the machine.

// The shared checks use the crate's name in the fuzz targets.
extern crate protocol as mettle_protocol;

#[path = "../common/mod.rs"]
mod common;
mod decode;
mod encode;
mod report;
mod sparse;

use std::sync::Mutex;

/// Lock for tests that set the vector width, which applies to the whole process.
static WIDTH: Mutex<()> = Mutex::new(());
