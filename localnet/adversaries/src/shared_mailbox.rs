//! A private channel between colluding seats.

use daemon::durable::{self, FileError};
use protocol::Window;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// Number of windows for which values are kept.
const KEPT: u32 = 3;

/// Values by pair and window.
type Left = BTreeMap<(u16, Window), Vec<f32>>;

/// A mailbox that all seats of a pair or group can access.
#[derive(Clone, Debug)]
pub enum SharedMailbox {
    /// Mailbox of seats in one process.
    Memory(Arc<Mutex<Left>>),
    /// Mailbox of processes on one machine.
    Directory(PathBuf),
}

impl Default for SharedMailbox {
    fn default() -> SharedMailbox {
        SharedMailbox::Memory(Arc::default())
    }
}

impl SharedMailbox {
    /// Stores `values` for the other seats of `pair`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put(&self, pair: u16, window: Window, values: &[f32]) -> Result<(), FileError> {
        let old = window.0.checked_sub(KEPT).map(Window);
        match self {
            SharedMailbox::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.insert((pair, window), values.to_vec());
                if let Some(old) = old {
                    kept.remove(&(pair, old));
                }
                Ok(())
            }
            SharedMailbox::Directory(directory) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                if let Some(old) = old {
                    std::fs::remove_file(file(directory, pair, old)).ok();
                }
                durable::write_atomic(&file(directory, pair, window), &bytes)
            }
        }
    }

    /// Returns the stored values, if any.
    pub fn get(&self, pair: u16, window: Window) -> Option<Vec<f32>> {
        match self {
            SharedMailbox::Memory(kept) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).get(&(pair, window)).cloned()
            }
            SharedMailbox::Directory(directory) => {
                let bytes = std::fs::read(file(directory, pair, window)).ok()?;
                Some(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
            }
        }
    }
}

fn file(directory: &std::path::Path, pair: u16, window: Window) -> PathBuf {
    directory.join(format!("pair-{pair}-window-{}", window.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_finds_what_was_left_for_a_while_and_nobody_elses() {
        let directory = tempfile::tempdir().unwrap();
        for mailbox in [SharedMailbox::default(), SharedMailbox::Directory(directory.path().to_owned())] {
            assert_eq!(mailbox.get(0, Window(1)), None);
            mailbox.put(0, Window(1), &[1.5, -2.0]).unwrap();
            assert_eq!(mailbox.get(0, Window(1)), Some(vec![1.5, -2.0]));
            assert_eq!(mailbox.get(1, Window(1)), None);
            for window in 2..=4 {
                mailbox.put(0, Window(window), &[0.0]).unwrap();
            }
            assert_eq!(mailbox.get(0, Window(1)), None);
        }
    }
}
