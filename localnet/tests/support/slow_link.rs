//! A link that delays and loses packets: two network interfaces, and a thread for each direction that forwards their
//! Ethernet frames. So TCP and UDP meet what they would meet on a real link. The kernel's own way, `netem`, is not
//! everywhere.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
    time::{Duration, Instant},
};

/// More than the longest frame that an interface of 1500 bytes takes.
const FRAME_BYTES: usize = 2048;
/// Frames on their way in one direction; a link with more loses the last ones, as any router does.
const QUEUE: usize = 16_384;
/// `TUNSETIFF` of `linux/if_tun.h`.
const SET_INTERFACE: libc::c_ulong = 0x4004_54ca;

/// What a link does to each frame.
#[derive(Clone, Copy)]
pub struct Slowness {
    /// In one direction.
    pub delay: Duration,
    /// Of this many frames, one is lost.
    pub one_lost_of: u32,
}

/// Frames of a link, both directions together.
#[derive(Default)]
pub struct Frames {
    pub forwarded: AtomicU64,
    pub lost: AtomicU64,
}

/// Makes the interfaces `names` and forwards between them until they are deleted.
pub fn forward(names: [&str; 2], slowness: Slowness) -> io::Result<Arc<Frames>> {
    let [one, other] = [tap(names[0])?, tap(names[1])?];
    let frames = Arc::new(Frames::default());
    for (seed, from, to) in [(1, one.clone(), other.clone()), (2, other, one)] {
        let frames = frames.clone();
        let (queue, due) = sync_channel::<(Instant, Vec<u8>)>(QUEUE);
        thread::spawn(move || {
            let (mut frame, mut drawn) = (vec![0; FRAME_BYTES], seed);
            // Fails once the interface is deleted.
            while let Ok(length) = (&*from).read(&mut frame) {
                let is_lost = draw(&mut drawn).is_multiple_of(slowness.one_lost_of);
                let due = (Instant::now() + slowness.delay, frame[..length].to_vec());
                let counter = match is_lost || queue.try_send(due).is_err() {
                    true => &frames.lost,
                    false => &frames.forwarded,
                };
                counter.fetch_add(1, Relaxed);
            }
        });
        thread::spawn(move || {
            for (at, frame) in due {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                // An interface that is down, or gone, takes nothing.
                let _ = (&*to).write(&frame);
            }
        });
    }
    Ok(frames)
}

/// The next of a fixed sequence of numbers.
fn draw(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as u32
}

/// A new interface, whose frames are read from and written to the file.
fn tap(name: &str) -> io::Result<Arc<File>> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: a structure of numbers and a union of such; zeros are a value of each.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    assert!(name.len() < request.ifr_name.len(), "{name} is long");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the file is open, and the call reads and writes this structure only.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE, &mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Arc::new(file)) }
}
