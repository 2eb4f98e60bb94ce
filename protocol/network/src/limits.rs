//! Limits on the connections from others: a peer with many node keys at one address takes no more than that address may,
//! strangers leave half of the places to seats, and a connection without a stream gives its place to one that arrives.
//!
//! A connection over TCP takes its place when it arrives, one over QUIC once its handshake is done: until then its address
//! may be forged, and a forger would use up what belongs to another. Handshakes are bounded apart, so that forged ones
//! over QUIC close no way over TCP.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::swarm::ConnectionId;
use protocol::ensure;
use tokio::time::Instant;

use crate::streams::ConnectionHandle;
use crate::url;

const MINUTE: Duration = Duration::from_secs(60);
/// Handshakes at once, over QUIC and over TCP each.
const HANDSHAKES_MAX: usize = 128;
/// Addresses that are remembered. Beyond it, those without a connection are forgotten.
const ADDRESSES_MAX: usize = 4096;
/// One of QUIC and one of TCP, or one from each side.
const PER_PEER_MAX: usize = 2;
/// A connection that has had no stream for so long ends if another one needs its place.
const GRACE: Duration = Duration::from_secs(1);
/// Connections that have given their places away and are not closed yet. Most close at once; a peer may delay it by
/// streams that it opens without naming a protocol.
const LEAVING_MAX: usize = 16;

/// How many connections a node takes from one address: an IPv4 address, or the first 64 bits of an IPv6 address, which
/// are what one customer of a provider has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// At once, with those in handshakes over TCP.
    pub connections: u32,
    /// In any minute.
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
struct OfAddress {
    open: u32,
    /// When those of the last minute were made. Never more than the limit.
    made: VecDeque<Instant>,
}

impl OfAddress {
    fn forget_before(&mut self, now: Instant) {
        while self.made.front().is_some_and(|made| MINUTE <= now.saturating_duration_since(*made)) {
            self.made.pop_front();
        }
    }
}

/// The connections of all addresses.
struct Addresses {
    limits: AddressLimits,
    held: HashMap<Source, OfAddress>,
}

impl Addresses {
    /// Takes a place for a connection, which counts as new.
    fn open(&mut self, source: Source, now: Instant) -> Result<(), TooMany> {
        if ADDRESSES_MAX <= self.held.len() && !self.held.contains_key(&source) {
            self.make_room(now);
        }
        let AddressLimits { connections, per_minute, .. } = self.limits;
        let held = self.held.entry(source).or_default();
        held.forget_before(now);
        ensure!(held.made.len() < per_minute as usize, TooMany::WithinMinute);
        ensure!(held.open < connections, TooMany::OfAddress);
        held.open += 1;
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

/// A connection, from its arrival until it is closed.
struct Connection {
    /// The address whose place it has, if its address has limits.
    source: Option<Source>,
    stage: Stage,
}

enum Stage {
    Handshake { is_proved: bool },
    Established(Established),
}

/// A connection past its handshake.
struct Established {
    peer: PeerId,
    /// Whether it came from the peer, not from this node.
    is_incoming: bool,
    handle: ConnectionHandle,
}

/// All connections of a node, and which are refused.
pub(crate) struct Limits {
    addresses: Addresses,
    /// Connections from others, at most.
    incoming_max: usize,
    /// The peers for which half of the places is kept; `None`: none is kept.
    seats: Option<HashSet<PeerId>>,
    connections: HashMap<ConnectionId, Connection>,
    refused: RefusedConnections,
    gave_way: u64,
}

impl Limits {
    pub fn new(addresses: AddressLimits, incoming_max: usize) -> Limits {
        Limits {
            addresses: Addresses { limits: addresses, held: HashMap::new() },
            incoming_max,
            seats: None,
            connections: HashMap::new(),
            refused: RefusedConnections::default(),
            gave_way: 0,
        }
    }

    /// From now on keeps half of the places for these peers.
    pub fn reserve_for(&mut self, peers: HashSet<PeerId>) {
        self.seats = Some(peers);
    }

    pub fn refused(&self) -> RefusedConnections {
        self.refused
    }

    /// The connections that ended because others needed their places.
    pub fn gave_way(&self) -> u64 {
        self.gave_way
    }

    /// The connections past their handshakes.
    pub fn established(&self) -> usize {
        self.all_established().count()
    }

    /// A connection to this peer, if there is one.
    pub fn connection(&self, peer: &PeerId) -> Option<ConnectionHandle> {
        self.of_peer(peer).next().map(|one| one.handle.clone())
    }

    /// A connection from another node arrives. Refused before its handshake, it costs the least.
    pub fn arrives(&mut self, id: ConnectionId, remote: &Multiaddr, now: Instant) -> Result<(), TooMany> {
        let admitted = self.begin_handshake(id, remote, now);
        admitted.inspect_err(|reason| self.count(*reason))
    }

    fn begin_handshake(&mut self, id: ConnectionId, remote: &Multiaddr, now: Instant) -> Result<(), TooMany> {
        let is_full = self.incoming_max <= self.incoming(|_| true);
        ensure!(!is_full || self.idle_longest(|_, one| one.is_incoming, now).is_some(), TooMany::OfNode);
        let is_proved = is_proved(remote);
        let same = |one: &&Connection| matches!(one.stage, Stage::Handshake { is_proved: other } if other == is_proved);
        let handshakes = self.connections.values().filter(same).count();
        ensure!(handshakes < HANDSHAKES_MAX, TooMany::Handshakes);
        let source = if is_proved { self.admit(remote, now)? } else { None };
        self.connections.insert(id, Connection { source, stage: Stage::Handshake { is_proved } });
        Ok(())
    }

    /// The handshake of a connection from another node is done.
    pub fn is_known(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
        handle: ConnectionHandle,
        now: Instant,
    ) -> Result<(), TooMany> {
        let admitted = self.admit_known(id, &peer, remote, now);
        admitted.inspect_err(|reason| self.count(*reason))?;
        let source = self.connections.remove(&id).and_then(|arrived| arrived.source);
        let stage = Stage::Established(Established { peer, is_incoming: true, handle });
        self.connections.insert(id, Connection { source, stage });
        Ok(())
    }

    fn admit_known(
        &mut self,
        id: ConnectionId,
        peer: &PeerId,
        remote: &Multiaddr,
        now: Instant,
    ) -> Result<(), TooMany> {
        ensure!(self.of_peer(peer).count() < PER_PEER_MAX, TooMany::OfNode);
        if !is_proved(remote) {
            let source = self.admit(remote, now)?;
            if let Some(arrived) = self.connections.get_mut(&id) {
                arrived.source = source;
            }
        }
        let is_stranger = self.is_stranger(peer);
        if is_stranger && self.incoming_max / 2 <= self.incoming(|peer| self.is_stranger(peer)) {
            ensure!(self.make_way_for(is_stranger, now), TooMany::OfStrangers);
        }
        if self.incoming_max <= self.incoming(|_| true) {
            ensure!(self.make_way_for(is_stranger, now), TooMany::OfNode);
        }
        Ok(())
    }

    /// This node has connected to another.
    pub fn has_connected(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        handle: ConnectionHandle,
    ) -> Result<(), TooMany> {
        ensure!(self.of_peer(&peer).count() < PER_PEER_MAX, TooMany::OfNode);
        let stage = Stage::Established(Established { peer, is_incoming: false, handle });
        self.connections.insert(id, Connection { source: None, stage });
        Ok(())
    }

    /// A connection is closed, or was refused.
    pub fn ended(&mut self, id: ConnectionId) {
        if let Some(Connection { source: Some(source), .. }) = self.connections.remove(&id) {
            self.addresses.close(source);
        }
    }

    /// Takes a place of a proved address, if need be that of another connection from there.
    fn admit(&mut self, remote: &Multiaddr, now: Instant) -> Result<Option<Source>, TooMany> {
        let Some(source) = self.source(remote) else { return Ok(None) };
        let mut opened = self.addresses.open(source, now);
        if opened == Err(TooMany::OfAddress) {
            let idle = self.idle_longest(|of, _| of == Some(source), now);
            if self.make_way(idle) {
                opened = self.addresses.open(source, now);
            }
        }
        opened.map(|()| Some(source))
    }

    /// A stranger gets the place of a stranger, a seat that of a seat only if no stranger gives way.
    fn make_way_for(&mut self, is_stranger: bool, now: Instant) -> bool {
        let mut idle = self.idle_longest(|_, one| one.is_incoming && self.is_stranger(&one.peer), now);
        if idle.is_none() && !is_stranger {
            idle = self.idle_longest(|_, one| one.is_incoming, now);
        }
        self.make_way(idle)
    }

    /// Ends an idle connection. Returns whether its place is free now.
    fn make_way(&mut self, idle: Option<ConnectionId>) -> bool {
        let leaving = self.all_established().filter(|one| one.handle.usage.gives_way()).count();
        let idle = idle.filter(|_| leaving < LEAVING_MAX).and_then(|id| self.connections.get_mut(&id));
        let Some(Connection { source, stage: Stage::Established(one) }) = idle else { return false };
        // A stream may have been opened just now.
        if !one.handle.usage.give_way() {
            return false;
        }
        if let Some(source) = source.take() {
            self.addresses.close(source);
        }
        self.gave_way += 1;
        true
    }

    /// The one of these connections that has had no stream for longest, if that is long enough.
    fn idle_longest(
        &self,
        may: impl Fn(Option<Source>, &Established) -> bool,
        now: Instant,
    ) -> Option<ConnectionId> {
        let idle = self.connections.iter().filter_map(|(id, connection)| match &connection.stage {
            Stage::Established(one) if may(connection.source, one) => {
                Some((one.handle.usage.idle_for(now)?, *id))
            }
            _ => None,
        });
        let (longest, id) = idle.max_by_key(|(idle, _)| *idle)?;
        (GRACE <= longest).then_some(id)
    }

    fn all_established(&self) -> impl Iterator<Item = &Established> {
        self.connections.values().filter_map(|connection| match &connection.stage {
            Stage::Established(one) => Some(one),
            Stage::Handshake { .. } => None,
        })
    }

    /// Connections from these peers that keep their places.
    fn incoming(&self, of: impl Fn(&PeerId) -> bool) -> usize {
        let stays = |one: &&Established| one.is_incoming && of(&one.peer) && !one.handle.usage.gives_way();
        self.all_established().filter(stays).count()
    }

    fn of_peer(&self, peer: &PeerId) -> impl Iterator<Item = &Established> {
        self.all_established().filter(move |one| one.peer == *peer && !one.handle.usage.gives_way())
    }

    fn is_stranger(&self, peer: &PeerId) -> bool {
        self.seats.as_ref().is_some_and(|seats| !seats.contains(peer))
    }

    /// Where a connection comes from; `None` if its address has no limits.
    fn source(&self, remote: &Multiaddr) -> Option<Source> {
        let address = remote.iter().find_map(url::ip)?;
        let is_free = address.to_canonical().is_loopback() && !self.addresses.limits.loopback;
        (!is_free).then(|| Source::of(address))
    }

    fn count(&mut self, reason: TooMany) {
        let RefusedConnections { address_connections, address_rate, strangers, handshakes, connections } =
            &mut self.refused;
        let counter = match reason {
            TooMany::OfAddress => address_connections,
            TooMany::WithinMinute => address_rate,
            TooMany::OfStrangers => strangers,
            TooMany::Handshakes => handshakes,
            TooMany::OfNode => connections,
        };
        *counter += 1;
    }

    /// What is remembered: of connections, and of addresses.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.connections.len(), self.addresses.held.len()]
    }
}

/// Whether the address of a connection is known to be its peer's before the handshake.
fn is_proved(remote: &Multiaddr) -> bool {
    !remote.iter().any(|part| matches!(part, Protocol::Udp(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Handler;
    use std::sync::Arc;

    const LIMITS: AddressLimits = AddressLimits { connections: 2, per_minute: 3, loopback: false };

    fn addresses() -> Addresses {
        Addresses { limits: LIMITS, held: HashMap::new() }
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
        let (mut all, now) = (addresses(), Instant::now());
        let (one, other) = (source("203.0.113.5"), source("203.0.113.6"));
        assert_eq!([all.open(one, now), all.open(one, now)], [Ok(()); 2]);
        assert_eq!(all.open(one, now), Err(TooMany::OfAddress));
        assert_eq!(all.open(other, now), Ok(()), "others are not affected");
        all.close(one);
        assert_eq!(all.open(one, now), Ok(()));
    }

    #[test]
    fn new_connections_are_bounded_in_any_minute() {
        let (mut all, start) = (addresses(), Instant::now());
        let one = source("2001:db8::1");
        let mut at = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let made = all.open(one, now);
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

    fn limits(incoming_max: usize, addresses: AddressLimits) -> Limits {
        Limits::new(addresses, incoming_max)
    }

    fn number(id: usize) -> ConnectionId {
        ConnectionId::new_unchecked(id)
    }

    fn peer() -> PeerId {
        crate::NodeKey::generate().unwrap().peer()
    }

    /// A connection of this number arrives; how it was refused.
    fn arrives(limits: &mut Limits, id: usize, remote: &Multiaddr) -> Option<TooMany> {
        let refused = limits.arrives(number(id), remote, Instant::now()).err();
        if refused.is_some() {
            limits.ended(number(id));
        }
        refused
    }

    /// Its handshake is done: the connection, or how it was refused.
    fn is_known(
        limits: &mut Limits,
        id: usize,
        peer: PeerId,
        remote: &Multiaddr,
    ) -> Result<ConnectionHandle, TooMany> {
        let (_, handle) = Handler::new(peer, Arc::default());
        let known = limits.is_known(number(id), peer, remote, handle.clone(), Instant::now());
        if known.is_err() {
            limits.ended(number(id));
        }
        known.map(|()| handle)
    }

    /// A connection of this peer over TCP, and how it was refused.
    fn connects(
        limits: &mut Limits,
        id: usize,
        peer: PeerId,
        remote: &Multiaddr,
    ) -> Result<ConnectionHandle, TooMany> {
        arrives(limits, id, remote).map_or(Ok(()), Err)?;
        is_known(limits, id, peer, remote)
    }

    /// Of another address each.
    fn tcp(host: usize) -> Multiaddr {
        format!("/ip4/203.0.113.{host}/tcp/9").parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn forged_addresses_cost_their_owners_nothing() {
        let mut limits = limits(64, LIMITS);
        let quic: Multiaddr = "/ip4/203.0.113.5/udp/9/quic-v1".parse().unwrap();
        // None of them ends.
        assert!((0..20).all(|id| arrives(&mut limits, id, &quic).is_none()));
        assert_eq!([20, 21].map(|id| arrives(&mut limits, id, &tcp(5))), [None; 2]);
        assert_eq!(arrives(&mut limits, 22, &tcp(5)), Some(TooMany::OfAddress));
        limits.ended(number(20));
        assert!(is_known(&mut limits, 0, peer(), &quic).is_ok(), "it has the place that was left");
        assert_eq!(is_known(&mut limits, 1, peer(), &quic).err(), Some(TooMany::WithinMinute));
    }

    #[tokio::test(start_paused = true)]
    async fn forged_handshakes_close_no_way_over_tcp() {
        let mut limits = limits(64, LIMITS);
        let forged = |id: usize| format!("/ip4/198.51.100.{id}/udp/9/quic-v1").parse::<Multiaddr>().unwrap();
        assert!((0..HANDSHAKES_MAX).all(|id| arrives(&mut limits, id, &forged(id)).is_none()));
        assert_eq!(arrives(&mut limits, HANDSHAKES_MAX, &forged(0)), Some(TooMany::Handshakes));
        assert_eq!(arrives(&mut limits, HANDSHAKES_MAX + 1, &tcp(5)), None);
        // One that fails, and one that ends well, make room.
        limits.ended(number(0));
        assert!(is_known(&mut limits, 1, peer(), &forged(1)).is_ok());
        let late = [1000, 1001, 1002].map(|id| arrives(&mut limits, id, &forged(0)));
        assert_eq!(late, [None, None, Some(TooMany::Handshakes)]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_connections_without_a_stream_the_one_idle_longest_gives_way_after_a_second() {
        let mut limits = limits(4, AddressLimits::default());
        limits.reserve_for(HashSet::new());
        let busy = connects(&mut limits, 0, peer(), &tcp(0)).unwrap();
        let stream = busy.usage.begin_stream().unwrap();
        let idle = connects(&mut limits, 1, peer(), &tcp(1)).unwrap();
        tokio::time::advance(GRACE - Duration::from_millis(1)).await;
        assert_eq!(connects(&mut limits, 2, peer(), &tcp(2)).err(), Some(TooMany::OfStrangers));
        tokio::time::advance(Duration::from_millis(1)).await;
        let third = connects(&mut limits, 3, peer(), &tcp(3)).unwrap();
        assert!(idle.usage.gives_way() && !busy.usage.gives_way());
        assert_eq!((limits.gave_way(), limits.refused().strangers), (1, 1));
        // It has no place any more before it is closed, and what closes it takes none away.
        limits.ended(number(1));
        assert_eq!((limits.established(), limits.addresses.held[&source("203.0.113.1")].open), (2, 0));
        // One that has become idle is idle for less long than one that never had a stream.
        drop(stream);
        tokio::time::advance(2 * GRACE).await;
        assert!(connects(&mut limits, 4, peer(), &tcp(4)).is_ok());
        assert!(third.usage.gives_way() ^ busy.usage.gives_way());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_takes_no_place_from_a_seat_and_a_seat_takes_it_from_a_stranger_first() {
        let mut limits = limits(4, AddressLimits::default());
        let seats: Vec<PeerId> = (0..4).map(|_| peer()).collect();
        limits.reserve_for(seats.iter().copied().collect());
        let stranger = connects(&mut limits, 0, peer(), &tcp(0)).unwrap();
        let stream = stranger.usage.begin_stream().unwrap();
        let of_seats: Vec<_> =
            (1..4).map(|id| connects(&mut limits, id, seats[id], &tcp(id)).unwrap()).collect();
        tokio::time::advance(GRACE).await;
        // The node is full: of strangers none is idle.
        assert_eq!(connects(&mut limits, 4, peer(), &tcp(4)).err(), Some(TooMany::OfNode));
        drop(stream);
        tokio::time::advance(GRACE).await;
        assert!(connects(&mut limits, 5, seats[0], &tcp(5)).is_ok());
        assert!(stranger.usage.gives_way() && of_seats.iter().all(|seat| !seat.usage.gives_way()));
        // Without a stranger, a seat gives way to a seat.
        limits.ended(number(0));
        let fifth = peer();
        limits.reserve_for(seats.iter().copied().chain([fifth]).collect());
        assert!(connects(&mut limits, 6, fifth, &tcp(6)).is_ok());
        assert_eq!(of_seats.iter().filter(|seat| seat.usage.gives_way()).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_gives_its_idle_places_to_its_own_new_connections() {
        let addresses = AddressLimits { per_minute: 100, ..LIMITS };
        let mut limits = limits(64, addresses);
        let [one, other] = [tcp(5), tcp(6)];
        let idle = connects(&mut limits, 0, peer(), &one).unwrap();
        let busy = connects(&mut limits, 1, peer(), &one).unwrap();
        let _stream = busy.usage.begin_stream().unwrap();
        let elsewhere = connects(&mut limits, 2, peer(), &other).unwrap();
        tokio::time::advance(GRACE).await;
        assert!(connects(&mut limits, 3, peer(), &one).is_ok());
        assert!(idle.usage.gives_way() && !elsewhere.usage.gives_way());
        assert_eq!(connects(&mut limits, 4, peer(), &one).err(), Some(TooMany::OfAddress));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_do_not_close_are_bounded() {
        let mut limits = limits(4, AddressLimits::default());
        let admitted = async |limits: &mut Limits, id: usize| {
            tokio::time::advance(GRACE).await;
            connects(limits, id, peer(), &tcp(id)).is_ok()
        };
        for id in 0..4 + LEAVING_MAX {
            assert!(admitted(&mut limits, id).await, "{id}");
        }
        assert!(!admitted(&mut limits, 100).await);
        assert_eq!(limits.established(), 4 + LEAVING_MAX);
        let closed = limits.connections.iter().find_map(|(id, connection)| match &connection.stage {
            Stage::Established(one) if one.handle.usage.gives_way() => Some(*id),
            _ => None,
        });
        limits.ended(closed.unwrap());
        assert!(admitted(&mut limits, 101).await);
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_none_is_refused() {
        let (mut all, now) = (addresses(), Instant::now());
        let held = source("203.0.113.5");
        all.open(held, now).unwrap();
        for prefix in 0..20_000 {
            let one = Source::V6(prefix);
            all.open(one, now).unwrap();
            all.close(one);
        }
        assert!(all.held.len() <= ADDRESSES_MAX && all.held[&held].open == 1);
    }
}
