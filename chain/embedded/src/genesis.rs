//! The genesis state: a preset of the runtime, with the settings' changes.

use crate::{
    Config, StartError,
    execute::{Genesis, Runtime},
    state::State,
};
use codec::{Decode, Encode};
use serde_json::{Value, json};

/// Builds the genesis block for these settings.
pub(crate) fn build(runtime: &Runtime, config: &Config) -> Result<Genesis, StartError> {
    let mut genesis = preset(runtime, None)?.ok_or_else(|| invalid("the runtime has no default genesis"))?;
    let named = preset(runtime, Some(&config.preset))?;
    let named = named.ok_or_else(|| StartError::UnknownPreset { preset: config.preset.clone() })?;
    overlay(&mut genesis, named);
    if let Some(patch) = config.genesis_patch.clone() {
        overlay(&mut genesis, patch);
    }
    endow(&mut genesis, config)?;

    let text = serde_json::to_vec(&genesis).expect("a JSON value has a text");
    let built = runtime.genesis(&text).map_err(|error| invalid(&error.to_string()))?;
    built.map_err(|reason| StartError::Genesis { reason })
}

/// Merges objects; replaces other values.
fn overlay(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}

fn endow(genesis: &mut Value, config: &Config) -> Result<(), StartError> {
    if config.endowments.is_empty() {
        return Ok(());
    }
    let balances = genesis.pointer_mut("/balances/balances").and_then(Value::as_array_mut);
    let balances = balances.ok_or_else(|| invalid("the preset has no list of balances"))?;
    for (account, amount) in &config.endowments {
        // The runtime reads amounts in JSON as 64-bit numbers.
        let amount = u64::try_from(*amount)
            .map_err(|_| invalid(&format!("{amount} units are too much for one genesis account")))?;
        let account = json!(account);
        balances.retain(|balance| balance.get(0) != Some(&account));
        balances.push(json!([account, amount]));
    }
    Ok(())
}

fn preset(runtime: &Runtime, name: Option<&str>) -> Result<Option<Value>, StartError> {
    let name = name.map(str::to_owned);
    let bytes = runtime
        .call(&State::empty(), "GenesisBuilder_get_preset", &name.encode())
        .map_err(|error| invalid(&error.to_string()))?;
    let text =
        Option::<Vec<u8>>::decode(&mut bytes.as_slice()).map_err(|error| invalid(&error.to_string()))?;
    let value = text.map(|text| serde_json::from_slice(&text)).transpose();
    value.map_err(|error| invalid(&format!("a preset is no JSON: {error}")))
}

fn invalid(reason: &str) -> StartError {
    StartError::Genesis { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_merged_and_everything_else_is_replaced() {
        let mut base = json!({ "a": { "b": 1, "c": [1, 2] }, "d": 3 });
        overlay(&mut base, json!({ "a": { "c": [9] }, "e": { "f": null } }));
        assert_eq!(base, json!({ "a": { "b": 1, "c": [9] }, "d": 3, "e": { "f": null } }));
    }
}
