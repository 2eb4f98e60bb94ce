//! Uploads the contribution after the commit deadline, and never before it (PROT-11).

use crate::contribution_store::PendingContribution;
use backon::{ConstantBuilder, Retryable as _};
use chain_client::Head;
use protocol::{Block, RunId, keys};
use std::{path::Path, time::Duration};
use store::{Store, StoreError};
use tokio::sync::watch;

/// Between two tries of an upload.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("the bucket did not take the contribution before the reveal deadline")]
pub struct PublishError(#[source] StoreError);

/// Uploads the file at `path`, in parts if it is large. Retries until `reveal_by` is finalised.
pub async fn upload(
    store: &dyn Store,
    run: RunId,
    pending: &PendingContribution,
    path: &Path,
    heads: &watch::Receiver<Head>,
    reveal_by: Block,
) -> Result<(), PublishError> {
    let key = keys::contribution(run, pending.window, &pending.digest);
    let uploaded = (|| store.put_file(&key, path))
        .retry(ConstantBuilder::default().with_delay(PAUSE).without_max_times())
        .when(|_| heads.borrow().block < reveal_by)
        .notify(|error, _| {
            tracing::warn!(window = pending.window.0, %error, "upload failed, trying again");
        })
        .await;
    uploaded.map(drop).map_err(PublishError)
}
