//! Attention by `layers/attention/flash.cu`, compiled for one width of heads.

use super::queue::{Queue, failed};
use crate::{
    gpu::array::{Array, Result},
    layers::attention::{Shape, backward, forward},
    precision::Precision,
};
use cubecl::client::Client;
use cudarc::{
    driver::{result as cuda, sys},
    nvrtc::{result as nvrtc, sys as nvrtc_sys},
};
use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_void},
    ptr::from_ref,
    sync::{Arc, Mutex, PoisonError},
};

const SOURCE: &CStr = {
    let source = concat!(include_str!("../../layers/attention/flash.cu"), "\0");
    match CStr::from_bytes_with_nul(source.as_bytes()) {
        Ok(source) => source,
        Err(_) => panic!("the source has no zero byte inside"),
    }
};
/// Supported widths of heads.
const WIDTHS: [usize; 2] = [64, 128];
/// Warps per block of threads, queries or keys per block, and rows per tile, as in the source.
const WARPS: usize = 4;
const OWNED: usize = 16 * WARPS;
const TILE: usize = 64;
/// Oldest architecture with bf16 on tensor cores and copies into shared memory (Ampere), and the one whose groups of
/// warps multiply together (Hopper).
const AMPERE: i32 = 80;
const HOPPER: i32 = 90;

/// Maximum relative error of attention in bf16; measured: 0.003.
const ERROR_MAX: f64 = 0.01;
/// Maximum length of a grid's third side.
const SEQUENCES_MAX: usize = 65_535;

pub(super) struct Compiler {
    /// Compute capability times 10, such as 90.
    arch: i32,
    /// Kernels by width of heads. `None` if no variant passes the check.
    compiled: Mutex<HashMap<usize, Option<Arc<Kernels>>>>,
}

/// Functions of a module that is never unloaded.
struct Kernels {
    forward: sys::CUfunction,
    means: sys::CUfunction,
    queries: sys::CUfunction,
    keys: sys::CUfunction,
}

// SAFETY: the driver allows its handles on any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Compiler {
    /// Opens the compiler, if it is installed.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn open(device: sys::CUdevice) -> Result<Option<Compiler>> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { nvrtc_sys::is_culib_present() } {
            return Ok(None);
        }
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        // SAFETY: the device exists.
        let of = |attribute| unsafe { cuda::device::get_attribute(device, attribute) }.map_err(failed);
        Ok(Some(Compiler { arch: 10 * of(MAJOR)? + of(MINOR)?, compiled: Mutex::default() }))
    }

    /// Returns the compiler options of each variant, the fastest first.
    fn variants(&self) -> Vec<Vec<String>> {
        let arch = self.arch;
        let mut variants = vec![vec![format!("-arch=sm_{arch}")]];
        if arch == HOPPER {
            variants.insert(0, vec!["-DGROUPS".to_owned(), format!("-arch=sm_{arch}a")]);
        }
        variants
    }
}

impl Kernels {
    /// Loads the kernels. The device's context must be current.
    fn load(image: &[u8], width: usize) -> Result<Kernels> {
        // SAFETY: the image is the compiler's output.
        let module = unsafe { cuda::module::load_data(image.as_ptr().cast()) }.map_err(failed)?;
        let function = |name: &str, rows: usize, numbers: usize| -> Result<sys::CUfunction> {
            let name = CString::new(name).map_err(failed)?;
            // SAFETY: the module is loaded; the kernel needs this much shared memory.
            unsafe {
                let function = cuda::module::get_function(module, name).map_err(failed)?;
                let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                let bytes = shared_bytes(rows, numbers, width);
                cuda::function::set_function_attribute(function, shared, bytes as i32).map_err(failed)?;
                Ok(function)
            }
        };
        Ok(Kernels {
            forward: function("forward", OWNED, 0)?,
            means: function("backward_means", 0, 0)?,
            queries: function("backward_queries", 2 * OWNED, 0)?,
            keys: function("backward_keys", 2 * OWNED, 4 * TILE)?,
        })
    }
}

/// Returns the bytes of shared memory for these rows and four tiles, and `numbers` floats.
fn shared_bytes(rows: usize, numbers: usize, width: usize) -> usize {
    2 * (rows + 4 * TILE) * width + 4 * numbers
}

fn compile(width: usize, variant: &[String]) -> Result<Vec<u8>> {
    let mut options = vec!["-std=c++17".to_owned(), format!("-DC={width}"), format!("-DWARPS={WARPS}")];
    options.extend_from_slice(variant);
    let program =
        nvrtc::create_program(SOURCE, Some(c"flash.cu")).map_err(|error| failed(format!("{error:?}")))?;
    // SAFETY: the program is alive until it is destroyed below.
    unsafe {
        if let Err(error) = nvrtc::compile_program(program, &options) {
            let log = nvrtc::get_program_log(program).unwrap_or_default();
            let _ = nvrtc::destroy_program(program);
            let log: Vec<u8> =
                log.iter().map(|&letter| letter as u8).take_while(|&letter| letter != 0).collect();
            return Err(failed(format!("NVRTC: {error:?}: {}", String::from_utf8_lossy(&log))));
        }
        let mut len = 0;
        let say = |error| failed(format!("NVRTC: {error:?}"));
        nvrtc_sys::nvrtcGetCUBINSize(program, &mut len).result().map_err(say)?;
        let mut image = vec![0u8; len];
        nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result().map_err(say)?;
        nvrtc::destroy_program(program).map_err(say)?;
        Ok(image)
    }
}

/// Returns whether there are kernels for such rows, on some device.
pub(super) fn supports(shape: &Shape, rows: &Array) -> bool {
    rows.precision() == Precision::Bf16
        && WIDTHS.contains(&shape.head_width)
        && Call::new(shape, rows).sequences <= SEQUENCES_MAX
}

impl Compiler {
    /// Computes `Gpu::attention` of checked arrays. Returns whether there are kernels for it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attention(
        &self,
        queue: &Queue,
        client: &Client,
        shape: &Shape,
        rows: &Array,
        out: &Array,
        log_sums: &Array,
    ) -> Result<bool> {
        let Some(kernels) = self.kernels(queue, client, shape.head_width)? else { return Ok(false) };
        forward_by(queue, kernels, shape, rows, out, log_sums);
        Ok(true)
    }

    /// Computes `Gpu::attention_backward` of checked arrays. Returns whether there are kernels for it.
    ///
    /// # Errors
    /// If the device fails or has too little memory.
    pub fn attention_backward(
        &self,
        queue: &Queue,
        client: &Client,
        shape: &Shape,
        arrays: [&Array; 4],
        grad_rows: &Array,
    ) -> Result<bool> {
        let Some(kernels) = self.kernels(queue, client, shape.head_width)? else { return Ok(false) };
        backward_by(queue, kernels, client, shape, arrays, grad_rows)?;
        Ok(true)
    }

    /// Returns the kernels for heads of this width: the first variant that passes the check on this device with this
    /// compiler.
    fn kernels(&self, queue: &Queue, client: &Client, width: usize) -> Result<Option<Arc<Kernels>>> {
        if self.arch < AMPERE {
            return Ok(None);
        }
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = compiled.get(&width) {
            return Ok(kernels.clone());
        }
        queue.enter()?;
        let mut right = None;
        for variant in self.variants() {
            let kernels = compile(width, &variant).and_then(|image| Kernels::load(&image, width));
            let kernels = match kernels {
                Ok(kernels) => Arc::new(kernels),
                Err(error) => {
                    tracing::warn!(width, ?variant, %error, "attention cannot be compiled");
                    continue;
                }
            };
            let error = self.error(&kernels, queue, client, width)?;
            if error <= ERROR_MAX {
                right = Some(kernels);
                break;
            }
            tracing::warn!(width, ?variant, error, "attention as NVRTC compiles it is wrong on this GPU");
        }
        compiled.insert(width, right.clone());
        Ok(right)
    }

    /// Returns the error of these kernels against the CPU's on a small example: the largest relative error of outputs,
    /// log-sums and gradients, by their Euclidean norms.
    fn error(&self, kernels: &Arc<Kernels>, queue: &Queue, client: &Client, width: usize) -> Result<f64> {
        let shape = Shape { seq_len: 3 * TILE + 9, heads: 4, kv_heads: 2, head_width: width };
        let count = 2 * shape.seq_len;
        let (of_rows, of_out) = (count * shape.row_width(), count * shape.heads * width);
        // Uneven enough that a wrong row does not pass for the right one; queries include their scale.
        let noise = |seed: usize, at: usize| {
            let mixed =
                (at + 1).wrapping_mul(2_654_435_761).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        let queries = shape.heads * width;
        let of_query = |at: usize| at % shape.row_width() < queries;
        let scale = |at: usize| if of_query(at) { 1.0 / (width as f32).sqrt() } else { 1.0 };
        let download = |array: &Array| -> Result<Vec<f32>> {
            let bytes = client.read_one(array.handle().clone());
            queue.check()?;
            Ok(array.decode(&bytes?))
        };
        let array = |len, precision| Array::persistent(client, len, precision);
        let rounded = |values: Vec<f32>| -> Result<(Array, Vec<f32>)> {
            let array = Array::upload(client, &values, Precision::Bf16)?;
            let values = download(&array)?;
            Ok((array, values))
        };
        let (rows, row_values) = rounded((0..of_rows).map(|at| noise(1, at) * scale(at)).collect())?;
        let (grad_out, grad_values) = rounded((0..of_out).map(|at| noise(2, at)).collect())?;
        let (out, grad_rows) = (array(of_out, Precision::Bf16)?, array(of_rows, Precision::Bf16)?);
        let log_sums = array(count * shape.heads, Precision::F32)?;
        forward_by(queue, Arc::clone(kernels), &shape, &rows, &out, &log_sums);
        let arrays = [&rows, &out, &log_sums, &grad_out];
        backward_by(queue, Arc::clone(kernels), client, &shape, arrays, &grad_rows)?;

        let (mut mixed, mut sums) = (vec![0.0; of_out], vec![0.0; count * shape.heads]);
        let mut grads = vec![0.0; of_rows];
        forward(&shape, &row_values, &mut mixed, &mut sums);
        backward(&shape, &row_values, &mixed, &sums, &grad_values, &mut grads);
        let mut worst = 0.0f64;
        for (got, expected) in [(&out, &mixed), (&log_sums, &sums), (&grad_rows, &grads)] {
            let got = download(got)?;
            let squares =
                |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
            let apart = squares(&mut got.iter().zip(expected).map(|(one, other)| f64::from(one - other)));
            let error = (apart / squares(&mut expected.iter().map(|&value| f64::from(value)))).sqrt();
            // NaN must not count as a small error.
            worst = if error <= worst { worst } else { error };
        }
        Ok(worst)
    }
}

fn forward_by(
    queue: &Queue,
    kernels: Arc<Kernels>,
    shape: &Shape,
    rows: &Array,
    out: &Array,
    log_sums: &Array,
) {
    let call = Call::new(shape, rows);
    queue.submit([rows, out, log_sums], move |[rows, out, log_sums], stream| {
        let mut arguments = [rows, out, log_sums].map(Argument::Address).to_vec();
        arguments.extend(call.sizes());
        call.launch(kernels.forward, call.of_queries(), [OWNED, 0], &arguments, stream)
    });
}

fn backward_by(
    queue: &Queue,
    kernels: Arc<Kernels>,
    client: &Client,
    shape: &Shape,
    [rows, out, log_sums, grad_out]: [&Array; 4],
    grad_rows: &Array,
) -> Result {
    let call = Call::new(shape, rows);
    let means = Array::temporary(client, log_sums.len(), Precision::F32)?;
    let arrays = [rows, out, log_sums, grad_out, &means, grad_rows];
    queue.submit(arrays, move |[rows, out, log_sums, grad_out, means, grad_rows], stream| {
        let heads = call.sequences * call.shape.seq_len * call.shape.heads;
        let [seq_len, of_row, _] = call.sizes();
        let mut arguments = [out, grad_out, means].map(Argument::Address).to_vec();
        arguments.extend([seq_len, of_row, Argument::Address(heads as u64)]);
        let threads = heads * call.shape.head_width / 8;
        let cubes = [threads.div_ceil(32 * WARPS), 1, 1];
        call.launch(kernels.means, cubes, [0, 0], &arguments, stream)?;
        let mut arguments = [rows, grad_out, log_sums, means, grad_rows].map(Argument::Address).to_vec();
        arguments.extend(call.sizes());
        call.launch(kernels.queries, call.of_queries(), [2 * OWNED, 0], &arguments, stream)?;
        call.launch(kernels.keys, call.of_keys(), [2 * OWNED, 4 * TILE], &arguments, stream)
    });
    Ok(())
}

/// A kernel's argument, of 8 or 4 bytes.
#[derive(Clone, Copy)]
enum Argument {
    Address(u64),
    Size(i32),
}

#[derive(Clone, Copy)]
struct Call {
    shape: Shape,
    sequences: usize,
}

impl Call {
    fn new(shape: &Shape, rows: &Array) -> Call {
        Call { shape: *shape, sequences: rows.len() / (shape.seq_len * shape.row_width()) }
    }

    /// Returns `T`, `H` and `K`.
    fn sizes(&self) -> [Argument; 3] {
        [self.shape.seq_len, self.shape.heads, self.shape.kv_heads].map(|size| Argument::Size(size as i32))
    }

    fn of_queries(&self) -> [usize; 3] {
        [self.shape.seq_len.div_ceil(OWNED), self.shape.heads, self.sequences]
    }

    fn of_keys(&self) -> [usize; 3] {
        [self.shape.seq_len.div_ceil(OWNED), self.shape.kv_heads, self.sequences]
    }

    fn launch(
        &self,
        function: sys::CUfunction,
        grid: [usize; 3],
        [rows, numbers]: [usize; 2],
        arguments: &[Argument],
        stream: sys::CUstream,
    ) -> Result {
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Address(address) => from_ref(address).cast_mut().cast(),
                Argument::Size(size) => from_ref(size).cast_mut().cast(),
            })
            .collect();
        let [x, y, z] = grid.map(|cubes| cubes as u32);
        let bytes = if rows == 0 { 0 } else { shared_bytes(rows, numbers, self.shape.head_width) };
        // SAFETY: the arguments match the kernel's and live until it is queued; the arrays have the shape's lengths.
        unsafe {
            let block = (32 * WARPS as u32, 1, 1);
            cuda::launch_kernel(function, (x, y, z), block, bytes as u32, stream, &mut pointers)
        }
        .map_err(failed)
    }
}
