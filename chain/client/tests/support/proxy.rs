//! A proxy between client and chain that a test can cut, block or tamper with.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
};

/// Behaviour of the proxy; changes apply to open connections too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    Sound,
    /// Closes all connections, and new ones at once.
    Cut,
    /// Forwards nothing, and closes nothing.
    Blocked,
    /// Replaces one text in the chain's answers by another of the same length.
    Tampered {
        from: &'static str,
        to: &'static str,
    },
    /// Changes the runtime version in the chain's answers.
    Upgraded,
}

pub struct Proxy {
    port: u16,
    wire: Arc<watch::Sender<Wire>>,
    connections: watch::Receiver<u32>,
}

impl Proxy {
    /// Starts a working proxy to the chain at this port.
    pub async fn to(port: u16) -> Proxy {
        Proxy::to_address((Ipv4Addr::LOCALHOST, port).into()).await
    }

    pub async fn to_address(chain_address: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let wire = Arc::new(watch::channel(Wire::Sound).0);
        let changes = wire.clone();
        let (count, connections) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                if *changes.borrow() == Wire::Cut {
                    continue;
                }
                let Ok(chain) = TcpStream::connect(chain_address).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_chain, to_chain) = chain.into_split();
                tokio::spawn(carry(from_client, to_chain, changes.subscribe(), false));
                tokio::spawn(carry(from_chain, to_client, changes.subscribe(), true));
            }
        });
        Proxy { port: own_port, wire, connections }
    }

    pub fn url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> u32 {
        *self.connections.borrow()
    }

    /// Waits until there were more than `before` connections.
    pub async fn another_connection(&self, before: u32) {
        self.connections.clone().wait_for(|count| before < *count).await.unwrap();
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    tamper: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            biased;
            cut = wire.wait_for(|wire| *wire == Wire::Cut) => { drop(cut); return }
            read = from.read(&mut buffer) => read,
        };
        let Ok(read @ 1..) = read else { return };
        let now = match wire.wait_for(|wire| *wire != Wire::Blocked).await {
            Ok(wire) => wire.clone(),
            Err(_) => return,
        };
        let bytes = &mut buffer[..read];
        match now {
            Wire::Tampered { from, to } if tamper => replace(bytes, from.as_bytes(), to.as_bytes()),
            Wire::Upgraded if tamper => upgrade(bytes),
            _ => {}
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
        at += found;
        bytes[at..at + to.len()].copy_from_slice(to);
        at += to.len();
    }
}

/// Changes the last digit of every version.
fn upgrade(bytes: &mut [u8]) {
    const NAMED: &[u8] = b"\"specVersion\":";
    let told: Vec<usize> = (NAMED.len()..bytes.len()).filter(|at| bytes[..*at].ends_with(NAMED)).collect();
    for at in told {
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if let Some(last) = bytes[at..at + digits].last_mut() {
            *last = b'0' + (*last - b'0' + 1) % 10;
        }
    }
}
