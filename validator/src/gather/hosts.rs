//! Limits the requests to one host in one window (PROT-13).
//!
//! A seat may name any URL as its endpoint, even one of a third party, and many seats may name one host. A host that
//! has served no contribution in this window gets a few repeated requests at once and then one per second, whatever
//! the number of seats that name it. A host that has served one keeps a store for this run, so its requests are not
//! limited here.
//!
//! Hosts are distinguished by name. Names that resolve to one address count as several hosts.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Repeated requests that may be made to a host at once.
const AT_ONCE: u32 = 16;
/// Pause between two later requests.
const INTERVAL: Duration = Duration::from_secs(1);

/// The budgets of all hosts in one window. Its size depends on the number of requested seats, not on their answers.
#[derive(Default)]
pub(super) struct HostBudgets(Mutex<BTreeMap<String, Budget>>);

struct Budget {
    /// Remaining part of [`AT_ONCE`].
    at_once: u32,
    /// Time of the last scheduled request.
    last: Instant,
    has_served: watch::Sender<bool>,
}

impl HostBudgets {
    /// Waits until the host of `endpoint` may get another request. Requests to one host are scheduled in the order of
    /// the calls.
    pub async fn turn(&self, endpoint: &str) {
        let (at, mut served) = self.reserve(endpoint);
        tokio::select! {
            biased;
            // The sender lives as long as the budgets.
            _ = served.wait_for(|has_served| *has_served) => {}
            () = tokio::time::sleep_until(at) => {}
        }
    }

    /// Records that the host of `endpoint` served a contribution.
    pub fn served(&self, endpoint: &str) {
        self.with(endpoint, |budget| {
            budget.has_served.send_replace(true);
        });
    }

    fn reserve(&self, endpoint: &str) -> (Instant, watch::Receiver<bool>) {
        self.with(endpoint, |budget| {
            let now = Instant::now();
            if let Some(left) = budget.at_once.checked_sub(1) {
                budget.at_once = left;
                budget.last = now;
            } else {
                budget.last = now.max(budget.last + INTERVAL);
            }
            (budget.last, budget.has_served.subscribe())
        })
    }

    fn with<T>(&self, endpoint: &str, change: impl FnOnce(&mut Budget) -> T) -> T {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh =
            || Budget { at_once: AT_ONCE, last: Instant::now(), has_served: watch::Sender::new(false) };
        change(hosts.entry(host(endpoint)).or_insert_with(fresh))
    }
}

/// Returns the host of a base URL, without credential and port: all ports of a host share one budget. A text that is
/// not a URL is its own host; the fetcher refuses it.
fn host(endpoint: &str) -> String {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or(rest);
    let named = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match named.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => named,
    };
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_name_alone() {
        for endpoint in [
            "https://Store.example/a",
            "https://store.example:8443/b/c",
            "https://store.example.",
            "https://someone@store.example?x",
            "http://store.example:/",
        ] {
            assert_eq!(host(endpoint), "store.example", "{endpoint}");
        }
        assert_eq!(host("https://[2001:db8::1]:9000/a"), "[2001:db8::1]");
        assert_eq!(host("https://[2001:db8::1]/a"), "[2001:db8::1]");
        assert_ne!(host("https://a.example"), host("https://b.example"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_serves_nothing_is_asked_once_a_second() {
        let (budgets, started) = (HostBudgets::default(), Instant::now());
        for _ in 0..AT_ONCE {
            budgets.turn("https://a.example/1").await;
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        for seconds in 1..4 {
            budgets.turn("https://a.example/2").await;
            assert_eq!(started.elapsed().as_secs(), seconds);
        }
        // Another host has its own budget.
        budgets.turn("https://b.example").await;
        assert_eq!(started.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_contribution_of_a_host_ends_its_limit() {
        let (budgets, started) = (HostBudgets::default(), Instant::now());
        let waits = futures::future::join_all((0..100).map(|_| budgets.turn("https://a.example")));
        let serves = async {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            budgets.served("https://a.example/bucket");
        };
        futures::future::join(waits, serves).await;
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}
