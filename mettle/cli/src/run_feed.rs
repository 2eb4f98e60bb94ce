//! A run as it changes, for `mettle web` and `mettle top`: the chain at each block, and validators' public receipts.

use anyhow::Context as _;
use chain_client::Chain;
use daemon::{error_chain, open};
use model::RunSpec;
use protocol::{
    RunId, RunParams, Uid, Window, receipt,
    view::{RunStatus, RunView},
};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use store::Fetch;
use tokio::sync::{mpsc, watch::Receiver};
use watch::{
    observe::{Absence, Observer},
    receipts::{WindowReceipts, receipts_of},
};

/// Time limit for fetching the run's specification.
const SPEC_WITHIN: Duration = Duration::from_secs(10);
/// Interval between reads while no block is finalised, so that a silent chain is shown as such.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of validators whose receipts of each window are read, those with the most stake.
const RECEIPTS_MAX: usize = 3;
/// Number of windows within which validators upload a receipt after it may be public.
const PUBLISHED_WITHIN_WINDOWS: u32 = 2;
/// Interval between measurements of the block time.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of read receipts that wait.
const RECEIPTS_WAITING_MAX: usize = 2;

/// Receives reports of failed reads. A program that draws on the terminal shows them in its own way.
pub(crate) type Warn = fn(&str);

/// The public state of a run.
pub(crate) struct RunFeed {
    pub chain: Arc<dyn Chain>,
    pub fetch: Arc<dyn Fetch>,
    pub observer: Observer,
    /// Interval between two blocks.
    pub block_time: Duration,
    measured: Instant,
    heads: Receiver<chain_client::Head>,
    /// Time of the last block; initially that of opening the feed.
    seen: Instant,
    receipts: mpsc::Receiver<WindowReceipts>,
    warn: Warn,
    _reading: AbortOnDrop,
}

impl RunFeed {
    pub async fn open(chain: Arc<dyn Chain>, run: RunId, warn: Warn) -> anyhow::Result<RunFeed> {
        let RunStatus { run, .. } = chain.status(run).await?;
        let fetch: Arc<dyn Fetch> = Arc::new(open::fetcher(&*chain, &run.params)?);
        let block_time = chain.block_time().await?;
        let observer = Observer::new(&*chain, run.id, Vec::new()).await?;
        let (to, receipts) = mpsc::channel(RECEIPTS_WAITING_MAX);
        let reading =
            tokio::spawn(read_receipts(chain.clone(), fetch.clone(), observer.run.clone(), to, warn));
        let heads = chain.heads();
        Ok(RunFeed {
            chain,
            fetch,
            observer,
            block_time,
            measured: Instant::now(),
            heads,
            seen: Instant::now(),
            receipts,
            warn,
            _reading: AbortOnDrop(reading),
        })
    }

    /// Fetches the run's specification. `Err` is the reason why it is unknown.
    pub async fn specification(&self) -> Result<RunSpec, String> {
        let read = open::specification(&*self.chain, &*self.fetch, &self.observer.run);
        let read = tokio::time::timeout(SPEC_WITHIN, read).await;
        let late = |_| format!("not fetched within {} s", SPEC_WITHIN.as_secs());
        read.map_err(late)?.map_err(|error| format!("{error:#}"))
    }

    /// Reads the chain. While it does not answer, [`RunFeed::silence`] grows.
    pub async fn look(&mut self) {
        if let Err(error) = self.observer.look(&*self.chain).await {
            (self.warn)(&format!("could not read the chain: {}", error_chain(&error)));
        } else if MEASURE_EVERY <= self.measured.elapsed() {
            self.measured = Instant::now();
            self.block_time = self.chain.block_time().await.unwrap_or(self.block_time);
        }
    }

    /// Waits for a block or for receipts, or some seconds.
    ///
    /// # Cancel safety
    /// The future may be dropped.
    pub async fn changed(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            changed = self.heads.changed() => {
                changed.context("the chain's client has stopped")?;
                self.heads.mark_unchanged();
                self.seen = Instant::now();
            }
            read = self.receipts.recv() => {
                self.observer.add_receipts(&read.context("the reader of receipts has stopped")?);
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        Ok(())
    }

    /// Returns the time since the last block.
    pub fn silence(&self) -> Duration {
        self.seen.elapsed()
    }

    /// Returns the absent seats.
    pub fn absences(&self) -> BTreeMap<Uid, Absence> {
        let now = Instant::now();
        let away = |uid| Some((uid, self.observer.absence(uid, now)?));
        self.observer.seats.iter().filter_map(|seat| away(seat.id.uid)).collect()
    }
}

/// Reads the receipts of each window when they become public, from the oldest window that the chain keeps.
async fn read_receipts(
    chain: Arc<dyn Chain>,
    fetch: Arc<dyn Fetch>,
    run: RunView,
    to: mpsc::Sender<WindowReceipts>,
    warn: Warn,
) {
    let mut heads = chain.heads();
    let mut next = Window::FIRST;
    loop {
        let block = heads.borrow_and_update().block;
        let now = run.params.schedule.window_at(block).unwrap_or(Window::FIRST);
        let sealed = receipt::first_sealed(now, &run.params);
        next = next.max(Window(sealed.0.saturating_sub(watch::why::KEPT_WINDOWS)));
        while next < sealed {
            match window_receipts(&*chain, &*fetch, &run, now, next).await {
                // The next block repeats the request.
                Ok(Some(read)) if is_awaited(&read, now, &run.params) => break,
                Ok(Some(read)) => {
                    if to.send(read).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    warn(&format!("could not read receipts: {}", error_chain(&error)));
                    break;
                }
            }
            next = next.next();
        }
        if heads.changed().await.is_err() {
            return;
        }
    }
}

/// Returns whether no receipt of a window could be read yet, although one may still arrive.
fn is_awaited(read: &WindowReceipts, now: Window, params: &RunParams) -> bool {
    let public = receipt::public_from(read.window, params);
    let is_late = public.0.saturating_add(PUBLISHED_WITHIN_WINDOWS) <= now.0;
    !is_late && read.receipts.iter().all(|(_, receipt)| receipt.is_err())
}

async fn window_receipts(
    chain: &dyn Chain,
    fetch: &dyn Fetch,
    run: &RunView,
    now: Window,
    window: Window,
) -> Result<Option<WindowReceipts>, chain_client::ChainError> {
    let Some(view) = chain.window(run.id, window).await? else { return Ok(None) };
    let mut seats = chain.seats(run.id).await?;
    seats.retain(|seat| view.receipts.iter().any(|(of, _)| *of == seat.id.uid));
    seats.sort_by_key(|seat| Reverse(seat.stake));
    seats.truncate(RECEIPTS_MAX);
    Ok(Some(receipts_of(fetch, chain.genesis(), run, now, &view, &seats, &[]).await))
}

/// Aborts a task when the value is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_that_are_public_and_not_in_a_bucket_yet_are_asked_for_again() {
        let params = RunParams::default();
        let read = |receipts: Vec<(Uid, _)>| WindowReceipts {
            window: Window(5),
            epoch: 0,
            sequences_per_seat: 1,
            receipts,
            pay: None,
        };
        let public = receipt::public_from(Window(5), &params);
        let away = read(vec![(Uid(1), Err("its bucket does not serve its receipt".into()))]);
        assert!(is_awaited(&away, public, &params));
        assert!(is_awaited(&read(Vec::new()), public.next(), &params));
        assert!(!is_awaited(&away, public.next().next(), &params));
    }
}
