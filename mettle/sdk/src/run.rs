//! A run of a chain, and what the chain says of it.

use crate::Error;
use chain_client::{Chain, ChainError, SubxtChain, Timing, is_private};
use daemon::PublishedRun;
use protocol::{
    GenesisHash, RunId, RunParams, Uid, Window,
    receipt::SEATS_MAX,
    view::{Payslip, RunStatus, RunView, SeatStatus, WindowView},
};
use std::{sync::Arc, time::Duration};
use store::{HttpFetcher, fetch::AllMirrorsFailed};
use tokio::sync::OnceCell;

/// Windows that the chain keeps: older ones are forgotten.
pub const WINDOWS_KEPT: u32 = 128;
/// Seats that are read at once.
const SEATS_AT_ONCE: u32 = 256;
/// How long a read waits for a chain that does not answer, unless the caller says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// URL of the chain's JSON-RPC, such as `ws://127.0.0.1:9944`.
    pub url: String,
    pub run: RunId,
    /// The hash of the chain's block 0. A chain with another one is refused. Required but on a development chain.
    pub genesis: Option<GenesisHash>,
    /// Allows `ws://` to a host that is not in a private network.
    pub allow_plain_ws: bool,
    /// How long a read waits for a chain that does not answer.
    pub patience: Duration,
}

impl Source {
    /// Run 0 of the chain at `url`.
    pub fn new(url: impl Into<String>) -> Source {
        let url = url.into();
        Source { url, run: RunId(0), genesis: None, allow_plain_ws: false, patience: PATIENCE }
    }

    /// The chain, followed by its finalised blocks. The same rules as for nodes: a chain whose answers anybody on the
    /// way could change, or that nothing names, is refused.
    async fn connect(&self) -> Result<Arc<dyn Chain>, Error> {
        let Source { url, genesis, allow_plain_ws, patience, .. } = self;
        if url.starts_with("ws://") && !is_private(url) && !allow_plain_ws {
            return Err(Error::PlainUrl { url: url.clone() });
        }
        let usual = Timing::default();
        let timing = Timing { patience: *patience, connect: usual.connect.min(*patience), ..usual };
        let chain = SubxtChain::connect_timed(url, None, *genesis, timing).await?;
        if genesis.is_none() && !chain.is_development() {
            return Err(Error::UnnamedChain { url: url.clone(), found: chain.genesis() });
        }
        Ok(Arc::new(chain))
    }
}

/// The runs of the chain, by id. `source.run` does not matter.
///
/// # Errors
/// If the chain is refused or does not answer.
pub async fn runs(source: &Source) -> Result<Vec<RunId>, Error> {
    Ok(source.connect().await?.runs().await?)
}

/// A run, read from a chain and from public buckets. Clones share the connection, which ends with the last of them.
///
/// Everything is of the latest finalised block. Nothing is signed, and no key is needed.
#[derive(Clone)]
pub struct Run {
    chain: Arc<dyn Chain>,
    fetch: Arc<HttpFetcher>,
    id: RunId,
    params: RunParams,
    specification: Arc<OnceCell<model::RunSpec>>,
}

impl Run {
    /// Opens a run. No bucket is asked yet.
    ///
    /// # Errors
    /// If the chain is refused or does not answer, or has no such run.
    pub async fn open(source: &Source) -> Result<Run, Error> {
        let chain = source.connect().await?;
        let RunView { id, params, .. } = chain.run(source.run).await?;
        let fetch = daemon::open::fetcher(&*chain, &params).map_err(|error| Error::Client(error.into()))?;
        Ok(Run { chain, fetch: Arc::new(fetch), id, params, specification: Arc::default() })
    }

    pub fn id(&self) -> RunId {
        self.id
    }

    /// What the run cannot change.
    pub fn params(&self) -> &RunParams {
        &self.params
    }

    /// The hash of the chain's block 0.
    pub fn genesis(&self) -> GenesisHash {
        self.chain.genesis()
    }

    pub fn chain(&self) -> &Arc<dyn Chain> {
        &self.chain
    }

    pub(crate) fn fetcher(&self) -> &HttpFetcher {
        &self.fetch
    }

    /// Where the run stands: window, seats, terms and treasury.
    pub async fn status(&self) -> Result<RunStatus, Error> {
        Ok(self.chain.status(self.id).await?)
    }

    /// All seats, in uid order.
    pub async fn seats(&self) -> Result<Vec<SeatStatus>, Error> {
        let (mut seats, mut from) = (Vec::new(), Uid(0));
        loop {
            let part = self.chain.seat_statuses(self.id, from, SEATS_AT_ONCE).await?;
            let last = part.last().map(|status: &SeatStatus| status.seat.id.uid);
            seats.extend(part);
            // A chain that repeats itself does not lead on.
            match last.filter(|last| from <= *last).and_then(|last| last.0.checked_add(1)) {
                Some(next) if seats.len() < SEATS_MAX => from = Uid(next),
                _ => return Ok(seats),
            }
        }
    }

    /// One window.
    ///
    /// # Errors
    /// [`Error::NoWindow`] if it has not opened, or the chain has forgotten it.
    pub async fn window(&self, window: Window) -> Result<WindowView, Error> {
        let view = self.chain.window(self.id, window).await?;
        view.ok_or(Error::NoWindow { run: self.id, window })
    }

    /// The newest windows, at most `last` and [`WINDOWS_KEPT`], in order. The last one is open; none before the run
    /// starts.
    pub async fn windows(&self, last: u32) -> Result<Vec<WindowView>, Error> {
        let Some(open) = self.params.schedule.window_at(self.chain.heads().borrow().block) else {
            return Ok(Vec::new());
        };
        let first = (open.0.saturating_add(1)).saturating_sub(last.min(WINDOWS_KEPT));
        let mut windows = Vec::new();
        for window in (first..=open.0).map(Window) {
            windows.extend(self.chain.window(self.id, window).await?);
        }
        Ok(windows)
    }

    /// A seat's pay, by epoch, the latest last. The chain keeps 64 epochs.
    pub async fn pay(&self, uid: Uid) -> Result<Vec<Payslip>, Error> {
        Ok(self.chain.payslips(self.id, uid).await?)
    }

    /// The run as it is now, with its specification, which a bucket gives.
    ///
    /// # Errors
    /// If no bucket gives the specification, or it cannot be used.
    pub async fn published(&self) -> Result<PublishedRun, Error> {
        let run = self.chain.run(self.id).await?;
        let fetched = self.specification.get_or_try_init(|| async {
            daemon::open::specification(&*self.chain, &*self.fetch, &run).await.map_err(|error| {
                match error.downcast::<ChainError>() {
                    Ok(error) => error.into(),
                    Err(error) => match error.downcast::<AllMirrorsFailed>() {
                        Ok(source) => Error::Fetch { what: "the run's specification", source },
                        Err(error) => Error::Specification(error.into()),
                    },
                }
            })
        });
        let spec = fetched.await?.clone();
        Ok(PublishedRun { chain: self.chain.clone(), fetch: self.fetch.clone(), run, spec })
    }

    /// The window that is open now.
    pub(crate) fn now(&self) -> Window {
        let head = self.chain.heads().borrow().block;
        self.params.schedule.window_at(head).unwrap_or(Window::FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[tokio::test]
    async fn a_url_that_leads_nowhere_or_over_an_open_network_is_refused() {
        let open = async |source: &Source| Run::open(source).await.err().expect("it is refused");
        let mut source = Source::new("ws://rpc.example:9944");
        assert!(matches!(open(&source).await, Error::PlainUrl { .. }));
        source.url = "http://127.0.0.1:9944".into();
        assert_eq!(open(&source).await.kind(), Kind::Usage);
        source.url = "ws://127.0.0.1:1".into();
        source.patience = Duration::from_millis(300);
        let refused = open(&source).await;
        assert_eq!(refused.kind(), Kind::Chain);
        assert!(refused.why().contains("ws://127.0.0.1:1"), "{}", refused.why());
    }
}
