//! Does it learn as well? See `tests::learning`. Progress goes to standard error, tables or JSON to standard output; each
//! finished run is a line of a file, and is not run again, so that the program may be stopped at any time and several may
//! share a file.

use clap::Parser as _;
use dataset::{Dataset, OutputDirectory, PrepareOptions, Source, TokenizerChoice};
use std::{error::Error, fs, path::PathBuf, process::ExitCode};
use tests::learning::{
    plan::{Question, Variant},
    plot, report,
};

/// Trains the project's own model by this protocol and by what it is measured against, with equal tokens, and compares
/// held-out losses.
#[derive(clap::Parser)]
#[command(name = "learning-study")]
struct Settings {
    /// What to ask; several may be named. Without it, everything but the learning rates.
    #[arg(long, value_enum, value_delimiter = ',')]
    question: Vec<Question>,
    /// How many times everything is run, each time with other weights and other data.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first of them; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Only variants whose name contains this, and the one that they are compared with.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where finished runs are kept, one a line. Several programs may share it.
    #[arg(long, value_name = "FILE", default_value = "learning-study.jsonl")]
    results: PathBuf,
    /// Says which runs there are, how many tokens each takes and which are finished, and runs none.
    #[arg(long)]
    list: bool,
    /// Runs nothing, and reports what is finished.
    #[arg(long, conflicts_with = "list")]
    report: bool,
    /// Also draws each question's losses against tokens, or against learning rates where it asks for them, as QUESTION.svg in this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// A prepared dataset. Without it, the default text is prepared and kept in the user's cache.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Held-out sequences that losses are measured on.
const HELD_OUT: u64 = 1024;
/// Of the default text: bytes, so that the embedding is no larger a part of the model than in a large one.
const VOCABULARY: u32 = 258;
const SEQUENCE: u32 = 32;

fn main() -> ExitCode {
    // One thread, this one: a model so small gains nothing by more, and whoever has more cores runs several seeds at once.
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    match run(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let mut questions = settings.question.clone();
    if questions.is_empty() {
        questions = Question::EACH.to_vec();
    }
    let seeds: Vec<u64> = (settings.first_seed..).take(settings.seeds as usize).collect();
    if settings.list {
        return list(settings, &questions, &seeds);
    }
    if !settings.report {
        train(settings, &questions, &seeds)?;
    }

    let outcomes = report::read(&settings.results)?;
    let mut all = Vec::new();
    for question in questions {
        let rows = report::rows(question, &seeds, &outcomes);
        if let Some(directory) = &settings.plots {
            let svg = if question.asks_for_rates() {
                plot::rates_svg(question.title(), &report::rates(&rows))
            } else {
                plot::svg(question.title(), &report::lines(&rows))
            };
            let path = directory.join(format!("{}.svg", question.slug()));
            fs::create_dir_all(directory)?;
            fs::write(&path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        if settings.json {
            all.push(report::json(question, &rows));
        } else {
            println!("## {}\n\n{}", question.title(), report::table(&rows));
            if question.asks_for_rates() {
                println!("Each at its best rate:\n\n{}", report::table(&report::best(&rows)));
            }
        }
    }
    if settings.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

/// The variants that are wanted of a question.
fn wanted(settings: &Settings, question: Question, seed: u64) -> impl Iterator<Item = Variant> {
    question.variants(seed).into_iter().enumerate().filter_map(|(at, variant)| {
        let named = settings.only.as_ref().is_none_or(|text| variant.name.contains(text));
        (at == 0 || named).then_some(variant)
    })
}

fn list(settings: &Settings, questions: &[Question], seeds: &[u64]) -> Result<(), Box<dyn Error>> {
    let outcomes = report::read(&settings.results)?;
    for question in questions {
        println!("{}", question.title());
        for &seed in seeds {
            for Variant { name, run } in wanted(settings, *question, seed) {
                let tokens = (run.window_tokens() * run.windows as u64) as f64 / 1e6;
                let state = match report::find(&outcomes, &run) {
                    Some(outcome) => format!("finished in {:.0} s", outcome.seconds),
                    None => "to run".into(),
                };
                println!(
                    "  seed {seed}: {name}: {} windows, {tokens:.1} million tokens, {state}",
                    run.windows
                );
            }
        }
    }
    Ok(())
}

/// Runs what is not finished: every variant under the first seed, then the second, question by question.
fn train(settings: &Settings, questions: &[Question], seeds: &[u64]) -> Result<(), Box<dyn Error>> {
    let directory = match &settings.data {
        Some(directory) => directory.clone(),
        None => prepared()?,
    };
    let dataset = Dataset::open(&directory, None)?;
    let held_out: Vec<u64> = (0..dataset.held_out_sequences().min(HELD_OUT)).collect();
    let held_out = dataset.held_out_sequences_at(&held_out)?;
    for question in questions {
        for &seed in seeds {
            for Variant { name, run } in wanted(settings, *question, seed) {
                // Read anew: another program may have finished it.
                if report::find(&report::read(&settings.results)?, &run).is_some() {
                    continue;
                }
                let outcome = run.train(&dataset, &held_out)?;
                let loss = outcome.final_loss.map_or("diverged".into(), |loss| format!("{loss:.4}"));
                eprintln!("{question:?}, seed {seed}, {name}: {loss} in {:.0} s", outcome.seconds);
                report::append(&settings.results, &outcome)?;
            }
        }
    }
    Ok(())
}

/// The default text, prepared once and kept in the user's cache.
fn prepared() -> Result<PathBuf, Box<dyn Error>> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or("there is no place for prepared data: set HOME or XDG_CACHE_HOME, or name it with --data")?;
    let source = Source::default_text(dataset::cargo_homes(|name| std::env::var_os(name)));
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: VOCABULARY },
        seq_len: SEQUENCE,
        shard_bytes: 16 << 20,
        held_out_sequences_min: HELD_OUT,
        ..PrepareOptions::new(source, OutputDirectory::CacheUnder(cache.join("mettle").join("datasets")))
    };
    Ok(dataset::prepare(options, &mut |_| {})?.directory)
}
