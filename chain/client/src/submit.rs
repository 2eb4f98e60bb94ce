//! Submits calls: signs, broadcasts, waits until they are final, and broadcasts dropped ones again.
//!
//! One task, the submitter, serves all callers of a client, so that nonces are assigned in order. Decisions are in
//! `outbox`; this module contains the I/O.

use crate::{
    Amount, ChainError, Head,
    call::Call,
    connection::Connection,
    keys::Key,
    link::{Invalid, Link, LinkError},
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

/// Number of finalised blocks after which a call that is not final is broadcast again.
pub(crate) const BROADCAST_AGAIN_BLOCKS: u32 = 3;

/// Maximum number of signatures of one call. It is signed again when the last bytes can no longer be included, usually
/// because another process with the same key used the nonce.
const SIGNATURES_MAX: u32 = 16;

/// Maximum number of times that a call is sent to a pool that rejects it temporarily.
const REJECTIONS_MAX: u32 = 60;

/// Error codes of a pool that already contains the bytes, or contained them and temporarily rejects them.
const BANNED: i32 = 1012;
const HAS_IT: i32 = 1013;

/// Returns whether an error of a broadcast means that the pool already contains the bytes.
pub(crate) fn is_known_to_pool(error: &ChainError) -> bool {
    matches!(error, ChainError::Rpc { code: BANNED | HAS_IT, .. })
}

/// A call to submit.
pub(crate) struct Request {
    pub(crate) call: Call,
    /// Amount on top of the fee.
    pub(crate) tip: Amount,
    pub(crate) reply: oneshot::Sender<Result<Head, ChainError>>,
    pub(crate) sending: Arc<SendState>,
}

/// State that orders a broadcast by the submitter and a timeout of the caller. The answer "not sent" to a caller is
/// reliable.
#[derive(Debug, Default)]
pub(crate) struct SendState(AtomicU8);

impl SendState {
    const WAITING: u8 = 0;
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// Called before signed bytes are broadcast. Returns `false` if the caller has stopped waiting: then the bytes
    /// must not be sent.
    fn may_send(&self) -> bool {
        self.change(SendState::WAITING, SendState::SENT)
    }

    /// Called when the bytes can no longer be included.
    fn withdraw(&self) {
        self.change(SendState::SENT, SendState::WAITING);
    }

    /// Called when the caller stops waiting. Returns `true` if signed bytes were sent and may still be included; if
    /// `false`, none will ever be sent.
    pub(crate) fn give_up(&self) -> bool {
        !self.change(SendState::WAITING, SendState::GIVEN_UP)
            && self.0.load(Ordering::Acquire) == SendState::SENT
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

struct Task {
    request: Request,
    signatures: u32,
    rejections: u32,
}

impl Task {
    fn reply(self, answer: Result<Head, ChainError>) {
        if let Err(error) = &answer {
            tracing::debug!(call = %self.request.call, %error, "a call failed");
        }
        // A caller that stopped waiting needs no answer.
        let _ = self.request.reply.send(answer);
    }

    fn doing(&self) -> String {
        self.request.call.to_string()
    }
}

/// Outcome of a call that the pool rejected: temporary or final.
enum Rejection {
    Transient(String),
    Final(ChainError),
}

pub(crate) struct Submitter {
    connection: Connection,
    key: Key,
    /// Calls to sign, in this order.
    waiting: VecDeque<Task>,
    outbox: Outbox<Task>,
    /// Link and block of the last comparison of `outbox` with the chain.
    link: Option<Arc<Link>>,
    reconciled: Option<Block>,
}

impl Submitter {
    pub(crate) fn new(connection: Connection, key: Key) -> Submitter {
        Submitter {
            connection,
            key,
            waiting: VecDeque::new(),
            outbox: Outbox::default(),
            link: None,
            reconciled: None,
        }
    }

    /// Serves requests until the channel closes.
    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut heads = self.connection.heads.clone();
        let mut state = self.connection.state.clone();
        loop {
            if self.waiting.is_empty() && self.outbox.is_empty() {
                match requests.recv().await {
                    Some(request) => self.enqueue(request),
                    None => return,
                }
            }
            while let Ok(request) = requests.try_recv() {
                self.enqueue(request);
            }
            heads.mark_unchanged();
            state.mark_unchanged();
            let mut try_again = !self.waiting.is_empty();
            if let Some(link) = self.connection.link() {
                let done = self.step(&link).await;
                if let Err(error) = &done {
                    tracing::debug!(%error, "submitting was interrupted");
                }
                try_again = done.is_err() || !self.waiting.is_empty();
            }
            if self.waiting.is_empty() && self.outbox.is_empty() {
                continue;
            }
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.enqueue(request),
                    None => return,
                },
                changed = heads.changed() => if changed.is_err() { return },
                changed = state.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(self.connection.timing.retry), if try_again => {}
            }
        }
    }

    fn enqueue(&mut self, request: Request) {
        self.waiting.push_back(Task { request, signatures: 0, rejections: 0 });
    }

    /// Compares the calls in flight with the chain, and sends the waiting ones. After an error it is simply run again.
    async fn step(&mut self, link: &Arc<Link>) -> Result<(), LinkError> {
        if !self.link.as_ref().is_some_and(|known| Arc::ptr_eq(known, link)) {
            self.outbox.reconnected();
            self.link = Some(link.clone());
            self.reconciled = None;
        }
        let head = link.head();
        if self.reconciled != Some(head.block) && !self.outbox.is_empty() {
            self.reconcile(link, &head).await?;
            self.reconciled = Some(head.block);
        }
        // The call is dropped if its caller stopped waiting before it was signed.
        self.waiting.retain(|task| !task.request.reply.is_closed());
        self.send(link).await
    }

    /// Determines the state of the calls in flight as of `head`.
    async fn reconcile(&mut self, link: &Link, head: &Head) -> Result<(), LinkError> {
        let next = link.nonce(&self.key.account(), head).await?;
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
                let Some(task) = self.outbox.get(nonce) else { continue };
                let failure = link.failure(&block, index, &task.doing()).await?;
                if let Some(task) = self.outbox.withdraw(nonce) {
                    task.reply(failure.map_or(Ok(block), Err));
                }
            }
            self.outbox.searched(Block(number));
        }

        if self.outbox.is_empty() {
            return Ok(());
        }

        // As of the finalised block: a fork without the upgrade may still include calls signed before it.
        let runtime = link.version_after(Some(head)).await?;
        // The last first, so that they wait in the order in which they were signed.
        for (task, reason) in self.outbox.lost(head.block, next, runtime).into_iter().rev() {
            task.request.sending.withdraw();
            tracing::debug!(call = %task.request.call, reason, "a call was lost in flight");
            if task.signatures < SIGNATURES_MAX {
                self.waiting.push_front(task);
            } else {
                let (doing, attempts) = (task.doing(), task.signatures);
                task.reply(Err(ChainError::Dropped { doing, attempts, reason: reason.into() }));
            }
        }

        let again = self.outbox.due_again(head.block, BROADCAST_AGAIN_BLOCKS);
        if !again.is_empty() {
            let best = link.best().await?;
            let next = link.nonce(&self.key.account(), &best).await?;
            for (nonce, bytes) in again {
                // A lower nonce is already in the best chain, and only has to become final.
                if nonce < next {
                    continue;
                }
                match link.broadcast(&bytes).await {
                    Err(error @ LinkError::Broken(_)) => return Err(error),
                    Err(error) => tracing::debug!(nonce, %error, "broadcast again and rejected"),
                    Ok(()) => tracing::debug!(nonce, "broadcast again and accepted"),
                }
            }
        }
        Ok(())
    }

    /// Signs and broadcasts the waiting calls, until the pool temporarily rejects one.
    async fn send(&mut self, link: &Link) -> Result<(), LinkError> {
        while let Some(task) = self.waiting.front() {
            let head = link.head();
            let best = link.best().await?;
            let nonce = self.outbox.next_nonce(link.nonce(&self.key.account(), &best).await?);
            let blocks = self.connection.timing.era_blocks;
            let Request { call, tip, .. } = &task.request;
            let signed = link.sign(call, *tip, &self.key, nonce, &head, blocks).await;
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

            // From here on the bytes count as sent, regardless of the connection.
            if !task.request.sending.may_send() {
                continue;
            }
            let doing = task.doing();
            task.signatures = task.signatures.saturating_add(1);
            self.outbox.insert(nonce, task, bytes.clone(), link.version(), head.block, blocks);
            let Err(error) = link.broadcast(&bytes).await else {
                continue;
            };
            let rejection = match &error {
                LinkError::Answer { code, .. } => {
                    self.classify(link, &doing, *code, &error, &bytes, &best).await?
                }
                LinkError::Broken(_) | LinkError::Garbled(_) => return Err(error),
            };
            let Some(rejection) = rejection else { continue };

            // Only this node has received the bytes, and rejected them: they can no longer be included.
            let Some(mut task) = self.outbox.withdraw(nonce) else { continue };
            task.request.sending.withdraw();
            match rejection {
                Rejection::Final(error) => task.reply(Err(error)),
                Rejection::Transient(reason) if task.rejections >= REJECTIONS_MAX => {
                    let attempts = task.rejections;
                    task.reply(Err(ChainError::Dropped { doing, attempts, reason }));
                }
                Rejection::Transient(reason) => {
                    tracing::debug!(call = %task.request.call, reason, "rejected for now");
                    task.rejections = task.rejections.saturating_add(1);
                    task.signatures = task.signatures.saturating_sub(1);
                    self.waiting.push_front(task);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Classifies a pool's error; `None` if the pool contains the bytes. Queries the runtime where possible, instead
    /// of parsing the message.
    async fn classify(
        &self,
        link: &Link,
        doing: &str,
        code: i32,
        error: &LinkError,
        bytes: &[u8],
        best: &Head,
    ) -> Result<Option<Rejection>, LinkError> {
        /// Other error codes of the pool that can occur for our calls.
        const NOT_VERIFIED: i32 = 1002;
        const INVALID: i32 = 1010;
        const UNKNOWN_VALIDITY: i32 = 1011;
        const PRIORITY_TOO_LOW: i32 = 1014;
        const POOL_FULL: i32 = 1016;

        let text = error.to_string();
        let invalid =
            |reason: String| Rejection::Final(ChainError::Invalid { doing: doing.to_owned(), reason });
        Ok(Some(match code {
            HAS_IT | BANNED => return Ok(None),
            INVALID => match link.invalid(bytes, best).await? {
                Some(Invalid::Payment) => invalid(format!(
                    "the account {} cannot pay the fee. Transfer some MTL to it",
                    self.key.address()
                )),
                Some(Invalid::Final) => invalid(format!("the chain rejects it: {text}")),
                Some(Invalid::Transient) | None => Rejection::Transient(text),
            },
            NOT_VERIFIED | UNKNOWN_VALIDITY | PRIORITY_TOO_LOW | POOL_FULL => Rejection::Transient(text),
            _ => Rejection::Final(error.clone().into_chain_error(doing)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_given_up_before_it_was_sent_is_never_sent() {
        let sending = SendState::default();
        assert!(!sending.give_up());
        assert!(!sending.may_send());
        assert!(!sending.give_up(), "giving up twice changed it");
    }

    #[test]
    fn a_sent_call_counts_as_sent_until_it_is_lost() {
        let sending = SendState::default();
        assert!(sending.may_send());
        assert!(sending.give_up());
        sending.withdraw();
        assert!(!sending.give_up());
        assert!(!sending.may_send());
    }
}
