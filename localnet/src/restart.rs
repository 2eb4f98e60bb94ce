//! The delay before a process that has ended is restarted.

use std::time::Duration;

/// First delay. It doubles with each end that follows soon.
const FIRST: Duration = Duration::from_secs(1);
/// Maximum delay.
const LONGEST: Duration = Duration::from_secs(60);
/// Lifetime from which a start counts as successful: the next delay is the first one.
const STABLE: Duration = Duration::from_secs(60);

/// The restarts of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// Number of restarts in this session.
    pub count: u32,
    /// Number of successive ends that each came soon after a start.
    soon: u32,
}

impl Restarts {
    /// Returns the delay before the process is restarted. `lived`: time from its last start to its end.
    pub fn wait(&mut self, lived: Duration) -> Duration {
        if STABLE <= lived {
            self.soon = 0;
        }
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.soon).unwrap_or(u32::MAX)).min(LONGEST);
        self.soon = self.soon.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_minute_and_begins_anew_after_a_good_start() {
        let mut restarts = Restarts::default();
        let mut wait = |lived| restarts.wait(Duration::from_secs(lived)).as_secs();
        let waits: Vec<u64> = (0..8).map(|_| wait(5)).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!([wait(60), wait(0)], [1, 2]);
        let many = (0..100).map(|_| wait(0)).max();
        assert_eq!(many, Some(60));
    }
}
