//! Bytes that every release must still read and write: `tests/golden/v1`.
//!
//! A vector is never changed. If a rule changes, its bytes go into a folder of the next version; these stay while any
//! object on a chain uses them. A file that no test opens is a failure.

use mettle_protocol::{
    Block, Digest, GenesisHash, RunId, RunParams, Schedule, SeatId, Uid, Window,
    contribution::{CODEC, Schema, Sparse, TensorSpec, decode, encode, encode_with_feedback},
    identity::Signer,
    lineage,
    merge::{Input, Merged, UpdateHeader, apply, merge, open_update, seal_update},
    norms::RunningNorms,
    params::{Density, F32Bits, MergeRule, Permille, TermsLimits},
    receipt::{
        Attestation, Baseline, ExactF64, Judgement, LossPair, Measured, MergeRecord, NearDuplicate,
        NotObserved, Observed, Outcome, OwnData, Penalty, PenaltyReason, PreviousReceipt, Receipt,
        ReportedFault, Reputation, Reputations, SeatJudgement, SeatReputation, Statements, WindowScore,
    },
    select::Selected,
    submission::{Expected, Header, Submission, seal},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const DENSITY: Density = Density(64);
const MERGED: Density = Density(256);

/// Contributions by name: `<name>.body` encodes `<name>.values`.
const CONTRIBUTIONS: [(&str, Density); 5] = [
    ("normal", DENSITY),
    ("normal-dense", Density(1024)),
    ("zeros-and-ties", DENSITY),
    ("extremes", DENSITY),
    ("everything", Density(4096)),
];

const SEATS: [u16; 3] = [2, 3, 7];

/// Returns a schema of a single value, a matrix of more than a chunk, and a vector: 4,744 values.
fn schema() -> Schema {
    let tensor = |name: &str, shape: &[u32]| TensorSpec { name: name.into(), shape: shape.into() };
    Schema::new(vec![tensor("scale", &[1]), tensor("layers.0.weight", &[59, 77]), tensor("bias", &[200])])
        .unwrap()
}

/// The folder of vectors, and those that were opened.
struct Vectors {
    folder: PathBuf,
    opened: BTreeSet<PathBuf>,
}

impl Vectors {
    fn open() -> Vectors {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
        Vectors { folder, opened: BTreeSet::new() }
    }

    fn bytes(&mut self, name: &str) -> Vec<u8> {
        let path = self.folder.join(name);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.opened.insert(path);
        bytes
    }

    fn values(&mut self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn text(&mut self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap().trim().to_owned()
    }

    fn digest(&mut self, name: &str) -> Digest {
        self.text(name).parse().unwrap()
    }
}

const GENESIS: GenesisHash = GenesisHash([1; 32]);

fn key() -> Signer {
    Signer::new(ed25519_dalek::SigningKey::from_bytes(&[42; 32]), GENESIS)
}

fn base() -> Digest {
    Digest::of(b"base")
}

/// Written out, so that other defaults do not change the vector.
fn genesis() -> Digest {
    let schedule = Schedule {
        start: Block(10),
        blocks_per_window: 115,
        commit_by: 80,
        reveal_by: 90,
        attest_by: 98,
        vote_by: 106,
    };
    let params = RunParams {
        schedule,
        epoch_windows: 10,
        reveal_windows: 2,
        hidden_blocks: 0,
        sequences_per_seat: 512,
        density: DENSITY,
        merge_density: MERGED,
        merge_rule: MergeRule::MeanOverHits,
        error_feedback_decay: F32Bits::of(0.95),
        outer_rate: F32Bits::of(0.7),
        evaluation_fraction: F32Bits::of(0.2),
        evaluation_sequences: 64,
        probe_tolerance: 100,
        evaluation_wait_max: 10,
        places: 20,
        reserve_places: 4,
        newcomer_windows: 20,
        min_contributions: 1,
        checkpoint_windows: 20,
        localnet: false,
        limits: TermsLimits {
            owner_share: Permille(200),
            emission_per_epoch: 1_000_000_000_000_000,
            equivocation_slash: Permille(300),
            unbonding_windows: 2_000,
            validator_stake_min: 1_000_000_000_000_000,
            miner_stake_min: 10_000_000_000_000,
            seat_price_min: 1_000_000_000_000,
        },
    };
    lineage::genesis(&params, &Digest::of(b"manifest"), &Digest::of(b"theta"))
}

fn header() -> Header {
    Header {
        codec: CODEC,
        run: RunId(3),
        window: Window(1000),
        uid: Uid(7),
        hotkey: key().hotkey(),
        base: base(),
        schema: schema().digest(),
        density: DENSITY,
        trained: 480,
    }
}

fn update_header() -> UpdateHeader {
    let selected = |uid: u16| Selected { uid: Uid(uid), digest: Digest::of(&uid.to_le_bytes()) };
    UpdateHeader {
        codec: CODEC,
        run: RunId(3),
        window: Window(1000),
        base: base(),
        schema: schema().digest(),
        density: MERGED,
        inputs: SEATS.map(selected).to_vec(),
        norms: Vec::new(),
    }
}

/// Returns a receipt with every kind of content.
fn receipt() -> Receipt {
    let seat = |uid: u16| SeatId { uid: Uid(uid), registered_at: Block(11) };
    let exact = ExactF64::of;
    let reputation = |mu: f64, recent: &[f64]| Reputation {
        mu: exact(mu),
        sigma: exact(8.1),
        own_data_score: exact(0.05),
        own_data_variance: exact(0.0004),
        penalties: vec![
            Penalty { reason: PenaltyReason::Harm, since: Window(998), remaining: 9 },
            Penalty { reason: PenaltyReason::Duplicate, since: Window(999), remaining: 10 },
        ],
        first_seen: Window(990),
        last_evaluated: Some(Window(999)),
        unmeasured: 2,
        evaluations: 7,
        faults: 1,
        share: exact(0.9375),
        recent: recent
            .iter()
            .map(|score| WindowScore { score: exact(*score), penalty: exact(0.25) })
            .collect(),
    };
    let reputations = |judged: u32, mu: f64| Reputations {
        judged: Some(Window(judged)),
        seats: vec![
            SeatReputation { seat: seat(2), reputation: reputation(mu, &[0.0, 0.25]) },
            SeatReputation {
                seat: seat(7),
                reputation: Reputation { last_evaluated: None, ..reputation(-mu, &[]) },
            },
        ],
    };
    let none = Outcome {
        own_gain: None,
        common_gain: None,
        common_error: None,
        own_data: None,
        rank: None,
        ordinal: exact(-1.5),
        median_rating: exact(3.0),
        rating_factor: exact(0.0),
        score: exact(0.0),
        weight: 0,
    };
    let data = OwnData { gap: exact(0.01), error: exact(0.002), scale: exact(0.012), outcome: exact(0.8) };
    let evaluated = Outcome {
        own_gain: Some(exact(0.02)),
        common_gain: Some(exact(0.01)),
        common_error: Some(exact(1e-3)),
        own_data: Some(data),
        rank: Some(1),
        ordinal: exact(3.5),
        median_rating: exact(3.0),
        rating_factor: exact(0.875),
        score: exact(0.25),
        weight: 65535,
    };
    let own = vec![LossPair { sequence: 123_456, before: exact(2.5), after: exact(2.45) }];
    let measured = Measured { own, common_after: vec![exact(2.75), exact(2.625)] };
    let judged = |uid, observed, result| SeatJudgement { seat: seat(uid), observed, result };
    let near_duplicate = NearDuplicate {
        uid: Uid(2),
        window: Window(998),
        digest: Digest::of(b"twin"),
        alike: exact(0.96875),
    };
    let valid = |trained, measured, near_duplicate| Observed::Valid { trained, measured, near_duplicate };
    let common = |sequence, before| Baseline { sequence, before: exact(before) };
    let mut receipt = Receipt {
        format: 1,
        run: RunId(3),
        window: Window(1000),
        validator: seat(0),
        hotkey: key().hotkey(),
        base: base(),
        previous: Some(PreviousReceipt { window: Window(999), digest: Digest::of(b"previous") }),
        salt: [9; 32],
        attestation: Attestation {
            valid: vec![Uid(2), Uid(4)],
            faulty: vec![ReportedFault {
                uid: Uid(5),
                label: "missing".into(),
                detail: "no bytes came".into(),
            }],
            not_observed: vec![NotObserved { uid: Uid(6), reason: "our link was down – all day".into() }],
        },
        merged: Some(MergeRecord {
            inputs: update_header().inputs,
            update: Digest::of(b"update"),
            state_root: Some(Digest::of(b"root")),
        }),
        statements: Statements::default(),
        before: reputations(999, 26.5),
        judgement: Some(Judgement {
            held: vec![Uid(2), Uid(4)],
            budget: 64,
            order: vec![Uid(4), Uid(2)],
            common: vec![common(5, 2.8), common(u64::MAX, 3.0)],
            seats: vec![
                judged(2, valid(512, Some(measured), None), evaluated),
                judged(4, valid(480, None, Some(near_duplicate)), none),
                judged(5, Observed::Faulty { label: "missing".into(), detail: "no bytes".into() }, none),
                judged(6, Observed::Unobserved, none),
                judged(7, Observed::Absent, none),
            ],
            after: reputations(1000, 27.25),
            weights: vec![(Uid(2), 65535), (Uid(4), 1)],
        }),
    };
    receipt.sign_statements(true, true, &key());
    receipt
}

/// Returns the inputs of the merge in the vectors: a loud contribution, a quiet one, and one with ties.
fn merge_inputs(mut values: impl FnMut(&str) -> Vec<f32>) -> Vec<Sparse> {
    ["normal", "normal-dense", "zeros-and-ties"]
        .map(|name| {
            let body = encode(&schema(), DENSITY, &values(name)).unwrap();
            decode(&schema(), DENSITY, &body).unwrap()
        })
        .to_vec()
}

/// Merges twice, so that the second merge starts from the buffer and the norms of the first; one norm bounds the
/// median from below and two from above. Returns the second update with buffer and norms after it.
fn merged_twice(rule: MergeRule, updates: &[Sparse]) -> (Vec<u8>, Vec<f32>, RunningNorms) {
    let inputs: Vec<_> =
        SEATS.iter().zip(updates).map(|(uid, update)| Input { uid: Uid(*uid), weight: 1, update }).collect();
    let (mut buffer, mut running) = (vec![0.0; schema().values()], RunningNorms::default());
    let merge = |running: &RunningNorms, buffer: &mut [f32]| {
        merge(&schema(), rule, MERGED, &inputs, running, buffer).unwrap()
    };
    let first = merge(&running, &mut buffer).norms;
    for _ in 0..8 {
        running.push(first.iter().zip([16.0, 0.125, 0.0625]).map(|(norm, times)| norm * times).collect());
    }
    let Merged { body, norms } = merge(&running, &mut buffer);
    assert_eq!(norms, [first[0] * 4.0, first[1] * 0.5, first[2] * 0.25]);
    running.push(norms.clone());
    (seal_update(&UpdateHeader { norms, ..update_header() }, &body), buffer, running)
}

const RULES: [(&str, MergeRule); 2] = [("hits", MergeRule::MeanOverHits), ("all", MergeRule::MeanOverAll)];

#[test]
fn every_release_reads_and_writes_the_golden_bytes() {
    let mut vectors = Vectors::open();
    let schema = schema();

    for (name, density) in CONTRIBUTIONS {
        let values = vectors.values(&format!("{name}.values"));
        let body = vectors.bytes(&format!("{name}.body"));
        assert!(encode(&schema, density, &values).unwrap() == body, "{name} is encoded differently");
        let mut residual = values.clone();
        assert!(encode_with_feedback(&schema, density, &mut residual).unwrap() == body);
        let left = vectors.digest(&format!("{name}.residual-root"));
        assert_eq!(lineage::weights_root(&residual), left, "{name} leaves something else behind");
        decode(&schema, density, &body).unwrap();
    }

    let proof = key().prove_possession(RunId(3), &[7; 32]);
    assert_eq!(vectors.text("hotkey.proof"), proof.to_string(), "a hotkey signs something else");

    let bytes = vectors.bytes("one.submission");
    let body = vectors.bytes("normal.body");
    assert!(seal(&header(), &body, &key()) == bytes, "a submission is sealed differently");
    let Header { run, window, uid, hotkey, base, density, .. } = header();
    let digest = Digest::of(&bytes);
    let expected = Expected {
        genesis: GENESIS,
        run,
        window,
        uid,
        hotkey,
        base,
        schema: &schema,
        density,
        sequences_per_seat: 512,
        digest,
    };
    let submission = Submission::read(&bytes).unwrap();
    assert_eq!(submission.header, header());
    assert_eq!(submission.verify(&expected).unwrap(), decode(&schema, DENSITY, &body).unwrap());

    for (name, rule) in RULES {
        let updates = merge_inputs(|name| vectors.values(&format!("{name}.values")));
        let (update, buffer, norms) = merged_twice(rule, &updates);
        let golden = vectors.bytes(&format!("{name}.update"));
        assert!(update == golden, "a merge over {name} comes out differently");
        let (header, body) = open_update(&golden, &schema, MERGED, run, window, base).unwrap();
        assert_eq!(header, UpdateHeader { norms: header.norms.clone(), ..update_header() });
        let update = decode(&schema, MERGED, body).unwrap();

        let mut theta = vectors.values("normal.values");
        apply(&schema, &mut theta, &update, 0.7);
        let state = lineage::state_root(
            &lineage::weights_root(&theta),
            &lineage::weights_root(&buffer),
            &norms.root(),
        );
        assert_eq!(state, vectors.digest(&format!("{name}.state-root")));
        assert_eq!(lineage::next(&base, &Digest::of(&golden)), vectors.digest(&format!("{name}.lineage")));
    }
    let bytes = vectors.bytes("one.receipt");
    assert!(receipt().sign(&key()).bytes == bytes, "a receipt is sealed differently");
    assert_eq!(Receipt::open(&bytes, &RunParams::default(), &GENESIS), Ok(receipt()));

    assert_eq!(genesis(), vectors.digest("genesis.lineage"));
    assert_eq!(schema.digest(), vectors.digest("schema.digest"));

    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let unopened: Vec<_> =
        files_under(&root).into_iter().filter(|path| !vectors.opened.contains(path)).collect();
    assert!(unopened.is_empty(), "no test opens {unopened:?}");
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
}

/// Adds vectors that do not exist yet. It never overwrites one.
#[test]
#[ignore = "writes into tests/golden; run it for a new version of the format"]
fn write_missing_vectors() {
    let folder = Vectors::open().folder;
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        if !path.exists() {
            fs::write(path, bytes).unwrap();
        }
    };
    let write_digest = |name: &str, digest: Digest| write(name, format!("{digest}\n").as_bytes());
    let schema = schema();

    for (name, density) in CONTRIBUTIONS {
        let values = invented(name, schema.values());
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        write(&format!("{name}.values"), &bytes);
        let mut residual = values;
        write(&format!("{name}.body"), &encode_with_feedback(&schema, density, &mut residual).unwrap());
        write_digest(&format!("{name}.residual-root"), lineage::weights_root(&residual));
    }
    let normal = invented("normal", schema.values());
    write("one.submission", &seal(&header(), &encode(&schema, DENSITY, &normal).unwrap(), &key()));

    write("one.receipt", &receipt().sign(&key()).bytes);

    for (name, rule) in RULES {
        let updates = merge_inputs(|name| invented(name, schema.values()));
        let (bytes, buffer, norms) = merged_twice(rule, &updates);
        write(&format!("{name}.update"), &bytes);
        let (_, body) = open_update(&bytes, &schema, MERGED, RunId(3), Window(1000), base()).unwrap();
        let update = decode(&schema, MERGED, body).unwrap();
        let mut theta = normal.clone();
        apply(&schema, &mut theta, &update, 0.7);
        let state = lineage::state_root(
            &lineage::weights_root(&theta),
            &lineage::weights_root(&buffer),
            &norms.root(),
        );
        write_digest(&format!("{name}.state-root"), state);
        write_digest(&format!("{name}.lineage"), lineage::next(&base(), &Digest::of(&bytes)));
    }
    write_digest("genesis.lineage", genesis());
    write_digest("schema.digest", schema.digest());
}

/// Returns values of the kind that a name describes.
fn invented(name: &str, count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(1u64, |state, byte| state.wrapping_mul(257).wrapping_add(byte.into()));
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    // The sum of twelve uniform values, less six, is nearly normal.
    let mut normal = move || {
        let sum: f64 = (0..12).map(|_| f64::from(next()) / f64::from(1 << 24)).sum();
        (sum - 6.0) as f32
    };
    let kind = |index: usize, x: f32| match name {
        "normal-dense" => x * 3e-3,
        "zeros-and-ties" => [0.0, -0.0, 0.25, -0.25, 0.5][(x.abs() * 100.0) as usize % 5],
        "extremes" => match index % 500 {
            3 => f32::MAX,
            4 => -15.5,
            5 => f32::MIN_POSITIVE,
            6 => -f32::from_bits(1),
            _ if index > 4500 => x * 1e-9,
            _ => x * 1e-30,
        },
        _ => x * 1e-3,
    };
    (0..count).map(|index| kind(index, normal())).collect()
}
