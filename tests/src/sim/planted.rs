//! Errors of the product, of its chain or of its operator, planted into a simulation to show that a check finds them.
//!
//! No program contains them: they are strategies, files and clients of the simulation only.

use super::{
    network::{MinerSeat, ValidatorSeat},
    world::BATCH,
};
use async_trait::async_trait;
use chain_client::{Call, ChainError};
use daemon::Follower;
use mettle_runtime::Runtime;
use miner::contribution_store::PendingContribution;
use protocol::{
    Digest, RunId, Uid, keys,
    view::{Verdict, Vote, WindowView},
};
use std::{path::Path, time::Duration};
use store::{Store, StoreError};

/// A planted error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A killed validator forgets its signatures, and sees one contribution less.
    ForgottenSignatures,
    /// A killed miner forgets its contribution.
    LostCommitment,
    /// A miner treats a commitment as included once it is sent.
    HastyCommitment,
    /// A miner retries an upload without a pause and without an end.
    UnboundedRetry,
    /// A validator blames a seat for objects that did not arrive.
    BlamedOutage,
    /// A validator does not vote in a window that follows a void one.
    StopsAtVoid,
    /// A node without a seat treats every window from the third on as void.
    WrongLineage,
    /// The chain credits one unit too much in each epoch.
    PayOffByOne,
    /// A node follows the best block instead of the finalised one.
    FollowsBestBlock,
    /// A client treats a call as final once the best block includes it.
    TrustsInclusion,
    /// A validator gives the first miner no weight.
    ForgetsOneSeat,
}

impl Planted {
    /// Changes the chain's state at the end of an epoch.
    pub(super) fn err(self, run: RunId) {
        if self == Planted::PayOffByOne {
            pallet_rewards::EarningsOf::<Runtime>::mutate(run, Uid(0), |earnings| earnings.claimable += 1);
        }
    }
}

/// An honest miner with the planted error.
pub fn miner(planted: Option<Planted>) -> MinerSeat {
    match planted {
        Some(Planted::UnboundedRetry) => MinerSeat::Other(Box::new(RetriesForever)),
        Some(Planted::HastyCommitment) => MinerSeat::Other(Box::new(CommitsHastily)),
        _ => MinerSeat::Honest { share: 1.0, batch: BATCH },
    }
}

/// An honest validator with the planted error.
pub fn validator(planted: Option<Planted>) -> ValidatorSeat {
    match planted {
        Some(Planted::BlamedOutage) => ValidatorSeat::Adversary(Box::new(BlamesOutages)),
        Some(Planted::ForgetsOneSeat) => ValidatorSeat::Adversary(Box::new(ForgetsOneSeat)),
        Some(Planted::StopsAtVoid) => ValidatorSeat::Adversary(Box::new(StopsAtVoid(None))),
        _ => ValidatorSeat::Honest,
    }
}

struct RetriesForever;

#[async_trait]
impl miner::strategy::Strategy for RetriesForever {
    async fn upload(
        &mut self,
        follower: &Follower,
        bucket: &dyn Store,
        pending: &PendingContribution,
        file: &Path,
    ) -> Result<(), StoreError> {
        let key = keys::contribution(follower.run.id, pending.window, &pending.digest);
        while bucket.put_file(&key, file).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

struct CommitsHastily;

#[async_trait]
impl miner::strategy::Strategy for CommitsHastily {
    async fn commit(
        &mut self,
        follower: &Follower,
        pending: &PendingContribution,
        _file: &Path,
    ) -> Result<(), ChainError> {
        let (run, window, digest) = (follower.run.id, pending.window, pending.digest);
        let chain = follower.chain.clone();
        tokio::task::spawn_local(async move { chain.submit(Call::Commit { run, window, digest }).await });
        Ok(())
    }
}

/// Leaves one contribution out of its attestation.
pub(super) struct SeesOneLess;

impl validator::strategy::Strategy for SeesOneLess {
    fn verdicts(&mut self, _view: &WindowView, mut own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        own.pop();
        Some(own)
    }
}

struct ForgetsOneSeat;

impl validator::strategy::Strategy for ForgetsOneSeat {
    fn weights(&mut self, _view: &WindowView, mut own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        own.retain(|(uid, _)| *uid != Uid(0));
        own
    }
}

struct BlamesOutages;

impl validator::strategy::Strategy for BlamesOutages {
    fn verdicts(&mut self, view: &WindowView, mut own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        let seen: Vec<Uid> = own.iter().map(|(uid, _)| *uid).collect();
        let unseen = view.commitments.iter().map(|(uid, _)| *uid).filter(|uid| !seen.contains(uid));
        own.extend(unseen.map(|uid| (uid, Verdict::Faulty)));
        own.sort_by_key(|(uid, _)| *uid);
        Some(own)
    }
}

/// Holds the lineage of the latest window. A void window passes its lineage on to its successor.
struct StopsAtVoid(Option<Digest>);

impl validator::strategy::Strategy for StopsAtVoid {
    fn vote(&mut self, view: &WindowView, own: Option<Vote>) -> Option<Vote> {
        if self.0 == Some(view.lineage) {
            return None;
        }
        self.0 = Some(view.lineage);
        own
    }
}
