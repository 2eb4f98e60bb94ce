//! The node's own key, which only proves to peers that a connection leads to this node.
//!
//! It is not the hotkey: a swarm signs a handshake with every peer that connects, whereas the hotkey signs only what
//! has been saved to the disk before.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use libp2p::identity::Keypair;
use protocol::ensure;
use zeroize::Zeroizing;

/// Error of a missing or unusable node key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("could not read the node key {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("could not write the node key {}: is the disk full, or the directory not writable?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("other users may read the node key {}: `chmod 600` it, or remove it for a new one", path.display())]
    Open { path: PathBuf },
    #[error("{} holds no node key, which has 32 bytes: restore it, or remove it for a new one", path.display())]
    Damaged { path: PathBuf },
    #[error("the operating system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

/// An ed25519 key of a node. `Debug` shows only the peer.
#[derive(Clone)]
pub struct NodeKey(pub(crate) Keypair);

impl NodeKey {
    /// Reads the key from the file, which only its owner may read; creates the file if it is missing.
    ///
    /// # Errors
    /// If the file cannot be read or written, is damaged, or other users may read it.
    pub fn open_or_create(path: &Path) -> Result<NodeKey, KeyError> {
        match fs::read(path) {
            Ok(bytes) => {
                ensure!(is_private(path), KeyError::Open { path: path.to_owned() });
                let mut bytes = Zeroizing::new(bytes);
                let damaged = || KeyError::Damaged { path: path.to_owned() };
                ensure!(bytes.len() == 32, damaged());
                Keypair::ed25519_from_bytes(&mut bytes[..]).map(NodeKey).map_err(|_| damaged())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => NodeKey::create(path),
            Err(source) => Err(KeyError::Read { path: path.to_owned(), source }),
        }
    }

    /// Creates a temporary key that is not saved.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn generate() -> Result<NodeKey, KeyError> {
        NodeKey::of_seed(&mut NodeKey::seed()?)
    }

    fn seed() -> Result<Zeroizing<[u8; 32]>, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut seed[..]).map_err(KeyError::Random)?;
        Ok(seed)
    }

    /// Creates the key of a seed, and wipes the seed.
    fn of_seed(seed: &mut Zeroizing<[u8; 32]>) -> Result<NodeKey, KeyError> {
        let keypair = Keypair::ed25519_from_bytes(&mut seed[..]);
        Ok(NodeKey(keypair.expect("any 32 bytes are the seed of an ed25519 key")))
    }

    fn create(path: &Path) -> Result<NodeKey, KeyError> {
        let failed = |source| KeyError::Write { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut seed = NodeKey::seed()?;
        fs::create_dir_all(folder).map_err(failed)?;
        // Only the owner can read temporary files, and a rename preserves that.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(&seed[..]).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist_noclobber(path).map_err(|error| failed(error.error))?;
        fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        NodeKey::of_seed(&mut seed)
    }

    /// Returns the name by which peers know the node.
    pub fn peer(&self) -> PeerId {
        self.0.public().to_peer_id()
    }
}

#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 == 0)
}

#[cfg(not(unix))]
fn is_private(_: &Path) -> bool {
    true
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeKey").field(&self.peer()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_from_others() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new").join("node.key");
        let made = NodeKey::open_or_create(&path).unwrap();
        assert_eq!(NodeKey::open_or_create(&path).unwrap().peer(), made.peer());
        assert_ne!(NodeKey::generate().unwrap().peer(), made.peer());
        assert!(made.peer().to_string().starts_with("12D3KooW") && made.peer().to_string().len() == 52);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            assert!(matches!(NodeKey::open_or_create(&path), Err(KeyError::Open { .. })));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::write(&path, "short").unwrap();
        assert!(matches!(NodeKey::open_or_create(&path), Err(KeyError::Damaged { .. })));
    }
}
