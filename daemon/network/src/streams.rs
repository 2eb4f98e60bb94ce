//! Streams of the node's protocols: opened to peers, accepted by name, and counted on each connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future as _, Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, ConnectionHandler, ConnectionHandlerEvent, DialUpgradeError, FullyNegotiatedInbound,
    FullyNegotiatedOutbound,
};
use libp2p::swarm::{StreamUpgradeError, SubstreamProtocol};
use libp2p::{PeerId, StreamProtocol};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};

/// Time after which a connection without a stream is closed: others need its slot, and reconnecting is fast.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of streams of a protocol that wait for the task that accepts them.
const ACCEPTED_MAX: usize = 64;
/// Time for a new connection's first stream before it counts as idle: its first packets may be lost.
pub(crate) const FIRST_STREAM: Duration = Duration::from_secs(2);
/// Time limit for the other side to name the protocol of a stream.
const NEGOTIATE: Duration = Duration::from_secs(5);
/// Maximum number of requests for a stream that wait for a connection's task.
const REQUESTS_MAX: usize = 16;

/// Error of opening a stream to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the peer's address cannot be used: {0}")]
    Forbidden(store::FetchError),
    #[error("the peer has no address, and is not connected")]
    NoAddress,
    #[error("the peer could not be reached: {0}")]
    Unreachable(String),
    #[error("the peer does not speak {0}")]
    Unsupported(String),
    #[error("this node's task for peers has ended")]
    Ended,
}

/// A stream to or from a peer. Until it is dropped, it counts as an open stream of its connection.
pub struct Stream {
    inner: libp2p::Stream,
    _open: OpenStream,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

/// The streams that peers open for one protocol.
pub(crate) type IncomingStreams = mpsc::Receiver<(PeerId, Stream)>;

/// The protocols that a node serves.
#[derive(Default)]
pub(crate) struct Protocols(Mutex<HashMap<StreamProtocol, mpsc::Sender<(PeerId, Stream)>>>);

impl Protocols {
    /// Serves a protocol until the receiver is dropped; `None` if it is already served.
    pub fn accept(&self, protocol: StreamProtocol) -> Option<IncomingStreams> {
        let mut served = self.served();
        if served.get(&protocol).is_some_and(|streams| !streams.is_closed()) {
            return None;
        }
        let (streams, incoming) = mpsc::channel(ACCEPTED_MAX);
        served.insert(protocol, streams);
        Some(incoming)
    }

    fn names(&self) -> Vec<StreamProtocol> {
        let served = self.served();
        served.iter().filter(|(_, streams)| !streams.is_closed()).map(|(name, _)| name.clone()).collect()
    }

    /// Passes a stream to its protocol. Drops it if too many wait, which suffices as an answer to the peer.
    fn hand_over(&self, protocol: &StreamProtocol, peer: PeerId, stream: Stream) {
        let streams = self.served().get(protocol).cloned();
        if streams.is_none_or(|streams| streams.try_send((peer, stream)).is_err()) {
            tracing::debug!(%peer, %protocol, "dropped a peer's stream");
        }
    }

    fn served(&self) -> MutexGuard<'_, HashMap<StreamProtocol, mpsc::Sender<(PeerId, Stream)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of a connection: its open streams, or the time since the last one.
pub(crate) struct ConnectionUse {
    state: Mutex<UseState>,
    /// Wakes the connection's task.
    changed: AtomicWaker,
}

struct UseState {
    streams: usize,
    idle_since: Instant,
    /// True if the connection accepts no new streams and closes after its last one.
    closes: bool,
}

impl ConnectionUse {
    fn new(now: Instant) -> Arc<ConnectionUse> {
        let state = UseState { streams: 0, idle_since: now + FIRST_STREAM, closes: false };
        Arc::new(ConnectionUse { state: Mutex::new(state), changed: AtomicWaker::new() })
    }

    /// Returns the time without a stream; `None` if one is open or the connection already closes.
    pub fn idle_for(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        (state.streams == 0 && !state.closes).then(|| now.saturating_duration_since(state.idle_since))
    }

    pub fn takes_streams(&self) -> bool {
        !self.state().closes
    }

    /// Returns whether it has no stream and gets none: it closes and has no slot any more.
    pub fn has_left(&self) -> bool {
        let state = self.state();
        state.closes && state.streams == 0
    }

    /// Closes the connection after its last stream.
    pub fn take_no_more(&self) {
        self.state().closes = true;
        self.changed.wake();
    }

    /// Closes the connection unless a stream is open. Returns whether it closes.
    pub fn give_way(&self) -> bool {
        let mut state = self.state();
        if 0 < state.streams {
            return false;
        }
        state.closes = true;
        drop(state);
        self.changed.wake();
        true
    }

    /// Counts a stream; `None` if the connection closes.
    pub fn begin_stream(self: &Arc<Self>) -> Option<OpenStream> {
        let mut state = self.state();
        if state.closes {
            return None;
        }
        state.streams += 1;
        Some(OpenStream(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, UseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream. Its end is reported to the connection's task.
pub(crate) struct OpenStream(Arc<ConnectionUse>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.streams -= 1;
        state.idle_since = Instant::now();
        drop(state);
        self.0.changed.wake();
    }
}

/// A request for a stream of a protocol.
pub(crate) struct StreamRequest {
    protocol: StreamProtocol,
    done: oneshot::Sender<Result<Stream, OpenError>>,
}

/// A connection: its use, and the channel for requests of streams.
#[derive(Clone)]
pub(crate) struct ConnectionHandle {
    pub usage: Arc<ConnectionUse>,
    requests: mpsc::Sender<StreamRequest>,
}

impl ConnectionHandle {
    pub fn is_open(&self) -> bool {
        self.usage.takes_streams() && !self.requests.is_closed()
    }

    /// Opens a stream; `None` if the connection has ended.
    pub async fn open(&self, protocol: StreamProtocol) -> Option<Result<Stream, OpenError>> {
        let (done, opened) = oneshot::channel();
        self.requests.send(StreamRequest { protocol, done }).await.ok()?;
        opened.await.ok()
    }
}

/// The part of a connection in the swarm: negotiates streams, and decides when the connection closes.
pub(crate) struct Handler {
    peer: PeerId,
    protocols: Arc<Protocols>,
    requests: mpsc::Receiver<StreamRequest>,
    usage: Arc<ConnectionUse>,
    idle: Pin<Box<Sleep>>,
    keeps_alive: bool,
}

impl Handler {
    /// Creates the handler of a new connection.
    pub fn new(peer: PeerId, protocols: Arc<Protocols>) -> (Handler, ConnectionHandle) {
        let (now, (sender, requests)) = (Instant::now(), mpsc::channel(REQUESTS_MAX));
        let (usage, idle) = (ConnectionUse::new(now), Box::pin(sleep_until(now + IDLE)));
        let handle = ConnectionHandle { usage: usage.clone(), requests: sender };
        (Handler { peer, protocols, requests, usage, idle, keeps_alive: true }, handle)
    }

    fn is_kept(&mut self, cx: &mut Context<'_>) -> bool {
        self.usage.changed.register(cx.waker());
        let (is_used, ends, closes) = {
            let state = self.usage.state();
            (0 < state.streams, state.idle_since + IDLE, state.closes)
        };
        if is_used || closes {
            return is_used;
        }
        if self.idle.deadline() != ends {
            self.idle.as_mut().reset(ends);
        }
        self.idle.as_mut().poll(cx).is_pending()
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = Upgrade;
    type OutboundProtocol = Upgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamRequest;

    /// While the connection closes, a stream whose protocol the other side does not name must not keep it open.
    fn listen_protocol(&self) -> SubstreamProtocol<Upgrade> {
        let negotiate = if self.keeps_alive { NEGOTIATE } else { Duration::ZERO };
        SubstreamProtocol::new(Upgrade(self.protocols.names()), ()).with_timeout(negotiate)
    }

    /// If this is false, the swarm closes the connection as soon as no stream is open or negotiated.
    fn connection_keep_alive(&self) -> bool {
        self.keeps_alive
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Upgrade, StreamRequest, Infallible>> {
        if let Poll::Ready(Some(request)) = self.requests.poll_recv(cx) {
            let protocol = SubstreamProtocol::new(Upgrade(vec![request.protocol.clone()]), request);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        self.keeps_alive = self.is_kept(cx);
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Upgrade, Upgrade, (), StreamRequest>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (inner, protocol),
                ..
            }) => {
                if let Some(open) = self.usage.begin_stream() {
                    let stream = Stream { inner, _open: open };
                    self.protocols.hand_over(&protocol, self.peer, stream);
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (inner, _),
                info: StreamRequest { done, .. },
            }) => {
                // Dropping `done` reports that the connection has ended.
                if let Some(open) = self.usage.begin_stream() {
                    let _ = done.send(Ok(Stream { inner, _open: open }));
                }
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError {
                error,
                info: StreamRequest { protocol, done },
            }) => {
                let _ = done.send(Err(match error {
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(protocol.to_string()),
                    StreamUpgradeError::Timeout => OpenError::Unreachable("it agreed on no protocol".into()),
                    StreamUpgradeError::Io(error) => OpenError::Unreachable(error.to_string()),
                    StreamUpgradeError::Apply(never) => match never {},
                }));
            }
            _ => {}
        }
    }
}

/// Negotiates one of these protocols.
pub(crate) struct Upgrade(Vec<StreamProtocol>);

impl UpgradeInfo for Upgrade {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<libp2p::Stream> for Upgrade {
    type Output = (libp2p::Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: libp2p::Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<libp2p::Stream> for Upgrade {
    type Output = (libp2p::Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: libp2p::Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_since_its_last_stream_and_gives_way_only_then() {
        let usage = ConnectionUse::new(Instant::now());
        tokio::time::advance(FIRST_STREAM + SECOND).await;
        assert_eq!(usage.idle_for(Instant::now()), Some(SECOND));
        let [first, second] = [usage.begin_stream().unwrap(), usage.begin_stream().unwrap()];
        tokio::time::advance(SECOND).await;
        drop(first);
        assert_eq!(usage.idle_for(Instant::now()), None);
        assert!(!usage.give_way() && !usage.has_left());
        drop(second);
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(usage.idle_for(Instant::now()), Some(2 * SECOND));
        assert!(usage.give_way() && usage.has_left());
        assert!(usage.begin_stream().is_none(), "a connection that closes opens no stream");
        assert_eq!(usage.idle_for(Instant::now()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_closes_when_it_is_idle_for_long_or_gives_way() {
        let (mut handler, ConnectionHandle { usage, .. }) = Handler::new(PeerId::random(), Arc::default());
        let keeps = async |handler: &mut Handler| {
            std::future::poll_fn(|cx| {
                assert!(handler.poll(cx).is_pending());
                Poll::Ready(handler.connection_keep_alive())
            })
            .await
        };
        tokio::time::advance(IDLE - SECOND).await;
        assert!(keeps(&mut handler).await);
        let stream = usage.begin_stream().unwrap();
        tokio::time::advance(2 * IDLE).await;
        assert!(keeps(&mut handler).await);
        drop(stream);
        assert!(keeps(&mut handler).await);
        tokio::time::advance(IDLE + SECOND).await;
        assert!(!keeps(&mut handler).await);

        let (mut handler, ConnectionHandle { usage, .. }) = Handler::new(PeerId::random(), Arc::default());
        assert!(keeps(&mut handler).await);
        assert_eq!(*handler.listen_protocol().timeout(), NEGOTIATE);
        assert!(usage.give_way() && !keeps(&mut handler).await);
        assert_eq!(*handler.listen_protocol().timeout(), Duration::ZERO, "no new stream keeps it open");
    }

    #[test]
    fn a_protocol_is_served_once_and_again_after_its_end() {
        let (protocols, name) = (Protocols::default(), StreamProtocol::new("/mettle/test/1"));
        let incoming = protocols.accept(name.clone()).unwrap();
        assert!(protocols.accept(name.clone()).is_none());
        assert_eq!(protocols.names(), std::slice::from_ref(&name));
        drop(incoming);
        assert!(protocols.names().is_empty());
        assert!(protocols.accept(name).is_some());
    }
}
