//! NVIDIA's libraries beside CubeCL's kernels, on the same buffers: products by cuBLASLt, and attention on tensor
//! cores in CUDA C++, which NVRTC compiles. Both are optional and loaded at run time from CUDA 12 or 13.
//!
//! **Order.** A task is queued after CubeCL's own, on the thread that calls the driver. CubeCL does not expose its
//! stream, so a task has a stream of its own, between two events of the whole context. It waits for all work queued
//! before, and all work queued later waits for it.
//!
//! **Bits.** cuBLASLt's heuristic chooses an algorithm by shape; one version on one GPU chooses and sums the same way
//! every time (cuBLAS documentation, "Results reproducibility"). Attention sums in a fixed order.

mod attention;
pub(crate) mod peers;
mod products;

use super::{Array, GpuError, Result};
use cubecl::{
    client::Client,
    device_handle::DeviceHandle,
    server::{Handle, ServerStorage},
};
use cubecl_environment::stream::StreamId;
use cubecl_runtime::runtime::Runtime;
use cudarc::driver::{result as cuda, sys};
use std::{
    collections::HashMap,
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

type Server = <cubecl::cuda::CudaRuntime as Runtime>::Server;

/// First driver version with events of a whole context, of CUDA 12.5.
const DRIVER_MIN: i32 = 12_050;

/// NVIDIA's installed libraries, opened on one GPU, once per process.
pub(crate) struct Nvidia {
    server: DeviceHandle<Server>,
    queue: Arc<Queue>,
    products: Option<products::Library>,
    attention: Option<attention::Compiler>,
}

/// A stream separate from CubeCL's.
struct Queue {
    context: sys::CUcontext,
    stream: sys::CUstream,
    before: sys::CUevent,
    after: sys::CUevent,
    /// Error of the first task that failed.
    failure: Mutex<Option<GpuError>>,
}

// SAFETY: the driver allows its handles on any thread; the events are used on CubeCL's thread only.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Nvidia {
    /// Opens the installed libraries on this GPU, or returns the opened ones. Logs the cost of a missing library.
    ///
    /// # Errors
    /// If the driver fails, or is too old.
    pub fn of(client: &Client, index: u16) -> Result<Arc<Nvidia>> {
        static OPENED: LazyLock<Mutex<HashMap<u16, Arc<Nvidia>>>> = LazyLock::new(Mutex::default);
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvidia) = opened.get(&index) {
            return Ok(Arc::clone(nvidia));
        }
        let nvidia = Arc::new(Nvidia::open(client, index)?);
        opened.insert(index, Arc::clone(&nvidia));
        Ok(nvidia)
    }

    fn open(client: &Client, index: u16) -> Result<Nvidia> {
        cuda::init().map_err(failed)?;
        let mut version = 0;
        // SAFETY: the call writes one number.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed)?;
        if version < DRIVER_MIN {
            return Err(failed("NVIDIA's driver is older than CUDA 12.5: install a newer one"));
        }
        let device = cuda::device::get(index.into()).map_err(failed)?;
        // SAFETY: the device exists. The context is CubeCL's too, which keeps it as long as the process runs.
        let context = unsafe { cuda::primary_ctx::retain(device) }.map_err(failed)?;
        let event = || cuda::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed);
        enter(context)?;
        let queue = Queue {
            context,
            stream: cuda::stream::create(cuda::stream::StreamKind::NonBlocking).map_err(failed)?,
            before: event()?,
            after: event()?,
            failure: Mutex::default(),
        };
        let (products, attention) = (products::Library::open()?, attention::Compiler::open(device)?);
        if products.is_none() {
            tracing::warn!(
                "libcublasLt.so.13 cannot be loaded: products take ten times as long. Install it (pip install nvidia-cublas) \
                 and name its directory in LD_LIBRARY_PATH"
            );
        }
        Ok(Nvidia {
            server: DeviceHandle::new(client.service_id().device),
            queue: Arc::new(queue),
            products,
            attention,
        })
    }

    /// Returns whether all libraries are installed.
    pub fn is_complete(&self) -> bool {
        self.products.is_some() && self.attention.is_some()
    }

    /// Returns the error of the first task that failed since the last call.
    pub fn check(&self) -> Result {
        let failure = self.queue.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Queues `task`, which receives the addresses of these arrays and a stream for its work.
    fn submit<const N: usize>(
        &self,
        arrays: [&Array; N],
        task: impl FnOnce([u64; N], sys::CUstream) -> Result + Send + 'static,
    ) {
        let (queue, handles) = (Arc::clone(&self.queue), arrays.map(|array| array.handle().clone()));
        let stream = StreamId::current();
        self.server.submit(move |server| {
            // Caught here, because CubeCL would only log a panic.
            let run = catch_unwind(AssertUnwindSafe(|| queue.run(server, &handles, stream, task)));
            if let Err(error) = run.unwrap_or_else(|_| Err(failed("a task panicked"))) {
                let mut failure = queue.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
        });
    }
}

impl Queue {
    fn run<const N: usize>(
        &self,
        server: &mut Server,
        handles: &[Handle; N],
        from: StreamId,
        task: impl FnOnce([u64; N], sys::CUstream) -> Result,
    ) -> Result {
        let mut addresses = [0; N];
        for (address, handle) in addresses.iter_mut().zip(handles) {
            *address = server.get_resource(handle.clone().binding(), from)?.resource().ptr;
        }
        enter(self.context)?;
        // SAFETY: context, stream and events are alive.
        unsafe {
            sys::cuCtxRecordEvent(self.context, self.before).result().map_err(failed)?;
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            cuda::stream::wait_event(self.stream, self.before, flags).map_err(failed)?;
            let done = task(addresses, self.stream);
            cuda::event::record(self.after, self.stream).map_err(failed)?;
            sys::cuCtxWaitEvent(self.context, self.after).result().map_err(failed)?;
            done
        }
    }
}

/// Makes the context current on this thread.
fn enter(context: sys::CUcontext) -> Result {
    // SAFETY: the context lives as long as the process.
    unsafe { cuda::ctx::set_current(context) }.map_err(failed)
}

fn failed(error: impl Display) -> GpuError {
    GpuError::Device(error.to_string())
}
