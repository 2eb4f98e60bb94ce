//! The shape of a model, part of a run's specification: two parties that differ in one number train different models.

use protocol::contribution::{Schema, TensorSpec};
use protocol::ensure;
use serde::{Deserialize, Serialize};

/// A Llama-style decoder: RMSNorm before each half of a layer, rotary positions, grouped-query attention, SwiGLU, and
/// one matrix for embedding and output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Size of the vocabulary: ids are from 0 to `vocab − 1`.
    pub vocab: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    pub layers: usize,
    /// Query heads. Each is `d_model / heads` wide.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width inside the feed-forward half.
    pub d_ff: usize,
    /// Tokens of a sequence. A training sequence has one more, which is only predicted.
    pub seq_len: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Term that RMSNorm adds to the mean square.
    pub norm_epsilon: f64,
}

/// Reason why a [`ModelConfig`] is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("{name} is {value}, but must be from {min} to {max}")]
    OutOfBounds { name: &'static str, value: usize, min: usize, max: usize },
    #[error("heads ({heads}) must divide d_model ({d_model})")]
    HeadsDoNotDivide { heads: usize, d_model: usize },
    #[error("kv_heads ({kv_heads}) must divide heads ({heads})")]
    KvHeadsDoNotDivide { kv_heads: usize, heads: usize },
    #[error(
        "a head is {width} wide (d_model / heads), but rotary positions turn pairs: the width must be even"
    )]
    OddHeadWidth { width: usize },
    #[error("rope_theta is {value}, but must be a number from 1 to 1e9")]
    RopeTheta { value: f64 },
    #[error("norm_epsilon is {value}, but must be a number above 0 and at most 0.1")]
    NormEpsilon { value: f64 },
    #[error("{tensor} would have {values} values, but positions in a tensor are counted in 32 bits")]
    TensorTooLarge { tensor: String, values: u128 },
    #[error(
        "the model would have {values} values (all tensors' rows × columns), but must have at most {} (2^38)",
        ModelConfig::VALUES_MAX
    )]
    TooLarge { values: u128 },
    #[error("there is no preset {name:?}; there are: {}", ModelConfig::PRESETS.join(", "))]
    NoSuchPreset { name: String },
}

impl ModelConfig {
    /// Names that [`preset`](Self::preset) knows.
    pub const PRESETS: [&'static str; 8] = ["117k", "localnet", "1m", "6m", "150m", "1b", "8b", "70b"];
    /// Maximum number of values of all tensors: 1 TiB of `f32`. A specification comes from other parties.
    ///
    /// Formats use 32 bits only for the values of one tensor, the bytes of one section and the pieces of a checkpoint
    /// (docs/adr/0003-model-state.md).
    pub const VALUES_MAX: u64 = 1 << 38;

    /// Returns a shape by name; set `vocab` to that of the tokenizer.
    ///
    /// `117k` is for tests, `localnet` for a network on one machine, `1m` and `6m` for experiments on a workstation.
    /// Names state the parameters at the preset's vocabulary.
    ///
    /// The other four are for GPUs:
    ///
    /// | name | parameters | shape |
    /// |---|---|---|
    /// | `150m` | 151,026,432 | 20 layers of 768, 12 heads on 4, a vocabulary of 32,768, 1,024 tokens |
    /// | `1b` | 1,235,814,400 | all tensors of Llama 3.2 1B; 2,048 tokens |
    /// | `8b` | 7,504,924,672 | Llama 3 8B with tied embedding and output (8,030,261,248 untied); 8,192 tokens |
    /// | `70b` | 69,503,033,344 | Llama 3 70B with tied embedding and output (70,553,706,496 untied); 8,192 tokens |
    ///
    /// `1b`, `8b` and `70b` have Llama 3's RoPE base of 500,000, without the frequency scaling of 3.1 and later.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown name.
    pub fn preset(name: &str) -> Result<ModelConfig, ConfigError> {
        let shape = |vocab, d_model, layers, heads, kv_heads, d_ff, seq_len| ModelConfig {
            vocab,
            d_model,
            layers,
            heads,
            kv_heads,
            d_ff,
            seq_len,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
        };
        match name {
            "117k" => Ok(shape(256, 64, 2, 2, 2, 176, 64)),
            "localnet" => Ok(shape(2048, 96, 2, 4, 2, 256, 64)),
            "1m" => Ok(shape(2048, 128, 4, 4, 4, 352, 128)),
            "6m" => Ok(shape(4096, 256, 6, 8, 4, 704, 256)),
            "150m" => Ok(shape(32_768, 768, 20, 12, 4, 2048, 1024)),
            "1b" => Ok(ModelConfig { rope_theta: 5e5, ..shape(128_256, 2048, 16, 32, 8, 8192, 2048) }),
            "8b" => Ok(ModelConfig { rope_theta: 5e5, ..shape(128_256, 4096, 32, 32, 8, 14_336, 8192) }),
            "70b" => Ok(ModelConfig { rope_theta: 5e5, ..shape(128_256, 8192, 80, 64, 8, 28_672, 8192) }),
            _ => Err(ConfigError::NoSuchPreset { name: name.into() }),
        }
    }

    /// Checks every bound that the rest of the crate relies on.
    ///
    /// # Errors
    /// [`ConfigError`] for the first bound that does not hold.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value, min, max) in [
            ("vocab", self.vocab, 2, 1 << 20),
            ("d_model", self.d_model, 2, 1 << 16),
            ("layers", self.layers, 1, 1 << 10),
            ("heads", self.heads, 1, 1 << 10),
            ("kv_heads", self.kv_heads, 1, 1 << 10),
            ("d_ff", self.d_ff, 2, 1 << 18),
            ("seq_len", self.seq_len, 1, 1 << 20),
        ] {
            ensure!((min..=max).contains(&value), ConfigError::OutOfBounds { name, value, min, max });
        }
        ensure!(
            self.d_model.is_multiple_of(self.heads),
            ConfigError::HeadsDoNotDivide { heads: self.heads, d_model: self.d_model }
        );
        ensure!(
            self.heads.is_multiple_of(self.kv_heads),
            ConfigError::KvHeadsDoNotDivide { kv_heads: self.kv_heads, heads: self.heads }
        );
        ensure!(self.head_width().is_multiple_of(2), ConfigError::OddHeadWidth { width: self.head_width() });
        ensure!((1.0..=1e9).contains(&self.rope_theta), ConfigError::RopeTheta { value: self.rope_theta });
        let value = self.norm_epsilon;
        ensure!(value > 0.0 && value <= 0.1, ConfigError::NormEpsilon { value });
        let mut all = 0;
        for (tensor, [rows, columns]) in self.shapes() {
            let values = rows as u128 * columns as u128;
            ensure!(values <= u128::from(u32::MAX), ConfigError::TensorTooLarge { tensor, values });
            all += values;
        }
        ensure!(all <= u128::from(ModelConfig::VALUES_MAX), ConfigError::TooLarge { values: all });
        Ok(())
    }

    /// Returns the width of one head.
    pub fn head_width(&self) -> usize {
        self.d_model / self.heads
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.shapes().iter().map(|(_, [rows, columns])| rows * columns).sum()
    }

    /// Returns the multiplications and additions of training per token: `6 P + 6 L·D·T`, with `P` weights in
    /// products, `L` layers of width `D`, and `T` tokens per sequence.
    ///
    /// This is PaLM's formula (Chowdhery et al., 2022, appendix B), `6 N + 12 L·H·Q·T`, with half of attention, which
    /// is causal, and only the weights in products. The embedding counts once, as the output's matrix. Activation
    /// checkpointing does not count.
    pub fn flops_per_token(&self) -> f64 {
        let products: usize =
            self.shapes().iter().map(|(_, [rows, columns])| if *rows > 1 { rows * columns } else { 0 }).sum();
        6.0 * products as f64 + 6.0 * (self.layers * self.d_model * self.seq_len) as f64
    }

    /// Returns names and shapes of all tensors, in the order of the flat parameter vector.
    ///
    /// Names, shapes and layout are those of a Llama checkpoint on Hugging Face: a projection is `[out, in]`,
    /// row-major.
    ///
    /// # Errors
    /// If the configuration is not valid.
    pub fn schema(&self) -> Result<Schema, ConfigError> {
        self.validate()?;
        let tensors = self.shapes().into_iter().map(|(name, [rows, columns])| {
            let narrow = |value| u32::try_from(value).expect("validate() bounds every dimension below 2^32");
            // A norm's gain is a vector, in memory one row.
            let shape = if rows == 1 { vec![narrow(columns)] } else { vec![narrow(rows), narrow(columns)] };
            TensorSpec { name, shape }
        });
        Ok(Schema::new(tensors.collect())
            .expect("a valid configuration names each tensor once and none is empty"))
    }

    /// Returns all tensors as matrices, in the order of the flat parameter vector. A vector is one row.
    pub fn shapes(&self) -> Vec<(String, [usize; 2])> {
        let ModelConfig { vocab, d_model, layers, kv_heads, d_ff, .. } = *self;
        let d_kv = kv_heads * self.head_width();

        let mut shapes = vec![("model.embed_tokens.weight".into(), [vocab, d_model])];
        for layer in 0..layers {
            let mut add =
                |part: &str, shape| shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
            add("input_layernorm", [1, d_model]);
            add("self_attn.q_proj", [d_model, d_model]);
            add("self_attn.k_proj", [d_kv, d_model]);
            add("self_attn.v_proj", [d_kv, d_model]);
            add("self_attn.o_proj", [d_model, d_model]);
            add("post_attention_layernorm", [1, d_model]);
            add("mlp.gate_proj", [d_ff, d_model]);
            add("mlp.up_proj", [d_ff, d_model]);
            add("mlp.down_proj", [d_model, d_ff]);
        }
        shapes.push(("model.norm.weight".into(), [1, d_model]));
        shapes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::submission;

    #[track_caller]
    fn check(change: impl FnOnce(&mut ModelConfig), says: &str) {
        let mut config = ModelConfig::preset("117k").unwrap();
        change(&mut config);
        assert_eq!(config.validate().unwrap_err().to_string(), says);
        assert!(config.schema().is_err(), "an invalid configuration has no schema");
    }

    #[test]
    fn an_invalid_shape_is_refused_with_the_number_to_change() {
        check(|c| c.vocab = 1, "vocab is 1, but must be from 2 to 1048576");
        check(|c| c.layers = 0, "layers is 0, but must be from 1 to 1024");
        check(|c| c.seq_len = 0, "seq_len is 0, but must be from 1 to 1048576");
        check(|c| c.heads = 3, "heads (3) must divide d_model (64)");
        check(|c| (c.heads, c.kv_heads) = (4, 3), "kv_heads (3) must divide heads (4)");
        check(
            |c| (c.heads, c.kv_heads) = (64, 64),
            "a head is 1 wide (d_model / heads), but rotary positions turn pairs: the width must be even",
        );
        check(|c| c.rope_theta = f64::NAN, "rope_theta is NaN, but must be a number from 1 to 1e9");
        check(|c| c.norm_epsilon = 0.0, "norm_epsilon is 0, but must be a number above 0 and at most 0.1");
        let huge = |c: &mut ModelConfig| (c.d_model, c.d_ff) = (1 << 16, 1 << 18);
        check(
            huge,
            "model.layers.0.self_attn.q_proj.weight would have 4294967296 values, but positions in a tensor are counted in 32 bits",
        );
    }

    #[test]
    fn a_model_has_at_most_two_to_the_38_values() {
        let largest = ModelConfig {
            vocab: 130_561,
            d_model: 1 << 13,
            layers: 255,
            heads: 64,
            kv_heads: 64,
            d_ff: 1 << 15,
            ..ModelConfig::preset("8b").unwrap()
        };
        assert_eq!(largest.parameters() as u64, ModelConfig::VALUES_MAX);
        assert_eq!(largest.validate(), Ok(()));
        let schema = largest.schema().unwrap();
        assert_eq!(schema.values() as u64, 1 << 38);
        // All that is counted by section or chunk: the last one ends the row, and every position fits 32 bits.
        let last = schema.sections().last().unwrap();
        assert_eq!(last.values.end as u64, 1 << 38);
        assert!(schema.ranges().all(|range| range.len() <= u32::MAX as usize));
        let density = protocol::params::Density(64);
        assert_eq!(schema.entries(density) as u64, (1 << 38) / 64);
        assert!(submission::largest_bytes(&schema, density) < 6 << 30);

        let larger = ModelConfig { vocab: largest.vocab + 1, ..largest };
        assert_eq!(
            larger.validate().unwrap_err().to_string(),
            "the model would have 274877915136 values (all tensors' rows × columns), but must have at most \
             274877906944 (2^38)"
        );
        assert!(larger.schema().is_err());
    }

    #[test]
    fn presets_for_gpus_have_the_documented_parameters() {
        for (name, parameters) in
            [("150m", 151_026_432), ("1b", 1_235_814_400), ("8b", 7_504_924_672), ("70b", 69_503_033_344)]
        {
            assert_eq!(ModelConfig::preset(name).unwrap().parameters(), parameters, "{name}");
        }
        // Llama 3 8B and 70B have a separate output matrix.
        for (name, untied) in [("8b", 8_030_261_248), ("70b", 70_553_706_496)] {
            let config = ModelConfig::preset(name).unwrap();
            assert_eq!(config.parameters() + config.vocab * config.d_model, untied, "{name}");
        }
    }

    #[test]
    fn a_token_takes_six_operations_per_weight_and_half_of_attentions_square() {
        let config = ModelConfig::preset("117k").unwrap();
        // The embedding, and per layer four projections and three matrices of the feed-forward half.
        let products = 256 * 64 + 2 * (4 * 64 * 64 + 3 * 176 * 64);
        // A query sees half of 64 keys: scores and output, forward and twice backward, 2·64 operations per key each.
        let attention = 2 * 3 * 2 * 2 * 64 * (64 / 2);
        assert_eq!(config.flops_per_token(), f64::from(6 * products + attention));
    }

    #[test]
    fn every_preset_is_valid_and_an_unknown_one_lists_them() {
        for name in ModelConfig::PRESETS {
            let config = ModelConfig::preset(name).unwrap();
            assert_eq!(config.schema().unwrap().values(), config.parameters(), "{name}");
        }
        let error = ModelConfig::preset("7b").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"there is no preset "7b"; there are: 117k, localnet, 1m, 6m, 150m, 1b, 8b, 70b"#
        );
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let mut json = serde_json::to_value(ModelConfig::preset("1m").unwrap()).unwrap();
        json["d_head"] = 64.into();
        let error = serde_json::from_value::<ModelConfig>(json).unwrap_err();
        assert!(error.to_string().contains("unknown field `d_head`"), "{error}");
    }

    #[test]
    fn tensors_are_named_and_shaped_as_on_hugging_face() {
        let config = ModelConfig { heads: 4, kv_heads: 2, ..ModelConfig::preset("117k").unwrap() };
        let schema = config.schema().unwrap();
        let tensors: Vec<(&str, &[u32])> =
            schema.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
        assert_eq!(tensors.len(), 2 + 2 * 9);
        assert_eq!(tensors[0], ("model.embed_tokens.weight", &[256, 64][..]));
        assert_eq!(tensors[1], ("model.layers.0.input_layernorm.weight", &[64][..]));
        assert_eq!(tensors[3], ("model.layers.0.self_attn.k_proj.weight", &[32, 64][..]));
        assert_eq!(tensors[18], ("model.layers.1.mlp.down_proj.weight", &[64, 176][..]));
        assert_eq!(tensors[19], ("model.norm.weight", &[64][..]));
    }
}
