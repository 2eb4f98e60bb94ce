//! Limits on incoming connections. A peer with many node keys at one address gets no more slots than the address has.
//! Strangers leave half of the slots to seats. A connection without a stream yields its slot to a new one.
//!
//! A connection over TCP takes its slot when it arrives, one over QUIC after its handshake: before that its address
//! may be forged, and a forger would use up the slots of another address. Handshakes have separate limits, so that
//! forged ones over QUIC cannot block TCP.
//!
//! A connection whose handshake has proved a seat's key takes no slot of its address, because many miners may share a
//! router. It counts towards the rate of its address, and for its seat. The set of seats may change: slots are counted
//! when one is requested, and a connection of a former seat accepts no new streams and ends with its last one.

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
/// Maximum number of concurrent handshakes, for QUIC and TCP each.
const HANDSHAKES_MAX: usize = 128;
/// Maximum number of addresses whose last minute is recorded. Beyond it, all are dropped.
const ADDRESSES_MAX: usize = 4096;
/// Maximum number of connections per peer: one over QUIC and one over TCP, or one from each side.
const PER_PEER_MAX: usize = 2;
/// Time without a stream after which a connection ends if another one needs its slot.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of connections that have yielded their slots and are not closed yet.
const LEAVING_MAX: usize = 16;
/// The same per address. Most close immediately; a peer may delay it by streams whose protocol it does not name.
const LEAVING_PER_ADDRESS_MAX: usize = 4;
/// Number of current handshakes from which an address no longer ends its own connections for a new one: a peer that
/// never completes its handshake must not cost another its slot.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 4;

/// Limits of incoming connections from one address: an IPv4 address, or the first 64 bits of an IPv6 address, which is
/// the range of one customer of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// Maximum number of open connections, including handshakes over TCP and excluding those of seats.
    pub connections: u32,
    /// Maximum number of new connections in any minute, including those of seats.
    pub per_minute: u32,
    /// True if the limits apply to connections from the same machine. All nodes of a localnet share one address.
    pub loopback: bool,
}

impl Default for AddressLimits {
    fn default() -> AddressLimits {
        AddressLimits { connections: 16, per_minute: 128, loopback: false }
    }
}

/// Number of incoming connections that a node refused since it started, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedConnections {
    /// The address had the maximum number of open connections.
    pub address_connections: u64,
    /// The address had the maximum number of new connections within a minute.
    pub address_rate: u64,
    /// Strangers had their maximum number of connections; the other slots are reserved for seats.
    pub strangers: u64,
    /// The node had the maximum number of concurrent handshakes.
    pub handshakes: u64,
    /// The node or the peer had the maximum number of connections.
    pub connections: u64,
}

/// Reason for refusing a connection.
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

/// The times of addresses' connections within the last minute.
struct Minutes {
    /// Maximum number per address, and of recorded times.
    most: usize,
    made: HashMap<Source, VecDeque<Instant>>,
}

impl Minutes {
    /// Checks that the address may open one more.
    fn may_count(&mut self, source: Source, now: Instant) -> Result<(), TooMany> {
        let Some(made) = self.made.get_mut(&source) else { return Ok(()) };
        forget_before(made, now);
        ensure!(made.len() < self.most, TooMany::WithinMinute);
        Ok(())
    }

    /// Counts a new connection.
    fn count(&mut self, source: Source, now: Instant) {
        if ADDRESSES_MAX <= self.made.len() && !self.made.contains_key(&source) {
            self.make_room(now);
        }
        self.made.entry(source).or_default().push_back(now);
    }

    fn make_room(&mut self, now: Instant) {
        self.made.retain(|_, made| {
            forget_before(made, now);
            !made.is_empty()
        });
        if ADDRESSES_MAX <= self.made.len() {
            self.made.clear();
        }
    }
}

fn forget_before(made: &mut VecDeque<Instant>, now: Instant) {
    while made.front().is_some_and(|made| MINUTE <= now.saturating_duration_since(*made)) {
        made.pop_front();
    }
}

/// A connection, from its arrival until it is closed.
struct Connection {
    /// The address of origin, if it is proved and limited.
    source: Option<Source>,
    stage: Stage,
}

enum Stage {
    Handshake { is_proved: bool },
    Established(Established),
}

/// A connection after its handshake.
struct Established {
    peer: PeerId,
    /// True if the peer opened the connection.
    is_incoming: bool,
    handle: ConnectionHandle,
}

/// All connections of a node, and the counts of refused ones.
pub(crate) struct Limits {
    of_address: AddressLimits,
    minutes: Minutes,
    /// Maximum number of incoming connections.
    incoming_max: usize,
    /// The peers for which half of the slots is reserved; `None` for no reservation.
    seats: Option<HashSet<PeerId>>,
    connections: HashMap<ConnectionId, Connection>,
    refused: RefusedConnections,
    gave_way: u64,
}

impl Limits {
    pub fn new(of_address: AddressLimits, incoming_max: usize) -> Limits {
        Limits {
            of_address,
            minutes: Minutes { most: of_address.per_minute as usize, made: HashMap::new() },
            incoming_max,
            seats: None,
            connections: HashMap::new(),
            refused: RefusedConnections::default(),
            gave_way: 0,
        }
    }

    /// Reserves half of the slots for these peers, and no longer counts their connections towards their addresses.
    pub fn reserve_for(&mut self, peers: HashSet<PeerId>) {
        for one in self.all_established() {
            if one.is_incoming && self.is_seat(&one.peer) && !peers.contains(&one.peer) {
                one.handle.usage.take_no_more();
            }
        }
        self.seats = Some(peers);
    }

    pub fn refused(&self) -> RefusedConnections {
        self.refused
    }

    /// Returns the number of connections that ended because others needed their slots.
    pub fn gave_way(&self) -> u64 {
        self.gave_way
    }

    /// Returns the number of connections after their handshakes.
    pub fn established(&self) -> usize {
        self.all_established().count()
    }

    /// Returns a connection to this peer that accepts streams, if there is one.
    pub fn connection(&self, peer: &PeerId) -> Option<ConnectionHandle> {
        self.of_peer(peer).find(|one| one.handle.is_open()).map(|one| one.handle.clone())
    }

    /// Admits an incoming connection. Refusal before the handshake costs the least.
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
        let source = self.source(remote).filter(|_| is_proved);
        if let Some(source) = source {
            self.minutes.may_count(source, now)?;
            self.take_place(source, now)?;
            self.minutes.count(source, now);
        }
        self.connections.insert(id, Connection { source, stage: Stage::Handshake { is_proved } });
        Ok(())
    }

    /// Admits an incoming connection after its handshake.
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
        // A connection over QUIC counts towards its address from now on.
        let source = self.source(remote).filter(|_| !is_proved(remote));
        if let Some(source) = source {
            self.minutes.may_count(source, now)?;
            if !self.is_seat(peer) {
                self.take_place(source, now)?;
            }
        }
        let is_stranger = self.is_stranger(peer);
        if is_stranger && self.incoming_max / 2 <= self.incoming(|peer| self.is_stranger(peer)) {
            ensure!(self.make_way_for(is_stranger, now), TooMany::OfStrangers);
        }
        if self.incoming_max <= self.incoming(|_| true) {
            ensure!(self.make_way_for(is_stranger, now), TooMany::OfNode);
        }
        if let (Some(source), Some(arrived)) = (source, self.connections.get_mut(&id)) {
            arrived.source = Some(source);
            self.minutes.count(source, now);
        }
        Ok(())
    }

    /// Records an outgoing connection.
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

    /// Removes a closed or refused connection.
    pub fn ended(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// Takes a slot of a proved address, if necessary from another connection of that address.
    fn take_place(&mut self, source: Source, now: Instant) -> Result<(), TooMany> {
        let (mut places, mut handshakes) = (0, 0);
        for one in self.connections.values().filter(|one| one.source == Some(source)) {
            match &one.stage {
                Stage::Handshake { .. } => handshakes += 1,
                Stage::Established(one) => places += usize::from(self.has_place_of_address(one)),
            }
        }
        if places + handshakes < self.of_address.connections as usize {
            return Ok(());
        }
        ensure!(handshakes < HANDSHAKES_PER_ADDRESS_MAX, TooMany::OfAddress);
        let idle = self.idle_longest(|of, one| of == Some(source) && self.has_place_of_address(one), now);
        ensure!(self.make_way(idle), TooMany::OfAddress);
        Ok(())
    }

    fn has_place_of_address(&self, one: &Established) -> bool {
        !one.handle.usage.has_left() && !self.is_seat(&one.peer)
    }

    /// Frees a slot: a stranger gets the slot of a stranger; a seat gets that of a seat only if no stranger yields.
    fn make_way_for(&mut self, is_stranger: bool, now: Instant) -> bool {
        let mut idle = self.idle_longest(|_, one| one.is_incoming && self.is_stranger(&one.peer), now);
        if idle.is_none() && !is_stranger {
            idle = self.idle_longest(|_, one| one.is_incoming, now);
        }
        self.make_way(idle)
    }

    /// Ends an idle connection. Returns whether its slot is free now.
    fn make_way(&mut self, idle: Option<ConnectionId>) -> bool {
        let Some(Connection { source, stage: Stage::Established(one) }) =
            idle.and_then(|id| self.connections.get(&id))
        else {
            return false;
        };
        let leaves = |other: &&Connection| matches!(&other.stage, Stage::Established(one) if one.handle.usage.has_left());
        let (mut all, mut from_there) = (0, 0);
        for other in self.connections.values().filter(leaves) {
            all += 1;
            from_there += usize::from(source.is_some() && other.source == *source);
        }
        // A stream may just have been opened.
        if LEAVING_MAX <= all || LEAVING_PER_ADDRESS_MAX <= from_there || !one.handle.usage.give_way() {
            return false;
        }
        self.gave_way += 1;
        true
    }

    /// Returns the one of these connections that has had no stream for longest, if that is long enough.
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

    /// Returns the number of connections from these peers that keep their slots.
    fn incoming(&self, of: impl Fn(&PeerId) -> bool) -> usize {
        let stays = |one: &&Established| one.is_incoming && of(&one.peer) && !one.handle.usage.has_left();
        self.all_established().filter(stays).count()
    }

    fn of_peer(&self, peer: &PeerId) -> impl Iterator<Item = &Established> {
        self.all_established().filter(move |one| one.peer == *peer && one.handle.usage.takes_streams())
    }

    fn is_seat(&self, peer: &PeerId) -> bool {
        self.seats.as_ref().is_some_and(|seats| seats.contains(peer))
    }

    /// Returns whether a peer is not one of those for which slots are reserved.
    pub fn is_stranger(&self, peer: &PeerId) -> bool {
        self.seats.as_ref().is_some_and(|seats| !seats.contains(peer))
    }

    /// Returns the source of a connection; `None` if its address has no limits.
    fn source(&self, remote: &Multiaddr) -> Option<Source> {
        let address = remote.iter().find_map(url::ip)?;
        let is_free = address.to_canonical().is_loopback() && !self.of_address.loopback;
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

    /// Returns the number of recorded connections and addresses.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.connections.len(), self.minutes.made.len()]
    }
}

/// Returns whether a connection's address is proved before the handshake.
fn is_proved(remote: &Multiaddr) -> bool {
    !remote.iter().any(|part| matches!(part, Protocol::Udp(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{FIRST_STREAM, Handler};
    use std::sync::Arc;

    /// Time after which a connection that never had a stream counts as idle.
    const IDLE_AT_FIRST: Duration = FIRST_STREAM.saturating_add(GRACE);
    const LIMITS: AddressLimits = AddressLimits { connections: 2, per_minute: 3, loopback: false };

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
    fn new_connections_are_bounded_in_any_minute() {
        let (mut all, start) = (Minutes { most: 3, made: HashMap::new() }, Instant::now());
        let one = source("2001:db8::1");
        let mut at = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            all.may_count(one, now).map(|()| all.count(one, now))
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

    /// A connection of this number arrives; returns the reason of a refusal.
    fn arrives(limits: &mut Limits, id: usize, remote: &Multiaddr) -> Option<TooMany> {
        let refused = limits.arrives(number(id), remote, Instant::now()).err();
        if refused.is_some() {
            limits.ended(number(id));
        }
        refused
    }

    /// The handshake of a connection ends; returns the connection, or the reason of a refusal.
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

    /// A peer connects over TCP; returns the connection, or the reason of a refusal.
    fn connects(
        limits: &mut Limits,
        id: usize,
        peer: PeerId,
        remote: &Multiaddr,
    ) -> Result<ConnectionHandle, TooMany> {
        arrives(limits, id, remote).map_or(Ok(()), Err)?;
        is_known(limits, id, peer, remote)
    }

    /// Returns a different address for each host.
    fn tcp(host: usize) -> Multiaddr {
        format!("/ip4/203.0.113.{host}/tcp/9").parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn forged_addresses_cost_their_owners_nothing() {
        let mut limits = limits(64, LIMITS);
        let quic: Multiaddr = "/ip4/203.0.113.5/udp/9/quic-v1".parse().unwrap();
        // None of these handshakes ends.
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
        // A failed handshake and a successful one both free a slot.
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
        tokio::time::advance(IDLE_AT_FIRST - Duration::from_millis(1)).await;
        assert_eq!(connects(&mut limits, 2, peer(), &tcp(2)).err(), Some(TooMany::OfStrangers));
        tokio::time::advance(Duration::from_millis(1)).await;
        let third = connects(&mut limits, 3, peer(), &tcp(3)).unwrap();
        assert!(idle.usage.has_left() && !busy.usage.has_left());
        assert_eq!((limits.gave_way(), limits.refused().strangers), (1, 1));
        // It has lost its slot before it is closed, and closing frees no other slot.
        limits.ended(number(1));
        assert_eq!(limits.established(), 2);
        // A new connection may wait longer.
        drop(stream);
        tokio::time::advance(GRACE).await;
        assert!(connects(&mut limits, 4, peer(), &tcp(4)).is_ok());
        assert!(busy.usage.has_left() && !third.usage.has_left());
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
        tokio::time::advance(IDLE_AT_FIRST).await;
        // The node is full, and no stranger is idle.
        assert_eq!(connects(&mut limits, 4, peer(), &tcp(4)).err(), Some(TooMany::OfNode));
        drop(stream);
        tokio::time::advance(IDLE_AT_FIRST).await;
        assert!(connects(&mut limits, 5, seats[0], &tcp(5)).is_ok());
        assert!(stranger.usage.has_left() && of_seats.iter().all(|seat| !seat.usage.has_left()));
        // Without a stranger, a seat yields to a seat.
        limits.ended(number(0));
        let fifth = peer();
        limits.reserve_for(seats.iter().copied().chain([fifth]).collect());
        assert!(connects(&mut limits, 6, fifth, &tcp(6)).is_ok());
        assert_eq!(of_seats.iter().filter(|seat| seat.usage.has_left()).count(), 1);
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
        tokio::time::advance(IDLE_AT_FIRST).await;
        assert!(connects(&mut limits, 3, peer(), &one).is_ok());
        assert!(idle.usage.has_left() && !elsewhere.usage.has_left());
        assert_eq!(connects(&mut limits, 4, peer(), &one).err(), Some(TooMany::OfAddress));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_do_not_close_are_bounded() {
        let mut limits = limits(4, AddressLimits::default());
        let admitted = async |limits: &mut Limits, id: usize| {
            tokio::time::advance(IDLE_AT_FIRST).await;
            connects(limits, id, peer(), &tcp(id)).is_ok()
        };
        for id in 0..4 + LEAVING_MAX {
            assert!(admitted(&mut limits, id).await, "{id}");
        }
        assert!(!admitted(&mut limits, 100).await);
        assert_eq!(limits.established(), 4 + LEAVING_MAX);
        let closed = limits.connections.iter().find_map(|(id, connection)| match &connection.stage {
            Stage::Established(one) if one.handle.usage.has_left() => Some(*id),
            _ => None,
        });
        limits.ended(closed.unwrap());
        assert!(admitted(&mut limits, 101).await);
    }

    #[tokio::test(start_paused = true)]
    async fn seats_take_no_place_of_their_address_and_count_for_its_minute() {
        let mut limits = limits(64, AddressLimits { connections: 2, per_minute: 12, loopback: false });
        let seats: Vec<PeerId> = (0..4).map(|_| peer()).collect();
        limits.reserve_for(seats.iter().copied().collect());
        let [quic, tcp] = ["udp/9/quic-v1", "tcp/9"]
            .map(|transport| format!("/ip4/203.0.113.5/{transport}").parse::<Multiaddr>().unwrap());
        let mut streams = Vec::new();
        let mut connect = |limits: &mut Limits, id: usize, peer: PeerId, remote: &Multiaddr| {
            let connected = connects(limits, id, peer, remote);
            // None of them is idle.
            streams.extend(connected.as_ref().ok().and_then(|one| one.usage.begin_stream()));
            connected.err()
        };
        for (at, seat) in seats.iter().enumerate() {
            let both = [(2 * at, &quic), (2 * at + 1, &tcp)];
            assert_eq!(both.map(|(id, to)| connect(&mut limits, id, *seat, to)), [None; 2]);
        }
        let strangers = [(50, &quic), (51, &tcp)].map(|(id, to)| connect(&mut limits, id, peer(), to));
        assert_eq!(strangers, [None; 2], "their places are left");
        assert_eq!(connect(&mut limits, 100, peer(), &quic), Some(TooMany::OfAddress));
        assert_eq!(connect(&mut limits, 101, seats[1], &tcp), Some(TooMany::OfAddress), "whose is it?");
        limits.ended(number(0));
        limits.ended(number(2));
        assert_eq!(connect(&mut limits, 102, seats[0], &quic), None, "a seat needs no place");
        assert_eq!(connect(&mut limits, 103, seats[1], &quic), None);
        limits.ended(number(4));
        assert_eq!(connect(&mut limits, 104, seats[2], &quic), Some(TooMany::WithinMinute));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_no_seat_any_more_counts_as_a_stranger_and_gets_no_stream() {
        let mut limits = limits(4, LIMITS);
        let seat = peer();
        limits.reserve_for([seat].into());
        let held = connects(&mut limits, 0, seat, &tcp(5)).unwrap();
        let stream = held.usage.begin_stream().unwrap();
        limits.reserve_for(HashSet::new());
        assert!(held.usage.begin_stream().is_none() && limits.connection(&seat).is_none());
        assert!(connects(&mut limits, 1, peer(), &tcp(5)).is_ok());
        assert_eq!(connects(&mut limits, 2, peer(), &tcp(5)).err(), Some(TooMany::OfAddress));
        assert_eq!(connects(&mut limits, 3, peer(), &tcp(6)).err(), Some(TooMany::OfStrangers));
        // Without a stream it has no slot.
        drop(stream);
        assert!(connects(&mut limits, 4, seat, &tcp(6)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_in_handshakes_pushes_nobody_out() {
        let mut limits = limits(64, AddressLimits { connections: 8, per_minute: 100, loopback: false });
        let idle: Vec<_> = (0..8).map(|id| connects(&mut limits, id, peer(), &tcp(5)).unwrap()).collect();
        tokio::time::advance(IDLE_AT_FIRST).await;
        let refused = (8..20).filter(|id| arrives(&mut limits, *id, &tcp(5)).is_some()).count();
        assert_eq!(refused, 12 - HANDSHAKES_PER_ADDRESS_MAX);
        let left = idle.iter().filter(|one| one.usage.has_left()).count();
        assert_eq!(left, HANDSHAKES_PER_ADDRESS_MAX);
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_none_is_refused() {
        let (mut all, now) = (Minutes { most: 1, made: HashMap::new() }, Instant::now());
        for prefix in 0..20_000 {
            let one = Source::V6(prefix);
            assert_eq!(all.may_count(one, now), Ok(()));
            all.count(one, now);
        }
        assert!(all.made.len() <= ADDRESSES_MAX);
    }
}
