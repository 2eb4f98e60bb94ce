//! Keeps a connection to the chain, and broadcasts finalised blocks.
//!
//! One task owns the connection. It reconnects, with increasing pauses, when the connection breaks or falls silent,
//! when the chain's runtime is upgraded, and when the URL leads to another chain.

use crate::{
    Head,
    connection::{ConnectionState, Timing},
    link::{Link, LinkError, OpenError, advance, head_of},
};
use protocol::GenesisHash;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Task that keeps the connection.
pub(crate) struct Follower {
    pub(crate) url: Arc<str>,
    pub(crate) timing: Timing,
    /// Genesis of the first connection: every later one must have the same.
    pub(crate) genesis: GenesisHash,
    pub(crate) heads: watch::Sender<Head>,
    pub(crate) state: watch::Sender<ConnectionState>,
}

impl Follower {
    /// Follows the chain forever, starting with an open connection.
    pub(crate) async fn run(self, first: Arc<Link>) {
        let mut link = first;
        loop {
            self.state.send_replace(ConnectionState::Up(link.clone()));
            self.broadcast(&link, link.head());
            let why = tokio::select! {
                ended = self.follow(&link) => match ended {
                    Ok(never) => match never {},
                    Err(error) => error.to_string(),
                },
                // A new connection reads the new metadata.
                () = link.runtime_upgraded() => "its runtime was upgraded".to_owned(),
            };
            tracing::warn!(url = %self.url, why, "lost the connection to the chain; reconnecting");
            let lost = Instant::now();
            self.state.send_replace(ConnectionState::Down { why });
            link = self.reconnect().await;
            let away = lost.elapsed();
            tracing::info!(url = %self.url, ?away, head = %link.head().block, "reconnected to the chain");
        }
    }

    /// Broadcasts finalised blocks until the connection fails.
    async fn follow(&self, link: &Link) -> Result<std::convert::Infallible, LinkError> {
        let mut blocks = link.subscribe().await?;
        let mut stalled = false;
        loop {
            match tokio::time::timeout(self.timing.heartbeat, blocks.next()).await {
                Ok(Some(Ok(header))) => {
                    self.broadcast(link, head_of(&header)?);
                    stalled = false;
                }
                Ok(Some(Err(error))) => return Err(error.into()),
                Ok(None) => return Err(LinkError::Broken("it closed the connection".into())),
                // Either the chain finalises nothing, or the subscription or the machine failed.
                Err(_) => {
                    let head = link.finalised_head().await?;
                    if head.block > link.head().block {
                        return Err(LinkError::Broken("its subscription fell silent".into()));
                    }
                    if !stalled {
                        tracing::warn!(url = %self.url, block = %head.block, "no block is being finalised");
                    }
                    stalled = true;
                }
            }
        }
    }

    fn broadcast(&self, link: &Link, head: Head) {
        link.observe_head(head);
        let went_back = self.heads.borrow().block.0.saturating_sub(head.block.0);
        if went_back > 0 {
            // Possible only if the chain lost finalised blocks when it was stopped. A block is never broadcast twice.
            tracing::warn!(url = %self.url, block = %head.block, "the finalised chain went back by {went_back} blocks");
        }
        advance(&self.heads, head);
    }

    async fn reconnect(&self) -> Arc<Link> {
        let mut pause = self.timing.backoff_first;
        loop {
            tokio::time::sleep(jittered(pause)).await;
            pause = pause.saturating_mul(2).min(self.timing.backoff_longest);
            match Link::open(&self.url, Some(self.genesis), self.timing.request).await {
                Ok(link) => return Arc::new(link),
                Err(OpenError::Broken(why)) => {
                    tracing::debug!(url = %self.url, why, "the chain is still unreachable");
                    self.state.send_replace(ConnectionState::Down { why });
                }
                Err(OpenError::WrongChain(error)) => {
                    tracing::error!("{error}");
                    self.state.send_replace(ConnectionState::WrongChain(error));
                }
            }
        }
    }
}

/// Returns `pause` ± a quarter, so that many clients do not reconnect at the same moment.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0];
    // Without randomness the pause is only shorter.
    let _ = getrandom::fill(&mut random);
    pause.mul_f64(0.75 + f64::from(random[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_varies_by_a_quarter() {
        for _ in 0..100 {
            let pause = jittered(Duration::from_secs(4));
            assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&pause));
        }
    }
}
