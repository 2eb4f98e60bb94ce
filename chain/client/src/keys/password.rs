//! Password of a key file, from a file, the environment, or the terminal.

use std::{
    fmt, fs,
    io::{self, IsTerminal as _, Read as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// Environment variable that contains the password.
pub const PASSWORD_VARIABLE: &str = "METTLE_KEY_PASSWORD";

/// Maximum size of a password file, in bytes. A valid one has a single line.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Password of a key file. Wiped when dropped, and never shown.
#[derive(Clone)]
pub struct KeyPassword(Zeroizing<String>);

/// Permission to prompt for the password at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    Never,
    /// Prompts once: for an existing key file.
    Once,
    /// Prompts twice, for equal answers: for a new key file.
    Twice,
}

#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error(
        "no password for {what}, and no terminal to ask at. Set {PASSWORD_VARIABLE}, or give a password file"
    )]
    Missing { what: String },
    #[error("the password is empty. Choose one")]
    Empty,
    #[error("the two passwords differ. Try again")]
    Differ,
    #[error("cannot read the password file {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not a password file: it is not one line of text", .0.display())]
    NotAPasswordFile(PathBuf),
    #[error("cannot ask for the password at the terminal")]
    Terminal(#[source] io::Error),
}

impl KeyPassword {
    pub fn new(password: impl Into<String>) -> Result<KeyPassword, PasswordError> {
        let password = Zeroizing::new(password.into());
        if password.is_empty() { Err(PasswordError::Empty) } else { Ok(KeyPassword(password)) }
    }

    /// Returns the password for `what`: from `file`, else from `variable`, else from the terminal if `prompt` allows
    /// it.
    ///
    /// # Errors
    /// Fails if the password is empty or missing, the file is unreadable or not a password file, or the two answers
    /// differ.
    pub fn resolve(
        what: &str,
        file: Option<&Path>,
        variable: Option<String>,
        prompt: Prompt,
    ) -> Result<KeyPassword, PasswordError> {
        if let Some(path) = file {
            return KeyPassword::from_file(path);
        }
        if let Some(password) = variable {
            return KeyPassword::new(password);
        }
        let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        if prompt == Prompt::Never || !terminal {
            return Err(PasswordError::Missing { what: what.to_owned() });
        }
        let first = ask(&format!("Password for {what}: "))?;
        if prompt == Prompt::Twice && *first.0 != *ask("The same again: ")?.0 {
            return Err(PasswordError::Differ);
        }
        Ok(first)
    }

    /// Calls [`KeyPassword::resolve`] with [`PASSWORD_VARIABLE`] from the environment. For programs' `main` only.
    ///
    /// # Errors
    /// The errors of [`KeyPassword::resolve`].
    pub fn from_environment(
        what: &str,
        file: Option<&Path>,
        prompt: Prompt,
    ) -> Result<KeyPassword, PasswordError> {
        KeyPassword::resolve(what, file, std::env::var(PASSWORD_VARIABLE).ok(), prompt)
    }

    fn from_file(path: &Path) -> Result<KeyPassword, PasswordError> {
        let failed = |source| PasswordError::File { path: path.to_owned(), source };
        let mut text = Zeroizing::new(String::new());
        let file = fs::File::open(path).map_err(failed)?;
        match file.take(PASSWORD_BYTES_MAX + 1).read_to_string(&mut text) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(PasswordError::NotAPasswordFile(path.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        }
        // Only the line's end is removed: a password may begin or end with a space.
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.contains('\n') || text.len() as u64 > PASSWORD_BYTES_MAX {
            return Err(PasswordError::NotAPasswordFile(path.to_owned()));
        }
        KeyPassword::new(line)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn ask(question: &str) -> Result<KeyPassword, PasswordError> {
    KeyPassword::new(rpassword::prompt_password(question).map_err(PasswordError::Terminal)?)
}

impl fmt::Debug for KeyPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPassword(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(file: Option<&Path>, variable: Option<&str>) -> Result<String, PasswordError> {
        let password = KeyPassword::resolve("the key", file, variable.map(str::to_owned), Prompt::Never)?;
        Ok(password.0.to_string())
    }

    fn file(contents: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), contents).unwrap();
        file
    }

    #[test]
    fn a_password_file_wins_over_the_environment() {
        let given = file(b" from the file \r\n");
        assert_eq!(resolve(Some(given.path()), Some("from the variable")).unwrap(), " from the file ");
        assert_eq!(resolve(None, Some("from the variable")).unwrap(), "from the variable");
    }

    #[test]
    fn without_a_terminal_a_missing_password_is_an_error() {
        let error = resolve(None, None).unwrap_err();
        assert!(matches!(error, PasswordError::Missing { .. }));
        assert!(error.to_string().contains(PASSWORD_VARIABLE), "{error}");
    }

    #[test]
    fn an_empty_password_is_refused_from_every_source() {
        assert!(matches!(resolve(None, Some("")), Err(PasswordError::Empty)));
        assert!(matches!(resolve(Some(file(b"\n").path()), None), Err(PasswordError::Empty)));
    }

    #[test]
    fn a_file_without_a_password_is_refused() {
        let missing = Path::new("/no/such/password");
        assert!(matches!(resolve(Some(missing), None), Err(PasswordError::File { .. })));
        for contents in [b"two\nlines\n".as_slice(), b"\xff\xfe", &[b'a'; 5000]] {
            let error = resolve(Some(file(contents).path()), None).unwrap_err();
            assert!(matches!(error, PasswordError::NotAPasswordFile(_)));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let password = KeyPassword::new("secret").unwrap();
        assert!(!format!("{password:?}").contains("secret"));
    }
}
