//! `mettle model choose`: the model's accuracy on multiple-choice questions.

use super::{ModelArgs, TokenizerArgs, load};
use crate::output::Output;
use anyhow::{Context as _, ensure};
use dataset::LossEstimate;
use nn::Evaluator;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;
use tokenizer::TextTokenizer;

/// Questions in English and about Rust that a barely trained model can answer.
const CHECK_SET: &str = include_str!("../../data/choices.jsonl");

/// Measure the model's accuracy on multiple-choice questions
///
/// Each line of FILE is a question: {"context": TEXT, "choices": [TEXT, …], "answer": INDEX}, counted from 0. As in
/// lm-eval, a space separates context and choice. The model chooses the highest log-likelihood (acc), or the highest
/// per character (acc_norm).
#[derive(Clone, Debug, clap::Args)]
pub struct ChooseContinuation {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    words: TokenizerArgs,
    /// The questions [default: a small built-in set].
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,
}

/// A question with several continuations, one of them correct.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    context: String,
    choices: Vec<String>,
    /// The index of the correct choice.
    answer: usize,
}

/// The model's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answered {
    log_likelihoods: Vec<f64>,
    /// The choice with the highest log-likelihood.
    chosen: usize,
    /// The choice with the highest log-likelihood per character.
    chosen_norm: usize,
    answer: usize,
}

pub(super) fn choose(wanted: &ChooseContinuation, output: &mut Output<'_>) -> anyhow::Result<()> {
    let which = &wanted.which;
    let questions = match &wanted.questions {
        None => questions(CHECK_SET)?,
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?;
            questions(&text).with_context(|| format!("{} does not hold questions", path.display()))?
        }
    };
    let loaded = load(which)?;
    let tokenizer = wanted.words.tokenizer(which)?;
    loaded.knows(&tokenizer)?;
    let evaluator = loaded.evaluator(&which.device)?;
    let mut answered = Vec::new();
    for (at, question) in questions.iter().enumerate() {
        answered
            .push(answer(&evaluator, &tokenizer, question).with_context(|| format!("question {}", at + 1))?);
    }

    let share = |right: &dyn Fn(&Answered) -> bool| -> (f64, f64) {
        let marks: Vec<f64> = answered.iter().map(|answered| f64::from(u8::from(right(answered)))).collect();
        let LossEstimate { loss: mean, standard_error, .. } = LossEstimate::of(&marks);
        (mean, standard_error)
    };
    let (acc, acc_error) = share(&|answered| answered.chosen == answered.answer);
    let (norm, norm_error) = share(&|answered| answered.chosen_norm == answered.answer);
    let chance = questions.iter().map(|question| 1.0 / question.choices.len() as f64).sum::<f64>()
        / questions.len() as f64;
    let text = format!(
        "{} questions; random choices are correct {chance:.3} of the time\nacc      {acc:.3} ± {acc_error:.3}\n\
         acc_norm {norm:.3} ± {norm_error:.3}",
        questions.len()
    );
    let value = json!({
        "model": loaded.description(), "questions": questions.len(), "chance": chance,
        "acc": acc, "acc_stderr": acc_error, "acc_norm": norm, "acc_norm_stderr": norm_error,
        "answered": answered,
    });
    Ok(output.result(&text, value)?)
}

/// Parses one question per line; empty lines are skipped.
fn questions(text: &str) -> anyhow::Result<Vec<Question>> {
    let mut questions = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let question: Question =
            serde_json::from_str(line).with_context(|| format!("line {} is not a question", at + 1))?;
        ensure!(
            question.answer < question.choices.len(),
            "line {}: answer {} is not one of {} choices (counted from 0)",
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
    ensure!(!questions.is_empty(), "there are no questions");
    Ok(questions)
}

fn answer(evaluator: &Evaluator, tokenizer: &TextTokenizer, question: &Question) -> anyhow::Result<Answered> {
    let mut log_likelihoods = Vec::new();
    for choice in &question.choices {
        let (context, continuation) = tokens_of(tokenizer, &question.context, &format!(" {choice}"))?;
        log_likelihoods.push(evaluator.likelihood(&context, &continuation)?.log_likelihood);
    }
    let per_character: Vec<f64> = log_likelihoods
        .iter()
        .zip(&question.choices)
        .map(|(likelihood, choice)| likelihood / choice.chars().count() as f64)
        .collect();
    Ok(Answered {
        chosen: first_highest(&log_likelihoods),
        chosen_norm: first_highest(&per_character),
        log_likelihoods,
        answer: question.answer,
    })
}

fn first_highest(values: &[f64]) -> usize {
    (1..values.len()).fold(0, |best, at| if values[at] > values[best] { at } else { best })
}

/// Returns the tokens of a context and its continuation, as in lm-eval. White space at the context's end belongs to
/// the continuation. Both are tokenised together, and split after the number of tokens of the context alone. An empty
/// context is an end of document.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing;
    use ::serve::Loaded;
    use model::{ModelConfig, init_flat};
    use nn::{
        Precision,
        hugging_face::{self, Export, ExportedTokenizer},
    };
    use std::{collections::BTreeMap, path::Path};
    use testing::tokenizer;

    #[test]
    fn the_built_in_questions_have_four_choices_and_no_favourite_index() {
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
    fn an_invalid_question_is_named_by_its_line() {
        #[track_caller]
        fn check(text: &str, says: &str) {
            let error = questions(text).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
        let good = r#"{"context": "a", "choices": ["b", "c"], "answer": 1}"#;
        assert_eq!(questions(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        check("", "there are no questions");
        check(&format!("{good}\nnothing"), "line 2 is not a question");
        check(&good.replace('1', "2"), "line 1: answer 2 is not one of 2 choices");
        check(&good.replace("\"c\"", "\"\""), "line 1: a choice is empty");
        check(&good.replace("answer", "gold"), "unknown field `gold`");
    }

    #[test]
    fn a_context_s_last_spaces_belong_to_the_continuation() {
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
    fn an_exported_model_is_read_and_chooses_the_likeliest_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        let config = ModelConfig { vocab: 31, seq_len: 16, ..ModelConfig::preset("117k").unwrap() };
        let theta = init_flat(&config, 3).unwrap();
        let json = testing::tokenizer_json();
        let wish = Export {
            config: &config,
            metadata: BTreeMap::new(),
            dtype: Precision::F32,
            shard_bytes_max: u64::MAX,
            tokenizer: Some(ExportedTokenizer { json: &json, end_of_document: (0, "<eos>") }),
            card: None,
        };
        let mut flat = &theta[..];
        hugging_face::export(&path, &wish, |block| {
            let (now, later) = flat.split_at(block.len());
            block.copy_from_slice(now);
            flat = later;
            Ok(())
        })
        .unwrap();

        let which = ModelArgs { model: path, run: None, context: Some(12), device: "cpu".into() };
        let words = TokenizerArgs { tokenizer: None, dataset: None, end_of_document: None };
        let loaded = load(&which).unwrap();
        assert_eq!((&loaded.theta[..], loaded.config.seq_len), (&theta[..], 12));
        let tokenizer = words.tokenizer(&which).unwrap();
        loaded.knows(&tokenizer).unwrap();
        let evaluator = loaded.evaluator(&which.device).unwrap();
        let question = Question {
            context: "an ant".into(),
            choices: vec!["and a bee".into(), "b".into(), "at".into()],
            answer: 1,
        };
        let answered = answer(&evaluator, &tokenizer, &question).unwrap();
        assert_eq!(answered.chosen, first_highest(&answered.log_likelihoods));
        let mut per_character = answered.log_likelihoods.clone();
        per_character.iter_mut().zip([9.0, 1.0, 2.0]).for_each(|(likelihood, length)| *likelihood /= length);
        assert_eq!(answered.chosen_norm, first_highest(&per_character));
        assert!(answered.log_likelihoods.iter().all(|likelihood| *likelihood < 0.0));

        let wanted = |model: &Path, context| ModelArgs { model: model.into(), context, ..which.clone() };
        let error = load(&wanted(directory.path(), None)).err().unwrap().to_string();
        assert!(error.contains("holds no model"), "{error}");
        let error = load(&wanted(&which.model, Some(17))).err().unwrap().to_string();
        assert_eq!(error, "the model's context is from 1 to 16 tokens, not 17");
        let small = Loaded { config: ModelConfig { vocab: 30, ..config }, ..loaded };
        assert!(small.knows(&tokenizer).unwrap_err().to_string().contains("31 tokens"));
    }
}
