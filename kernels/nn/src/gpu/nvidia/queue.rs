//! A queue for work outside of CubeCL on its buffers.
//!
//! **Order.** A task is queued after CubeCL's own, on the thread that calls the driver. CubeCL does not expose its
//! stream, so a task has a stream of its own, between two events of the whole context. It waits for all work queued
//! before, and all work queued later waits for it.

use crate::gpu::array::{Array, GpuError, Result};
use cubecl::{
    client::Client,
    device_handle::DeviceHandle,
    server::{Handle, ServerStorage},
};
use cubecl_environment::stream::StreamId;
use cubecl_runtime::runtime::Runtime;
use cudarc::driver::{result as cuda, sys};
use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

pub(crate) type Server = <cubecl::cuda::CudaRuntime as Runtime>::Server;

/// Queues tasks on the thread that calls the driver.
pub(super) struct Queue {
    server: DeviceHandle<Server>,
    stream: Arc<Stream>,
}

/// A stream separate from CubeCL's.
struct Stream {
    context: sys::CUcontext,
    stream: sys::CUstream,
    before: sys::CUevent,
    after: sys::CUevent,
    /// Error of the first task that failed.
    failure: Mutex<Option<GpuError>>,
}

// SAFETY: the driver allows its handles on any thread; the events are used on CubeCL's thread only.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Queue {
    /// Opens a queue. The context, of the client's device, must be current.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn open(client: &Client, context: sys::CUcontext) -> Result<Queue> {
        let event = || cuda::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed);
        let stream = Stream {
            context,
            stream: cuda::stream::create(cuda::stream::StreamKind::NonBlocking).map_err(failed)?,
            before: event()?,
            after: event()?,
            failure: Mutex::default(),
        };
        Ok(Queue { server: DeviceHandle::new(client.service_id().device), stream: Arc::new(stream) })
    }

    /// Makes the queue's context current on this thread.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn enter(&self) -> Result {
        enter(self.stream.context)
    }

    /// Returns the error of the first task that failed since the last call.
    pub fn check(&self) -> Result {
        let failure = self.stream.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Queues `task`, which receives the addresses of these arrays and a stream for its work.
    pub fn submit<const N: usize>(
        &self,
        arrays: [&Array; N],
        task: impl FnOnce([u64; N], sys::CUstream) -> Result + Send + 'static,
    ) {
        let (own, handles) = (Arc::clone(&self.stream), arrays.map(|array| array.handle().clone()));
        let from = StreamId::current();
        self.server.submit(move |server| {
            // Caught here, because CubeCL would only log a panic.
            let run = catch_unwind(AssertUnwindSafe(|| own.run(server, &handles, from, task)));
            if let Err(error) = run.unwrap_or_else(|_| Err(failed("a task panicked"))) {
                let mut failure = own.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
        });
    }
}

impl Stream {
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
pub(crate) fn enter(context: sys::CUcontext) -> Result {
    // SAFETY: the context lives as long as the process.
    unsafe { cuda::ctx::set_current(context) }.map_err(failed)
}

pub(crate) fn failed(error: impl Display) -> GpuError {
    GpuError::Device(error.to_string())
}
