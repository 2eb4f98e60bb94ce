//! Connection of ranks: each proves that it has the seat's secret; a rank that does not fit is refused with the
//! reason.
//!
//! Rank 0 listens. A rank that connects gets a challenge and answers with its identity ([`Hello`]). Once all are
//! connected, rank 0 sends each the addresses of the others, and they connect in pairs in the same way. Every message
//! is authenticated by the secret and both sides' random numbers. Later traffic on the connections is neither
//! encrypted nor authenticated: use a private network.

use super::link::{TcpLink, keep_alive};
use crate::command::Process;
use nn::{
    collective::{Link, Mesh},
    nccl::{NcclError, UniqueId},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    time::{Duration, Instant},
};

/// The first bytes that both sides send; the last one is the version.
const MAGIC: &[u8; 8] = b"mtl-rnk\x03";
/// Maximum length of a message in bytes: the addresses of all ranks fit.
const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Time that a new connection has to send its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Interval between two checks for a connection.
const LOOK: Duration = Duration::from_millis(20);

/// Identity of this process, which the others check.
#[derive(Clone)]
pub struct Identity {
    pub rank: usize,
    pub ranks: usize,
    pub secret: [u8; 32],
    /// The release, and the digest of the program's file.
    pub version: String,
    pub build: String,
    /// Digest of the settings that the ranks share.
    pub settings: String,
    /// The kind of its device, with the engine and its precision.
    pub device: String,
}

/// Identity of a connecting rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    rank: usize,
    ranks: usize,
    version: String,
    build: String,
    settings: String,
    device: String,
    /// Port on which it listens for ranks with higher numbers.
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    /// All are connected. Sent by rank 0: the addresses of the others, from rank 1 on, and the id of the NCCL
    /// communicator that all GPUs join, if they exchange by it.
    Welcome {
        peers: Vec<SocketAddr>,
        nccl: Option<Vec<u8>>,
    },
    Refused {
        why: String,
    },
}

/// Reason why ranks do not connect.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error("could not listen at {address} for the other ranks: set rank_address under [train]")]
    Listen { address: String, source: io::Error },
    #[error("could not start rank {rank}")]
    Start { rank: usize, source: io::Error },
    #[error("rank {rank} ended before it was connected; {output}")]
    Ended { rank: usize, output: String },
    #[error(
        "rank {missing} did not connect within {seconds} s ({connected} of {ranks} ranks are there): look at its log, or raise rank_start_seconds under [train]"
    )]
    Missing { missing: usize, connected: usize, ranks: usize, seconds: u64 },
    #[error("{0}")]
    Refuses(String),
    #[error("rank 0 at {address} refused this rank: {why}")]
    Refused { address: String, why: String },
    #[error(
        "rank 0 at {address} has another secret: give all ranks the same METTLE_RANK_SECRET or rank_secret_file"
    )]
    Secret { address: String },
    #[error(
        "rank 0 could not be reached at {address} within {seconds} s: is it running, and is that its address?"
    )]
    Unreachable { address: String, seconds: u64, source: io::Error },
    #[error("{peer} is no rank of this release")]
    Foreign { peer: String },
    #[error("the connection to {peer} broke before all ranks had met")]
    Broken { peer: String, source: io::Error },
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Returns the reason for which a rank is refused, if there is one. `taken` returns whether a rank is connected
/// already.
fn refusal(own: &Identity, hello: &Hello, taken: impl Fn(usize) -> bool) -> Option<String> {
    let Hello { rank, ranks, version, build, settings, device, .. } = hello;
    let me = own.rank;
    let short =
        |digest: &str| -> String { digest.chars().filter(char::is_ascii_alphanumeric).take(16).collect() };
    if *ranks != own.ranks {
        return Some(format!("rank {rank} was started as one of {ranks}, rank {me} as one of {}", own.ranks));
    }
    if *rank == 0 || own.ranks <= *rank {
        return Some(format!("there is no rank {rank} to connect: the ranks are 0 to {}", own.ranks - 1));
    }
    if (version, build) != (&own.version, &own.build) {
        let (version, build) = (short(version), short(build));
        return Some(format!(
            "rank {rank} is of another build: version {version} ({build}), rank {me} has {} ({}): start the same program everywhere",
            short(&own.version),
            short(&own.build)
        ));
    }
    if *device != own.device {
        let device: String = device.chars().filter(|c| !c.is_control()).take(60).collect();
        return Some(format!(
            "rank {rank} computes on {device}, rank {me} on {}: give all ranks the same device, engine and precision",
            own.device
        ));
    }
    if *settings != own.settings {
        return Some(format!(
            "rank {rank} has settings digest {}, rank {me} has {}: give all ranks the same settings file and flags",
            short(settings),
            short(&own.settings)
        ));
    }
    taken(*rank).then(|| format!("rank {rank} is there twice: give every process a rank of its own"))
}

/// One side of a connection during authentication.
struct Handshake {
    stream: TcpStream,
    secret: [u8; 32],
    /// Random numbers of the accepting and the connecting side.
    nonces: [[u8; 32]; 2],
}

impl Handshake {
    /// Accepts a connection.
    fn accept(stream: TcpStream, secret: [u8; 32]) -> Result<Handshake, RankError> {
        let peer = peer_of(&stream);
        let broken = |source| RankError::Broken { peer: peer.clone(), source };
        stream.set_nonblocking(false).map_err(broken)?;
        stream.set_write_timeout(Some(HELLO_WITHIN)).map_err(broken)?;
        stream.set_read_timeout(Some(HELLO_WITHIN)).map_err(broken)?;
        let mut handshake = Handshake { stream, secret, nonces: [nonce()?, [0; 32]] };
        (&handshake.stream).write_all(&[&MAGIC[..], &handshake.nonces[0]].concat()).map_err(broken)?;
        handshake.nonces[1] = read_nonce(&handshake.stream)?;
        Ok(handshake)
    }

    /// Opens a connection. Rank 0 may answer late: it opens the seat first.
    fn connect(stream: TcpStream, secret: [u8; 32]) -> Result<Handshake, RankError> {
        let peer = peer_of(&stream);
        let broken = |source| RankError::Broken { peer: peer.clone(), source };
        keep_alive(&stream).map_err(broken)?;
        stream.set_read_timeout(None).map_err(broken)?;
        stream.set_write_timeout(Some(HELLO_WITHIN)).map_err(broken)?;
        let theirs = read_nonce(&stream)?;
        let own = nonce()?;
        (&stream).write_all(&[&MAGIC[..], &own].concat()).map_err(broken)?;
        Ok(Handshake { stream, secret, nonces: [theirs, own] })
    }

    fn mac(&self, label: &[u8], body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(label).update(&self.nonces[0]).update(&self.nonces[1]).update(body);
        hasher.finalize()
    }

    fn send<T: Serialize>(&self, label: &[u8], message: &T) -> Result<(), RankError> {
        let body = serde_json::to_vec(message).expect("a message is numbers and text");
        let length = u32::try_from(body.len()).expect("it is far shorter");
        let bytes = [&length.to_le_bytes()[..], &body, self.mac(label, &body).as_bytes()].concat();
        let sent = (&self.stream).write_all(&bytes);
        sent.map_err(|source| RankError::Broken { peer: peer_of(&self.stream), source })
    }

    /// Receives a message; `None` if the other side has another secret.
    fn receive<T: DeserializeOwned>(&self, label: &[u8]) -> Result<Option<T>, RankError> {
        let broken = |source| RankError::Broken { peer: peer_of(&self.stream), source };
        let mut length = [0; 4];
        (&self.stream).read_exact(&mut length).map_err(broken)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        let foreign = || RankError::Foreign { peer: peer_of(&self.stream) };
        if MESSAGE_BYTES_MAX < length {
            return Err(foreign());
        }
        let mut bytes = vec![0; length + 32];
        (&self.stream).read_exact(&mut bytes).map_err(broken)?;
        let (body, mac) = bytes.split_at(length);
        let mac: [u8; 32] = mac.try_into().expect("32 bytes are left");
        if self.mac(label, body) != blake3::Hash::from_bytes(mac) {
            return Ok(None);
        }
        serde_json::from_slice(body).map(Some).map_err(|_| foreign())
    }
}

fn nonce() -> Result<[u8; 32], RankError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(RankError::Random)?;
    Ok(nonce)
}

fn read_nonce(mut stream: &TcpStream) -> Result<[u8; 32], RankError> {
    let peer = peer_of(stream);
    let (mut magic, mut nonce) = ([0; 8], [0; 32]);
    let read = stream.read_exact(&mut magic).and_then(|()| stream.read_exact(&mut nonce));
    read.map_err(|source| RankError::Broken { peer: peer.clone(), source })?;
    if &magic == MAGIC { Ok(nonce) } else { Err(RankError::Foreign { peer }) }
}

fn peer_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "another rank".into(), |address| address.to_string())
}

/// Accepts the connections of the ranks in `expected` until `until`. `look` can end the wait early.
fn accept(
    listener: &TcpListener,
    own: &Identity,
    expected: std::ops::Range<usize>,
    within: Duration,
    look: &mut dyn FnMut() -> Result<(), RankError>,
) -> Result<Vec<(Handshake, SocketAddr)>, RankError> {
    let until = Instant::now() + within;
    let mut found: Vec<Option<(Handshake, SocketAddr)>> = expected.clone().map(|_| None).collect();
    while let Some(missing) = found.iter().position(Option::is_none) {
        look()?;
        if until <= Instant::now() {
            let connected = found.iter().flatten().count() + 1;
            let (missing, seconds) = (expected.start + missing, within.as_secs());
            return Err(RankError::Missing { missing, connected, ranks: own.ranks, seconds });
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // Including a connection that was closed again.
            Err(_) => {
                std::thread::sleep(LOOK);
                continue;
            }
        };
        let peer = peer_of(&stream);
        let handshake = Handshake::accept(stream, own.secret);
        let hello = handshake.and_then(|handshake| Ok((handshake.receive::<Hello>(b"hello")?, handshake)));
        let (hello, handshake) = match hello {
            Ok((Some(hello), handshake)) => (hello, handshake),
            Ok((None, handshake)) => {
                tracing::warn!(peer, "a connection with another secret is refused");
                // The other side cannot read the reason, and concludes it from that.
                let _ = handshake.send(b"reply", &Reply::Refused { why: "another secret".into() });
                continue;
            }
            Err(error) => {
                tracing::warn!(peer, error = daemon::error_chain(&error), "a connection is no rank");
                continue;
            }
        };
        let taken = |rank: usize| {
            let place = rank.checked_sub(expected.start).and_then(|at| found.get(at));
            place.is_none_or(Option::is_some)
        };
        if let Some(why) = refusal(own, &hello, taken) {
            let _ = handshake.send(b"reply", &Reply::Refused { why: why.clone() });
            return Err(RankError::Refuses(why));
        }
        let address = handshake.stream.peer_addr().map_err(|source| RankError::Broken { peer, source })?;
        found[hello.rank - expected.start] = Some((handshake, SocketAddr::new(address.ip(), hello.port)));
    }
    Ok(found.into_iter().flatten().collect())
}

/// Connects rank 0 with all others at `listener`, which is non-blocking. `processes` are those that it started, from
/// rank 1 on. Once all are connected, they get the id from `nccl`, if there is one.
///
/// # Errors
/// If a rank ends, does not connect, or is refused.
pub fn lead(
    listener: &TcpListener,
    own: &Identity,
    processes: Vec<Process>,
    within: Duration,
    timeout: Duration,
    nccl: impl FnOnce() -> Result<Option<UniqueId>, NcclError>,
) -> Result<Mesh, RankError> {
    let mut look = || match (1..).zip(&processes).find(|(_, process)| process.has_exited()) {
        Some((rank, process)) => {
            // Its last output arrives after its end.
            std::thread::sleep(5 * LOOK);
            Err(RankError::Ended { rank, output: process.output() })
        }
        None => Ok(()),
    };
    let found = accept(listener, own, 1..own.ranks, within, &mut look)?;
    let nccl = nccl()?;
    let peers: Vec<SocketAddr> = found.iter().map(|(_, address)| *address).collect();
    let mut processes = processes.into_iter();
    let mut links: Vec<Option<Box<dyn Link>>> = vec![None];
    for (handshake, _) in found {
        let nccl = nccl.map(|id| id.as_bytes().to_vec());
        handshake.send(b"reply", &Reply::Welcome { peers: peers.clone(), nccl })?;
        links.push(Some(link(handshake, processes.next())?));
    }
    Ok(Mesh::new(0, links, timeout).with_nccl(nccl))
}

fn link(handshake: Handshake, process: Option<Process>) -> Result<Box<dyn Link>, RankError> {
    let peer = peer_of(&handshake.stream);
    let link = TcpLink::new(handshake.stream, process);
    Ok(Box::new(link.map_err(|source| RankError::Broken { peer, source })?))
}

/// Connects another rank with rank 0 at `leader`, a name and a port, and then with the others. Tries to connect for
/// `reach`, and waits for the other ranks for `within`.
///
/// # Errors
/// If rank 0 cannot be reached or refuses this rank, or another rank does not connect.
pub fn join(
    leader: &str,
    own: &Identity,
    reach: Duration,
    within: Duration,
    timeout: Duration,
) -> Result<Mesh, RankError> {
    let stream = reach_leader(leader, reach)?;
    let broken = |source| RankError::Broken { peer: format!("rank 0 at {leader}"), source };
    let address = stream.local_addr().map_err(broken)?.ip();
    let listener = TcpListener::bind((address, 0))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|source| RankError::Listen { address: address.to_string(), source })?;
    let port = listener.local_addr().map_err(broken)?.port();
    let Identity { rank, ranks, secret, version, build, settings, device } = own.clone();
    let hello = Hello { rank, ranks, version, build, settings, device, port };

    let to_leader = Handshake::connect(stream, secret)?;
    let (peers, nccl) = introduce(&to_leader, &hello, leader)?;
    if peers.len() + 1 != ranks {
        return Err(RankError::Foreign { peer: leader.into() });
    }
    let mut links: Vec<Option<Box<dyn Link>>> = vec![Some(link(to_leader, None)?)];
    for peer in &peers[..rank - 1] {
        let stream = TcpStream::connect_timeout(peer, within)
            .map_err(|source| RankError::Broken { peer: peer.to_string(), source })?;
        let handshake = Handshake::connect(stream, secret)?;
        introduce(&handshake, &hello, &peer.to_string())?;
        links.push(Some(link(handshake, None)?));
    }
    links.push(None);
    for (handshake, _) in accept(&listener, own, rank + 1..ranks, within, &mut || Ok(()))? {
        handshake.send(b"reply", &Reply::Welcome { peers: Vec::new(), nccl: None })?;
        links.push(Some(link(handshake, None)?));
    }
    Ok(Mesh::new(rank, links, timeout).with_nccl(nccl))
}

/// Sends this rank's identity, and returns the welcome.
fn introduce(
    handshake: &Handshake,
    hello: &Hello,
    address: &str,
) -> Result<(Vec<SocketAddr>, Option<UniqueId>), RankError> {
    handshake.send(b"hello", hello)?;
    let foreign = || RankError::Foreign { peer: address.into() };
    match handshake.receive(b"reply")? {
        Some(Reply::Welcome { peers, nccl }) => {
            let nccl = nccl.map(|bytes| UniqueId::from_bytes(&bytes).ok_or_else(foreign)).transpose()?;
            Ok((peers, nccl))
        }
        Some(Reply::Refused { why }) => {
            let why = why.chars().filter(|c| !c.is_control()).take(400).collect();
            Err(RankError::Refused { address: address.into(), why })
        }
        None => Err(RankError::Secret { address: address.into() }),
    }
}

fn reach_leader(leader: &str, within: Duration) -> Result<TcpStream, RankError> {
    let until = Instant::now() + within;
    let attempt = || {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in leader.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, HELLO_WITHIN) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    loop {
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(source) if until <= Instant::now() => {
                let (address, seconds) = (leader.into(), within.as_secs());
                return Err(RankError::Unreachable { address, seconds, source });
            }
            Err(_) => std::thread::sleep(10 * LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nn::{
        collective::{Collective as _, CollectiveError},
        nccl::Membership,
    };
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);

    fn identity(rank: usize) -> Identity {
        let text = |text: &str| text.to_owned();
        Identity {
            rank,
            ranks: 3,
            secret: [7; 32],
            version: text("1.0"),
            build: text("b0"),
            settings: text("s0"),
            device: text("cpu (fused, f32)"),
        }
    }

    /// Returns the results of rank 0 and of a rank with this identity, beside a correct rank 2.
    fn meet(other: Identity) -> (Result<(), String>, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let join = |identity: Identity| {
            let address = address.clone();
            thread::spawn(move || {
                join(&address, &identity, SOON, SOON, SOON).map(drop).map_err(|e| e.to_string())
            })
        };
        let second = join(identity(2));
        let other = join(other);
        let led = lead(&listener, &identity(0), Vec::new(), Duration::from_secs(3), SOON, || Ok(None));
        let led = led.map(drop).map_err(|error| error.to_string());
        // As if rank 0 had ended: a rank that it has not accepted yet would wait for its next window.
        drop(listener);
        let other = other.join().unwrap();
        // It may have been waiting for the others.
        let _ = second.join().unwrap();
        (led, other)
    }

    #[test]
    fn ranks_of_one_seat_meet() {
        assert_eq!(meet(identity(1)), (Ok(()), Ok(())));
    }

    #[test]
    fn all_ranks_get_the_id_of_rank_0_for_nccl() {
        let id = UniqueId::from_bytes(&std::array::from_fn::<u8, 128, _>(|at| 255 - at as u8)).unwrap();
        for (ranks, nccl) in [(2, Some(id)), (4, Some(id)), (4, None)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let leader = listener.local_addr().unwrap().to_string();
            let own = move |rank| Identity { ranks, ..identity(rank) };
            let others: Vec<_> = (1..ranks)
                .map(|rank| {
                    let leader = leader.clone();
                    thread::spawn(move || join(&leader, &own(rank), SOON, SOON, SOON).unwrap())
                })
                .collect();
            let mut meshes = vec![lead(&listener, &own(0), Vec::new(), SOON, SOON, || Ok(nccl)).unwrap()];
            meshes.extend(others.into_iter().map(|other| other.join().unwrap()));
            for (rank, mesh) in meshes.iter().enumerate() {
                assert_eq!(mesh.nccl(), nccl.map(|id| Membership { id, rank, ranks }));
            }
        }
    }

    #[test]
    fn an_id_of_another_length_is_no_reply_of_this_release() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let leader = listener.local_addr().unwrap().to_string();
        let joined = thread::spawn(move || {
            let own = Identity { ranks: 2, ..identity(1) };
            join(&leader, &own, SOON, SOON, SOON).map(drop).unwrap_err().to_string()
        });
        let (stream, _) = listener.accept().unwrap();
        let handshake = Handshake::accept(stream, [7; 32]).unwrap();
        let hello: Hello = handshake.receive(b"hello").unwrap().unwrap();
        let peers = vec![SocketAddr::new([127, 0, 0, 1].into(), hello.port)];
        handshake.send(b"reply", &Reply::Welcome { peers, nccl: Some(vec![1; 127]) }).unwrap();
        let said = joined.join().unwrap();
        assert!(said.contains("is no rank of this release"), "{said}");
    }

    /// A rank detects that another one closes its connection, or abandons the step, while GPUs exchange.
    #[test]
    fn a_watch_sees_a_rank_that_ends_or_gives_up_without_reading_what_it_sent() {
        for gives_up in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let leader = listener.local_addr().unwrap().to_string();
            let own = |rank| Identity { ranks: 2, ..identity(rank) };
            let other = thread::spawn(move || join(&leader, &own(1), SOON, SOON, SOON).unwrap());
            let mut first = lead(&listener, &own(0), Vec::new(), SOON, SOON, || Ok(None)).unwrap();
            let mut other = other.join().unwrap();
            {
                let mut watch = first.watch("adding gradients");
                watch().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                watch().unwrap();
            }
            // Values that rank 0 has not requested yet.
            other.send(0, &[1.0, 2.0]).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            first.watch("adding gradients")().unwrap();
            let mut values = [0.0; 2];
            first.receive(1, &mut values).unwrap();
            assert_eq!(values, [1.0, 2.0]);
            if gives_up {
                other.abort("its GPU is too hot");
            }
            drop(other);
            let mut watch = first.watch("adding gradients");
            let error = loop {
                match watch() {
                    Ok(()) => std::thread::sleep(Duration::from_millis(5)),
                    Err(error) => break error,
                }
            };
            let expected = match gives_up {
                true => CollectiveError::Failed { rank: 1, why: "its GPU is too hot".into() },
                false => CollectiveError::Lost { rank: 1, doing: "adding gradients" },
            };
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_rank_that_differs_is_refused_by_name_on_both_sides() {
        type Change = fn(&mut Identity);
        let cases: [(Change, &str); 6] = [
            (
                |other| other.device = "cuda (fused, bf16)".into(),
                "rank 1 computes on cuda (fused, bf16), rank 0 on cpu (fused, f32)",
            ),
            (|other| other.settings = "s1".into(), "rank 1 has settings digest s1, rank 0 has s0"),
            (
                |other| other.build = "b1".into(),
                "rank 1 is of another build: version 10 (b1), rank 0 has 10 (b0)",
            ),
            (|other| other.ranks = 4, "rank 1 was started as one of 4, rank 0 as one of 3"),
            (|other| (other.rank, other.ranks) = (2, 3), "rank 2 is there twice"),
            (|other| other.version = "2.0".into(), "version 20 (b0)"),
        ];
        for (change, says) in cases {
            let mut other = identity(1);
            change(&mut other);
            let twice = other.rank == 2;
            let (led, joined) = meet(other);
            let led = led.unwrap_err();
            assert!(led.contains(says), "{led}");
            // If two have the same rank, the second is refused.
            if !twice {
                let joined = joined.unwrap_err();
                assert!(joined.contains("rank 0 at 127.0.0.1") && joined.contains(says), "{joined}");
            }
        }
    }

    #[test]
    fn a_rank_with_another_secret_is_refused_and_says_so() {
        let (led, joined) = meet(Identity { secret: [8; 32], ..identity(1) });
        assert!(joined.unwrap_err().contains("has another secret"));
        let led = led.unwrap_err();
        assert!(led.contains("rank 1 did not connect within 3 s (2 of 3 ranks are there)"), "{led}");
    }

    #[test]
    fn strangers_do_not_disturb_the_ranks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let strangers =
            [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[MAGIC.as_slice(), &[255; 80]].concat()];
        for says in strangers {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(says).unwrap();
            // Closed at once, so that no test waits for it.
        }
        let own = |rank| Identity { ranks: 2, ..identity(rank) };
        let leader = address.to_string();
        let joined = thread::spawn(move || join(&leader, &own(1), SOON, SOON, SOON).map(drop));
        lead(&listener, &own(0), Vec::new(), SOON, SOON, || Ok(None)).unwrap();
        joined.join().unwrap().unwrap();
    }

    #[test]
    fn a_leader_that_is_not_there_is_named() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = join(&free, &identity(1), Duration::from_millis(10), SOON, SOON).err().unwrap();
        assert!(error.to_string().contains(&free), "{error}");
    }
}
