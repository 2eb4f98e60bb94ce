//! Harness of the tests of whole networks. A test program lists its tests here. Names, flags and output are those of
//! other test programs.
//!
//! Networks mostly wait, so several run at once, each in a *lane*; a machine carries few. Tests that share a network
//! run on it one after the other. Every test has a thread, so one that waits for a lane or for its network delays no
//! other.

use super::Net;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Mutex, Semaphore, SemaphorePermit},
};

static LANES: OnceLock<Semaphore> = OnceLock::new();

/// Runs the tests that the command line selects, with at most `lanes` networks at once. Networks start in the order of
/// their tests.
pub fn main(lanes: usize, tests: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    LANES.get_or_init(|| Semaphore::new(lanes));
    arguments.test_threads.get_or_insert(tests.len());
    libtest_mimic::run(&arguments, tests).exit_code()
}

async fn lane() -> SemaphorePermit<'static> {
    let lanes = LANES.get().expect("main has set it");
    lanes.acquire().await.expect("it is never closed")
}

/// Makes a directory below the target directory, for data and logs.
fn home(name: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace("::", "-"));
    match std::fs::remove_dir_all(&home) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", home.display()),
        _ => {}
    }
    std::fs::create_dir_all(&home).expect("the target directory is writable");
    home
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

/// One network for several tests. It starts before the first of them and ends after the last.
pub struct Shared {
    name: &'static str,
    start: Start,
    state: Mutex<State>,
    // Not the runtime of a test, because chain client and processes outlive each test.
    runtime: OnceLock<Runtime>,
}

type Start = for<'a> fn(&'a Path) -> LocalBoxFuture<'a, Net>;
type OnShared = for<'a> fn(&'a mut Net) -> LocalBoxFuture<'a, ()>;
type OnItsOwn = for<'a> fn(&'a Path) -> LocalBoxFuture<'a, ()>;

enum State {
    NotStarted,
    Failed,
    Runs(Box<Net>, SemaphorePermit<'static>),
}

impl Shared {
    pub fn new(name: &'static str, start: Start) -> Arc<Shared> {
        Arc::new(Shared { name, start, state: Mutex::new(State::NotStarted), runtime: OnceLock::new() })
    }

    /// Returns a test on this network, with every process running and no fault left from the test before.
    pub fn test(self: &Arc<Self>, name: &str, test: OnShared) -> Trial {
        let network = self.clone();
        Trial::test(name, move || {
            network.run(test);
            // The last test ends the network.
            drop(network);
            Ok(())
        })
    }

    fn run(&self, test: OnShared) {
        self.runtime.get_or_init(runtime).block_on(async {
            let mut state = self.state.lock().await;
            if matches!(*state, State::NotStarted) {
                *state = State::Failed;
                let lane = lane().await;
                let net = (self.start)(&home(self.name)).await;
                *state = State::Runs(Box::new(net), lane);
            }
            let State::Runs(net, _) = &mut *state else { panic!("the network {} did not start", self.name) };
            net.restore().await;
            test(net).await;
            let seen = &net.observer;
            assert!(seen.lineage_agreed(), "models differ: {:?}\n{:?}", seen.lineages, seen.held);
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Failed);
        if let (Some(runtime), State::Runs(net, lane)) = (self.runtime.get(), state) {
            runtime.block_on(net.down());
            drop(lane);
        }
    }
}

/// Returns a test that starts its own networks, one at a time, in the directory that it gets.
pub fn on_its_own(name: &'static str, test: OnItsOwn) -> Trial {
    Trial::test(name, move || {
        runtime().block_on(async {
            let _lane = lane().await;
            let home = home(name);
            test(&home).await;
            // The files of a failed test are kept.
            let _ = std::fs::remove_dir_all(&home);
        });
        Ok(())
    })
}

/// Returns a test without a network.
pub fn without_network(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// Returns the same tests, ignored unless the command line includes them.
#[must_use]
pub fn ignored(tests: Vec<Trial>) -> Vec<Trial> {
    tests.into_iter().map(|test| test.with_ignored_flag(true)).collect()
}

/// `shared!("module", start, [test, …])`: tests of a module on one network, which `start` starts.
macro_rules! shared {
    ($module:literal, $start:expr, [$($test:ident),+ $(,)?]) => {{
        let network = $crate::support::harness::Shared::new($module, |home| Box::pin($start(home)));
        vec![$(network.test(concat!($module, "::", stringify!($test)), |net| Box::pin($test(net)))),+]
    }};
}
/// `on_their_own!("module", [test, …])`: tests that start networks of their own.
macro_rules! on_their_own {
    ($module:literal, [$($test:ident),+ $(,)?]) => {
        vec![$($crate::support::harness::on_its_own(
            concat!($module, "::", stringify!($test)),
            |home| Box::pin($test(home)),
        )),+]
    };
}
/// `plain!("module", [test, …])`: tests without a network.
macro_rules! plain {
    ($module:literal, [$($test:ident),+ $(,)?]) => {
        vec![$($crate::support::harness::without_network(concat!($module, "::", stringify!($test)), $test)),+]
    };
}
pub(crate) use {on_their_own, plain, shared};
