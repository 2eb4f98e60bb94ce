//! `mettle run list` and `mettle run show`: the runs, the needs of a seat, and its pay.
//!
//! The chain holds parameters, terms and seats. Model and data are in the specification and the manifest, which the
//! run's owner publishes. Both are checked against the digests on the chain; if they are not available, the run is
//! shown without them.

use crate::{
    network_flags::NetworkFlags,
    output::Output,
    plan::{
        self,
        figures::{Role as RoleFigures, Value as Figure},
        table::{grouped, role_json, scaled, value as figure, wrapped},
    },
    signing::{RunSession, SigningSession, units},
};
use chain_client::{Amount, Chain, keys::address, terms::percent};
use daemon::{config::ChainFlags, data::fetch_manifest, error_chain, open};
use dataset::Manifest;
use futures::{StreamExt as _, stream};
use model::{Optimiser, RunSpec};
use protocol::{
    Role, RunId, Window,
    params::Permille,
    view::{RunStatus, SeatOccupancy},
};
use serde_json::{Value, json};
use std::{future::Future, time::Duration};
use watch::{block_clock::BlockClock, text::readable};

/// Maximum number of specifications that are fetched at once.
const FETCHES_AT_ONCE: usize = 8;
/// Time limit for a run's origin.
const ORIGIN_WITHIN: Duration = Duration::from_secs(10);
/// Width of a name in the list, in columns.
const NAME: usize = 18;
/// Width of a label of a shown run, in columns.
const LABEL: usize = 11;

/// List the runs: size, memory, seats and pay
///
/// `device` is the memory of training on a GPU without activations; `pay` is a miner's for a merged window if all
/// current miners earn alike. Names and sizes come from the specifications that the runs' owners publish.
#[derive(Clone, Debug, clap::Args)]
pub struct ListRuns {
    #[command(flatten)]
    network: NetworkFlags,
}

/// Show a run: model, data, and a seat's needs, costs and pay
///
/// Sizes are computed as by `mettle plan`. Specification and manifest are fetched from the run's origin and checked
/// against the chain.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowRun {
    #[command(flatten)]
    chain_flags: ChainFlags,
}

/// A run with its owner's publications. `Err` is the reason why one cannot be read.
struct RunReport {
    status: RunStatus,
    clock: BlockClock,
    spec: Result<RunSpec, String>,
    manifest: Result<Manifest, String>,
}

pub(super) async fn list(command: ListRuns, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let args = command.network.read()?;
    let session = SigningSession::open(&args.chain).await?;
    let chain = &*session.chain;
    let ids = chain.runs().await?;
    let read = |id| async move {
        let mut report = RunReport::read(chain, id).await?;
        report.spec = specification(chain, &report.status).await;
        anyhow::Ok(report)
    };
    let reports: Vec<anyhow::Result<RunReport>> =
        stream::iter(ids).map(read).buffered(FETCHES_AT_ONCE).collect().await;
    let reports = reports.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let runs: Vec<Value> = reports.iter().map(RunReport::json).collect();
    Ok(output.result(&table(&reports), json!({ "runs": runs }))?)
}

pub(super) async fn show(command: ShowRun, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let session = RunSession::open(command.chain_flags.read(None)?).await?;
    let chain = session.chain();
    let mut report = RunReport::read(chain, session.run).await?;
    report.spec = specification(chain, &report.status).await;
    report.manifest = manifest(chain, &report.status).await;
    Ok(output.result(&report.text(), report.json())?)
}

async fn specification(chain: &dyn Chain, status: &RunStatus) -> Result<RunSpec, String> {
    let fetch = open::fetcher(chain, &status.run.params).map_err(|error| format!("{error:#}"))?;
    let fetched = async {
        let spec = open::specification(chain, &fetch, &status.run).await;
        spec.map_err(|error| format!("{error:#}"))
    };
    in_time(fetched).await
}

async fn manifest(chain: &dyn Chain, status: &RunStatus) -> Result<Manifest, String> {
    let fetch = open::fetcher(chain, &status.run.params).map_err(|error| format!("{error:#}"))?;
    in_time(async { fetch_manifest(&fetch, &status.run).await.map_err(|error| error_chain(&error)) }).await
}

async fn in_time<T>(fetched: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("not fetched within {} s", ORIGIN_WITHIN.as_secs()));
    tokio::time::timeout(ORIGIN_WITHIN, fetched).await.unwrap_or_else(late)
}

fn table(reports: &[RunReport]) -> String {
    if reports.is_empty() {
        return "there are no runs on this chain: create one with `mettle run create`".into();
    }
    let mut text = format!(
        "{:>4}  {:NAME$}  {:>7}  {:>8}  {:>7}  {:>13}  state\n",
        "run", "name", "params", "device", "miners", "pay"
    );
    for report in reports {
        text += &report.line();
    }
    text + "`mettle run show --run ID` shows one of them"
}

impl RunReport {
    /// Reads the run from the chain.
    async fn read(chain: &dyn Chain, id: RunId) -> anyhow::Result<RunReport> {
        let status = chain.status(id).await?;
        let clock = BlockClock::read(chain, status.run.params.schedule).await?;
        let not_yet = || "not fetched".to_owned();
        Ok(RunReport { status, clock, spec: Err(not_yet()), manifest: Err(not_yet()) })
    }

    /// Formats the run for the list.
    fn line(&self) -> String {
        let run = &self.status.run;
        let (name, size, device) = match &self.spec {
            Ok(spec) => {
                let [miner, ..] = self.figures(spec);
                // In billions, as models are named.
                let parameters = scaled(spec.model.parameters() as f64, "");
                let parameters = parameters.replace('G', "B").replace(' ', "");
                (readable(&spec.name), parameters, figure(Figure::Bytes(miner.bytes("device_bytes"))))
            }
            Err(_) => ("(not served)".into(), "?".into(), "?".into()),
        };
        let name: String = name.chars().take(NAME).collect();
        let SeatOccupancy { taken, max, .. } = self.status.miners;
        let pay = format!("{:.2}", self.pay_per_window(Role::Miner));
        let line = format!(
            "{:>4}  {name:NAME$}  {:>7}  {device:>8}  {:>7}  {pay:>13}  {}",
            run.id.to_string(),
            size,
            format!("{taken}/{max}"),
            self.state()
        );
        format!("{}\n", line.trim_end())
    }

    fn state(&self) -> String {
        match self.status.window {
            _ if self.status.stopped_by_owner => "stopped".into(),
            _ if self.status.run.paused => "paused".into(),
            Some(window) => format!("window {}", window.0),
            None => "not begun".into(),
        }
    }

    fn figures(&self, spec: &RunSpec) -> [RoleFigures; 3] {
        plan::of_run(spec, &self.status, self.clock.block_time)
    }

    fn seats(&self, role: Role) -> SeatOccupancy {
        match role {
            Role::Miner => self.status.miners,
            Role::Validator => self.status.validators,
        }
    }

    /// Returns a seat's pay for a merged window, if all current seats of its role earn alike.
    fn pay_per_window(&self, role: Role) -> Amount {
        let RunStatus { run, epoch, .. } = &self.status;
        let share = match role {
            Role::Miner => run.terms.shares.miners,
            Role::Validator => run.terms.shares.validators,
        };
        let emission = run.terms.emission(epoch.unwrap_or(0)).min(self.status.treasury.treasury);
        let windows = u128::from(run.params.epoch_windows.max(1));
        let seats = u128::from(self.seats(role).taken.max(1));
        Amount(emission / 1000 * u128::from(share.0) / windows / seats)
    }

    /// Returns the number of epochs that the treasury pays in full.
    fn treasury_epochs(&self) -> Option<u128> {
        let emission = self.status.run.terms.emission(self.status.epoch.unwrap_or(0));
        self.status.treasury.treasury.checked_div(emission)
    }

    fn text(&self) -> String {
        let run = &self.status.run;
        let mut text = match &self.spec {
            Ok(spec) => format!("run {}: {}\n", run.id, readable(&spec.name)),
            Err(_) => format!("run {}\n", run.id),
        };
        let mut line = |name: &str, value: &str| {
            text += &wrapped(&format!("{name:LABEL$}"), &" ".repeat(LABEL), value);
        };
        line("state", &self.state_text());
        line("window", &self.window_text());
        line("model", &self.spec.as_ref().map_or_else(|why| not_served(why), model_text));
        if let Ok(spec) = &self.spec {
            line("start", &start_text(spec));
            line("recipe", &recipe_text(spec));
        }
        line("data", &self.manifest.as_ref().map_or_else(|why| not_served(why), data_text));
        if let Ok(spec) = &self.spec {
            let [miner, merging, evaluating] = self.figures(spec);
            line("a miner", &self.miner_text(spec, &miner));
            line("validator", &validator_text(&merging, &evaluating));
        }
        for role in [Role::Miner, Role::Validator] {
            line(&format!("{role}s"), &self.seats_text(role));
        }
        line("pay", &self.pay_text());
        line("treasury", &self.treasury_text());
        line("owner", &address(&run.owner));
        line("origin", &readable(&run.origin));
        line("spec", &run.spec.to_string());
        line("manifest", &run.manifest.to_string());
        text + "`mettle run terms` shows all terms and limits; `mettle register` takes a seat"
    }

    fn state_text(&self) -> String {
        let RunStatus { run, epoch, window, .. } = &self.status;
        let schedule = run.params.schedule;
        let mut text = match (window, schedule.phase_at(self.status.block)) {
            (Some(window), Some((_, phase))) => {
                format!("window {}, {}, epoch {}", window.0, phase.label(), epoch.unwrap_or(0))
            }
            _ => format!("starts with {}", self.clock.until(Window::FIRST)),
        };
        if self.status.stopped_by_owner {
            text += "; paused by its owner: no window is merged or paid";
        } else if run.paused {
            text += "; paused: too little of the validators' stake takes part";
        }
        text
    }

    fn window_text(&self) -> String {
        let params = &self.status.run.params;
        let (blocks, epoch) = (params.schedule.blocks_per_window, self.clock.windows(params.epoch_windows));
        format!("{blocks} blocks, about {}; an epoch is {epoch}", self.clock.blocks(blocks.into()))
    }

    fn miner_text(&self, spec: &RunSpec, miner: &RoleFigures) -> String {
        let params = &self.status.run.params;
        let bytes = |key| figure(Figure::Bytes(miner.bytes(key)));
        let tokens = u64::from(params.sequences_per_seat) * spec.model.seq_len as u64;
        format!(
            "trains {} sequences ({} tokens) per window, sends {}, fetches {}; device {}, with activations of one \
             sequence {} to {}; host {}, disk {}",
            grouped(params.sequences_per_seat.into()),
            grouped(tokens),
            bytes("upload_bytes"),
            bytes("download_bytes"),
            bytes("device_bytes"),
            figure(Figure::Bytes(miner.bytes("device_bytes") + miner.bytes("activation_least_bytes"))),
            figure(Figure::Bytes(miner.bytes("device_bytes") + miner.bytes("activation_bytes"))),
            bytes("host_bytes"),
            bytes("disk_bytes"),
        )
    }

    fn seats_text(&self, role: Role) -> String {
        let SeatOccupancy { taken, max, price } = self.seats(role);
        format!(
            "{taken} of {max} seats are taken; the next costs {:.2}, burnt, and a stake of {} or more",
            Amount(price),
            Amount(self.status.run.terms.stake_min(role))
        )
    }

    fn pay_text(&self) -> String {
        let RunStatus { run, epoch, .. } = &self.status;
        let shares = run.terms.shares;
        let parts = [
            ("miners", shares.miners),
            ("validators", shares.validators),
            ("owner", shares.owner),
            ("burnt", shares.burn),
        ];
        let parts = parts.iter().filter(|(_, share)| Permille(0) < *share);
        let parts: Vec<String> = parts.map(|(name, share)| format!("{name} {}", percent(*share))).collect();
        format!(
            "{} per epoch: {}; if all that are there earn alike, a miner gets {:.2} and a validator {:.2} for a merged \
             window",
            Amount(run.terms.emission(epoch.unwrap_or(0))),
            parts.join(", "),
            self.pay_per_window(Role::Miner),
            self.pay_per_window(Role::Validator),
        )
    }

    fn treasury_text(&self) -> String {
        let treasury = Amount(self.status.treasury.treasury);
        let lasts = match self.treasury_epochs() {
            None => "nothing is paid out of it".into(),
            Some(0) => "less than an epoch's pay".into(),
            Some(epochs) => {
                let windows = epochs.saturating_mul(self.status.run.params.epoch_windows.into());
                let windows = u32::try_from(windows).unwrap_or(u32::MAX);
                format!("pays {epochs} epochs in full, {}", self.clock.windows(windows))
            }
        };
        format!("{treasury:.2}: {lasts}")
    }

    fn json(&self) -> Value {
        let RunStatus { run, window, epoch, stopped_by_owner, treasury, .. } = &self.status;
        let seats = |role| {
            let SeatOccupancy { taken, max, price } = self.seats(role);
            json!({
                "taken": taken, "max": max, "price": units(Amount(price)),
                "stake_min": units(Amount(run.terms.stake_min(role))),
                "pay_per_window": units(self.pay_per_window(role)),
            })
        };
        let needs = self.spec.as_ref().ok().map(|spec| {
            let roles = self.figures(spec);
            Value::Object(roles.iter().map(|role| (role.key.to_owned(), role_json(role))).collect())
        });
        let data = self.manifest.as_ref().ok().map(|manifest| {
            json!({
                "training_sequences": manifest.training_sequences(),
                "held_out_sequences": manifest.held_out_sequences(), "vocabulary": manifest.vocab,
                "sequence_tokens": manifest.seq_len(), "tokenizer": manifest.tokenizer,
            })
        });
        json!({
            "run": run.id, "owner": address(&run.owner), "origin": run.origin, "window": window, "epoch": epoch,
            "paused": run.paused, "stopped_by_owner": stopped_by_owner,
            "spec": self.spec.as_ref().ok(), "why_no_spec": self.spec.as_ref().err(),
            "parameters": self.spec.as_ref().ok().map(|spec| spec.model.parameters()),
            "spec_digest": run.spec, "manifest_digest": run.manifest, "theta0": run.theta0,
            "data": data, "params": run.params, "terms": super::terms_json(&run.terms), "needs": needs,
            "miners": seats(Role::Miner), "validators": seats(Role::Validator),
            "treasury": units(Amount(treasury.treasury)),
            "block_seconds": self.clock.block_time.as_secs_f64(),
        })
    }
}

fn not_served(why: &str) -> String {
    format!("not known: {}. Ask the run's owner to serve it again", readable(why))
}

fn model_text(spec: &RunSpec) -> String {
    let model = &spec.model;
    format!(
        "{} parameters: {} layers of {}, {} heads on {}, inner width {}, vocabulary {}, sequences of {} tokens",
        grouped(model.parameters() as u64),
        model.layers,
        model.d_model,
        model.heads,
        model.kv_heads,
        model.d_ff,
        grouped(model.vocab as u64),
        grouped(model.seq_len as u64)
    )
}

fn start_text(spec: &RunSpec) -> String {
    match &spec.weights {
        Some(weights) => format!("from a trained model, {}", readable(weights)),
        None => format!("from scratch, with seed {}", spec.seed),
    }
}

fn recipe_text(spec: &RunSpec) -> String {
    let recipe = &spec.recipe;
    let optimiser = match recipe.optimiser {
        Optimiser::AdamW => "AdamW",
        Optimiser::Muon => "Muon",
    };
    let (batch, rate) = (recipe.batch, recipe.learning_rate);
    format!("{optimiser}, {batch} sequences per step, learning rate {rate}; a miner may choose another")
}

fn data_text(manifest: &Manifest) -> String {
    let tokens = manifest.training_sequences().saturating_mul(manifest.seq_len() as u64);
    format!(
        "{} training sequences, {} tokens; {} held-out sequences",
        grouped(manifest.training_sequences()),
        grouped(tokens),
        grouped(manifest.held_out_sequences())
    )
}

fn validator_text(merging: &RoleFigures, evaluating: &RoleFigures) -> String {
    let bytes = |role: &RoleFigures, key| figure(Figure::Bytes(role.bytes(key)));
    format!(
        "fetches {} per window; memory {} beside mapped files of {}, device {} to evaluate; disk {}, bucket {}",
        bytes(merging, "fetched_bytes"),
        bytes(merging, "host_bytes"),
        bytes(merging, "mapped_bytes"),
        bytes(evaluating, "device_bytes"),
        bytes(merging, "disk_bytes"),
        bytes(merging, "bucket_bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use model::{ModelConfig, Recipe};
    use protocol::{
        Block, Digest, RunParams, Schedule, Terms,
        view::{RunView, TreasuryView},
    };

    fn report(preset: &str, name: &str) -> RunReport {
        let schedule = Schedule { start: Block(100), ..RunParams::default().schedule };
        let run = RunView {
            id: RunId(1),
            owner: [1; 32],
            params: RunParams { schedule, ..RunParams::default() },
            terms: Terms { emission_per_epoch: Amount::mtl(40).0, ..Terms::default() },
            spec: Digest::of(b"spec"),
            manifest: Digest::of(b"manifest"),
            theta0: Digest::of(b"theta0"),
            origin: "https://store.example.org/origin".into(),
            treasury: Amount::mtl(100).0,
            checkpoint: None,
            rewound: None,
            paused: false,
        };
        let block = Block(165);
        let status = RunStatus {
            run,
            block,
            window: Some(Window(0)),
            epoch: Some(0),
            miners: SeatOccupancy { taken: 4, max: 192, price: Amount::mtl(2).0 },
            validators: SeatOccupancy { taken: 3, max: 64, price: 7 },
            pending_terms: None,
            rewind_votes: Vec::new(),
            stopped_by_owner: false,
            treasury: TreasuryView { treasury: Amount::mtl(100).0, ..TreasuryView::default() },
        };
        let model = ModelConfig::preset(preset).unwrap();
        let recipe = Recipe::default();
        let spec = RunSpec { version: 1, name: name.into(), model, seed: 7, weights: None, recipe };
        let clock = BlockClock { block, schedule, block_time: Duration::from_secs(6) };
        RunReport { status, clock, spec: Ok(spec), manifest: Err("its bucket is away".into()) }
    }

    #[test]
    fn a_run_is_shown_with_its_needs_and_its_pay() {
        let text = report("8b", "llama").text();
        expect![[r#"
            run 1: llama
            state      window 0, commit, epoch 0
            window     115 blocks, about 11 min 30 s; an epoch is 10 windows, about 1 h 55
                       min
            model      7,504,924,672 parameters: 32 layers of 4096, 32 heads on 8, inner
                       width 14336, vocabulary 128,256, sequences of 8,192 tokens
            start      from scratch, with seed 7
            recipe     AdamW, 16 sequences per step, learning rate 0.004; a miner may choose
                       another
            data       not known: its bucket is away. Ask the run's owner to serve it again
            a miner    trains 512 sequences (4,194,304 tokens) per window, sends 143 MB,
                       fetches 1.243 GB; device 135.1 GB, with activations of one sequence
                       142.6 GB to 166.5 GB; host 120.1 GB, disk 600.4 GB
            validator  fetches 572.1 MB per window; memory 298.5 MB beside mapped files of
                       60.04 GB, device 30.02 GB to evaluate; disk 181.3 GB, bucket 356.3 GB
            miners     4 of 192 seats are taken; the next costs 2.00 MTL, burnt, and a stake
                       of 0.01 MTL or more
            validators 3 of 64 seats are taken; the next costs <0.01 MTL, burnt, and a stake
                       of 1 MTL or more
            pay        40 MTL per epoch: miners 50 %, validators 40 %, owner 10 %; if all
                       that are there earn alike, a miner gets 0.50 MTL and a validator 0.53
                       MTL for a merged window
            treasury   100.00 MTL: pays 2 epochs in full, 20 windows, about 3 h 50 min
            owner      5C62Ck4UrFPiBtoCmeSrgF7x9yv9mn38446dhCpsi2mLHiFT
            origin     https://store.example.org/origin
            spec       27b4a909df84b7e16dfa4e36bd17e1b64b67f2e1dd9e56ee3397c549e2955d79
            manifest   0d197521d9a48760576da1c87dfd828a60d397ea1e16f92a5b7c44b4f4060ce1
            `mettle run terms` shows all terms and limits; `mettle register` takes a seat"#]]
        .assert_eq(&text);
    }

    #[test]
    fn the_list_fits_eighty_columns_and_prints_no_control_characters() {
        let mut not_served = report("1m", "");
        not_served.spec = Err("gone".into());
        not_served.status.stopped_by_owner = true;
        let hostile = report("70b", "\x1b[2J a name of a length that no table has room for");
        let text = table(&[report("localnet", "localnet"), hostile, not_served]);
        expect![[r#"
             run  name                 params    device   miners            pay  state
               1  localnet             399.8k  7.197 MB    4/192       0.50 MTL  window 0
               1  �[2J a name of a l    69.5B  1.251 TB    4/192       0.50 MTL  window 0
               1  (not served)              ?         ?    4/192       0.50 MTL  stopped
            `mettle run show --run ID` shows one of them"#]]
        .assert_eq(&text);
        assert!(text.lines().all(|line| line.chars().count() <= 80 && !line.contains('\x1b')), "{text}");
        assert!(table(&[]).contains("run create"));
    }

    #[test]
    fn json_has_needs_pay_and_the_reason_for_what_is_missing() {
        let json = report("8b", "llama").json();
        assert_eq!(json["parameters"], 7_504_924_672u64);
        // 40 MTL × 50 % / 10 windows / 4 miners.
        assert_eq!(json["miners"]["pay_per_window"], Amount::mtl(1).0.checked_div(2).unwrap().to_string());
        assert_eq!(json["needs"]["miner"]["device_bytes"], 18 * 7_504_924_672u64);
        assert!(json["data"].is_null() && json["why_no_spec"].is_null());
        let mut not_served = report("1m", "");
        not_served.spec = Err("gone".into());
        let json = not_served.json();
        assert_eq!((&json["why_no_spec"], &json["needs"]), (&json!("gone"), &Value::Null));
    }
}
