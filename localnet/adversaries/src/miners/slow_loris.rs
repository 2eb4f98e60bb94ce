//! Does the work, and answers whoever fetches it a few bytes at a time, to hold its readers until they are late themselves.
//!
//! Sees: who reads from it.
//! Ends at: PROT-13, a reader hangs up below the minimum rate; others are fetched meanwhile.

use crate::adversary::{Adversary, FaultyProxy};

pub struct SlowLoris;

/// Bytes a second.
pub const CRAWL: u32 = 256;

impl Adversary for SlowLoris {
    fn proxy(&self) -> FaultyProxy {
        FaultyProxy::Crawling(CRAWL)
    }
}
