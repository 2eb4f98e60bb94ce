//! What a network came to, as JSON. The fields are stable: tools and tests read them.

use crate::{
    observe::{FaultSeen, Observer},
    seats::HONEST,
};
use protocol::{Role, view::Outcome};
use serde::Serialize;
use std::time::Duration;

/// The report that `up --report FILE` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Windows that were fixed.
    pub windows: u32,
    /// Held-out loss of the model that each judged window opened with, nats per token, in order.
    pub held_out_loss: Vec<f64>,
    /// Loss on the same held-out split of always predicting how often a token occurs, nats per token.
    pub unigram_loss: f64,
    /// The lineage that each window opened with, as the chain fixed it, in hex.
    pub lineage: Vec<String>,
    /// Whether every node held exactly these models, at every window.
    pub lineage_agreed: bool,
    /// Windows that ended without an update.
    pub void_windows: Vec<u32>,
    pub seats: Vec<SeatReport>,
    /// Bytes that all nodes put into their buckets.
    pub bytes_up: u64,
    /// Bytes that all nodes fetched.
    pub bytes_down: u64,
    /// The share of wall time, since the first window opened, in which a miner trained; the mean over the miners.
    pub compute_share: f64,
    /// The share of that training time in which miners waited for data, over all of them.
    pub data_wait_share: f64,
    /// What validators held against seats, or could not see.
    pub faults: Vec<FaultSeen>,
    /// Seconds of wall time since the first window opened, in this sitting.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeatReport {
    pub name: String,
    pub role: Role,
    /// `honest`, or the name of the adversary that sits there.
    #[serde(rename = "conduct")]
    pub strategy: String,
    pub uid: u16,
    /// Windows with a commitment (miners).
    pub committed: u32,
    /// Miners: windows in which two thirds attested to it. Validators: windows it attested in.
    pub attested: u32,
    /// Miners: windows in which it was selected. Validators: windows it voted in.
    pub selected: u32,
    /// Validators: windows in which it voted another update than two thirds did.
    pub dissents: u32,
    /// Mean loss taken away on common sequences, nats per token, over all judgements (miners).
    pub mean_common_gain: Option<f64>,
    /// The share of its training time in which it waited for data (miners that trained).
    pub data_wait_share: Option<f64>,
    /// Consensus weight at the end, of 65535.
    pub final_weight: u16,
    /// Pay credited so far, in the chain's smallest unit.
    pub paid: u128,
}

impl Report {
    pub fn new(observer: &Observer, unigram_loss: f64, since_first_window: Duration) -> Report {
        let seconds = since_first_window.as_secs_f64();
        let mut seats: Vec<SeatReport> = Vec::new();
        for seat in &observer.seats {
            let uid = seat.id.uid;
            let seen = observer.seen.get(&uid).cloned().unwrap_or_default();
            let mean = seen.gains.iter().sum::<f64>() / seen.gains.len().max(1) as f64;
            seats.push(SeatReport {
                name: observer.name_of(uid),
                role: seat.role,
                strategy: observer.strategy_of(uid).to_owned(),
                uid: uid.0,
                committed: seen.committed,
                attested: seen.attested,
                selected: seen.selected,
                dissents: seen.dissents,
                mean_common_gain: (!seen.gains.is_empty()).then_some(mean),
                data_wait_share: seen.data_wait_share(),
                final_weight: observer.weights.get(&uid).copied().unwrap_or(0),
                paid: seat.earned,
            });
        }
        seats.sort_by(|left, right| (left.role, &left.name).cmp(&(right.role, &right.name)));
        let miners = observer.seats_of(Role::Miner).count().max(1) as f64;
        let trained: f64 = observer.seen.values().map(|seen| seen.train_seconds).sum();
        let waited: f64 = observer.seen.values().map(|seen| seen.data_seconds).sum();
        let void = |outcome: &Outcome| matches!(outcome, Outcome::Void(_));
        Report {
            windows: observer.windows(),
            held_out_loss: observer.held_out_losses().into_iter().map(|(_, loss)| loss).collect(),
            unigram_loss,
            lineage: observer
                .lineages
                .iter()
                .filter(|(window, _)| observer.outcomes.contains_key(window))
                .map(|(_, lineage)| lineage.to_string())
                .collect(),
            lineage_agreed: observer.lineage_agreed(),
            void_windows: observer
                .outcomes
                .iter()
                .filter(|(_, end)| void(end))
                .map(|(window, _)| window.0)
                .collect(),
            seats,
            bytes_up: observer.seen.values().map(|seen| seen.bytes_up).sum(),
            bytes_down: observer.seen.values().map(|seen| seen.bytes_down).sum(),
            compute_share: if 0.0 < seconds { trained / miners / seconds } else { 0.0 },
            data_wait_share: if 0.0 < trained { waited / trained } else { 0.0 },
            faults: observer.faults.clone(),
            seconds,
        }
    }

    /// A few lines for the end of a sitting.
    pub fn summary(&self) -> String {
        let mut lines = vec![format!(
            "{} windows, {} void, lineage {}",
            self.windows,
            self.void_windows.len(),
            if self.lineage_agreed { "agreed by every node at every window" } else { "NOT AGREED" },
        )];
        if let (Some(first), Some(last)) = (self.held_out_loss.first(), self.held_out_loss.last()) {
            lines.push(format!(
                "held-out loss {first:.3} -> {last:.3} nats per token (how often a token occurs: {:.3})",
                self.unigram_loss
            ));
        }
        for seat in &self.seats {
            let gain =
                seat.mean_common_gain.map(|gain| format!(", mean gain {gain:+.5}")).unwrap_or_default();
            let weight = match seat.role {
                Role::Miner => format!(" weight {:>5},", seat.final_weight),
                Role::Validator if seat.dissents == 0 => {
                    format!(" attested {}, voted {},", seat.attested, seat.selected)
                }
                Role::Validator => format!(
                    " attested {}, voted {}, {} of them against two thirds,",
                    seat.attested, seat.selected, seat.dissents
                ),
            };
            let paid = chain_client::Amount(seat.paid);
            let name = match seat.strategy.as_str() {
                HONEST => seat.name.clone(),
                strategy => format!("{} ({strategy})", seat.name),
            };
            lines.push(format!("{name:<12}{weight} paid {paid}{gain}"));
        }
        lines.push(format!(
            "{:.1} MB up, {:.1} MB down, miners trained {:.0} % of the time ({:.1} % of it waiting for data), {} faults",
            self.bytes_up as f64 / 1e6,
            self.bytes_down as f64 / 1e6,
            self.compute_share * 100.0,
            self.data_wait_share * 100.0,
            self.faults.len()
        ));
        lines.join("\n")
    }
}
