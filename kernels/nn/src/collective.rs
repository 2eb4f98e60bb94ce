//! Exchanges between the *ranks*: the processes, or threads in tests, that train one model together.
//!
//! Every rank makes the same calls in the same order. Sums that must have the same bits for any number of ranks are
//! added in the order of the micro-batches. A call that fails or misses the deadline ends all exchanges; the ranks
//! must reconnect.
//!
//! [`Mesh`] works over one [`Link`] for each pair of ranks: channels between threads here ([`threads`]), connections
//! between processes in the miner.

pub(crate) mod error;
mod threads;

pub use error::{ANNOUNCEMENT_BYTES_MAX, CollectiveError, Watch};
pub use threads::{channels, threads};

use crate::nccl::{Membership, UniqueId};
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Maximum number of values of one frame.
const PIECE: usize = 1 << 16;
/// Maximum length of one frame in bytes: its kind and the values.
pub const FRAME_BYTES_MAX: usize = 1 + 4 * PIECE;
/// Maximum length in bytes of the reason that a failing rank sends.
const WHY_BYTES_MAX: usize = 1024;
/// Maximum wait for the reason of a rank that closed its link.
const WHY_WITHIN: Duration = Duration::from_millis(200);
/// Interval between checks of the links while GPUs exchange.
const LOOK: Duration = Duration::from_millis(20);

const DATA: u8 = 0;
const FAILURE: u8 = 1;

/// One rank's connection to the others. Every call has a deadline, except the wait for an announcement.
pub trait Collective: Send {
    /// Returns the number of this rank, from 0. Rank 0 leads.
    fn rank(&self) -> usize;

    fn ranks(&self) -> usize;

    /// Broadcasts the `message` of rank 0, of at most [`ANNOUNCEMENT_BYTES_MAX`], to all ranks.
    ///
    /// # Errors
    /// As all calls: if a rank is lost, fails, or is too slow. Also if the message is too long.
    fn announce(&mut self, message: &mut Vec<u8>) -> Result<(), CollectiveError>;

    /// Sends `values` to another rank, which [receives](Self::receive) as many.
    ///
    /// # Errors
    /// Same as [`announce`](Self::announce).
    fn send(&mut self, to: usize, values: &[f32]) -> Result<(), CollectiveError>;

    /// # Errors
    /// Same as [`announce`](Self::announce).
    fn receive(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Adds to `sum` this rank's slice of the vectors of the first `contributors` ranks, in the order of ranks. Other
    /// ranks hand over an empty vector.
    ///
    /// # Errors
    /// Same as [`announce`](Self::announce).
    fn reduce_scatter(
        &mut self,
        slices: &[Range<usize>],
        vector: &[f32],
        contributors: usize,
        sum: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// Gives all ranks the slice of `vector` that each rank has. The slices cover the vector in the order of ranks.
    ///
    /// # Errors
    /// Same as [`announce`](Self::announce).
    fn all_gather(&mut self, slices: &[Range<usize>], vector: &mut [f32]) -> Result<(), CollectiveError>;

    /// Sends the values of all ranks to rank 0 and returns them there in the order of ranks; other ranks get an empty
    /// vector. Rank `r` has `lens[r]` values.
    ///
    /// # Errors
    /// Same as [`announce`](Self::announce).
    fn gather(&mut self, values: &[f64], lens: &[usize]) -> Result<Vec<f64>, CollectiveError>;

    /// Sends the other ranks the reason for this rank's failure, as far as they receive it, and closes all
    /// connections.
    fn abort(&mut self, why: &str);

    /// Returns this rank's membership of the NCCL communicator that the ranks' GPUs join, if there is one.
    fn nccl(&self) -> Option<Membership>;

    /// Returns a watch over the other ranks while their GPUs exchange. It fails if a rank is lost or fails, as far as
    /// this is detected without reading its data, or after the deadline of a call.
    fn watch(&self, doing: &'static str) -> Watch<'_>;
}

/// A connection to one other rank. One thread reads while another writes.
pub trait Link: Send + Sync {
    /// Sends a frame of at most [`FRAME_BYTES_MAX`].
    ///
    /// # Errors
    /// If the other rank closed the connection, or `wait` is over.
    fn send(&self, frame: &[u8], wait: &Wait<'_>) -> Result<(), LinkError>;

    /// Receives the next frame into `frame`.
    ///
    /// # Errors
    /// If the other rank closed the connection, `wait` is over, or the announced frame is too long.
    fn receive(&self, frame: &mut Vec<u8>, wait: &Wait<'_>) -> Result<(), LinkError>;

    /// Returns the first byte of the next frame if it has arrived, without removing the frame. Does not wait.
    ///
    /// # Errors
    /// If the other rank closed the connection.
    fn peek(&self) -> Result<Option<u8>, LinkError>;
}

/// Reason why a frame was not transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    Closed,
    /// The deadline passed.
    Late,
    /// Another call of this rank failed.
    Aborted,
    /// A frame of this length was announced.
    TooLong(usize),
}

/// Deadline and abort flag of a call.
pub struct Wait<'a> {
    until: Option<Instant>,
    aborted: &'a AtomicBool,
}

impl Wait<'_> {
    /// Fails once the call must end. A link calls it at least every 50 ms.
    ///
    /// # Errors
    /// If the deadline passed, or another call of this rank failed.
    pub fn check(&self) -> Result<(), LinkError> {
        if self.aborted.load(Ordering::Relaxed) {
            return Err(LinkError::Aborted);
        }
        match self.until {
            Some(until) if until <= Instant::now() => Err(LinkError::Late),
            _ => Ok(()),
        }
    }
}

/// A link to each other rank.
pub struct Mesh {
    rank: usize,
    /// Links by rank. `None` for this rank itself, and for all after an abort.
    links: Vec<Option<Box<dyn Link>>>,
    timeout: Duration,
    nccl: Option<UniqueId>,
}

impl Mesh {
    /// Returns the mesh of rank `rank`, with a link to each other rank. A call may take `timeout`.
    ///
    /// # Panics
    /// If `links` are not those of all other ranks.
    pub fn new(rank: usize, links: Vec<Option<Box<dyn Link>>>, timeout: Duration) -> Mesh {
        let is_complete = links.iter().enumerate().all(|(other, link)| link.is_none() == (other == rank));
        assert!(rank < links.len() && is_complete, "a link to each other rank");
        Mesh { rank, links, timeout, nccl: None }
    }

    /// Sets the id of the NCCL communicator by which the ranks' GPUs exchange, if any.
    #[must_use]
    pub fn with_nccl(self, nccl: Option<UniqueId>) -> Mesh {
        Mesh { nccl, ..self }
    }

    fn call<'a>(&'a self, doing: &'static str, aborted: &'a AtomicBool) -> Call<'a> {
        let until = Some(Instant::now() + self.timeout);
        Call { mesh: self, doing, wait: Wait { until, aborted } }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.links.len()).filter(move |other| *other != rank)
    }
}

/// One call of a collective.
struct Call<'a> {
    mesh: &'a Mesh,
    doing: &'static str,
    wait: Wait<'a>,
}

impl Call<'_> {
    fn send(&self, to: usize, frame: &[u8]) -> Result<(), CollectiveError> {
        let link = self.mesh.links[to].as_deref().ok_or(CollectiveError::Aborted)?;
        link.send(frame, &self.wait).map_err(|error| self.explain(to, error))
    }

    fn send_values(&self, to: usize, frame: &mut Vec<u8>, values: &[f32]) -> Result<(), CollectiveError> {
        for values in values.chunks(PIECE) {
            frame.clear();
            frame.push(DATA);
            frame.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            self.send(to, frame)?;
        }
        Ok(())
    }

    /// Receives the next frame of `from` and returns its data.
    fn receive<'f>(&self, from: usize, frame: &'f mut Vec<u8>) -> Result<&'f [u8], CollectiveError> {
        let link = self.mesh.links[from].as_deref().ok_or(CollectiveError::Aborted)?;
        link.receive(frame, &self.wait).map_err(|error| self.explain(from, error))?;
        match frame.split_first() {
            Some((&DATA, data)) => Ok(data),
            Some((&FAILURE, why)) => Err(CollectiveError::Failed { rank: from, why: text(why) }),
            _ => Err(self.wrong_length(from, FRAME_BYTES_MAX, frame.len())),
        }
    }

    /// Receives `values.len()` values of `from` and passes them to `each`, with their destination.
    fn receive_values(
        &self,
        from: usize,
        frame: &mut Vec<u8>,
        mut values: &mut [f32],
        each: impl Fn(&mut f32, f32),
    ) -> Result<(), CollectiveError> {
        while !values.is_empty() {
            let data = self.receive(from, frame)?;
            let (received, rest) = data.as_chunks::<4>();
            if received.is_empty() || !rest.is_empty() || values.len() < received.len() {
                return Err(self.wrong_length(from, 4 * values.len(), data.len()));
            }
            let places = values.split_off_mut(..received.len()).expect("there are as many");
            for (place, bytes) in places.iter_mut().zip(received) {
                each(place, f32::from_le_bytes(*bytes));
            }
        }
        Ok(())
    }

    fn wrong_length(&self, rank: usize, expected: usize, got: usize) -> CollectiveError {
        CollectiveError::Length { rank, doing: self.doing, expected, got }
    }

    fn explain(&self, rank: usize, error: LinkError) -> CollectiveError {
        let doing = self.doing;
        match error {
            LinkError::Closed => self.last_words(rank).unwrap_or(CollectiveError::Lost { rank, doing }),
            LinkError::Late => CollectiveError::Slow { rank, doing, seconds: self.mesh.timeout.as_secs() },
            LinkError::Aborted => CollectiveError::Aborted,
            LinkError::TooLong(got) => self.wrong_length(rank, FRAME_BYTES_MAX, got),
        }
    }

    /// Returns the reason of a rank that closed its link, if it sent one, possibly behind data.
    fn last_words(&self, rank: usize) -> Option<CollectiveError> {
        let link = self.mesh.links[rank].as_deref()?;
        let (never, mut frame) = (AtomicBool::new(false), Vec::new());
        let wait = Wait { until: Some(Instant::now() + WHY_WITHIN), aborted: &never };
        while link.receive(&mut frame, &wait).is_ok() {
            if let Some((&FAILURE, why)) = frame.split_first() {
                return Some(CollectiveError::Failed { rank, why: text(why) });
            }
        }
        None
    }

    /// Runs `write` on a thread in parallel with `read`. If one of them fails, the other one ends.
    fn both(
        &self,
        write: impl FnOnce() -> Result<(), CollectiveError> + Send,
        read: impl FnOnce() -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let noted = |done: Result<(), CollectiveError>| {
            if done.is_err() {
                self.wait.aborted.store(true, Ordering::Relaxed);
            }
            done
        };
        thread::scope(|scope| {
            let name = thread::Builder::new().name("rank-writer".into());
            let writer = name.spawn_scoped(scope, || noted(write()));
            let writer = writer.map_err(|error| CollectiveError::NoThread { why: error.to_string() })?;
            let read = noted(read());
            let written = writer.join().expect("the writer does not panic");
            match (read, written) {
                // The writer may have read the reason of a rank that the reader finds disconnected.
                (Err(CollectiveError::Lost { .. }), Err(error @ CollectiveError::Failed { .. }))
                | (Err(CollectiveError::Aborted), Err(error))
                | (Err(error), _)
                | (Ok(()), Err(error)) => Err(error),
                (Ok(()), Ok(())) => Ok(()),
            }
        })
    }
}

/// Returns a reason as printable text.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(WHY_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns piece `index` of a slice.
fn piece(slice: &Range<usize>, index: usize) -> Range<usize> {
    let start = slice.end.min(slice.start + index * PIECE);
    start..slice.end.min(start + PIECE)
}

/// Returns the number of pieces of the longest slice.
fn pieces(slices: &[Range<usize>]) -> usize {
    slices.iter().map(|slice| slice.len().div_ceil(PIECE)).max().unwrap_or(0)
}

impl Collective for Mesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.links.len()
    }

    fn announce(&mut self, message: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let aborted = AtomicBool::new(false);
        if self.rank == 0 {
            let bytes = message.len();
            if ANNOUNCEMENT_BYTES_MAX < bytes {
                return Err(CollectiveError::TooLong { bytes });
            }
            let call = self.call("announcing", &aborted);
            let frame = |bytes: &[u8]| [&[DATA], bytes].concat();
            let length = frame(&(message.len() as u64).to_le_bytes());
            for to in self.others() {
                call.send(to, &length)?;
                message.chunks(4 * PIECE).try_for_each(|bytes| call.send(to, &frame(bytes)))?;
            }
            return Ok(());
        }
        // No deadline: rank 0 may wait for the next window. If it ends, its link closes.
        let idle = Call { mesh: self, doing: "waiting", wait: Wait { until: None, aborted: &aborted } };
        let mut frame = Vec::new();
        let length = idle.receive(0, &mut frame)?;
        let length = length.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if ANNOUNCEMENT_BYTES_MAX < length {
            return Err(idle.wrong_length(0, ANNOUNCEMENT_BYTES_MAX, length));
        }
        let call = self.call("announcing", &aborted);
        message.clear();
        while message.len() < length {
            let data = call.receive(0, &mut frame)?;
            let left = length - message.len();
            if data.is_empty() || left < data.len() {
                return Err(call.wrong_length(0, left, data.len()));
            }
            message.extend_from_slice(data);
        }
        Ok(())
    }

    fn send(&mut self, to: usize, values: &[f32]) -> Result<(), CollectiveError> {
        let aborted = AtomicBool::new(false);
        self.call("sending values", &aborted).send_values(to, &mut Vec::new(), values)
    }

    fn receive(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError> {
        let aborted = AtomicBool::new(false);
        let call = self.call("receiving values", &aborted);
        call.receive_values(from, &mut Vec::new(), values, |place, value| *place = value)
    }

    // Every rank writes piece by piece, each piece to all ranks in order, and reads in the same order. So a frame
    // waits only for earlier ones, which excludes deadlocks.
    fn reduce_scatter(
        &mut self,
        slices: &[Range<usize>],
        vector: &[f32],
        contributors: usize,
        sum: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let (rank, own) = (self.rank, slices[self.rank].clone());
        let aborted = AtomicBool::new(false);
        let call = self.call("adding gradients", &aborted);
        let write = || {
            let mut frame = Vec::new();
            for index in 0..if rank < contributors { pieces(slices) } else { 0 } {
                for to in self.others() {
                    call.send_values(to, &mut frame, &vector[piece(&slices[to], index)])?;
                }
            }
            Ok(())
        };
        let read = || {
            let mut frame = Vec::new();
            for index in 0..pieces(std::slice::from_ref(&own)) {
                let piece = piece(&own, index);
                let sum = &mut sum[piece.start - own.start..piece.end - own.start];
                for from in 0..contributors {
                    if from == rank {
                        sum.iter_mut().zip(&vector[piece.clone()]).for_each(|(sum, value)| *sum += value);
                    } else {
                        call.receive_values(from, &mut frame, sum, |sum, value| *sum += value)?;
                    }
                }
            }
            Ok(())
        };
        call.both(write, read)
    }

    fn all_gather(&mut self, slices: &[Range<usize>], vector: &mut [f32]) -> Result<(), CollectiveError> {
        let (rank, own) = (self.rank, slices[self.rank].clone());
        let (before, rest) = vector.split_at_mut(own.start);
        let (mine, after) = rest.split_at_mut(own.len());
        let mine = &*mine;
        let aborted = AtomicBool::new(false);
        let call = self.call("sharing weights", &aborted);
        let write = || {
            let mut frame = Vec::new();
            for values in mine.chunks(PIECE) {
                self.others().try_for_each(|to| call.send_values(to, &mut frame, values))?;
            }
            Ok(())
        };
        let read = || {
            let mut frame = Vec::new();
            for index in 0..pieces(slices) {
                for from in self.others() {
                    let piece = piece(&slices[from], index);
                    let place = match from < rank {
                        true => &mut before[piece],
                        false => &mut after[piece.start - own.end..piece.end - own.end],
                    };
                    call.receive_values(from, &mut frame, place, |place, value| *place = value)?;
                }
            }
            Ok(())
        };
        call.both(write, read)
    }

    fn gather(&mut self, values: &[f64], lens: &[usize]) -> Result<Vec<f64>, CollectiveError> {
        let aborted = AtomicBool::new(false);
        let call = self.call("gathering numbers", &aborted);
        let mut frame = Vec::new();
        if self.rank != 0 {
            for values in values.chunks(PIECE / 2) {
                frame.clear();
                frame.push(DATA);
                frame.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                call.send(0, &frame)?;
            }
            return Ok(Vec::new());
        }
        let mut all = values.to_vec();
        for from in self.others() {
            let mut left = lens[from];
            while 0 < left {
                let data = call.receive(from, &mut frame)?;
                let (received, rest) = data.as_chunks::<8>();
                if received.is_empty() || !rest.is_empty() || left < received.len() {
                    return Err(call.wrong_length(from, 8 * left, data.len()));
                }
                left -= received.len();
                all.extend(received.iter().map(|bytes| f64::from_le_bytes(*bytes)));
            }
        }
        Ok(all)
    }

    fn abort(&mut self, why: &str) {
        let never = AtomicBool::new(false);
        let frame = [&[FAILURE], &why.as_bytes()[..why.len().min(WHY_BYTES_MAX)]].concat();
        for link in self.links.iter_mut().filter_map(Option::take) {
            let wait = Wait { until: Some(Instant::now() + WHY_WITHIN), aborted: &never };
            // Ignored: the other rank may have disconnected, or be the cause.
            let _ = link.send(&frame, &wait);
        }
    }
    fn nccl(&self) -> Option<Membership> {
        self.nccl.map(|id| Membership { id, rank: self.rank, ranks: self.links.len() })
    }

    fn watch(&self, doing: &'static str) -> Watch<'_> {
        let (until, mut look_at) = (Instant::now() + self.timeout, Instant::now());
        Box::new(move || {
            let now = Instant::now();
            if until <= now {
                return Err(CollectiveError::Stuck { doing, seconds: self.timeout.as_secs() });
            }
            if now < look_at {
                return Ok(());
            }
            look_at = now + LOOK;
            let never = AtomicBool::new(false);
            let call = self.call(doing, &never);
            for other in self.others() {
                let link = self.links[other].as_deref().ok_or(CollectiveError::Aborted)?;
                match link.peek() {
                    Ok(Some(FAILURE)) => return Err(call.explain(other, LinkError::Closed)),
                    Ok(_) => {}
                    Err(error) => return Err(call.explain(other, error)),
                }
            }
            Ok(())
        })
    }
}
