//! A key as exported by polkadot-js and wallets built on it: a JSON file of version 3.
//!
//! scrypt stretches the password, and XSalsa20-Poly1305 (NaCl's secretbox) encrypts the key in PKCS#8 form. Only the
//! scrypt costs that polkadot-js itself accepts are allowed, so that a file cannot request more memory or time.

use super::{Key, KeyError, KeyPassword, Scheme, file::read_bounded};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use crypto_secretbox::{KeyInit as _, XSalsa20Poly1305, aead::Aead as _};
use protocol::view::Account;
use serde::Deserialize;
use sp_core::crypto::{AccountId32, Ss58Codec as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const VERSION: &str = "3";
const KDF: &str = "scrypt";
const CIPHER: &str = "xsalsa20-poly1305";

const SALT_BYTES: usize = 32;
/// Length of the salt, and of `N`, `p` and `r` of four bytes each, little-endian.
const KDF_BYTES: usize = SALT_BYTES + 12;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

/// Values of log₂ `N`, `p` and `r` that polkadot-js accepts; at most 128 MiB.
const COSTS: [(u8, u32, u32); 6] = [(13, 10, 8), (14, 5, 8), (15, 3, 8), (15, 1, 8), (16, 2, 8), (17, 1, 8)];

/// Bytes before the secret key. The header is ed25519's for every scheme.
const SECRET_HEADER: [u8; 16] = [48, 83, 2, 1, 1, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
/// Bytes between secret and public key.
const PUBLIC_HEADER: [u8; 5] = [161, 35, 3, 33, 0];
const SECRET_BYTES: usize = 64;
const PUBLIC_BYTES: usize = 32;
const PLAIN_BYTES: usize = SECRET_HEADER.len() + SECRET_BYTES + PUBLIC_HEADER.len() + PUBLIC_BYTES;
const ENCODED_BYTES: usize = KDF_BYTES + NONCE_BYTES + TAG_BYTES + PLAIN_BYTES;

/// An export that was read and checked, but not decrypted.
pub struct KeyExport {
    path: PathBuf,
    scheme: Scheme,
    account: Account,
    encoded: [u8; ENCODED_BYTES],
}

/// Required fields; others, such as the account's name, are ignored.
#[derive(Deserialize)]
struct Contents {
    encoded: String,
    encoding: Encoding,
    address: String,
}

#[derive(Deserialize)]
struct Encoding {
    content: Vec<String>,
    r#type: Vec<String>,
    version: String,
}

impl KeyExport {
    /// Reads an export without decrypting it.
    ///
    /// # Errors
    /// Fails if there is no such file, or it is not an export, not encrypted, truncated, or of an unknown scheme.
    pub fn read(path: &Path) -> Result<KeyExport, KeyError> {
        let bytes = read_bounded(path).map_err(|error| match error {
            KeyError::NoSuchFile(path) => KeyError::NoSuchExport(path),
            other => other,
        })?;
        KeyExport::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<KeyExport, KeyError> {
        let refused = |reason: String| KeyError::NotAnExport { path: path.to_owned(), reason };
        let contents: Contents = serde_json::from_slice(bytes).map_err(|error| refused(error.to_string()))?;
        let Encoding { content, r#type, version } = contents.encoding;
        if version != VERSION {
            return Err(refused(format!(
                "it is of version {version:?}, and only version {VERSION} is known: export the account again"
            )));
        }
        if r#type != [KDF, CIPHER] {
            return Err(refused(format!(
                "it is encrypted as {type:?}, and only [\"{KDF}\", \"{CIPHER}\"] is known: export the account with a \
                 password"
            )));
        }
        let content: Vec<&str> = content.iter().map(String::as_str).collect();
        let scheme = match content[..] {
            ["pkcs8", "sr25519"] => Scheme::Sr25519,
            ["pkcs8", "ed25519"] => Scheme::Ed25519,
            _ => {
                return Err(refused(format!(
                    "it holds {content:?}, and only sr25519 and ed25519 accounts are known"
                )));
            }
        };
        // Wallets write the address with the prefix of the selected network.
        let (account, _) = AccountId32::from_ss58check_with_version(&contents.address)
            .map_err(|error| refused(format!("its address is none: {error:?}")))?;
        let encoded = STANDARD
            .decode(contents.encoded)
            .map_err(|error| refused(format!("it is damaged: `encoded` is not base64: {error}")))?;
        let encoded: [u8; ENCODED_BYTES] = encoded.try_into().map_err(|encoded: Vec<u8>| {
            refused(format!(
                "it is damaged: {} bytes are encrypted instead of {ENCODED_BYTES}",
                encoded.len()
            ))
        })?;
        let export = KeyExport { path: path.to_owned(), scheme, account: account.into(), encoded };
        export.cost()?;
        Ok(export)
    }

    /// Returns the costs of scrypt stated in the file.
    fn cost(&self) -> Result<scrypt::Params, KeyError> {
        let [n, p, r] = [0, 4, 8].map(|at| {
            let at = SALT_BYTES.saturating_add(at);
            self.encoded[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        });
        let known = COSTS.iter().find(|cost| (1 << cost.0, cost.1, cost.2) == (n, p, r));
        known.and_then(|(log_n, p, r)| scrypt::Params::new(*log_n, *r, *p).ok()).ok_or_else(|| {
            self.refused(format!("it asks for scrypt with N = {n}, p = {p}, r = {r}, which no wallet writes"))
        })
    }

    /// Decrypts the export.
    ///
    /// # Errors
    /// [`KeyError::WrongPassword`] if the password is wrong or the file was changed, [`KeyError::NotAnExport`] if its
    /// contents are invalid.
    pub fn unlock(&self, password: &KeyPassword) -> Result<Key, KeyError> {
        let mut stretched = Zeroizing::new([0; 32]);
        scrypt::scrypt(
            password.as_bytes(),
            &self.encoded[..SALT_BYTES],
            &self.cost()?,
            stretched.as_mut_slice(),
        )
        .expect("32 bytes is a length that scrypt gives");
        let (nonce, sealed) = self.encoded[KDF_BYTES..].split_at(NONCE_BYTES);
        let cipher = XSalsa20Poly1305::new((&*stretched).into());
        let plain = cipher.decrypt(nonce.into(), sealed);
        let plain = Zeroizing::new(plain.map_err(|_| KeyError::WrongPassword(self.path.clone()))?);
        let damaged =
            || self.refused("it is damaged: what is encrypted is not the key of its address".into());
        let secret = plain.strip_prefix(&SECRET_HEADER).and_then(|rest| rest.split_first_chunk());
        let Some((secret, rest)) = secret else { return Err(damaged()) };
        let public = rest.strip_prefix(&PUBLIC_HEADER);
        let key = match self.scheme {
            Scheme::Sr25519 => Key::from_wallet_secret(secret),
            // The seed, and the public key again.
            Scheme::Ed25519 => secret.first_chunk().map(Key::from_seed),
        };
        key.filter(|key| public == Some(&key.account()) && key.account() == self.account).ok_or_else(damaged)
    }

    fn refused(&self, reason: String) -> KeyError {
        KeyError::NotAnExport { path: self.path.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Written by polkadot-js, with the password `a password`: see `tests/clients/export.mjs`.
    const SR25519: &str = include_str!("../../tests/data/polkadot-js-sr25519.json");
    const ED25519: &str = include_str!("../../tests/data/polkadot-js-ed25519.json");

    const WORDS: &str = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";

    fn open(text: &str, password: &str) -> Result<Key, KeyError> {
        let export = KeyExport::parse(Path::new("export.json"), text.as_bytes())?;
        export.unlock(&KeyPassword::new(password).unwrap())
    }

    /// Changes one field of a valid export, and returns the error.
    #[track_caller]
    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let mut json: Value = serde_json::from_str(SR25519).unwrap();
        change(&mut json);
        let error = KeyExport::parse(Path::new("export.json"), json.to_string().as_bytes()).err();
        let error = error.expect("it is refused before the password matters");
        assert!(matches!(error, KeyError::NotAnExport { .. }), "{error}");
        error.to_string()
    }

    fn encoded(change: impl FnOnce(&mut Vec<u8>)) -> Value {
        let json: Value = serde_json::from_str(SR25519).unwrap();
        let mut bytes = STANDARD.decode(json["encoded"].as_str().unwrap()).unwrap();
        change(&mut bytes);
        STANDARD.encode(bytes).into()
    }

    #[test]
    fn an_account_that_polkadot_js_exported_is_opened() {
        for (text, scheme, path) in
            [(SR25519, Scheme::Sr25519, "//mettle//coldkey"), (ED25519, Scheme::Ed25519, "//mettle")]
        {
            let key = open(text, "a password").unwrap();
            let json: Value = serde_json::from_str(text).unwrap();
            assert_eq!((key.scheme(), Value::from(key.address())), (scheme, json["address"].clone()));
            let from_words = Key::from_words(&format!("{WORDS}{path}"), scheme).unwrap();
            assert_eq!(from_words.account(), key.account());
        }
    }

    #[test]
    fn a_wrong_password_is_told_from_a_damaged_file() {
        assert!(matches!(open(SR25519, "another"), Err(KeyError::WrongPassword(_))));
        let cut = refused(|json| json["encoded"] = encoded(|bytes| bytes.truncate(150)));
        assert!(cut.contains("it is damaged: 150 bytes"), "{cut}");
        let text = refused(|json| json["encoded"] = "no base64!".into());
        assert!(text.contains("not base64"), "{text}");
        let mut json: Value = serde_json::from_str(SR25519).unwrap();
        json["address"] = Key::dev("//Alice").unwrap().address().into();
        let other = open(&json.to_string(), "a password").unwrap_err().to_string();
        assert!(other.contains("not the key of its address"), "{other}");
        assert!(refused(|json| json["address"] = "5Fxyz".into()).contains("its address is none"));
        assert!(KeyExport::parse(Path::new("export.json"), b"{").is_err());
        assert!(matches!(KeyExport::read(Path::new("/no/such/export")), Err(KeyError::NoSuchExport(_))));
    }

    #[test]
    fn only_costs_that_wallets_write_are_spent() {
        for (at, value) in [(SALT_BYTES, 1_u32 << 20), (SALT_BYTES + 4, 2), (SALT_BYTES + 8, 1024)] {
            let text = refused(|json| {
                json["encoded"] = encoded(|bytes| bytes[at..][..4].copy_from_slice(&value.to_le_bytes()));
            });
            assert!(text.contains("which no wallet writes"), "{text}");
        }
    }

    #[test]
    fn other_versions_schemes_and_unencrypted_exports_are_refused_with_what_to_do() {
        let version = refused(|json| json["encoding"]["version"] = "2".into());
        assert!(version.contains("export the account again"), "{version}");
        let plain = refused(|json| json["encoding"]["type"] = serde_json::json!(["none"]));
        assert!(plain.contains("with a password"), "{plain}");
        let ecdsa = refused(|json| json["encoding"]["content"][1] = "ecdsa".into());
        assert!(ecdsa.contains("only sr25519 and ed25519"), "{ecdsa}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            prop_assert!(KeyExport::parse(Path::new("export.json"), &bytes).is_err());
        }
    }
}
