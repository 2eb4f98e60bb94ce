//! The node's connections to peers: one task that owns them, and a handle that opens streams.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{PeerId, StreamProtocol, Swarm, SwarmBuilder, noise, tcp, yamux};
use protocol::{GenesisHash, ensure};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::connections::Connections;
use crate::key::NodeKey;
use crate::limits::{AddressLimits, Limits, RefusedConnections};
use crate::streams::{ConnectionHandle, IncomingStreams, OpenError, Stream};
use crate::url::{self, PeerUrl};

/// Maximum number of incoming connections. With the bounds on streams it bounds their memory: 64 times
/// [`CONNECTION_BYTES`], plus a few that close.
const INCOMING_MAX: usize = 64;
/// Maximum number of outgoing connections, including handshakes.
const OUTGOING_MAX: u32 = 64;
/// Maximum number of outgoing connections in handshakes.
const PENDING_MAX: u32 = 32;
const STREAMS_MAX: u32 = 32;
/// Bytes that a peer may send before they are read, per stream and for all streams of a connection.
const STREAM_BYTES: u32 = 4 << 20;
const CONNECTION_BYTES: u32 = 8 << 20;
/// Time limit for address, transport and handshake together, and for the negotiation of a stream.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);
/// Time limit for opening a port.
const LISTEN: Duration = Duration::from_secs(10);

/// The settings of a node's network.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    pub key: NodeKey,
    /// The chain. Peers of another chain use other protocol names.
    pub genesis: GenesisHash,
    /// Address for incoming connections, over UDP (QUIC) and TCP; `None` to only dial.
    pub listen: Option<SocketAddr>,
    /// True if peers may have private addresses, as on a localnet.
    pub allow_private: bool,
    /// Limits of connections from one address.
    pub limits: AddressLimits,
}

/// Error of starting a node's network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("could not set up a transport for peers: {what}")]
    Transport { what: String },
    #[error("could not listen for peers at {address}: {what}. Is the port taken?")]
    Listen { address: SocketAddr, what: String },
}

/// A handle of the task that owns the connections. The task ends with its last handle.
pub struct Network {
    peer: PeerId,
    /// The addresses at which it listens, from the system: QUIC, then TCP.
    listening: Vec<SocketAddr>,
    genesis: GenesisHash,
    allow_private: bool,
    connections: Connections,
    commands: mpsc::Sender<Dial>,
}

/// Connects to a peer at the first of these addresses that answers, unless it is already connected.
struct Dial {
    peer: PeerId,
    addresses: Vec<Multiaddr>,
    done: oneshot::Sender<Result<(), OpenError>>,
}

impl Network {
    /// Starts the task. If the node listens, its ports are open when this returns.
    ///
    /// # Errors
    /// If a transport cannot be set up or a port cannot be opened.
    pub async fn start(settings: NetworkSettings) -> Result<Network, NetworkError> {
        let NetworkSettings { key, genesis, listen, allow_private, limits } = settings;
        let connections = Connections::new(Limits::new(limits, INCOMING_MAX));
        let mut swarm = swarm(&key, connections.clone())?;
        let listening = match listen {
            Some(address) => self::listen(&mut swarm, address).await?,
            None => Vec::new(),
        };
        let (commands, received) = mpsc::channel(64);
        tokio::spawn(own_connections(swarm, received));
        Ok(Network { peer: key.peer(), listening, genesis, allow_private, connections, commands })
    }

    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the addresses at which others reach a node that listens on a public address: QUIC first.
    pub fn listening(&self) -> Vec<PeerUrl> {
        let [quic, tcp] = self.listening[..] else { return Vec::new() };
        let [quic, _] = PeerUrl::at(self.peer, quic);
        let [_, tcp] = PeerUrl::at(self.peer, tcp);
        vec![quic, tcp]
    }

    /// Reserves half of the incoming connections for these peers.
    pub fn reserve_for(&self, peers: HashSet<PeerId>) {
        self.connections.limits().reserve_for(peers);
    }

    /// Returns a function that reports whether a peer is a stranger, without reserved slots.
    pub(crate) fn strangers(&self) -> impl Fn(&PeerId) -> bool + Send + use<> {
        let limits = self.connections.limits.clone();
        move |peer| limits.lock().unwrap_or_else(PoisonError::into_inner).is_stranger(peer)
    }

    /// Returns the number of refused incoming connections, by reason.
    pub fn refused(&self) -> RefusedConnections {
        self.connections.limits().refused()
    }

    /// Returns the number of incoming connections that ended because others needed their slots.
    pub fn gave_way(&self) -> u64 {
        self.connections.limits().gave_way()
    }

    /// Returns the number of open connections, in both directions.
    pub fn connections(&self) -> usize {
        self.connections.limits().established()
    }

    /// Returns the number of recorded connections and addresses.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> [usize; 2] {
        self.connections.limits().sizes()
    }

    /// Completes when the task has ended, which is a bug.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Returns the name of a protocol, which differs on other chains.
    pub(crate) fn protocol(&self, name: &str) -> StreamProtocol {
        let genesis = self.genesis.to_string();
        let short = genesis.trim_start_matches("0x").get(..8).unwrap_or_default().to_owned();
        StreamProtocol::try_from_owned(format!("/mettle/{short}/{name}"))
            .expect("a name that begins with a slash")
    }

    /// Returns the streams that peers open for a protocol; `None` if it is already served.
    pub(crate) fn accept(&self, name: &str) -> Option<IncomingStreams> {
        self.connections.protocols.accept(self.protocol(name))
    }

    /// Connects to a peer, unless it is already connected, at the first of its addresses that answers.
    ///
    /// # Errors
    /// If none answers, or one may not be dialled.
    pub async fn connect(&self, urls: &[PeerUrl]) -> Result<(), OpenError> {
        let Some(PeerUrl { peer, .. }) = urls.first() else { return Err(OpenError::NoAddress) };
        for url in urls {
            url.judge(self.allow_private).map_err(OpenError::Forbidden)?;
        }
        let of_peer = urls.iter().filter(|url| url.peer == *peer);
        let addresses = of_peer.filter_map(|url| url.address.clone()).collect();
        let connected = timeout(CONNECT, self.dial(*peer, addresses)).await;
        connected.unwrap_or_else(|_| Err(silent()))
    }

    async fn dial(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), OpenError> {
        let (done, connected) = oneshot::channel();
        let dial = Dial { peer, addresses, done };
        self.commands.send(dial).await.map_err(|_| OpenError::Ended)?;
        connected.await.map_err(|_| OpenError::Ended)?
    }

    /// Opens a stream of a protocol, over a new connection if there is none. The caller defines its contents, so that
    /// tests of hostile peers can use it too.
    ///
    /// # Errors
    /// If the peer cannot be reached, may not be dialled, or does not speak the protocol.
    pub async fn open(&self, to: &PeerUrl, name: &str) -> Result<Stream, OpenError> {
        to.judge(self.allow_private).map_err(OpenError::Forbidden)?;
        let opened = timeout(CONNECT, async {
            // An open connection may just be closing, because others need its slot.
            if let Some(connection) = self.connection(&to.peer)
                && let Some(opened) = connection.open(self.protocol(name)).await
            {
                return opened;
            }
            let ended = || OpenError::Unreachable("the connection ended at once".into());
            self.dial(to.peer, to.address.iter().cloned().collect()).await?;
            let connection = self.connection(&to.peer).ok_or_else(ended)?;
            connection.open(self.protocol(name)).await.ok_or_else(ended)?
        });
        opened.await.unwrap_or_else(|_| Err(silent()))
    }

    fn connection(&self, peer: &PeerId) -> Option<ConnectionHandle> {
        self.connections.limits().connection(peer)
    }
}

fn silent() -> OpenError {
    OpenError::Unreachable(format!("it did not answer within {} s", CONNECT.as_secs()))
}

fn swarm(key: &NodeKey, connections: Connections) -> Result<Swarm<Connections>, NetworkError> {
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
    let swarm = builder
        .with_behaviour(|_| connections)
        .map_err(|error| failed(error.to_string()))?
        .with_swarm_config(|config| {
            config
                // The connection's handler decides.
                .with_idle_connection_timeout(Duration::ZERO)
                .with_max_negotiating_inbound_streams(STREAMS_MAX as usize)
        })
        .build();
    Ok(swarm)
}

/// Opens the port for QUIC and TCP, and returns the addresses from the system, in this order.
async fn listen(swarm: &mut Swarm<Connections>, at: SocketAddr) -> Result<Vec<SocketAddr>, NetworkError> {
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

/// A dial in progress, and the callers that wait for it.
struct Dialling {
    peer: PeerId,
    addresses: Vec<Multiaddr>,
    waiting: Vec<oneshot::Sender<Result<(), OpenError>>>,
}

/// Runs until every handle is dropped.
async fn own_connections(mut swarm: Swarm<Connections>, mut commands: mpsc::Receiver<Dial>) {
    // Callers wait at most `CONNECT`, and each occupies a place in the channel or here. So the number of waiting dials
    // is bounded by the callers' limits on fetches and pushes.
    let mut dials: HashMap<ConnectionId, Dialling> = HashMap::new();
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some(Dial { peer, addresses, done }) = command else { return };
                let same = |dial: &&mut Dialling| dial.peer == peer && dial.addresses == addresses;
                if swarm.behaviour().limits().connection(&peer).is_some() {
                    let _ = done.send(Ok(()));
                } else if let Some(dial) = dials.values_mut().find(same) {
                    dial.waiting.push(done);
                } else if let Err(error) = may_dial(&swarm) {
                    let _ = done.send(Err(error));
                } else {
                    match dial(&mut swarm, peer, addresses.clone()) {
                        Ok(id) => drop(dials.insert(id, Dialling { peer, addresses, waiting: vec![done] })),
                        Err(error) => drop(done.send(Err(error))),
                    }
                }
            }
            event = swarm.select_next_some() => match event {
                SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                    for (_, dial) in dials.extract_if(|_, dial| dial.peer == peer_id) {
                        dial.waiting.into_iter().for_each(|done| drop(done.send(Ok(()))));
                    }
                }
                SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                    let failed = OpenError::Unreachable(error.to_string());
                    for done in dials.remove(&connection_id).into_iter().flat_map(|dial| dial.waiting) {
                        let _ = done.send(Err(failed.clone()));
                    }
                }
                SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                    let error = store::error_chain(&error);
                    tracing::debug!(from = %send_back_addr, error, "a peer's connection failed");
                }
                // The node ends and is restarted, because it is advertised as one that accepts contributions.
                SwarmEvent::ListenerClosed { reason, addresses, .. } => {
                    tracing::error!(?reason, ?addresses, "peers cannot connect any more");
                    return;
                }
                _ => {}
            }
        }
    }
}

/// Checks that one more connection may be opened.
fn may_dial(swarm: &Swarm<Connections>) -> Result<(), OpenError> {
    let info = swarm.network_info();
    let counters = info.connection_counters();
    let (open, dials) = (counters.num_established_outgoing(), counters.num_pending_outgoing());
    let too_many = |what: &str| OpenError::Unreachable(format!("this node has too many connections {what}"));
    ensure!(dials < PENDING_MAX, too_many("in handshakes"));
    ensure!(open + dials < OUTGOING_MAX, too_many("to others"));
    Ok(())
}

/// Dials, even if the peer is already dialled at other addresses or a connection to it closes.
fn dial(
    swarm: &mut Swarm<Connections>,
    peer: PeerId,
    addresses: Vec<Multiaddr>,
) -> Result<ConnectionId, OpenError> {
    ensure!(!addresses.is_empty(), OpenError::NoAddress);
    let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).build();
    let id = options.connection_id();
    swarm.dial(options).map_err(|error| OpenError::Unreachable(error.to_string()))?;
    Ok(id)
}
