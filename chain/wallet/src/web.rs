//! `mettle web`: a page of a run for a browser, read from the chain and the validators' public receipts.

use crate::{help, output::Output, signing::SigningSession};
use anyhow::Context as _;
use chain_client::Chain;
use model::RunSpec;
use node::{config::ChainFlags, error_chain, open, program::StopSignal};
use protocol::{
    RunId, RunParams, Uid, Window, receipt,
    view::{RunStatus, RunView},
};
use serde_json::json;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use store::Fetch;
use tokio::sync::mpsc;
use watch::{
    evidence::ChainEvidence,
    observe::{Absence, Observer},
    page::{About, Snapshot},
    receipts::{WindowReceipts, receipts_of},
    server::Page,
};

/// How long the run's specification may take.
const SPEC_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks while no block is finalised: a chain that is silent is shown as such.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Validators whose receipts of each window are read, those with the most stake.
const RECEIPTS_MAX: usize = 3;
/// Windows within which validators put a receipt into their buckets once it is public.
const PUBLISHED_WITHIN_WINDOWS: u32 = 2;
/// Read receipts that wait for the page.
const RECEIPTS_WAITING_MAX: usize = 2;

/// Serve a page of a run for a browser
///
/// Shows the run, its windows and its seats as they change, and the evidence behind every contribution: seats, windows
/// and pay from the chain, scores and losses from the validators' public receipts. Signs nothing and keeps nothing: a
/// page begins with the windows that the chain still has, the last 128.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle web --chain ws://127.0.0.1:9944 --run 0",
    "mettle web --config miner.toml --listen 127.0.0.1:8080",
]))]
pub struct Web {
    #[command(flatten)]
    chain_flags: ChainFlags,
    /// The address of the page. Everybody who reaches it can read the page.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8440")]
    listen: SocketAddr,
}

/// Serves until Ctrl-C.
pub async fn web(command: Web, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let mut stop = StopSignal::listen();
    let args = command.chain_flags.read(None)?;
    let chain = SigningSession::open(&args.chain).await?.chain;
    let RunStatus { run, .. } = chain.status(args.run).await?;
    let fetch: Arc<dyn Fetch> = Arc::new(open::fetcher(&*chain, &run.params)?);
    let evidence = ChainEvidence { chain: chain.clone(), fetch: fetch.clone(), run: run.id };
    let page = Page::serve(command.listen, Box::new(evidence)).await?;
    let url = page.url();
    output.result(&format!("run {} is shown at {url}; Ctrl-C ends it", run.id), json!({ "url": url }))?;

    let shown = async {
        let spec = specification(&*chain, &*fetch, &run).await;
        if let Err(why) = &spec {
            output.note(&format!("the run's specification is not known: {why}"))?;
        }
        show(&chain, fetch.clone(), run.id, spec.ok(), &page).await
    };
    tokio::select! {
        ended = shown => ended,
        () = stop.told() => Ok(()),
    }
}

async fn specification(chain: &dyn Chain, fetch: &dyn Fetch, run: &RunView) -> Result<RunSpec, String> {
    let read = tokio::time::timeout(SPEC_WITHIN, open::specification(chain, fetch, run)).await;
    let late = |_| format!("not fetched within {} s", SPEC_WITHIN.as_secs());
    read.map_err(late)?.map_err(|error| format!("{error:#}"))
}

/// Publishes the run at each block.
async fn show(
    chain: &Arc<dyn Chain>,
    fetch: Arc<dyn Fetch>,
    run: RunId,
    spec: Option<RunSpec>,
    page: &Page,
) -> anyhow::Result<()> {
    let block_time = chain.block_time().await?;
    let mut observer = Observer::new(&**chain, run, Vec::new()).await?;
    let (to, mut receipts) = mpsc::channel(RECEIPTS_WAITING_MAX);
    let _reading = AbortOnDrop(tokio::spawn(read_receipts(chain.clone(), fetch, observer.run.clone(), to)));
    let mut heads = chain.heads();
    let mut heard = Instant::now();
    loop {
        match observer.look(&**chain).await {
            Ok(()) => {}
            // The page says how long the chain has been silent.
            Err(error) => tracing::warn!(error = error_chain(&error), "could not read the chain"),
        }
        let now = Instant::now();
        let away = |uid| Some((uid, observer.absence(uid, now)?));
        let absences: BTreeMap<Uid, Absence> =
            observer.seats.iter().filter_map(|seat| away(seat.id.uid)).collect();
        page.publish(Snapshot::of(
            &observer,
            &About {
                name: spec.as_ref().map(|spec| spec.name.as_str()),
                parameters: spec.as_ref().map(|spec| spec.model.parameters() as u64),
                text: None,
                absences,
                block_time,
                silence: heard.elapsed(),
            },
        ));
        tokio::select! {
            changed = heads.changed() => {
                changed.context("the chain's client has stopped")?;
                heard = Instant::now();
            }
            read = receipts.recv() => {
                observer.add_receipts(&read.context("the reader of receipts has stopped")?);
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Reads receipts of each window as they become public, from the oldest window that the chain keeps.
async fn read_receipts(
    chain: Arc<dyn Chain>,
    fetch: Arc<dyn Fetch>,
    run: RunView,
    to: mpsc::Sender<WindowReceipts>,
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
                // Asked for again at the next block.
                Ok(Some(read)) if is_awaited(&read, now, &run.params) => break,
                Ok(Some(read)) => {
                    if to.send(read).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "could not read receipts");
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

/// Whether no receipt of a window could be read, and one may still come.
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

/// Ends a task with the value.
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
