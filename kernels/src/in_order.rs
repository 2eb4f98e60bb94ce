//! Builds sections on all threads and passes them on in order.

use crate::wire::LENGTH_BYTES;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Number of sections per thread and batch.
///
/// Enough that threads rarely wait for each other at the end of a batch. A section has at most 128 KiB, and there are
/// two batches: 2 MiB per thread, besides the buffers of `make`.
const AT_ONCE: usize = 8;

/// Reason why not all sections were passed on.
pub(crate) enum Stopped<M, E> {
    /// Building a section failed; the first error.
    Make(M),
    /// The sink failed.
    Sink(E),
}

/// Builds the section of each job, and passes its length and the section to `sink` in the order of the jobs. Returns
/// the number of bytes passed on.
///
/// `make` runs on the threads of the rayon pool, in reused buffers, and appends to an empty vector; `sink` runs on the
/// calling thread.
pub(crate) fn in_order<Job: Send, Room: Default + Send, M: Send, E>(
    mut jobs: impl Iterator<Item = Job>,
    make: impl Fn(&mut Room, Job, &mut Vec<u8>) -> Result<(), M> + Sync,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, Stopped<M, E>> {
    let idle = Mutex::new(Vec::<Room>::new());
    let idle_rooms = || idle.lock().unwrap_or_else(PoisonError::into_inner);
    let make_one = |(job, slot): (Job, &mut Slot<M>)| {
        let free = idle_rooms().pop();
        let mut room = free.unwrap_or_default();
        slot.bytes.clear();
        slot.outcome = make(&mut room, job, &mut slot.bytes);
        idle_rooms().push(room);
    };

    let at_once = AT_ONCE * rayon::current_num_threads();
    let mut written = 0;
    let (mut done, mut coming): (Vec<Slot<M>>, Vec<Slot<M>>) = (Vec::new(), Vec::new());
    loop {
        let batch: Vec<Job> = jobs.by_ref().take(at_once).collect();
        coming.resize_with(batch.len(), Slot::default);
        if batch.is_empty() && done.is_empty() {
            return Ok(written);
        }
        let slots = &mut coming;
        rayon::in_place_scope(|scope| {
            scope.spawn(move |_| batch.into_par_iter().zip(slots).with_max_len(1).for_each(make_one));
            for slot in &mut done {
                std::mem::replace(&mut slot.outcome, Ok(())).map_err(Stopped::Make)?;
                let length = u32::try_from(slot.bytes.len()).expect("a section is under 1 MiB");
                sink(&length.to_le_bytes()).map_err(Stopped::Sink)?;
                sink(&slot.bytes).map_err(Stopped::Sink)?;
                written += (LENGTH_BYTES + slot.bytes.len()) as u64;
            }
            Ok(())
        })?;
        std::mem::swap(&mut done, &mut coming);
    }
}

/// A finished section that is not passed on yet.
struct Slot<M> {
    bytes: Vec<u8>,
    outcome: Result<(), M>,
}

impl<M> Default for Slot<M> {
    fn default() -> Slot<M> {
        Slot { bytes: Vec::new(), outcome: Ok(()) }
    }
}
