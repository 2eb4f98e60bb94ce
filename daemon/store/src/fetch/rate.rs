//! The minimum rate of a fetch (PROT-13).

use std::time::Duration;

use tokio::time::Instant;

use super::{FetchError, Limits};

/// A time window in which enough bytes must arrive.
pub struct RateWindow {
    start: Instant,
    end: Instant,
    bytes: u64,
}

impl RateWindow {
    pub fn open(limits: &Limits) -> RateWindow {
        let start = Instant::now();
        RateWindow { start, end: start + limits.rate_window, bytes: 0 }
    }

    /// Returns the time of the next check.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Counts received bytes.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Excludes time in which this process did not read.
    pub fn pause(&mut self, ours: Duration) {
        self.start += ours;
        self.end += ours;
    }

    /// Checks the ended window, and opens the next one.
    ///
    /// # Errors
    /// [`FetchError::Crawled`] if too few bytes arrived in it.
    pub fn next(self, limits: &Limits) -> Result<RateWindow, FetchError> {
        let window = self.end - self.start;
        let wanted = limits.min_bytes_per_second as f64 * window.as_secs_f64();
        // A process that was suspended at the window's end did not read.
        if (self.bytes as f64) < wanted && !late(self.start, window) {
            return Err(FetchError::Crawled { bytes: self.bytes, window });
        }
        Ok(RateWindow::open(limits))
    }
}

/// Returns whether this process woke up much later than requested.
pub(super) fn late(since: Instant, asked: Duration) -> bool {
    since.elapsed() > asked + asked / 2 + Duration::from_millis(250)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_window_that_ended_while_the_process_slept_blames_no_endpoint() {
        let limits = Limits { rate_window: Duration::from_millis(100), ..Limits::for_bytes(1) };
        let now = Instant::now();
        let window = |ago: Duration, bytes| {
            let start = now - ago;
            RateWindow { start, end: start + limits.rate_window, bytes }
        };
        assert!(matches!(
            window(limits.rate_window, 5).next(&limits),
            Err(FetchError::Crawled { bytes: 5, .. })
        ));
        assert!(window(Duration::from_secs(10), 5).next(&limits).is_ok());
        assert!(window(limits.rate_window, 1 << 20).next(&limits).is_ok());
    }
}
