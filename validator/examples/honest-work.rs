//! Measures honest work on a small model in real training, for the figures behind the gauntlet's rules.
//!
//! ```text
//! cargo run --release -p validator --example honest-work -- \
//!     DATASET [windows] [full] [half] [localnet|slow] [preset] [sequences] [EVIDENCE.jsonl]
//! cargo run --release -p validator --example honest-work -- EVIDENCE.jsonl [sequences] [windows per epoch]
//! ```
//!
//! The first form appends the evidence to the file of the last argument, the second one judges such a file again.
//! Miners train on all of their sequences, on half and declare it, on a tenth and declare all, or copy. For each kind
//! it prints the own-data gap in standard errors and on the window's scale, the gain on common sequences, the
//! similarity of pairs (`gauntlet::near_duplicates`), and the pay.

use daemon::{
    Codec, Contribution, HeldContribution, Row, Storage,
    codec::{self, Input, Update},
};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use gauntlet::{Evidence, Observed, Reputations, Sketch, Sketches, score};
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, Evaluator, Trainer};
use protocol::{
    Block, Digest, GenesisHash, RunId, RunParams, SeatId, Uid, Window,
    contribution::{self, CODEC, Sparse},
    identity::Signer,
    norms::RunningNorms,
    params::{Density, F32Bits, MergeRule},
    submission::{self, Header},
};
use std::{collections::BTreeMap, error::Error, sync::Arc};
use validator::evaluate::{self, Job};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Full,
    Half,
    /// A tenth of the training, declared as all of it.
    Tenth,
    /// The first miner's bytes of the same window; no real miner can have them.
    Copy,
    /// The mean of three other contributions of the previous window.
    Mixture,
    /// The first miner's body of the previous window.
    Replay,
}

struct Miner {
    uid: Uid,
    kind: Kind,
    trainer: Trainer,
    residual: Vec<f32>,
    body: Vec<u8>,
    sketches: Vec<Sketch>,
}

#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn line(&self) -> String {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let at =
            |part: f64| values.get(((values.len() as f64 - 1.0) * part) as usize).copied().unwrap_or(0.0);
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        format!("mean {mean:7.3}  least {:7.3}  median {:7.3}  most {:7.3}", at(0.0), at(0.5), at(1.0))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| -> usize {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    if let Some(path) = arguments.first().filter(|path| path.ends_with(".jsonl")) {
        return judge_again(path, number(1, 256) as u32, number(2, 10) as u32);
    }
    let dataset = Dataset::open(arguments.first().ok_or("name a prepared dataset")?, None)?;
    let (windows, full, half) = (number(1, 20), number(2, 4), number(3, 1));
    let slow = arguments.get(4).is_some_and(|text| text == "slow");
    let preset = arguments.get(5).map_or("117k", String::as_str);
    let sequences = number(6, 256);

    let mut config = ModelConfig::preset(preset)?;
    config.vocab = dataset.vocab() as usize;
    config.seq_len = dataset.seq_len();
    let recipe = Recipe { batch: 8, micro_batch: 8, ..Recipe::default() };
    // The parameters of a localnet, or of a long run.
    let (density, merge_density, decay) =
        if slow { (Density(64), Density(384), 0.95) } else { (Density(512), Density(1695), 0.5) };
    let params = RunParams {
        sequences_per_seat: sequences as u32,
        density,
        merge_density,
        error_feedback_decay: F32Bits::of(decay),
        epoch_windows: 2,
        ..RunParams::default()
    };
    let schema = config.schema()?;
    let sent = Arc::new(Codec::new(&schema, density)?);
    let merged = Codec::new(&schema, merge_density)?;
    let mut theta = init_flat(&config, 1)?;
    let mut evaluator = Evaluator::new(&config, Device::CPU, &theta)?;
    let mut buffer = Row::from(vec![0.0f32; theta.len()]);

    let mut kinds = vec![Kind::Full; full];
    kinds.extend(vec![Kind::Half; half]);
    kinds.extend([Kind::Tenth, Kind::Copy, Kind::Mixture, Kind::Replay]);
    let mut miners = Vec::new();
    for (uid, kind) in (0u16..).zip(&kinds) {
        miners.push(Miner {
            uid: Uid(uid),
            kind: *kind,
            trainer: Trainer::new(&config, &recipe, Device::CPU, &theta)?,
            residual: vec![0.0; theta.len()],
            body: Vec::new(),
            sketches: Vec::new(),
        });
    }

    let key = Signer::new(SigningKey::from_bytes(&[7; 32]), GenesisHash::default());
    let (mut cursor, mut reputations, mut sketches) = (0u64, Reputations::default(), Sketches::default());
    let mut paid: BTreeMap<Uid, f64> = BTreeMap::new();
    let mut gaps: BTreeMap<Kind, [Samples; 4]> = BTreeMap::new();
    let mut alike: BTreeMap<&str, Samples> = BTreeMap::new();
    for window in 0..windows {
        let before: Vec<Vec<u8>> = miners.iter().map(|miner| miner.body.clone()).collect();
        let mut assigned: BTreeMap<Uid, Vec<u64>> = BTreeMap::new();
        let mut contributions: BTreeMap<Uid, HeldContribution> = BTreeMap::new();
        let order = protocol::assign::Permutation::new(&Digest::of(b"example"), dataset.training_sequences());
        for place in 0..miners.len() {
            let own: Vec<u64> = (0..sequences as u64).map(|at| order.at(cursor + at)).collect();
            cursor += sequences as u64;
            let uid = miners[place].uid;
            let mut trained = sequences;
            let body = match miners[place].kind {
                Kind::Full | Kind::Half | Kind::Tenth => {
                    let done = match miners[place].kind {
                        Kind::Half => sequences / 2,
                        Kind::Tenth => sequences / 10,
                        _ => sequences,
                    };
                    if miners[place].kind == Kind::Half {
                        trained = done;
                    }
                    let miner = &mut miners[place];
                    miner.trainer.load(&theta)?;
                    let data = dataset.sequences(&own[..done])?;
                    for batch in data.chunks(recipe.batch) {
                        miner.trainer.step(batch)?;
                    }
                    let after = miner.trainer.weights_flat()?;
                    for ((residual, before), after) in miner.residual.iter_mut().zip(&theta).zip(after) {
                        *residual = decay * *residual + (before - after);
                    }
                    contribution::encode_with_feedback(&schema, density, &mut miner.residual)?
                }
                Kind::Copy => miners[0].body.clone(),
                Kind::Mixture if window > 0 => {
                    let mut mean = vec![0.0f32; theta.len()];
                    for body in &before[..3.min(full)] {
                        add(&schema, &mut mean, &sent.decode(body)?, 1.0 / 3.0);
                    }
                    contribution::encode(&schema, density, &mean)?
                }
                Kind::Mixture | Kind::Replay if window == 0 => miners[0].body.clone(),
                Kind::Mixture | Kind::Replay => before[0].clone(),
            };
            let header = Header {
                codec: CODEC,
                run: RunId(0),
                window: Window(window as u32),
                uid,
                hotkey: key.hotkey(),
                base: Digest::default(),
                schema: schema.digest(),
                density,
                trained: trained as u32,
            };
            let bytes = submission::seal(&header, &body, &key);
            let square_norms = sent.square_norms(&body)?;
            let digest = Digest::of(&bytes);
            let contribution = Contribution { digest, bytes: bytes.into(), header, square_norms };
            contributions.insert(uid, contribution.into());
            let sketch = Sketch::of(&sent.decode(&body)?);
            miners[place].body = body;
            miners[place].sketches.push(sketch);
            assigned.insert(uid, own);
        }
        let common: Vec<u64> =
            (0..params.evaluation_sequences.into()).map(|at| order.at(cursor + at)).collect();
        cursor += u64::from(params.evaluation_sequences);

        let job = Job {
            window: Window(window as u32),
            theta: theta.clone().into(),
            params,
            codec: sent.clone(),
            contributions,
            reference_norms: Vec::new(),
            order: miners.iter().map(|miner| miner.uid).collect(),
            assigned,
            common,
            seed: Digest::of(&(window as u64).to_le_bytes()),
            held_out: 0..64,
            earlier: sketches,
        };
        let measured = evaluate::measure(&mut evaluator, &dataset, &job, &mut || true)?;
        sketches = measured.sketches.clone();

        // Measure.
        let gains: Vec<score::Gains> = measured.seats.values().filter_map(score::gains).collect();
        let scale = score::scale(gains.iter().map(|gains| score::Sample { gains, claim: 1.0 }));
        let whole: f64 = gains[..full].iter().map(|gains| gains.common.mean).sum::<f64>() / full as f64;
        for (miner, gains) in miners.iter().zip(&gains) {
            let Some(gap) = gains.gap() else { continue };
            let [errors, ratio, gain, outcome] = gaps.entry(miner.kind).or_default();
            errors.0.push(gap.mean / gap.error);
            ratio.0.push(gap.mean / scale.gap);
            gain.0.push(gains.common.mean / whole);
            let share = if miner.kind == Kind::Half { 0.5 } else { 1.0 };
            outcome.0.extend(score::outcome(gains, scale, share).map(|outcome| outcome.value));
        }
        let honest = |miner: &&Miner| matches!(miner.kind, Kind::Full | Kind::Half | Kind::Tenth);
        for (place, one) in miners.iter().filter(honest).enumerate() {
            for other in miners.iter().filter(honest).skip(place + 1) {
                let likeness = one.sketches[window].alike(&other.sketches[window]);
                let which =
                    if window < 3 { "independent, windows 0 to 2" } else { "independent, same window" };
                alike.entry(which).or_default().0.push(likeness);
            }
            for other in miners.iter().filter(honest) {
                for back in 1..=3.min(window) {
                    let likeness = one.sketches[window].alike(&other.sketches[window - back]);
                    let which =
                        if one.uid == other.uid { "its own, earlier" } else { "independent, earlier" };
                    alike.entry(which).or_default().0.push(likeness);
                }
            }
        }
        if let Some(mixture) = miners.iter().find(|miner| miner.kind == Kind::Mixture).filter(|_| window > 0)
        {
            let likeness = mixture.sketches[window].alike(&miners[0].sketches[window - 1]);
            alike.entry("mixture of three, with one").or_default().0.push(likeness);
        }

        let evidence: Vec<Evidence> = miners
            .iter()
            .map(|miner| Evidence {
                seat: SeatId { uid: miner.uid, registered_at: Block(0) },
                observed: Observed::Valid {
                    trained: job.contributions[&miner.uid].header.trained,
                    measured: measured.seats.get(&miner.uid).cloned(),
                    near_duplicate: measured.near_duplicates.get(&miner.uid).copied(),
                },
            })
            .collect();
        if let Some(path) = arguments.get(7) {
            use std::io::Write as _;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{}", serde_json::to_string(&evidence)?)?;
        }
        let verdict = gauntlet::judge(&params, &reputations, Window(window as u32), &evidence);
        reputations = verdict.reputations;
        let total: f64 = verdict.weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        for (uid, weight) in &verdict.weights {
            *paid.entry(*uid).or_default() += f64::from(*weight) / total;
        }
        eprintln!(
            "window {window}: held-out {:.4}, gain {whole:.5}, scale {:.5}, twins {:?}",
            measured.held_out.loss,
            scale.gap,
            measured.near_duplicates.keys().map(|uid| uid.0).collect::<Vec<_>>()
        );

        // Merge the honest contributions.
        let inputs: Vec<Input<'_>> = miners
            .iter()
            .filter(|miner| matches!(miner.kind, Kind::Full | Kind::Half))
            .map(|miner| Input {
                uid: miner.uid,
                weight: 0,
                body: &miner.body,
                square_norms: &job.contributions[&miner.uid].square_norms,
            })
            .collect();
        let update = codec::merge(
            &sent,
            &merged,
            MergeRule::MeanOverHits,
            &inputs,
            &RunningNorms::default(),
            &buffer,
            &Storage::memory(),
        )?;
        buffer = update.buffer;
        Update::check(&merged, &update.body, false)?.apply(1.0, &mut theta);
    }

    println!(
        "{} parameters, density {}/4096, {windows} windows of {sequences} sequences",
        theta.len(),
        density.0
    );
    for (kind, [errors, ratio, gain, outcome]) in &gaps {
        println!("{kind:?}");
        println!("  gap, standard errors    {}", errors.line());
        println!("  gap, of the scale       {}", ratio.line());
        println!("  outcome                 {}", outcome.line());
        println!("  common gain, of a full  {}", gain.line());
    }
    for (which, samples) in &alike {
        println!("likeness, {which:<30} {}", samples.line());
    }
    for miner in &miners {
        let reputation = reputations.seats.values().nth(usize::from(miner.uid.0));
        println!(
            "uid {} {:<8} paid {:.3}  {}",
            miner.uid.0,
            format!("{:?}", miner.kind),
            paid.get(&miner.uid).copied().unwrap_or(0.0),
            reputation.map_or(String::new(), |s| format!(
                "ordinal {:.2} mark {:.3}",
                s.rating.ordinal(),
                s.own_data_score
            ))
        );
    }
    Ok(())
}

/// Judges saved evidence. Prints each seat's pay through windows 10, 30 and the last, relative to the mean of the best
/// three.
fn judge_again(path: &str, sequences: u32, epoch: u32) -> Result<(), Box<dyn Error>> {
    let params = RunParams { sequences_per_seat: sequences, epoch_windows: epoch, ..RunParams::default() };
    let (mut reputations, mut paid) = (Reputations::default(), BTreeMap::<Uid, f64>::new());
    let text = std::fs::read_to_string(path)?;
    let windows = text.lines().count();
    for (window, line) in text.lines().enumerate() {
        let evidence: Vec<Evidence> = serde_json::from_str(line)?;
        let verdict = gauntlet::judge(&params, &reputations, Window(window as u32), &evidence);
        reputations = verdict.reputations;
        if (window + 1).is_multiple_of(epoch as usize) {
            let total: f64 = verdict.weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
            for (uid, weight) in &verdict.weights {
                *paid.entry(*uid).or_default() += f64::from(*weight) / total;
            }
        }
        if [10, 30, windows].contains(&(window + 1)) {
            let mut all: Vec<f64> = paid.values().copied().collect();
            all.sort_by(|a, b| b.total_cmp(a));
            let best = all.iter().take(3).sum::<f64>() / 3.0;
            println!("through window {}:", window + 1);
            for report in &verdict.reports {
                let share = paid.get(&report.seat.uid).copied().unwrap_or(0.0) / best;
                println!(
                    "  uid {:>2}  {:6.2} %  mark {:.3}  merit {:.2}  ordinal {:.1} of {:.1}",
                    report.seat.uid.0,
                    100.0 * share,
                    report.own_data_score_after,
                    report.rating_factor,
                    report.ordinal,
                    report.median_rating
                );
            }
        }
    }
    Ok(())
}

fn add(schema: &contribution::Schema, to: &mut [f32], update: &Sparse, by: f32) {
    for (range, tensor) in schema.ranges().zip(&update.tensors) {
        let values = &mut to[range];
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            values[*position as usize] += by * value;
        }
    }
}
