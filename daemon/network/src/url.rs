//! The base URL of a peer: `p2p://PEER`, with the address to dial, if any, as its path.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::{PeerId, identity};
use protocol::ensure;
use store::FetchError;
use store::fetch::AddressClass;

const SCHEME: &str = "p2p://";

/// A peer and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUrl {
    pub peer: PeerId,
    /// An IP address with a port of TCP or QUIC. A peer without an address cannot be dialled.
    pub address: Option<Multiaddr>,
}

/// Error of a text that is not a [`PeerUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerUrlError {
    #[error("it has {bytes} characters, more than 256")]
    TooLong { bytes: usize },
    #[error("it does not begin with p2p://")]
    Scheme,
    #[error("{0:?} is not the name of a peer with an ed25519 key")]
    Peer(String),
    #[error("{0:?} is no address of a peer: it needs /ip4/… or /ip6/…, then /tcp/PORT or /udp/PORT/quic-v1")]
    Address(String),
}

impl PeerUrl {
    /// Returns whether a base URL belongs to a peer.
    pub fn is_one(url: &str) -> bool {
        url.starts_with(SCHEME)
    }

    /// Returns the URLs of a peer that listens at `address`: QUIC first.
    pub fn at(peer: PeerId, address: SocketAddr) -> [PeerUrl; 2] {
        let [quic, tcp] = multiaddrs(address);
        [PeerUrl { peer, address: Some(quic) }, PeerUrl { peer, address: Some(tcp) }]
    }

    /// Returns the same peer without an address.
    pub fn without_address(self) -> PeerUrl {
        PeerUrl { address: None, ..self }
    }

    /// Checks that a node may dial the address, as for any other fetch (PROT-13).
    ///
    /// # Errors
    /// [`FetchError::ForbiddenAddress`].
    pub fn judge(&self, allow_private: bool) -> Result<(), FetchError> {
        let address = self.address.iter().flat_map(|address| address.iter()).find_map(ip);
        let Some(address) = address else { return Ok(()) };
        let class = AddressClass::of(address);
        ensure!(class.allowed(allow_private), FetchError::ForbiddenAddress { address, class });
        Ok(())
    }
}

/// Returns the addresses for listening or dialling, with one port for QUIC and TCP.
pub(crate) fn multiaddrs(address: SocketAddr) -> [Multiaddr; 2] {
    let base = || Multiaddr::from(address.ip());
    [
        base().with(Protocol::Udp(address.port())).with(Protocol::QuicV1),
        base().with(Protocol::Tcp(address.port())),
    ]
}

pub(crate) fn ip(part: Protocol<'_>) -> Option<IpAddr> {
    match part {
        Protocol::Ip4(address) => Some(address.into()),
        Protocol::Ip6(address) => Some(address.into()),
        _ => None,
    }
}

fn is_dialled(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let has_ip = parts.next().and_then(ip).is_some();
    let rest: Vec<Protocol<'_>> = parts.collect();
    has_ip
        && match rest[..] {
            [Protocol::Tcp(port)] | [Protocol::Udp(port), Protocol::QuicV1] => port != 0,
            _ => false,
        }
}

impl FromStr for PeerUrl {
    type Err = PeerUrlError;

    fn from_str(text: &str) -> Result<PeerUrl, PeerUrlError> {
        ensure!(text.len() <= 256, PeerUrlError::TooLong { bytes: text.len() });
        let rest = text.strip_prefix(SCHEME).ok_or(PeerUrlError::Scheme)?;
        let (peer, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let named = || PeerUrlError::Peer(peer.to_owned());
        let parsed: PeerId = peer.parse().map_err(|_| named())?;
        ensure!(parsed.to_string() == peer && is_ed25519(&parsed), named());
        let address = match path {
            "" | "/" => None,
            path => {
                let wrong = || PeerUrlError::Address(path.to_owned());
                let address: Multiaddr = path.parse().map_err(|_| wrong())?;
                ensure!(is_dialled(&address), wrong());
                Some(address)
            }
        };
        Ok(PeerUrl { peer: parsed, address })
    }
}

/// Returns whether the peer's name is its ed25519 key, so that only the key proves it.
fn is_ed25519(peer: &PeerId) -> bool {
    let name = peer.to_bytes();
    let key = name.get(2..).map(identity::PublicKey::try_decode_protobuf);
    name.first() == Some(&0)
        && matches!(key, Some(Ok(key)) if key.key_type() == identity::KeyType::Ed25519 && key.to_peer_id() == *peer)
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.peer)?;
        self.address.iter().try_for_each(|address| write!(f, "{address}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";

    #[test]
    fn a_url_names_a_peer_and_an_address_or_none() {
        for path in ["", "/ip4/203.0.113.5/udp/4100/quic-v1", "/ip6/2001:db8::1/tcp/4100"] {
            let text = format!("p2p://{PEER}{path}");
            let url: PeerUrl = text.parse().unwrap();
            assert_eq!((url.to_string(), url.address.is_some()), (text, !path.is_empty()));
        }
        let long = format!("p2p://{PEER}/{}", "x".repeat(256));
        for bad in [
            "https://a.example",
            "p2p://",
            "p2p://somebody",
            &format!("p2p://{PEER}x"),
            &format!("p2p://{PEER}/dns4/a.example/tcp/1"),
            &format!("p2p://{PEER}/ip4/203.0.113.5"),
            &format!("p2p://{PEER}/ip4/203.0.113.5/tcp/0"),
            &format!("p2p://{PEER}/ip4/203.0.113.5/udp/4100"),
            &format!("p2p://{PEER}/ip4/203.0.113.5/tcp/1/p2p/{PEER}/p2p-circuit"),
            &long,
        ] {
            assert!(bad.parse::<PeerUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_judged_as_that_of_a_bucket() {
        let url = |path: &str| format!("p2p://{PEER}{path}").parse::<PeerUrl>().unwrap();
        assert!(url("").judge(false).is_ok() && url("/ip4/8.8.8.8/tcp/1").judge(false).is_ok());
        let home = url("/ip4/192.168.1.1/tcp/1");
        assert!(home.judge(true).is_ok());
        assert!(matches!(home.judge(false), Err(FetchError::ForbiddenAddress { .. })));
        assert!(url("/ip4/224.0.0.1/tcp/1").judge(true).is_err());
    }
}
