//! Notifies the service manager that the process is ready, stopping, or still running (`sd_notify`).
//!
//! Active only in a process with the variable NOTIFY_SOCKET, such as a systemd unit with `Type=notify`. A node is
//! ready once it participates. The watchdog checks only that the executor runs: while the chain or the bucket is
//! unavailable, a node waits, and a restart would not help.

use crate::{Entry, Journal};
use std::{io, sync::Arc, time::Duration};
use tokio::task::JoinHandle;

/// The service manager, if there is one.
#[derive(Default)]
pub struct ServiceManager {
    tell: Option<Tell>,
    /// Interval between watchdog messages; `None` without a watchdog.
    alive_every: Option<Duration>,
    watchdog: Option<JoinHandle<()>>,
}

/// Sends one message without blocking: a message that cannot be sent immediately is lost.
type Tell = Arc<dyn Fn(&str) + Send + Sync>;

impl ServiceManager {
    pub fn from_environment() -> ServiceManager {
        ServiceManager::open(|name| std::env::var(name).ok(), std::process::id())
    }

    fn open(variable: impl Fn(&str) -> Option<String>, process: u32) -> ServiceManager {
        let Some(address) = variable("NOTIFY_SOCKET") else { return ServiceManager::default() };
        let tell = match connect(&address) {
            Ok(tell) => tell,
            Err(error) => {
                tracing::warn!(address, %error, "the service manager in NOTIFY_SOCKET is told nothing");
                return ServiceManager::default();
            }
        };
        // The variables may be inherited from another watched process.
        let is_ours = variable("WATCHDOG_PID").is_none_or(|watched| watched == process.to_string());
        let micros = variable("WATCHDOG_USEC").and_then(|text| text.parse::<u64>().ok());
        let micros = micros.filter(|micros| is_ours && 0 < *micros);
        // Twice per watchdog interval, as systemd advises.
        let alive_every = micros.map(|micros| Duration::from_micros(micros) / 2);
        ServiceManager { tell: Some(tell), alive_every, watchdog: None }
    }

    /// Shows the window whose model the node holds as the unit's status.
    pub fn follow(&self, journal: &mut Journal) {
        let Some(tell) = self.tell.clone() else { return };
        journal.watch(Box::new(move |entry| {
            if let Entry::Holds { window, .. } = entry {
                tell(&format!("STATUS=holds the model of window {}", window.0));
            }
        }));
    }

    /// Reports that the node participates. Starts the watchdog messages if the manager requests them.
    pub fn ready(&mut self) {
        let Some(tell) = self.tell.clone() else { return };
        tell("READY=1");
        self.watchdog = self.alive_every.map(|every| {
            tokio::spawn(async move {
                let mut ticks = tokio::time::interval(every);
                loop {
                    ticks.tick().await;
                    tell("WATCHDOG=1");
                }
            })
        });
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.abort();
        }
        if let Some(tell) = &self.tell {
            tell("STOPPING=1");
        }
    }
}

/// Connects to a socket: a path, or an abstract name after `@`.
#[cfg(unix)]
fn connect(address: &str) -> io::Result<Tell> {
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let at = match address.strip_prefix('@') {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&at)?;
    socket.set_nonblocking(true)?;
    Ok(Arc::new(move |message| {
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!(message, %error, "the service manager was not told");
        }
    }))
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    std::os::unix::net::SocketAddr::from_abstract_name(name)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn abstract_address(_: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn connect(_: &str) -> io::Result<Tell> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use protocol::{Digest, Window};
    use std::os::unix::net::UnixDatagram;

    /// All messages sent so far.
    fn told(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 256];
        let mut messages = Vec::new();
        while let Ok(length) = socket.recv(&mut buffer) {
            messages.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        messages
    }

    fn manager(variables: &[(&str, &str)]) -> ServiceManager {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        ServiceManager::open(|name| find(name).map(|(_, value)| (*value).to_owned()), 7)
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_is_told_window_readiness_life_and_end() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut manager = manager(&[
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "60000000"),
            ("WATCHDOG_PID", "7"),
        ]);
        let mut journal = Journal::in_memory(Box::new(|_| {}));
        manager.follow(&mut journal);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(told(&socket).is_empty(), "nobody is watched before it is ready");
        let lineage = Digest::of(b"lineage");
        journal.write(&Entry::Holds { window: Window(12), lineage, outcome_before: None });
        manager.ready();
        assert_eq!(told(&socket), ["STATUS=holds the model of window 12", "READY=1"]);
        tokio::time::sleep(Duration::from_secs(95)).await;
        assert_eq!(told(&socket), ["WATCHDOG=1"; 4], "at 0, 30, 60 and 90 s");
        drop(manager);
        assert_eq!(told(&socket), ["STOPPING=1"]);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(told(&socket).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn another_process_s_watchdog_and_an_impossible_time_are_left_alone() {
        let name = format!("mettle-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&abstract_address(&name).unwrap()).unwrap();
        let address = format!("@{name}");
        for (time, process) in [("60000000", "8"), ("0", "7"), ("soon", "7")] {
            let mut manager =
                manager(&[("NOTIFY_SOCKET", &address), ("WATCHDOG_USEC", time), ("WATCHDOG_PID", process)]);
            manager.ready();
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert_eq!(told(&socket), ["READY=1"]);
            drop(manager);
            assert_eq!(told(&socket), ["STOPPING=1"]);
        }
    }

    #[tokio::test]
    async fn a_manager_that_is_absent_or_gone_stops_nothing() {
        for variables in [&[][..], &[("NOTIFY_SOCKET", "/no/such/socket")]] {
            let mut manager = manager(variables);
            manager.follow(&mut Journal::in_memory(Box::new(|_| {})));
            manager.ready();
        }
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut manager = manager(&[("NOTIFY_SOCKET", path.to_str().unwrap())]);
        drop(socket);
        manager.ready();
        // A full queue, of a manager that does not read.
        let deaf = home.path().join("deaf");
        let _socket = UnixDatagram::bind(&deaf).unwrap();
        let tell = connect(deaf.to_str().unwrap()).unwrap();
        (0..10_000).for_each(|_| tell("WATCHDOG=1"));
    }
}
