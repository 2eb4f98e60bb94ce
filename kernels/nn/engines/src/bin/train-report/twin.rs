//! Input for another program that trains the same model: `scripts/gpu-check` has one in PyTorch.

use anyhow::Context as _;
use model::{ModelConfig, Recipe};
use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
};

/// Number of steps whose learning rates are written; more than a measurement needs.
const RATES: u64 = 100_000;

/// Writes `weights` (f32) and `tokens` (u32), little-endian, and `about.json`: shapes, names, recipe, learning rate
/// of each step.
pub fn write(
    directory: &Path,
    config: &ModelConfig,
    recipe: &Recipe,
    theta: &[f32],
    batches: &[Vec<Vec<u32>>],
) -> anyhow::Result<()> {
    let at = |name: &str| directory.join(name);
    fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
    let mut weights = BufWriter::new(File::create(at("weights")).context("could not write the weights")?);
    for value in theta {
        weights.write_all(&value.to_le_bytes())?;
    }
    weights.flush()?;
    let tokens: Vec<u8> = batches.iter().flatten().flatten().flat_map(|token| token.to_le_bytes()).collect();
    fs::write(at("tokens"), tokens).context("could not write the tokens")?;
    let tensors: Vec<_> =
        config.schema()?.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let rates: Vec<f64> = (0..RATES).map(|step| recipe.learning_rate_at(step)).collect();
    let about = serde_json::json!({ "config": config, "recipe": recipe, "tensors": tensors, "rates": rates });
    fs::write(at("about.json"), about.to_string()).context("could not write about.json")
}
