//! Ranks as threads of one process: for tests, and as the reference for ranks in several processes.

use super::{Link, LinkError, Mesh, Wait};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    time::Duration,
};

/// Maximum number of frames in a channel.
const FRAMES: usize = 4;
/// Interval between attempts to send into a full channel.
const FULL: Duration = Duration::from_micros(200);
/// Interval between checks of the deadline.
const LOOK: Duration = Duration::from_millis(20);

struct Channel {
    sender: SyncSender<Vec<u8>>,
    inbox: Mutex<Inbox>,
}

struct Inbox {
    receiver: Receiver<Vec<u8>>,
    /// Frame that `peek` read from the channel.
    next: Option<Vec<u8>>,
}

impl Channel {
    fn new(sender: SyncSender<Vec<u8>>, receiver: Receiver<Vec<u8>>) -> Channel {
        Channel { sender, inbox: Mutex::new(Inbox { receiver, next: None }) }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the links of each of `ranks` threads.
pub fn channels(ranks: usize) -> Vec<Vec<Option<Box<dyn Link>>>> {
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..ranks).map(|_| (0..ranks).map(|_| None).collect()).collect();
    for (one, other) in (0..ranks).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (to_other, from_one) = sync_channel(FRAMES);
        let (to_one, from_other) = sync_channel(FRAMES);
        links[one][other] = Some(Box::new(Channel::new(to_other, from_other)));
        links[other][one] = Some(Box::new(Channel::new(to_one, from_one)));
    }
    links
}

/// Returns the meshes of `ranks` threads, by rank.
pub fn threads(ranks: usize, timeout: Duration) -> Vec<Mesh> {
    let links = channels(ranks).into_iter().enumerate();
    links.map(|(rank, links)| Mesh::new(rank, links, timeout)).collect()
}

impl Link for Channel {
    fn send(&self, frame: &[u8], wait: &Wait<'_>) -> Result<(), LinkError> {
        let mut frame = frame.to_vec();
        loop {
            frame = match self.sender.try_send(frame) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(frame)) => frame,
                Err(TrySendError::Disconnected(_)) => return Err(LinkError::Closed),
            };
            wait.check()?;
            std::thread::sleep(FULL);
        }
    }

    fn receive(&self, frame: &mut Vec<u8>, wait: &Wait<'_>) -> Result<(), LinkError> {
        let mut inbox = self.inbox();
        if let Some(next) = inbox.next.take() {
            *frame = next;
            return Ok(());
        }
        loop {
            match inbox.receiver.recv_timeout(LOOK) {
                Ok(received) => {
                    *frame = received;
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed),
                Err(RecvTimeoutError::Timeout) => wait.check()?,
            }
        }
    }

    fn peek(&self) -> Result<Option<u8>, LinkError> {
        let mut inbox = self.inbox();
        if inbox.next.is_none() {
            inbox.next = match inbox.receiver.try_recv() {
                Ok(frame) => Some(frame),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Err(LinkError::Closed),
            };
        }
        Ok(inbox.next.as_ref().and_then(|frame| frame.first()).copied())
    }
}
