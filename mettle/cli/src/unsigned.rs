//! The file of `--sign-elsewhere`: transactions for a wallet or another machine to sign.

use anyhow::{Context as _, ensure};
use chain_client::UnsignedCall;
use std::{fs, io::Read as _, path::Path};

/// A run's terms and parameters are some kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Writes transactions for a signer elsewhere to a new file.
pub(crate) fn write(file: &Path, calls: &[UnsignedCall]) -> anyhow::Result<()> {
    let failed = || format!("could not write {}", file.display());
    let text = serde_json::to_vec_pretty(calls)?;
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut temporary = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    std::io::Write::write_all(&mut temporary, &text).with_context(failed)?;
    // What is there may wait for its signature.
    temporary.persist_noclobber(file).with_context(failed)?;
    Ok(())
}

/// Reads what [`write`] wrote.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<UnsignedCall>> {
    let failed = || format!("could not read {}", file.display());
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).with_context(failed)?;
    opened.take(FILE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes).with_context(failed)?;
    ensure!(
        bytes.len() as u64 <= FILE_BYTES_MAX,
        "{} is longer than {FILE_BYTES_MAX} bytes: it is no file of --sign-elsewhere",
        file.display()
    );
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is no file that --sign-elsewhere wrote", file.display()))
}
