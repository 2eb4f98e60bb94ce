//! The genesis state: the runtime's development preset, with the settings' changes.

use crate::{
    execute::{Genesis, Runtime},
    state::State,
};
use codec::{Decode, Encode};
use serde_json::{Value, json};
use std::time::Duration;

/// Minimum length of a slot in the runtime.
const SLOT_MILLIS_MIN: u64 = 2;

/// Builds the genesis block, with slots of the length `slot`, if given.
///
/// # Errors
/// States why the runtime rejects the genesis.
pub(crate) fn build(
    runtime: &Runtime,
    slot: Option<Duration>,
    patch: Option<Value>,
) -> Result<Genesis, String> {
    let mut genesis = preset(runtime, None)?;
    overlay(&mut genesis, preset(runtime, Some("development"))?);
    if let Some(slot) = slot {
        let millis = u64::try_from(slot.as_millis()).unwrap_or(u64::MAX).max(SLOT_MILLIS_MIN);
        overlay(&mut genesis, json!({ "authorities": { "slotMillis": millis } }));
    }
    if let Some(patch) = patch {
        overlay(&mut genesis, patch);
    }
    runtime.genesis(&serde_json::to_vec(&genesis).expect("a JSON value has a text"))
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

/// Returns a preset of the runtime; without a name, its default genesis.
fn preset(runtime: &Runtime, name: Option<&str>) -> Result<Value, String> {
    let bytes = runtime
        .call(&State::empty(), "GenesisBuilder_get_preset", &name.map(str::to_owned).encode())
        .map_err(|error| error.to_string())?;
    let text = Option::<Vec<u8>>::decode(&mut bytes.as_slice()).map_err(|error| error.to_string())?;
    let text =
        text.ok_or_else(|| format!("the runtime has no genesis preset `{}`", name.unwrap_or("default")))?;
    serde_json::from_slice(&text).map_err(|error| format!("a preset is no JSON: {error}"))
}
