//! The chain over the network: [`Chain`] as a Substrate node serves it.

use crate::{
    Amount, Balance, Call, Chain, ChainError, Draft, Head, Included,
    follow::{Follower, Line, Standing},
    keys::Key,
    link::{Link, OpenError},
    submit::{Clerk, Order, Stage},
    weight_vote,
};
use async_trait::async_trait;
use codec::{Decode, DecodeAll, Encode};
use futures::future::BoxFuture;
use protocol::{
    Block, Digest, Hotkey, RunId, Uid, Window,
    view::{Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, Verdict, WindowView},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

/// What the chain must be, besides one of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedChain {
    /// The hash of its first block. Where none is given, the first chain that is connected to is it: a later connection
    /// must lead to the same one.
    pub genesis: Option<Digest>,
}

/// How long things may take. The defaults suit blocks of 0.2 to 12 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the first connection is tried for.
    pub connect: Duration,
    /// How long a read waits for a chain that is away, and a submission for another finalised block.
    pub patience: Duration,
    /// How long one request may take.
    pub request: Duration,
    /// After so long without a finalised block the connection is tested.
    pub heartbeat: Duration,
    /// What was not taken or answered is tried again after so long.
    pub retry: Duration,
    /// The pause before the first new connection; it doubles from try to try …
    pub backoff_first: Duration,
    /// … up to this.
    pub backoff_longest: Duration,
    /// Blocks for which a signed call is valid: a power of two from 4 to 128. After so many it is known to be lost.
    pub era_blocks: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(10),
            patience: Duration::from_secs(120),
            request: Duration::from_secs(20),
            heartbeat: Duration::from_secs(15),
            retry: Duration::from_millis(500),
            backoff_first: Duration::from_millis(200),
            backoff_longest: Duration::from_secs(5),
            era_blocks: 64,
        }
    }
}

/// Calls that wait to be sent, at most: more than one process ever has.
const ORDERS_MAX: usize = 256;

/// The chain behind a WebSocket URL. Cheap to clone; the connection ends with the last clone.
#[derive(Clone)]
pub struct SubxtChain {
    inner: Arc<Inner>,
}

struct Inner {
    line: Line,
    account: Option<Account>,
    genesis: Digest,
    orders: Option<mpsc::Sender<Order>>,
    tasks: Vec<JoinHandle<()>>,
}

impl SubxtChain {
    /// Connects to the chain at `url` (`ws://` or `wss://`), sees to it that it is ours and the one expected, and
    /// follows it from then on. `key` signs what is submitted.
    ///
    /// Fails with [`ChainError::Unreachable`] if there is none within [`Timing::connect`], with
    /// [`ChainError::NotOurs`] if it is another, at once.
    pub async fn connect(
        url: &str,
        key: Option<Key>,
        expectations: ExpectedChain,
    ) -> Result<SubxtChain, ChainError> {
        SubxtChain::connect_timed(url, key, expectations, Timing::default()).await
    }

    /// [`SubxtChain::connect`] with another [`Timing`]. Boxed, so that no other crate compiles it again.
    pub fn connect_timed(
        url: &str,
        key: Option<Key>,
        expectations: ExpectedChain,
        timing: Timing,
    ) -> BoxFuture<'_, Result<SubxtChain, ChainError>> {
        Box::pin(SubxtChain::start(url, key, expectations, timing))
    }

    async fn start(
        url: &str,
        key: Option<Key>,
        expectations: ExpectedChain,
        timing: Timing,
    ) -> Result<SubxtChain, ChainError> {
        let invalid = |reason: &str| {
            Err(ChainError::Invalid { doing: format!("connecting to {url}"), reason: reason.to_owned() })
        };
        if !(url.starts_with("ws://") || url.starts_with("wss://")) {
            return invalid("a chain's URL starts with ws:// or wss://, as in ws://127.0.0.1:9944");
        }
        if !timing.era_blocks.is_power_of_two() || !(4..=128).contains(&timing.era_blocks) {
            return invalid("era_blocks must be a power of two from 4 to 128");
        }

        let first = Arc::new(first_link(url, expectations, timing).await?);
        let (tell_heads, heads) = watch::channel(first.head());
        let (tell_standing, standing) = watch::channel(Standing::Up(first.clone()));
        let url: Arc<str> = url.into();
        let genesis = first.genesis;
        let line = Line { url: url.clone(), timing, heads, standing };
        let follower = Follower { url, timing, genesis, heads: tell_heads, standing: tell_standing };
        let mut tasks = vec![tokio::spawn(follower.run(first))];

        let account = key.as_ref().map(Key::account);
        let orders = key.map(|key| {
            let (orders, taken) = mpsc::channel(ORDERS_MAX);
            tasks.push(tokio::spawn(Clerk::new(line.clone(), key).run(taken)));
            orders
        });
        Ok(SubxtChain { inner: Arc::new(Inner { line, account, genesis, orders, tasks }) })
    }

    /// The hash of the chain's first block.
    pub fn genesis(&self) -> Digest {
        self.inner.genesis
    }

    pub fn url(&self) -> &str {
        &self.inner.line.url
    }

    /// Calls a function of the runtime API as of the latest finalised block.
    async fn call_runtime<T: DecodeAll>(
        &self,
        doing: &str,
        method: &str,
        arguments: Vec<u8>,
    ) -> Result<T, ChainError> {
        let arguments = &arguments;
        self.inner
            .line
            .read(doing, |link| async move { link.call_runtime(method, arguments, &link.head()).await })
            .await
    }
}

/// Tries until [`Timing::connect`] has passed: whoever starts a chain and a client together need not mind the order.
async fn first_link(url: &str, expectations: ExpectedChain, timing: Timing) -> Result<Link, ChainError> {
    let started = Instant::now();
    loop {
        let why = match Link::open(url, expectations.genesis, timing.request.min(timing.connect)).await {
            Ok(link) => return Ok(link),
            Err(OpenError::NotOurs { wanted, found }) => {
                return Err(ChainError::NotOurs { url: url.to_owned(), wanted, found });
            }
            Err(OpenError::Broken(why)) => why,
        };
        let waited = started.elapsed();
        if waited + timing.backoff_first >= timing.connect {
            let doing = "connecting".to_owned();
            return Err(ChainError::Unreachable { doing, url: url.to_owned(), waited, last: why });
        }
        tokio::time::sleep(timing.backoff_first).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[async_trait]
impl Chain for SubxtChain {
    fn heads(&self) -> watch::Receiver<Head> {
        self.inner.line.heads.clone()
    }

    fn account(&self) -> Option<Account> {
        self.inner.account
    }

    async fn best_block(&self) -> Result<Block, ChainError> {
        let ask = |link: Arc<Link>| async move { link.best_block().await };
        self.inner.line.read("reading the newest block", ask).await
    }

    async fn runs(&self) -> Result<Vec<RunId>, ChainError> {
        self.call_runtime("listing the runs", "MettleApi_runs", Vec::new()).await
    }

    async fn run(&self, run: RunId) -> Result<RunView, ChainError> {
        let doing = format!("reading run {run}");
        let view: Option<RunView> = self.call_runtime(&doing, "MettleApi_run", run.encode()).await?;
        view.ok_or(ChainError::NoSuchRun(run))
    }

    async fn seats(&self, run: RunId) -> Result<Vec<SeatView>, ChainError> {
        let doing = format!("reading the seats of run {run}");
        self.call_runtime(&doing, "MettleApi_seats", run.encode()).await
    }

    async fn window(&self, run: RunId, window: Window) -> Result<Option<WindowView>, ChainError> {
        let doing = format!("reading window {} of run {run}", window.0);
        self.call_runtime(&doing, "MettleApi_window", (run, window).encode()).await
    }

    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        let doing = format!("reading the weights of run {run}");
        self.call_runtime(&doing, "MettleApi_weights", run.encode()).await
    }

    async fn balance(&self, account: &Account) -> Result<Balance, ChainError> {
        let doing = format!("reading the balance of {}", crate::keys::address(account));
        let read = |link: Arc<Link>| async move { link.account::<AccountInfo>(account, &link.head()).await };
        let info = self.inner.line.read(&doing, read).await?;
        Ok(info
            .map(|info| Balance { free: Amount(info.free), held: Amount(info.reserved) })
            .unwrap_or_default())
    }

    async fn status(&self, run: RunId) -> Result<RunStatus, ChainError> {
        let doing = format!("reading the status of run {run}");
        let status: Option<RunStatus> =
            self.call_runtime(&doing, "MettleApi_run_status", run.encode()).await?;
        status.ok_or(ChainError::NoSuchRun(run))
    }

    async fn seat_statuses(&self, run: RunId, from: Uid, limit: u32) -> Result<Vec<SeatStatus>, ChainError> {
        let doing = format!("reading the seats of run {run}");
        self.call_runtime(&doing, "MettleApi_seat_statuses", (run, from, limit).encode()).await
    }

    async fn account_status(&self, run: RunId, account: &Account) -> Result<AccountStatus, ChainError> {
        let doing = format!("reading what {} has in run {run}", crate::keys::address(account));
        self.call_runtime(&doing, "MettleApi_account_status", (run, account).encode()).await
    }

    async fn payslips(&self, run: RunId, uid: Uid) -> Result<Vec<Payslip>, ChainError> {
        let doing = format!("reading the payslips of uid {uid} of run {run}");
        self.call_runtime(&doing, "MettleApi_payslips", (run, uid).encode()).await
    }

    async fn weight_vote(
        &self,
        run: RunId,
        epoch: u32,
        hotkey: &Hotkey,
    ) -> Result<Option<Vec<(Uid, u16)>>, ChainError> {
        let doing = format!("reading what was posted for epoch {epoch} of run {run}");
        let params = self.run(run).await?.params;
        let head = self.heads().borrow().block;
        let hash = Call::CommitWeights { run, epoch, hash: Digest::default() };
        let weights = Call::RevealWeights { run, epoch, weights: Vec::new(), salt: [0; 32] };
        let (hash, weights) = (&hash, &weights);
        let line = &self.inner.line;
        let [commit, reveal] = line
            .read(&doing, |link| async move { Ok([link.call_index(hash)?, link.call_index(weights)?]) })
            .await?;
        let calls =
            |number: u32| line.read(&doing, move |link| async move { link.block(Block(number)).await });

        // A ballot is bound once, mostly as its epoch ends.
        let mut bound = None;
        for number in weight_vote::until(weight_vote::commit_blocks(&params, epoch), head).rev() {
            let Some((_, calls)) = calls(number).await? else { return Ok(None) };
            bound = calls.iter().find_map(|bytes| weight_vote::committed(bytes, commit, run, epoch, hotkey));
            if bound.is_some() {
                break;
            }
        }
        let Some(bound) = bound else { return Ok(None) };
        for number in weight_vote::until(weight_vote::reveal_blocks(&params, epoch), head) {
            let Some((_, calls)) = calls(number).await? else { return Ok(None) };
            let mut shown =
                calls.iter().filter_map(|bytes| weight_vote::revealed(bytes, reveal, run, epoch, hotkey));
            if let Some((weights, _)) = shown.find(|(_, hash)| *hash == bound) {
                return Ok(Some(weights));
            }
        }
        Ok(None)
    }

    async fn attestation(
        &self,
        run: RunId,
        window: Window,
        validator: Uid,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, ChainError> {
        let doing = format!("reading what uid {validator} attested in window {} of run {run}", window.0);
        let read =
            |link: Arc<Link>| async move { link.attestation(run, window, validator, &link.head()).await };
        self.inner.line.read(&doing, read).await
    }

    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        let doing = format!("reading the bonds of uid {validator} of run {run}");
        self.call_runtime(&doing, "MettleApi_consensus_bonds", (run, validator).encode()).await
    }

    async fn block_time(&self) -> Result<Duration, ChainError> {
        let doing = "reading how long a block takes";
        let millis: u64 = self.call_runtime(doing, "AuraApi_slot_duration", Vec::new()).await?;
        Ok(Duration::from_millis(millis))
    }

    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError> {
        let doing = format!("estimating the fee of {call}");
        self.inner.line.read(&doing, |link| async move { link.draft(call, from).await }).await
    }

    async fn submit(&self, call: Call) -> Result<Included, ChainError> {
        let doing = call.to_string();
        let Some(orders) = &self.inner.orders else {
            return Err(ChainError::NoSigner { doing });
        };
        let stopped = || ChainError::Stopped { part: "submitter" };
        let (reply, mut answer) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        orders.send(Order { call, reply, stage: stage.clone() }).await.map_err(|_| stopped())?;

        // As long as blocks are finalised the clerk comes to an end by itself. Only their absence needs our patience.
        let line = &self.inner.line;
        let mut heads = line.heads.clone();
        let mut standing = line.standing.clone();
        let mut last_news = Instant::now();
        loop {
            let left = line.timing.patience.saturating_sub(last_news.elapsed());
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or_else(|_| Err(stopped())),
                changed = heads.changed() => {
                    changed.map_err(|_| ChainError::Stopped { part: "follower of finalised blocks" })?;
                    last_news = Instant::now();
                }
                Ok(_) = standing.wait_for(|standing| matches!(standing, Standing::NotOurs(_))) => {
                    if let Standing::NotOurs(error) = &*line.standing.borrow() {
                        stage.give_up();
                        return Err(error.clone());
                    }
                }
                () = tokio::time::sleep(left) => {
                    let (waited, sent) = (last_news.elapsed(), stage.give_up());
                    return Err(match &*line.standing.borrow() {
                        Standing::Up(_) => ChainError::TimedOut { doing, waited, sent },
                        Standing::Down { why } if sent => {
                            line.unreachable(&doing, waited, format!("{why}; the call was sent and may still be included"))
                        }
                        Standing::Down { why } => line.unreachable(&doing, waited, why.clone()),
                        Standing::NotOurs(error) => error.clone(),
                    });
                }
            }
        }
    }
}

/// FRAME's `AccountInfo` with the balance pallet's `AccountData`.
#[derive(Decode)]
struct AccountInfo {
    _nonce: u32,
    _consumers: u32,
    _providers: u32,
    _sufficients: u32,
    free: u128,
    reserved: u128,
    _frozen: u128,
    _flags: u128,
}
