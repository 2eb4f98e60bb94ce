//! The behaviour of the swarm for each connection: its admission, and the handler of its streams.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Multiaddr;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenFailure, NetworkBehaviour, ToSwarm,
};
use tokio::time::Instant;

use crate::limits::{Limits, TooMany};
use crate::streams::{ConnectionHandle, Handler, Protocols};

/// The connections of a node, shared by its handle and its swarm.
#[derive(Clone)]
pub(crate) struct Connections {
    pub limits: Arc<Mutex<Limits>>,
    pub protocols: Arc<Protocols>,
}

impl Connections {
    pub fn new(limits: Limits) -> Connections {
        Connections { limits: Arc::new(Mutex::new(limits)), protocols: Arc::default() }
    }

    pub fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(
        &self,
        peer: PeerId,
        ask: impl FnOnce(&mut Limits, ConnectionHandle, Instant) -> Result<(), TooMany>,
    ) -> Result<Handler, ConnectionDenied> {
        let (handler, handle) = Handler::new(peer, self.protocols.clone());
        ask(&mut self.limits(), handle, Instant::now()).map_err(ConnectionDenied::new)?;
        Ok(handler)
    }
}

impl NetworkBehaviour for Connections {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.limits().arrives(id, remote, Instant::now()).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        self.admit(peer, |limits, handle, now| limits.is_known(id, peer, remote, handle, now))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        self.admit(peer, |limits, handle, _| limits.has_connected(id, peer, handle))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
            // A refused connection ends here too.
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.limits().ended(connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, Infallible>> {
        Poll::Pending
    }
}
