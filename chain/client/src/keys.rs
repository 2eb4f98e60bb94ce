//! Signing keys, kept in encrypted files and displayed as SS58 addresses.
//!
//! A public key is an account of the chain in each [`Scheme`]. Keys generated here are ed25519. A coldkey may also be
//! sr25519, as wallets generate them. A hotkey must be ed25519: it signs contributions (PROT-9) with the raw key of
//! [`Key::signing_key`].

mod export;
mod file;
mod password;

pub use export::KeyExport;
pub use file::KeyFile;
pub use password::{KeyPassword, PASSWORD_VARIABLE, PasswordError, Prompt};

use ed25519_dalek::{Signer as _, SigningKey};
use protocol::{Hotkey, view::Account};
use serde::{Deserialize, Serialize};
use sp_core::{
    Pair as _,
    crypto::{AccountId32, Ss58AddressFormat, Ss58Codec as _},
    sr25519,
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};
use subxt::{
    config::PolkadotConfig,
    utils::{AccountId32 as SubxtAccount, MultiSignature},
};
use zeroize::Zeroizing;

/// The network's prefix of SS58 addresses.
pub const SS58_PREFIX: u16 = 42;

/// A key pair. The secret half is wiped when it is dropped.
#[derive(Clone)]
pub struct Key(Pair);

#[derive(Clone)]
enum Pair {
    Ed25519(Box<SigningKey>),
    Sr25519(Box<sr25519::Pair>),
}

/// Signature scheme of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    #[default]
    Ed25519,
    Sr25519,
}

impl Scheme {
    fn is_ed25519(&self) -> bool {
        *self == Scheme::Ed25519
    }

    fn secret_bytes(self) -> usize {
        match self {
            Scheme::Ed25519 => 32,
            Scheme::Sr25519 => 64,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Ed25519 => "ed25519",
            Scheme::Sr25519 => "sr25519",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(
        "`{0}` is not a development key. Write it as `//Alice`; soft (`/`) and password (`///`) parts do not exist"
    )]
    NotADevKey(String),
    #[error("a seed is 32 bytes, written as 64 hex digits")]
    NotASeed,
    #[error(
        "these are not the 12, 15, 18, 21 or 24 words of a BIP-39 phrase in English: a word is wrong, or missing, or in \
         another place"
    )]
    NotWords,
    #[error("the path after the words is wrong: `//hard`{}", if *.0 == Scheme::Sr25519 { ", `/soft` and `///password` parts follow the last word" } else { " and `///password` parts follow the last word, and an ed25519 key has no `/soft` ones" })]
    NotAPath(Scheme),
    #[error(
        "{address} is an {scheme} key. It can own money, seats and runs; a hotkey also signs what the protocol checks, and \
         is ed25519: make one with `mettle keys new`"
    )]
    NotAHotkey { address: String, scheme: Scheme },
    #[error("{0} is an address, and no key: name the key file")]
    IsElsewhere(String),
    #[error("{0}. There is no key file of this name either")]
    NotAnAddress(AddressError),
    #[error("the operating system gave no randomness: {0}")]
    Randomness(getrandom::Error),
    #[error("{} exists already and is not overwritten. Choose another name, or move it away", .0.display())]
    Exists(PathBuf),
    #[error("there is no key file {}. Make one with `keys new`, or give its path", .0.display())]
    NoSuchFile(PathBuf),
    #[error("there is no file {}: export the account in the wallet, and give the path of the JSON file", .0.display())]
    NoSuchExport(PathBuf),
    #[error("cannot {doing} the key file {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a key file: {reason}", path.display())]
    NotAKeyFile { path: PathBuf, reason: String },
    #[error("{} is not an account as polkadot-js exports it: {reason}", path.display())]
    NotAnExport { path: PathBuf, reason: String },
    #[error("wrong password for {}, or the file was changed", .0.display())]
    WrongPassword(PathBuf),
    #[error("{} asks for {what} of {asked}, more than the {max} allowed: it is no key file of this program, or it was changed", path.display())]
    TooCostly { path: PathBuf, what: &'static str, asked: u32, max: u32 },
    #[error(transparent)]
    Password(#[from] PasswordError),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "`{text}` is not an address ({reason}). An address starts with 5 and has about 48 letters and digits"
    )]
    Malformed { text: String, reason: String },
    #[error("`{text}` is an address of another network (prefix {prefix}; ours is {SS58_PREFIX})")]
    OtherNetwork { text: String, prefix: u16 },
}

impl Key {
    /// Generates a key from the operating system's randomness.
    ///
    /// # Errors
    /// [`KeyError::Randomness`] if the operating system provides none.
    pub fn generate() -> Result<Key, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut()).map_err(KeyError::Randomness)?;
        Ok(Key::from_seed(&seed))
    }

    /// Builds an ed25519 key from its seed.
    pub fn from_seed(seed: &[u8; 32]) -> Key {
        Key(Pair::Ed25519(Box::new(SigningKey::from_bytes(seed))))
    }

    /// Builds a key from the bytes of [`Key::secret`]; `None` if they are not a key.
    fn from_secret(scheme: Scheme, secret: &[u8]) -> Option<Key> {
        match scheme {
            Scheme::Ed25519 => secret.try_into().ok().map(Key::from_seed),
            Scheme::Sr25519 if secret.len() == scheme.secret_bytes() => {
                let pair = sr25519::Pair::from_seed_slice(secret).ok()?;
                Some(Key(Pair::Sr25519(Box::new(pair))))
            }
            Scheme::Sr25519 => None,
        }
    }

    /// Builds an sr25519 key from its secret half in the wallets' form: with the scalar times eight, as in ed25519.
    /// `None` if it is not a key.
    fn from_wallet_secret(secret: &[u8; 64]) -> Option<Key> {
        let secret = schnorrkel::SecretKey::from_ed25519_bytes(secret).ok()?;
        Some(Key(Pair::Sr25519(Box::new(secret.into()))))
    }

    /// Returns the secret half, for the key file: an ed25519 seed, or an sr25519 scalar and nonce.
    fn secret(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match &self.0 {
            Pair::Ed25519(key) => key.to_bytes().to_vec(),
            Pair::Sr25519(pair) => pair.to_raw_vec(),
        })
    }

    pub fn scheme(&self) -> Scheme {
        match &self.0 {
            Pair::Ed25519(_) => Scheme::Ed25519,
            Pair::Sr25519(_) => Scheme::Sr25519,
        }
    }

    /// Builds a key from its seed as 64 hex digits, with or without `0x`.
    ///
    /// # Errors
    /// [`KeyError::NotASeed`] for any other text.
    pub fn from_hex_seed(text: &str) -> Result<Key, KeyError> {
        let text = text.trim();
        let mut seed = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), seed.as_mut())
            .map_err(|_| KeyError::NotASeed)?;
        Ok(Key::from_seed(&seed))
    }

    /// Derives a key from the words of a BIP-39 phrase in English, as Substrate's tools and wallets do. A derivation
    /// path such as `//stash` may follow the last word. The same words give different keys in the two schemes.
    ///
    /// # Errors
    /// [`KeyError::NotWords`] for an invalid phrase, [`KeyError::NotAPath`] for an invalid path.
    pub fn from_words(text: &str, scheme: Scheme) -> Result<Key, KeyError> {
        let mut phrase = Zeroizing::new(String::with_capacity(text.len()));
        for word in text.split_whitespace() {
            if !phrase.is_empty() {
                phrase.push(' ');
            }
            phrase.push_str(word);
        }
        let words = phrase.split('/').next().unwrap_or_default();
        sr25519::Pair::from_phrase(words, None).map_err(|_| KeyError::NotWords)?;
        let not_a_path = |_| KeyError::NotAPath(scheme);
        match scheme {
            Scheme::Sr25519 => {
                let pair = sr25519::Pair::from_string(&phrase, None).map_err(not_a_path)?;
                Ok(Key(Pair::Sr25519(Box::new(pair))))
            }
            Scheme::Ed25519 => {
                let (_, seed) =
                    sp_core::ed25519::Pair::from_string_with_seed(&phrase, None).map_err(not_a_path)?;
                let seed = Zeroizing::new(seed.ok_or(KeyError::NotAPath(scheme))?);
                Ok(Key::from_seed(&seed))
            }
        }
    }

    /// Returns a development key such as `//Alice` or `//miner//3`, whose secret is public: for tests and local
    /// networks.
    ///
    /// Hard derivation from Substrate's development phrase, as in every Substrate tool.
    ///
    /// # Errors
    /// [`KeyError::NotADevKey`] if `path` is not a sequence of hard junctions.
    pub fn dev(path: &str) -> Result<Key, KeyError> {
        let refused = || KeyError::NotADevKey(path.to_owned());
        let junctions = path.strip_prefix("//").ok_or_else(refused)?;
        if junctions.split("//").any(|junction| junction.is_empty() || junction.contains('/')) {
            return Err(refused());
        }
        let (_, seed) = sp_core::ed25519::Pair::from_string_with_seed(path, None).map_err(|_| refused())?;
        Ok(Key::from_seed(&seed.ok_or_else(refused)?))
    }

    /// Returns the public half as a hotkey. Only a key with a [`Key::signing_key`] can hold a seat.
    pub fn hotkey(&self) -> Hotkey {
        Hotkey(self.account())
    }

    /// Returns the public half as an account of the chain.
    pub fn account(&self) -> Account {
        match &self.0 {
            Pair::Ed25519(key) => key.verifying_key().to_bytes(),
            Pair::Sr25519(pair) => pair.public().0,
        }
    }

    /// Returns the account's SS58 address.
    pub fn address(&self) -> String {
        address(&self.account())
    }

    /// Returns the secret half, for the protocol's own signatures: [`protocol::identity::Signer`].
    ///
    /// # Errors
    /// [`KeyError::NotAHotkey`] if the key is not ed25519.
    pub fn signing_key(&self) -> Result<&SigningKey, KeyError> {
        match &self.0 {
            Pair::Ed25519(key) => Ok(key.as_ref()),
            Pair::Sr25519(_) => Err(KeyError::NotAHotkey { address: self.address(), scheme: self.scheme() }),
        }
    }
}

/// Shows the public half only.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.address())
    }
}

impl subxt::tx::Signer<PolkadotConfig> for Key {
    fn account_id(&self) -> SubxtAccount {
        SubxtAccount(self.account())
    }

    fn sign(&self, payload: &[u8]) -> MultiSignature {
        match &self.0 {
            Pair::Ed25519(key) => MultiSignature::Ed25519(key.sign(payload).to_bytes()),
            Pair::Sr25519(pair) => MultiSignature::Sr25519(pair.sign(payload).0),
        }
    }
}

/// Returns an account's SS58 address, with the network's prefix.
pub fn address(account: &Account) -> String {
    AccountId32::new(*account).to_ss58check_with_version(Ss58AddressFormat::custom(SS58_PREFIX))
}

/// Parses an SS58 address of our network, or a public key as `0x` and 64 hex digits.
///
/// # Errors
/// [`AddressError`] for a malformed address, or one of another network.
pub fn parse_address(text: &str) -> Result<Account, AddressError> {
    let text = text.trim();
    let malformed = |reason: String| AddressError::Malformed { text: text.to_owned(), reason };
    if let Some(digits) = text.strip_prefix("0x") {
        let mut account = [0; 32];
        hex::decode_to_slice(digits, &mut account).map_err(|error| malformed(error.to_string()))?;
        return Ok(account);
    }
    let (account, format) =
        AccountId32::from_ss58check_with_version(text).map_err(|error| malformed(format!("{error:?}")))?;
    match u16::from(format) {
        SS58_PREFIX => Ok(account.into()),
        prefix => Err(AddressError::OtherNetwork { text: text.to_owned(), prefix }),
    }
}

/// A key as given on a command line: `//Alice`, the path of a key file, or the address of a key kept elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A development key, whose secret is public.
    Dev(String),
    File(PathBuf),
    /// The address of a key whose secret is in a wallet, or on another machine.
    Elsewhere(Account),
}

impl FromStr for KeySource {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<KeySource, KeyError> {
        if text.starts_with("//") {
            Key::dev(text)?;
            return Ok(KeySource::Dev(text.to_owned()));
        }
        match parse_address(text) {
            Ok(account) => Ok(KeySource::Elsewhere(account)),
            Err(error) if looks_like_address(text) && !Path::new(text).exists() => {
                Err(KeyError::NotAnAddress(error))
            }
            Err(_) => Ok(KeySource::File(PathBuf::from(text))),
        }
    }
}

/// Returns whether the text has the characters and the length of an address, allowing for a typing error.
fn looks_like_address(text: &str) -> bool {
    let text = text.trim();
    (46..=49).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Dev(path) => f.write_str(path),
            KeySource::File(path) => path.display().fmt(f),
            KeySource::Elsewhere(account) => f.write_str(&address(account)),
        }
    }
}

impl KeySource {
    /// Opens the key. `password` is called only if the key is in a readable key file.
    ///
    /// # Errors
    /// [`KeyError::IsElsewhere`] for an address, and the errors of the key file and of `password`.
    pub fn open(
        &self,
        password: impl FnOnce(&Path) -> Result<KeyPassword, PasswordError>,
    ) -> Result<Key, KeyError> {
        match self {
            KeySource::Dev(path) => Key::dev(path),
            KeySource::File(path) => KeyFile::read(path)?.unlock(&password(path)?),
            KeySource::Elsewhere(account) => Err(KeyError::IsElsewhere(address(account))),
        }
    }

    /// Returns the account and the scheme, without a password. An address does not determine the scheme.
    ///
    /// # Errors
    /// Fails if the key file cannot be read.
    pub fn public(&self) -> Result<(Account, Option<Scheme>), KeyError> {
        match self {
            KeySource::Dev(path) => Key::dev(path).map(|key| (key.account(), Some(key.scheme()))),
            KeySource::File(path) => KeyFile::read(path).map(|file| (file.account(), Some(file.scheme()))),
            KeySource::Elsewhere(account) => Ok((*account, None)),
        }
    }

    /// Returns the account, without a password.
    ///
    /// # Errors
    /// Fails if the key file cannot be read.
    pub fn account(&self) -> Result<Account, KeyError> {
        self.public().map(|(account, _)| account)
    }

    /// Returns the public half of a seat's key, without a password.
    ///
    /// # Errors
    /// [`KeyError::NotAHotkey`] if the key is not ed25519; also if the key file cannot be read.
    pub fn hotkey(&self) -> Result<Hotkey, KeyError> {
        match self.public()? {
            (account, None | Some(Scheme::Ed25519)) => Ok(Hotkey(account)),
            (account, Some(scheme)) => Err(KeyError::NotAHotkey { address: address(&account), scheme }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_development_key_is_derived_as_by_every_substrate_tool() {
        let address = |path| Key::dev(path).unwrap().address();
        assert_eq!(address("//Alice"), "5FA9nQDVg267DEd8m1ZypXLBnvN7SFxYwV7ndqSYGiN9TTpu");
        assert_eq!(address("//Bob"), "5GoNkf6WdbxCFnPdAnYYQyCjAKPJgLNxXwPjwTh6DGg6gN3E");
        let mut others =
            vec![address("//Alice"), address("//Alice//stash"), address("//miner//3"), address("//miner//4")];
        others.sort();
        others.dedup();
        assert_eq!(others.len(), 4);
    }

    #[test]
    fn an_invalid_development_key_is_refused() {
        for path in
            ["", "/", "//", "Alice", "/Alice", "///Alice", "//Alice/soft", "//Alice//", "//Alice///password"]
        {
            assert!(matches!(Key::dev(path), Err(KeyError::NotADevKey(_))), "{path}");
        }
    }

    #[test]
    fn a_seed_is_read_from_hex_only() {
        let seed = "0x".to_owned() + &"07".repeat(32);
        assert_eq!(Key::from_hex_seed(&seed).unwrap().account(), Key::from_seed(&[7; 32]).account());
        for text in ["", "07", "zz", &"07".repeat(33)] {
            assert!(matches!(Key::from_hex_seed(text), Err(KeyError::NotASeed)), "{text}");
        }
    }

    #[test]
    fn words_give_the_key_that_substrate_s_tools_derive() {
        let words = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
        let seed = "0xfac7959dbfe72f052e5a0c3c8d6530f202b02fd8f9f5ca3580ec8deb7797479e";
        let from_words = |text: &str| Key::from_words(text, Scheme::Ed25519);
        let expected = Key::from_hex_seed(seed).unwrap().account();
        assert_eq!(from_words(words).unwrap().account(), expected);
        let in_lines = format!("  {}\n", words.replace(' ', "\n"));
        assert_eq!(from_words(&in_lines).unwrap().account(), expected);
        let swapped = words.replacen("bottom drive", "drive bottom", 1);
        for text in
            ["", "bottom", "//Alice", &swapped, &words.replace("walk", "walks"), &format!("{words} walk")]
        {
            for scheme in [Scheme::Ed25519, Scheme::Sr25519] {
                assert!(matches!(Key::from_words(text, scheme), Err(KeyError::NotWords)), "{text}");
            }
        }
        assert!(matches!(from_words(&format!("{words}/soft")), Err(KeyError::NotAPath(_))));
        // The addresses shown by polkadot-js.
        for (path, address) in [
            ("", "5DfhGyQdFobKM8NsWvEeAKk5EQQgYe9AydgJ7rMB6E1EqRzV"),
            ("//a/b", "5EJWUbKcP683bsWfWfZcd7v3Zi43vQJ61kxuZXruW6TSk6Wu"),
        ] {
            let key = Key::from_words(&format!("{words}{path}"), Scheme::Sr25519).unwrap();
            assert_eq!(key.address(), address);
            assert!(matches!(key.signing_key(), Err(KeyError::NotAHotkey { .. })));
        }
    }

    #[test]
    fn two_generated_keys_differ() {
        assert_ne!(Key::generate().unwrap().account(), Key::generate().unwrap().account());
    }

    #[test]
    fn a_key_shows_its_address_and_never_its_secret() {
        let key = Key::dev("//Alice").unwrap();
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.address()));
        assert!(!shown.contains(&hex::encode(&*key.secret())));
    }

    #[test]
    fn an_address_of_another_network_or_with_a_typing_error_is_refused() {
        let alice = Key::dev("//Alice").unwrap();
        let polkadot =
            AccountId32::new(alice.account()).to_ss58check_with_version(Ss58AddressFormat::custom(0));
        assert_eq!(
            parse_address(&polkadot),
            Err(AddressError::OtherNetwork { text: polkadot.clone(), prefix: 0 })
        );
        let mistyped = alice.address().replace("FA9", "FA8");
        assert!(matches!(parse_address(&mistyped), Err(AddressError::Malformed { .. })));
        for text in ["", "5", "0x", "0x12", "hello"] {
            assert!(matches!(parse_address(text), Err(AddressError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn a_key_source_is_a_development_key_or_a_path() {
        assert_eq!("//Alice".parse::<KeySource>().unwrap(), KeySource::Dev("//Alice".into()));
        assert_eq!("keys/hot.json".parse::<KeySource>().unwrap(), KeySource::File("keys/hot.json".into()));
        assert!("//Alice/soft".parse::<KeySource>().is_err());
        let key = Key::dev("//Alice").unwrap();
        let account = AccountId32::new(key.account());
        let foreign =
            [0, 2, 1284].map(|prefix| account.to_ss58check_with_version(Ss58AddressFormat::custom(prefix)));
        let mistyped = key.address().replace("FA9", "FA8");
        for text in foreign.into_iter().chain([mistyped]) {
            assert!(matches!(text.parse::<KeySource>(), Err(KeyError::NotAnAddress(_))), "{text}");
        }

        let alice = KeySource::Dev("//Alice".into());
        let key = alice.open(|_| panic!("a development key has no password")).unwrap();
        assert_eq!(key.hotkey(), alice.hotkey().unwrap());
        let elsewhere: KeySource = "5FA9nQDVg267DEd8m1ZypXLBnvN7SFxYwV7ndqSYGiN9TTpu".parse().unwrap();
        assert_eq!(elsewhere.hotkey().unwrap(), alice.hotkey().unwrap());
        assert!(matches!(elsewhere.open(|_| panic!("no password")), Err(KeyError::IsElsewhere(_))));
        let missing = KeySource::File("/no/such/key.json".into());
        assert!(matches!(missing.open(|_| panic!("asked in vain")), Err(KeyError::NoSuchFile(_))));
    }

    #[test]
    fn the_account_s_public_key_verifies_a_signature() {
        let key = Key::dev("//Alice").unwrap();
        let MultiSignature::Ed25519(signature) = subxt::tx::Signer::sign(&key, b"words") else {
            panic!("an ed25519 key signs with ed25519");
        };
        let public = sp_core::ed25519::Public::from_raw(key.account());
        let signature = sp_core::ed25519::Signature::from_raw(signature);
        assert!(sp_core::ed25519::Pair::verify(&signature, b"words", &public));

        let words = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
        let key = Key::from_words(words, Scheme::Sr25519).unwrap();
        let MultiSignature::Sr25519(signature) = subxt::tx::Signer::sign(&key, b"words") else {
            panic!("an sr25519 key signs with sr25519");
        };
        let signature = sr25519::Signature::from_raw(signature);
        assert!(sr25519::Pair::verify(&signature, b"words", &sr25519::Public::from_raw(key.account())));
    }

    proptest! {
        #[test]
        fn an_address_leads_back_to_its_account(account: [u8; 32]) {
            prop_assert_eq!(parse_address(&address(&account)), Ok(account));
            prop_assert_eq!(parse_address(&format!("0x{}", hex::encode(account))), Ok(account));
        }

        #[test]
        fn no_text_makes_the_address_parser_panic(text: String) {
            let _ = parse_address(&text);
            let _ = Key::dev(&text);
        }
    }
}
