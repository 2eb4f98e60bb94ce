//! `mettle-node chain-spec build`.

use std::{fs, process::Command};

const SETTINGS: &str = r#"
    name = "Mettle Test"
    id = "mettle_test"
    sudo = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"

    [[authorities]]
    account = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    aura = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    grandpa = "5FA9nQDVg267DEd8m1ZypXLBnvN7SFxYwV7ndqSYGiN9TTpu"

    [[endowments]]
    account = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
    mtl = 1_000_000
"#;

/// Builds a specification; returns it, or the error text.
fn build(settings: &str, arguments: &[&str]) -> Result<serde_json::Value, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chain.toml");
    fs::write(&file, settings).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_mettle-node"))
        .args(["chain-spec", "build"])
        .arg(&file)
        .args(arguments)
        .output()
        .unwrap();
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn a_toml_file_becomes_a_chain_specification() {
    let spec = build(SETTINGS, &[]).unwrap();
    assert_eq!(spec["id"], "mettle_test");
    assert_eq!(spec["properties"]["tokenSymbol"], "MTL");
    let patch = &spec["genesis"]["runtimeGenesis"]["patch"];
    assert_eq!(patch["authorities"]["slotMillis"], 6000);

    let raw = build(SETTINGS, &["--raw"]).unwrap();
    let state = raw["genesis"]["raw"]["top"].as_object().unwrap();
    assert!(state.contains_key("0x3a636f6465"), "the runtime is part of the state");
}

#[test]
fn an_error_names_the_file_and_the_setting() {
    let refusal = build(&SETTINGS.replace("mtl = 1_000_000", "mtl = 0"), &[]).unwrap_err();
    assert!(refusal.contains("chain.toml") && refusal.contains("`mtl` must be from 1"), "{refusal}");
    let refusal = build(&SETTINGS.replace("sudo", "root"), &[]).unwrap_err();
    assert!(refusal.contains("unknown field `root`"), "{refusal}");
}
