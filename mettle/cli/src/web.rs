//! `mettle web`: a page of a run for a browser, read from the chain and the validators' public receipts.

use crate::{help, output::Output, run_feed::RunFeed, signing::SigningSession};
use daemon::{config::ChainFlags, program::StopSignal};
use model::RunSpec;
use serde_json::json;
use std::{net::SocketAddr, path::PathBuf};
use watch::{
    evidence::ChainEvidence,
    history::History,
    page::{About, Snapshot},
    server::Page,
};

/// Serve a page of a run for a browser
///
/// Shows the run, its windows and its seats as they change, and the evidence behind every contribution: seats,
/// windows and pay from the chain, scores and losses from the validators' public receipts. Signs nothing. A page
/// begins with the last 128 windows, which the chain keeps, and with those that an earlier page kept with --history.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = help::reading(&[
    "mettle web --chain ws://127.0.0.1:9944 --run 0",
    "mettle web --config miner.toml --listen 127.0.0.1:8080",
    "mettle web --chain ws://127.0.0.1:9944 --run 0 --history pages",
]))]
pub struct Web {
    #[command(flatten)]
    chain_flags: ChainFlags,
    /// The address of the page. No authentication.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8440")]
    listen: SocketAddr,
    /// Keep the shown windows in a file of this directory, and begin with them next time.
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
}

/// Serves until Ctrl-C.
pub async fn web(command: Web, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let mut stop = StopSignal::listen();
    let args = command.chain_flags.read(None)?;
    let mut feed = RunFeed::open(SigningSession::open(&args.chain).await?.chain, args.run, |why| {
        tracing::warn!("{why}")
    })
    .await?;
    let run = feed.observer.run.id;
    let history = match &command.history {
        Some(directory) => Some(History::open(directory, feed.chain.genesis(), &mut feed.observer)?),
        None => None,
    };
    let evidence = ChainEvidence { chain: feed.chain.clone(), fetch: feed.fetch.clone(), run };
    let page = Page::serve(command.listen, Box::new(evidence)).await?;
    let url = page.url();
    output.result(&format!("run {run} is shown at {url}; Ctrl-C ends it"), json!({ "url": url }))?;

    let shown = async {
        let spec = feed.specification().await;
        if let Err(why) = &spec {
            output.note(&format!("the run's specification is not known: {why}"))?;
        }
        show(feed, spec.ok(), &page, history).await
    };
    tokio::select! {
        ended = shown => ended,
        () = stop.told() => Ok(()),
    }
}

/// Publishes the run at each block.
async fn show(
    mut feed: RunFeed,
    spec: Option<RunSpec>,
    page: &Page,
    mut history: Option<History>,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    loop {
        feed.look().await;
        if let Some(history) = &mut history {
            let kept = tokio::task::block_in_place(|| history.record(&feed.observer));
            if let (Err(error), false) = (&kept, is_failing) {
                tracing::warn!(
                    error = daemon::error_chain(error),
                    "could not keep the windows for a later page; the page goes on, and tries again"
                );
            }
            is_failing = kept.is_err();
        }
        page.publish(Snapshot::of(
            &feed.observer,
            &About {
                name: spec.as_ref().map(|spec| spec.name.as_str()),
                parameters: spec.as_ref().map(|spec| spec.model.parameters() as u64),
                text: None,
                absences: feed.absences(),
                block_time: feed.block_time,
                silence: feed.silence(),
            },
        ));
        feed.changed().await?;
    }
}
