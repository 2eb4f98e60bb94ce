//! Log lines of this process. They go to standard error, or are buffered while the live table owns the terminal and
//! shows them above itself.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Maximum number of buffered lines; older ones are dropped.
const HELD_MAX: usize = 200;

/// Buffered lines; `None` while lines go to standard error.
static HELD: Mutex<Option<VecDeque<String>>> = Mutex::new(None);

/// Sets this log as the process's subscriber.
pub fn init() {
    daemon::program::log_to(|| LogWriter);
}

/// Buffers lines from now on.
pub fn hold() {
    held().get_or_insert_default();
}

/// Returns the lines since the last call, oldest first.
pub fn take() -> Vec<String> {
    held().as_mut().map(|lines| lines.drain(..).collect()).unwrap_or_default()
}

/// Ends [`hold`]: writes the buffered lines and all later ones to standard error.
pub fn release() {
    for line in held().take().unwrap_or_default() {
        eprintln!("{line}");
    }
}

fn held() -> MutexGuard<'static, Option<VecDeque<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LogWriter;

impl Write for LogWriter {
    /// Writes one line: the subscriber writes each event with one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = held();
        let Some(lines) = held.as_mut() else {
            drop(held);
            io::stderr().write_all(bytes)?;
            return Ok(bytes.len());
        };
        for line in String::from_utf8_lossy(bytes).lines() {
            if lines.len() == HELD_MAX {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_held_back_for_the_table_and_the_oldest_are_dropped() {
        hold();
        for number in 0..HELD_MAX + 2 {
            LogWriter.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        let lines = take();
        assert_eq!((lines.len(), lines[0].as_str()), (HELD_MAX, "line 2"));
        assert!(take().is_empty());
        release();
        LogWriter.write_all(b"to standard error\n").unwrap();
        assert!(take().is_empty());
    }
}
