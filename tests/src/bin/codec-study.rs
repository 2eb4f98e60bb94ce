//! Compares alternative codecs of the wire format; see `tests::study`. Progress goes to standard error, tables or
//! JSON to standard output.

use clap::Parser as _;
use dataset::{Dataset, OutputDirectory, PrepareOptions, Source, TokenizerChoice};
use model::Recipe;
use serde_json::json;
use std::{collections::BTreeMap, error::Error, path::PathBuf, process::ExitCode};
use tests::study::{
    questions::{MINERS, Question, Variant},
    report::{self, Row},
    training::{Outcome, Task},
};

/// Trains the project's model with alternative codecs, and compares losses, errors and bits.
#[derive(clap::Parser)]
#[command(name = "codec-study")]
struct Settings {
    /// Questions, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    question: Vec<Question>,
    /// Windows per run.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    windows: u32,
    /// Number of seeds; each gives other initial weights and another order of the data.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Inner steps per window and miner.
    #[arg(long, value_name = "H", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Sequences per step.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Learning rate of the miners.
    #[arg(long, value_name = "RATE", default_value_t = 3e-3)]
    learning_rate: f64,
    /// Run only variants whose name contains this text, and the protocol's codec.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// A prepared dataset with sequences of 64 tokens; by default, the default text, prepared in the user's cache.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Held-out sequences on which losses are measured.
const HELD_OUT: u64 = 512;
/// Vocabulary of the default text. Its tokens are bytes, so the embedding has a share of the model as in a large one.
const VOCABULARY: u32 = 258;
const SEQUENCE: u32 = 64;

fn main() -> ExitCode {
    match run(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let directory = match &settings.data {
        Some(directory) => directory.clone(),
        None => prepared()?,
    };
    let dataset = Dataset::open(&directory, None)?;
    let mut questions = settings.question.clone();
    if questions.contains(&Question::All) {
        questions = Question::EACH.to_vec();
    }
    questions.sort_unstable();
    questions.dedup();

    let mut all = Vec::new();
    // A variant that several questions share is trained once.
    let mut done = BTreeMap::new();
    for question in questions {
        let rows = train(settings, &dataset, question, &mut done)?;
        let schema = question.shape(dataset.vocab() as usize).schema()?;
        let measurements = report::measure(question, &schema, &rows[0].outcomes[0]);
        if settings.json {
            all.push(json!({
                "question": question.title(),
                "parameters": schema.values(),
                "training": report::training_json(&rows),
                "measured": report::measurement_json(question, &measurements),
            }));
            continue;
        }
        println!("## {} ({} parameters)\n", question.title(), schema.values());
        println!("{}", report::training_table(&rows));
        if !measurements.is_empty() {
            println!("{}", report::measurement_table(question, &measurements));
        }
    }
    if settings.json {
        let Settings { windows, seeds, first_seed, steps, batch, learning_rate, .. } = settings;
        let study = json!({
            "miners": MINERS, "windows": windows, "steps": steps, "batch": batch, "learning_rate": learning_rate,
            "first_seed": first_seed, "seeds": seeds, "dataset": dataset.digest().to_string(), "questions": all,
        });
        println!("{}", serde_json::to_string_pretty(&study)?);
    }
    Ok(())
}

/// Trains every variant under every seed. All variants of a seed have the same weights, data and held-out text.
fn train(
    settings: &Settings,
    dataset: &Dataset,
    question: Question,
    done: &mut BTreeMap<(usize, String, u64), Outcome>,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let config = question.shape(dataset.vocab() as usize);
    let recipe = Recipe {
        batch: settings.batch as usize,
        micro_batch: settings.batch as usize,
        learning_rate: settings.learning_rate,
        ..Recipe::default()
    };
    let mut rows: Vec<Row> = Vec::new();
    let selected = |variant: &Variant| {
        variant.name == "ours" || settings.only.as_ref().is_none_or(|text| variant.name.contains(text))
    };
    for variant in question.variants().into_iter().filter(selected) {
        let mut outcomes = Vec::new();
        for seed in settings.first_seed..settings.first_seed.saturating_add(settings.seeds) {
            let key = (config.d_model, variant.name.clone(), seed);
            if !done.contains_key(&key) {
                let (windows, steps) = (settings.windows as usize, settings.steps as usize);
                let task = Task::new(dataset, &config, &recipe, windows, MINERS, steps, HELD_OUT, seed)?;
                let outcome = task.run(variant.scheme, &variant.start(&task))?;
                let loss = outcome.final_loss.map_or("diverged".into(), |loss| format!("{loss:.4}"));
                eprintln!("{question:?}, seed {seed}, {}: {loss} in {:.0} s", variant.name, outcome.seconds);
                done.insert(key.clone(), outcome);
            }
            outcomes.push(done[&key].clone());
        }
        rows.push(Row { name: variant.name, outcomes });
    }
    Ok(rows)
}

/// The directory of the default text, prepared once in the user's cache.
fn prepared() -> Result<PathBuf, Box<dyn Error>> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or("no directory for prepared data: set HOME or XDG_CACHE_HOME, or pass --data")?;
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
