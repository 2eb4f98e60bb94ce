//! Uploading what was committed, after the commit deadline and never before it: until then nobody may see it (PROT-11).

use crate::snapshot::PendingContribution;
use chain_client::Head;
use protocol::{Block, RunId, keys};
use std::{path::Path, time::Duration};
use store::{Store, StoreError};
use tokio::sync::watch;

/// Between two tries of an upload.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("the bucket did not take the contribution before the reveal deadline")]
pub struct PublishError {
    #[source]
    last: StoreError,
}

/// Puts the file at `path` into our bucket, in parts where it is large, trying again until the reveal deadline has passed.
pub async fn upload(
    store: &dyn Store,
    run: RunId,
    pending: &PendingContribution,
    path: &Path,
    heads: &watch::Receiver<Head>,
    reveal_by: Block,
) -> Result<(), PublishError> {
    let key = keys::contribution(run, pending.window, &pending.digest);
    loop {
        match store.put_file(&key, path).await {
            Ok(_) => return Ok(()),
            Err(last) if reveal_by <= heads.borrow().block => return Err(PublishError { last }),
            Err(error) => {
                tracing::warn!(window = pending.window.0, %error, "upload failed, trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
