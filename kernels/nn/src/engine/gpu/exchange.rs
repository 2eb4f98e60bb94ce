//! Exchange of gradients and weights between GPUs (ADR 0072). A [`Transport`] moves values between arrays of different
//! ranks. A rank's own GPU adds up the received gradients in the order of ranks. So the bits are those of the exchange
//! through the machines' memory.

use crate::{
    ModelError, Precision,
    collective::error::Watch,
    engine::{ranks::ROUND, traits::GpuExchange},
    gpu::{Array, Gpu, GpuError, Result},
    slices::parts_of,
};
use std::ops::Range;

/// Some values of an `f32` array, sent to or received from a rank.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub peer: usize,
    pub array: &'a Array,
    pub range: Range<usize>,
}

/// Moves values between the GPUs of ranks: by NCCL, or in tests through the machine's memory.
pub(super) trait Transport: Send {
    /// Sends and receives all of these parts, after the work that is queued on `gpu`, and waits until it is done. Each
    /// sent part matches a received part of the same length; parts between two ranks have the same order on both. A
    /// rank may send to itself.
    ///
    /// # Errors
    /// If the transport, a device or `watch` fails.
    fn exchange(
        &mut self,
        gpu: &Gpu,
        sends: &[Part<'_>],
        receives: &[Part<'_>],
        watch: &mut Watch<'_>,
    ) -> Result<(), ModelError>;
}

/// The gradients and weights of one rank's engine.
pub(super) struct ArrayExchange<T> {
    transport: T,
    gpu: Gpu,
    rank: usize,
    /// Gradients, one array per stack.
    gradients: Vec<Array>,
    weights: Vec<Array>,
    /// Up to [`ROUND`] values received from each rank.
    received: Array,
    sum: Array,
}

impl<T: Transport> ArrayExchange<T> {
    /// # Errors
    /// If the device has no memory for the values received at once.
    pub fn new(
        transport: T,
        gpu: Gpu,
        [rank, ranks]: [usize; 2],
        gradients: Vec<Array>,
        weights: Vec<Array>,
    ) -> Result<ArrayExchange<T>> {
        let received = gpu.array(ranks * ROUND, Precision::F32)?;
        let sum = gpu.array(ROUND, Precision::F32)?;
        // CubeCL allocates memory at the first write, and it does not see the transport's writes.
        gpu.fill(&received, 0.0)?;
        gpu.fill(&sum, 0.0)?;
        gpu.finish()?;
        Ok(ArrayExchange { transport, gpu, rank, gradients, weights, received, sum })
    }

    fn failed(&self, error: &GpuError) -> ModelError {
        error.on(self.gpu.device()).into()
    }
}

/// Returns a range of the flat vector as parts of these arrays.
fn parts(arrays: &[Array], peer: usize, range: Range<usize>) -> impl Iterator<Item = Part<'_>> {
    let lens = arrays.iter().map(Array::len);
    parts_of(range, lens).map(move |(index, range)| Part { peer, array: &arrays[index], range })
}

impl<T: Transport> GpuExchange for ArrayExchange<T> {
    fn reduce_scatter(
        &mut self,
        slices: &[Range<usize>],
        contributors: usize,
        sum: &mut Vec<f32>,
        watch: &mut Watch<'_>,
    ) -> Result<(), ModelError> {
        let own = slices[self.rank].clone();
        assert!(own.len() <= ROUND, "a round");
        let ArrayExchange { transport, gpu, rank, gradients, received, .. } = self;
        let mut sends = Vec::new();
        if *rank < contributors {
            let slices = slices.iter().cloned().enumerate();
            sends.extend(slices.flat_map(|(peer, slice)| parts(gradients, peer, slice)));
        }
        let mut receives = Vec::new();
        for peer in 0..contributors {
            let mut first = peer * ROUND;
            receives.extend(parts(gradients, peer, own.clone()).map(|Part { range, .. }| {
                first += range.len();
                Part { peer, array: received, range: first - range.len()..first }
            }));
        }
        transport.exchange(gpu, &sends, &receives, watch)?;
        if own.is_empty() {
            return Ok(());
        }
        let added = self.gpu.part(&self.sum, 0, own.len()).and_then(|total| {
            self.gpu.add_slices(&self.received, ROUND, contributors, &total)?;
            self.gpu.read_part(&self.sum, 0..own.len(), sum)
        });
        added.map_err(|error| self.failed(&error))
    }

    fn all_gather(&mut self, slices: &[Range<usize>], watch: &mut Watch<'_>) -> Result<(), ModelError> {
        let ArrayExchange { transport, gpu, rank, weights, .. } = self;
        let others = || (0..slices.len()).filter(|peer| peer != rank);
        let sends: Vec<Part<'_>> =
            others().flat_map(|peer| parts(weights, peer, slices[*rank].clone())).collect();
        let receives: Vec<Part<'_>> =
            others().flat_map(|peer| parts(weights, peer, slices[peer].clone())).collect();
        transport.exchange(gpu, &sends, &receives, watch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Device, DeviceName, Trainer,
        collective::{Collective, Mesh, threads},
        conformance::{sequences, state, weight_bits},
        engine::{
            DataParallel, Engine, RankEngine, Reduce,
            gpu::{GpuEngine, Purpose},
            serve,
        },
        nccl::{Membership, UniqueId},
    };
    use model::{ModelConfig, Optimiser, Recipe, init_flat};
    use std::{
        sync::{Arc, Mutex},
        thread,
        time::Duration,
    };

    const PATIENCE: Duration = Duration::from_secs(120);

    fn device() -> Device {
        Device { precision: Some(Precision::F32), ..Device::new(DeviceName::Vulkan(None)) }
    }

    fn of<'a>(parts: &[Part<'a>], peer: usize) -> Vec<Part<'a>> {
        parts.iter().filter(|part| part.peer == peer).cloned().collect()
    }

    /// Substitute for NCCL: moves the same values by channels between threads.
    struct ByHost(Mesh);

    impl Transport for ByHost {
        fn exchange(
            &mut self,
            gpu: &Gpu,
            sends: &[Part<'_>],
            receives: &[Part<'_>],
            _: &mut Watch<'_>,
        ) -> Result<(), ModelError> {
            let read = |part: &Part<'_>| {
                let mut values = Vec::new();
                gpu.read_part(part.array, part.range.clone(), &mut values).unwrap();
                values
            };
            let write = |part: &Part<'_>, values: &[f32]| {
                assert_eq!(part.range.len(), values.len(), "as many values are received as were sent");
                gpu.overwrite_part(part.array, part.range.start, values).unwrap();
            };
            let (rank, ranks) = (self.0.rank(), self.0.ranks());
            let (to_self, from_self) = (of(sends, rank), of(receives, rank));
            assert_eq!(to_self.len(), from_self.len());
            to_self.iter().zip(&from_self).for_each(|(from, to)| write(to, &read(from)));
            for sender in 0..ranks {
                if sender == rank {
                    for part in sends.iter().filter(|part| part.peer != rank) {
                        self.0.send(part.peer, &read(part))?;
                    }
                } else {
                    for part in of(receives, sender) {
                        let mut values = vec![0.0; part.range.len()];
                        self.0.receive(sender, &mut values)?;
                        write(&part, &values);
                    }
                }
            }
            Ok(())
        }
    }

    /// Returns numbers whose sum depends on the order.
    fn numbers(rank: usize, len: usize) -> Vec<f32> {
        let number = |at: usize| {
            let bits = (at as u32 * 2_654_435_761).wrapping_add(rank as u32 * 40_503);
            ((bits >> 8) as f32 / 65_536.0 - 128.0) * [1e-3, 1.0, 1e4][(at + rank) % 3]
        };
        (0..len).map(number).collect()
    }

    #[test]
    #[ignore = "needs a Vulkan device; a CPU's stand-in (lavapipe) is enough"]
    fn gradients_are_added_to_the_bits_of_the_exchange_through_memory() {
        // Two arrays. One slice spans both, one is empty, and one has an odd length.
        let lens = [100, 61];
        let four = [33, 120, 120, 161];
        for (ends, contributors) in [(&[161][..], 1), (&[90, 161], 2), (&four, 4), (&four, 3), (&four, 1)] {
            let starts = std::iter::once(&0).chain(ends);
            let slices: Vec<Range<usize>> = starts.zip(ends).map(|(start, end)| *start..*end).collect();
            let ranks = slices.len();
            let run = |(values, (host, mut mesh)): (Vec<f32>, (Mesh, Mesh)), slices: Vec<Range<usize>>| {
                let gpu = Gpu::open(device()).unwrap();
                let rank = mesh.rank();
                let own = slices[rank].clone();
                let mut expected = vec![0.0; own.len()];
                let vector = if rank < contributors { &values[..] } else { &[] };
                mesh.reduce_scatter(&slices, vector, contributors, &mut expected).unwrap();

                let upload = |values: &[f32]| {
                    let (first, second) = values.split_at(lens[0]);
                    vec![first, second]
                        .into_iter()
                        .map(|it| gpu.upload(it, Precision::F32).unwrap())
                        .collect()
                };
                let (gradients, weights): (Vec<Array>, Vec<Array>) = (upload(&values), upload(&values));
                let mut exchange =
                    ArrayExchange::new(ByHost(host), gpu.clone(), [rank, ranks], gradients, weights.clone())
                        .unwrap();
                let mut sum = Vec::new();
                let mut watch = mesh.watch("adding gradients");
                exchange.reduce_scatter(&slices, contributors, &mut sum, &mut watch).unwrap();
                assert_eq!(bits(&sum), bits(&expected), "rank {rank} of {ranks}, {contributors}");

                exchange.all_gather(&slices, &mut watch).unwrap();
                let got: Vec<f32> = weights.iter().flat_map(|array| gpu.download(array).unwrap()).collect();
                let all = slices.iter().enumerate();
                let all: Vec<f32> =
                    all.flat_map(|(peer, slice)| numbers(peer, 161)[slice.clone()].to_vec()).collect();
                assert_eq!(bits(&got), bits(&all), "rank {rank} of {ranks}");
            };
            let meshes = threads(ranks, PATIENCE).into_iter().zip(threads(ranks, PATIENCE));
            thread::scope(|scope| {
                for (rank, meshes) in meshes.enumerate() {
                    let slices = slices.clone();
                    scope.spawn(move || run((numbers(rank, 161), meshes), slices));
                }
            });
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// An engine on a GPU that connects to the others by [`ByHost`].
    struct Connected {
        engine: GpuEngine,
        host: Mutex<Option<Mesh>>,
    }

    impl RankEngine for Connected {
        fn engine(&self) -> &dyn Engine {
            &self.engine
        }
        fn engine_mut(&mut self) -> &mut dyn Engine {
            &mut self.engine
        }
        fn adds_micro_batches(&self) -> bool {
            self.engine.adds_micro_batches()
        }
        fn micro_batches(
            &mut self,
            sequences: &[&[u32]],
            rows: usize,
            reduce: &mut Reduce<'_>,
        ) -> Result<Vec<f64>, ModelError> {
            let mut without_reading = |range: Range<usize>, _: &mut crate::engine::ReadPart<'_>| {
                reduce(range, &mut |_, _| panic!("no gradient goes through the machine's memory"))
            };
            self.engine.micro_batches(sequences, rows, &mut without_reading)
        }
        fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
            self.engine.read_weights(range, values)
        }
        fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError> {
            self.engine.write_weights(first, values)
        }
        fn finish_weights(&mut self) -> Result<(), ModelError> {
            self.engine.finish_weights()
        }
        fn connect_gpus(
            &self,
            membership: &Membership,
            _: &mut Watch<'_>,
        ) -> Result<Box<dyn GpuExchange>, ModelError> {
            let host = ByHost(self.host.lock().unwrap().take().unwrap());
            Ok(Box::new(self.engine.exchange_by(host, [membership.rank, membership.ranks])?))
        }
    }

    fn trainer(ranks: usize, nccl: bool, config: &ModelConfig, recipe: &Recipe, flat: &[f32]) -> Trainer {
        let hosts: Vec<_> = threads(ranks, PATIENCE).into_iter().map(|mesh| Mutex::new(Some(mesh))).collect();
        let hosts = Arc::new(hosts);
        let opener = move |rank: usize| {
            let hosts = hosts.clone();
            move |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
                let engine = GpuEngine::new(device(), config, Purpose::Rank { recipe, ranks }, flat)?;
                let host = Mutex::new(hosts[rank].lock().unwrap().take());
                Ok(Box::new(Connected { engine, host }) as Box<dyn RankEngine>)
            }
        };
        let plain = move |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            let engine = GpuEngine::new(device(), config, Purpose::Rank { recipe, ranks }, flat)?;
            Ok(Box::new(engine) as Box<dyn RankEngine>)
        };
        let first = opener(0);
        let connect = Box::new(move || {
            let id = UniqueId::from_bytes(&[1; UniqueId::BYTES]).filter(|_| nccl);
            let mut meshes = threads(ranks, PATIENCE).into_iter().map(|mesh| mesh.with_nccl(id));
            let mesh = meshes.next().unwrap();
            for mesh in meshes {
                let open = opener(mesh.rank());
                thread::spawn(move || match nccl {
                    true => serve(Box::new(mesh), &open).unwrap(),
                    false => serve(Box::new(mesh), &plain).unwrap(),
                });
            }
            Ok(Box::new(mesh) as Box<dyn Collective>)
        });
        let engine = match nccl {
            true => DataParallel::open(config, recipe, flat, &first, connect),
            false => DataParallel::open(config, recipe, flat, &plain, connect),
        };
        Trainer::from_engine(config, recipe, Box::new(engine.unwrap())).unwrap()
    }

    #[test]
    #[ignore = "needs a Vulkan device; a CPU's stand-in (lavapipe) is enough"]
    fn ranks_whose_gpus_exchange_train_to_the_bits_of_those_through_memory() {
        let preset = ModelConfig::preset("117k").unwrap();
        let config =
            ModelConfig { vocab: 300, d_model: 64, layers: 2, heads: 4, kv_heads: 2, d_ff: 96, ..preset };
        let config = ModelConfig { seq_len: 16, ..config };
        let flat = init_flat(&config, 1).unwrap();
        // Several micro-batches per rank, and one: the gradient as a whole, and layer by layer. One of four ranks has
        // none.
        for (optimiser, batch, micro_batch, ranks) in [
            (Optimiser::AdamW, 6, 1, 1),
            (Optimiser::AdamW, 6, 1, 2),
            (Optimiser::AdamW, 3, 1, 4),
            (Optimiser::Muon, 6, 3, 2),
        ] {
            let recipe = Recipe { batch, micro_batch, optimiser, warmup_steps: 2, ..Recipe::default() };
            let [by_gpus, through_memory] = [true, false].map(|nccl| {
                let mut trainer = trainer(ranks, nccl, &config, &recipe, &flat);
                let steps = (0..3).map(|seed| trainer.step(&sequences(&config, batch, seed)).unwrap());
                let steps: Vec<_> = steps.collect();
                (steps, weight_bits(&trainer), state(&trainer))
            });
            assert!(by_gpus == through_memory, "{optimiser:?}, {ranks} ranks, {batch} by {micro_batch}");
        }
    }
}
