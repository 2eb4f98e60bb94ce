//! `mettle model evaluate|generate|choose`: what a model is worth, on text, to people.
//!
//! Reads a node's directory, or one in Hugging Face's form. None of this enters a score of the protocol.

use anyhow::{Context as _, bail, ensure};
use dataset::{Dataset, TextTokenizer, tokenizer_path};
use model::ModelConfig;
use model::RunSpec;
use nn::{Evaluator, Sampling, hugging_face::Import};
use node::ModelState;
use node::{open::SPEC_FILE, program::say};
use protocol::RunId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    io::{self, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// Questions that a model which has read a little of both answers: English and Rust.
const CHECK_SET: &str = include_str!("../data/choices.jsonl");
/// A model is measured on so many sequences at a time.
const SEQUENCES_AT_ONCE: u64 = 256;
/// What a decoder writes for bytes that are no character, or not yet.
const NO_CHARACTER: char = '\u{fffd}';

/// Where a model is, and what it runs on.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// A node's directory, or one in Hugging Face's form (config.json, safetensors).
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The run of a node's model, if it is not run 0.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    run: Option<u32>,
    /// Tokens that the model sees at once, at most; as many as it was made for where absent.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// What to compute on: cpu, or cuda:0 where built with it.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Measure the loss on a prepared dataset: nats a token, perplexity, bits a byte of text.
#[derive(Clone, Debug, clap::Args)]
pub struct EvaluateModel {
    #[command(flatten)]
    which: ModelArgs,
    /// The prepared dataset.
    #[arg(long, value_name = "DIR")]
    dataset: PathBuf,
    /// Which part of it.
    #[arg(long, value_name = "SPLIT", value_enum, default_value = "held-out")]
    split: Split,
    /// The first so many sequences; all where absent.
    #[arg(long, value_name = "N")]
    sequences: Option<u64>,
    /// The token that ends a document, where the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Split {
    HeldOut,
    Training,
}

/// Where words become tokens.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenizerArgs {
    /// A tokenizer.json; the one beside the model where absent.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A prepared dataset, for its tokenizer.
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    dataset: Option<PathBuf>,
    /// The token that ends a document, where the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
}

/// Let the model go on with a text. The same seed gives the same text, on one machine.
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateText {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    words: TokenizerArgs,
    /// What to go on with; the beginning of a document where absent.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: String,
    /// Stop after so many tokens, if no document ends before.
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// 0 takes the likeliest token each time; 1 draws each as often as the model expects it.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Draw only from the likeliest tokens, so many that together they have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f64,
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

/// Let the model choose between continuations, and count how often it chooses right.
///
/// Each line of FILE is a question: {"context": TEXT, "choices": [TEXT, …], "answer": WHICH}, counted from 0. As lm-eval does, a
/// space is put between context and choice, and the choice with the highest log-likelihood is taken (acc), or the one with
/// the highest a character (acc_norm).
#[derive(Clone, Debug, clap::Args)]
pub struct ChooseContinuation {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    words: TokenizerArgs,
    /// The questions; a small set of this program's own where absent.
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,
}

pub fn evaluate(wanted: &EvaluateModel) -> anyhow::Result<()> {
    let dataset = Dataset::open(&wanted.dataset, None)?;
    let tokenizer = dataset.tokenizer(wanted.end_of_document.as_deref())?;
    let length = dataset.seq_len();
    ensure!(
        wanted.which.context.is_none_or(|context| context == length),
        "the dataset's sequences are {length} tokens long, so --context cannot be another number"
    );
    let which = ModelArgs { context: Some(length), ..wanted.which.clone() };
    let loaded = load(&which)?;
    let vocab = loaded.config.vocab;
    ensure!(
        dataset.vocab() as usize <= vocab,
        "the dataset has tokens up to {}, but the model knows {vocab}: it was made with another tokenizer",
        dataset.vocab() - 1
    );
    let evaluator = loaded.evaluator(&which)?;

    let all = match wanted.split {
        Split::HeldOut => dataset.held_out_sequences(),
        Split::Training => dataset.training_sequences(),
    };
    let count = wanted.sequences.unwrap_or(all).min(all);
    ensure!(count > 0, "there is no sequence to measure on");
    let (mut losses, mut bytes) = (Vec::new(), 0);
    for first in (0..count).step_by(SEQUENCES_AT_ONCE as usize) {
        let sequences = (first..count.min(first + SEQUENCES_AT_ONCE))
            .map(|index| match wanted.split {
                Split::HeldOut => dataset.held_out(index),
                Split::Training => dataset.sequence(index),
            })
            .collect::<Result<Vec<_>, _>>()?;
        losses.extend(evaluator.losses(&sequences)?);
        for sequence in &sequences {
            bytes += predicted_bytes(&tokenizer, sequence)?;
        }
    }
    let figures = PrepareStats::of(&losses, length, bytes);
    if wanted.which.json {
        let of = json!({
            "model": loaded.name, "dataset": dataset.digest().to_string(), "split": wanted.split, "figures": figures,
        });
        say(serde_json::to_string_pretty(&of)?)?;
        return Ok(());
    }
    say(format_args!("{} sequences, {} tokens, {bytes} bytes of text", figures.sequences, figures.tokens))?;
    say(format_args!("loss {:.4} ± {:.4} nats a token", figures.loss, figures.standard_error))?;
    say(format_args!("perplexity {:.3}", figures.perplexity))?;
    match figures.bits_per_byte {
        Some(bits) => say(format_args!("bits a byte {bits:.4}"))?,
        None => say(format_args!("bits a byte: there is no text behind these tokens"))?,
    }
    Ok(())
}

/// What a model's losses come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PrepareStats {
    sequences: usize,
    /// That were predicted.
    tokens: u64,
    /// Of the text behind them.
    bytes: u64,
    /// Nats a token.
    loss: f64,
    /// Of the loss, from how the sequences differ.
    standard_error: f64,
    perplexity: f64,
    bits_per_byte: Option<f64>,
}

impl PrepareStats {
    /// From the mean loss of each sequence of `length` tokens, all equally long.
    fn of(losses: &[f64], length: usize, bytes: u64) -> PrepareStats {
        let count = losses.len() as f64;
        let loss = losses.iter().sum::<f64>() / count;
        let tokens = losses.len() as u64 * length as u64;
        let bits = loss * tokens as f64 / std::f64::consts::LN_2;
        PrepareStats {
            sequences: losses.len(),
            tokens,
            bytes,
            loss,
            standard_error: standard_error(losses),
            perplexity: loss.exp(),
            bits_per_byte: (bytes > 0).then(|| bits / bytes as f64),
        }
    }
}

fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count).sqrt()
}

/// Bytes of the text behind all tokens of a sequence but the first, which nothing predicts.
///
/// The ends of documents are no text. Of a character that the sequence's edge cuts, what is left counts as three bytes.
fn predicted_bytes(tokenizer: &TextTokenizer, sequence: &[u32]) -> anyhow::Result<u64> {
    let bytes = |tokens: &[u32]| -> anyhow::Result<u64> {
        let end = tokenizer.end_of_document();
        let parts = tokens.split(|token| *token == end).filter(|part| !part.is_empty());
        parts.map(|part| Ok(tokenizer.decode(part)?.len() as u64)).sum()
    };
    Ok(bytes(sequence)?.saturating_sub(bytes(&sequence[..sequence.len().min(1)])?))
}

pub fn generate(wanted: &GenerateText) -> anyhow::Result<()> {
    let GenerateText { which, prompt, temperature, top_p, seed, .. } = wanted;
    let loaded = load(which)?;
    let tokenizer = wanted.words.tokenizer(which)?;
    loaded.knows(&tokenizer)?;
    let evaluator = loaded.evaluator(which)?;

    let end = tokenizer.end_of_document();
    let mut tokens = tokenizer.encode(prompt)?;
    if tokens.is_empty() {
        tokens.push(end);
    }
    let sampling = Sampling { temperature: *temperature, top_p: *top_p, seed: *seed };
    let mut made: Vec<u32> = Vec::new();
    let mut shown = 0;
    let mut failed = None;
    let mut stopped = "so many tokens were asked for";
    if !which.json {
        show(prompt)?;
    }
    // Text appears as it is made. A character may take several tokens, and is shown when it is whole.
    let mut go_on = |token: u32| -> anyhow::Result<ControlFlow<()>> {
        if token == end {
            stopped = "the document ended";
            return Ok(ControlFlow::Break(()));
        }
        made.push(token);
        if !which.json {
            let text = tokenizer.decode(&made)?;
            if !text.ends_with(NO_CHARACTER) {
                show(text.get(shown..).unwrap_or_default())?;
                shown = text.len();
            }
        }
        let enough = made.len() == wanted.tokens;
        Ok(if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    evaluator.generate(&tokens, sampling, |token| {
        go_on(token).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        })
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let text = tokenizer.decode(&made)?;
    if which.json {
        let made = json!({
            "model": loaded.name, "prompt": prompt, "text": text, "tokens": made, "stopped": stopped,
            "temperature": temperature, "top_p": top_p, "seed": seed,
        });
        say(serde_json::to_string_pretty(&made)?)?;
    } else {
        say(text.get(shown..).unwrap_or_default())?;
    }
    Ok(())
}

/// Writes text at once, without a line's end.
fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A question with several continuations, one of them right.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    context: String,
    choices: Vec<String>,
    /// Which one is right, counted from 0.
    answer: usize,
}

/// How likely a model found each choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answered {
    log_likelihoods: Vec<f64>,
    /// The choice with the highest log-likelihood.
    chosen: usize,
    /// The one with the highest a character.
    chosen_norm: usize,
    answer: usize,
}

pub fn choose(wanted: &ChooseContinuation) -> anyhow::Result<()> {
    let which = &wanted.which;
    let questions = match &wanted.questions {
        None => questions(CHECK_SET)?,
        Some(path) => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            questions(&text).with_context(|| format!("{} holds no questions", path.display()))?
        }
    };
    let loaded = load(which)?;
    let tokenizer = wanted.words.tokenizer(which)?;
    loaded.knows(&tokenizer)?;
    let evaluator = loaded.evaluator(which)?;
    let mut answered = Vec::new();
    for (at, question) in questions.iter().enumerate() {
        answered
            .push(answer(&evaluator, &tokenizer, question).with_context(|| format!("question {}", at + 1))?);
    }

    let share = |right: &dyn Fn(&Answered) -> bool| -> (f64, f64) {
        let marks: Vec<f64> = answered.iter().map(|answered| f64::from(u8::from(right(answered)))).collect();
        (marks.iter().sum::<f64>() / marks.len() as f64, standard_error(&marks))
    };
    let (acc, acc_error) = share(&|answered| answered.chosen == answered.answer);
    let (norm, norm_error) = share(&|answered| answered.chosen_norm == answered.answer);
    let chance = questions.iter().map(|question| 1.0 / question.choices.len() as f64).sum::<f64>()
        / questions.len() as f64;
    if which.json {
        let of = json!({
            "model": loaded.name, "questions": questions.len(), "chance": chance,
            "acc": acc, "acc_stderr": acc_error, "acc_norm": norm, "acc_norm_stderr": norm_error,
            "answered": answered,
        });
        say(serde_json::to_string_pretty(&of)?)?;
        return Ok(());
    }
    say(format_args!("{} questions; blind guesses are right {chance:.3} of the time", questions.len()))?;
    say(format_args!("acc      {acc:.3} ± {acc_error:.3}"))?;
    say(format_args!("acc_norm {norm:.3} ± {norm_error:.3}"))?;
    Ok(())
}

/// One question a line. Empty lines are none.
fn questions(text: &str) -> anyhow::Result<Vec<Question>> {
    let mut questions = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let question: Question =
            serde_json::from_str(line).with_context(|| format!("line {} is no question", at + 1))?;
        ensure!(
            question.answer < question.choices.len(),
            "line {}: answer {} is none of {} choices (they are counted from 0)",
            at + 1,
            question.answer,
            question.choices.len()
        );
        ensure!(
            question.choices.iter().all(|choice| !choice.is_empty()),
            "line {}: a choice is empty",
            at + 1
        );
        questions.push(question);
    }
    ensure!(!questions.is_empty(), "there is no question in it");
    Ok(questions)
}

fn answer(evaluator: &Evaluator, tokenizer: &TextTokenizer, question: &Question) -> anyhow::Result<Answered> {
    let mut log_likelihoods = Vec::new();
    for choice in &question.choices {
        let (context, continuation) = tokens_of(tokenizer, &question.context, &format!(" {choice}"))?;
        log_likelihoods.push(evaluator.likelihood(&context, &continuation)?.log_likelihood);
    }
    let a_character: Vec<f64> = log_likelihoods
        .iter()
        .zip(&question.choices)
        .map(|(likelihood, choice)| likelihood / choice.chars().count() as f64)
        .collect();
    Ok(Answered {
        chosen: first_highest(&log_likelihoods),
        chosen_norm: first_highest(&a_character),
        log_likelihoods,
        answer: question.answer,
    })
}

fn first_highest(values: &[f64]) -> usize {
    (1..values.len()).fold(0, |best, at| if values[at] > values[best] { at } else { best })
}

/// Tokens of a context and of what follows, as lm-eval has them: white space at the context's end goes with what follows, both
/// are made into tokens together, and where the context alone would end, it is cut. An empty context is the end of a
/// document before.
fn tokens_of(
    tokenizer: &TextTokenizer,
    context: &str,
    continuation: &str,
) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
    if context.is_empty() {
        return Ok((vec![tokenizer.end_of_document()], tokenizer.encode(continuation)?));
    }
    let trimmed = context.trim_end();
    let continuation = [&context[trimmed.len()..], continuation].concat();
    let mut whole = tokenizer.encode(&[trimmed, &continuation].concat())?;
    let cut = tokenizer.encode(trimmed)?.len().min(whole.len());
    let behind = whole.split_off(cut);
    if whole.is_empty() {
        whole.push(tokenizer.end_of_document());
    }
    Ok((whole, behind))
}

/// A model in memory.
struct Loaded {
    name: String,
    config: ModelConfig,
    theta: Vec<f32>,
}

impl Loaded {
    fn evaluator(&self, which: &ModelArgs) -> anyhow::Result<Evaluator> {
        Ok(engines::evaluator(which.device.parse()?, &self.config, &self.theta)?)
    }

    fn knows(&self, tokenizer: &TextTokenizer) -> anyhow::Result<()> {
        let (vocab, needed) = (self.config.vocab, tokenizer.vocab());
        ensure!(
            needed as usize <= vocab,
            "the tokenizer has {needed} tokens, but the model knows {vocab}: it was made with another one"
        );
        Ok(())
    }
}

/// From a directory with a `config.json`, or a node's.
fn load(which: &ModelArgs) -> anyhow::Result<Loaded> {
    let directory = &which.model;
    let (name, mut config, theta) = if directory.join("config.json").is_file() {
        let mut import =
            Import::open(directory).with_context(|| format!("{} cannot be read", directory.display()))?;
        (directory.display().to_string(), import.config.clone(), import.to_flat()?)
    } else if directory.join(SPEC_FILE).is_file() {
        of_node(directory, which.run)?
    } else {
        bail!(
            "{} holds no model: there is neither a config.json, as in Hugging Face's form, nor a {SPEC_FILE}, as a node that has started keeps it",
            directory.display()
        );
    };
    if let Some(context) = which.context {
        ensure!(
            (1..=config.seq_len).contains(&context),
            "the model sees from 1 to {} tokens, not {context}",
            config.seq_len
        );
        config.seq_len = context;
    }
    Ok(Loaded { name, config, theta })
}

fn of_node(directory: &Path, run: Option<u32>) -> anyhow::Result<(String, ModelConfig, Vec<f32>)> {
    let path = directory.join(SPEC_FILE);
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let spec = RunSpec::from_bytes(&bytes)?;
    let path = directory.join("model.state");
    let run = RunId(run.unwrap_or_default());
    let Some(state) = ModelState::load(&path, run, spec.schema()?.values())? else {
        bail!("there is no model in {} yet: the node has not joined", directory.display());
    };
    let name = format!("{}, run {}, window {}", spec.name, state.run, state.window.0);
    Ok((name, spec.model, state.theta))
}

impl TokenizerArgs {
    fn tokenizer(&self, which: &ModelArgs) -> anyhow::Result<TextTokenizer> {
        let beside = [which.model.join("tokenizer.json"), tokenizer_path(&which.model.join("dataset"))];
        let path = match (&self.tokenizer, &self.dataset) {
            (Some(file), _) => file.clone(),
            (None, Some(directory)) => tokenizer_path(directory),
            (None, None) => match beside.iter().find(|path| path.is_file()) {
                Some(path) => path.clone(),
                None => bail!(
                    "there is no tokenizer beside {}: name one with --tokenizer, or a dataset with --dataset",
                    which.model.display()
                ),
            },
        };
        let json = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        TextTokenizer::from_json(json, self.end_of_document.as_deref())
            .with_context(|| format!("{} cannot be used", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::init_flat;
    use nn::{
        Dtype,
        hugging_face::{self, Export, ExportedTokenizer},
    };
    use std::collections::BTreeMap;

    /// A byte-level tokenizer that knows `<eos>`, small letters, the space and the accented e, and one merge: a space and an a.
    fn tokenizer_json() -> Vec<u8> {
        let mut vocab = serde_json::Map::new();
        let letters = ('a'..='z').chain(['Ġ', 'Ã', '©']).map(String::from);
        for (id, token) in
            ["<eos>".to_owned()].into_iter().chain(letters).chain(["Ġa".to_owned()]).enumerate()
        {
            vocab.insert(token, id.into());
        }
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
        let eos = json!({
            "id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [eos], "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": [["Ġ", "a"]],
            },
        });
        tokenizer.to_string().into_bytes()
    }

    fn tokenizer() -> TextTokenizer {
        TextTokenizer::from_json(tokenizer_json(), None).unwrap()
    }

    #[test]
    fn the_check_set_is_sound_and_no_place_is_right_more_often_than_another() {
        let questions = questions(CHECK_SET).unwrap();
        for place in 0..4 {
            assert_eq!(
                questions.iter().filter(|question| question.answer == place).count(),
                questions.len() / 4
            );
        }
        assert!(questions.iter().all(|question| question.choices.len() == 4));
    }

    #[test]
    fn what_is_no_question_is_named_by_its_line() {
        #[track_caller]
        fn check(text: &str, says: &str) {
            let error = questions(text).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
        let good = r#"{"context": "a", "choices": ["b", "c"], "answer": 1}"#;
        assert_eq!(questions(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        check("", "there is no question in it");
        check(&format!("{good}\nnothing"), "line 2 is no question");
        check(&good.replace('1', "2"), "line 1: answer 2 is none of 2 choices");
        check(&good.replace("\"c\"", "\"\""), "line 1: a choice is empty");
        check(&good.replace("answer", "gold"), "unknown field `gold`");
    }

    #[test]
    fn a_context_is_cut_where_it_would_end_alone_and_its_last_spaces_go_with_what_follows() {
        let tokenizer = tokenizer();
        let of = |context: &str, continuation: &str| tokens_of(&tokenizer, context, continuation).unwrap();
        let text = |tokens: &[u32]| tokenizer.decode(tokens).unwrap();
        let (context, behind) = of("bee", " ant");
        assert_eq!((text(&context), text(&behind)), ("bee".into(), " ant".into()));
        assert_eq!(behind.len(), 3, "the space and the a are one token");
        assert_eq!(of("bee  ", "ant").1, tokenizer.encode("  ant").unwrap());
        let (context, behind) = of("", " ant");
        assert_eq!((context, behind.len()), (vec![tokenizer.end_of_document()], 3));
        assert_eq!(of("  ", "ant").0, [tokenizer.end_of_document()]);
    }

    #[test]
    fn bytes_are_those_of_the_text_that_is_predicted() {
        let tokenizer = tokenizer();
        let bytes = |tokens: &[u32]| predicted_bytes(&tokenizer, tokens).unwrap();
        let text = "an ant at a café";
        let tokens = tokenizer.encode(text).unwrap();
        assert!(tokens.len() < text.len());
        assert_eq!(bytes(&tokens), text.len() as u64 - 1, "nothing predicts the first letter");
        let end = tokenizer.end_of_document();
        assert_eq!(bytes(&[&[end], &tokens[..]].concat()), text.len() as u64);
        assert_eq!(bytes(&[&tokens[..], &[end], &tokens[..]].concat()), 2 * text.len() as u64 - 1);
        assert_eq!((bytes(&[end, end]), bytes(&[])), (0, 0));
    }

    #[test]
    fn figures_are_one_loss_in_three_units() {
        let figures = PrepareStats::of(&[2.0, 3.0], 10, 40);
        assert_eq!((figures.sequences, figures.tokens, figures.loss), (2, 20, 2.5));
        assert!((figures.perplexity - 2.5f64.exp()).abs() < 1e-12);
        assert!((figures.bits_per_byte.unwrap() - 2.5 * 20.0 / 40.0 / 2f64.ln()).abs() < 1e-12);
        assert!((figures.standard_error - 0.5).abs() < 1e-12);
        assert_eq!(PrepareStats::of(&[2.0], 10, 0).bits_per_byte, None);
    }

    #[test]
    fn an_exported_model_is_read_and_answers_as_its_likelihoods_say() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        let config = ModelConfig { vocab: 31, seq_len: 16, ..ModelConfig::preset("117k").unwrap() };
        let theta = init_flat(&config, 3).unwrap();
        let json = tokenizer_json();
        let wish = Export {
            config: &config,
            metadata: BTreeMap::new(),
            dtype: Dtype::F32,
            shard_bytes_max: u64::MAX,
            tokenizer: Some(ExportedTokenizer { json: &json, end_of_document: (0, "<eos>") }),
        };
        let mut flat = &theta[..];
        hugging_face::export(&path, &wish, |block| {
            let (now, later) = flat.split_at(block.len());
            block.copy_from_slice(now);
            flat = later;
            Ok(())
        })
        .unwrap();

        let which = ModelArgs { model: path, run: None, context: Some(12), device: "cpu".into(), json: true };
        let words = TokenizerArgs { tokenizer: None, dataset: None, end_of_document: None };
        let loaded = load(&which).unwrap();
        assert_eq!((&loaded.theta, loaded.config.seq_len), (&theta, 12));
        let tokenizer = words.tokenizer(&which).unwrap();
        loaded.knows(&tokenizer).unwrap();
        let evaluator = loaded.evaluator(&which).unwrap();
        let question = Question {
            context: "an ant".into(),
            choices: vec!["and a bee".into(), "b".into(), "at".into()],
            answer: 1,
        };
        let answered = answer(&evaluator, &tokenizer, &question).unwrap();
        assert_eq!(answered.chosen, first_highest(&answered.log_likelihoods));
        let mut a_character = answered.log_likelihoods.clone();
        a_character.iter_mut().zip([9.0, 1.0, 2.0]).for_each(|(likelihood, length)| *likelihood /= length);
        assert_eq!(answered.chosen_norm, first_highest(&a_character));
        assert!(answered.log_likelihoods.iter().all(|likelihood| *likelihood < 0.0));

        let wanted = |model: &Path, context| ModelArgs { model: model.into(), context, ..which.clone() };
        let error = load(&wanted(directory.path(), None)).err().unwrap().to_string();
        assert!(error.contains("holds no model"), "{error}");
        let error = load(&wanted(&which.model, Some(17))).err().unwrap().to_string();
        assert_eq!(error, "the model sees from 1 to 16 tokens, not 17");
        let small = Loaded { config: ModelConfig { vocab: 30, ..config }, ..loaded };
        assert!(small.knows(&tokenizer).unwrap_err().to_string().contains("31 tokens"));
    }
}
