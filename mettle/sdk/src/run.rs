//! A run of a chain, with the chain's data on it.

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

/// Number of windows that the chain keeps; older ones are removed.
pub const WINDOWS_KEPT: u32 = 128;
/// Number of seats that are read at once.
const SEATS_AT_ONCE: u32 = 256;
/// Default time limit of a read from the chain.
const PATIENCE: Duration = Duration::from_secs(30);

/// Location of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// URL of the chain's JSON-RPC, such as `ws://127.0.0.1:9944`.
    pub url: String,
    pub run: RunId,
    /// The hash of the chain's block 0; another chain is refused. Required except on a development chain.
    pub genesis: Option<GenesisHash>,
    /// Allows `ws://` to a host that is not in a private network.
    pub allow_plain_ws: bool,
    /// Time limit of a read from the chain.
    pub patience: Duration,
}

impl Source {
    /// Returns run 0 of the chain at `url`.
    pub fn new(url: impl Into<String>) -> Source {
        let url = url.into();
        Source { url, run: RunId(0), genesis: None, allow_plain_ws: false, patience: PATIENCE }
    }

    /// Connects to the chain and follows its finalised blocks. As for nodes, a chain is refused if the network could
    /// change its answers or if its genesis hash is not given.
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

/// Returns the runs of the chain, by id. `source.run` does not matter.
///
/// # Errors
/// If the chain is refused or does not answer.
pub async fn runs(source: &Source) -> Result<Vec<RunId>, Error> {
    Ok(source.connect().await?.runs().await?)
}

/// A run, read from a chain and from public buckets. Clones share the connection, which ends with the last of them.
/// All data is of the latest finalised block. Nothing is signed, and no key is needed.
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
    /// Opens a run. Does not access a bucket yet.
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

    /// Returns the run's immutable parameters.
    pub fn params(&self) -> &RunParams {
        &self.params
    }

    /// Returns the hash of the chain's block 0.
    pub fn genesis(&self) -> GenesisHash {
        self.chain.genesis()
    }

    pub fn chain(&self) -> &Arc<dyn Chain> {
        &self.chain
    }

    pub(crate) fn fetcher(&self) -> &HttpFetcher {
        &self.fetch
    }

    /// Returns the state of the run: window, seats, terms and treasury.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn status(&self) -> Result<RunStatus, Error> {
        Ok(self.chain.status(self.id).await?)
    }

    /// Returns all seats in uid order.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn seats(&self) -> Result<Vec<SeatStatus>, Error> {
        let (mut seats, mut from) = (Vec::new(), Uid(0));
        loop {
            let part = self.chain.seat_statuses(self.id, from, SEATS_AT_ONCE).await?;
            let last = part.last().map(|status: &SeatStatus| status.seat.id.uid);
            seats.extend(part);
            // Stops at a chain that repeats itself.
            match last.filter(|last| from <= *last).and_then(|last| last.0.checked_add(1)) {
                Some(next) if seats.len() < SEATS_MAX => from = Uid(next),
                _ => return Ok(seats),
            }
        }
    }

    /// Returns one window.
    ///
    /// # Errors
    /// [`Error::NoWindow`] if it has not opened, or the chain has removed it.
    pub async fn window(&self, window: Window) -> Result<WindowView, Error> {
        let view = self.chain.window(self.id, window).await?;
        view.ok_or(Error::NoWindow { run: self.id, window })
    }

    /// Returns the newest windows in order, at most `last` and [`WINDOWS_KEPT`]. The last one is open. Returns none
    /// before the run starts.
    ///
    /// # Errors
    /// If the chain does not answer.
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

    /// Returns a seat's pay by epoch, the latest last. The chain keeps 64 epochs.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn pay(&self, uid: Uid) -> Result<Vec<Payslip>, Error> {
        Ok(self.chain.payslips(self.id, uid).await?)
    }

    /// Returns the current run with its specification, from a bucket.
    ///
    /// # Errors
    /// If no bucket has the specification, or it cannot be used.
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

    /// Returns the open window.
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
