//! Comparison of ranks that exchange gradients and weights by NCCL with ranks that exchange through the machine's
//! memory. It needs NVIDIA GPUs.

use super::{recipe, state, tiny, weight_bits};
use crate::{
    Device, DeviceName, ModelError, Trainer,
    collective::{Collective, threads},
    engine::{self, DataParallel},
    nccl::{Version, library_for},
};
use model::{ModelConfig, Recipe, init_flat};
use std::{thread, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of ranks, because the model is small.
const RANKS_MAX: usize = 4;

/// Version and ranks of a successful comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclAgreement {
    pub version: Version,
    /// Numbers of ranks. A single rank sends to itself.
    pub ranks: Vec<usize>,
}

/// Trains with one rank, and with one rank on each GPU starting at `device`, by NCCL and through memory, and compares
/// the bits.
///
/// # Errors
/// If NCCL is missing or fails, or bits differ.
pub fn nccl_gives_the_bits_of_memory(device: Device) -> Result<NcclAgreement, ModelError> {
    let version = library_for(device)?.version();
    let DeviceName::Cuda(first) = device.name else { unreachable!("the library is for CUDA") };
    let gpus = device.count()?.saturating_sub(first.into()).clamp(1, RANKS_MAX);
    let mut ranks = vec![1, gpus];
    ranks.dedup();
    for &ranks in &ranks {
        let devices: Vec<Device> =
            (0..ranks).map(|rank| Device { name: DeviceName::Cuda(first + rank as u16), ..device }).collect();
        // Several micro-batches per rank, and one.
        for micro_batch in [1, 4] {
            let recipe = Recipe { batch: 4 * ranks, micro_batch, ..recipe() };
            let [by_nccl, through_memory] = [true, false].map(|nccl| trained(&devices, &recipe, nccl));
            if by_nccl? != through_memory? {
                let why = format!("{ranks} ranks have other bits by NCCL {version} than through memory");
                return Err(ModelError::Ranks { why });
            }
        }
    }
    Ok(NcclAgreement { version, ranks })
}

/// Losses, weights and moments after three steps.
type Trained = (Vec<u64>, Vec<u32>, Vec<u8>);

fn trained(devices: &[Device], recipe: &Recipe, nccl: bool) -> Result<Trained, ModelError> {
    let (config, ranks) = (tiny(), devices.len());
    let id = if nccl { Some(library_for(devices[0])?.unique_id()?) } else { None };
    let opener = move |device: Device| {
        move |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            engine::open_rank(device, ranks, config, recipe, flat)
        }
    };
    let others = devices[1..].to_vec();
    let connect = Box::new(move || {
        let mut meshes = threads(ranks, PATIENCE).into_iter().map(|mesh| mesh.with_nccl(id));
        let first = meshes.next().expect("there is a first rank");
        for (mesh, &device) in meshes.zip(&others) {
            // Rank 0 receives the reason of a failure.
            thread::spawn(move || engine::serve(Box::new(mesh), &opener(device)));
        }
        Ok(Box::new(first) as Box<dyn Collective>)
    });
    let flat = init_flat(&config, 1)?;
    let engine = DataParallel::open(&config, recipe, &flat, &opener(devices[0]), connect)?;
    let mut trainer = Trainer::from_engine(&config, recipe, Box::new(engine))?;
    let step = |seed| {
        let batch = super::sequences(&config, recipe.batch, seed);
        trainer.step(&batch).map(|step| step.loss.to_bits())
    };
    let losses = (0..3).map(step).collect::<Result<Vec<u64>, ModelError>>()?;
    Ok((losses, weight_bits(&trainer), state(&trainer)))
}
