//! Writes a fresh model in Hugging Face's format, or prints the logits of a model in that format: one side of
//! `scripts/compare-transformers`, and an example of both.
//!
//! ```text
//! hugging-face make DIR PRESET SEED [f32|bf16|f16] [SHARD_BYTES_MAX]
//! hugging-face logits DIR TOKEN …        a line for each token: the logits after it
//! ```

use mettle_nn::{
    Device, Evaluator, Precision,
    hugging_face::{Export, Import, export},
};
use model::{ModelConfig, init_flat};
use std::{collections::BTreeMap, error::Error, io::Write as _, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["make", to, preset, seed, ref more @ ..] => make(Path::new(to), preset, seed.parse()?, more),
        ["logits", from, ref tokens @ ..] => logits(Path::new(from), tokens),
        _ => {
            Err("call it with make DIR PRESET SEED [DTYPE] [SHARD_BYTES_MAX], or with logits DIR TOKEN …"
                .into())
        }
    }
}

fn make(to: &Path, preset: &str, seed: u64, more: &[&str]) -> Result<(), Box<dyn Error>> {
    let config = ModelConfig::preset(preset)?;
    let mut flat = init_flat(&config, seed)?;
    // Gains of exactly one would hide a missing norm.
    flat.iter_mut().enumerate().for_each(|(i, value)| *value *= 1.0 + (i % 7) as f32 / 64.0);
    let wish = Export {
        config: &config,
        metadata: BTreeMap::from([("format".into(), "pt".into())]),
        dtype: more.first().map_or(Ok(Precision::F32), |dtype| dtype.parse())?,
        shard_bytes_max: more.get(1).map_or(Ok(u64::MAX), |bytes| bytes.parse())?,
        tokenizer: None,
        card: None,
    };
    let mut rest = &flat[..];
    let exported = export(to, &wish, |block| {
        let (now, later) = rest.split_at(block.len());
        block.copy_from_slice(now);
        rest = later;
        Ok(())
    })?;
    println!("{} values in {} files", flat.len(), exported.weights.len());
    Ok(())
}

fn logits(from: &Path, tokens: &[&str]) -> Result<(), Box<dyn Error>> {
    let tokens = tokens.iter().map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    let mut import = Import::open(from)?;
    let flat = import.to_flat()?;
    let logits = Evaluator::new(&import.config, Device::CPU, &flat)?.logits(&tokens)?;
    let mut out = std::io::stdout().lock();
    for row in logits.chunks(import.config.vocab) {
        let row: Vec<String> = row.iter().map(f32::to_string).collect();
        writeln!(out, "{}", row.join(" "))?;
    }
    Ok(())
}
