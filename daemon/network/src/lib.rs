#![doc = include_str!("../README.md")]

mod blob;
mod connections;
mod key;
mod limits;
mod put;
mod streams;
mod swarm;
mod url;
mod wire;

pub use blob::{AlreadyServed, AnyFetcher, PeerFetcher, serve_blobs};
pub use key::{KeyError, NodeKey};
pub use libp2p::PeerId;
pub use limits::{AddressLimits, RefusedConnections};
pub use put::{Admission, PUTS_MAX, PushError, PutServer, push};
pub use streams::{OpenError, Stream};
pub use swarm::{Network, NetworkError, NetworkSettings};
pub use url::{PeerUrl, PeerUrlError};
pub use wire::WireError;

#[cfg(test)]
mod tests;
