//! NVIDIA's libraries beside CubeCL's kernels, on the same buffers: products by cuBLASLt, and attention on tensor
//! cores in CUDA C++, which NVRTC compiles. Both are optional and loaded at run time from CUDA 12 or 13.
//!
//! **Bits.** cuBLASLt's heuristic chooses an algorithm by shape; one version on one GPU chooses and sums the same way
//! every time (cuBLAS documentation, "Results reproducibility"). Attention sums in a fixed order.

mod attention;
mod products;
pub(crate) mod queue;

use super::{
    array::{Array, Result},
    view::Batch,
};
use crate::layers::attention::Shape;
use attention::Compiler;
use cubecl::client::Client;
use cudarc::driver::{result as cuda, sys};
use products::Library;
use queue::{Queue, enter, failed};
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, Once, PoisonError},
};

/// First driver version with events of a whole context, of CUDA 12.5.
const DRIVER_MIN: i32 = 12_050;

/// NVIDIA's installed libraries, opened on one GPU, once per process.
pub(crate) struct Nvidia {
    queue: Queue,
    products: Option<Library>,
    attention: Option<Compiler>,
}

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
        enter(context)?;
        let queue = Queue::open(client, context)?;
        let (products, attention) = (Library::open()?, Compiler::open(device)?);
        if products.is_none() {
            tracing::warn!(
                "libcublasLt.so.13 cannot be loaded: products take ten times as long. Install it (pip install nvidia-cublas) \
                 and name its directory in LD_LIBRARY_PATH"
            );
        }
        Ok(Nvidia { queue, products, attention })
    }

    /// Returns whether all libraries are installed.
    pub fn is_complete(&self) -> bool {
        self.products.is_some() && self.attention.is_some()
    }

    /// Returns the error of the first task that failed since the last call.
    pub fn check(&self) -> Result {
        self.queue.check()
    }

    /// Computes products by [`Library::products`]. Returns whether the library is installed and supports them.
    ///
    /// # Errors
    /// If the library fails.
    pub fn products(
        &self,
        client: &Client,
        added: bool,
        count: usize,
        out: &Array,
        operands: [Batch<'_>; 2],
    ) -> Result<bool> {
        let Some(library) = &self.products else { return Ok(false) };
        library.products(&self.queue, client, added, count, out, operands)
    }

    /// Computes `Gpu::attention` of checked arrays. Returns whether there are kernels for it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attention(
        &self,
        client: &Client,
        shape: &Shape,
        rows: &Array,
        out: &Array,
        log_sums: &Array,
    ) -> Result<bool> {
        let Some(compiler) = self.compiler(shape, rows) else { return Ok(false) };
        compiler.attention(&self.queue, client, shape, rows, out, log_sums)
    }

    /// Computes `Gpu::attention_backward` of checked arrays. Returns whether there are kernels for it.
    ///
    /// # Errors
    /// If the device fails or has too little memory.
    pub fn attention_backward(
        &self,
        client: &Client,
        shape: &Shape,
        arrays: [&Array; 4],
        grad_rows: &Array,
    ) -> Result<bool> {
        let Some(compiler) = self.compiler(shape, arrays[0]) else { return Ok(false) };
        compiler.attention_backward(&self.queue, client, shape, arrays, grad_rows)
    }

    /// Returns the compiler for attention of such rows, if they are supported. Logs the cost of a missing compiler once.
    fn compiler(&self, shape: &Shape, rows: &Array) -> Option<&Compiler> {
        if !attention::supports(shape, rows) {
            return None;
        }
        if self.attention.is_none() {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "libnvrtc.so.13 cannot be loaded: attention takes several times as long. Install it (pip install \
                     nvidia-cuda-nvrtc) and name its directory in LD_LIBRARY_PATH"
                );
            });
        }
        self.attention.as_ref()
    }
}
