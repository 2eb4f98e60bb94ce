//! Brings calls onto the chain: signs, offers, waits until they are final, and offers again what was dropped.
//!
//! One task, the clerk, does it for all callers of a client, so that nonces are given out one after the other. What it
//! decides by is in `outbox`; here is what waits.

use crate::{
    ChainError, Head, Included,
    call::Call,
    follow::Line,
    keys::Key,
    link::{Invalid, Link, LinkError, Outcome},
    outbox::Outbox,
};
use protocol::Block;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};
use tokio::sync::{mpsc, oneshot};

/// What is not final is offered again after so many finalised blocks.
const OFFER_AGAIN_BLOCKS: u32 = 3;

/// New bytes are signed so many times for one call, at most. Each time the last ones can never be included any more, as a rule
/// because another process with the same key was faster: where several of them compete, a call may lose more than once.
const SIGNATURES_MAX: u32 = 16;

/// A call is offered so many times to a chain that does not take it now, but may later.
const REFUSALS_MAX: u32 = 60;

/// A call to bring onto the chain.
pub(crate) struct Order {
    pub(crate) call: Call,
    pub(crate) reply: oneshot::Sender<Result<Included, ChainError>>,
    pub(crate) stage: Arc<Stage>,
}

/// Whether signed bytes of a call are about that may still be included. The clerk sends and the caller loses patience, each
/// at any moment: here it is decided which of them was first, so that a call of which the caller was told that it was not
/// sent never is.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

impl Stage {
    const WAITING: u8 = 0;
    const ABOUT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// The clerk is about to send signed bytes. False if the caller has given up: then it must not.
    fn may_send(&self) -> bool {
        self.passes(Stage::WAITING, Stage::ABOUT)
    }

    /// The bytes can never be included any more.
    fn withdrawn(&self) {
        self.passes(Stage::ABOUT, Stage::WAITING);
    }

    /// The caller does not wait any longer. True if signed bytes are about, which may still be included; otherwise there
    /// never will be any.
    pub(crate) fn give_up(&self) -> bool {
        !self.passes(Stage::WAITING, Stage::GIVEN_UP) && self.0.load(Ordering::Acquire) == Stage::ABOUT
    }

    fn passes(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

struct Task {
    order: Order,
    signatures: u32,
    refusals: u32,
}

impl Task {
    fn reply(self, answer: Result<Included, ChainError>) {
        if let Err(error) = &answer {
            tracing::debug!(call = %self.order.call, %error, "a call came to nothing");
        }
        // Who has left does not need the answer.
        let _ = self.order.reply.send(answer);
    }

    fn doing(&self) -> String {
        self.order.call.to_string()
    }
}

/// Whether a call that the chain did not take is worth another try.
enum Refusal {
    Passing(String),
    Final(ChainError),
}

pub(crate) struct Clerk {
    line: Line,
    key: Key,
    /// To be signed, the first first.
    waiting: VecDeque<Task>,
    outbox: Outbox<Task>,
    /// The connection that `outbox` was last compared with, and the block.
    link: Option<Arc<Link>>,
    settled: Option<Block>,
}

impl Clerk {
    pub(crate) fn new(line: Line, key: Key) -> Clerk {
        Clerk { line, key, waiting: VecDeque::new(), outbox: Outbox::default(), link: None, settled: None }
    }

    /// Works until nobody can give orders any more.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut heads = self.line.heads.clone();
        let mut standing = self.line.standing.clone();
        loop {
            if self.waiting.is_empty() && self.outbox.is_empty() {
                match orders.recv().await {
                    Some(order) => self.take(order),
                    None => return,
                }
            }
            while let Ok(order) = orders.try_recv() {
                self.take(order);
            }
            heads.mark_unchanged();
            standing.mark_unchanged();
            let mut try_again = !self.waiting.is_empty();
            if let Some(link) = self.line.link() {
                let done = self.turn(&link).await;
                if let Err(error) = &done {
                    tracing::debug!(%error, "submitting was interrupted");
                }
                try_again = done.is_err() || !self.waiting.is_empty();
            }
            if self.waiting.is_empty() && self.outbox.is_empty() {
                continue;
            }
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.take(order),
                    None => return,
                },
                changed = heads.changed() => if changed.is_err() { return },
                changed = standing.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(self.line.timing.retry), if try_again => {}
            }
        }
    }

    fn take(&mut self, order: Order) {
        self.waiting.push_back(Task { order, signatures: 0, refusals: 0 });
    }

    /// Compares what is on its way with the chain, and sends what is waiting. After an error it is simply run again.
    async fn turn(&mut self, link: &Arc<Link>) -> Result<(), LinkError> {
        if !self.link.as_ref().is_some_and(|known| Arc::ptr_eq(known, link)) {
            self.outbox.reconnected();
            self.link = Some(link.clone());
            self.settled = None;
        }
        let head = link.head();
        if self.settled != Some(head.block) && !self.outbox.is_empty() {
            self.settle(link, &head).await?;
            self.settled = Some(head.block);
        }
        // Who left before the call was signed does not want it any more.
        self.waiting.retain(|task| !task.order.reply.is_closed());
        self.send(link).await
    }

    /// Finds out what became of the calls on their way as of `head`.
    async fn settle(&mut self, link: &Link, head: &Head) -> Result<(), LinkError> {
        let next = link.nonce(&self.key, head).await?;
        for number in self.outbox.search(head.block, next).into_iter().flatten() {
            let Some((block, calls)) = link.block(Block(number)).await? else {
                for task in self.outbox.undecidable(next) {
                    let reason =
                        format!("its nonce was used, and block {number}, which may hold it, is pruned");
                    let doing = task.doing();
                    task.reply(Err(ChainError::Uncertain { doing, reason }));
                }
                break;
            };
            for (nonce, index) in self.outbox.find(&calls) {
                let outcome = link.outcome(&block, index).await?;
                if let Some(task) = self.outbox.withdraw(nonce) {
                    let answer = answer(task.doing(), block, outcome);
                    task.reply(answer);
                }
            }
            self.outbox.searched(Block(number));
        }

        if self.outbox.is_empty() {
            return Ok(());
        }

        // As of the finalised block: a fork without the upgrade may still include what was signed before it.
        let runtime = link.version_after(Some(head)).await?;
        // The last first, so that they wait in the order in which they were signed.
        for (task, reason) in self.outbox.lost(head.block, next, runtime).into_iter().rev() {
            task.order.stage.withdrawn();
            tracing::debug!(call = %task.order.call, reason, "a call was lost on its way");
            if task.signatures < SIGNATURES_MAX {
                self.waiting.push_front(task);
            } else {
                let (doing, attempts) = (task.doing(), task.signatures);
                task.reply(Err(ChainError::Dropped { doing, attempts, reason: reason.into() }));
            }
        }

        let again = self.outbox.offer_again(head.block, OFFER_AGAIN_BLOCKS);
        if !again.is_empty() {
            let best = link.best().await?;
            let next = link.nonce(&self.key, &best).await?;
            for (nonce, bytes) in again {
                // Below that it is in the best chain, and only has to become final.
                if nonce < next {
                    continue;
                }
                match link.offer(&bytes).await {
                    Err(error @ LinkError::Broken(_)) => return Err(error),
                    Err(refusal) => tracing::debug!(nonce, %refusal, "offered again"),
                    Ok(()) => tracing::debug!(nonce, "offered again, and taken"),
                }
            }
        }
        Ok(())
    }

    /// Signs and offers what waits, until the chain does not take one.
    async fn send(&mut self, link: &Link) -> Result<(), LinkError> {
        while let Some(task) = self.waiting.front() {
            let head = link.head();
            let best = link.best().await?;
            let nonce = self.outbox.next_nonce(link.nonce(&self.key, &best).await?);
            let blocks = self.line.timing.era_blocks;
            let signed = link.sign(&task.order.call, &self.key, nonce, &head, blocks).await;
            if let Err(LinkError::Broken(_)) = &signed {
                return signed.map(|_| ());
            }
            let Some(mut task) = self.waiting.pop_front() else { break };
            let bytes = match signed {
                Ok(bytes) => bytes,
                Err(LinkError::Garbled(reason)) => {
                    let doing = task.doing();
                    task.reply(Err(ChainError::Invalid { doing, reason }));
                    continue;
                }
                Err(error) => {
                    let error = error.into_chain_error(&task.doing());
                    task.reply(Err(error));
                    continue;
                }
            };

            // From here on the bytes count as being about, whatever becomes of the connection.
            if !task.order.stage.may_send() {
                continue;
            }
            let doing = task.doing();
            task.signatures = task.signatures.saturating_add(1);
            self.outbox.insert(nonce, task, bytes.clone(), link.version(), head.block, blocks);
            let Err(error) = link.offer(&bytes).await else {
                continue;
            };
            let refusal = match &error {
                LinkError::Answer { code, .. } => {
                    self.weigh(link, &doing, *code, &error, &bytes, &best).await?
                }
                LinkError::Broken(_) | LinkError::Garbled(_) => return Err(error),
            };
            let Some(refusal) = refusal else { continue };

            // This chain alone was offered the bytes and did not take them: they are about no more.
            let Some(mut task) = self.outbox.withdraw(nonce) else { continue };
            task.order.stage.withdrawn();
            match refusal {
                Refusal::Final(error) => task.reply(Err(error)),
                Refusal::Passing(reason) if task.refusals >= REFUSALS_MAX => {
                    let attempts = task.refusals;
                    task.reply(Err(ChainError::Dropped { doing, attempts, reason }));
                }
                Refusal::Passing(reason) => {
                    tracing::debug!(call = %task.order.call, reason, "not taken yet");
                    task.refusals = task.refusals.saturating_add(1);
                    task.signatures = task.signatures.saturating_sub(1);
                    self.waiting.push_front(task);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What a pool's refusal means; `None` if it is none. By the runtime's own word rather than by the message's.
    async fn weigh(
        &self,
        link: &Link,
        doing: &str,
        code: i32,
        error: &LinkError,
        bytes: &[u8],
        best: &Head,
    ) -> Result<Option<Refusal>, LinkError> {
        /// The pool's error codes, of which others are not met by what we send.
        const NOT_VERIFIED: i32 = 1002;
        const INVALID: i32 = 1010;
        const UNKNOWN_VALIDITY: i32 = 1011;
        const BANNED: i32 = 1012;
        const HAS_IT: i32 = 1013;
        const PRIORITY_TOO_LOW: i32 = 1014;
        const POOL_FULL: i32 = 1016;

        let text = error.to_string();
        let invalid =
            |reason: String| Refusal::Final(ChainError::Invalid { doing: doing.to_owned(), reason });
        Ok(Some(match code {
            // It has the bytes, or had them and will not take them again for a while.
            HAS_IT | BANNED => return Ok(None),
            INVALID => match link.invalid(bytes, best).await? {
                Some(Invalid::Payment) => invalid(format!(
                    "the account {} cannot pay the fee. Transfer some MTL to it",
                    self.key.address()
                )),
                Some(Invalid::BadProof | Invalid::Other(_)) => {
                    invalid(format!("the chain will not take it: {text}"))
                }
                Some(
                    Invalid::Stale
                    | Invalid::Future
                    | Invalid::AncientBirthBlock
                    | Invalid::ExhaustsResources,
                )
                | None => Refusal::Passing(text),
            },
            NOT_VERIFIED | UNKNOWN_VALIDITY | PRIORITY_TOO_LOW | POOL_FULL => Refusal::Passing(text),
            _ => Refusal::Final(error.clone().into_chain_error(doing)),
        }))
    }
}

/// What a call's outcome is to its caller.
fn answer(doing: String, block: Included, outcome: Outcome) -> Result<Included, ChainError> {
    Err(match outcome {
        Outcome::Success => return Ok(block),
        Outcome::Refused { pallet, error, docs } => ChainError::Refused { doing, pallet, error, docs },
        Outcome::Failed(reason) => ChainError::Failed { doing, reason },
        Outcome::Unknown(why) => {
            ChainError::Uncertain { doing, reason: format!("block {} includes it, but {why}", block.block) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_before_it_was_sent_is_never_sent() {
        let stage = Stage::default();
        assert!(!stage.give_up());
        assert!(!stage.may_send());
        assert!(!stage.give_up(), "nor does asking again change it");
    }

    #[test]
    fn what_is_about_stays_about_until_it_is_lost() {
        let stage = Stage::default();
        assert!(stage.may_send());
        assert!(stage.give_up());
        stage.withdrawn();
        assert!(!stage.give_up());
        assert!(!stage.may_send());
    }
}
