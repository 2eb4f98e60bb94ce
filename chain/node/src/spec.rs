//! Chain specifications: genesis, name and boot nodes of a chain.
//!
//! `dev` and `local` are the runtime's presets, with well-known keys. Any other chain has a JSON file, built once
//! from a TOML file and shared by the operators of its nodes.

use mettle_runtime::{AccountId, Balance, MaxAuthorities, SS58_PREFIX, UNIT};
use mettle_runtime_wasm::WASM_BINARY;
use sc_service::{ChainType, GenericChainSpec, Properties, config::MultiaddrWithPeerId};
use serde::Deserialize;
use serde_json::{Value, json};
use sp_core::{Get, crypto::Ss58Codec, ed25519, sr25519};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The longest id. It names a directory and network protocols.
const ID_MAX: usize = 64;
/// The largest endowment in whole MTL: the runtime reads amounts in JSON as 64-bit numbers.
const ENDOWMENT_MAX: u64 = u64::MAX / UNIT as u64;
/// Long enough to make a block and distribute it.
const SLOT_MILLIS: std::ops::RangeInclusive<u64> = 200..=60_000;

/// Why there is no chain specification.
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
    #[error("{path}: {source}")]
    Settings { path: PathBuf, source: InvalidSettings },
    #[error("invalid chain specification: {0}")]
    Spec(String),
}

/// An invalid setting of a new chain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSettings {
    #[error("`name` is empty")]
    NoName,
    #[error("`id` must be 1 to {ID_MAX} of a-z, 0-9, - and _, not {0:?}")]
    Id(String),
    #[error("`slot_millis` must be an even number from {min} to {max}, not {0}", min = SLOT_MILLIS.start(), max = SLOT_MILLIS.end())]
    Slot(u64),
    #[error("there is no [[authorities]]: the chain would have no block author")]
    NoAuthority,
    #[error("there are {0} [[authorities]], of at most {max}", max = <MaxAuthorities as Get<u32>>::get())]
    TooManyAuthorities(usize),
    #[error(
        "`{field}` of {of} is neither an address (SS58) nor a public key (0x and 64 hexadecimal digits): {text:?}"
    )]
    Key { of: String, field: &'static str, text: String },
    #[error("{of} repeats `{field}` {text}: each must be different")]
    Repeated { of: String, field: &'static str, text: String },
    #[error("[[endowments]] of {account}: `mtl` must be from 1 to {ENDOWMENT_MAX}, not {mtl}")]
    Endowment { account: String, mtl: u64 },
    #[error(
        "`bootnodes` has {text:?}, which is not a node's address (like /dns/example.org/tcp/30333/p2p/12D3…): {reason}"
    )]
    Bootnode { text: String, reason: String },
    #[error("`sudo` {0} has no [[endowments]]: it could not pay for a transaction")]
    PoorSudo(String),
}

/// Loads a specification: by a name that this program knows, or from a file.
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

/// Properties for wallets.
fn properties() -> Properties {
    let properties = json!({ "tokenSymbol": "MTL", "tokenDecimals": 12, "ss58Format": SS58_PREFIX });
    properties.as_object().expect("the properties are an object").clone()
}

/// Builds the specification that a TOML file describes, as JSON; with the genesis state if `raw`.
pub fn build(path: &Path, raw: bool) -> Result<String, SpecError> {
    let at = || path.to_owned();
    let text = std::fs::read_to_string(path).map_err(|source| SpecError::Read { path: at(), source })?;
    let settings: Settings =
        toml::from_str(&text).map_err(|source| SpecError::Toml { path: at(), source: Box::new(source) })?;
    let chain =
        ChainSettings::try_from(settings).map_err(|source| SpecError::Settings { path: at(), source })?;
    let spec: GenericChainSpec = GenericChainSpec::builder(WASM_BINARY.ok_or(SpecError::NoRuntime)?, None)
        .with_name(&chain.name)
        .with_id(&chain.id)
        .with_protocol_id(&chain.id)
        .with_chain_type(ChainType::Live)
        .with_properties(properties())
        .with_boot_nodes(chain.bootnodes.clone())
        .with_genesis_config_patch(chain.genesis())
        .build();
    // The runtime validates the genesis by building the state, also if it is not written.
    let raw_spec = spec.as_json(true).map_err(SpecError::Spec)?;
    if raw { Ok(raw_spec) } else { spec.as_json(false).map_err(SpecError::Spec) }
}

/// The TOML file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    name: String,
    id: String,
    #[serde(default = "default_slot")]
    slot_millis: u64,
    sudo: Option<String>,
    #[serde(default)]
    bootnodes: Vec<String>,
    #[serde(default)]
    authorities: Vec<AuthoritySettings>,
    #[serde(default)]
    endowments: Vec<EndowmentSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthoritySettings {
    account: String,
    aura: String,
    grandpa: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndowmentSettings {
    account: String,
    mtl: u64,
}

fn default_slot() -> u64 {
    6000
}

/// Validated settings of a chain.
#[derive(Debug, PartialEq)]
struct ChainSettings {
    name: String,
    id: String,
    slot_millis: u64,
    sudo: Option<AccountId>,
    bootnodes: Vec<MultiaddrWithPeerId>,
    authorities: Vec<Authority>,
    /// Accounts and their balances, in the smallest unit.
    endowments: Vec<(AccountId, Balance)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Authority {
    account: AccountId,
    aura: sr25519::Public,
    grandpa: ed25519::Public,
}

impl TryFrom<Settings> for ChainSettings {
    type Error = InvalidSettings;

    fn try_from(settings: Settings) -> Result<ChainSettings, InvalidSettings> {
        let Settings { name, id, slot_millis, sudo, bootnodes, authorities, endowments } = settings;
        if name.trim().is_empty() {
            return Err(InvalidSettings::NoName);
        }
        let may_be_in_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if id.is_empty() || id.len() > ID_MAX || !id.chars().all(may_be_in_id) {
            return Err(InvalidSettings::Id(id));
        }
        if !SLOT_MILLIS.contains(&slot_millis) || slot_millis % 2 != 0 {
            return Err(InvalidSettings::Slot(slot_millis));
        }
        if authorities.is_empty() {
            return Err(InvalidSettings::NoAuthority);
        }
        if authorities.len() > <MaxAuthorities as Get<u32>>::get() as usize {
            return Err(InvalidSettings::TooManyAuthorities(authorities.len()));
        }

        let mut seen = BTreeSet::new();
        let authorities = authorities
            .iter()
            .zip(1..)
            .map(|(written, number)| {
                let of = || format!("[[authorities]] number {number}");
                let authority = Authority {
                    account: bytes(&written.account, of, "account")?.into(),
                    aura: sr25519::Public::from_raw(bytes(&written.aura, of, "aura")?),
                    grandpa: ed25519::Public::from_raw(bytes(&written.grandpa, of, "grandpa")?),
                };
                for (field, text, key) in [
                    ("account", &written.account, <[u8; 32]>::from(authority.account.clone())),
                    ("aura", &written.aura, authority.aura.0),
                    ("grandpa", &written.grandpa, authority.grandpa.0),
                ] {
                    if !seen.insert((field, key)) {
                        return Err(InvalidSettings::Repeated { of: of(), field, text: text.clone() });
                    }
                }
                Ok(authority)
            })
            .collect::<Result<Vec<_>, _>>()?;

        let endowments = endowments
            .into_iter()
            .zip(1..)
            .map(|(EndowmentSettings { account, mtl }, number)| {
                let of = || format!("[[endowments]] number {number}");
                let id = bytes(&account, of, "account")?;
                if !seen.insert(("endowment", id)) {
                    return Err(InvalidSettings::Repeated { of: of(), field: "account", text: account });
                }
                if !(1..=ENDOWMENT_MAX).contains(&mtl) {
                    return Err(InvalidSettings::Endowment { account, mtl });
                }
                Ok((AccountId::from(id), Balance::from(mtl) * UNIT))
            })
            .collect::<Result<Vec<_>, _>>()?;

        let sudo = sudo
            .map(|text| {
                let id = AccountId::from(bytes(&text, || "the chain".into(), "sudo")?);
                let endowed = endowments.iter().any(|(account, _)| *account == id);
                if endowed { Ok(id) } else { Err(InvalidSettings::PoorSudo(text)) }
            })
            .transpose()?;
        let bootnodes = bootnodes
            .into_iter()
            .map(|text| {
                MultiaddrWithPeerId::from_str(&text)
                    .map_err(|error| InvalidSettings::Bootnode { reason: error.to_string(), text })
            })
            .collect::<Result<_, _>>()?;
        Ok(ChainSettings { name, id, slot_millis, sudo, bootnodes, authorities, endowments })
    }
}

/// A public key or account, from an address or hexadecimal.
fn bytes(text: &str, of: impl Fn() -> String, field: &'static str) -> Result<[u8; 32], InvalidSettings> {
    let invalid = || InvalidSettings::Key { of: of(), field, text: text.into() };
    match text.strip_prefix("0x") {
        Some(digits) => {
            let mut bytes = [0; 32];
            if digits.len() != 64 || !digits.is_ascii() {
                return Err(invalid());
            }
            for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
                let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
                *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
            }
            Ok(bytes)
        }
        None => AccountId::from_ss58check(text).map(<[u8; 32]>::from).map_err(|_| invalid()),
    }
}

impl ChainSettings {
    /// The changes to the runtime's default genesis.
    fn genesis(&self) -> Value {
        let keys = |authority: &Authority| {
            let keys = json!({
                "aura": authority.aura.to_ss58check(),
                "grandpa": authority.grandpa.to_ss58check(),
            });
            json!([authority.account, authority.account, keys])
        };
        json!({
            "balances": { "balances": self.endowments },
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

    fn chain(toml: &str) -> Result<ChainSettings, InvalidSettings> {
        toml::from_str::<Settings>(toml).unwrap().try_into()
    }

    #[test]
    fn a_file_becomes_the_genesis_that_it_describes() {
        let genesis = chain(&good()).unwrap().genesis();
        let bob = AccountId::from(bytes(BOB, String::new, "").unwrap()).to_ss58check();
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
        let key =
            |of: &str, field, text: &str| InvalidSettings::Key { of: of.into(), field, text: text.into() };
        let second = format!(
            "[[authorities]]\naccount = \"{ALICE}\"\naura = \"{BOB}\"\ngrandpa = \"{KEY}\"\n[[endowments]]"
        );
        let cases = [
            ("\"Mettle Test\"", "\" \"", InvalidSettings::NoName),
            ("mettle-test_1", "Mettle", InvalidSettings::Id("Mettle".into())),
            ("mettle-test_1", "", InvalidSettings::Id(String::new())),
            ("slot_millis = 6000", "slot_millis = 2001", InvalidSettings::Slot(2001)),
            ("slot_millis = 6000", "slot_millis = 0", InvalidSettings::Slot(0)),
            (BOB, "0x12", key("[[authorities]] number 1", "account", "0x12")),
            (KEY, "5Grw", key("[[authorities]] number 1", "grandpa", "5Grw")),
            ("sudo = \"5", "sudo = \"", key("the chain", "sudo", &ALICE[1..])),
            (
                "[[endowments]]",
                second.as_str(),
                InvalidSettings::Repeated {
                    of: "[[authorities]] number 2".into(),
                    field: "grandpa",
                    text: KEY.into(),
                },
            ),
            ("mtl = 1000", "mtl = 0", InvalidSettings::Endowment { account: ALICE.into(), mtl: 0 }),
            (
                "mtl = 1000",
                "mtl = 18446745",
                InvalidSettings::Endowment { account: ALICE.into(), mtl: ENDOWMENT_MAX + 1 },
            ),
            (
                "mtl = 1000",
                "mtl = 1000\n[[endowments]]\naccount = \"5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY\"\nmtl = 1",
                InvalidSettings::Repeated {
                    of: "[[endowments]] number 2".into(),
                    field: "account",
                    text: ALICE.into(),
                },
            ),
        ];
        for (from, to, error) in cases {
            let toml = good().replacen(from, to, 1);
            assert_ne!(toml, good());
            assert_eq!(chain(&toml), Err(error), "{from} -> {to}");
        }
        let poor = good().split("[[endowments]]").next().unwrap().to_owned();
        assert_eq!(chain(&poor), Err(InvalidSettings::PoorSudo(ALICE.into())));
        let lost = chain(&good().replace(NODE, "example.org"));
        assert!(matches!(lost, Err(InvalidSettings::Bootnode { text, .. }) if text == "example.org"));
        let no_authorities = good().split("[[authorities]]").next().unwrap().replace("sudo", "#");
        assert_eq!(chain(&no_authorities), Err(InvalidSettings::NoAuthority));
        let authority = |number: usize| {
            format!(
                "[[authorities]]\naccount = \"0x{number:064x}\"\naura = \"0x{number:064x}\"\ngrandpa = \"0x{number:064x}\"\n"
            )
        };
        let crowd = (1..=33).map(authority).collect::<String>();
        assert_eq!(chain(&format!("{no_authorities}{crowd}")), Err(InvalidSettings::TooManyAuthorities(33)));
    }

    #[test]
    fn an_unknown_setting_is_refused_with_its_line() {
        let error = toml::from_str::<Settings>(&good().replace("sudo", "root")).unwrap_err().to_string();
        assert!(error.contains("unknown field `root`") && error.contains("line 5"), "{error}");
    }
}
