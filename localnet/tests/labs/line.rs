//! A line between two network namespaces that loses and delays packets like a home's: two TUN devices, and a task for
//! each direction that carries packets between them. Many kernels lack `netem`, which does the same.

use crate::support::harness;
use libtest_mimic::Trial;
use protocol::Digest;
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

pub fn tests() -> Vec<Trial> {
    harness::plain!("line", [a_seed_decides_which_packets_are_lost_and_how_long_the_others_take])
}

/// Buffer size, above any packet: devices have 1,500 bytes.
const PACKET_MAX: usize = 4096;
/// Maximum number of packets in transit per direction. Packets beyond it are lost, as at a full router.
const UNDER_WAY_MAX: usize = 1000;

/// Loss and delay of packets, in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Share of lost packets.
    pub loss: f64,
    /// Mean delay. Each packet takes its own `delay ± jitter`, so some overtake others.
    pub delay: Duration,
    pub jitter: Duration,
}

impl Quality {
    pub const GOOD: Quality = Quality { loss: 0.0, delay: Duration::ZERO, jitter: Duration::ZERO };

    /// Returns the delay of packet `number` of a direction; `None`: it is lost.
    pub fn fate(&self, seed: u64, number: u64) -> Option<Duration> {
        let Digest(random) = Digest::of_parts(&[&seed.to_le_bytes(), &number.to_le_bytes()]);
        let share = |at: usize| {
            let bits = random[at..].first_chunk().expect("a digest has 32 bytes");
            f64::from(u32::from_le_bytes(*bits)) / (f64::from(u32::MAX) + 1.0)
        };
        let earliest = self.delay.saturating_sub(self.jitter);
        (self.loss <= share(0)).then(|| earliest + (self.jitter * 2).mul_f64(share(4)))
    }
}

/// Numbers of packets of a direction, by their fate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub packets: u64,
    pub bytes: u64,
    pub lost: u64,
    /// Packets lost because too many were in transit.
    pub overflowed: u64,
}

struct State {
    quality: Quality,
    /// Counts from the first end to the second, and back.
    counts: [Counts; 2],
}

pub struct Line(Arc<Mutex<State>>);

/// A degraded line. Dropping this value restores its quality.
pub struct Degraded<'a>(&'a Line);

impl Drop for Degraded<'_> {
    fn drop(&mut self) {
        self.0.state().quality = Quality::GOOD;
    }
}

impl Line {
    /// Makes a device for each end, in this namespace and without an address. Packets are carried for the lifetime of
    /// the runtime.
    ///
    /// # Errors
    /// Without root, or on a machine without TUN devices.
    pub fn open(ends: [&str; 2], seed: u64) -> io::Result<Line> {
        let state = State { quality: Quality::GOOD, counts: Default::default() };
        let line = Line(Arc::new(Mutex::new(state)));
        let [first, second] = ends.map(|name| device(name).map(Arc::new));
        let (first, second) = (first?, second?);
        let directions = [(first.clone(), second.clone()), (second, first)];
        for (direction, (from, to)) in directions.into_iter().enumerate() {
            let line = Line(line.0.clone());
            tokio::spawn(async move { line.carry(direction, &from, &to, seed).await });
        }
        Ok(line)
    }

    pub fn degrade(&self, quality: Quality) -> Degraded<'_> {
        self.state().quality = quality;
        Degraded(self)
    }

    pub fn counts(&self) -> [Counts; 2] {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it is locked")
    }

    async fn carry(&self, direction: usize, from: &AsyncFd<File>, to: &AsyncFd<File>, seed: u64) {
        // Packets by their time of arrival.
        let mut under_way = BTreeMap::<(Instant, u64), Vec<u8>>::new();
        let (mut buffer, mut number) = (vec![0; PACKET_MAX], 0);
        loop {
            let next = under_way.first_key_value().map(|((arrives, _), _)| *arrives);
            tokio::select! {
                read = from.async_io(Interest::READABLE, |mut from| from.read(&mut buffer)) => {
                    // A device that is down gives no packet.
                    let Ok(length) = read else { continue };
                    let mut state = self.state();
                    let fate = state.quality.fate(2 * seed + direction as u64, number);
                    let counts = &mut state.counts[direction];
                    match fate {
                        None => counts.lost += 1,
                        Some(_) if UNDER_WAY_MAX <= under_way.len() => counts.overflowed += 1,
                        Some(takes) => {
                            counts.packets += 1;
                            counts.bytes += length as u64;
                            under_way.insert((Instant::now() + takes, number), buffer[..length].to_vec());
                        }
                    }
                    number += 1;
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    while let Some(first) = under_way.first_entry()
                        && first.key().0 <= Instant::now()
                    {
                        // The packet is lost if the other end is down.
                        let _ = to.get_ref().write(&first.remove());
                    }
                }
            }
        }
    }
}

/// Makes a TUN device, which exists as long as its file is open.
fn device(name: &str) -> io::Result<AsyncFd<File>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid request, without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let flags = libc::c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI).expect("two low bits");
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: the file is open, and the call reads and writes one `ifreq`.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a `File` has one open descriptor for its lifetime, and no code takes it out of the `AsyncFd`.
    Ok(unsafe { AsyncFd::register(file)? })
}

fn a_seed_decides_which_packets_are_lost_and_how_long_the_others_take() {
    let [delay, jitter] = [80, 20].map(Duration::from_millis);
    let home = Quality { loss: 0.03, delay, jitter };
    let fates = |seed: u64| -> Vec<_> { (0..100_000).map(|number| home.fate(seed, number)).collect() };
    let (first, second) = (fates(1), fates(2));
    assert!(first == fates(1) && first != second);
    for fates in [first, second] {
        let took: Vec<Duration> = fates.iter().flatten().copied().collect();
        // Five standard deviations of 54 packets.
        let lost = fates.len() - took.len();
        assert!((2730..=3270).contains(&lost), "{lost} of {}", fates.len());
        assert!(took.iter().all(|took| (delay - jitter..delay + jitter).contains(took)));
        let mean = took.iter().sum::<Duration>() / u32::try_from(took.len()).unwrap();
        assert!(mean.abs_diff(delay) < Duration::from_millis(1), "{mean:?}");
        // The loss of one packet does not affect the next.
        let both = fates.windows(2).filter(|two| *two == [None, None]).count();
        assert!((40..140).contains(&both), "{both}");
        let overtakes = fates.windows(2).filter(|two| two[1].is_some() && two[1] < two[0]).count();
        assert!(fates.len() / 3 < overtakes, "{overtakes}");
    }
    assert_eq!(Quality::GOOD.fate(1, 1), Some(Duration::ZERO));
    assert_eq!(Quality { loss: 1.0, ..home }.fate(1, 1), None);
    // A delay is never negative.
    let wide = Quality { loss: 0.0, delay: jitter, jitter: delay };
    assert!((0..1000).all(|number| wide.fate(1, number).is_some_and(|took| took < jitter + delay * 2)));
}
