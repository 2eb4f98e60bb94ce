//! A key on disk, with its secret encrypted under a password.
//!
//! Argon2id stretches the password, and XChaCha20-Poly1305 encrypts the secret. The secret is the seed of an ed25519
//! key, or the two halves of an sr25519 key, because wallets do not export its seed. Everything else in the file is
//! associated data, so that a changed file does not open. The memory and time requested by a file are checked before
//! they are spent.

use super::{Key, KeyError, KeyPassword, Scheme, address};
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305,
    aead::{Aead as _, Payload},
};
use protocol::{Hotkey, view::Account};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

const FORMAT: &str = "mettle-key/1";
const KDF: &str = "argon2id";
const CIPHER: &str = "xchacha20-poly1305";

/// Maximum size of a key file, in bytes. A valid one is below 1 KiB.
const FILE_BYTES_MAX: u64 = 16 * 1024;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

const MEMORY_KIB_MAX: u32 = 1024 * 1024;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 16;

/// Cost of one password attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// 64 MiB and three passes, about 0.2 s: RFC 9106's recommendation for little memory.
impl Default for Cost {
    fn default() -> Cost {
        Cost { memory_kib: 64 * 1024, passes: 3, lanes: 1 }
    }
}

/// A key file that was read and checked, but not decrypted.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    contents: Contents,
}

/// Contents of the file, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    format: String,
    /// Omitted for ed25519.
    #[serde(default, skip_serializing_if = "Scheme::is_ed25519")]
    scheme: Scheme,
    public: Hotkey,
    address: String,
    kdf: Kdf,
    cipher: Cipher,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kdf {
    name: String,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: Hex<SALT_BYTES>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cipher {
    name: String,
    nonce: Hex<NONCE_BYTES>,
    /// Secret and authentication tag, in hex.
    sealed: String,
}

/// Bytes, as hex digits in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Hex<const N: usize>([u8; N]);

impl<const N: usize> TryFrom<String> for Hex<N> {
    type Error = String;

    fn try_from(digits: String) -> Result<Hex<N>, String> {
        let mut bytes = [0; N];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| format!("not {N} bytes in hex"))?;
        Ok(Hex(bytes))
    }
}

impl<const N: usize> From<Hex<N>> for String {
    fn from(bytes: Hex<N>) -> String {
        hex::encode(bytes.0)
    }
}

impl KeyFile {
    /// Writes `key` to a new file that only its owner may read, and creates its directories. Never overwrites a file,
    /// and never leaves a partial one.
    ///
    /// # Errors
    /// [`KeyError::Exists`] if there is a file at `path`, [`KeyError::Io`] if it cannot be written.
    pub fn create(path: &Path, key: &Key, password: &KeyPassword) -> Result<(), KeyError> {
        KeyFile::create_at_cost(path, key, password, Cost::default())
    }

    fn create_at_cost(path: &Path, key: &Key, password: &KeyPassword, cost: Cost) -> Result<(), KeyError> {
        if path.exists() {
            return Err(KeyError::Exists(path.to_owned()));
        }
        KeyFile::seal(path, key, password, cost)?.write()
    }

    /// Reads a key file without decrypting it.
    ///
    /// # Errors
    /// Fails if there is no file, it cannot be read, it is not a key file, or its costs exceed the limits.
    pub fn read(path: &Path) -> Result<KeyFile, KeyError> {
        KeyFile::parse(path, &read_bounded(path)?)
    }

    /// Returns the account stated in the file; [`KeyFile::unlock`] verifies it.
    pub fn account(&self) -> Account {
        self.contents.public.0
    }

    pub fn scheme(&self) -> Scheme {
        self.contents.scheme
    }

    /// Decrypts the file.
    ///
    /// # Errors
    /// [`KeyError::WrongPassword`] if the password is wrong or the file was changed, [`KeyError::NotAKeyFile`] if the
    /// file is invalid.
    pub fn unlock(&self, password: &KeyPassword) -> Result<Key, KeyError> {
        let cipher = self.cipher(password)?;
        let Cipher { nonce, sealed, .. } = &self.contents.cipher;
        let sealed = hex::decode(sealed).map_err(|_| self.not_a_key_file("its sealed secret is not hex"))?;
        let payload = Payload { msg: &sealed, aad: &self.bound() };
        let opened = cipher.decrypt((&nonce.0).into(), payload);
        let opened = Zeroizing::new(opened.map_err(|_| KeyError::WrongPassword(self.path.clone()))?);
        let key = Key::from_secret(self.scheme(), &opened);
        let key = key.filter(|key| key.account() == self.account());
        key.ok_or_else(|| self.not_a_key_file("the key inside is not the one the file names"))
    }

    fn seal(path: &Path, key: &Key, password: &KeyPassword, cost: Cost) -> Result<KeyFile, KeyError> {
        let Cost { memory_kib, passes, lanes } = cost;
        let (mut salt, mut nonce) = (Hex([0; SALT_BYTES]), Hex([0; NONCE_BYTES]));
        getrandom::fill(&mut salt.0).map_err(KeyError::Randomness)?;
        getrandom::fill(&mut nonce.0).map_err(KeyError::Randomness)?;
        let contents = Contents {
            format: FORMAT.into(),
            scheme: key.scheme(),
            public: Hotkey(key.account()),
            address: key.address(),
            kdf: Kdf { name: KDF.into(), memory_kib, passes, lanes, salt },
            cipher: Cipher { name: CIPHER.into(), nonce, sealed: String::new() },
        };
        let mut file = KeyFile { path: path.to_owned(), contents };
        file.check_cost()?;

        let cipher = file.cipher(password)?;
        let secret = key.secret();
        let payload = Payload { msg: secret.as_slice(), aad: &file.bound() };
        let sealed = cipher.encrypt((&file.contents.cipher.nonce.0).into(), payload);
        file.contents.cipher.sealed = hex::encode(sealed.expect("64 bytes can be sealed"));
        Ok(file)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<KeyFile, KeyError> {
        let refused = |reason: String| KeyError::NotAKeyFile { path: path.to_owned(), reason };
        let contents: Contents = serde_json::from_slice(bytes).map_err(|error| refused(error.to_string()))?;
        for (what, found, ours) in [
            ("format", &contents.format, FORMAT),
            ("kdf", &contents.kdf.name, KDF),
            ("cipher", &contents.cipher.name, CIPHER),
        ] {
            if found != ours {
                return Err(refused(format!(
                    "its {what} is `{found}`, and this program knows only `{ours}`"
                )));
            }
        }
        let digits = contents.scheme.secret_bytes().saturating_add(TAG_BYTES).saturating_mul(2);
        if contents.cipher.sealed.len() != digits {
            return Err(refused(format!("its sealed secret is not {digits} hex digits")));
        }
        if contents.address != address(&contents.public.0) {
            return Err(refused("its address does not belong to its public key".into()));
        }
        let file = KeyFile { path: path.to_owned(), contents };
        file.check_cost()?;
        Ok(file)
    }

    fn check_cost(&self) -> Result<(), KeyError> {
        let Kdf { memory_kib, passes, lanes, .. } = self.contents.kdf;
        for (what, asked, max) in [
            ("memory (KiB)", memory_kib, MEMORY_KIB_MAX),
            ("passes", passes, PASSES_MAX),
            ("lanes", lanes, LANES_MAX),
        ] {
            if asked > max {
                return Err(KeyError::TooCostly { path: self.path.clone(), what, asked, max });
            }
        }
        self.params().map(|_| ())
    }

    fn params(&self) -> Result<Params, KeyError> {
        let Kdf { memory_kib, passes, lanes, .. } = self.contents.kdf;
        Params::new(memory_kib, passes, lanes, Some(32))
            .map_err(|error| self.not_a_key_file(&format!("its kdf parameters are impossible: {error}")))
    }

    /// Returns the cipher under the stretched password. This is the slow step.
    fn cipher(&self, password: &KeyPassword) -> Result<XChaCha20Poly1305, KeyError> {
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, self.params()?);
        let mut stretched = Zeroizing::new([0; 32]);
        argon2
            .hash_password_into(password.as_bytes(), &self.contents.kdf.salt.0, stretched.as_mut_slice())
            .map_err(|error| self.not_a_key_file(&format!("its password cannot be stretched: {error}")))?;
        Ok(XChaCha20Poly1305::new((&*stretched).into()))
    }

    /// Returns the associated data.
    fn bound(&self) -> Vec<u8> {
        let Kdf { memory_kib, passes, lanes, .. } = self.contents.kdf;
        let mut bound = format!("{FORMAT} {KDF} {memory_kib} {passes} {lanes} {CIPHER} ").into_bytes();
        if !self.scheme().is_ed25519() {
            bound.extend_from_slice(format!("{} ", self.scheme()).as_bytes());
        }
        bound.extend_from_slice(&self.account());
        bound
    }

    fn write(&self) -> Result<(), KeyError> {
        let mut text = serde_json::to_string_pretty(&self.contents).expect("strings and numbers make JSON");
        text.push('\n');

        let failed = |source| KeyError::Io { doing: "write", path: self.path.clone(), source };
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(directory).map_err(failed)?;
        // A temporary file has mode 0600, and is renamed after its bytes are on disk.
        let mut temporary = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        temporary.write_all(text.as_bytes()).map_err(failed)?;
        temporary.as_file().sync_all().map_err(failed)?;
        temporary.persist_noclobber(&self.path).map_err(|error| {
            if error.error.kind() == io::ErrorKind::AlreadyExists {
                KeyError::Exists(self.path.clone())
            } else {
                failed(error.error)
            }
        })?;
        #[cfg(unix)]
        fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(())
    }

    fn not_a_key_file(&self, reason: &str) -> KeyError {
        KeyError::NotAKeyFile { path: self.path.clone(), reason: reason.to_owned() }
    }
}

/// Reads a small file that contains a key.
///
/// # Errors
/// Fails if there is no such file, it cannot be read, or it is too long for a key.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, KeyError> {
    let failed = |source| KeyError::Io { doing: "read", path: path.to_owned(), source };
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(KeyError::NoSuchFile(path.to_owned()));
        }
        opened => opened.map_err(failed)?,
    };
    warn_if_others_may_read(path, &file);
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if FILE_BYTES_MAX < bytes.len() as u64 {
        let reason = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(KeyError::NotAKeyFile { path: path.to_owned(), reason });
    }
    Ok(bytes)
}

#[cfg(unix)]
fn warn_if_others_may_read(path: &Path, file: &fs::File) {
    use std::os::unix::fs::PermissionsExt as _;
    if let Ok(metadata) = file.metadata()
        && metadata.permissions().mode() & 0o077 != 0
    {
        tracing::warn!(path = %path.display(), "other users may read this key file: chmod 600");
    }
}

#[cfg(not(unix))]
fn warn_if_others_may_read(_: &Path, _: &fs::File) {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Minimum cost that Argon2 accepts.
    const CHEAP: Cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };

    fn password(text: &str) -> KeyPassword {
        KeyPassword::new(text).unwrap()
    }

    fn open(path: &Path, text: &str) -> Result<Key, KeyError> {
        KeyFile::read(path)?.unlock(&password(text))
    }

    struct Saved {
        _directory: tempfile::TempDir,
        path: PathBuf,
        key: Key,
    }

    fn saved() -> Saved {
        saved_key(Key::generate().unwrap())
    }

    fn saved_key(key: Key) -> Saved {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made on the way").join("hot.json");
        KeyFile::create_at_cost(&path, &key, &password("right"), CHEAP).unwrap();
        Saved { _directory: directory, path, key }
    }

    /// Changes one field of a valid file, and returns the error of opening it.
    #[track_caller]
    fn refused(change: impl FnOnce(&mut serde_json::Value)) -> KeyError {
        let saved = saved();
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&saved.path).unwrap()).unwrap();
        change(&mut json);
        fs::write(&saved.path, serde_json::to_vec(&json).unwrap()).unwrap();
        open(&saved.path, "right").unwrap_err()
    }

    #[test]
    fn a_key_opens_only_with_its_password() {
        let saved = saved();
        assert_eq!(open(&saved.path, "right").unwrap().account(), saved.key.account());
        assert_eq!(KeyFile::read(&saved.path).unwrap().account(), saved.key.account());
        let error = open(&saved.path, "wrong").unwrap_err();
        assert!(matches!(error, KeyError::WrongPassword(_)), "{error}");
    }

    #[test]
    fn an_sr25519_key_keeps_its_scheme_and_signs_as_before() {
        let words = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
        let saved = saved_key(Key::from_words(words, Scheme::Sr25519).unwrap());
        assert_eq!(KeyFile::read(&saved.path).unwrap().scheme(), Scheme::Sr25519);
        let opened = open(&saved.path, "right").unwrap();
        assert_eq!((opened.account(), opened.scheme()), (saved.key.account(), Scheme::Sr25519));
        assert_eq!(*opened.secret(), *saved.key.secret());
        // Without its scheme it is not an ed25519 key.
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&saved.path).unwrap()).unwrap();
        json.as_object_mut().unwrap().remove("scheme");
        fs::write(&saved.path, json.to_string()).unwrap();
        assert!(matches!(KeyFile::read(&saved.path), Err(KeyError::NotAKeyFile { .. })));
        json["scheme"] = "ecdsa".into();
        fs::write(&saved.path, json.to_string()).unwrap();
        assert!(matches!(KeyFile::read(&saved.path), Err(KeyError::NotAKeyFile { .. })));
    }

    #[test]
    fn the_default_cost_opens_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hot.json");
        let key = Key::generate().unwrap();
        KeyFile::create(&path, &key, &password("right")).unwrap();
        assert_eq!(open(&path, "right").unwrap().account(), key.account());
    }

    #[test]
    fn a_key_file_is_never_overwritten() {
        let saved = saved();
        let before = fs::read(&saved.path).unwrap();
        let other = Key::generate().unwrap();
        let error = KeyFile::create_at_cost(&saved.path, &other, &password("x"), CHEAP).unwrap_err();
        assert!(matches!(error, KeyError::Exists(_)), "{error}");
        assert_eq!(fs::read(&saved.path).unwrap(), before);
        // Even if the file appears between the check and the write.
        let file = KeyFile::seal(&saved.path, &other, &password("x"), CHEAP).unwrap();
        assert!(matches!(file.write(), Err(KeyError::Exists(_))));
        assert_eq!(fs::read(&saved.path).unwrap(), before);
        let left = fs::read_dir(saved.path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "a temporary file stays behind");
    }

    #[cfg(unix)]
    #[test]
    fn only_its_owner_may_read_a_key_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let saved = saved();
        assert_eq!(fs::metadata(&saved.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_key_file_has_no_plain_seed() {
        let saved = saved();
        let text = fs::read_to_string(&saved.path).unwrap();
        assert!(!text.contains(&hex::encode(&*saved.key.secret())));
        assert!(text.contains(&saved.key.address()));
    }

    #[test]
    fn a_costly_file_is_refused_before_the_cost_is_spent() {
        for (field, value) in [("memory_kib", u32::MAX), ("passes", 1_000_000), ("lanes", 17)] {
            let error = refused(|json| json["kdf"][field] = value.into());
            assert!(matches!(error, KeyError::TooCostly { .. }), "{error}");
        }
        let error = refused(|json| json["kdf"]["memory_kib"] = 0.into());
        assert!(matches!(error, KeyError::NotAKeyFile { .. }), "{error}");
        let error = refused(|json| json["kdf"]["lanes"] = 0.into());
        assert!(matches!(error, KeyError::NotAKeyFile { .. }), "{error}");
    }

    #[test]
    fn a_changed_file_does_not_open() {
        let flipped = |digits: &serde_json::Value| {
            let digits = digits.as_str().unwrap();
            let first = if digits.starts_with('0') { "1" } else { "0" };
            serde_json::Value::from(first.to_owned() + &digits[1..])
        };
        for (group, field) in [("kdf", "salt"), ("cipher", "nonce"), ("cipher", "sealed")] {
            let error = refused(|json| json[group][field] = flipped(&json[group][field]));
            assert!(matches!(error, KeyError::WrongPassword(_)), "{field}: {error}");
        }
        let error = refused(|json| json["kdf"]["passes"] = 2.into());
        assert!(matches!(error, KeyError::WrongPassword(_)), "{error}");
        let error = refused(|json| {
            let other = Key::from_seed(&[7; 32]);
            json["public"] = Hotkey(other.account()).to_string().into();
            json["address"] = other.address().into();
        });
        assert!(matches!(error, KeyError::WrongPassword(_)), "{error}");
    }

    #[test]
    fn an_invalid_key_file_is_refused_with_a_reason() {
        let not_a_key_file =
            |error: KeyError| assert!(matches!(error, KeyError::NotAKeyFile { .. }), "{error}");
        not_a_key_file(refused(|json| json["format"] = "mettle-key/2".into()));
        not_a_key_file(refused(|json| json["kdf"]["name"] = "scrypt".into()));
        not_a_key_file(refused(|json| json["cipher"]["name"] = "aes".into()));
        not_a_key_file(refused(|json| json["cipher"]["sealed"] = "00".into()));
        not_a_key_file(refused(|json| {
            json["address"] = "5FA9nQDVg267DEd8m1ZypXLBnvN7SFxYwV7ndqSYGiN9TTpu".into()
        }));
        not_a_key_file(refused(|json| json["more"] = "fields".into()));

        let path = Path::new("hot.json");
        not_a_key_file(KeyFile::parse(path, b"").unwrap_err());
        let long = tempfile::NamedTempFile::new().unwrap();
        fs::write(long.path(), [b' '; 20_000]).unwrap();
        not_a_key_file(KeyFile::read(long.path()).unwrap_err());
        assert!(matches!(KeyFile::read(Path::new("/no/such/key")), Err(KeyError::NoSuchFile(_))));
        assert!(matches!(KeyFile::read(&std::env::temp_dir()), Err(KeyError::Io { .. })));
    }

    #[test]
    fn an_unwritable_directory_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().join("hot.json");
        let key = Key::generate().unwrap();
        let error = KeyFile::create_at_cost(&path, &key, &password("x"), CHEAP).unwrap_err();
        assert!(matches!(error, KeyError::Io { .. }), "{error}");
        let source = std::error::Error::source(&error);
        assert!(source.is_some(), "the reason is lost");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            prop_assert!(KeyFile::parse(Path::new("hot.json"), &bytes).is_err());
        }
    }
}
