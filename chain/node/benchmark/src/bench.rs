//! Runs benchmarks in the Wasm runtime.

use codec::{Decode, Encode};
use frame_benchmarking::{BenchmarkBatch, BenchmarkList, BenchmarkParameter, BenchmarkResult};
use sc_client_db::bench::BenchmarkingState;
use sc_executor::WasmExecutor;
use sp_core::traits::{CallContext, RuntimeCode, WrappedRuntimeCode};
use sp_externalities::Extensions;
use sp_io::hashing::blake2_256;
use sp_runtime::traits::BlakeTwo256;
use sp_state_machine::StateMachine;
use sp_wasm_interface::ExtendedHostFunctions;

/// Host functions of a node and of benchmarks, with our own clock.
type HostFunctions = ExtendedHostFunctions<
    (sp_io::SubstrateHostFunctions, frame_benchmarking::benchmarking::HostFunctions),
    clock::benchmarking::HostFunctions,
>;
type State = BenchmarkingState<BlakeTwo256>;
/// Size of each component in one measurement.
type Sizes = Vec<(BenchmarkParameter, u32)>;

/// Returns the processor time of this thread, in nanoseconds.
fn thread_cpu_time() -> u128 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to the timespec that the pointer refers to.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "Linux has this clock since 2.6.12");
    time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
}

mod clock {
    #![allow(dead_code, reason = "called by the Wasm runtime")]

    use sp_runtime_interface::{pass_by::AllocateAndReturnPointer, runtime_interface};

    /// Replaces the host function of this name, which reads the wall clock, by processor time, so that other programs
    /// do not disturb the measurement.
    #[runtime_interface]
    pub trait Benchmarking {
        /// Returns nanoseconds, little-endian.
        fn current_time() -> AllocateAndReturnPointer<[u8; 16], 16> {
            crate::bench::thread_cpu_time().to_le_bytes()
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot create a benchmarking state: {0}")]
    State(String),
    #[error("cannot call {function} of the Wasm runtime: was it built with `runtime-benchmarks`? {reason}")]
    Call { function: &'static str, reason: String },
    #[error("cannot decode the result of {function}: {source}")]
    Answer { function: &'static str, source: codec::Error },
    #[error("{benchmark} with {sizes:?} fails: {reason}")]
    Benchmark { benchmark: String, sizes: Sizes, reason: String },
}

/// One benchmark of a pallet.
#[derive(Debug)]
pub struct Benchmark {
    /// Name of the pallet, without `pallet_`.
    pub pallet: String,
    /// Name of the pallet within the runtime.
    instance: String,
    benchmark: String,
    /// Each size with its range.
    components: Vec<(BenchmarkParameter, u32, u32)>,
}

impl Benchmark {
    pub fn name(&self) -> String {
        format!("{}::{}", self.pallet, self.benchmark)
    }
}

/// Measurements of one benchmark.
#[derive(Debug)]
pub struct Results {
    pub components: Vec<(BenchmarkParameter, u32, u32)>,
    pub times: Vec<BenchmarkResult>,
    /// One result per choice of sizes.
    pub storage: Vec<BenchmarkResult>,
}

/// Runs the benchmarks of one Wasm runtime.
pub struct Bench {
    runtime: Vec<u8>,
    executor: WasmExecutor<HostFunctions>,
    /// State that counts storage accesses, which takes time.
    counting: State,
    timing: State,
}

impl Bench {
    pub fn new(runtime: Vec<u8>) -> Result<Bench, Failure> {
        let state = |counts| State::new(Default::default(), None, false, counts).map_err(Failure::State);
        Ok(Bench {
            runtime,
            executor: WasmExecutor::builder().build(),
            counting: state(true)?,
            timing: state(false)?,
        })
    }

    /// Returns the BLAKE2b-256 of the Wasm runtime.
    pub fn hash(&self) -> [u8; 32] {
        blake2_256(&self.runtime)
    }

    fn call<R: Decode>(&self, state: &State, function: &'static str, data: &[u8]) -> Result<R, Failure> {
        let fetcher = WrappedRuntimeCode(self.runtime.as_slice().into());
        let code = RuntimeCode { code_fetcher: &fetcher, heap_pages: None, hash: self.hash().to_vec() };
        let mut changes = Default::default();
        let mut extensions = Extensions::default();
        let answer = StateMachine::new(
            state,
            &mut changes,
            &self.executor,
            function,
            data,
            &mut extensions,
            &code,
            CallContext::Offchain,
        )
        .execute()
        .map_err(|error| Failure::Call { function, reason: error.to_string() })?;
        R::decode(&mut answer.as_slice()).map_err(|source| Failure::Answer { function, source })
    }

    /// Lists the benchmarks of our pallets.
    ///
    /// # Errors
    /// Fails if the call into the runtime fails, or its answer cannot be decoded.
    pub fn list(&self) -> Result<Vec<Benchmark>, Failure> {
        // The rest of the answer, the pallets' storage items, is not used.
        let pallets: Vec<BenchmarkList> =
            self.call(&self.timing, "Benchmark_benchmark_metadata", &false.encode())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut benchmarks = Vec::new();
        for pallet in pallets {
            let (name, instance) = (text(&pallet.pallet), text(&pallet.instance));
            for benchmark in pallet.benchmarks {
                benchmarks.push(Benchmark {
                    pallet: name.strip_prefix("pallet_").unwrap_or(&name).to_owned(),
                    instance: instance.clone(),
                    benchmark: text(&benchmark.name),
                    components: benchmark.components,
                });
            }
        }
        Ok(benchmarks)
    }

    /// Measures a benchmark `repeat` times for each choice of sizes.
    ///
    /// # Errors
    /// Fails if the call into the runtime or the benchmark fails, or the answer cannot be decoded.
    pub fn measure(&self, benchmark: &Benchmark, steps: u32, repeat: u32) -> Result<Results, Failure> {
        let mut results =
            Results { components: benchmark.components.clone(), times: Vec::new(), storage: Vec::new() };
        for (index, sizes) in choices(&benchmark.components, steps).into_iter().enumerate() {
            // Verifying takes time.
            if index == 0 {
                self.dispatch(&self.timing, benchmark, &sizes, true, 1)?;
            }
            results.storage.extend(self.dispatch(&self.counting, benchmark, &sizes, false, 1)?);
            results.times.extend(self.dispatch(&self.timing, benchmark, &sizes, false, repeat)?);
        }
        Ok(results)
    }

    fn dispatch(
        &self,
        state: &State,
        benchmark: &Benchmark,
        sizes: &Sizes,
        verify: bool,
        repeat: u32,
    ) -> Result<Vec<BenchmarkResult>, Failure> {
        let pallet = format!("pallet_{}", benchmark.pallet);
        let request = (&pallet, &benchmark.instance, &benchmark.benchmark, sizes, verify, repeat).encode();
        let answer: Result<Vec<BenchmarkBatch>, String> =
            self.call(state, "Benchmark_dispatch_benchmark", &request)?;
        let failed =
            |reason| Failure::Benchmark { benchmark: benchmark.name(), sizes: sizes.clone(), reason };
        let batches = answer.map_err(failed)?;
        Ok(batches.into_iter().flat_map(|batch| batch.results).collect())
    }
}

/// Returns the measured sizes: each component in steps from its smallest to its largest value, with the others at
/// their largest, smallest and middle values. The smallest is needed for costs that grow with a product.
fn choices(components: &[(BenchmarkParameter, u32, u32)], steps: u32) -> Vec<Sizes> {
    if components.is_empty() {
        return vec![Vec::new()];
    }
    let mut choices: Vec<Sizes> = Vec::new();
    for (index, (_, low, high)) in components.iter().enumerate() {
        for step in 0..steps {
            let value = low + (u64::from(high - low) * u64::from(step) / u64::from(steps - 1)) as u32;
            for half in [2, 0, 1] {
                let sizes: Sizes = components
                    .iter()
                    .enumerate()
                    .map(|(other, (name, low, high))| {
                        (*name, if other == index { value } else { low + (high - low) * half / 2 })
                    })
                    .collect();
                if !choices.contains(&sizes) {
                    choices.push(sizes);
                }
            }
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use BenchmarkParameter::{s, v};

    fn values(components: &[(BenchmarkParameter, u32, u32)], steps: u32) -> Vec<Vec<u32>> {
        let choices = choices(components, steps);
        choices.iter().map(|sizes| sizes.iter().map(|(_, value)| *value).collect()).collect()
    }

    #[test]
    fn one_size_is_measured_from_smallest_to_largest_without_repetition() {
        assert_eq!(values(&[(s, 1, 10)], 4), [[1], [4], [7], [10]]);
        assert_eq!(values(&[(s, 0, 2)], 20), [[0], [1], [2]]);
        assert_eq!(values(&[], 20), [[0; 0]]);
    }

    #[test]
    fn two_sizes_are_measured_at_all_corners_and_between() {
        let values = values(&[(v, 1, 3), (s, 0, 100)], 3);
        for corner in [[1, 0], [1, 100], [3, 0], [3, 100], [2, 50]] {
            assert!(values.contains(&corner.to_vec()), "{corner:?}");
        }
        assert_eq!(values.len(), 9);
    }
}
