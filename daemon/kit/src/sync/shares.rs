//! Chooses the mirror for the next piece from the mirrors' past performance. `pieces` waits for the answers.
//!
//! A piece is requested from the mirror that should deliver it first: its pieces in flight plus one, divided by its
//! measured rate. An unmeasured mirror counts as fast as the fastest, so that each is tried. Each consecutive failure
//! halves a mirror's rate. A mirror that served wrong bytes is asked last: its pieces are checked too, but each check
//! costs a download.

use std::{collections::BTreeSet, time::Duration};
use store::FetchError;

/// Decay factor of a mirror's measured rate per answer.
const MEMORY: f64 = 0.8;
/// Maximum number of consecutive failures that count.
const IN_A_ROW_MAX: u32 = 20;

/// The past performance of one mirror, and its expected rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    pub base: String,
    /// Number of correct pieces that it delivered.
    pub pieces: u64,
    /// Total size of these pieces, in bytes.
    pub bytes: u64,
    /// Number of failed requests.
    pub failures: u64,
    /// Number of failures with wrong bytes.
    pub lies: u64,
    /// The last failure.
    pub last_failure: Option<FetchError>,
    in_flight: u32,
    in_a_row: u32,
    /// Delivered bytes, and seconds with requests in flight, both decaying.
    recent_bytes: f64,
    recent_seconds: f64,
    /// Start of the time that is not yet counted: the first request after idle time, or the last answer.
    busy_since: Duration,
}

impl Share {
    fn new(base: &str) -> Share {
        Share { base: base.to_owned(), ..Share::default() }
    }

    /// Returns the rate in bytes per second; `None` before the first piece.
    fn rate(&self) -> Option<f64> {
        (self.recent_bytes > 0.0).then(|| self.recent_bytes / self.recent_seconds.max(1e-6))
    }
}

/// All mirrors, in the order of preference without measurements. Times are measured from the start of the fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    mirrors: Vec<Share>,
}

impl Shares {
    pub fn new<'a>(bases: impl IntoIterator<Item = &'a str>) -> Shares {
        Shares { mirrors: bases.into_iter().map(Share::new).collect() }
    }

    pub fn mirrors(&self) -> &[Share] {
        &self.mirrors
    }

    /// Returns the mirror to ask, except those in `asked`; `None` if all were asked.
    pub fn choose(&self, asked: &BTreeSet<usize>) -> Option<usize> {
        let left = || (0..self.mirrors.len()).filter(|mirror| !asked.contains(mirror));
        let honest = left().any(|mirror| self.mirrors[mirror].lies == 0);
        left()
            .filter(|mirror| !honest || self.mirrors[*mirror].lies == 0)
            .min_by(|one, other| self.expected(*one).total_cmp(&self.expected(*other)))
    }

    /// Returns the time in which a mirror should deliver one more piece, up to a factor that all mirrors share.
    pub fn expected(&self, mirror: usize) -> f64 {
        let share = &self.mirrors[mirror];
        let fastest = self.mirrors.iter().filter_map(Share::rate).fold(1e-6, f64::max);
        let rate = share.rate().unwrap_or(fastest);
        f64::from(share.in_flight + 1) / rate * f64::from(1u32 << share.in_a_row)
    }

    /// Returns the time in which a mirror should deliver `bytes`, in seconds; `None` if no mirror has been measured.
    pub fn seconds_for(&self, mirror: usize, bytes: usize) -> Option<f64> {
        let is_measured = self.mirrors.iter().any(|share| share.rate().is_some());
        is_measured.then(|| self.expected(mirror) * bytes as f64)
    }

    pub fn asked(&mut self, mirror: usize, now: Duration) {
        let share = &mut self.mirrors[mirror];
        if share.in_flight == 0 {
            share.busy_since = now;
        }
        share.in_flight += 1;
    }

    /// Records a correct piece.
    pub fn gave(&mut self, mirror: usize, bytes: u64, now: Duration) {
        let share = self.answered(mirror, now);
        share.pieces += 1;
        share.bytes += bytes;
        share.in_a_row = 0;
        share.recent_bytes += bytes as f64;
    }

    pub fn failed(&mut self, mirror: usize, error: FetchError, now: Duration) {
        let share = self.answered(mirror, now);
        share.failures += 1;
        share.lies +=
            u64::from(matches!(error, FetchError::WrongDigest { .. } | FetchError::TooLarge { .. }));
        share.in_a_row = (share.in_a_row + 1).min(IN_A_ROW_MAX);
        share.last_failure = Some(error);
    }

    /// Records that another mirror was faster. Lowers the rate, but does not count as a failure.
    pub fn given_up(&mut self, mirror: usize, now: Duration) {
        let share = self.answered(mirror, now);
        // Without a measurement it would again count as one of the fastest.
        share.recent_bytes = share.recent_bytes.max(1.0);
    }

    fn answered(&mut self, mirror: usize, now: Duration) -> &mut Share {
        let share = &mut self.mirrors[mirror];
        share.in_flight = share.in_flight.saturating_sub(1);
        share.recent_bytes *= MEMORY;
        share.recent_seconds =
            share.recent_seconds * MEMORY + now.saturating_sub(share.busy_since).as_secs_f64();
        share.busy_since = now;
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Digest;

    const PIECE: u64 = 1 << 20;

    fn lie() -> FetchError {
        FetchError::WrongDigest { expected: Digest([0; 32]), got: Digest([1; 32]) }
    }

    /// Simulates a download with `at_once` requests in flight. A mirror delivers one piece after the other, each in
    /// the number of `seconds` given; a negative number means wrong bytes after that time.
    fn download(seconds: &[f64], pieces: u64, at_once: usize) -> Shares {
        let names: Vec<String> = (0..seconds.len()).map(|index| index.to_string()).collect();
        let mut shares = Shares::new(names.iter().map(String::as_str));
        let mut free_at = vec![0.0f64; seconds.len()];
        let mut flying: Vec<(f64, usize, BTreeSet<usize>)> = Vec::new();
        let mut waiting: Vec<BTreeSet<usize>> = (0..pieces).map(|_| BTreeSet::new()).collect();
        let mut now = 0.0;
        loop {
            while flying.len() < at_once
                && let Some(asked) = waiting.pop()
            {
                let mirror = shares.choose(&asked).expect("not all of them lie");
                shares.asked(mirror, Duration::from_secs_f64(now));
                free_at[mirror] = free_at[mirror].max(now) + seconds[mirror].abs();
                flying.push((free_at[mirror], mirror, asked));
            }
            flying.sort_by(|one, other| other.0.total_cmp(&one.0));
            let Some((at, mirror, mut asked)) = flying.pop() else { return shares };
            now = at;
            let at = Duration::from_secs_f64(at);
            if seconds[mirror] > 0.0 {
                shares.gave(mirror, PIECE, at);
            } else {
                shares.failed(mirror, lie(), at);
                asked.insert(mirror);
                waiting.push(asked);
            }
        }
    }

    #[test]
    fn equal_mirrors_get_equal_shares() {
        let shares = download(&[0.1, 0.1, 0.1], 300, 9);
        for mirror in shares.mirrors() {
            assert!((90..=110).contains(&mirror.pieces), "{shares:?}");
        }
    }

    #[test]
    fn a_faster_mirror_gives_more_in_proportion() {
        let shares = download(&[0.1, 0.4], 500, 10);
        assert!((360..=440).contains(&shares.mirrors()[0].pieces), "{shares:?}");
    }

    #[test]
    fn a_mirror_a_hundred_times_slower_is_tried_and_dropped() {
        let shares = download(&[0.1, 10.0, 0.1], 1000, 8);
        assert!((1..=20).contains(&shares.mirrors()[1].pieces), "{shares:?}");
    }

    #[test]
    fn a_mirror_with_wrong_bytes_loses_its_share() {
        let shares = download(&[0.1, -0.01, 0.1], 1000, 8);
        let liar = &shares.mirrors()[1];
        assert_eq!(liar.pieces, 0);
        assert!((1..=8).contains(&liar.lies), "{shares:?}");
        assert_eq!(shares.mirrors()[0].pieces + shares.mirrors()[2].pieces, 1000);
    }

    #[test]
    fn a_mirror_with_wrong_bytes_is_asked_last() {
        let mut shares = Shares::new(["a", "b"]);
        shares.asked(0, Duration::ZERO);
        shares.failed(0, lie(), Duration::from_secs(1));
        assert_eq!(shares.choose(&BTreeSet::new()), Some(1));
        assert_eq!(shares.choose(&BTreeSet::from([1])), Some(0));
        assert_eq!(shares.choose(&BTreeSet::from([0, 1])), None);
        assert_eq!(Shares::new([]).choose(&BTreeSet::new()), None);
    }

    #[test]
    fn a_mirror_that_failed_comes_back_with_its_first_piece() {
        let mut shares = Shares::new(["a", "b"]);
        for _ in 0..40 {
            shares.asked(0, Duration::ZERO);
            shares.failed(0, FetchError::Missing, Duration::from_millis(1));
        }
        assert!(shares.expected(1) * 1000.0 < shares.expected(0));
        shares.asked(0, Duration::from_secs(1));
        shares.gave(0, PIECE, Duration::from_millis(1001));
        assert!(shares.expected(0) < shares.expected(1) * 1000.0);
        assert_eq!((shares.mirrors()[0].failures, shares.mirrors()[0].lies), (40, 0));
    }
}
