//! Compares this protocol's learning with other schemes; see `tests::learning`. Progress goes to standard error,
//! tables or JSON to standard output. Each finished run is a line of a file and is not repeated, so the program can
//! be stopped at any time and several processes can share a file.

use clap::Parser as _;
use dataset::Dataset;
use prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice};
use std::{error::Error, fs, path::PathBuf, process::ExitCode};
use tests::learning::{
    plan::{Question, Variant},
    plot, report,
};

/// Trains the project's model by this protocol and by other schemes, with equal tokens, and compares held-out losses.
#[derive(clap::Parser)]
#[command(name = "learning-study")]
struct Settings {
    /// Questions, separated by commas; by default all but the two on learning rates.
    #[arg(long, value_enum, value_delimiter = ',')]
    question: Vec<Question>,
    /// Number of seeds; each gives other initial weights and another order of the data.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Run only variants whose name contains this text, and the one that tables compare with.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// File of finished runs, one per line. Several processes can share it.
    #[arg(long, value_name = "FILE", default_value = "learning-study.jsonl")]
    results: PathBuf,
    /// List all runs with their tokens and state, and run none.
    #[arg(long)]
    list: bool,
    /// Report finished runs, and run none.
    #[arg(long, conflicts_with = "list")]
    report: bool,
    /// Plot each question's losses against tokens or learning rates, to QUESTION.svg in this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// A prepared dataset; by default, the default text, prepared in the user's cache.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Another dataset with the same tokenizer, on whose held-out split losses are measured. Its results need a file
    /// of their own, as those of each `--data` do.
    #[arg(long, value_name = "DIR", requires = "data")]
    held_out: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Held-out sequences on which losses are measured.
const HELD_OUT: u64 = 1024;
/// Vocabulary of the default text. Its tokens are bytes, so the embedding has a share of the model as in a large one.
const VOCABULARY: u32 = 258;
const SEQUENCE: u32 = 32;

fn main() -> ExitCode {
    // One thread: a model this small gains nothing from more. To use more cores, run several processes.
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    match run(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
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
            let svg = if question.compares_rates() {
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
            if question.compares_rates() {
                println!("Each at its best rate:\n\n{}", report::table(&report::best(&rows)));
            }
        }
    }
    if settings.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

/// Returns the variants of a question that `--only` selects.
fn selected_variants(settings: &Settings, question: Question, seed: u64) -> impl Iterator<Item = Variant> {
    question.variants(seed).into_iter().enumerate().filter_map(|(at, variant)| {
        let selected = settings.only.as_ref().is_none_or(|text| variant.name.contains(text));
        (at == 0 || selected).then_some(variant)
    })
}

fn list(settings: &Settings, questions: &[Question], seeds: &[u64]) -> Result<(), Box<dyn Error>> {
    let outcomes = report::read(&settings.results)?;
    for question in questions {
        println!("{}", question.title());
        for &seed in seeds {
            for Variant { name, run } in selected_variants(settings, *question, seed) {
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

/// Trains the unfinished runs: by question, then seed, then variant.
fn train(settings: &Settings, questions: &[Question], seeds: &[u64]) -> Result<(), Box<dyn Error>> {
    let directory = match &settings.data {
        Some(directory) => directory.clone(),
        None => prepared()?,
    };
    let dataset = Dataset::open(&directory, None)?;
    let other = settings.held_out.as_ref().map(|directory| Dataset::open(directory, None)).transpose()?;
    let measured = other.as_ref().unwrap_or(&dataset);
    if measured.manifest().tokenizer != dataset.manifest().tokenizer {
        return Err(
            "--data and --held-out have different tokenizers: prepare both with the same --tokenizer".into(),
        );
    }
    let held_out: Vec<u64> = (0..measured.held_out_sequences().min(HELD_OUT)).collect();
    let held_out = measured.held_out_sequences_at(&held_out)?;
    for question in questions {
        for &seed in seeds {
            for Variant { name, run } in selected_variants(settings, *question, seed) {
                // Another process may have finished it.
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

/// Returns the directory of the default text, prepared once in the user's cache.
fn prepared() -> Result<PathBuf, Box<dyn Error>> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or("no directory for prepared data: set HOME or XDG_CACHE_HOME, or pass --data")?;
    let source = Source::default_text(prepare::cargo_homes(|name| std::env::var_os(name)));
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: VOCABULARY },
        seq_len: SEQUENCE,
        shard_bytes: 16 << 20,
        held_out_sequences_min: HELD_OUT,
        ..PrepareOptions::new(source, OutputDirectory::CacheUnder(cache.join("mettle").join("datasets")))
    };
    Ok(prepare::prepare(options, &mut |_| {})?.directory)
}
