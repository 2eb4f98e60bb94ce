//! Import and export in Hugging Face's format: a directory with the `config.json` of a `LlamaForCausalLM` and weights
//! in safetensors.
//!
//! Names, shapes and layout of our tensors are Llama's (`ModelConfig::schema`), and RoPE rotates halves as
//! `transformers` does, so nothing is rearranged; f32 keeps every bit. A model with an unsupported feature is refused
//! with that feature's name, because it would otherwise silently compute something else.
//!
//! Values are streamed, so that memory does not hold a whole model.

use crate::{
    Precision,
    safetensors::{self, Entry, FormatError, Reader},
};
use model::{ConfigError, ModelConfig};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// Maximum length of a `config.json` in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of an index of tensors in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;
const BLOCK_VALUES: usize = 64 * 1024;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output matrix, which is the embedding in our models.
const HEAD: &str = "lm_head.weight";

/// Contents that [`export`] writes, except the values.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    pub config: &'a ModelConfig,
    /// Metadata in the header of each file of weights.
    pub metadata: BTreeMap<String, String>,
    /// Type of the values. Only [`Precision::F32`] keeps every bit.
    pub dtype: Precision,
    /// Maximum size of a file of weights in bytes, unless one tensor alone is larger.
    pub shard_bytes_max: u64,
    pub tokenizer: Option<ExportedTokenizer<'a>>,
    /// Model card, in Markdown.
    pub card: Option<String>,
}

/// Tokenizer of an exported model.
#[derive(Clone, Copy, Debug)]
pub struct ExportedTokenizer<'a> {
    /// Bytes of `tokenizer.json`.
    pub json: &'a [u8],
    /// End-of-document token, as id and as text.
    pub end_of_document: (u32, &'a str),
}

/// Result of [`export`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Names of the files of weights, in order.
    pub weights: Vec<String>,
    /// Total size of all files in bytes.
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{} exists already; name a new directory", path.display())]
    Exists { path: PathBuf },
    #[error("could not write {}; is the disk full, or the directory read-only?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not read the weights")]
    Values(#[source] io::Error),
}

/// Writes a model to the directory `to`, atomically.
///
/// `values` provides the flat parameter vector block by block, by filling the slice of each call.
///
/// # Errors
/// If the configuration is invalid, `to` exists, the values end early, or writing fails. Partial output is removed.
pub fn export(
    to: &Path,
    export: &Export<'_>,
    mut values: impl FnMut(&mut [f32]) -> io::Result<()>,
) -> Result<Exported, ExportError> {
    export.config.validate()?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(ExportError::Exists { path: to.to_owned() });
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ExportError::Write { path, source }
    };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed(parent))?;
    let aside = beside(to, parent).map_err(failed(to))?;

    let mut exported = Exported { weights: Vec::new(), bytes: 0 };
    let shards = shards(export);
    let of = shards.len();
    let mut weight_map = Map::new();
    for (index, entries) in shards.iter().enumerate() {
        let name = match of {
            1 => WEIGHTS.to_owned(),
            _ => format!("model-{:05}-of-{of:05}.safetensors", index + 1),
        };
        for entry in entries {
            weight_map.insert(entry.name.clone(), Value::from(name.clone()));
        }
        let path = aside.path().join(&name);
        exported.bytes += write_shard(&path, export, entries, &mut values)?;
        exported.weights.push(name);
    }

    let mut files = vec![
        (CONFIG, pretty(&config_json(export))),
        ("generation_config.json", pretty(&generation_config_json(export))),
    ];
    if of > 1 {
        let total_size = export.config.parameters() as u64 * export.dtype.bytes() as u64;
        let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
        files.push((INDEX, pretty(&index)));
    }
    if let Some(tokenizer) = &export.tokenizer {
        files.push(("tokenizer.json", tokenizer.json.to_vec()));
        files.push(("tokenizer_config.json", pretty(&tokenizer_config_json(export, tokenizer))));
    }
    if let Some(card) = &export.card {
        files.push(("README.md", card.clone().into_bytes()));
    }
    for (name, bytes) in files {
        let path = aside.path().join(name);
        write_file(&path, &bytes).map_err(failed(&path))?;
        exported.bytes += bytes.len() as u64;
    }
    // Sync the files' names before the directory is renamed.
    sync(aside.path()).map_err(failed(aside.path()))?;
    fs::rename(aside.path(), to).map_err(failed(to))?;
    // The directory was renamed, so there is nothing to remove.
    let _ = aside.keep();
    sync(parent).map_err(failed(parent))?;
    Ok(exported)
}

/// Creates a temporary directory beside `to`, with default permissions, removed unless it is kept.
fn beside(to: &Path, parent: &Path) -> io::Result<tempfile::TempDir> {
    let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{name}.partial-");
    builder.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    builder.tempdir_in(parent)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the tensors in schema order, one list per file.
fn shards(export: &Export<'_>) -> Vec<Vec<Entry>> {
    let mut shards = vec![Vec::new()];
    let mut held = 0;
    for (name, [rows, columns]) in export.config.shapes() {
        let bytes = (rows * columns) as u64 * export.dtype.bytes() as u64;
        if held > 0 && held + bytes > export.shard_bytes_max {
            shards.push(Vec::new());
            held = 0;
        }
        let shape = if rows == 1 { vec![columns as u64] } else { vec![rows as u64, columns as u64] };
        let entry = Entry { name, dtype: export.dtype, shape, start: held };
        shards.last_mut().expect("there is one from the start").push(entry);
        held += bytes;
    }
    shards
}

fn write_shard(
    path: &Path,
    export: &Export<'_>,
    entries: &[Entry],
    values: &mut impl FnMut(&mut [f32]) -> io::Result<()>,
) -> Result<u64, ExportError> {
    let failed = |source| ExportError::Write { path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    let header = safetensors::header(&export.metadata, entries);
    file.write_all(&header).map_err(failed)?;
    let mut written = header.len() as u64;
    let (mut block, mut bytes) = (vec![0.0; BLOCK_VALUES], Vec::new());
    let mut left: u64 = entries.iter().map(|entry| entry.shape.iter().product::<u64>()).sum();
    while left > 0 {
        let block = &mut block[..usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_VALUES)];
        values(block).map_err(ExportError::Values)?;
        bytes.clear();
        export.dtype.encode(block, &mut bytes);
        file.write_all(&bytes).map_err(failed)?;
        written += bytes.len() as u64;
        left -= block.len() as u64;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    Ok(written)
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("a value made of strings and numbers is JSON");
    bytes.push(b'\n');
    bytes
}

/// Writes all fields, since `LlamaConfig` fills absent ones with its own defaults.
fn config_json(export: &Export<'_>) -> Value {
    let ModelConfig { vocab, d_model, layers, heads, kv_heads, d_ff, seq_len, rope_theta, norm_epsilon } =
        *export.config;
    let end = export.tokenizer.map(|tokenizer| tokenizer.end_of_document.0);
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": export.config.head_width(),
        "max_position_embeddings": seq_len,
        "rope_theta": rope_theta,
        "rope_scaling": null,
        "rms_norm_eps": norm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": true,
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": true,
        "bos_token_id": null,
        "eos_token_id": end,
        "pad_token_id": null,
        "torch_dtype": match export.dtype {
            Precision::F32 => "float32",
            Precision::Bf16 => "bfloat16",
            Precision::F16 => "float16",
        },
    })
}

fn generation_config_json(export: &Export<'_>) -> Value {
    let end = export.tokenizer.map(|tokenizer| tokenizer.end_of_document.0);
    // Padding needs a token too; it is masked.
    json!({ "bos_token_id": null, "eos_token_id": end, "pad_token_id": end, "do_sample": false })
}

fn tokenizer_config_json(export: &Export<'_>, tokenizer: &ExportedTokenizer<'_>) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.end_of_document.1,
        "pad_token": tokenizer.end_of_document.1,
        "model_max_length": export.config.seq_len,
        "clean_up_tokenization_spaces": false,
    })
}

/// A directory with a model that this crate can train. Its configuration and headers are checked; its values are not
/// read yet.
#[derive(Debug)]
pub struct Import {
    pub config: ModelConfig,
    /// Maximum sequence length of the model.
    positions: usize,
    files: Vec<(PathBuf, Reader)>,
    /// File and entry of each tensor, in schema order.
    tensors: Vec<(usize, Entry)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {bytes_max} bytes, more than such a file has", path.display())]
    TooLarge { path: PathBuf, bytes_max: u64 },
    #[error("{} is not valid JSON of its kind: {reason}", path.display())]
    Json { path: PathBuf, reason: String },
    #[error("{} cannot be used", path.display())]
    File { path: PathBuf, source: FormatError },
    #[error(
        "there are no weights in {}: neither {WEIGHTS} nor {INDEX}; weights in other formats (pytorch_model.bin, GGUF) must be saved as safetensors first",
        directory.display()
    )]
    NoWeights { directory: PathBuf },
    #[error("config.json has {field} = {found}, but this network needs {needed}")]
    Unsupported { field: &'static str, found: String, needed: &'static str },
    #[error("config.json lacks {field}, or its value is out of range")]
    Field { field: &'static str },
    #[error("the model cannot be trained here")]
    Config(#[from] ConfigError),
    #[error("tensor {name} is missing")]
    Missing { name: String },
    #[error("tensor {name} is not part of such a model")]
    Extra { name: String },
    #[error("tensor {name} is in two files, {} and {}", first.display(), second.display())]
    Twice { name: String, first: PathBuf, second: PathBuf },
    #[error("tensor {name} has shape {found:?}, but config.json implies {needed:?}")]
    Shape { name: String, found: Vec<u64>, needed: Vec<u64> },
    #[error(
        "the output has a matrix of its own ({HEAD} differs from {EMBEDDING}), and this model has one for both: only models with tie_word_embeddings can be imported"
    )]
    Untied,
    #[error("sequences of {tokens} tokens were requested, but the model takes from 1 to {positions}")]
    Sequence { tokens: usize, positions: usize },
    #[error("tensor {name} has a value that is not finite")]
    NotFinite { name: String },
}

impl Import {
    /// Reads and checks a directory's configuration and the headers of its weights.
    ///
    /// # Errors
    /// If the model has an unsupported feature, which the error names, or a file cannot be read.
    pub fn open(directory: &Path) -> Result<Import, ImportError> {
        let path = directory.join(CONFIG);
        let (config, tied) = read_config(&read_json(&path, CONFIG_BYTES_MAX)?)?;
        let mut files = Vec::new();
        for path in weight_files(directory)? {
            let file =
                File::open(&path).map_err(|source| ImportError::Read { path: path.clone(), source })?;
            let reader =
                Reader::open(file).map_err(|source| ImportError::File { path: path.clone(), source })?;
            files.push((path, reader));
        }

        let mut held = BTreeMap::new();
        for (index, (path, reader)) in files.iter().enumerate() {
            for entry in reader.entries().filter(|entry| safetensors::is_needed(&entry.name)) {
                if let Some((first, _)) = held.insert(entry.name.clone(), (index, entry.clone())) {
                    let (first, second) = (files[first].0.clone(), path.clone());
                    return Err(ImportError::Twice { name: entry.name.clone(), first, second });
                }
            }
        }
        let head = held.remove(HEAD);
        let mut tensors = Vec::new();
        for (name, [rows, columns]) in config.shapes() {
            let (file, entry) = held.remove(&name).ok_or(ImportError::Missing { name })?;
            let needed = if rows == 1 { vec![columns as u64] } else { vec![rows as u64, columns as u64] };
            if entry.shape != needed {
                return Err(ImportError::Shape { name: entry.name, found: entry.shape, needed });
            }
            tensors.push((file, entry));
        }
        if let Some(name) = held.into_keys().next() {
            return Err(ImportError::Extra { name });
        }
        let mut import = Import { positions: config.seq_len, config, files, tensors };
        match (tied, head) {
            // `transformers` uses the embedding, whatever the file contains.
            (true, _) => {}
            (false, Some(head)) => import.check_tied(head)?,
            (false, None) => return Err(ImportError::Missing { name: HEAD.into() }),
        }
        Ok(import)
    }

    /// Shortens the model's sequences. Its weights stay the same.
    ///
    /// # Errors
    /// If the number of tokens is zero, or above the model's.
    pub fn limit_sequence(&mut self, tokens: usize) -> Result<(), ImportError> {
        if !(1..=self.positions).contains(&tokens) {
            return Err(ImportError::Sequence { tokens, positions: self.positions });
        }
        self.config.seq_len = tokens;
        Ok(())
    }

    /// Streams the flat parameter vector to a sink in blocks.
    ///
    /// # Errors
    /// If a file cannot be read, or a value is not finite.
    pub fn values(&mut self, mut each: impl FnMut(&[f32]) -> io::Result<()>) -> Result<(), ImportError> {
        for (file, entry) in self.tensors.clone() {
            let (path, reader) = &mut self.files[file];
            let mut finite = true;
            let read = reader.values(&entry, |values| {
                finite &= values.iter().all(|value| value.is_finite());
                if finite { each(values) } else { Ok(()) }
            });
            read.map_err(|source| ImportError::Read { path: path.clone(), source })?;
            if !finite {
                return Err(ImportError::NotFinite { name: entry.name });
            }
        }
        Ok(())
    }

    /// Returns the flat parameter vector.
    ///
    /// # Errors
    /// Same as [`values`](Self::values).
    pub fn to_flat(&mut self) -> Result<Vec<f32>, ImportError> {
        let mut flat = Vec::with_capacity(self.config.parameters());
        self.values(|values| {
            flat.extend_from_slice(values);
            Ok(())
        })?;
        Ok(flat)
    }

    /// Checks that the output matrix equals the embedding.
    fn check_tied(&mut self, (file, head): (usize, Entry)) -> Result<(), ImportError> {
        let (embedding_file, embedding) = self.tensors[0].clone();
        if (&head.shape, head.dtype) != (&embedding.shape, embedding.dtype) {
            return Err(ImportError::Untied);
        }
        let mut digest = |file: usize, entry: &Entry| {
            let mut hasher = blake3::Hasher::new();
            let (path, reader) = &mut self.files[file];
            let read = reader.values::<io::Error>(entry, |values| {
                values.iter().for_each(|value| {
                    hasher.update(&value.to_le_bytes());
                });
                Ok(())
            });
            read.map_err(|source| ImportError::Read { path: path.clone(), source })?;
            Ok::<_, ImportError>(hasher.finalize())
        };
        if digest(file, &head)? == digest(embedding_file, &embedding)? {
            Ok(())
        } else {
            Err(ImportError::Untied)
        }
    }
}

/// Returns the shape in a `config.json`, and whether embedding and output are tied. Absent fields have `LlamaConfig`'s
/// defaults.
fn read_config(json: &Value) -> Result<(ModelConfig, bool), ImportError> {
    let refuse = |field, found: &Value, needed| {
        Err(ImportError::Unsupported { field, found: found.to_string(), needed })
    };
    let architectures = &json["architectures"];
    let is_llama = |name: &Value| name.as_str() == Some("LlamaForCausalLM");
    if !architectures.as_array().is_some_and(|names| names.iter().any(is_llama)) {
        return refuse("architectures", architectures, r#"["LlamaForCausalLM"]"#);
    }
    for (field, needed, wanted) in [
        ("model_type", r#""llama""#, &[Value::Null, json!("llama")][..]),
        ("hidden_act", r#""silu""#, &[Value::Null, json!("silu")]),
        ("attention_bias", "false", &[Value::Null, json!(false)]),
        ("mlp_bias", "false", &[Value::Null, json!(false)]),
        ("rope_scaling", "null", &[Value::Null, json!({ "rope_type": "default" })]),
        ("quantization_config", "absent", &[Value::Null]),
        ("sliding_window", "null", &[Value::Null]),
    ] {
        if !wanted.contains(&json[field]) {
            return refuse(field, &json[field], needed);
        }
    }
    // Newer releases of transformers have all RoPE settings in one object.
    let rope = &json["rope_parameters"];
    let kind = &rope["rope_type"];
    if ![Value::Null, json!("default")].contains(kind) {
        return refuse("rope_parameters.rope_type", kind, r#""default""#);
    }
    for partial in [&rope["partial_rotary_factor"], &json["partial_rotary_factor"]] {
        if !partial.is_null() && partial.as_f64() != Some(1.0) {
            return refuse("partial_rotary_factor", partial, "1");
        }
    }

    let number = |field| whole(&json[field]).ok_or(ImportError::Field { field });
    let number_or = |field, otherwise| match &json[field] {
        Value::Null => Ok(otherwise),
        value => whole(value).ok_or(ImportError::Field { field }),
    };
    let fraction_or = |field, value: &Value, otherwise| match value {
        Value::Null => Ok(otherwise),
        value => value.as_f64().ok_or(ImportError::Field { field }),
    };
    let heads = number("num_attention_heads")?;
    let theta = if rope["rope_theta"].is_null() { &json["rope_theta"] } else { &rope["rope_theta"] };
    let config = ModelConfig {
        vocab: number("vocab_size")?,
        d_model: number("hidden_size")?,
        layers: number("num_hidden_layers")?,
        heads,
        kv_heads: number_or("num_key_value_heads", heads)?,
        d_ff: number("intermediate_size")?,
        seq_len: number_or("max_position_embeddings", 2048)?,
        rope_theta: fraction_or("rope_theta", theta, 10_000.0)?,
        norm_epsilon: fraction_or("rms_norm_eps", &json["rms_norm_eps"], 1e-6)?,
    };
    config.validate()?;
    if number_or("head_dim", config.head_width())? != config.head_width() {
        return refuse("head_dim", &json["head_dim"], "hidden_size / num_attention_heads");
    }
    Ok((config, json["tie_word_embeddings"].as_bool().unwrap_or(false)))
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

/// Returns the files of weights: one, or those that the index names.
fn weight_files(directory: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let index = directory.join(INDEX);
    let single = directory.join(WEIGHTS);
    if single.exists() {
        return Ok(vec![single]);
    }
    if !index.exists() {
        return Err(ImportError::NoWeights { directory: directory.to_owned() });
    }
    let json = read_json(&index, INDEX_BYTES_MAX)?;
    let bad = |reason: &str| ImportError::Json { path: index.clone(), reason: reason.to_owned() };
    let map = json["weight_map"].as_object().ok_or_else(|| bad("it has no weight_map"))?;
    let mut names = BTreeSet::new();
    for name in map.values() {
        let name = name.as_str().ok_or_else(|| bad("a file's name is no text"))?;
        // A name must not leave the directory.
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(bad(&format!("{name:?} is no file beside it")));
        }
        names.insert(name.to_owned());
    }
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

fn read_json(path: &Path, bytes_max: u64) -> Result<Value, ImportError> {
    let failed = |source| ImportError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(ImportError::TooLarge { path: path.to_owned(), bytes_max });
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| ImportError::Json { path: path.to_owned(), reason: error.to_string() })
}
