//! The codec of nodes: fast kernels, checked by the reference decoder of `protocol`.
//!
//! The kernels process arrays and only accept or refuse. This module knows schemas and densities, and passes refused
//! bytes to the reference decoder, which names the fault (PROT-14). If the reference accepts them, the kernel is
//! wrong: the error is logged and the reference's result is used. A fault in a kernel therefore costs time, but
//! affects neither a seat's rating nor the agreement of nodes.
//!
//! [`Incoming`] decodes an object while it arrives. Its result is used only after digest and signature are checked.

use crate::{
    durable::FileError,
    storage::{ObjectBuffer, Row, Storage},
};
use bytes::Bytes;
use kernels::{
    decode::{self, StreamDecoder},
    wire::Layout,
};
use protocol::{
    Digest, Uid,
    contribution::{self, DecodeError, Schema, Sparse, SparseTensor},
    merge::{self, MergeError},
    norms::RunningNorms,
    params::{Density, MergeRule},
    submission::{self, Expected, Fault, Header, PREFIX_BYTES, SIGNATURE_BYTES, Submission},
};
use std::convert::Infallible;
use store::Sink;

pub use kernels::wire::LayoutError;

/// Reads and applies the bodies of one kind in a run: those of contributions, or those of merged updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Codec {
    schema: Schema,
    density: Density,
    layout: Layout,
}

impl Codec {
    /// Creates the codec of a schema and a density.
    ///
    /// # Errors
    /// If `density` is outside its range.
    pub fn new(schema: &Schema, density: Density) -> Result<Codec, LayoutError> {
        let lengths: Vec<usize> = schema.ranges().map(|range| range.len()).collect();
        Ok(Codec { schema: schema.clone(), density, layout: Layout::new(&lengths, density.0)? })
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    pub fn density(&self) -> Density {
        self.density
    }

    /// The layout for the kernels.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Decodes all entries of a body. Faster than `contribution::decode`, with the same result.
    ///
    /// # Errors
    /// If the body is not a valid encoding; the reference decoder names the fault.
    pub fn decode(&self, body: &[u8]) -> Result<Sparse, DecodeError> {
        let Ok(tensors) = decode::decode(&self.layout, body) else { return self.ask_the_slow_one(body) };
        let tensors = tensors.into_iter().map(|tensor| SparseTensor {
            positions: tensor.positions,
            values: tensor.values,
            square_norm: tensor.square_norm,
        });
        Ok(Sparse { tensors: tensors.collect() })
    }

    /// Checks a body like [`Codec::decode`] and returns only the square norm of each tensor.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    pub fn square_norms(&self, body: &[u8]) -> Result<Vec<f64>, DecodeError> {
        match decode::norms(&self.layout, body) {
            Ok(norms) => Ok(norms),
            Err(_) => Ok(merge::square_norms(&self.ask_the_slow_one(body)?)),
        }
    }

    /// Returns whether a checked body changes any value of `theta` at this rate (PROT-14).
    pub fn changes_any(&self, body: &[u8], rate: f32, theta: &[f32]) -> bool {
        match kernels::merge::changes_any(&self.layout, body, rate, theta) {
            Ok(changes) => changes,
            Err(_) => self.ask_the_slow_one(body).is_ok_and(|update| {
                let mut after = theta.to_vec();
                merge::apply(&self.schema, &mut after, &update, rate);
                theta.iter().zip(after).any(|(before, after)| *before != after)
            }),
        }
    }

    /// Decodes with the reference decoder a body that a kernel refused.
    fn ask_the_slow_one(&self, body: &[u8]) -> Result<Sparse, DecodeError> {
        let answer = contribution::decode(&self.schema, self.density, body);
        if answer.is_ok() {
            tracing::error!(
                bytes = body.len(),
                "the fast decoder refused a good body; the slow one's answer is used. Please report this"
            );
        }
        answer
    }
}

/// A contribution to be merged. It has been verified: its body can be decoded and has these norms.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub uid: Uid,
    /// Consensus weight when the window opened; 0 for a seat without weight.
    pub weight: u16,
    pub body: &'a [u8],
    /// Square norm of each tensor.
    pub square_norms: &'a [f64],
}

/// A merge's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The update's body.
    pub body: Bytes,
    /// The norms that the window adds to the running norms.
    pub norms: Vec<f64>,
    /// The error-feedback buffer after the merge.
    pub buffer: Row,
}

/// Error of a merge.
#[derive(Debug, thiserror::Error)]
pub enum MergeFailed {
    #[error(transparent)]
    Refused(#[from] MergeError),
    /// The disk is full: no space for the update or the buffer.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Computes `merge::merge` faster, directly from bytes to bytes (PROT-17, PROT-18): the update and the buffer after
/// it. `sent` decodes the contributions, `merged` is the codec of the update. The update's body is kept in `storage`.
/// Apart from `buffer` and its copy, only a few sections are in memory.
///
/// # Errors
/// If the inputs cannot be merged, or the disk has no space for the update or the buffer.
///
/// # Panics
/// If the two codecs have different schemas.
pub fn merge(
    sent: &Codec,
    merged: &Codec,
    rule: MergeRule,
    inputs: &[Input<'_>],
    running: &RunningNorms,
    buffer: &Row,
    storage: &Storage,
) -> Result<Merged, MergeFailed> {
    let mut after = buffer.clone();
    let values = after.edit()?;
    // The reference merge refuses inputs that the kernel does not check.
    let fits = !inputs.is_empty()
        && inputs.is_sorted_by(|a, b| a.uid < b.uid)
        && inputs.iter().all(|input| input.square_norms.len() == sent.layout.tensors())
        && buffer.len() == sent.layout.values();
    if fits {
        let bodies: Vec<&[u8]> = inputs.iter().map(|input| input.body).collect();
        let norms: Vec<&[f64]> = inputs.iter().map(|input| input.square_norms).collect();
        let weights: Vec<u16> = inputs.iter().map(|input| input.weight).collect();
        let references = merge::reference_norms(&norms, &weights, running);
        let scales = merge::clip_scales(&norms, &references);
        let rule = match rule {
            MergeRule::MeanOverHits => kernels::merge::Rule::MeanOverHits,
            MergeRule::MeanOverAll => kernels::merge::Rule::MeanOverAll,
        };
        let mut body = storage.object();
        body.begin(u64::try_from(merged.schema.largest_body(merged.density)).unwrap_or(u64::MAX));
        let mut append = |bytes: &[u8]| {
            body.push(bytes);
            Ok::<(), Infallible>(())
        };
        let layouts = (&sent.layout, &merged.layout);
        let written =
            kernels::merge::merge_into(layouts.0, rule, layouts.1, &bodies, &scales, values, &mut append);
        if written.is_ok() {
            let (body, norms) = (body.finish()?, merge::norms_to_keep(references, &weights));
            return Ok(Merged { body, norms, buffer: after });
        }
        values.copy_from_slice(buffer);
    }

    let updates = inputs
        .iter()
        .map(|input| {
            contribution::decode(&sent.schema, sent.density, input.body)
                .map_err(|_| MergeError::WrongShape { uid: input.uid })
        })
        .collect::<Result<Vec<Sparse>, _>>()?;
    let slow: Vec<_> = inputs
        .iter()
        .zip(&updates)
        .map(|(input, update)| merge::Input { uid: input.uid, weight: input.weight, update })
        .collect();
    let merge::Merged { body, norms } =
        merge::merge(&sent.schema, rule, merged.density, &slow, running, values)?;
    tracing::error!(
        inputs = inputs.len(),
        "the fast merge refused good contributions; the slow one's update is used. Please report this"
    );
    Ok(Merged { body: body.into(), norms, buffer: after })
}

/// Receives an object while it arrives: keeps its bytes and decodes its body section by section.
///
/// A body that cannot be decoded does not stop the transfer: only the digest decides whether the object is the right
/// one.
pub struct Incoming<'a> {
    whole: ObjectBuffer,
    /// The announced length of the object, and the number of bytes received so far.
    length: u64,
    received: u64,
    codec: &'a Codec,
    frame: Frame<'a>,
    body: Body<'a>,
}

/// Finds a body's start in the bytes so far; `None` if they do not begin such an object.
pub type FindStart<'a> = Box<dyn Fn(&[u8]) -> Option<usize> + Send + 'a>;

/// The position of a body in its object.
pub struct Frame<'a> {
    /// Number of first bytes that suffice to find the body's start.
    pub head: usize,
    pub start: FindStart<'a>,
    /// Number of bytes after the body.
    pub tail: usize,
}

enum Body<'a> {
    /// The first bytes, in which the start is searched.
    Sought(Vec<u8>),
    Begun {
        decoder: Box<StreamDecoder<'a>>,
        read: u64,
    },
    /// The body has no start or cannot be decoded.
    GivenUp,
}

/// A received object.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrived {
    pub bytes: Bytes,
    /// Square norm of each tensor, if the body was decoded to its end.
    pub square_norms: Option<Vec<f64>>,
}

impl<'a> Incoming<'a> {
    /// Creates an empty object whose bytes are kept in `storage`.
    pub fn new(codec: &'a Codec, frame: Frame<'a>, storage: &Storage) -> Incoming<'a> {
        let body = Body::Sought(Vec::new());
        Incoming { whole: storage.object(), length: 0, received: 0, codec, frame, body }
    }

    /// Returns the object after a successful fetch.
    ///
    /// # Errors
    /// If the bytes could not be written to disk.
    pub fn finish(self) -> Result<Arrived, FileError> {
        let end = self.end();
        let square_norms = match self.body {
            Body::Begun { decoder, read } if read == end => decoder.finish().ok(),
            _ => None,
        };
        Ok(Arrived { bytes: self.whole.finish()?, square_norms })
    }

    /// Returns the end of the body, if the object has the announced length.
    fn end(&self) -> u64 {
        self.length.saturating_sub(self.frame.tail as u64)
    }

    /// Decodes the part of `bytes`, received at offset `at`, that belongs to the body.
    fn decode(&mut self, at: u64, bytes: &[u8]) {
        let end = self.end();
        let Body::Begun { decoder, read } = &mut self.body else { return };
        let offset = |place: u64| usize::try_from(place.saturating_sub(at)).unwrap_or(usize::MAX);
        if let Some(next) = bytes.get(offset(*read)..offset(end).min(bytes.len())) {
            *read += next.len() as u64;
            if decoder.push(next, &mut |_| ()).is_err() {
                self.body = Body::GivenUp;
            }
        }
    }
}

impl Sink for Incoming<'_> {
    fn begin(&mut self, length: u64) {
        self.whole.begin(length);
        (self.length, self.received) = (length, 0);
        self.body = Body::Sought(Vec::new());
    }

    fn piece(&mut self, bytes: &[u8]) {
        self.whole.push(bytes);
        let at = self.received;
        self.received += bytes.len() as u64;
        let Body::Sought(head) = &mut self.body else { return self.decode(at, bytes) };
        head.extend_from_slice(bytes);
        if self.frame.head <= head.len() || self.length <= self.received {
            let head = std::mem::take(head);
            self.body = match (self.frame.start)(&head) {
                Some(start) => {
                    let decoder = Box::new(StreamDecoder::new(&self.codec.layout));
                    Body::Begun { decoder, read: start as u64 }
                }
                None => Body::GivenUp,
            };
            self.decode(0, &head);
        }
    }
}

/// A verified contribution as its exact bytes. Decoded entries would take six times the memory, so callers decode them
/// when they need them.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    pub digest: Digest,
    pub bytes: Bytes,
    pub header: Header,
    /// Square norm of each tensor (PROT-17).
    pub square_norms: Vec<f64>,
}

impl Contribution {
    /// Returns the encoded body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[PREFIX_BYTES..self.bytes.len() - SIGNATURE_BYTES]
    }
}

/// Checks received bytes in full (PROT-8, PROT-9). Same result as `Submission::verify`, but reuses the norms that were
/// computed during the transfer.
///
/// # Errors
/// The fault that makes the contribution invalid.
pub fn verify(codec: &Codec, expected: &Expected<'_>, arrived: Arrived) -> Result<Contribution, Fault> {
    let submission = Submission::read(&arrived.bytes)?;
    let (header, body) = (submission.header, submission.check(expected)?);
    let square_norms = match arrived.square_norms {
        Some(square_norms) => square_norms,
        None => codec.square_norms(body).map_err(Fault::Undecodable)?,
    };
    submission::check_norms(&codec.schema, codec.density, &square_norms)?;
    Ok(Contribution { digest: expected.digest, bytes: arrived.bytes, header, square_norms })
}

/// A checked body of an update, applied without decoding it into memory.
#[derive(Debug)]
pub struct Update<'a> {
    codec: &'a Codec,
    body: &'a [u8],
    /// The entries, if only the reference decoder could read them.
    slow: Option<Sparse>,
}

impl<'a> Update<'a> {
    /// Checks the body. `was_decoded` means that a fast decoder has already read these bytes to their end.
    ///
    /// # Errors
    /// If the body is not a valid encoding.
    pub fn check(codec: &'a Codec, body: &'a [u8], was_decoded: bool) -> Result<Update<'a>, DecodeError> {
        let is_good = was_decoded || decode::norms(&codec.layout, body).is_ok();
        let slow = if is_good { None } else { Some(codec.ask_the_slow_one(body)?) };
        Ok(Update { codec, body, slow })
    }

    /// Applies the update: `θ ← fl(θ − fl(rate·u))` (PROT-18).
    ///
    /// # Panics
    /// If `theta` does not have all of the schema's values.
    pub fn apply(&self, rate: f32, theta: &mut [f32]) {
        match &self.slow {
            None => kernels::merge::apply(&self.codec.layout, self.body, rate, theta)
                .expect("the same bytes were decoded before"),
            Some(update) => merge::apply(&self.codec.schema, theta, update, rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use ed25519_dalek::SigningKey;
    use proptest::prelude::*;
    use protocol::{
        GenesisHash, RunId, Window,
        contribution::{CODEC, EncodeError, TensorSpec},
        identity::Signer,
        keys::{self, ObjectKey},
    };
    use store::{Fetch, FetchError, Limits, TrafficTotals, fetch_verified_into};

    const LENGTHS: [u32; 3] = [5000, 1, 4096];
    const SENT: Density = Density(64);
    const MERGED: Density = Density(256);

    fn schema() -> Schema {
        let tensor = |length: u32| TensorSpec { name: length.to_string(), shape: vec![length] };
        Schema::new(LENGTHS.into_iter().map(tensor).collect()).unwrap()
    }

    fn codec(density: Density) -> Codec {
        Codec::new(&schema(), density).unwrap()
    }

    /// A codec whose kernels are wrong: they expect another density.
    fn broken(density: Density) -> Codec {
        Codec { layout: codec(Density(density.0 + 1)).layout, ..codec(density) }
    }

    fn values(seed: u64) -> Vec<f32> {
        let mut bytes = vec![0; 4 * schema().values()];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        let value =
            |word: &[u8; 4]| (u32::from_le_bytes(*word) as f32 / 2.0f32.powi(31) - 1.0).powi(3) * 1e-2;
        bytes.as_chunks().0.iter().map(value).collect()
    }

    fn body(seed: u64) -> Vec<u8> {
        contribution::encode(&schema(), SENT, &values(seed)).unwrap()
    }

    /// Damages a body in one of several ways.
    fn spoilt(mut body: Vec<u8>, how: u8, at: usize) -> Vec<u8> {
        let at = at % body.len();
        match how % 5 {
            0 => {}
            1 => body[at] ^= 1 << (at % 8),
            2 => body.truncate(at),
            3 => body.extend_from_slice(&[0; 3]),
            _ => body[at..].fill(0xff),
        }
        body
    }

    const GENESIS: GenesisHash = GenesisHash([1; 32]);

    fn key() -> Signer {
        Signer::new(SigningKey::from_bytes(&[7; 32]), GENESIS)
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        let header = Header {
            codec: CODEC,
            run: RunId(1),
            window: Window(9),
            uid: Uid(4),
            hotkey: key().hotkey(),
            base: Digest([5; 32]),
            schema: schema().digest(),
            density: SENT,
            trained: 512,
        };
        submission::seal(&header, body, &key())
    }

    fn expected(schema: &Schema, digest: Digest) -> Expected<'_> {
        let hotkey = key().hotkey();
        let (run, window, uid, base) = (RunId(1), Window(9), Uid(4), Digest([5; 32]));
        let (genesis, sequences_per_seat) = (GENESIS, 512);
        Expected {
            genesis,
            run,
            window,
            uid,
            hotkey,
            base,
            schema,
            density: SENT,
            sequences_per_seat,
            digest,
        }
    }

    fn incoming(codec: &Codec) -> Incoming<'_> {
        let start = Box::new(|_: &[u8]| Some(PREFIX_BYTES));
        let frame = Frame { head: PREFIX_BYTES, start, tail: SIGNATURE_BYTES };
        Incoming::new(codec, frame, &Storage::memory())
    }

    fn receive(mut incoming: Incoming<'_>, bytes: &[u8], piece: usize) -> Arrived {
        incoming.begin(bytes.len() as u64);
        bytes.chunks(piece).for_each(|piece| incoming.piece(piece));
        incoming.finish().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_fast_answer_is_the_slow_one_to_the_name_of_the_fault(
            seed in any::<u64>(), how in any::<u8>(), at in any::<usize>(),
        ) {
            let (codec, body) = (codec(SENT), spoilt(body(seed), how, at));
            let slow = contribution::decode(&schema(), SENT, &body);
            prop_assert_eq!(&codec.decode(&body), &slow);
            prop_assert_eq!(codec.square_norms(&body), slow.as_ref().map(merge::square_norms).map_err(Clone::clone));
            let update = Update::check(&codec, &body, false);
            match (update, slow) {
                (Ok(update), Ok(slow)) => {
                    let (mut theta, mut by_the_book) = (values(!seed), values(!seed));
                    update.apply(0.7, &mut theta);
                    merge::apply(&schema(), &mut by_the_book, &slow, 0.7);
                    prop_assert!(theta.iter().map(|x| x.to_bits()).eq(by_the_book.iter().map(|x| x.to_bits())));
                }
                (update, slow) => prop_assert_eq!(update.map(|_| ()), slow.map(|_| ())),
            }
        }

        #[test]
        fn a_contribution_that_comes_in_pieces_is_judged_as_one_that_is_there(
            seed in any::<u64>(), how in any::<u8>(), at in any::<usize>(), piece in 1usize..3000, foreign in any::<bool>(),
        ) {
            let (codec, schema) = (codec(SENT), schema());
            let spoilt_body = spoilt(body(seed), how, at);
            // Signed as it is, or damaged in transit, with a digest that does or does not match.
            let bytes = sealed(&spoilt_body);
            let arrived = receive(incoming(&codec), &bytes, piece);
            prop_assert_eq!(&arrived.bytes, &bytes);
            prop_assert_eq!(
                arrived.square_norms.is_some(),
                contribution::decode(&schema, SENT, &spoilt_body).is_ok(),
            );
            let digest = if foreign { Digest::of(b"another") } else { Digest::of(&bytes) };
            let expected = expected(&schema, digest);
            let slow = Submission::read(&bytes)
                .and_then(|submission| Ok((submission.header, submission.verify(&expected)?)));
            match (verify(&codec, &expected, arrived), slow) {
                (Ok(fast), Ok((header, update))) => {
                    prop_assert_eq!((fast.header, fast.digest), (header, digest));
                    prop_assert_eq!(codec.decode(fast.body()).unwrap(), update.clone());
                    prop_assert_eq!(fast.square_norms, merge::square_norms(&update));
                }
                (fast, slow) => prop_assert_eq!(fast.map(|_| ()), slow.map(|_| ())),
            }
        }

        #[test]
        fn the_fast_merge_is_the_slow_one(
            seed in any::<u64>(), count in 1u64..6, over_all in any::<bool>(),
        ) {
            let home = tempfile::tempdir().unwrap();
            let on_disk = Storage::on_disk(home.path()).mapped_from(0);
            let (sent, merged) = (codec(SENT), codec(MERGED));
            let rule = if over_all { MergeRule::MeanOverAll } else { MergeRule::MeanOverHits };
            let bodies: Vec<Vec<u8>> = (0..count).map(|index| body(seed ^ index)).collect();
            let updates: Vec<Sparse> = bodies.iter().map(|body| sent.decode(body).unwrap()).collect();
            let norms: Vec<Vec<f64>> = updates.iter().map(merge::square_norms).collect();
            let buffer = values(!seed);
            let mut running = RunningNorms::default();
            (0..8).for_each(|_| running.push(vec![1e-9, 1e-3, 1e9]));

            let mut by_the_book = buffer.clone();
            let slow: Vec<_> =
                (0..).zip(&updates).map(|(uid, update)| merge::Input { uid: Uid(uid), weight: uid % 3, update }).collect();
            let expected = merge::merge(&schema(), rule, MERGED, &slow, &running, &mut by_the_book).unwrap();

            let inputs: Vec<_> = (0..)
                .zip(bodies.iter().zip(&norms))
                .map(|(uid, (body, square_norms))| Input { uid: Uid(uid), weight: uid % 3, body, square_norms })
                .collect();
            for sent in [sent, broken(SENT)] {
                for storage in [&Storage::memory(), &on_disk] {
                    let mut row = storage.zeros(buffer.len()).unwrap();
                    row.edit().unwrap().copy_from_slice(&buffer);
                    let update = self::merge(&sent, &merged, rule, &inputs, &running, &row, storage).unwrap();
                    prop_assert!(update.body == expected.body && update.norms == expected.norms);
                    let after = update.buffer.iter().map(|x| x.to_bits());
                    prop_assert!(after.eq(by_the_book.iter().map(|x| x.to_bits())));
                    prop_assert!(*row == buffer[..], "the buffer before it stays");
                }
            }
        }
    }

    #[test]
    fn the_reference_overrules_a_kernel_that_refuses_good_bytes() {
        let (broken, schema) = (broken(SENT), schema());
        let bytes = sealed(&body(1));
        let slow = contribution::decode(&schema, SENT, &body(1)).unwrap();
        assert_eq!(broken.decode(&body(1)).unwrap(), slow);

        let arrived = receive(incoming(&broken), &bytes, 100);
        assert_eq!(arrived.square_norms, None);
        let contribution = verify(&broken, &expected(&schema, Digest::of(&bytes)), arrived).unwrap();
        assert_eq!(contribution.square_norms, merge::square_norms(&slow));

        let mut theta = values(2);
        Update::check(&broken, &body(1), false).unwrap().apply(0.5, &mut theta);
        let mut by_the_book = values(2);
        merge::apply(&schema, &mut by_the_book, &slow, 0.5);
        assert_eq!(theta, by_the_book);
    }

    #[test]
    fn bad_inputs_are_refused_as_by_the_reference_merge() {
        let (sent, merged) = (codec(SENT), codec(MERGED));
        let (good, norms) = (body(1), codec(SENT).square_norms(&body(1)).unwrap());
        let refused = |inputs: &[Input<'_>], buffer: &[f32]| {
            let (buffer, norms, storage) =
                (buffer.to_vec().into(), RunningNorms::default(), Storage::memory());
            match self::merge(&sent, &merged, MergeRule::MeanOverHits, inputs, &norms, &buffer, &storage) {
                Err(MergeFailed::Refused(error)) => error,
                merged => panic!("{merged:?}"),
            }
        };
        let input = |uid: u16| Input { uid: Uid(uid), weight: 0, body: &good, square_norms: &norms };
        let buffer = values(3);
        assert_eq!(refused(&[], &buffer), MergeError::NoInputs);
        for uid in [2, 3] {
            let twice = [input(3), input(uid)];
            assert_eq!(refused(&twice, &buffer), MergeError::OutOfOrder { uid: Uid(uid) });
        }
        let cut = Input { body: &good[..good.len() - 1], ..input(5) };
        assert_eq!(refused(&[input(3), cut], &buffer), MergeError::WrongShape { uid: Uid(5) });
        let wrong = EncodeError::WrongLength { expected: 9097, got: 1 };
        assert_eq!(refused(&[input(3)], &[0.0]), MergeError::Buffer(wrong));
        let mut broken = buffer.clone();
        broken[5001] = f32::NAN;
        let wrong = EncodeError::NotFinite { tensor: "4096".into(), position: 0 };
        assert_eq!(refused(&[input(3)], &broken), MergeError::Buffer(wrong));
    }

    #[test]
    fn a_density_outside_its_range_has_no_codec() {
        assert_eq!(Codec::new(&schema(), Density(0)), Err(LayoutError::BadDensity(0)));
        assert_eq!(Codec::new(&schema(), Density(4097)), Err(LayoutError::BadDensity(4097)));
    }

    #[test]
    fn an_object_too_short_for_its_frame_is_received_and_not_decoded() {
        let (codec, bytes) = (codec(SENT), sealed(&body(1)));
        for length in [0, 1, PREFIX_BYTES, PREFIX_BYTES + 1, PREFIX_BYTES + SIGNATURE_BYTES] {
            let arrived = receive(incoming(&codec), &bytes[..length], 50);
            assert_eq!((&arrived.bytes[..], arrived.square_norms), (&bytes[..length], None));
        }
        // The same for an object that ends before its announced length.
        let mut cut = incoming(&codec);
        cut.begin(bytes.len() as u64);
        cut.piece(&bytes[..bytes.len() - 100]);
        assert_eq!(cut.finish().unwrap().square_norms, None);
    }

    #[test]
    fn a_body_behind_a_head_of_its_own_length_is_found() {
        let (codec, body) = (codec(SENT), body(1));
        // One byte holds the length of the head.
        let frame = || {
            let start =
                |bytes: &[u8]| Some(usize::from(*bytes.first()?)).filter(|start| *start <= bytes.len());
            Frame { head: 200, start: Box::new(start), tail: 0 }
        };
        for head in [1usize, 77, 200] {
            let mut bytes = vec![head as u8; head];
            bytes.extend_from_slice(&body);
            for piece in [1, 90, 100_000] {
                let arrived = receive(Incoming::new(&codec, frame(), &Storage::memory()), &bytes, piece);
                assert_eq!(arrived.square_norms.as_deref(), codec.square_norms(&body).ok().as_deref());
            }
        }
        let arrived = receive(Incoming::new(&codec, frame(), &Storage::memory()), &[9, 9], 1);
        assert_eq!(arrived.square_norms, None);
    }

    /// Endpoints by name, each with the object that it sends, a few bytes at a time.
    struct Endpoints(Vec<(&'static str, Vec<u8>)>);

    #[async_trait]
    impl Fetch for Endpoints {
        async fn fetch(&self, base: &str, _: &ObjectKey, _: &Limits) -> Result<Bytes, FetchError> {
            let found = self.0.iter().find(|(name, _)| *name == base);
            found.map(|(_, bytes)| bytes.clone().into()).ok_or(FetchError::Missing)
        }

        async fn fetch_into(
            &self,
            base: &str,
            key: &ObjectKey,
            limits: &Limits,
            to: &mut dyn Sink,
        ) -> Result<(), FetchError> {
            let bytes = self.fetch(base, key, limits).await?;
            to.begin(bytes.len() as u64);
            bytes.chunks(33).for_each(|piece| to.piece(piece));
            Ok(())
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    #[tokio::test]
    async fn the_digest_decides_before_the_decoder_and_a_mirror_after_it_is_read_afresh() {
        let codec = codec(SENT);
        let good = sealed(&body(1));
        let mut nonsense = good.clone();
        nonsense[PREFIX_BYTES..].fill(0xff);
        let digest = Digest::of(&good);
        let endpoints = Endpoints(vec![("nonsense", nonsense), ("good", good.clone())]);
        let (key, limits) = (keys::contribution(RunId(1), Window(9), &digest), Limits::for_bytes(1 << 20));

        let mut incoming = incoming(&codec);
        let error = fetch_verified_into(&endpoints, "nonsense", &key, &digest, &limits, &mut incoming).await;
        assert!(matches!(error, Err(FetchError::WrongDigest { .. })));
        let mirrors = crate::mirrors::Mirrors::one("nonsense").and(crate::mirrors::Mirrors::one("good"));
        mirrors.get_into(&endpoints, &key, &digest, &limits, &mut incoming).await.unwrap();
        let arrived = incoming.finish().unwrap();
        assert_eq!(
            (&arrived.bytes[..], arrived.square_norms),
            (&good[..], codec.square_norms(&body(1)).ok())
        );
    }

    #[test]
    fn a_signature_over_nonsense_is_an_undecodable_contribution() {
        let (codec, schema) = (codec(SENT), schema());
        let bytes = sealed(&[0xff; 200]);
        let arrived = receive(incoming(&codec), &bytes, 17);
        let fault = verify(&codec, &expected(&schema, Digest::of(&bytes)), arrived).unwrap_err();
        let slow = contribution::decode(&schema, SENT, &[0xff; 200]).unwrap_err();
        assert_eq!(fault, Fault::Undecodable(slow));
        let nothing = sealed(&contribution::encode(&schema, SENT, &vec![0.0; schema.values()]).unwrap());
        let arrived = receive(incoming(&codec), &nothing, 17);
        let fault = verify(&codec, &expected(&schema, Digest::of(&nothing)), arrived).unwrap_err();
        assert_eq!(fault, Fault::AbnormalNorm { rms: 0.0 });
    }
}
