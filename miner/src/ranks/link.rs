//! Frames over a TCP connection to another rank: the length as four bytes, then the frame.

use crate::command::Process;
use nn::collective::{FRAME_BYTES_MAX, Link, LinkError, Wait};
use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Interval between two checks of the deadline.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a child process has to end by itself.
const END_WITHIN: Duration = Duration::from_millis(500);

/// A connection to another rank, with the rank's process if this one started it.
pub struct TcpLink {
    stream: TcpStream,
    process: Option<Process>,
}

impl TcpLink {
    /// # Errors
    /// If the system refuses a socket option.
    pub fn new(stream: TcpStream, process: Option<Process>) -> io::Result<TcpLink> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(LOOK))?;
        keep_alive(&stream)?;
        Ok(TcpLink { stream, process })
    }

    fn read(&self, mut into: &mut [u8], wait: &Wait<'_>) -> Result<(), LinkError> {
        while !into.is_empty() {
            match (&self.stream).read(into) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => into = &mut into[read..],
                Err(error) => again(&error, wait)?,
            }
        }
        Ok(())
    }
}

/// Fails unless the socket only had nothing to do.
fn again(error: &io::Error, wait: &Wait<'_>) -> Result<(), LinkError> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => wait.check(),
        _ => Err(LinkError::Closed),
    }
}

impl Link for TcpLink {
    fn send(&self, frame: &[u8], wait: &Wait<'_>) -> Result<(), LinkError> {
        let length = u32::try_from(frame.len()).map_err(|_| LinkError::TooLong(frame.len()))?;
        let bytes = [&length.to_le_bytes()[..], frame].concat();
        let mut left = &bytes[..];
        while !left.is_empty() {
            match (&self.stream).write(left) {
                Ok(written) => left = &left[written..],
                Err(error) => again(&error, wait)?,
            }
        }
        Ok(())
    }

    fn receive(&self, frame: &mut Vec<u8>, wait: &Wait<'_>) -> Result<(), LinkError> {
        let mut length = [0; 4];
        self.read(&mut length, wait)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if FRAME_BYTES_MAX < length {
            return Err(LinkError::TooLong(length));
        }
        frame.resize(length, 0);
        self.read(frame, wait)
    }

    fn peek(&self) -> Result<Option<u8>, LinkError> {
        // The length, and the first byte after it.
        let mut bytes = [0; 5];
        match peek(&self.stream, &mut bytes) {
            Ok(0) => Err(LinkError::Closed),
            Ok(read) => Ok((read == bytes.len()).then_some(bytes[4])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(_) => Err(LinkError::Closed),
        }
    }
}

/// Reads received bytes without removing them.
#[cfg(target_os = "linux")]
fn peek(stream: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    use std::os::fd::AsRawFd as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the socket is open, and the buffer has this length.
    let read = unsafe { libc::recv(stream.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// May block as long as a read.
#[cfg(not(target_os = "linux"))]
fn peek(stream: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    stream.peek(into)
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        // Written bytes still arrive; the other rank then reads the end of the stream.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let Some(process) = &self.process else { return };
        let until = Instant::now() + END_WITHIN;
        while !process.has_exited() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Enables TCP keep-alive, which detects within a minute that the other machine is unreachable.
///
/// # Errors
/// If the system refuses a socket option.
#[cfg(target_os = "linux")]
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let set = |level: libc::c_int, name: libc::c_int, value: libc::c_int| {
        let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four bytes");
        // SAFETY: the socket is open, and the value outlives the call and has the given length.
        let done =
            unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 30)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)
}

#[cfg(not(target_os = "linux"))]
pub fn keep_alive(_: &TcpStream) -> io::Result<()> {
    Ok(())
}
