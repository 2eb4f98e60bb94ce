//! `mettle model evaluate`: the model's loss on a dataset. The protocol's scores do not use it.

use super::{ModelArgs, load};
use crate::output::Output;
use anyhow::ensure;
use dataset::{Dataset, LossEstimate};
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use tokenizer::TextTokenizer;

/// Number of sequences measured at once.
const SEQUENCES_AT_ONCE: usize = 256;

/// Measure the model's loss on a prepared dataset
///
/// Prints nats per token, perplexity, and bits per byte of text.
#[derive(Clone, Debug, clap::Args)]
pub struct EvaluateModel {
    #[command(flatten)]
    which: ModelArgs,
    /// The prepared dataset.
    #[arg(long, value_name = "DIR")]
    dataset: PathBuf,
    /// The part of the dataset.
    #[arg(long, value_name = "SPLIT", value_enum, default_value = "held-out")]
    split: Split,
    /// The size of a fixed random sample, of the held-out split the one that validators report their loss on
    /// [default: all].
    #[arg(long, value_name = "N")]
    sequences: Option<u64>,
    /// The token that ends a document, if the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Split {
    HeldOut,
    Training,
}

pub(super) fn evaluate(wanted: &EvaluateModel, output: &mut Output<'_>) -> anyhow::Result<()> {
    let dataset = Dataset::open(&wanted.dataset, None)?;
    let tokenizer =
        TextTokenizer::from_json(dataset.tokenizer().to_vec(), wanted.end_of_document.as_deref())?;
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
        "the dataset has tokens up to {}, but the model knows {vocab}: it was trained with another tokenizer",
        dataset.vocab() - 1
    );
    let evaluator = loaded.evaluator(&which.device)?;

    let count = wanted.sequences.unwrap_or(u64::MAX);
    let sample = match wanted.split {
        Split::HeldOut => dataset.held_out_sample(0..count),
        Split::Training => dataset.training_sample(0..count),
    };
    ensure!(!sample.is_empty(), "there is no sequence to measure on");
    let (mut losses, mut bytes) = (Vec::new(), 0);
    for indices in sample.chunks(SEQUENCES_AT_ONCE) {
        let sequences = match wanted.split {
            Split::HeldOut => dataset.held_out_sequences_at(indices)?,
            Split::Training => dataset.sequences(indices)?,
        };
        losses.extend(evaluator.losses(&sequences)?);
        for sequence in &sequences {
            bytes += predicted_bytes(&tokenizer, sequence)?;
        }
    }
    let figures = LossFigures::new(&losses, length, bytes);
    let value = json!({
        "model": loaded.description(), "dataset": dataset.digest().to_string(), "split": wanted.split, "figures": figures,
    });
    Ok(output.result(&figures.text(), value)?)
}

/// Summary of a model's losses.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LossFigures {
    sequences: u64,
    /// Number of predicted tokens.
    tokens: u64,
    /// Bytes of text of these tokens.
    bytes: u64,
    /// Mean loss in nats per token.
    loss: f64,
    /// The standard error of the loss over sequences.
    standard_error: f64,
    perplexity: f64,
    bits_per_byte: Option<f64>,
}

impl LossFigures {
    /// Summarises the mean loss of each sequence of `length` tokens.
    fn new(losses: &[f64], length: usize, bytes: u64) -> LossFigures {
        let LossEstimate { sequences, loss, standard_error } = LossEstimate::of(losses);
        let tokens = sequences * length as u64;
        let bits = loss * tokens as f64 / std::f64::consts::LN_2;
        LossFigures {
            sequences,
            tokens,
            bytes,
            loss,
            standard_error,
            perplexity: loss.exp(),
            bits_per_byte: (bytes > 0).then(|| bits / bytes as f64),
        }
    }

    fn text(&self) -> String {
        let bits = self
            .bits_per_byte
            .map_or("none, as these tokens have no text".into(), |bits| format!("{bits:.4}"));
        format!(
            "{} sequences, {} tokens, {} bytes of text\nloss {:.4} ± {:.4} nats per token\nperplexity {:.3}\n\
             bits per byte {bits}",
            self.sequences, self.tokens, self.bytes, self.loss, self.standard_error, self.perplexity
        )
    }
}

/// Returns the bytes of text of all tokens of a sequence but the first, which is not predicted.
///
/// Ends of documents have no text. A character that the sequence's edge splits counts as three bytes.
fn predicted_bytes(tokenizer: &TextTokenizer, sequence: &[u32]) -> anyhow::Result<u64> {
    let bytes = |tokens: &[u32]| -> anyhow::Result<u64> {
        let end = tokenizer.end_of_document();
        let parts = tokens.split(|token| *token == end).filter(|part| !part.is_empty());
        parts.map(|part| Ok(tokenizer.decode(part)?.len() as u64)).sum()
    };
    Ok(bytes(sequence)?.saturating_sub(bytes(&sequence[..sequence.len().min(1)])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::tokenizer;
    use expect_test::expect;

    #[test]
    fn only_the_predicted_text_is_counted_in_bytes() {
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
    fn the_loss_is_given_in_three_units() {
        let figures = LossFigures::new(&[2.0, 3.0], 10, 40);
        assert_eq!((figures.sequences, figures.tokens, figures.loss), (2, 20, 2.5));
        assert!((figures.perplexity - 2.5f64.exp()).abs() < 1e-12);
        assert!((figures.bits_per_byte.unwrap() - 2.5 * 20.0 / 40.0 / 2f64.ln()).abs() < 1e-12);
        assert!((figures.standard_error - 0.5).abs() < 1e-12);
        assert_eq!(LossFigures::new(&[2.0], 10, 0).bits_per_byte, None);
        expect![[r#"
            2 sequences, 20 tokens, 40 bytes of text
            loss 2.5000 ± 0.5000 nats per token
            perplexity 12.182
            bits per byte 1.8034"#]]
        .assert_eq(&figures.text());
    }
}
