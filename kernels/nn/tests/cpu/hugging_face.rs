//! Tests that models are imported and exported with every bit, and have the logits that `transformers` computes.
//!
//! `hugging-face/` was made by `transformers` 5.23.0 and PyTorch 2.15.0 (`make.py` beside it).
//! `scripts/compare-transformers` compares whole models with the installed version.

use mettle_nn::{
    Device, Evaluator, Precision,
    hugging_face::{Export, ExportError, Exported, ExportedTokenizer, Import},
};
use model::{ModelConfig, init_flat};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hugging-face")
}

fn small() -> ModelConfig {
    ModelConfig {
        vocab: 40,
        d_model: 16,
        d_ff: 24,
        heads: 4,
        kv_heads: 2,
        ..ModelConfig::preset("117k").unwrap()
    }
}

fn wish(config: &ModelConfig) -> Export<'_> {
    Export {
        config,
        metadata: BTreeMap::from([("format".into(), "pt".into())]),
        dtype: Precision::F32,
        shard_bytes_max: u64::MAX,
        tokenizer: Some(ExportedTokenizer { json: b"{}", end_of_document: (0, "<eos>") }),
        card: Some("# A model\n".into()),
    }
}

fn export(to: &Path, wish: &Export<'_>, mut flat: &[f32]) -> Result<Exported, ExportError> {
    mettle_nn::hugging_face::export(to, wish, |block| {
        let (now, later) = flat.split_at_checked(block.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        block.copy_from_slice(now);
        flat = later;
        Ok(())
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_model_of_transformers_has_the_same_logits_here() {
    let mut import = Import::open(&fixture()).unwrap();
    assert_eq!((import.config.heads, import.config.kv_heads, import.config.rope_theta), (4, 2, 500.0));
    let flat = import.to_flat().unwrap();
    let evaluator = Evaluator::new(&import.config, Device::CPU, &flat).unwrap();

    let theirs: Value = serde_json::from_slice(&fs::read(fixture().join("logits.json")).unwrap()).unwrap();
    let numbers = |value: &Value| value.as_array().unwrap().clone();
    let tokens: Vec<u32> =
        numbers(&theirs["tokens"]).iter().map(|token| token.as_u64().unwrap() as u32).collect();
    let theirs: Vec<f64> =
        numbers(&theirs["logits"]).iter().flat_map(numbers).map(|logit| logit.as_f64().unwrap()).collect();
    let ours = evaluator.logits(&tokens).unwrap();
    assert_eq!(ours.len(), theirs.len());
    let furthest =
        ours.iter().zip(&theirs).map(|(ours, theirs)| (f64::from(*ours) - theirs).abs()).fold(0.0, f64::max);
    assert!(furthest < 1e-4, "{furthest}");
    let of_five = evaluator.logits(&tokens[..5]).unwrap();
    assert_eq!(of_five.len(), 5 * 32);
    assert!(
        of_five.iter().zip(&ours).all(|(five, all)| (five - all).abs() < 1e-5),
        "what comes later is not seen"
    );
    for (tokens, says) in [(&[][..], "0 tokens"), (&[1; 25], "25 tokens"), (&[32], "token 32")] {
        assert!(evaluator.logits(tokens).unwrap_err().to_string().contains(says));
    }
    assert!(theirs.iter().any(|logit| logit.abs() > 1.0), "they say something");
}

#[test]
fn an_exported_model_is_imported_to_the_bit_from_one_file_or_several() {
    let config = small();
    let mut flat = init_flat(&config, 5).unwrap();
    flat[3] = -0.0;
    flat[4] = f32::MIN_POSITIVE / 2.0;
    let directory = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (name, shard_bytes_max, files) in [("one", u64::MAX, 1), ("some", 6000, 4), ("each", 1, 20)] {
        let to = directory.path().join(name);
        let exported = export(&to, &Export { shard_bytes_max, ..wish(&config) }, &flat).unwrap();
        assert_eq!(exported.weights.len(), files, "{exported:?}");
        let bytes: u64 = fs::read_dir(&to).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(exported.bytes, bytes);
        let mut import = Import::open(&to).unwrap();
        assert_eq!(import.config, config);
        all.push(bits(&import.to_flat().unwrap()));
    }
    assert!(all.iter().all(|back| *back == bits(&flat)));

    // Equal models give equal files.
    export(&directory.path().join("again"), &wish(&config), &flat).unwrap();
    let file = |name: &str| fs::read(directory.path().join(name).join("model.safetensors")).unwrap();
    assert_eq!(file("one"), file("again"));
}

#[test]
fn values_in_16_bits_are_imported_as_they_were_rounded() {
    let config = small();
    let flat = init_flat(&config, 5).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (name, dtype, error_max) in [("b", Precision::Bf16, 1.0 / 256.0), ("h", Precision::F16, 1.0 / 2048.0)]
    {
        let to = directory.path().join(name);
        export(&to, &Export { dtype, ..wish(&config) }, &flat).unwrap();
        let back = Import::open(&to).unwrap().to_flat().unwrap();
        for (ours, back) in flat.iter().zip(&back) {
            assert!((ours - back).abs() <= ours.abs() * error_max + 1e-7, "{ours} {back}");
        }
        let twice = directory.path().join(format!("{name}-twice"));
        export(&twice, &Export { dtype, ..wish(&config) }, &back).unwrap();
        assert_eq!(bits(&Import::open(&twice).unwrap().to_flat().unwrap()), bits(&back));
    }
}

#[test]
fn a_failed_export_leaves_nothing_and_an_existing_one_stays() {
    let config = small();
    let flat = init_flat(&config, 5).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("out");
    let cut = export(&to, &wish(&config), &flat[1..]).unwrap_err();
    assert!(matches!(cut, ExportError::Values(_)), "{cut}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "no temporary directory either");

    export(&to, &wish(&config), &flat).unwrap();
    let again = export(&to, &wish(&config), &flat).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");

    fs::write(directory.path().join("file"), b"").unwrap();
    let under_a_file = export(&directory.path().join("file").join("out"), &wish(&config), &flat).unwrap_err();
    assert!(matches!(under_a_file, ExportError::Write { .. }), "{under_a_file}");
}

/// Exports a model, changes its directory, and returns the error of its import.
fn refused(change: impl FnOnce(&Path)) -> String {
    let config = small();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("model");
    export(&at, &Export { shard_bytes_max: 6000, ..wish(&config) }, &init_flat(&config, 5).unwrap()).unwrap();
    change(&at);
    let result = Import::open(&at).and_then(|mut import| import.to_flat().map(|_| ()));
    let error = result.expect_err("it was changed");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
}

#[track_caller]
fn check(field: &str, value: Value, says: &str) {
    let error = refused(|at| edit(&at.join("config.json"), |json| json[field] = value));
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_configuration_of_another_network_is_refused_with_the_field() {
    check("architectures", json!(["MistralForCausalLM"]), r#"architectures = ["MistralForCausalLM"]"#);
    check("architectures", Value::Null, "architectures = null");
    check("model_type", json!("mistral"), r#"model_type = "mistral""#);
    check("hidden_act", json!("gelu"), r#"hidden_act = "gelu""#);
    check("attention_bias", json!(true), "attention_bias = true");
    check("mlp_bias", json!(true), "mlp_bias = true");
    check("rope_scaling", json!({ "rope_type": "llama3", "factor": 8.0 }), "rope_scaling = ");
    check(
        "rope_parameters",
        json!({ "rope_type": "yarn", "rope_theta": 1e4 }),
        r#"rope_parameters.rope_type = "yarn""#,
    );
    check("rope_parameters", json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor = 0.5");
    check("quantization_config", json!({ "bits": 4 }), "quantization_config = ");
    check("head_dim", json!(8), "head_dim = 8");
    check("hidden_size", Value::Null, "config.json lacks hidden_size");
    check("hidden_size", json!(-16), "config.json lacks hidden_size");
    check("rope_theta", json!("high"), "config.json lacks rope_theta");
    check("num_key_value_heads", json!(3), "cannot be trained here: kv_heads (3) must divide heads (4)");
    check(
        "vocab_size",
        json!(41),
        "embed_tokens.weight has shape [40, 16], but config.json implies [41, 16]",
    );
    check("num_hidden_layers", json!(3), "tensor model.layers.2.input_layernorm.weight is missing");
    check("num_hidden_layers", json!(1), "is not part of such a model");
    check("tie_word_embeddings", json!(false), "tensor lm_head.weight is missing");
}

#[test]
fn weights_that_do_not_fit_are_refused_with_the_file_or_tensor() {
    let index = "model.safetensors.index.json";
    let file = "model-00002-of-00004.safetensors";
    let error = refused(|at| fs::remove_file(at.join(file)).unwrap());
    assert!(error.contains("could not read") && error.contains(file), "{error}");
    let error = refused(|at| fs::remove_file(at.join(index)).unwrap());
    assert!(error.contains("there are no weights"), "{error}");
    let error = refused(|at| fs::remove_file(at.join("config.json")).unwrap());
    assert!(error.contains("could not read") && error.contains("config.json"), "{error}");
    let error = refused(|at| fs::write(at.join("config.json"), b"{").unwrap());
    assert!(error.contains("is not valid JSON of its kind"), "{error}");
    let error = refused(|at| fs::write(at.join("config.json"), vec![b' '; 2 << 20]).unwrap());
    assert!(error.contains("is larger than"), "{error}");
    let error = refused(|at| edit(&at.join(index), |json| json["weight_map"]["x"] = "../secret".into()));
    assert!(error.contains("is no file beside it"), "{error}");
    let error = refused(|at| {
        let bytes = fs::read(at.join(file)).unwrap();
        fs::write(at.join(file), &bytes[..bytes.len() - 1]).unwrap();
    });
    assert!(error.contains(file) && error.contains("was it cut short?"), "{error}");
    let error = refused(|at| {
        fs::copy(at.join(file), at.join("copy.safetensors")).unwrap();
        edit(&at.join(index), |json| json["weight_map"]["x"] = "copy.safetensors".into());
    });
    assert!(error.contains("is in two files"), "{error}");
    let error = refused(|at| {
        let mut bytes = fs::read(at.join(file)).unwrap();
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(at.join(file), bytes).unwrap();
    });
    assert!(error.contains("has a value that is not finite"), "{error}");
}

/// Imports a file with an output matrix: the embedding, or with one bit changed.
fn with_head(tied: bool, changed: bool) -> Result<(), String> {
    let config = small();
    let flat = init_flat(&config, 5).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("model");
    export(&at, &wish(&config), &flat).unwrap();
    edit(&at.join("config.json"), |json| json["tie_word_embeddings"] = tied.into());

    let path = at.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, values) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let mut head = values[..4 * config.vocab * config.d_model].to_vec();
    head[0] ^= u8::from(changed);
    header["lm_head.weight"] = json!({
        "dtype": "F32", "shape": [config.vocab, config.d_model],
        "data_offsets": [values.len(), values.len() + head.len()],
    });
    let header = serde_json::to_vec(&header).unwrap();
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header, values, &head].concat()).unwrap();
    let back =
        Import::open(&at).and_then(|mut import| import.to_flat()).map_err(|error| error.to_string())?;
    assert_eq!(bits(&back), bits(&flat));
    Ok(())
}

#[test]
fn a_separate_output_matrix_is_refused_unless_it_equals_the_embedding() {
    assert_eq!(with_head(true, false), Ok(()));
    assert_eq!(with_head(true, true), Ok(()), "transformers does not look at it either");
    assert_eq!(with_head(false, false), Ok(()));
    let error = with_head(false, true).unwrap_err();
    assert!(error.contains("only models with tie_word_embeddings can be imported"), "{error}");
}

#[test]
fn a_models_sequences_may_be_shortened_and_not_lengthened() {
    let mut import = Import::open(&fixture()).unwrap();
    import.limit_sequence(8).unwrap();
    assert_eq!(import.config.seq_len, 8);
    let error = import.limit_sequence(25).unwrap_err().to_string();
    assert!(error.contains("25") && error.contains("24"), "{error}");
}
