//! Does its work, but sends it a few bytes at a time, to delay its readers beyond their deadlines.
//!
//! Sees: which readers connect.
//! Stopped by: PROT-13. A reader disconnects below the minimum rate, and fetches from others in the meantime.

use crate::adversary::Adversary;
use store::faults::{Faults, Rate};

pub struct SlowLoris;

/// Sending rate, in bytes per second.
pub const CRAWL: u32 = 256;

impl Adversary for SlowLoris {
    fn faults(&self) -> Faults {
        Faults { dripped: Rate::Always, drip_bytes_per_second: CRAWL, ..Faults::default() }
    }
}
