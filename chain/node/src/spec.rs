//! Chain specifications: genesis, name and boot nodes of a chain.
//!
//! `dev` and `local` are the runtime's presets, with well-known keys. Any other chain has a JSON file, built once
//! from a TOML file and shared by the operators of its nodes.

use mettle_runtime::{AccountId, Balance, MaxAuthorities, SS58_PREFIX, UNIT};
use mettle_runtime_wasm::WASM_BINARY;
use sc_service::{ChainType, GenericChainSpec, Properties, config::MultiaddrWithPeerId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sp_core::{Get, crypto::Ss58Codec};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Maximum length of an id. It names a directory and network protocols.
const ID_MAX: usize = 64;
/// Maximum endowment in whole MTL: the runtime reads amounts in JSON as 64-bit numbers.
const ENDOWMENT_MAX: u64 = u64::MAX / UNIT as u64;
/// Permitted lengths of a slot: long enough to make a block and distribute it.
const SLOT_MILLIS: std::ops::RangeInclusive<u64> = 200..=60_000;

/// Error of a chain specification.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error(
        "no chain given: use --chain dev, --chain local, or --chain FILE with a chain specification (JSON)"
    )]
    NoChain,
    #[error(
        "this program has no Wasm runtime (it was built with SKIP_WASM_BUILD), so it cannot start a new chain"
    )]
    NoRuntime,
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}: {reason}")]
    Settings { path: PathBuf, reason: String },
    #[error("invalid chain specification: {0}")]
    Spec(String),
}

/// Loads a specification, by a name that this program knows or from a file.
///
/// # Errors
/// Fails if the file is unreadable or not a valid specification.
pub fn load(id: &str) -> Result<GenericChainSpec, SpecError> {
    match id {
        "" => Err(SpecError::NoChain),
        "dev" => preset("Mettle Development", "mettle_dev", ChainType::Development, "development"),
        "local" => preset("Mettle Local", "mettle_local", ChainType::Local, "local_testnet"),
        path => GenericChainSpec::from_json_file(path.into()).map_err(SpecError::Spec),
    }
}

fn preset(name: &str, id: &str, chain_type: ChainType, preset: &str) -> Result<GenericChainSpec, SpecError> {
    let spec = GenericChainSpec::builder(WASM_BINARY.ok_or(SpecError::NoRuntime)?, None)
        .with_name(name)
        .with_id(id)
        .with_chain_type(chain_type)
        .with_properties(properties())
        .with_genesis_config_preset_name(preset);
    Ok(spec.build())
}

/// Returns the properties for wallets.
fn properties() -> Properties {
    let properties = json!({ "tokenSymbol": "MTL", "tokenDecimals": 12, "ss58Format": SS58_PREFIX });
    properties.as_object().expect("the properties are an object").clone()
}

/// Builds the specification that a TOML file describes, as JSON; with the genesis state if `raw`.
///
/// # Errors
/// Fails if the file is unreadable or invalid, or the runtime rejects the genesis.
pub fn build(path: &Path, raw: bool) -> Result<String, SpecError> {
    let at = || path.to_owned();
    let text = std::fs::read_to_string(path).map_err(|source| SpecError::Read { path: at(), source })?;
    let chain: ChainSettings =
        toml::from_str(&text).map_err(|source| SpecError::Toml { path: at(), source: Box::new(source) })?;
    chain.check().map_err(|reason| SpecError::Settings { path: at(), reason })?;
    let spec: GenericChainSpec = GenericChainSpec::builder(WASM_BINARY.ok_or(SpecError::NoRuntime)?, None)
        .with_name(&chain.name)
        .with_id(&chain.id)
        .with_protocol_id(&chain.id)
        .with_chain_type(ChainType::Live)
        .with_properties(properties())
        .with_boot_nodes(chain.bootnodes.iter().map(|node| node.0.clone()).collect())
        .with_genesis_config_patch(chain.genesis())
        .build();
    // The runtime validates the genesis by building the state, even if it is not written.
    let raw_spec = spec.as_json(true).map_err(SpecError::Spec)?;
    if raw { Ok(raw_spec) } else { spec.as_json(false).map_err(SpecError::Spec) }
}

/// The TOML file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainSettings {
    name: String,
    id: String,
    #[serde(default = "default_slot")]
    slot_millis: u64,
    sudo: Option<PublicKey>,
    #[serde(default)]
    bootnodes: Vec<Bootnode>,
    #[serde(default)]
    authorities: Vec<Authority>,
    #[serde(default)]
    endowments: Vec<Endowment>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Authority {
    account: PublicKey,
    aura: PublicKey,
    grandpa: PublicKey,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endowment {
    account: PublicKey,
    mtl: u64,
}

fn default_slot() -> u64 {
    6000
}

/// A public key or account, written as an address (SS58), or as `0x` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String")]
struct PublicKey(AccountId);

impl TryFrom<String> for PublicKey {
    type Error = String;

    fn try_from(text: String) -> Result<PublicKey, String> {
        let key = match text.strip_prefix("0x") {
            Some(digits) if digits.len() == 64 => hex(digits).map(AccountId::from),
            Some(_) => None,
            None => AccountId::from_ss58check(&text).ok(),
        };
        key.map(PublicKey).ok_or_else(|| {
            format!("neither an address (SS58) nor a public key (0x and 64 hexadecimal digits): {text:?}")
        })
    }
}

/// A node's address.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Bootnode(MultiaddrWithPeerId);

impl TryFrom<String> for Bootnode {
    type Error = String;

    fn try_from(text: String) -> Result<Bootnode, String> {
        let example = "/dns/example.org/tcp/30333/p2p/12D3…";
        text.parse().map(Bootnode).map_err(|error| format!("not a node's address (like {example}): {error}"))
    }
}

fn hex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

impl ChainSettings {
    /// Checks the constraints that the types of the settings do not express.
    ///
    /// # Errors
    /// States the violated constraint and its correction.
    fn check(&self) -> Result<(), String> {
        if self.name.trim().is_empty() {
            return Err("`name` is empty".into());
        }
        let id = &self.id;
        let may_be_in_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if id.is_empty() || id.len() > ID_MAX || !id.chars().all(may_be_in_id) {
            return Err(format!("`id` must be 1 to {ID_MAX} of a-z, 0-9, - and _, not {id:?}"));
        }
        let slot = self.slot_millis;
        if !SLOT_MILLIS.contains(&slot) || slot % 2 != 0 {
            let (min, max) = SLOT_MILLIS.into_inner();
            return Err(format!("`slot_millis` must be an even number from {min} to {max}, not {slot}"));
        }
        let (count, max) = (self.authorities.len(), <MaxAuthorities as Get<u32>>::get());
        if count == 0 {
            return Err("there is no [[authorities]]: the chain would have no block author".into());
        }
        if count > max as usize {
            return Err(format!("there are {count} [[authorities]], of at most {max}"));
        }
        let mut seen = BTreeSet::new();
        let mut differs = |table: &'static str, number: u32, field: &'static str, key: &PublicKey| {
            let new = seen.insert((table, field, key.clone()));
            new.then_some(()).ok_or_else(|| {
                format!("{table} number {number} repeats `{field}` {}: each must be different", key.0)
            })
        };
        for (Authority { account, aura, grandpa }, number) in self.authorities.iter().zip(1..) {
            for (field, key) in [("account", account), ("aura", aura), ("grandpa", grandpa)] {
                differs("[[authorities]]", number, field, key)?;
            }
        }
        for (Endowment { account, mtl }, number) in self.endowments.iter().zip(1..) {
            differs("[[endowments]]", number, "account", account)?;
            if !(1..=ENDOWMENT_MAX).contains(mtl) {
                let account = &account.0;
                return Err(format!(
                    "[[endowments]] number {number}, of {account}: `mtl` must be from 1 to {ENDOWMENT_MAX}, not {mtl}"
                ));
            }
        }
        if let Some(sudo) = &self.sudo
            && !self.endowments.iter().any(|endowment| endowment.account == *sudo)
        {
            let sudo = &sudo.0;
            return Err(format!("`sudo` {sudo} has no [[endowments]]: it could not pay for a transaction"));
        }
        Ok(())
    }

    /// Returns the changes to the runtime's default genesis.
    fn genesis(&self) -> Value {
        // All kinds of keys have the same form as addresses.
        let keys = |authority: &Authority| {
            let Authority { account, aura, grandpa } = authority;
            json!([account, account, { "aura": aura, "grandpa": grandpa }])
        };
        let balance = |Endowment { account, mtl }: &Endowment| json!([account, Balance::from(*mtl) * UNIT]);
        json!({
            "balances": { "balances": self.endowments.iter().map(balance).collect::<Vec<_>>() },
            "authorities": {
                "accounts": self.authorities.iter().map(|authority| &authority.account).collect::<Vec<_>>(),
                "slotMillis": self.slot_millis,
            },
            "session": { "keys": self.authorities.iter().map(keys).collect::<Vec<_>>() },
            "sudo": { "key": self.sudo },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    const BOB: &str = "0x8eaf04151687736326c9fea17e25fc5287613693c912909cb226aa4794f26a48";
    const KEY: &str = "0x88dc3417d5058ec4b4503e0c12ea1a0a89be200fe98922423d4334014fa6b0ee";
    const NODE: &str = "/dns/example.org/tcp/30333/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";

    fn good() -> String {
        format!(
            r#"
            name = "Mettle Test"
            id = "mettle-test_1"
            slot_millis = 6000
            sudo = "{ALICE}"
            bootnodes = ["{NODE}"]

            [[authorities]]
            account = "{BOB}"
            aura = "{ALICE}"
            grandpa = "{KEY}"

            [[endowments]]
            account = "{ALICE}"
            mtl = 1000
            "#
        )
    }

    fn chain(toml: &str) -> Result<ChainSettings, String> {
        let chain = toml::from_str::<ChainSettings>(toml).map_err(|error| error.to_string())?;
        chain.check().map(|()| chain)
    }

    #[test]
    fn a_file_becomes_the_genesis_that_it_describes() {
        let genesis = chain(&good()).unwrap().genesis();
        let bob = PublicKey::try_from(BOB.to_owned()).unwrap().0.to_ss58check();
        assert_eq!(genesis["authorities"]["accounts"], json!([bob]));
        assert_eq!(genesis["authorities"]["slotMillis"], 6000);
        assert_eq!(genesis["session"]["keys"][0][2]["aura"], ALICE);
        assert_eq!(genesis["balances"]["balances"], json!([[ALICE, 1000 * UNIT as u64]]));
        assert_eq!(genesis["sudo"]["key"], ALICE);
    }

    #[test]
    fn sudo_key_bootnodes_and_the_length_of_a_slot_are_optional() {
        let toml = good()
            .replace(&format!("sudo = \"{ALICE}\""), "")
            .replace("bootnodes", "#")
            .replace("slot_millis", "#");
        let chain = chain(&toml).unwrap();
        assert_eq!((chain.sudo, chain.bootnodes, chain.slot_millis), (None, vec![], 6000));
    }

    #[test]
    fn each_invalid_setting_has_its_own_error() {
        let second = format!(
            "[[authorities]]\naccount = \"{ALICE}\"\naura = \"{BOB}\"\ngrandpa = \"{KEY}\"\n[[endowments]]"
        );
        let grandpa = PublicKey::try_from(KEY.to_owned()).unwrap().0;
        let cases = [
            ("\"Mettle Test\"", "\" \"", "`name` is empty".to_owned()),
            ("mettle-test_1", "Mettle", "`id` must be 1 to 64 of a-z, 0-9, - and _, not \"Mettle\"".into()),
            ("mettle-test_1", "", "not \"\"".into()),
            (
                "slot_millis = 6000",
                "slot_millis = 2001",
                "`slot_millis` must be an even number from 200 to 60000, not 2001".into(),
            ),
            ("slot_millis = 6000", "slot_millis = 0", "not 0".into()),
            (BOB, "0x12", "nor a public key (0x and 64 hexadecimal digits): \"0x12\"".into()),
            (KEY, "5Grw", "neither an address (SS58)".into()),
            ("sudo = \"5", "sudo = \"", format!("{:?}", &ALICE[1..])),
            (
                "[[endowments]]",
                second.as_str(),
                format!("[[authorities]] number 2 repeats `grandpa` {grandpa}: each must be different"),
            ),
            (
                "mtl = 1000",
                "mtl = 0",
                format!(
                    "[[endowments]] number 1, of {ALICE}: `mtl` must be from 1 to {ENDOWMENT_MAX}, not 0"
                ),
            ),
            ("mtl = 1000", "mtl = 18446745", format!("not {}", ENDOWMENT_MAX + 1)),
            (
                "mtl = 1000",
                "mtl = 1000\n[[endowments]]\naccount = \"5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY\"\nmtl = 1",
                format!("[[endowments]] number 2 repeats `account` {ALICE}"),
            ),
        ];
        for (from, to, expected) in cases {
            let toml = good().replacen(from, to, 1);
            assert_ne!(toml, good());
            let error = chain(&toml).unwrap_err();
            assert!(error.contains(&expected), "{from} -> {to}: {error}");
        }
        let poor = good().split("[[endowments]]").next().unwrap().to_owned();
        assert!(chain(&poor).unwrap_err().contains(&format!("`sudo` {ALICE} has no [[endowments]]")));
        let lost = chain(&good().replace(NODE, "example.org")).unwrap_err();
        for expected in ["bootnodes = [\"example.org\"]", "like /dns/example.org/tcp/30333"] {
            assert!(lost.contains(expected), "{lost}");
        }
        let no_authorities = good().split("[[authorities]]").next().unwrap().replace("sudo", "#");
        assert!(chain(&no_authorities).unwrap_err().contains("there is no [[authorities]]"));
        let authority = |number: usize| {
            format!(
                "[[authorities]]\naccount = \"0x{number:064x}\"\naura = \"0x{number:064x}\"\ngrandpa = \"0x{number:064x}\"\n"
            )
        };
        let crowd = (1..=33).map(authority).collect::<String>();
        let error = chain(&format!("{no_authorities}{crowd}")).unwrap_err();
        assert!(error.contains("there are 33 [[authorities]], of at most 32"), "{error}");
    }

    #[test]
    fn an_unknown_setting_is_refused_with_its_line() {
        let error = chain(&good().replace("sudo", "root")).unwrap_err();
        assert!(error.contains("unknown field `root`") && error.contains("line 5"), "{error}");
    }
}
