//! The chain over the network: [`Chain`] over the RPC of a Substrate node.

use crate::{
    Amount, Balance, Call, Chain, ChainError, Draft, Head,
    connection::{Connection, ConnectionState, Timing},
    follow::Follower,
    keys::Key,
    link::{Link, OpenError},
    offline::{SignedCall, UnsignedCall, VALID_BLOCKS},
    submit::{BROADCAST_AGAIN_BLOCKS, Request, SendState, Submitter, is_known_to_pool},
    weight_vote,
};
use async_trait::async_trait;
use codec::{Decode, DecodeAll, Encode};
use futures::future::BoxFuture;
use protocol::{
    Block, Digest, GenesisHash, Hotkey, RunId, RunParams, Terms, Uid, Window,
    view::{
        Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, SeatWindow, Verdict,
        WindowSummary, WindowView,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

/// Maximum number of requests that wait for the submitter.
const REQUESTS_MAX: usize = 256;

/// Number of blocks of one measurement of the block time.
const MEASURED_BLOCKS: u32 = 16;

/// Blocks between which it is measured, as numbers of blocks before the head.
const MEASURED: [u32; 4] = [3 * MEASURED_BLOCKS, 2 * MEASURED_BLOCKS, MEASURED_BLOCKS, 0];

/// The chain behind a WebSocket URL. Cheap to clone; the connection ends with the last clone.
#[derive(Clone)]
pub struct SubxtChain {
    inner: Arc<Inner>,
    /// Amount paid on top of each fee.
    tip: Amount,
}

struct Inner {
    connection: Connection,
    account: Option<Account>,
    genesis: GenesisHash,
    is_development: bool,
    requests: Option<mpsc::Sender<Request>>,
    tasks: Vec<JoinHandle<()>>,
}

impl SubxtChain {
    /// Connects to the chain at `url` (`ws://` or `wss://`), checks that it is compatible with this release, and
    /// follows it. Later connections must lead to the same chain. `key` signs submissions. Boxed, so that other crates
    /// do not compile it again.
    ///
    /// # Errors
    /// [`ChainError::Unreachable`] after [`Timing::connect`]; [`ChainError::WrongChain`] and [`ChainError::Invalid`]
    /// at once.
    pub fn connect(url: &str, key: Option<Key>) -> BoxFuture<'_, Result<SubxtChain, ChainError>> {
        SubxtChain::connect_to(url, key, None)
    }

    /// Connects as [`SubxtChain::connect`] does, with the same errors. With `genesis`, accepts only the chain whose
    /// block 0 has this hash.
    pub fn connect_to(
        url: &str,
        key: Option<Key>,
        genesis: Option<GenesisHash>,
    ) -> BoxFuture<'_, Result<SubxtChain, ChainError>> {
        Box::pin(SubxtChain::connect_timed(url, key, genesis, Timing::default()))
    }

    /// Connects as [`SubxtChain::connect_to`] does, with another [`Timing`] and the same errors.
    pub async fn connect_timed(
        url: &str,
        key: Option<Key>,
        genesis: Option<GenesisHash>,
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

        let first = Arc::new(first_link(url, genesis, timing).await?);
        let (tell_heads, heads) = watch::channel(first.head());
        let (tell_state, state) = watch::channel(ConnectionState::Up(first.clone()));
        let url: Arc<str> = url.into();
        let (genesis, is_development) = (first.genesis, first.is_development);
        let connection = Connection { url: url.clone(), timing, heads, state };
        let follower = Follower { url, timing, genesis, heads: tell_heads, state: tell_state };
        let mut tasks = vec![tokio::spawn(follower.run(first))];

        let account = key.as_ref().map(Key::account);
        let requests = key.map(|key| {
            let (requests, received) = mpsc::channel(REQUESTS_MAX);
            tasks.push(tokio::spawn(Submitter::new(connection.clone(), key).run(received)));
            requests
        });
        let inner = Inner { connection, account, genesis, is_development, requests, tasks };
        Ok(SubxtChain { inner: Arc::new(inner), tip: Amount::ZERO })
    }

    /// Returns a client that pays `tip` on top of the fee of each call that it submits. When blocks are full, authors
    /// prefer such calls.
    pub fn with_tip(self, tip: Amount) -> SubxtChain {
        SubxtChain { tip, ..self }
    }

    pub fn url(&self) -> &str {
        &self.inner.connection.url
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
            .connection
            .read(doing, |link| async move { link.call_runtime(method, arguments, &link.head()).await })
            .await
    }
}

/// Retries until [`Timing::connect`] has passed, so that a chain and its clients may be started in any order.
async fn first_link(url: &str, genesis: Option<GenesisHash>, timing: Timing) -> Result<Link, ChainError> {
    let started = Instant::now();
    loop {
        let why = match Link::open(url, genesis, timing.request.min(timing.connect)).await {
            Ok(link) => return Ok(link),
            Err(OpenError::WrongChain(error)) => return Err(error),
            Err(OpenError::Broken(why)) => why,
        };
        let waited = started.elapsed();
        if waited + timing.backoff_first >= timing.connect {
            let (doing, url) = ("connecting".into(), url.into());
            return Err(ChainError::Unreachable { doing, url, waited, last: why, sent: false });
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
    fn genesis(&self) -> GenesisHash {
        self.inner.genesis
    }

    fn is_development(&self) -> bool {
        self.inner.is_development
    }

    fn heads(&self) -> watch::Receiver<Head> {
        self.inner.connection.heads.clone()
    }

    fn account(&self) -> Option<Account> {
        self.inner.account
    }

    async fn best_block(&self) -> Result<Block, ChainError> {
        let ask = |link: Arc<Link>| async move { link.best_block().await };
        self.inner.connection.read("reading the newest block", ask).await
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

    async fn seat(&self, run: RunId, uid: Uid) -> Result<Option<SeatView>, ChainError> {
        let doing = format!("reading uid {uid} of run {run}");
        self.call_runtime(&doing, "MettleApi_seat", (run, uid).encode()).await
    }

    async fn window_summary(&self, run: RunId, window: Window) -> Result<Option<WindowSummary>, ChainError> {
        let doing = format!("reading window {} of run {run}", window.0);
        self.call_runtime(&doing, "MettleApi_window_summary", (run, window).encode()).await
    }

    async fn seat_window(
        &self,
        run: RunId,
        window: Window,
        uid: Uid,
    ) -> Result<Option<SeatWindow>, ChainError> {
        let doing = format!("reading window {} of uid {uid} of run {run}", window.0);
        self.call_runtime(&doing, "MettleApi_seat_window", (run, window, uid).encode()).await
    }

    async fn update_mirrors(
        &self,
        run: RunId,
        window: Window,
        turn: u32,
        limit: u32,
    ) -> Result<Vec<String>, ChainError> {
        let doing = format!("reading who has the update of window {} of run {run}", window.0);
        self.call_runtime(&doing, "MettleApi_update_mirrors", (run, window, turn, limit).encode()).await
    }

    async fn weights(&self, run: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        let doing = format!("reading the weights of run {run}");
        self.call_runtime(&doing, "MettleApi_weights", run.encode()).await
    }

    async fn balance(&self, account: &Account) -> Result<Balance, ChainError> {
        let doing = format!("reading the balance of {}", crate::keys::address(account));
        let read = |link: Arc<Link>| async move { link.account::<AccountInfo>(account, &link.head()).await };
        let info = self.inner.connection.read(&doing, read).await?;
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
        let doing = format!("reading the weight vote of epoch {epoch} of run {run}");
        let params = self.run(run).await?.params;
        let head = self.heads().borrow().block;
        let commit = &Call::CommitWeights { run, epoch, hash: Digest::default() };
        let reveal = &Call::RevealWeights { run, epoch, weights: Vec::new(), salt: [0; 32] };
        let connection = &self.inner.connection;
        let [commit, reveal] = connection
            .read(&doing, |link| async move { Ok([link.call_index(commit)?, link.call_index(reveal)?]) })
            .await?;
        let calls =
            |number: u32| connection.read(&doing, move |link| async move { link.block(Block(number)).await });

        // A validator commits once, usually at the end of the epoch.
        let mut hash = None;
        for number in weight_vote::until(weight_vote::commit_blocks(&params, epoch), head).rev() {
            let Some((_, calls)) = calls(number).await? else { return Ok(None) };
            hash = calls.iter().find_map(|bytes| weight_vote::committed(bytes, commit, run, epoch, hotkey));
            if hash.is_some() {
                break;
            }
        }
        let Some(committed) = hash else { return Ok(None) };
        for number in weight_vote::until(weight_vote::reveal_blocks(&params, epoch), head) {
            let Some((_, calls)) = calls(number).await? else { return Ok(None) };
            let mut revealed =
                calls.iter().filter_map(|bytes| weight_vote::revealed(bytes, reveal, run, epoch, hotkey));
            if let Some((weights, _)) = revealed.find(|(_, hash)| *hash == committed) {
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
        self.inner.connection.read(&doing, read).await
    }

    async fn head_time(&self) -> Result<Option<Duration>, ChainError> {
        let read = |link: Arc<Link>| async move { link.timestamp(&link.head()).await };
        let millis = self.inner.connection.read("reading the time of the latest block", read).await?;
        Ok(millis.map(Duration::from_millis))
    }

    async fn bonds(&self, run: RunId, validator: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        let doing = format!("reading the bonds of uid {validator} of run {run}");
        self.call_runtime(&doing, "MettleApi_consensus_bonds", (run, validator).encode()).await
    }

    async fn block_time(&self) -> Result<Duration, ChainError> {
        let doing = "reading how long a block takes";
        let times = |link: Arc<Link>| async move {
            let head = link.head();
            let times = MEASURED.map(|before| link.time_before(&head, before));
            futures::future::try_join_all(times).await
        };
        let times = self.inner.connection.read(doing, times).await?;
        if let Some(measured) = measured_block_time(&times) {
            return Ok(measured);
        }
        let millis: u64 = self.call_runtime(doing, "AuraApi_slot_duration", Vec::new()).await?;
        Ok(Duration::from_millis(millis))
    }

    async fn run_deposit(&self, params: &RunParams, terms: &Terms) -> Result<Option<Amount>, ChainError> {
        let read = |link: Arc<Link>| async move {
            Ok((link.constant("Registry", "RunDeposit")?, link.constant("Registry", "RateDeposit")?))
        };
        let (base, rate) = self.inner.connection.read("reading the deposit of a run", read).await?;
        // The same formula as in the registry's rules.
        let seats = u128::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
        let blocks = u128::from(params.schedule.blocks_per_window).max(1);
        Ok(Some(base.saturating_add(Amount(rate.0.saturating_mul(seats).div_ceil(blocks)))))
    }

    async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, ChainError> {
        let doing = format!("estimating the fee of {call}");
        self.inner.connection.read(&doing, |link| async move { link.draft(call, from).await }).await
    }

    async fn unsigned(
        &self,
        calls: &[Call],
        from: &Account,
        tip: Amount,
    ) -> Result<Option<Vec<UnsignedCall>>, ChainError> {
        let read = |link: Arc<Link>| async move {
            let first = link.nonce(from, &link.best().await?).await?;
            let (head, mut unsigned) = (link.head(), Vec::new());
            for (nonce, call) in (first..).zip(calls) {
                unsigned.push(link.unsigned(call, tip, from, nonce, &head, VALID_BLOCKS).await?);
            }
            Ok(Some(unsigned))
        };
        self.inner.connection.read("preparing calls for a signer", read).await
    }

    async fn submit_signed(&self, call: &SignedCall) -> Result<Head, ChainError> {
        let (connection, doing, bytes) = (&self.inner.connection, &call.what, &call.bytes);
        let account = &call.account;
        // These bytes can no longer be included in a block.
        let never = |reason: String| {
            let reason = format!("{reason}. Write the file again, and have it signed again");
            Err(ChainError::Invalid { doing: doing.clone(), reason })
        };
        let mut heads = connection.heads.clone();
        // Another attempt may have been included. An era's first block is the one at which the call was signed.
        let mut next = call.valid_until.0.saturating_sub(VALID_BLOCKS.saturating_sub(2));
        let mut sent: Option<Block> = None;
        loop {
            heads.mark_unchanged();
            let read = |link: Arc<Link>| async move {
                let head = link.head();
                Ok((head.block, link.nonce(account, &head).await?))
            };
            let (head, nonce) = connection.read(doing, read).await?;
            // A search is needed only for a used nonce.
            if call.nonce < nonce {
                let mut pruned = None;
                for number in next..=head.0.min(call.valid_until.0) {
                    let read = |link: Arc<Link>| async move { link.block(Block(number)).await };
                    let Some((block, calls)) = connection.read(doing, read).await? else {
                        pruned = Some(number);
                        continue;
                    };
                    if let Some(index) = calls.iter().position(|included| included == bytes) {
                        let read = |link: Arc<Link>| async move { link.failure(&block, index, doing).await };
                        return connection.read(doing, read).await?.map_or(Ok(block), Err);
                    }
                }
                let Some(number) = pruned else {
                    return never("another call of this account took its nonce".into());
                };
                let reason = format!("its nonce was used, and block {number}, which may hold it, is pruned");
                return Err(ChainError::Uncertain { doing: doing.clone(), reason });
            }
            next = next.max(head.0.saturating_add(1));
            if call.valid_until <= head {
                return never(format!("it was valid until block {}", call.valid_until.0));
            }
            let is_due = sent.is_none_or(|at| at.0.saturating_add(BROADCAST_AGAIN_BLOCKS) <= head.0);
            if is_due {
                let send = |link: Arc<Link>| async move { link.broadcast(bytes).await };
                match connection.read(doing, send).await {
                    Ok(()) => {}
                    // The pool contains it, or a block that is not final yet.
                    Err(error) if sent.is_some() || is_known_to_pool(&error) => {
                        tracing::debug!(%error, "broadcast again and rejected");
                    }
                    Err(error) => return Err(error),
                }
                sent = Some(head);
            }
            let waited = connection.timing.patience;
            match tokio::time::timeout(waited, heads.changed()).await {
                Ok(changed) => {
                    changed.map_err(|_| ChainError::Stopped { part: "follower of finalised blocks" })?
                }
                Err(_) => return Err(ChainError::TimedOut { doing: doing.clone(), waited, sent: true }),
            }
        }
    }

    async fn submit(&self, call: Call) -> Result<Head, ChainError> {
        let tip = self.tip;
        let doing = call.to_string();
        let Some(requests) = &self.inner.requests else {
            return Err(ChainError::NoSigner { doing });
        };
        let stopped = || ChainError::Stopped { part: "submitter" };
        let (reply, mut answer) = oneshot::channel();
        let sending = Arc::new(SendState::default());
        requests.send(Request { call, tip, reply, sending: sending.clone() }).await.map_err(|_| stopped())?;

        // While blocks are finalised, the submitter always answers. The caller times out only without new blocks.
        let connection = &self.inner.connection;
        let mut heads = connection.heads.clone();
        let mut state = connection.state.clone();
        let mut last_news = Instant::now();
        loop {
            let left = connection.timing.patience.saturating_sub(last_news.elapsed());
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or_else(|_| Err(stopped())),
                changed = heads.changed() => {
                    changed.map_err(|_| ChainError::Stopped { part: "follower of finalised blocks" })?;
                    last_news = Instant::now();
                }
                Ok(_) = state.wait_for(|state| matches!(state, ConnectionState::WrongChain(_))) => {
                    if let ConnectionState::WrongChain(error) = &*connection.state.borrow() {
                        sending.give_up();
                        return Err(error.clone());
                    }
                }
                () = tokio::time::sleep(left) => {
                    let (waited, sent) = (last_news.elapsed(), sending.give_up());
                    return Err(match &*connection.state.borrow() {
                        ConnectionState::Up(_) => ChainError::TimedOut { doing, waited, sent },
                        ConnectionState::Down { why } => {
                            connection.unreachable(&doing, waited, why.clone(), sent)
                        }
                        ConnectionState::WrongChain(error) => error.clone(),
                    });
                }
            }
        }
    }
}

/// Returns the median time of a block between consecutive `times`, in milliseconds: one halt of the chain does not
/// count. `None` if too few are known.
fn measured_block_time(times: &[Option<u64>]) -> Option<Duration> {
    let known = |pair: &[Option<u64>]| match *pair {
        [Some(from), Some(to)] if from < to => Some(to.saturating_sub(from)),
        _ => None,
    };
    let mut spans: Vec<u64> = times.windows(2).filter_map(known).collect();
    spans.sort_unstable();
    let median = spans.get(spans.len().saturating_sub(1) / 2)?;
    Some(Duration::from_millis(*median) / MEASURED_BLOCKS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_time_is_the_median_of_what_the_blocks_say() {
        let measured = |times: &[Option<u64>]| measured_block_time(times).map(|time| time.as_millis());
        assert_eq!(measured(&[Some(1000), Some(7400), Some(13_800), Some(20_200)]), Some(400));
        // A halt of an hour.
        assert_eq!(measured(&[Some(1000), Some(3_601_000), Some(3_607_400), Some(3_613_800)]), Some(400));
        assert_eq!(measured(&[None, None, Some(1000), Some(97_000)]), Some(6000));
        // A young chain, and one whose old states are pruned.
        assert_eq!(measured(&[None, None, None, Some(1000)]), None);
        assert_eq!(measured(&[None, Some(1000), None, Some(2000)]), None);
        assert_eq!(measured(&[Some(2000), Some(1000)]), None);
    }
}
