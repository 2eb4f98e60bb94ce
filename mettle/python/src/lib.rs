//! The module `mettle._native`: [`mettle_sdk`] for Python. It returns JSON, which `mettle/__init__.py` converts into
//! classes. The interpreter's lock is released while a call waits, and Ctrl-C ends the wait.

use chain_client::keys::address;
use mettle_sdk::{Error, Kind, Replayer, Run, Source, Which, verify_receipt};
use protocol::{Digest, RunId, Uid, Window, view::SeatStatus};
use pyo3::{prelude::*, types::PyBytes};
use serde::Serialize;
use std::{
    future::Future,
    path::PathBuf,
    pin::pin,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::runtime::Runtime;

/// Interval between checks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum of `patience`, in seconds.
const PATIENCE_SECONDS_MAX: f64 = 86_400.0;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Native, runs};
}

/// Returns the runtime of all runs, created once per process.
fn runtime(py: Python<'_>) -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let made = made.map_err(|error| {
        let (what, to_do) = ("no threads could be started", "end other programs, and try again");
        exception(py, "LocalError", (what, &error.to_string(), to_do))
    })?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// Waits without the interpreter's lock. Ctrl-C drops the future.
fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, Error>> + Send) -> PyResult<T> {
    let runtime = runtime(py)?;
    let mut future = pin!(future);
    loop {
        let ended =
            py.detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, future.as_mut()).await }));
        match ended {
            Ok(result) => return result.map_err(|error| raised(py, &error)),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Returns the exception of an error: the class in `mettle.errors` for its kind.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        Kind::Usage => "UsageError",
        Kind::Chain => "ChainError",
        Kind::NotFound => "NotFoundError",
        Kind::NotYet => "NotYetError",
        Kind::Store => "StoreError",
        Kind::Verification => "VerificationError",
        Kind::Local => "LocalError",
    };
    exception(py, class, (&error.to_string(), &error.why(), &error.to_do()))
}

/// Creates an exception of this class in `mettle.errors`: the failure, its cause, and the remedy.
fn exception(py: Python<'_>, class: &str, told: (&str, &str, &str)) -> PyErr {
    let made = py
        .import("mettle.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1(told));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Creates the exception for an argument that no call accepts.
fn unusable(py: Python<'_>, what: &str, why: &str) -> PyErr {
    exception(py, "UsageError", (what, why, "correct the call"))
}

fn json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| {
        let (what, to_do) = ("the answer cannot be passed on", "report it: this is an error of the library");
        exception(py, "LocalError", (what, &error.to_string(), to_do))
    })
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    py: Python<'_>,
    what: &str,
    text: &str,
) -> PyResult<T> {
    text.parse::<T>()
        .map_err(|error| unusable(py, &format!("{what} {text:?} cannot be used"), &error.to_string()))
}

fn source(
    py: Python<'_>,
    url: &str,
    run: u32,
    genesis: Option<&str>,
    allow_plain_ws: bool,
    patience: f64,
) -> PyResult<Source> {
    if !(0.0..=PATIENCE_SECONDS_MAX).contains(&patience) {
        return Err(unusable(
            py,
            &format!("a patience of {patience} cannot be used"),
            "it is from 0 to 86400 seconds",
        ));
    }
    let genesis = genesis.map(|text| parsed(py, "the genesis hash", text)).transpose()?;
    let patience = Duration::from_secs_f64(patience);
    Ok(Source { run: RunId(run), genesis, allow_plain_ws, patience, ..Source::new(url) })
}

/// Returns the ids of the chain's runs.
#[pyfunction]
#[pyo3(signature = (url, genesis, allow_plain_ws, patience))]
fn runs(
    py: Python<'_>,
    url: &str,
    genesis: Option<&str>,
    allow_plain_ws: bool,
    patience: f64,
) -> PyResult<Vec<u32>> {
    let source = source(py, url, 0, genesis, allow_plain_ws, patience)?;
    let runs = wait(py, mettle_sdk::runs(&source))?;
    Ok(runs.into_iter().map(|run| run.0).collect())
}

/// A seat, and its owner's address.
#[derive(Serialize)]
struct Seat<'a> {
    coldkey: String,
    status: &'a SeatStatus,
}

/// A validator's receipt: its digest, bytes and content, or an exception.
type Receipt<'py> = (u16, Option<(String, Bound<'py, PyBytes>, String)>, Option<Bound<'py, PyAny>>);

/// A run.
#[pyclass(frozen)]
struct Native {
    run: Run,
    /// The replayer of the last window, and the directory of its data.
    replayer: Mutex<Option<(PathBuf, Replayer)>>,
}

#[pymethods]
impl Native {
    #[new]
    #[pyo3(signature = (url, run, genesis, allow_plain_ws, patience))]
    fn new(
        py: Python<'_>,
        url: &str,
        run: u32,
        genesis: Option<&str>,
        allow_plain_ws: bool,
        patience: f64,
    ) -> PyResult<Native> {
        let source = source(py, url, run, genesis, allow_plain_ws, patience)?;
        let run = wait(py, Run::open(&source))?;
        Ok(Native { run, replayer: Mutex::default() })
    }

    /// Returns the hash of the chain's block 0 in hex.
    #[getter]
    fn genesis(&self) -> String {
        self.run.genesis().to_string()
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        json(py, &wait(py, self.run.status())?)
    }

    fn seats(&self, py: Python<'_>) -> PyResult<String> {
        let seats = wait(py, self.run.seats())?;
        let seats = seats.iter().map(|status| Seat { coldkey: address(&status.seat.coldkey), status });
        json(py, &seats.collect::<Vec<_>>())
    }

    fn windows(&self, py: Python<'_>, last: u32) -> PyResult<String> {
        json(py, &wait(py, self.run.windows(last))?)
    }

    fn window(&self, py: Python<'_>, window: u32) -> PyResult<String> {
        json(py, &wait(py, self.run.window(Window(window)))?)
    }

    fn pay(&self, py: Python<'_>, uid: u16) -> PyResult<String> {
        json(py, &wait(py, self.run.pay(Uid(uid)))?)
    }

    /// Writes the checkpoint that opens `window`, the latest one, or the newest model.
    #[pyo3(signature = (to, newest, window))]
    fn save(&self, py: Python<'_>, to: PathBuf, newest: bool, window: Option<u32>) -> PyResult<String> {
        let which = match (newest, window) {
            (true, _) => Which::Newest,
            (false, None) => Which::Latest,
            (false, Some(window)) => Which::Opening(Window(window)),
        };
        json(py, &wait(py, self.run.save(which, &to))?)
    }

    /// Returns the receipt of each validator.
    fn receipts<'py>(&self, py: Python<'py>, window: u32) -> PyResult<Vec<Receipt<'py>>> {
        let receipts = wait(py, self.run.receipts(Window(window)))?;
        let one = |(uid, receipt): (Uid, Result<mettle_sdk::SealedReceipt, Error>)| match receipt {
            Ok(sealed) => {
                let bytes = PyBytes::new(py, &sealed.signed.bytes);
                Ok((uid.0, Some((sealed.signed.digest.to_string(), bytes, json(py, &sealed.receipt)?)), None))
            }
            Err(error) => {
                Ok((uid.0, None, Some(raised(py, &error).into_value(py).into_bound(py).into_any())))
            }
        };
        receipts.into_iter().map(one).collect()
    }

    /// Checks that a receipt's bytes are signed for this chain and have this digest. Returns the digest and the
    /// content.
    #[pyo3(signature = (data, digest))]
    fn verify_receipt(
        &self,
        py: Python<'_>,
        data: &[u8],
        digest: Option<&str>,
    ) -> PyResult<(String, String)> {
        let digest = digest.map(|text| parsed(py, "the digest", text)).transpose()?;
        let read = verify_receipt(data, digest.as_ref(), self.run.params(), &self.run.genesis());
        let receipt = read.map_err(|error| raised(py, &error))?;
        Ok((Digest::of(data).to_string(), json(py, &receipt)?))
    }

    /// Judges a window again, of one validator or of all.
    #[pyo3(signature = (window, uid, directory, tolerance))]
    fn replay(
        &self,
        py: Python<'_>,
        window: u32,
        uid: Option<u16>,
        directory: PathBuf,
        tolerance: Option<f64>,
    ) -> PyResult<String> {
        let tolerance = tolerance.unwrap_or(mettle_sdk::replay::TOLERANCE);
        // With NaN, no loss would differ.
        if !(0.0..f64::INFINITY).contains(&tolerance) {
            let what = format!("a tolerance of {tolerance} cannot be used");
            return Err(unusable(py, &what, "it is a number of nats per token, from 0 on"));
        }
        let kept = self.replayer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (directory, mut replayer) = match kept.filter(|(kept, _)| *kept == directory) {
            Some(kept) => kept,
            None => {
                let replayer = wait(py, Replayer::open(&self.run, &directory))?;
                (directory, replayer)
            }
        };
        replayer.tolerance = tolerance;
        let replays = wait(py, replayer.window(Window(window), uid.map(Uid)));
        *self.replayer.lock().unwrap_or_else(PoisonError::into_inner) = Some((directory, replayer));
        let replays: Vec<_> = replays?.iter().map(mettle_sdk::Replay::json).collect();
        json(py, &replays)
    }
}
