//! `mettle model generate`: continues a text.

use super::{ModelArgs, TokenizerArgs, load};
use crate::output::Output;
use ::serve::AnswerText;
use nn::Sampling;
use serde_json::json;
use std::ops::ControlFlow;

/// Continue a text with the model
///
/// On one machine the same seed gives the same text.
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateText {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    words: TokenizerArgs,
    /// The text to continue [default: the beginning of a document].
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prompt: String,
    /// Stop after this number of tokens, or at the end of the document.
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// 0 always takes the likeliest token; 1 samples from the model's distribution.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Sample only from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f64,
    /// The seed of the sampling.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

pub(super) fn generate(wanted: &GenerateText, output: &mut Output<'_>) -> anyhow::Result<()> {
    let GenerateText { which, prompt, temperature, top_p, seed, .. } = wanted;
    let loaded = load(which)?;
    let tokenizer = wanted.words.tokenizer(which)?;
    loaded.knows(&tokenizer)?;
    let evaluator = loaded.evaluator(&which.device)?;

    let end = tokenizer.end_of_document();
    let mut tokens = tokenizer.encode(prompt)?;
    if tokens.is_empty() {
        tokens.push(end);
    }
    let sampling = Sampling { temperature: *temperature, top_p: *top_p, seed: *seed };
    let mut made: Vec<u32> = Vec::new();
    let mut answer = AnswerText::after(&tokens, &tokenizer);
    let mut text = String::new();
    let mut failed = None;
    let mut stopped = "the requested number of tokens was generated";
    output.stream(prompt)?;
    // Prints text as it is generated. A character may take several tokens, and is printed when it is complete.
    let mut go_on = |token: u32| -> anyhow::Result<ControlFlow<()>> {
        if token == end {
            stopped = "the document ended";
            return Ok(ControlFlow::Break(()));
        }
        made.push(token);
        answer.push(token);
        let part = answer.text(&tokenizer, false)?;
        output.stream(&part)?;
        text += &part;
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
    let rest = answer.text(&tokenizer, true)?;
    text += &rest;
    let value = json!({
        "model": loaded.description(), "prompt": prompt, "text": text, "tokens": made, "stopped": stopped,
        "temperature": temperature, "top_p": top_p, "seed": seed,
    });
    Ok(output.result(&rest, value)?)
}
