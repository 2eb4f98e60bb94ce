//! Matrix products by cuBLASLt.

use super::queue::{Queue, failed};
use crate::{
    estimate::WORKSPACE,
    gpu::{
        array::{Array, Result},
        view::{Batch, View},
    },
    precision::Precision,
};
use cubecl::client::Client;
use cudarc::cublaslt::{result as lt, sys as lt_sys};
use std::{
    collections::HashMap,
    ffi::c_void,
    mem::size_of,
    ptr::from_ref,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Oldest supported version: CUDA 12's.
const VERSION_MIN: usize = 120_000;

pub(super) struct Library {
    handle: lt_sys::cublasLtHandle_t,
    workspace: OnceLock<Array>,
    /// Plans by key. `None` if the library has no algorithm.
    plans: Mutex<HashMap<Key, Option<Arc<Plan>>>>,
}

// SAFETY: the library allows its handle on any thread (cuBLAS documentation, "Thread safety").
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Properties of a product by which an algorithm is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    count: usize,
    operands: [Operand; 2],
    /// Precision of the operands, and of the result.
    precision: [Precision; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Operand {
    rows: usize,
    columns: usize,
    stride: usize,
    between: usize,
    transposed: bool,
}

/// The library's descriptors of a product, and the algorithm that it chose.
struct Plan {
    handle: lt_sys::cublasLtHandle_t,
    product: lt_sys::cublasLtMatmulDesc_t,
    /// Layouts of the right operand, the left operand, and the result. The library's matrices are column-major, so it
    /// computes the transposed product.
    layouts: [lt_sys::cublasLtMatrixLayout_t; 3],
    algorithm: lt_sys::cublasLtMatmulAlgo_t,
}

// SAFETY: a plan is never changed, and the library allows its handles on any thread.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Library {
    /// Opens the library, if it is installed. The device's context must be current.
    ///
    /// # Errors
    /// If the library fails.
    pub fn open() -> Result<Option<Library>> {
        // SAFETY: the calls load the library and read its version.
        if unsafe { !lt_sys::is_culib_present() || lt_sys::cublasLtGetVersion() < VERSION_MIN } {
            return Ok(None);
        }
        let handle = lt::create_handle().map_err(failed)?;
        Ok(Some(Library { handle, workspace: OnceLock::new(), plans: Mutex::default() }))
    }

    fn plan(&self, key: Key) -> Result<Option<Arc<Plan>>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Plan::new(self.handle, &key)?.map(Arc::new);
        plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn workspace(&self, client: &Client) -> Result<&Array> {
        if let Some(workspace) = self.workspace.get() {
            return Ok(workspace);
        }
        let workspace = Array::persistent(client, WORKSPACE / 4, Precision::F32)?;
        Ok(self.workspace.get_or_init(|| workspace))
    }

    /// Computes `out ← lhs · rhs`, or with `added` `out ← out + lhs · rhs`, for `count` products whose results are
    /// contiguous in the first values of `out`. Returns whether the library supports them.
    ///
    /// # Errors
    /// If the library fails.
    pub fn products(
        &self,
        queue: &Queue,
        client: &Client,
        added: bool,
        count: usize,
        out: &Array,
        [lhs, rhs]: [Batch<'_>; 2],
    ) -> Result<bool> {
        // Needed on every thread: the heuristic uses the current device.
        queue.enter()?;
        let plan = self.plan(Key {
            count,
            operands: [Operand::new(&lhs), Operand::new(&rhs)],
            precision: [lhs.view.array.precision(), out.precision()],
        })?;
        let Some(plan) = plan else { return Ok(false) };
        let begin = [lhs, rhs].map(|it| (it.view.first * it.view.array.precision().bytes()) as u64);
        let arrays = [lhs.view.array, rhs.view.array, out, self.workspace(client)?];
        queue.submit(arrays, move |[left, right, out, workspace], stream| {
            let (one, previous) = (1.0f32, f32::from(u8::from(added)));
            // SAFETY: the caller has checked that the arrays have the lengths of the layouts.
            let done = unsafe {
                lt::matmul(
                    plan.handle,
                    plan.product,
                    from_ref(&one).cast(),
                    from_ref(&previous).cast(),
                    (right + begin[1]) as *const c_void,
                    plan.layouts[0],
                    (left + begin[0]) as *const c_void,
                    plan.layouts[1],
                    out as *const c_void,
                    plan.layouts[2],
                    out as *mut c_void,
                    plan.layouts[2],
                    &plan.algorithm,
                    workspace as *mut c_void,
                    WORKSPACE,
                    stream.cast(),
                )
            };
            done.map_err(failed)
        });
        Ok(true)
    }
}

impl Operand {
    fn new(Batch { view, between }: &Batch<'_>) -> Operand {
        let View { rows, columns, stride, transposed, .. } = *view;
        Operand { rows, columns, stride, between: *between, transposed }
    }

    fn shape(&self) -> [usize; 2] {
        if self.transposed { [self.columns, self.rows] } else { [self.rows, self.columns] }
    }
}

impl Plan {
    fn new(handle: lt_sys::cublasLtHandle_t, key: &Key) -> Result<Option<Plan>> {
        let [lhs, rhs] = &key.operands;
        let [m, n] = [lhs.shape()[0], rhs.shape()[1]];
        let [from, to] = key.precision.map(kind);
        let out = Operand { rows: m, columns: n, stride: n, between: m * n, transposed: false };
        let layouts =
            [layout(from, rhs, key.count)?, layout(from, lhs, key.count)?, layout(to, &out, key.count)?];
        let compute = lt_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let product = lt::create_matmul_desc(compute, kind(Precision::F32)).map_err(failed)?;
        let attributes = [
            (lt_sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, rhs),
            (lt_sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, lhs),
        ];
        for (attribute, operand) in attributes {
            let transposed = i32::from(operand.transposed);
            let value = from_ref(&transposed).cast();
            // SAFETY: the product is alive, and the attribute has this type.
            unsafe { lt::set_matmul_desc_attribute(product, attribute, value, size_of::<i32>()) }
                .map_err(failed)?;
        }
        let preference = lt::create_matmul_pref().map_err(failed)?;
        let most = lt_sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: all of these are alive, and the attribute has this type.
        let found = unsafe {
            let bytes = from_ref(&WORKSPACE).cast();
            lt::set_matmul_pref_attribute(preference, most, bytes, size_of::<usize>()).map_err(failed)?;
            let [a, b, c] = layouts;
            let found = lt::get_matmul_algo_heuristic(handle, product, a, b, c, c, preference);
            lt::destroy_matmul_pref(preference).map_err(failed)?;
            found
        };
        match found {
            Ok(found) => Ok(Some(Plan { handle, product, layouts, algorithm: found.algo })),
            Err(lt::CublasError(lt_sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

fn layout(
    kind: lt_sys::cudaDataType,
    operand: &Operand,
    count: usize,
) -> Result<lt_sys::cublasLtMatrixLayout_t> {
    use lt_sys::cublasLtMatrixLayoutAttribute_t::{
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as BETWEEN,
    };
    let Operand { rows, columns, stride, between, .. } = *operand;
    let layout =
        lt::create_matrix_layout(kind, columns as u64, rows as u64, stride as i64).map_err(failed)?;
    let (count, between) = (count as i32, between as i64);
    // SAFETY: the layout is alive, and the attributes have these types.
    unsafe {
        let set = lt::set_matrix_layout_attribute;
        set(layout, COUNT, from_ref(&count).cast(), size_of::<i32>()).map_err(failed)?;
        set(layout, BETWEEN, from_ref(&between).cast(), size_of::<i64>()).map_err(failed)?;
    }
    Ok(layout)
}

fn kind(precision: Precision) -> lt_sys::cudaDataType {
    match precision {
        Precision::F32 => lt_sys::cudaDataType::CUDA_R_32F,
        Precision::Bf16 => lt_sys::cudaDataType::CUDA_R_16BF,
        Precision::F16 => lt_sys::cudaDataType::CUDA_R_16F,
    }
}
