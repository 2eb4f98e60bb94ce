//! Sends spans to the collector, and keeps the newest while it is unavailable.

use super::{Collector, EndedSpan, Shared, otlp};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use store::{PostError, error_chain};

/// Maximum number of spans in the queue: some hundred windows.
pub(super) const QUEUE_MAX: usize = 4096;
/// Maximum number of spans in a request.
const BATCH_MAX: usize = 512;
/// Interval between requests.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Maximum interval between requests while the collector is unavailable.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Ended spans that are to be sent.
#[derive(Default)]
pub(super) struct Queue {
    spans: VecDeque<EndedSpan>,
    /// Number of dropped spans since the last log line about them.
    dropped: u64,
}

impl Queue {
    /// Adds a span. Drops the oldest one if the queue is full.
    pub fn push(&mut self, span: EndedSpan) {
        self.spans.push_back(span);
        if QUEUE_MAX < self.spans.len() {
            self.spans.pop_front();
            self.dropped += 1;
        }
    }

    /// Takes the oldest spans, at most one request's.
    pub fn take(&mut self) -> Vec<EndedSpan> {
        let count = self.spans.len().min(BATCH_MAX);
        self.spans.drain(..count).collect()
    }

    /// Returns taken spans to the queue, as far as there is space.
    fn give_back(&mut self, batch: Vec<EndedSpan>) {
        for span in batch.into_iter().rev() {
            if self.spans.len() < QUEUE_MAX {
                self.spans.push_front(span);
            } else {
                self.dropped += 1;
            }
        }
    }
}

/// The task that sends spans.
pub(super) struct Exporter {
    collector: Collector,
    resource: serde_json::Value,
    shared: Arc<Shared>,
    send_every: Duration,
    /// True if the last request failed, which has been logged.
    is_failing: bool,
    /// True if a partial refusal has been logged.
    is_partial: bool,
}

impl Exporter {
    pub fn new(collector: Collector, resource: serde_json::Value, shared: Arc<Shared>) -> Exporter {
        let (is_failing, is_partial) = (false, false);
        Exporter { collector, resource, shared, send_every: SEND_EVERY, is_failing, is_partial }
    }

    #[cfg(test)]
    pub fn sending_every(self, send_every: Duration) -> Exporter {
        Exporter { send_every, ..self }
    }

    /// Sends ended spans until the program ends.
    pub async fn run(mut self) {
        let mut wait = self.send_every;
        loop {
            let is_ending = tokio::select! {
                () = self.shared.ending.notified() => true,
                () = tokio::time::sleep(wait) => false,
            };
            wait = match self.send_all().await {
                true => self.send_every,
                false => (wait * 2).min(RETRY_MAX),
            };
            if is_ending {
                return;
            }
        }
    }

    /// Sends until the queue is empty. Returns false if a request failed.
    async fn send_all(&mut self) -> bool {
        loop {
            let batch = self.shared.queue().take();
            if batch.is_empty() {
                return true;
            }
            let body = otlp::request(&self.resource, &batch);
            match self.collector.poster.post_json(body).await {
                Ok(reply) => self.taken(&reply),
                Err(error) => {
                    let mut queue = self.shared.queue();
                    match error.may_pass() {
                        true => queue.give_back(batch),
                        false => queue.dropped += batch.len() as u64,
                    }
                    drop(queue);
                    self.not_taken(&error);
                    return false;
                }
            }
        }
    }

    fn taken(&mut self, reply: &[u8]) {
        if let Some((spans, why)) = otlp::refused(reply)
            && !std::mem::replace(&mut self.is_partial, true)
        {
            tracing::warn!(spans, why, "the collector of traces refused a part of them; this is said once");
        }
        if std::mem::take(&mut self.is_failing) {
            let dropped = std::mem::take(&mut self.shared.queue().dropped);
            tracing::info!(dropped, "the collector takes traces again");
        }
    }

    fn not_taken(&mut self, error: &PostError) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let variable = self.collector.variable;
            let kept = match error.may_pass() {
                true => format!("the newest {QUEUE_MAX} spans are kept"),
                false => "spans are dropped until it does".to_owned(),
            };
            let error = error_chain(error);
            tracing::warn!(
                variable,
                error,
                "the collector takes no traces: {kept}, and nothing else waits for it"
            );
        }
    }
}
