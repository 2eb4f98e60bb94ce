//! Limits on the connections from others: a peer with many node keys at one address takes no more than that address may,
//! and strangers leave half of the places to seats.
//!
//! A connection over TCP takes its place when it arrives, one over QUIC once its handshake is done: until then its address
//! may be forged, and a forger would use up what belongs to another. Handshakes are bounded apart, so that forged ones
//! over QUIC close no way over TCP.
//!
//! A connection of a seat leaves the place of its address once its handshake has proved the seat's key: many miners may
//! be behind one router. It counts for the minute of its address, and for its peer, which `swarm.rs` bounds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::connection_limits::Exceeded;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::swarm::derive_prelude::ConnectionEstablished;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenError, ListenFailure,
    NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{PeerId, core::util};
use protocol::ensure;

use crate::url;

const MINUTE: Duration = Duration::from_secs(60);
/// Handshakes at once, over QUIC and over TCP each.
const HANDSHAKES_MAX: usize = 128;
/// Addresses that are remembered. Beyond it, those without a connection are forgotten.
const ADDRESSES_MAX: usize = 4096;

/// How many connections a node takes from one address: an IPv4 address, or the first 64 bits of an IPv6 address, which
/// are what one customer of a provider has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// At once, without those of seats, and with those in handshakes over TCP.
    pub connections: u32,
    /// In any minute, of seats too.
    pub per_minute: u32,
    /// Whether they hold for connections from the same machine too. All nodes of a localnet have one address.
    pub loopback: bool,
}

impl Default for AddressLimits {
    fn default() -> AddressLimits {
        AddressLimits { connections: 16, per_minute: 128, loopback: false }
    }
}

/// Connections from others that a node refused since it started, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedConnections {
    /// The address had as many as it may have at once.
    pub address_connections: u64,
    /// The address had as many new ones within a minute as it may have.
    pub address_rate: u64,
    /// Strangers had as many as they may have at once: the rest of the places is for seats.
    pub strangers: u64,
    /// The node was in as many handshakes as it may be at once.
    pub handshakes: u64,
    /// The node, or the peer, had as many as it may have at once.
    pub connections: u64,
}

/// Counts a node's connections.
#[derive(Default)]
pub(crate) struct ConnectionCounter {
    open: AtomicU32,
    address_connections: AtomicU64,
    address_rate: AtomicU64,
    strangers: AtomicU64,
    handshakes: AtomicU64,
    connections: AtomicU64,
}

impl ConnectionCounter {
    pub fn open(&self) -> u32 {
        self.open.load(Relaxed)
    }

    pub fn set_open(&self, open: u32) {
        self.open.store(open, Relaxed);
    }

    pub fn refused(&self) -> RefusedConnections {
        RefusedConnections {
            address_connections: self.address_connections.load(Relaxed),
            address_rate: self.address_rate.load(Relaxed),
            strangers: self.strangers.load(Relaxed),
            handshakes: self.handshakes.load(Relaxed),
            connections: self.connections.load(Relaxed),
        }
    }

    /// Counts a connection that failed, if it was refused.
    pub fn failed(&self, error: &ListenError) {
        let ListenError::Denied { cause } = error else { return };
        let counter = match cause.downcast_ref::<TooMany>() {
            Some(TooMany::OfAddress) => &self.address_connections,
            Some(TooMany::WithinMinute) => &self.address_rate,
            Some(TooMany::OfStrangers) => &self.strangers,
            Some(TooMany::Handshakes) => &self.handshakes,
            Some(TooMany::OfNode) => &self.connections,
            None if cause.downcast_ref::<Exceeded>().is_some() => &self.connections,
            None => return,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error("the address has as many connections as one may have")]
    OfAddress,
    #[error("the address made as many connections within a minute as one may make")]
    WithinMinute,
    #[error("strangers have as many connections as they may have together")]
    OfStrangers,
    #[error("the node is in as many handshakes as it may be at once")]
    Handshakes,
    #[error("the node has as many connections from others as it may have")]
    OfNode,
}

/// An IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source::V4(address.to_bits()),
            IpAddr::V6(address) => Source::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// The connections of one address.
#[derive(Default)]
struct Held {
    open: u32,
    /// When those of the last minute were made. Never more than the limit.
    made: VecDeque<Instant>,
}

impl Held {
    fn forget_before(&mut self, now: Instant) {
        while self.made.front().is_some_and(|made| MINUTE <= now.saturating_duration_since(*made)) {
            self.made.pop_front();
        }
    }
}

/// The connections of all addresses.
struct Connections {
    limits: AddressLimits,
    held: HashMap<Source, Held>,
}

impl Connections {
    /// Counts a new connection, and takes a place for it unless it is a seat's.
    fn open(&mut self, source: Source, is_seat: bool, now: Instant) -> Result<(), TooMany> {
        if ADDRESSES_MAX <= self.held.len() && !self.held.contains_key(&source) {
            self.make_room(now);
        }
        let AddressLimits { connections, per_minute, .. } = self.limits;
        let held = self.held.entry(source).or_default();
        held.forget_before(now);
        ensure!(held.made.len() < per_minute as usize, TooMany::WithinMinute);
        if !is_seat {
            ensure!(held.open < connections, TooMany::OfAddress);
            held.open += 1;
        }
        held.made.push_back(now);
        Ok(())
    }

    fn close(&mut self, source: Source) {
        if let Some(held) = self.held.get_mut(&source) {
            held.open = held.open.saturating_sub(1);
        }
    }

    fn make_room(&mut self, now: Instant) {
        self.held.retain(|_, held| {
            held.forget_before(now);
            0 < held.open || !held.made.is_empty()
        });
        if ADDRESSES_MAX <= self.held.len() {
            self.held.retain(|_, held| 0 < held.open);
        }
    }
}

/// Refuses connections beyond [`AddressLimits`], and all while the node has as many as it may have: before their
/// handshakes, which cost more than the rest.
pub(crate) struct Behaviour {
    connections: Connections,
    /// The addresses of the connections that have a place.
    places: HashMap<ConnectionId, Source>,
    /// Connections from others in handshakes, with proved addresses and without.
    handshakes: [HashSet<ConnectionId>; 2],
    /// Connections from others past their handshakes.
    established: u32,
    established_max: u32,
    seats: Arc<SeatPeers>,
    /// Those of them that are not of seats.
    strangers: HashSet<ConnectionId>,
}

/// The peers for which half of the places is kept, and which may share an address; `None`: there are none.
#[derive(Default)]
pub(crate) struct SeatPeers(RwLock<Option<HashSet<PeerId>>>);

impl SeatPeers {
    pub fn set(&self, peers: HashSet<PeerId>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(peers);
    }

    /// Whether the peer is one of them; `None` if there are none.
    fn is_seat(&self, peer: &PeerId) -> Option<bool> {
        let seats = self.0.read().unwrap_or_else(PoisonError::into_inner);
        seats.as_ref().map(|seats| seats.contains(peer))
    }
}

impl Behaviour {
    pub fn new(limits: AddressLimits, established_max: u32, seats: Arc<SeatPeers>) -> Behaviour {
        let connections = Connections { limits, held: HashMap::new() };
        let (places, handshakes, strangers) = (HashMap::new(), Default::default(), HashSet::new());
        Behaviour { connections, places, handshakes, established: 0, established_max, seats, strangers }
    }

    /// Counts a connection from an address that is proved, and takes a place for it unless it is a seat's.
    fn admit(&mut self, id: ConnectionId, remote: &Multiaddr, is_seat: bool) -> Result<(), TooMany> {
        let Some(source) = self.source(remote) else { return Ok(()) };
        self.connections.open(source, is_seat, Instant::now())?;
        if !is_seat {
            self.places.insert(id, source);
        }
        Ok(())
    }

    /// The place that a connection has at its address becomes free.
    fn leave_address(&mut self, id: ConnectionId) {
        if let Some(source) = self.places.remove(&id) {
            self.connections.close(source);
        }
    }

    /// Where a connection comes from; `None` if its address has no limits.
    fn source(&self, remote: &Multiaddr) -> Option<Source> {
        let address = remote.iter().find_map(url::ip)?;
        let is_free = address.to_canonical().is_loopback() && !self.connections.limits.loopback;
        (!is_free).then(|| Source::of(address))
    }
}

/// Whether the address of a connection is known to be its peer's before the handshake.
fn is_proved(remote: &Multiaddr) -> bool {
    !remote.iter().any(|part| matches!(part, Protocol::Udp(_)))
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = std::convert::Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        ensure!(self.established < self.established_max, ConnectionDenied::new(TooMany::OfNode));
        let is_proved = is_proved(remote);
        let handshakes = &mut self.handshakes[usize::from(is_proved)];
        ensure!(handshakes.len() < HANDSHAKES_MAX, ConnectionDenied::new(TooMany::Handshakes));
        if is_proved {
            self.admit(id, remote, false).map_err(ConnectionDenied::new)?;
        }
        self.handshakes[usize::from(is_proved)].insert(id);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let is_proved = is_proved(remote);
        self.handshakes[usize::from(is_proved)].remove(&id);
        let is_seat = self.seats.is_seat(&peer);
        if !is_proved {
            self.admit(id, remote, is_seat == Some(true)).map_err(ConnectionDenied::new)?;
        }
        match is_seat {
            Some(true) => self.leave_address(id),
            Some(false) => {
                let max = self.established_max as usize / 2;
                ensure!(self.strangers.len() < max, ConnectionDenied::new(TooMany::OfStrangers));
                self.strangers.insert(id);
            }
            None => {}
        }
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        let ended = match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { endpoint, .. }) => {
                self.established += u32::from(endpoint.is_listener());
                return;
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, endpoint, .. }) => {
                self.established = self.established.saturating_sub(u32::from(endpoint.is_listener()));
                connection_id
            }
            // A connection that was refused ends here too.
            FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => connection_id,
            _ => return,
        };
        self.strangers.remove(&ended);
        for handshakes in &mut self.handshakes {
            handshakes.remove(&ended);
        }
        self.leave_address(ended);
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        util::unreachable(event)
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AddressLimits = AddressLimits { connections: 2, per_minute: 3, loopback: false };

    fn connections() -> Connections {
        Connections { limits: LIMITS, held: HashMap::new() }
    }

    fn source(address: &str) -> Source {
        Source::of(address.parse().unwrap())
    }

    #[test]
    fn an_address_is_all_that_one_customer_has() {
        assert_eq!(source("203.0.113.5"), source("::ffff:203.0.113.5"));
        assert_ne!(source("203.0.113.5"), source("203.0.113.6"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
    }

    #[test]
    fn connections_at_once_are_bounded_per_address() {
        let (mut all, now) = (connections(), Instant::now());
        let (one, other) = (source("203.0.113.5"), source("203.0.113.6"));
        assert_eq!([all.open(one, false, now), all.open(one, false, now)], [Ok(()); 2]);
        assert_eq!(all.open(one, false, now), Err(TooMany::OfAddress));
        assert_eq!(all.open(other, false, now), Ok(()), "others are not affected");
        all.close(one);
        assert_eq!(all.open(one, false, now), Ok(()));
    }

    #[test]
    fn new_connections_are_bounded_in_any_minute() {
        let (mut all, start) = (connections(), Instant::now());
        let one = source("2001:db8::1");
        let mut at = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let made = all.open(one, false, now);
            if made.is_ok() {
                all.close(one);
            }
            made
        };
        assert_eq!([at(0), at(30), at(59)], [Ok(()); 3]);
        assert_eq!(at(59), Err(TooMany::WithinMinute));
        assert_eq!(at(60), Ok(()), "the first is a minute ago");
        assert_eq!([at(89), at(90)], [Err(TooMany::WithinMinute), Ok(())]);
    }

    /// A connection of this number that arrives; how it was refused.
    fn arrives(limits: &mut Behaviour, id: usize, remote: &Multiaddr) -> Option<TooMany> {
        let id = ConnectionId::new_unchecked(id);
        let arrived = limits.handle_pending_inbound_connection(id, remote, remote);
        let refused = arrived.err().map(|denied| *denied.downcast_ref::<TooMany>().unwrap());
        if refused.is_some() {
            ends(limits, id, remote);
        }
        refused
    }

    fn ends(limits: &mut Behaviour, connection_id: ConnectionId, remote: &Multiaddr) {
        limits.on_swarm_event(FromSwarm::ListenFailure(ListenFailure {
            local_addr: remote,
            send_back_addr: remote,
            error: &ListenError::Aborted,
            connection_id,
            peer_id: None,
        }));
    }

    fn any_peer() -> PeerId {
        crate::NodeKey::generate().unwrap().peer()
    }

    /// Its handshake is done; how it was refused.
    fn is_known(limits: &mut Behaviour, id: usize, remote: &Multiaddr) -> Option<TooMany> {
        is_known_as(limits, id, any_peer(), remote)
    }

    /// The same, for a connection of this peer.
    fn is_known_as(limits: &mut Behaviour, id: usize, peer: PeerId, remote: &Multiaddr) -> Option<TooMany> {
        let id = ConnectionId::new_unchecked(id);
        let refused = limits.handle_established_inbound_connection(id, peer, remote, remote).err();
        refused.map(|denied| *denied.downcast_ref::<TooMany>().unwrap())
    }

    #[test]
    fn forged_addresses_cost_their_owners_nothing() {
        let mut limits = Behaviour::new(LIMITS, 64, Arc::default());
        let quic: Multiaddr = "/ip4/203.0.113.5/udp/9/quic-v1".parse().unwrap();
        let tcp: Multiaddr = "/ip4/203.0.113.5/tcp/9".parse().unwrap();
        // None of them ends.
        assert!((0..20).all(|id| arrives(&mut limits, id, &quic).is_none()));
        assert_eq!([20, 21].map(|id| arrives(&mut limits, id, &tcp)), [None; 2]);
        assert_eq!(arrives(&mut limits, 22, &tcp), Some(TooMany::OfAddress));
        ends(&mut limits, ConnectionId::new_unchecked(20), &tcp);
        assert_eq!(is_known(&mut limits, 0, &quic), None, "it has the place that was left");
        assert_eq!(is_known(&mut limits, 1, &quic), Some(TooMany::WithinMinute));
    }

    #[test]
    fn forged_handshakes_close_no_way_over_tcp() {
        let mut limits = Behaviour::new(LIMITS, 64, Arc::default());
        let forged = |id: usize| format!("/ip4/198.51.100.{id}/udp/9/quic-v1").parse::<Multiaddr>().unwrap();
        assert!((0..HANDSHAKES_MAX).all(|id| arrives(&mut limits, id, &forged(id)).is_none()));
        assert_eq!(arrives(&mut limits, HANDSHAKES_MAX, &forged(0)), Some(TooMany::Handshakes));
        let tcp: Multiaddr = "/ip4/203.0.113.5/tcp/9".parse().unwrap();
        assert_eq!(arrives(&mut limits, HANDSHAKES_MAX + 1, &tcp), None);
        // One that fails, and one that ends well, make room.
        ends(&mut limits, ConnectionId::new_unchecked(0), &forged(0));
        assert_eq!(is_known(&mut limits, 1, &forged(1)), None);
        let late = [1000, 1001, 1002].map(|id| arrives(&mut limits, id, &forged(0)));
        assert_eq!(late, [None, None, Some(TooMany::Handshakes)]);
    }

    #[test]
    fn seats_take_no_place_of_their_address_and_count_for_its_minute() {
        let limits = AddressLimits { connections: 2, per_minute: 12, loopback: false };
        let seats: Vec<PeerId> = (0..4).map(|_| any_peer()).collect();
        let peers = Arc::<SeatPeers>::default();
        peers.set(seats.iter().copied().collect());
        let mut limits = Behaviour::new(limits, 64, peers);
        let quic: Multiaddr = "/ip4/203.0.113.5/udp/9/quic-v1".parse().unwrap();
        let tcp: Multiaddr = "/ip4/203.0.113.5/tcp/9".parse().unwrap();
        let mut connect = |id: usize, peer: PeerId, remote: &Multiaddr| {
            arrives(&mut limits, id, remote).or_else(|| is_known_as(&mut limits, id, peer, remote))
        };
        // None of them ends.
        for (at, seat) in seats.iter().enumerate() {
            assert_eq!(
                [(2 * at, &quic), (2 * at + 1, &tcp)].map(|(id, to)| connect(id, *seat, to)),
                [None; 2]
            );
        }
        let strangers = [(50, &quic), (51, &tcp)].map(|(id, to)| connect(id, any_peer(), to));
        assert_eq!(strangers, [None; 2], "their places are left");
        assert_eq!(connect(100, any_peer(), &quic), Some(TooMany::OfAddress));
        assert_eq!(connect(101, seats[0], &quic), None, "a seat needs no place");
        assert_eq!(connect(102, seats[1], &tcp), Some(TooMany::OfAddress), "nobody knows yet whose it is");
        assert_eq!(connect(103, seats[2], &quic), None);
        assert_eq!(connect(104, seats[3], &quic), Some(TooMany::WithinMinute));
        // The end of a seat's connection frees no place that it did not have.
        ends(&mut limits, ConnectionId::new_unchecked(1), &tcp);
        assert_eq!(limits.connections.held[&source("203.0.113.5")].open, 2);
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_none_is_refused() {
        let (mut all, now) = (connections(), Instant::now());
        let held = source("203.0.113.5");
        all.open(held, false, now).unwrap();
        for prefix in 0..20_000 {
            let one = Source::V6(prefix);
            all.open(one, false, now).unwrap();
            all.close(one);
        }
        assert!(all.held.len() <= ADDRESSES_MAX && all.held[&held].open == 1);
    }
}
