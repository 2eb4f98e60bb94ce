//! The node's connections to peers: one task that owns them, and a handle that opens streams.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{PeerId, Stream, StreamProtocol, Swarm, SwarmBuilder, noise, tcp, yamux};
use libp2p_stream::{self as stream, AlreadyRegistered, Control, IncomingStreams, OpenStreamError};
use protocol::GenesisHash;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::key::NodeKey;
use crate::url::{self, PeerUrl};

/// Connections from others, at most. With the bounds on streams it bounds the memory that they can take: 64 times
/// [`CONNECTION_BYTES`].
const INCOMING_MAX: u32 = 64;
const OUTGOING_MAX: u32 = 64;
/// Connections in handshakes, in either direction.
const PENDING_MAX: u32 = 32;
/// One of QUIC and one of TCP, or one from each side.
const PER_PEER_MAX: u32 = 2;
const STREAMS_MAX: u32 = 32;
/// Bytes of a stream, and of all streams of a connection, that a peer may send before they are read.
const STREAM_BYTES: u32 = 4 << 20;
const CONNECTION_BYTES: u32 = 8 << 20;
/// A connection without a stream is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// For address, transport and handshake together, and for the negotiation of a stream.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);
/// How long a port may take to open.
const LISTEN: Duration = Duration::from_secs(10);

/// The settings of a node's network.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    pub key: NodeKey,
    /// The chain: peers of another one speak other protocols.
    pub genesis: GenesisHash,
    /// Where peers connect, over UDP (QUIC) and TCP; `None`: the node only dials.
    pub listen: Option<SocketAddr>,
    /// Whether peers may have private addresses, as on a localnet.
    pub allow_private: bool,
}

/// Why a node has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("could not set up a transport for peers: {what}")]
    Transport { what: String },
    #[error("could not listen for peers at {address}: {what}. Is the port taken?")]
    Listen { address: SocketAddr, what: String },
}

/// Why there is no stream to a peer.
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

#[derive(NetworkBehaviour)]
struct Behaviour {
    limits: connection_limits::Behaviour,
    streams: stream::Behaviour,
}

/// A handle of the task that owns the connections. The task ends with its last handle.
pub struct Network {
    peer: PeerId,
    /// Where it listens, as the system says: QUIC, then TCP.
    listening: Vec<SocketAddr>,
    genesis: GenesisHash,
    allow_private: bool,
    control: Control,
    commands: mpsc::Sender<Dial>,
}

/// Connects to a peer, unless it is connected.
struct Dial {
    peer: PeerId,
    address: Option<Multiaddr>,
    done: oneshot::Sender<Result<(), OpenError>>,
}

impl Network {
    /// Starts the task. If the node listens, its ports are open when this returns.
    pub async fn start(settings: NetworkSettings) -> Result<Network, NetworkError> {
        let NetworkSettings { key, genesis, listen, allow_private } = settings;
        let mut swarm = swarm(&key)?;
        let listening = match listen {
            Some(address) => self::listen(&mut swarm, address).await?,
            None => Vec::new(),
        };
        let control = swarm.behaviour().streams.new_control();
        let (commands, received) = mpsc::channel(64);
        tokio::spawn(own_connections(swarm, received));
        Ok(Network { peer: key.peer(), listening, genesis, allow_private, control, commands })
    }

    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The addresses at which others reach a node that listens on a public address: QUIC first.
    pub fn listening(&self) -> Vec<PeerUrl> {
        let [quic, tcp] = self.listening[..] else { return Vec::new() };
        let [quic, _] = PeerUrl::at(self.peer, quic);
        let [_, tcp] = PeerUrl::at(self.peer, tcp);
        vec![quic, tcp]
    }

    /// Completes when the task has ended, which it does only by a fault of its own.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// The name of a protocol: peers of another chain have another one.
    pub(crate) fn protocol(&self, name: &str) -> StreamProtocol {
        let genesis = self.genesis.to_string();
        let short = genesis.trim_start_matches("0x").get(..8).unwrap_or_default().to_owned();
        StreamProtocol::try_from_owned(format!("/mettle/{short}/{name}"))
            .expect("a name that begins with a slash")
    }

    /// The streams that peers open for a protocol.
    pub(crate) fn accept(&self, name: &str) -> Result<IncomingStreams, AlreadyRegistered> {
        self.control.clone().accept(self.protocol(name))
    }

    /// Opens a stream, over a new connection if there is none.
    pub(crate) async fn open(&self, to: &PeerUrl, name: &str) -> Result<Stream, OpenError> {
        to.judge(self.allow_private).map_err(OpenError::Forbidden)?;
        let (done, connected) = oneshot::channel();
        let dial = Dial { peer: to.peer, address: to.address.clone(), done };
        let protocol = self.protocol(name);
        let opened = timeout(CONNECT, async {
            self.commands.send(dial).await.map_err(|_| OpenError::Ended)?;
            connected.await.map_err(|_| OpenError::Ended)??;
            // A clone: one control opens one stream at a time.
            self.control.clone().open_stream(to.peer, protocol.clone()).await.map_err(|error| match error {
                OpenStreamError::UnsupportedProtocol(protocol) => {
                    OpenError::Unsupported(protocol.to_string())
                }
                other => OpenError::Unreachable(other.to_string()),
            })
        });
        opened.await.unwrap_or_else(|_| {
            Err(OpenError::Unreachable(format!("it did not answer within {} s", CONNECT.as_secs())))
        })
    }
}

fn swarm(key: &NodeKey) -> Result<Swarm<Behaviour>, NetworkError> {
    let failed = |what: String| NetworkError::Transport { what };
    let multiplexer = || {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(STREAMS_MAX as usize);
        config
    };
    let builder = SwarmBuilder::with_existing_identity(key.0.clone())
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, multiplexer)
        .map_err(|error| failed(error.to_string()))?
        .with_quic_config(|mut config| {
            config.max_concurrent_stream_limit = STREAMS_MAX;
            config.max_stream_data = STREAM_BYTES;
            config.max_connection_data = CONNECTION_BYTES;
            config
        });
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_MAX))
        .with_max_pending_outgoing(Some(PENDING_MAX))
        .with_max_established_incoming(Some(INCOMING_MAX))
        .with_max_established_outgoing(Some(OUTGOING_MAX))
        .with_max_established_per_peer(Some(PER_PEER_MAX));
    let behaviour =
        Behaviour { limits: connection_limits::Behaviour::new(limits), streams: stream::Behaviour::new() };
    let swarm = builder
        .with_behaviour(|_| behaviour)
        .map_err(|error| failed(error.to_string()))?
        .with_swarm_config(|config| {
            config
                .with_idle_connection_timeout(IDLE)
                .with_max_negotiating_inbound_streams(STREAMS_MAX as usize)
        })
        .build();
    Ok(swarm)
}

/// Opens the port for QUIC and TCP, and returns the addresses that it got, in this order.
async fn listen(swarm: &mut Swarm<Behaviour>, at: SocketAddr) -> Result<Vec<SocketAddr>, NetworkError> {
    let failed = |what: String| NetworkError::Listen { address: at, what };
    let mut wanted: Vec<(ListenerId, Option<SocketAddr>)> = Vec::new();
    for address in url::multiaddrs(at) {
        let listener = swarm.listen_on(address).map_err(|error| failed(error.to_string()))?;
        wanted.push((listener, None));
    }
    let opened = timeout(LISTEN, async {
        while wanted.iter().any(|(_, address)| address.is_none()) {
            match swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { listener_id, address } => {
                    let place = wanted.iter_mut().find(|(listener, _)| *listener == listener_id);
                    if let Some((_, place)) = place {
                        *place = place.or(socket(&address));
                    }
                }
                SwarmEvent::ListenerClosed { reason: Err(error), .. }
                | SwarmEvent::ListenerError { error, .. } => return Err(failed(error.to_string())),
                _ => {}
            }
        }
        Ok(())
    });
    opened.await.unwrap_or_else(|_| Err(failed(format!("not open after {} s", LISTEN.as_secs()))))?;
    Ok(wanted.into_iter().filter_map(|(_, address)| address).collect())
}

fn socket(address: &Multiaddr) -> Option<SocketAddr> {
    let ip = address.iter().find_map(url::ip)?;
    let port = address.iter().find_map(|part| match part {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some(port),
        _ => None,
    })?;
    Some(SocketAddr::new(ip, port))
}

/// Runs until every handle is dropped.
async fn own_connections(mut swarm: Swarm<Behaviour>, mut commands: mpsc::Receiver<Dial>) {
    // Of peers that are dialled now. Callers wait no longer than `CONNECT`, and each holds a place in the channel or
    // here, so what waits is bounded by what the callers bound: fetches and pushes.
    let mut waiting: HashMap<PeerId, Vec<oneshot::Sender<Result<(), OpenError>>>> = HashMap::new();
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some(Dial { peer, address, done }) = command else { return };
                if swarm.is_connected(&peer) {
                    let _ = done.send(Ok(()));
                } else if let Some(others) = waiting.get_mut(&peer) {
                    others.push(done);
                } else if let Err(error) = dial(&mut swarm, peer, address) {
                    let _ = done.send(Err(error));
                } else {
                    waiting.insert(peer, vec![done]);
                }
            }
            event = swarm.select_next_some() => {
                let (peer, connected) = match event {
                    SwarmEvent::ConnectionEstablished { peer_id, .. } => (peer_id, Ok(())),
                    SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => {
                        (peer, Err(OpenError::Unreachable(error.to_string())))
                    }
                    SwarmEvent::ListenerClosed { reason: Err(error), addresses, .. } => {
                        tracing::error!(%error, ?addresses, "peers cannot connect any more");
                        continue;
                    }
                    _ => continue,
                };
                for done in waiting.remove(&peer).into_iter().flatten() {
                    let _ = done.send(connected.clone());
                }
            }
        }
    }
}

fn dial(swarm: &mut Swarm<Behaviour>, peer: PeerId, address: Option<Multiaddr>) -> Result<(), OpenError> {
    let address = address.ok_or(OpenError::NoAddress)?;
    let options = DialOpts::peer_id(peer)
        .condition(PeerCondition::DisconnectedAndNotDialing)
        .addresses(vec![address])
        .build();
    swarm.dial(options).map_err(|error| OpenError::Unreachable(error.to_string()))
}
