//! The page of the run for a browser, which `up` serves on this machine.

use crate::defaults;
use anyhow::Context as _;
use chain_client::Chain;
use daemon::open;
use protocol::view::RunView;
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use watch::{
    draw::View,
    evidence::ChainEvidence,
    page::{About, Snapshot},
    server::Page,
};

/// Serves the page at a free port of this machine.
///
/// # Errors
/// If the HTTP client cannot be made, or the port cannot be opened.
pub async fn serve(chain: Arc<dyn Chain>, run: &RunView) -> anyhow::Result<Page> {
    let fetch = Arc::new(open::fetcher(&*chain, &run.params)?);
    let evidence = ChainEvidence { chain, fetch, run: run.id };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Page::serve(address, Box::new(evidence)).await.context("could not serve the page of the run")
}

/// Returns the page's contents, which equal the table's.
pub fn snapshot(view: &View<'_>) -> Snapshot {
    let spec = defaults::spec();
    let about = About {
        name: Some(&spec.name),
        parameters: Some(spec.model.parameters() as u64),
        text: view.text,
        absences: view.absences.clone(),
        block_time: view.block_time,
        silence: view.silence,
    };
    Snapshot::of(view.observer, &about)
}
