//! Measures the cost of snapshots: size, time to write and to read, share of the training time, and memory.
//!
//!     cargo run --release -p miner --example snapshot-report -- DIRECTORY PRESET…
//!
//! Prints a line of JSON for each preset. `DIRECTORY` is on the disk to measure. Times are the median of five;
//! `train_step_seconds` is that of a step of four sequences. `share_by_default` is the share of a window's time for
//! its snapshots if one is due after five minutes, or after fifty times the duration of the last one.

use daemon::durable::DurableFile;
use miner::{
    contribution_store::{Optimiser as _, Snapshot},
    progress::{Base, Progress, SnapshotInterval, SnapshotKey},
    train::Trained,
};
use model::{ModelConfig, Recipe};
use nn::{Device, Trainer};
use protocol::{Block, Digest, RunId, SeatId, Uid, Window};
use std::{path::Path, time::Instant};

const ROUNDS: usize = 5;
const BATCH: usize = 4;
const PERIOD_SECONDS: f64 = 300.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("give a directory and presets, such as: . 117k 1m 6m")?;
    for preset in arguments {
        report(Path::new(&directory), &preset)?;
    }
    Ok(())
}

fn report(directory: &Path, preset: &str) -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir_in(directory)?;
    let config = ModelConfig::preset(preset)?;
    let theta = model::init_flat(&config, 1)?;
    let recipe = Recipe { batch: BATCH, micro_batch: BATCH, ..Recipe::default() };
    let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &theta)?;
    let tokens: Vec<Vec<u32>> = (0..BATCH)
        .map(|row| (0..=config.seq_len).map(|at| ((at * 7 + row * 31) % config.vocab) as u32).collect())
        .collect();
    let mut steps = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        trainer.step(&tokens)?;
        steps.push(started.elapsed().as_secs_f64());
    }

    let (run, seat) = (RunId(0), SeatId { uid: Uid(1), registered_at: Block(1) });
    let digest = Digest::of(b"report");
    let of = SnapshotKey {
        run,
        seat,
        window: Window(1),
        base: Base::Model { lineage: digest, weights: digest },
        sequences: digest,
    };
    let mut progress = Progress::new(directory.path(), of.clone(), SnapshotInterval::Never);
    let kept = DurableFile::new(directory.path().join("miner.snapshot"));
    let snapshot = Snapshot::fresh(Window(1), theta.len());
    let peak_before = peak_bytes();
    let (mut inside, mut whole) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        progress.write(&trainer, &Trained::default())?;
        inside.push(started.elapsed().as_secs_f64());
        let started = Instant::now();
        bytes = snapshot.save(&kept, run, seat, &trainer)?;
        whole.push(started.elapsed().as_secs_f64());
    }
    let added = peak_bytes().zip(peak_before).map(|(after, before)| after - before);

    let (mut state, mut read) = (Vec::new(), Vec::new());
    trainer.write(&mut state)?;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let mut again = Progress::new(directory.path(), of.clone(), SnapshotInterval::Never);
        assert!(again.resume(&mut trainer)?.is_some());
        read.push(started.elapsed().as_secs_f64());
    }
    let mut again = Vec::new();
    trainer.write(&mut again)?;
    assert_eq!(again, state, "the state that was read is the one that was written");
    let inside_seconds = middle(inside);
    println!(
        "{}",
        serde_json::json!({
            "preset": preset,
            "parameters": theta.len(),
            "inside_bytes": progress.written.bytes,
            "inside_write_seconds": inside_seconds,
            "inside_read_seconds": middle(read),
            "whole_bytes": bytes,
            "whole_write_seconds": middle(whole),
            "train_step_seconds": middle(steps),
            "share_by_default": inside_seconds / (PERIOD_SECONDS.max(50.0 * inside_seconds) + inside_seconds),
            "added_to_peak_memory_bytes": added,
        })
    );
    Ok(())
}

fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Returns the peak memory of this process; `None` if the system does not report it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
