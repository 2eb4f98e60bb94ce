//! NCCL exchanges with the GPUs of other ranks on CubeCL's buffers.
//!
//! **Order.** An exchange starts after all of CubeCL's work, and ends before anything else is queued, so it needs no
//! events. [`Gpu::finish`] waits for all CubeCL streams, including those of products and attention (`Queue::submit`);
//! a wait for one stream would not. The exchange does not overlap with computation, like the one through the machine's
//! memory.

use super::exchange::{Part, Transport};
use crate::{
    DeviceName, ModelError,
    collective::error::Watch,
    gpu::{
        Gpu, GpuError, Result,
        nvidia::queue::{Server, enter, failed},
    },
    nccl::{Communicator, Library, Membership, Message, NcclError, STOP_WITHIN},
};
use cudarc::driver::{result as cuda, sys};
use std::time::{Duration, Instant};

pub(super) struct Peers {
    communicator: Communicator,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: the driver allows its handles on any thread.
unsafe impl Send for Peers {}

impl Peers {
    /// Connects a GPU with those of the other ranks.
    ///
    /// # Errors
    /// If the GPU is not an NVIDIA GPU, NCCL is missing or fails, or a rank is lost.
    pub fn connect(gpu: &Gpu, membership: &Membership, watch: &mut Watch<'_>) -> Result<Peers, ModelError> {
        let DeviceName::Cuda(index) = gpu.device().name else {
            return Err(ModelError::Ranks { why: "NCCL is for GPUs of NVIDIA, through CUDA".into() });
        };
        let library = Library::open()?;
        let opened = || -> Result<_> {
            let device = cuda::device::get(index.into()).map_err(failed)?;
            // SAFETY: the device exists. The context is CubeCL's too, which keeps it as long as the process runs.
            let context = unsafe { cuda::primary_ctx::retain(device) }.map_err(failed)?;
            enter(context).map(|()| context)
        };
        let context = opened().map_err(|error| error.on(gpu.device()))?;
        let communicator = Communicator::connect(library, membership, watch)?;
        let stream = cuda::stream::create(cuda::stream::StreamKind::NonBlocking).map_err(failed);
        let stream = stream.map_err(|error| error.on(gpu.device()))?;
        Ok(Peers { communicator, context, stream })
    }

    /// Aborts the running exchange and waits until the GPU has stopped. Returns whether it has.
    fn abort(&mut self) -> bool {
        let until = Instant::now() + STOP_WITHIN;
        let mut has_stopped = self.communicator.abort(STOP_WITHIN);
        while has_stopped && matches!(is_idle(self.stream), Ok(false)) {
            has_stopped = Instant::now() < until;
            std::thread::sleep(Duration::from_millis(1));
        }
        if !has_stopped {
            tracing::error!("the GPU did not stop an exchange that was aborted: restart the miner");
        }
        has_stopped
    }
}

/// Returns whether the stream, which must be alive, has no pending work.
fn is_idle(stream: sys::CUstream) -> Result<bool, NcclError> {
    // SAFETY: the caller guarantees that the stream is alive.
    match unsafe { sys::cuStreamQuery(stream) } {
        sys::CUresult::CUDA_SUCCESS => Ok(true),
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        error => Err(NcclError::Failed { doing: "exchanging between GPUs", why: format!("{error:?}") }),
    }
}

impl Transport for Peers {
    fn exchange(
        &mut self,
        gpu: &Gpu,
        sends: &[Part<'_>],
        receives: &[Part<'_>],
        watch: &mut Watch<'_>,
    ) -> Result<(), ModelError> {
        let fail = |error: GpuError| error.on(gpu.device());
        gpu.finish().map_err(fail)?;
        // Handles that keep the buffers alive.
        let mut held = Vec::with_capacity(sends.len() + receives.len());
        let mut message = |part: &Part<'_>| -> Result<Message> {
            let resource = gpu.client.get_resource::<Server>(part.array.handle().clone())?;
            let address = resource.resource().ptr + 4 * part.range.start as u64;
            held.push(resource);
            Ok(Message { peer: part.peer, address, values: part.range.len() })
        };
        let sends = sends.iter().map(&mut message).collect::<Result<Vec<_>>>().map_err(fail)?;
        let receives = receives.iter().map(&mut message).collect::<Result<Vec<_>>>().map_err(fail)?;
        enter(self.context).map_err(fail)?;
        let Peers { communicator, stream, .. } = self;
        // SAFETY: the parts lie within their arrays, which are held until the stream is idle, and nothing else is
        // queued meanwhile. The context is that of the stream.
        let queued = unsafe { communicator.exchange(&sends, &receives, stream.cast(), watch) };
        let done = queued.and_then(|()| {
            let stream = *stream;
            communicator.wait(watch, || is_idle(stream))
        });
        if done.is_err() && !self.abort() {
            // A GPU that still runs may write to these buffers.
            std::mem::forget(held);
        }
        Ok(done?)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if enter(self.context).is_ok() && self.abort() {
            // SAFETY: the stream is not used afterwards.
            let _ = unsafe { cuda::stream::destroy(self.stream) };
        }
    }
}
