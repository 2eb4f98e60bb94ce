//! Simulated networks under random faults, and checks of the rules that must hold under all faults.
//!
//! One seed draws everything: which seats cheat, each fault and its time ([`plan`]). In the first windows faults occur
//! at any time. The last [`Options::calm_windows`] windows have no fault, and the network must recover in them.
//! [`check`] reads every journal entry, every call and every block, and describes each broken rule.
//!
//! The events of a network are hashed in order, so two runs of one seed are compared by one digest. [`shrink`] leaves
//! out the faults without which a rule is still broken.

pub mod check;
pub mod plan;

pub use check::Violation;
pub use plan::{FaultCounts, Options, Plan};

use crate::sim::{
    experiment::on_one_thread,
    network::{Network, SimError},
    world::World,
};
use check::Checks;
use rustix::process::Signal;
use serde::Serialize;
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::signal::unix::{SignalKind, signal};

/// Maximum number of windows without faults at the end: three epochs, the first of which is paid in the third.
pub const CALM_WINDOWS_MAX: u32 = 6;

/// Result of a network.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub options: Options,
    /// Descriptions of the faults that occurred.
    pub faults: Vec<String>,
    pub fault_counts: FaultCounts,
    pub violations: Vec<Violation>,
    /// Digest of all events, in order.
    pub trace: String,
    pub events: u64,
    pub merged_windows: u32,
    /// Number of merged windows before the calm, which has no faults.
    pub merged_under_faults: u32,
    /// Number of windows in which two thirds of the stake were undisturbed. Only in these is a missing contribution a
    /// violation.
    pub checked_windows: u32,
    /// Number of honest contributions that two thirds attested as valid.
    pub valid_contributions: u64,
    pub seconds: f64,
}

/// Lock on the process, because full disks are limits of the whole process.
static ONE_NETWORK: Mutex<()> = Mutex::new(());

/// Runs the network of `options`; one at a time in a process.
///
/// # Errors
/// If the network cannot be made. Failures in it are violations.
pub fn run(world: &World, options: &Options) -> Result<Report, SimError> {
    let _one = ONE_NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    survive_full_disks()?;
    let started = Instant::now();
    let mut world = world.clone();
    options.adapt(&mut world);
    let plan = Arc::new(Plan::draw(options, &world.params.schedule));
    let checks = Arc::new(Mutex::new(Checks::new(options, plan.clone(), &world.params)));
    let watch = checks.clone();
    let mut cast = plan.cast(options);
    cast.watch = Some(Arc::new(move |seen| {
        watch.lock().unwrap_or_else(PoisonError::into_inner).see(seen);
    }));
    let done = on_one_thread(|| Network::new(&world, cast).and_then(|network| network.run(options.windows)));
    let mut checks = checks.lock().unwrap_or_else(PoisonError::into_inner);
    match done {
        Ok(_) => checks.finish(),
        Err(
            error @ (SimError::Node { .. }
            | SimError::Panicked(_)
            | SimError::Diverged { .. }
            | SimError::NotFinalised { .. }),
        ) => checks.stopped(&error),
        Err(error) => return Err(error),
    }
    Ok(Report {
        options: options.clone(),
        faults: plan.faults.iter().map(ToString::to_string).collect(),
        fault_counts: plan.counts(options),
        violations: checks.violations.clone(),
        trace: checks.trace(),
        events: checks.events,
        merged_windows: checks.merged_windows,
        merged_under_faults: checks.merged_under_faults,
        checked_windows: checks.checked_windows,
        valid_contributions: checks.valid_contributions,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Makes a write beyond a limit on a file's length fail, as on a full disk, instead of ending the process.
fn survive_full_disks() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    // The handler remains for the lifetime of the process.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Maximum number of networks that [`shrink`] runs, and the time after which it starts no other.
const SHRINK_RUNS_MAX: u32 = 60;
const SHRINK_TIME: Duration = Duration::from_secs(20 * 60);

/// Leaves out faults as long as the first check that `report` broke is still broken, within its limits: first half of
/// them at a time, at last each alone. Returns the network with the fewest faults.
///
/// # Errors
/// If a network cannot be made.
pub fn shrink(world: &World, report: Report) -> Result<Report, SimError> {
    let Some(check) = report.violations.first().map(|violation| violation.check) else { return Ok(report) };
    let mut world_of_plan = world.clone();
    report.options.adapt(&mut world_of_plan);
    let faults = Plan::draw(&report.options, &world_of_plan.params.schedule).faults;
    let mut keep: Vec<usize> = faults.iter().map(|fault| fault.number).collect();
    let (mut smallest, mut runs, mut piece) = (report, 0, keep.len().div_ceil(2));
    let began = Instant::now();
    while 0 < piece {
        let mut from = 0;
        while from < keep.len() && runs < SHRINK_RUNS_MAX && began.elapsed() < SHRINK_TIME {
            let until = (from + piece).min(keep.len());
            let fewer: BTreeSet<usize> = keep[..from].iter().chain(&keep[until..]).copied().collect();
            runs += 1;
            let found = run(world, &Options { keep: Some(fewer.clone()), ..smallest.options.clone() })?;
            if found.violations.iter().any(|violation| violation.check == check) {
                (keep, smallest) = (fewer.into_iter().collect(), found);
            } else {
                from = until;
            }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
    Ok(smallest)
}
