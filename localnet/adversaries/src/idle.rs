//! A validator that computes nothing: it holds no model, checks no bytes, and says on the chain what its strategy
//! makes of what others have said. The lazy voter runs so.
//!
//! What others attest is not in a client's view of the window, but it shows: who attests a seat as valid has put its
//! bytes into a public bucket before (PROT-15). So whoever asks there for each digest that was committed to knows the
//! verdict without looking at one byte.

use chain_client::{Call, Chain, ChainError, Head};
use node::{Follower, error_chain, wait_past};
use protocol::{
    Block, Digest, RunId, Uid, Window, keys,
    view::{RunView, SeatView, Verdict, WindowView},
};
use std::path::Path;
use tokio::sync::watch;
use validator::{
    salt::Salts,
    signed_db::{SignedDb, SignedDbError, WeightVote},
    strategy::Strategy,
};

/// What ends an idle validator.
#[derive(Debug, thiserror::Error)]
pub enum IdleError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    SignedDb(#[from] SignedDbError),
}

/// Speaks at the last moment of each phase, so that there is most to copy. Ends only with the chain.
pub async fn serve(
    follower: &Follower,
    seat: &SeatView,
    secret: &[u8; 32],
    directory: &Path,
    strategy: &mut dyn Strategy,
) -> Result<(), IdleError> {
    let (chain, run) = (&*follower.chain, &follower.run);
    let mut heads = chain.heads();
    let (mut signed, _) = SignedDb::open(directory, run.id, &run.params, 0)?;
    let salts = Salts::new(secret);
    let (id, schedule, epoch_windows) = (run.id, run.params.schedule, run.params.epoch_windows);
    let mut window = schedule.window_at(heads.borrow().block).unwrap_or(Window::FIRST);
    loop {
        reveal(chain, id, window.epoch(epoch_windows), &mut signed, schedule.opens_at(window), &mut heads)
            .await?;

        before(schedule.attest_deadline(window), &mut heads).await?;
        if let Some(view) = chain.window(id, window).await?
            && let copied = copied(follower, &view, seat.id.uid).await?
            && let Some(verdicts) = strategy.verdicts(&view, copied)
        {
            // The salt is never revealed, as nothing is measured with it.
            let next_salt = Digest::of(&[&secret[..], &window.0.to_le_bytes()].concat());
            tell(chain, Call::Attest { run: id, window, verdicts, next_salt }).await?;
        }

        before(schedule.vote_deadline(window), &mut heads).await?;
        if let Some(view) = chain.window(id, window).await? {
            if let Some(vote) = strategy.vote(&view, None) {
                tell(chain, Call::Vote { run: id, window, vote }).await?;
            }
            commit(chain, run, seat, &view, (&mut signed, &salts), strategy).await?;
        }
        wait_past(&mut heads, schedule.vote_deadline(window)).await?;
        window = window.next();
    }
}

/// The verdicts of one that has attested, as its bucket shows them; none where nobody else has attested yet.
async fn copied(follower: &Follower, view: &WindowView, own: Uid) -> Result<Vec<(Uid, Verdict)>, ChainError> {
    let seats = follower.chain.seats(follower.run.id).await?;
    let attester = seats.iter().find(|seat| seat.id.uid != own && view.attested.contains(&seat.id.uid));
    let Some(attester) = attester else { return Ok(Vec::new()) };
    let limits = follower.contribution_limits();
    let mut verdicts = Vec::new();
    for (uid, digest) in &view.commitments {
        let key = keys::contribution(follower.run.id, view.window, digest);
        let verdict = match follower.fetch.fetch(&attester.endpoint, &key, &limits).await {
            Ok(_) => Verdict::Valid,
            Err(_) => Verdict::Faulty,
        };
        verdicts.push((*uid, verdict));
    }
    verdicts.sort_by_key(|(uid, _)| *uid);
    Ok(verdicts)
}

/// Waits until what is sent now is just in time for `deadline`.
async fn before(deadline: Block, heads: &mut watch::Receiver<Head>) -> Result<(), ChainError> {
    wait_past(heads, Block(deadline.0.saturating_sub(2))).await
}

async fn reveal(
    chain: &dyn Chain,
    run: RunId,
    epoch: u32,
    signed: &mut SignedDb,
    opens: Block,
    heads: &mut watch::Receiver<Head>,
) -> Result<(), IdleError> {
    let due = signed.weight_votes_before(epoch);
    if !due.is_empty() {
        wait_past(heads, opens).await?;
    }
    for WeightVote { epoch, weights, salt } in due {
        tell(chain, Call::RevealWeights { run, epoch, weights, salt }).await?;
        signed.remove_weight_vote(epoch)?;
    }
    Ok(())
}

async fn commit(
    chain: &dyn Chain,
    run: &RunView,
    seat: &SeatView,
    view: &WindowView,
    (signed, salts): (&mut SignedDb, &Salts),
    strategy: &mut dyn Strategy,
) -> Result<(), IdleError> {
    let epoch_windows = run.params.epoch_windows;
    let epoch = view.window.epoch(epoch_windows);
    let weights = strategy.weights(view, Vec::new());
    if view.window.next().epoch(epoch_windows) == epoch || weights.is_empty() {
        return Ok(());
    }
    let vote = WeightVote { epoch, salt: salts.weight_vote(run.id, epoch, &weights), weights };
    let hash = signed.store_weight_vote(vote)?.hash(&seat.hotkey);
    tell(chain, Call::CommitWeights { run: run.id, epoch, hash }).await
}

/// Sends a call; that the chain refuses one is no reason to stop.
async fn tell(chain: &dyn Chain, call: Call) -> Result<(), IdleError> {
    match chain.submit(call).await {
        Ok(_) => Ok(()),
        Err(error) if !error.is_transient() => {
            tracing::info!(error = %error_chain(&error), "refused");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
