//! Measures the time and memory of joining from a checkpoint: with one mirror, and with three. One of these may be
//! very slow or serve wrong bytes.
//!
//! ```text
//! cargo run --release -p mettle-daemon --example join-report -- [MIB]
//! ```
//!
//! The mirrors are buckets of localnet's S3 server in this process. The joining node is a separate process, so that
//! its memory and processor time are measured alone. Each variant runs three times, in turn; the report shows the
//! median.

use mettle_daemon::{Blocking, ModelState, checkpoint, mirrors::Mirrors};
use protocol::{
    Digest, RunId, RunParams, Window,
    contribution::{Schema, TensorSpec},
    lineage,
    view::Checkpoint,
};
use s3_server::{BucketConfig, Faults, Rate, S3Server, ServerConfig};
use std::{error::Error, path::Path, process::Command, time::Instant};
use store::{Credentials, HttpFetcher, S3Settings, S3Store, fetch::FetchPolicy};

type Failed = Box<dyn Error + Send + Sync>;

const RUN: RunId = RunId(0);
const NAMES: [&str; 3] = ["first", "second", "third"];

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments[..] {
        ["join", directory, values, root, lineage, ref bases @ ..] => {
            let checkpoint =
                Checkpoint { window: Window(1000), state_root: root.parse()?, lineage: lineage.parse()? };
            runtime.block_on(join(Path::new(directory), values.parse()?, &checkpoint, bases))
        }
        [] => runtime.block_on(report(256)),
        [mib] => runtime.block_on(report(mib.parse()?)),
        _ => Err("call it without arguments, or with the size of the weights in MiB".into()),
    }
}

async fn report(mib: usize) -> Result<(), Failed> {
    let values = mib * lineage::PIECE_VALUES;
    let mut theta = vec![0.0f32; values];
    let mut noise = blake3::Hasher::new().finalize_xof();
    let mut bytes = vec![0; lineage::PIECE_BYTES];
    for piece in theta.chunks_mut(lineage::PIECE_VALUES) {
        noise.fill(&mut bytes);
        for (value, bytes) in piece.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_bits(u32::from_le_bytes(*bytes) & !(1 << 30));
        }
    }
    let state = ModelState::genesis(RUN, &RunParams::default(), &Digest::of(b"data"), theta);
    let mut state = ModelState { window: Window(1000), ..state };
    let buckets = NAMES.iter().map(|name| BucketConfig::new(*name, *name, "secret")).collect();
    let server = S3Server::start(ServerConfig::temporary(buckets)).await?;
    let mut published = None;
    for name in NAMES {
        let credentials = Credentials { access_key: name.into(), secret_key: "secret".into() };
        let store = S3Store::open(&S3Settings::new(server.endpoint(), name, credentials))?;
        published = Some(checkpoint::publish(Blocking::Pool, &store, &mut state).await?);
    }
    drop(state);
    let checkpoint = published.ok_or("there is a mirror")?;

    let pieces = || "pieces/".to_owned();
    let lies = || Faults { prefix: pieces(), flipped: Rate::Always, ..Faults::default() };
    let crawls = || Faults {
        prefix: pieces(),
        dripped: Rate::Always,
        drip_bytes_per_second: 70 << 10,
        ..Faults::default()
    };
    let ways = [
        ("one mirror", 1, Faults::default()),
        ("three mirrors", 3, Faults::default()),
        ("three, one crawls at 70 KiB/s", 3, crawls()),
        ("three, one lies", 3, lies()),
    ];
    let mut tries: Vec<Vec<[f64; 3]>> = vec![Vec::new(); ways.len()];
    for _ in 0..3 {
        for ((_, mirrors, faults), tries) in ways.iter().zip(&mut tries) {
            server.inject(NAMES[0], faults.clone())?;
            let bases = NAMES[..*mirrors].iter().map(|name| server.base_url(name));
            let directory = tempfile::tempdir()?;
            let child = Command::new(std::env::current_exe()?)
                .arg("join")
                .arg(directory.path())
                .args([values.to_string(), checkpoint.state_root.to_string(), checkpoint.lineage.to_string()])
                .args(bases)
                .output();
            let output = tokio::task::block_in_place(|| child)?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
            }
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            tries.push(numbers[..].try_into()?);
        }
    }
    let median = |tries: &[[f64; 3]], which: usize| {
        let mut of: Vec<f64> = tries.iter().map(|numbers| numbers[which]).collect();
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    let base = median(&tries[1], 0);
    println!("{mib} MiB of weights; medians of three");
    for ((name, _, _), tries) in ways.iter().zip(&tries) {
        let seconds = median(tries, 0);
        println!(
            "{name:30} {:6.1} MiB/s, {:4.2} of three honest mirrors, {:5.2} s of processor time, {:6.1} MiB of memory at most",
            mib as f64 / seconds,
            base / seconds,
            median(tries, 1),
            median(tries, 2)
        );
    }
    server.shutdown().await;
    Ok(())
}

/// Fetches the weights to a file, like an export or the first part of a join, and prints seconds, processor seconds
/// and MiB.
async fn join(
    directory: &Path,
    values: usize,
    checkpoint: &Checkpoint,
    bases: &[&str],
) -> Result<(), Failed> {
    let fetch = HttpFetcher::new(FetchPolicy::localnet())?;
    let mirrors = bases.iter().fold(Mirrors::default(), |mirrors, base| mirrors.and(Mirrors::one(base)));
    let shape = vec![u32::try_from(values)?];
    let schema = Schema::new(vec![TensorSpec { name: "w".into(), shape }])?;
    let began = Instant::now();
    checkpoint::fetch_weights_to(&directory.join("weights"), &fetch, &mirrors, RUN, checkpoint, &schema)
        .await?;
    let seconds = began.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel does not say")?;
    let peak: f64 = peak.trim().trim_end_matches("kB").trim().parse()?;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let ticks: f64 =
        stat.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    println!("{seconds} {} {}", ticks / 100.0, peak / 1024.0);
    Ok(())
}
