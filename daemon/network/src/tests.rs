//! Two nodes over loopback: reads, accepted contributions, and the limits on hostile peers.

use super::*;
use crate::wire::{receive, send};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use protocol::identity::Signer;
use protocol::keys::{self, ObjectKey};
use protocol::peer::{BlobAnswer, BlobRequest, Message, PutAnswer, PutHeader, Refusal};
use protocol::{Digest, GenesisHash, RunId, Uid, Window};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{DirectoryStore, Fetch, FetchError, Limits, MemoryStore, Store, memory::MemoryFetcher};

const GENESIS: GenesisHash = GenesisHash([5; 32]);
/// A protocol whose streams the server keeps open.
const HOLD: &str = "hold/1";
const SOON: Duration = Duration::from_secs(10);

async fn network(genesis: GenesisHash, listens: bool) -> Arc<Network> {
    let listen = listens.then_some("127.0.0.1:0");
    start(genesis, listen, AddressLimits::default()).await
}

async fn start(genesis: GenesisHash, listen: Option<&str>, limits: AddressLimits) -> Arc<Network> {
    let (key, listen) = (NodeKey::generate().unwrap(), listen.map(|address| address.parse().unwrap()));
    let settings = NetworkSettings { key, genesis, listen, allow_private: true, limits };
    Arc::new(Network::start(settings).await.unwrap())
}

/// A node that dials, and one that listens.
async fn two() -> (Arc<Network>, Arc<Network>) {
    (network(GENESIS, false).await, network(GENESIS, true).await)
}

fn object(length: usize) -> (ObjectKey, Bytes) {
    let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
    (keys::contribution(RunId(1), Window(2), &Digest::of(&bytes)), bytes.into())
}

/// Limits that a test waits for.
fn brief(max_bytes: u64) -> Limits {
    let short = Duration::from_millis(400);
    Limits { first_byte: short, rate_window: short, ..Limits::for_bytes(max_bytes) }
}

#[tokio::test]
async fn an_object_is_read_whole_and_in_ranges_over_quic_and_over_tcp() {
    let (_, server) = two().await;
    let (key, bytes) = object(9 << 20);
    let (first, second) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    second.put(&key, bytes.clone()).await.unwrap();
    serve_blobs(&server, vec![first, second]).unwrap();
    assert!(serve_blobs(&server, Vec::new()).is_err());
    let urls = server.listening();
    assert!(urls[0].to_string().contains("quic-v1") && urls[1].to_string().contains("/tcp/"));
    for url in urls.iter().map(ToString::to_string) {
        // A separate node, because an open connection is reused.
        let fetch = PeerFetcher::new(network(GENESIS, false).await);
        let limits = Limits::for_bytes(bytes.len() as u64);
        assert_eq!(fetch.fetch(&url, &key, &limits).await.unwrap(), bytes);
        for range in [0..1, 5..9_000_000, 8 << 20..bytes.len() as u64, 3..3] {
            let part = bytes.slice(range.start as usize..range.end as usize);
            assert_eq!(fetch.fetch_range(&url, &key, range, &limits).await.unwrap(), part);
        }
        let past = bytes.len() as u64 - 1..bytes.len() as u64 + 1;
        let cut = fetch.fetch_range(&url, &key, past, &limits).await.unwrap_err();
        assert_eq!(cut, FetchError::CutShort { got: 1, expected: 2 });
        assert!(fetch.traffic().down_bytes > 9 << 20);
    }
}

#[tokio::test]
async fn mirrors_may_be_buckets_and_peers() {
    let (client, server) = two().await;
    let (key, bytes) = object(1000);
    let store = Arc::new(MemoryStore::new());
    store.put(&key, bytes.clone()).await.unwrap();
    serve_blobs(&server, vec![store.clone()]).unwrap();
    let http = Arc::new(MemoryFetcher::new());
    http.serve("https://bucket", Arc::new(MemoryStore::new()));
    let any = AnyFetcher { http: http.clone(), peers: Some(PeerFetcher::new(client)) };
    let mirrors = ["https://bucket".to_owned(), server.listening()[0].to_string()];
    let plan = store::FetchPlan::new(mirrors.clone());
    let (got, failures) = plan.fetch(&any, &key, &key.digest(), &Limits::for_bytes(1000)).await.unwrap();
    assert_eq!((got, failures.len()), (bytes, 1));
    let none = AnyFetcher { http, peers: None };
    let error = none.fetch(&mirrors[1], &key, &Limits::for_bytes(1000)).await.unwrap_err();
    assert!(matches!(error, FetchError::Ours { .. }), "{error}");
}

#[tokio::test]
async fn what_cannot_be_right_is_refused_before_its_bytes() {
    let (client, server) = two().await;
    let (key, bytes) = object(1000);
    let store = Arc::new(MemoryStore::new());
    store.put(&key, bytes).await.unwrap();
    serve_blobs(&server, vec![store]).unwrap();
    let url = server.listening()[0].to_string();
    let fetch = PeerFetcher::new(client);
    let large = fetch.fetch(&url, &key, &Limits::for_bytes(999)).await.unwrap_err();
    assert_eq!(large, FetchError::TooLarge { bytes: 1000, max_bytes: 999 });
    let other = keys::update(RunId(1), Window(2), &Digest([1; 32]));
    assert_eq!(fetch.fetch(&url, &other, &Limits::for_bytes(9)).await, Err(FetchError::Missing));

    let nobody = PeerUrl { peer: NodeKey::generate().unwrap().peer(), address: None };
    let closed = PeerUrl { address: "/ip4/127.0.0.1/tcp/1".parse().ok(), ..nobody.clone() };
    // A different node answers at this address.
    let imposter = PeerUrl { address: server.listening()[1].address.clone(), ..nobody.clone() };
    for url in [nobody, closed, imposter] {
        let error = fetch.fetch(&url.to_string(), &key, &Limits::for_bytes(9)).await.unwrap_err();
        assert!(matches!(error, FetchError::Unreachable { .. }) && !error.is_theirs(), "{url}: {error}");
    }
    assert!(matches!(
        fetch.fetch("p2p://x", &key, &Limits::for_bytes(9)).await,
        Err(FetchError::BadUrl { .. })
    ));
    // A node of another chain uses another protocol name.
    let foreign = PeerFetcher::new(network(GenesisHash([6; 32]), false).await);
    let error = foreign.fetch(&url, &key, &Limits::for_bytes(1000)).await.unwrap_err();
    assert!(error.to_string().contains("does not speak"), "{error}");
}

#[tokio::test]
async fn of_two_addresses_the_one_that_answers_is_used() {
    let (client, server) = two().await;
    // Never answers, like a router that drops packets.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let [dead, _] = PeerUrl::at(server.peer(), silent.local_addr().unwrap());
    client.connect(&[dead.clone(), server.listening()[1].clone()]).await.unwrap();
    let other = PeerUrl { peer: NodeKey::generate().unwrap().peer(), ..dead };
    assert!(matches!(client.connect(&[other]).await, Err(OpenError::Unreachable(_))));
    assert_eq!(client.connect(&[]).await, Err(OpenError::NoAddress));
}

#[tokio::test]
async fn a_public_node_dials_no_private_address() {
    let key = NodeKey::generate().unwrap();
    let settings = NetworkSettings {
        key,
        genesis: GENESIS,
        listen: None,
        allow_private: false,
        limits: AddressLimits::default(),
    };
    let fetch = PeerFetcher::new(Arc::new(Network::start(settings).await.unwrap()));
    let url = PeerUrl::at(NodeKey::generate().unwrap().peer(), "169.254.169.254:80".parse().unwrap());
    let (key, _) = object(1);
    let error = fetch.fetch(&url[1].to_string(), &key, &Limits::for_bytes(9)).await.unwrap_err();
    assert!(matches!(error, FetchError::ForbiddenAddress { .. }) && error.is_theirs(), "{error}");
}

/// Serves each read by calling `answer` with its stream.
fn serve_badly<F: Future<Output = ()> + Send>(
    network: &Network,
    protocol: &str,
    answer: impl Fn(Stream) -> F + Send + 'static,
) {
    let mut incoming = network.accept(protocol).unwrap();
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.recv().await {
            answer(stream).await;
        }
    });
}

#[tokio::test]
async fn a_peer_that_stalls_crawls_cuts_short_or_sends_too_much_is_left() {
    let (key, bytes) = object(1000);
    let found = BlobAnswer::Found { total: 1000, length: 1000 };
    // The answer and number of bytes sent, whether the stream then stays open, and the expected error.
    type IsExpected = fn(&FetchError) -> bool;
    let cases: [(Option<BlobAnswer>, usize, bool, IsExpected); 5] = [
        (None, 0, true, |error| matches!(error, FetchError::Stalled { .. })),
        (Some(found.clone()), 0, true, |error| matches!(error, FetchError::Crawled { .. })),
        (Some(found.clone()), 999, true, |error| matches!(error, FetchError::Crawled { .. })),
        (Some(found), 999, false, |error| *error == FetchError::CutShort { got: 999, expected: 1000 }),
        (Some(BlobAnswer::Busy), 0, false, |error| *error == FetchError::Unavailable { status: 503 }),
    ];
    for (answer, sent, stays, is_expected) in cases {
        let (client, server) = two().await;
        let part = bytes.slice(..sent);
        serve_badly(&server, "blob/1", move |mut stream| {
            let (answer, part) = (answer.clone(), part.clone());
            async move {
                let _: BlobRequest = receive(&mut stream, SOON).await.unwrap();
                if let Some(answer) = answer {
                    send(&mut stream, &answer, SOON).await.unwrap();
                }
                let _ = stream.write_all(&part).await;
                let _ = stream.flush().await;
                if stays {
                    tokio::time::sleep(SOON).await;
                }
                let _ = stream.close().await;
            }
        });
        let fetch = PeerFetcher::new(client);
        let url = server.listening()[0].to_string();
        let error = fetch.fetch(&url, &key, &brief(1000)).await.unwrap_err();
        assert!(is_expected(&error), "{error}");
    }
    // The total deadline applies too, and counts as this node's own failure.
    let (client, server) = two().await;
    serve_badly(&server, "blob/1", |stream| async move {
        tokio::time::sleep(SOON).await;
        drop(stream);
    });
    let limits = Limits::for_bytes(9).within(Duration::from_millis(300));
    let error =
        PeerFetcher::new(client).fetch(&server.listening()[0].to_string(), &key, &limits).await.unwrap_err();
    assert!(matches!(error, FetchError::Deadline { .. }) && !error.is_theirs(), "{error}");
}

/// Accepts or refuses all offers.
struct Allows(Option<Refusal>);

#[async_trait]
impl Admission for Allows {
    async fn judge(&self, _: &PutHeader) -> Result<(), Refusal> {
        self.0.map_or(Ok(()), Err)
    }
}

/// A contribution in a file, and its offer.
struct Offered {
    home: tempfile::TempDir,
    key: ObjectKey,
    bytes: Bytes,
    offer: PutHeader,
}

impl Offered {
    fn new(length: usize) -> Offered {
        let home = tempfile::tempdir().unwrap();
        let (key, bytes) = object(length);
        std::fs::write(home.path().join("contribution"), &bytes).unwrap();
        let signer = Signer::new(ed25519_dalek::SigningKey::from_bytes(&[1; 32]), GENESIS);
        let offer = PutHeader::sign(RunId(1), Window(2), Uid(3), key.digest(), bytes.len() as u64, &signer);
        Offered { home, key, bytes, offer }
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("contribution")
    }

    fn inbox(&self) -> Arc<DirectoryStore> {
        Arc::new(DirectoryStore::open(&self.home.path().join("inbox")).unwrap())
    }

    fn server(&self, refusal: Option<Refusal>) -> PutServer {
        PutServer { limits: brief, ..PutServer::new(Arc::new(Allows(refusal)), self.inbox()) }
    }
}

#[tokio::test]
async fn a_contribution_is_taken_once_and_then_served() {
    let (client, server) = two().await;
    let offered = Offered::new(3 << 20);
    let puts = offered.server(None);
    let inbox = puts.inbox.clone();
    puts.serve(&server).unwrap();
    serve_blobs(&server, vec![inbox.clone()]).unwrap();
    let url = &server.listening()[0];
    push(&client, url, &offered.offer, &offered.file()).await.unwrap();
    assert!(inbox.contains(&offered.key));
    // The second time no byte is read: the file no longer exists.
    std::fs::remove_file(offered.file()).unwrap();
    push(&client, url, &offered.offer, &offered.file()).await.unwrap();
    let fetch = PeerFetcher::new(client);
    let limits = Limits::for_bytes(4 << 20);
    assert_eq!(fetch.fetch(&url.to_string(), &offered.key, &limits).await.unwrap(), offered.bytes);
}

#[tokio::test]
async fn what_is_refused_is_refused_with_a_reason_and_leaves_nothing() {
    let refusals = [
        Refusal::NotCommitted,
        Refusal::TooLong { max: 5 },
        Refusal::BadSignature,
        Refusal::NoSeat,
        Refusal::OtherRun { run: RunId(2) },
    ];
    for refusal in refusals {
        let (client, server) = two().await;
        let offered = Offered::new(1000);
        let puts = offered.server(Some(refusal));
        let inbox = puts.inbox.clone();
        puts.serve(&server).unwrap();
        let error = push(&client, &server.listening()[0], &offered.offer, &offered.file()).await.unwrap_err();
        assert!(matches!(error, PushError::Refused(said) if said == refusal), "{error}");
        assert_eq!((error.to_string(), error.may_pass()), (refusal.to_string(), false));
        assert!(!inbox.contains(&offered.key));
    }
    // A node that accepts no contributions, like a miner.
    let (client, server) = two().await;
    let offered = Offered::new(1000);
    let error = push(&client, &server.listening()[0], &offered.offer, &offered.file()).await.unwrap_err();
    assert!(error.to_string().contains("does not speak") && !error.may_pass(), "{error}");
}

/// Speaks `put/1` manually: sends the offer as `header`, then `bytes`, and waits for the last answer. `closes`: closes
/// the stream after the bytes.
async fn by_hand(client: &Network, server: &Network, header: &[u8], bytes: &[u8], closes: bool) -> PutAnswer {
    let mut stream = client.open(&server.listening()[0], "put/1").await.unwrap();
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    stream.write_all(&[&length[..], header].concat()).await.unwrap();
    stream.flush().await.unwrap();
    let answer: PutAnswer = receive(&mut stream, SOON).await.unwrap();
    if answer != PutAnswer::Send {
        return answer;
    }
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    if closes {
        stream.close().await.unwrap();
    }
    receive(&mut stream, SOON).await.unwrap()
}

#[tokio::test]
async fn bad_bytes_are_refused_with_a_reason_and_leave_nothing() {
    let (client, server) = two().await;
    let offered = Offered::new(1000);
    let puts = offered.server(None);
    let inbox = puts.inbox.clone();
    puts.serve(&server).unwrap();
    let (header, bytes) = (offered.offer.to_bytes(), &offered.bytes[..]);

    let later = [&[7], &header[1..]].concat();
    let refusal = match by_hand(&client, &server, &later, &[], true).await {
        PutAnswer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal, Refusal::Version { theirs: 7, ours: 1 });
    assert!(refusal.to_string().contains('7') && refusal.to_string().contains('1'), "{refusal}");

    let mut wrong = bytes.to_vec();
    wrong[500] ^= 1;
    let cases: [(&[u8], &[u8], bool, Refusal); 5] = [
        (&header[..header.len() - 1], &[], true, Refusal::Malformed),
        (&header, &wrong, true, Refusal::OtherDigest),
        (&header, &bytes[..999], true, Refusal::CutShort),
        (&header, &bytes[..999], false, Refusal::TooSlow),
        (&header, &[], false, Refusal::TooSlow),
    ];
    for (header, bytes, closes, expected) in cases {
        assert_eq!(by_hand(&client, &server, header, bytes, closes).await, PutAnswer::Refused(expected));
        assert!(!inbox.contains(&offered.key));
    }
    // The seat has failed too often in this window: its bytes are not read again.
    assert_eq!(by_hand(&client, &server, &header, bytes, true).await, PutAnswer::Refused(Refusal::TooSlow));
    assert!(!inbox.contains(&offered.key));

    // Bytes after the announced ones are not read.
    let (client, server) = two().await;
    let puts = offered.server(None);
    let inbox = puts.inbox.clone();
    puts.serve(&server).unwrap();
    let more = [bytes, b"more"].concat();
    assert_eq!(by_hand(&client, &server, &header, &more, false).await, PutAnswer::Have);
    assert_eq!(inbox.get(&offered.key, 1000).await.unwrap(), offered.bytes);
}

#[tokio::test]
async fn a_seat_sends_one_contribution_at_a_time_and_eight_seats_do() {
    let (client, server) = two().await;
    let offered = Offered::new(1000);
    let puts = PutServer { limits: Limits::for_bytes, ..offered.server(None) };
    puts.serve(&server).unwrap();
    let url = server.listening()[0].clone();
    let other = network(GENESIS, false).await;
    let begin = async |uid: u16| {
        // A single peer may not open as many streams.
        let client = if uid < 4 { &client } else { &other };
        let mut stream = client.open(&url, "put/1").await.unwrap();
        let offer = PutHeader { uid: Uid(uid), ..offered.offer };
        send(&mut stream, &offer, SOON).await.unwrap();
        let answer: PutAnswer = receive(&mut stream, SOON).await.unwrap();
        (stream, answer)
    };
    let mut open = Vec::new();
    for uid in 0..PUTS_MAX as u16 - 1 {
        let (stream, answer) = begin(uid).await;
        assert_eq!(answer, PutAnswer::Send, "{uid}");
        open.push(stream);
    }
    assert_eq!(begin(0).await.1, PutAnswer::Refused(Refusal::InProgress));
    let (eighth, answer) = begin(50).await;
    assert_eq!(answer, PutAnswer::Send);
    assert_eq!(begin(51).await.1, PutAnswer::Refused(Refusal::Busy));
    // The end of one frees a slot.
    drop(eighth);
    let mut ninth = begin(51).await;
    while ninth.1 == PutAnswer::Refused(Refusal::Busy) {
        tokio::task::yield_now().await;
        ninth = begin(51).await;
    }
    assert_eq!(ninth.1, PutAnswer::Send);
}

#[tokio::test]
async fn a_push_to_a_receiver_that_dies_fails_and_may_be_tried_elsewhere() {
    let (client, server) = two().await;
    let offered = Offered::new(3 << 20);
    serve_badly(&server, "put/1", |mut stream| async move {
        let _: PutHeader = receive(&mut stream, SOON).await.unwrap();
        send(&mut stream, &PutAnswer::Send, SOON).await.unwrap();
        let mut some = vec![0; 100_000];
        stream.read_exact(&mut some).await.unwrap();
    });
    let error = push(&client, &server.listening()[0], &offered.offer, &offered.file()).await.unwrap_err();
    assert!(matches!(error, PushError::Wire(_)) && error.may_pass(), "{error}");
}

/// Waits until a condition that another task fulfils is true.
async fn until(what: &str, is_done: impl Fn() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"));
}

/// Returns whether a node can read an object from this address of a peer.
async fn reads(client: &Arc<Network>, url: &PeerUrl, (key, bytes): &(ObjectKey, Bytes)) -> bool {
    let read =
        PeerFetcher::new(client.clone()).fetch(&url.to_string(), key, &brief(bytes.len() as u64)).await;
    read.is_ok_and(|read| read == bytes)
}

/// Starts a node that serves an object; returns its QUIC and TCP addresses too.
async fn limited(limits: AddressLimits) -> (Arc<Network>, [PeerUrl; 2], (ObjectKey, Bytes)) {
    let server = start(GENESIS, Some("127.0.0.1:0"), limits).await;
    let object = object(1000);
    let store = Arc::new(MemoryStore::new());
    store.put(&object.0, object.1.clone()).await.unwrap();
    serve_blobs(&server, vec![store]).unwrap();
    hold_streams(&server);
    let urls = server.listening().try_into().unwrap();
    (server, urls, object)
}

/// Keeps the streams of a protocol open for as long as their connections.
fn hold_streams(server: &Network) {
    let mut incoming = server.accept(HOLD).unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(stream) = incoming.recv().await {
            held.push(stream);
        }
    });
}

#[tokio::test]
async fn one_address_has_only_so_many_connections_and_others_have_theirs() {
    let limits = AddressLimits { connections: 3, per_minute: 1000, loopback: true };
    let (server, urls, object) = limited(limits).await;
    let mut clients = Vec::new();
    for at in 0..3 {
        let client = network(GENESIS, false).await;
        // Both transports count. A connection with an open stream does not yield.
        assert!(reads(&client, &urls[at % 2], &object).await, "{at}");
        let stream = client.open(&urls[at % 2], HOLD).await.unwrap();
        clients.push((client, stream));
    }
    assert_eq!(server.refused(), RefusedConnections::default());
    let late = network(GENESIS, false).await;
    for (at, url) in urls.iter().enumerate() {
        assert!(!reads(&late, url, &object).await, "{url}");
        until("the refusal is counted", || server.refused().address_connections == at as u64 + 1).await;
    }
    assert_eq!(server.refused(), RefusedConnections { address_connections: 2, ..Default::default() });
    // Open connections continue, and another address of this machine has its own slots. A listening node dials from
    // the address that it listens at.
    assert!(reads(&clients[0].0, &urls[0], &object).await);
    let elsewhere = start(GENESIS, Some("127.0.0.2:0"), limits).await;
    assert!(reads(&elsewhere, &urls[0], &object).await);
    // A closed connection frees a slot.
    drop(clients.pop());
    let mut has_read = false;
    for _ in 0..100 {
        has_read = has_read || reads(&late, &urls[1], &object).await;
    }
    assert!(has_read);
}

#[tokio::test]
async fn one_address_makes_only_so_many_connections_within_a_minute() {
    let limits = AddressLimits { connections: 1000, per_minute: 6, loopback: true };
    let (server, urls, object) = limited(limits).await;
    let mut read = 0;
    for at in 0..10 {
        // Each ends before the next: they are never open at once.
        let client = network(GENESIS, false).await;
        read += usize::from(reads(&client, &urls[at % 2], &object).await);
    }
    assert_eq!(read, 6);
    until("the refusals are counted", || server.refused().address_rate == 4).await;
    let elsewhere = start(GENESIS, Some("127.0.0.2:0"), limits).await;
    assert!(reads(&elsewhere, &urls[0], &object).await);
}

#[tokio::test]
async fn a_localnet_has_many_nodes_at_one_address() {
    let (server, urls, object) = limited(AddressLimits::default()).await;
    let mut clients = Vec::new();
    for at in 0..40 {
        let client = network(GENESIS, false).await;
        assert!(reads(&client, &urls[at % 2], &object).await, "{at}");
        clients.push(client);
    }
    assert_eq!((server.refused(), server.connections()), (RefusedConnections::default(), 40));
    drop(clients);
    until("all connections end", || server.connections() == 0).await;
}

/// Returns a node that keeps a silent stream open to this address.
async fn busy(url: &PeerUrl) -> (Arc<Network>, Stream) {
    let client = network(GENESIS, false).await;
    let stream = client.open(url, HOLD).await.unwrap();
    (client, stream)
}

#[tokio::test]
async fn a_node_full_of_streams_refuses_and_serves_again_when_one_leaves() {
    let (server, urls, object) = limited(AddressLimits::default()).await;
    let mut clients = Vec::new();
    for at in 0..64 {
        clients.push(busy(&urls[at % 2]).await);
    }
    until("all are connected", || server.connections() == 64).await;
    let late = network(GENESIS, false).await;
    assert!(!reads(&late, &urls[0], &object).await && !reads(&late, &urls[1], &object).await);
    until("the refusals are counted", || server.refused().connections == 2).await;
    assert_eq!((server.connections(), server.gave_way()), (64, 0));
    drop(clients.pop());
    until("one has left", || server.connections() == 63).await;
    assert!(reads(&late, &urls[0], &object).await);
}

#[tokio::test]
async fn strangers_leave_half_of_the_places_to_seats() {
    let (server, urls, object) = limited(AddressLimits::default()).await;
    let mut seats = Vec::new();
    for _ in 0..32 {
        seats.push(network(GENESIS, false).await);
    }
    server.reserve_for(seats.iter().map(|seat| seat.peer()).collect());
    let mut strangers = Vec::new();
    for at in 0..32 {
        strangers.push(busy(&urls[at % 2]).await);
    }
    for at in 0..8 {
        // It is connected at first, then disconnected.
        let late = network(GENESIS, false).await;
        assert!(!reads(&late, &urls[at % 2], &object).await, "{at}");
    }
    until("the refusals are counted", || server.refused().strangers == 8).await;
    assert_eq!(server.connections(), 32);
    for (at, seat) in seats.iter().enumerate() {
        assert!(reads(seat, &urls[at % 2], &object).await, "{at}");
    }
    assert_eq!(server.refused(), RefusedConnections { strangers: 8, ..Default::default() });
}

#[tokio::test]
async fn more_seats_than_places_push_from_one_address() {
    const SEATS: u16 = 24;
    let offered = Offered::new(100_000);
    let limits = AddressLimits { loopback: true, ..AddressLimits::default() };
    let server = start(GENESIS, Some("127.0.0.1:0"), limits).await;
    offered.server(None).serve(&server).unwrap();
    hold_streams(&server);
    let (urls, file) = (server.listening(), offered.file());
    let mut seats = Vec::new();
    for _ in 0..SEATS {
        seats.push(network(GENESIS, false).await);
    }
    server.reserve_for(seats.iter().map(|seat| seat.peer()).collect());
    // Each stays connected. They connect in turn: this test is not about concurrent handshakes over TCP.
    for (uid, seat) in (0..).zip(&seats) {
        seat.connect(&urls).await.unwrap();
        let offer = PutHeader { uid: Uid(uid), ..offered.offer };
        push(seat, &urls[0], &offer, &file).await.unwrap();
    }
    assert_eq!(server.refused(), RefusedConnections::default());
    // The address has as many strangers as before.
    let mut strangers = Vec::new();
    for _ in 0..SEATS {
        let stranger = network(GENESIS, false).await;
        let stream = stranger.open(&urls[0], HOLD).await;
        strangers.push((stranger, stream));
    }
    let refused = u64::from(SEATS) - u64::from(limits.connections);
    until("the others are refused", || server.refused().address_connections == refused).await;
    assert_eq!(server.refused(), RefusedConnections { address_connections: refused, ..Default::default() });
}

#[tokio::test]
async fn idle_strangers_give_way_to_others_and_come_again() {
    let (server, urls, object) = limited(AddressLimits::default()).await;
    server.reserve_for(Default::default());
    let (busy, _stream) = busy(&urls[0]).await;
    let mut idle = Vec::new();
    for at in 0..31 {
        let client = network(GENESIS, false).await;
        client.connect(&[urls[at % 2].clone()]).await.unwrap();
        idle.push(client);
    }
    let mut late = Vec::new();
    for at in 0..31 {
        let client = network(GENESIS, false).await;
        let served = tokio::time::timeout(3 * SOON, async {
            while !reads(&client, &urls[at % 2], &object).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        served.await.unwrap_or_else(|_| panic!("reader {at}"));
        late.push(client);
    }
    assert!(0 < server.gave_way());
    until("those that gave way are gone", || server.connections() <= 32).await;
    assert_eq!(busy.connections(), 1, "a connection with a stream does not give way");
    // A node whose connection yielded reconnects to read.
    until("it has been closed", || idle[0].connections() == 0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(reads(&idle[0], &urls[0], &object).await);
}

#[tokio::test]
async fn nothing_remains_of_strangers_that_left() {
    let limits = AddressLimits { connections: 1000, per_minute: 1000, loopback: true };
    let (server, urls, object) = limited(limits).await;
    server.reserve_for(Default::default());
    for round in 0..10 {
        let mut strangers = Vec::new();
        for at in 0..30 {
            let stranger = network(GENESIS, false).await;
            assert!(reads(&stranger, &urls[at % 2], &object).await, "{round}, {at}");
            strangers.push(stranger);
        }
        drop(strangers);
        until("all have left", || server.connections() == 0).await;
    }
    // The one address is recorded while its connections are at most a minute old.
    assert_eq!(server.remembered(), [0, 1]);
}
