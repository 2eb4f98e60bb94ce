//! Waiting for room on a disk that is full: a node that stands still for an hour has lost an hour, one that ends may be found days later.

use crate::hold::causes;
use std::{
    error::Error,
    time::{Duration, Instant},
};

/// The first pause; each next one is twice as long, up to the longest. What is tried may write a whole model, so it is not tried often.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often it is said that there is still no room.
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// One wait for room, from the first refusal to the end.
#[derive(Debug, Default)]
pub struct Room {
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    said: Instant,
    pause: Duration,
}

impl Room {
    /// There was no room, as `error` says. Says so, now and then, and returns how long to wait before the next try.
    pub fn refused(&mut self, error: &dyn Error) -> Duration {
        let now = Instant::now();
        let error = causes(error);
        let Some(waiting) = &mut self.waiting else {
            tracing::error!(
                error,
                "no room on the disk: make room. Nothing is lost; this node waits, and goes on once there is"
            );
            self.waiting = Some(Waiting { since: now, said: now, pause: FIRST_PAUSE });
            return FIRST_PAUSE;
        };
        if SAY_AGAIN <= now - waiting.said {
            waiting.said = now;
            let seconds = (now - waiting.since).as_secs();
            tracing::error!(error, seconds, "still no room on the disk");
        }
        waiting.pause = LONGEST_PAUSE.min(2 * waiting.pause);
        waiting.pause
    }

    /// What was tried went well.
    pub fn found(self) {
        if let Some(waiting) = self.waiting {
            let seconds = waiting.since.elapsed().as_secs();
            tracing::info!(seconds, "there is room on the disk again: going on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn pauses_grow_and_have_a_bound() {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        let mut room = Room::default();
        let pauses: Vec<u64> = (0..7).map(|_| room.refused(&error).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        room.found();
        assert_eq!(Room::default().refused(&error), FIRST_PAUSE);
    }
}
