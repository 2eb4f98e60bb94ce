//! The report of a session, as JSON. The fields are stable: tools and tests read them.

use protocol::{Role, Uid, view::Outcome};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};
use watch::{
    observe::{FaultSeen, HONEST, Observer, Text},
    units,
};

/// The report that `up --report FILE` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Number of finalised windows, of all sessions.
    pub windows: u32,
    /// Held-out loss of the model at the start of each measured window, in order. In nats per token, on one random
    /// sample of the held-out split.
    pub held_out_loss: Vec<f64>,
    /// Standard error of each held-out loss.
    pub held_out_standard_error: Vec<f64>,
    /// Number of sequences in the sample. `mettle model evaluate --sequences` uses the same ones.
    pub held_out_sequences: u64,
    /// Loss on the same sample if tokens are predicted by frequency alone. In nats per token.
    pub unigram_loss: f64,
    pub unigram_standard_error: f64,
    /// Tokens that this network's miners trained on, in all sessions.
    pub tokens: u64,
    /// Lineage at the start of each window, from the chain, in hex.
    pub lineage: Vec<String>,
    /// True if every node held exactly these models in every window.
    pub lineage_agreed: bool,
    /// Windows that were finalised without an update.
    pub void_windows: Vec<u32>,
    pub seats: Vec<SeatReport>,
    /// Bytes that all nodes uploaded, in all sessions.
    pub bytes_up: u64,
    /// Bytes that all nodes downloaded, in all sessions.
    pub bytes_down: u64,
    /// Share of the time in which a miner trained, mean over the miners. The time runs from the first window of this
    /// session until a miner's last training report; training ahead is reported only in the next window.
    pub compute_share: f64,
    /// Share of that training time spent waiting for data.
    pub data_wait_share: f64,
    /// Faults that validators reported, and contributions that they could not observe.
    pub faults: Vec<FaultSeen>,
    /// Wall time since the first window of this session opened.
    pub seconds: f64,
}

/// Wall time since the first window of a session opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionTime {
    /// Time until the session ended.
    pub whole: Duration,
    /// Time until a miner's last training report, or until one window's length before the end if that is later.
    pub trained: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeatReport {
    pub name: String,
    pub role: Role,
    /// `honest`, the name of an adversary, or `external`.
    pub strategy: String,
    pub uid: u16,
    /// Miners: number of windows with a commitment.
    pub committed: u32,
    /// Miners: windows in which two thirds attested the contribution as valid. Validators: windows with its
    /// attestation.
    pub attested: u32,
    /// Miners: windows in which the contribution was selected. Validators: windows with its vote.
    pub selected: u32,
    /// Validators: windows in which the vote differed from that of two thirds.
    pub minority_votes: u32,
    /// Miners: mean reduction of the loss on common sequences, over all judgements. In nats per token.
    pub mean_common_gain: Option<f64>,
    /// Miners that trained: share of the training time, over all sessions, spent waiting for data.
    pub data_wait_share: Option<f64>,
    /// Final consensus weight, of 65535.
    pub final_weight: u16,
    /// Pay credited so far, in the chain's smallest unit.
    pub paid: u128,
    /// Number of restarts of its process in this session.
    pub restarts: u32,
}

impl Report {
    /// Builds the report. `restarts`: number of restarts in this session, by name.
    pub fn new(
        observer: &Observer,
        text: &Text,
        time: SessionTime,
        restarts: &BTreeMap<String, u32>,
    ) -> Report {
        let mut seats: Vec<SeatReport> = Vec::new();
        for seat in &observer.seats {
            let uid = seat.id.uid;
            let seen = observer.seen.get(&uid).cloned().unwrap_or_default();
            let mean = seen.gains.iter().sum::<f64>() / seen.gains.len().max(1) as f64;
            let name = observer.name_of(uid);
            seats.push(SeatReport {
                restarts: restarts.get(&name).copied().unwrap_or(0),
                name,
                role: seat.role,
                strategy: observer.strategy_of(uid).to_owned(),
                uid: uid.0,
                committed: seen.committed,
                attested: seen.attested,
                selected: seen.selected,
                minority_votes: seen.minority_votes,
                mean_common_gain: (!seen.gains.is_empty()).then_some(mean),
                data_wait_share: seen.data_wait_share(),
                final_weight: observer.weights.get(&uid).copied().unwrap_or(0),
                paid: seat.earned,
            });
        }
        seats.sort_by_key(|seat| (seat.role, observer.place_of(Uid(seat.uid))));
        let miners = observer.seats_of(Role::Miner).count().max(1) as f64;
        let training = observer.train_time();
        let seconds = miners * time.trained.as_secs_f64();
        let losses = observer.held_out_losses();
        let void = |outcome: &Outcome| matches!(outcome, Outcome::Void(_));
        Report {
            windows: observer.windows(),
            held_out_loss: losses.iter().map(|(_, estimate)| estimate.loss).collect(),
            held_out_standard_error: losses.iter().map(|(_, estimate)| estimate.standard_error).collect(),
            held_out_sequences: text.unigram.sequences,
            unigram_loss: text.unigram.loss,
            unigram_standard_error: text.unigram.standard_error,
            tokens: observer.sequences_trained().saturating_mul(text.sequence_tokens),
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
                .filter(|(_, outcome)| void(outcome))
                .map(|(window, _)| window.0)
                .collect(),
            seats,
            bytes_up: observer.seen.values().map(|seen| seen.bytes_up).sum(),
            bytes_down: observer.seen.values().map(|seen| seen.bytes_down).sum(),
            compute_share: if 0.0 < seconds { training.trained / seconds } else { 0.0 },
            data_wait_share: if 0.0 < training.trained { training.waited / training.trained } else { 0.0 },
            faults: observer.faults.clone(),
            seconds: time.whole.as_secs_f64(),
        }
    }

    /// Returns a few lines for the end of a session.
    pub fn summary(&self) -> String {
        if self.windows == 0 {
            return "stopped before a window was finalised".into();
        }
        let windows = units::count(usize::try_from(self.windows).unwrap_or(usize::MAX), "window");
        let agreed = if self.lineage_agreed { "agreed by every node at every window" } else { "NOT AGREED" };
        let mut lines =
            vec![format!("{windows}, {} of them void; lineage {agreed}", self.void_windows.len())];
        let last = self.held_out_loss.last().zip(self.held_out_standard_error.last());
        if let (Some(first), Some((last, error))) = (self.held_out_loss.first(), last) {
            lines.push(format!(
                "held-out loss {last:.2} ± {error:.2} (start {first:.2} · unigram baseline {:.2}), on {}",
                self.unigram_loss,
                units::count(usize::try_from(self.held_out_sequences).unwrap_or(usize::MAX), "sequence")
            ));
        }
        lines.extend(self.seat_lines());
        lines.push(format!(
            "{} tokens; {} up, {} down; miners trained {} of the time ({:.1} % of it waiting for data); {}",
            units::thousands(self.tokens as f64),
            units::bytes(self.bytes_up),
            units::bytes(self.bytes_down),
            units::percent(self.compute_share),
            self.data_wait_share * 100.0,
            units::count(self.faults.len(), "fault")
        ));
        lines.join("\n")
    }

    fn seat_lines(&self) -> Vec<String> {
        let name = |seat: &SeatReport| match seat.strategy.as_str() {
            HONEST => seat.name.clone(),
            strategy => format!("{} ({strategy})", seat.name),
        };
        let width = self.seats.iter().map(|seat| name(seat).chars().count()).max().unwrap_or(0);
        let of = |seat: &SeatReport| units::amount(seat.paid);
        let paid_width = self.seats.iter().map(|seat| of(seat).chars().count()).max().unwrap_or(0);
        let total: u64 = self.seats.iter().map(|seat| u64::from(seat.final_weight)).sum();
        let line = |seat: &SeatReport| {
            let work = match seat.role {
                Role::Miner => {
                    let share = f64::from(seat.final_weight) / total.max(1) as f64;
                    let gain = seat.mean_common_gain.map(|gain| format!(", mean gain {gain:+.4}"));
                    format!("weight {}{}", units::percent(share), gain.unwrap_or_default())
                }
                Role::Validator => {
                    let minority_votes = match seat.minority_votes {
                        0 => String::new(),
                        minority_votes => format!(", {minority_votes} of them against two thirds"),
                    };
                    format!("attested {}, voted {}{minority_votes}", seat.attested, seat.selected)
                }
            };
            let restarts = match seat.restarts {
                0 => String::new(),
                1 => ", restarted once".to_owned(),
                restarts => format!(", restarted {restarts} times"),
            };
            format!("{:<width$}  paid {:>paid_width$}  {work}{restarts}", name(seat), of(seat))
        };
        self.seats.iter().map(line).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use expect_test::expect;
    use watch::sample::{TEXT, network};

    fn time(whole: u64, trained: u64) -> SessionTime {
        SessionTime { whole: Duration::from_secs(whole), trained: Duration::from_secs(trained) }
    }

    #[test]
    fn the_summary_of_a_session() {
        let restarts = BTreeMap::from([("miner-2".to_owned(), 2), ("validator-0".to_owned(), 1)]);
        let report = Report::new(&network(), &TEXT, time(120, 120), &restarts);
        expect![[r#"
            6 windows, 1 of them void; lineage agreed by every node at every window
            held-out loss 3.07 ± 0.02 (start 7.99 · unigram baseline 6.32), on 1536 sequences
            miner-0            paid  297.39 MTL  weight 34 %, mean gain +0.0150
            miner-1            paid 1184.71 MTL  weight 33 %, mean gain +0.0150
            miner-2            paid    0.00 MTL  weight 32 %, mean gain +0.0150, restarted 2 times
            miner-3 (copycat)  paid   <0.01 MTL  weight 0 %, mean gain +0.0150
            uid 7 (external)   paid    0.50 MTL  weight 0 %
            validator-0        paid   61.23 MTL  attested 6, voted 6, 1 of them against two thirds, restarted once
            validator-1        paid   61.23 MTL  attested 6, voted 6, 1 of them against two thirds
            validator-2        paid   61.23 MTL  attested 6, voted 6, 1 of them against two thirds
            2.0 M tokens; 6.0 MB up, 16.0 MB down; miners trained 53 % of the time (0.5 % of it waiting for data); 0 faults"#]].assert_eq(&report.summary());
    }

    #[test]
    fn a_session_without_a_finalised_window_says_so() {
        let mut observer = network();
        observer.outcomes.clear();
        let report = Report::new(&observer, &TEXT, SessionTime::default(), &BTreeMap::new());
        expect!["stopped before a window was finalised"].assert_eq(&report.summary());
    }

    #[test]
    fn training_of_an_earlier_session_is_not_counted_in_the_share_of_this_one() {
        let mut observer = network();
        observer.begin_session();
        observer.seen.entry(Uid(3)).or_default().train_seconds += 25.0;
        let report = Report::new(&observer, &TEXT, time(18, 10), &BTreeMap::new());
        assert_eq!((report.compute_share, report.seconds), (0.5, 18.0), "25 s of five miners in 10 s");
    }
}
