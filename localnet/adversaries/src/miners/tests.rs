use super::{
    copycat_last,
    malformed::{FAULTS, spoilt},
};
use crate::{
    Adversary, Content, MinerContext, OwnContribution, Presentation, Setup, SharedMailbox, Timing,
    TrainedWindow,
    adversary::{delta, moved, norm, values},
    miner,
};
use bytes::Bytes;
use daemon::{Codec, Contribution, codec::Arrived};
use ed25519_dalek::SigningKey;
use protocol::{
    Digest, GenesisHash, RunId, RunParams, Uid, Window,
    contribution::{CODEC, Schema, TensorSpec},
    identity::Signer,
    params::Density,
    submission::{Expected, Fault, Header, Submission},
};
use store::faults::{Faults, Rate};

const RUN: RunId = RunId(1);
const DENSITY: Density = Density(512);
const BASE: Digest = Digest([5; 32]);
const ASSIGNED: u32 = 120;

fn codec() -> Codec {
    let tensor = |length: u32| TensorSpec { name: length.to_string(), shape: vec![length] };
    Codec::new(&Schema::new(vec![tensor(5000), tensor(30)]).unwrap(), DENSITY).unwrap()
}

fn params() -> RunParams {
    RunParams { sequences_per_seat: ASSIGNED, density: DENSITY, ..RunParams::default() }
}

const GENESIS: GenesisHash = GenesisHash([1; 32]);

fn key(uid: Uid) -> Signer {
    Signer::new(SigningKey::from_bytes(&Digest::of(&uid.0.to_le_bytes()).0), GENESIS)
}

fn header(codec: &Codec, uid: Uid, window: Window) -> Header {
    Header {
        codec: CODEC,
        run: RUN,
        window,
        uid,
        hotkey: key(uid).hotkey(),
        base: BASE,
        schema: codec.schema().digest(),
        density: DENSITY,
        trained: ASSIGNED,
    }
}

/// Returns trained weights of a model, in another direction for each seed.
fn theta(codec: &Codec) -> Vec<f32> {
    (0..codec.schema().values()).map(|at| ((at * 31 % 97) as f32 - 48.0) * 1e-3).collect()
}

fn trained(codec: &Codec, seed: u16) -> Vec<f32> {
    let mut rng = crate::SeededRng::new(&[b"work", &seed.to_le_bytes()]);
    theta(codec).into_iter().map(|value| value + (rng.normal() * 1e-3) as f32).collect()
}

fn sealed(codec: &Codec, uid: Uid, window: Window, work: &[f32]) -> Bytes {
    let body = protocol::contribution::encode(codec.schema(), DENSITY, work).unwrap();
    protocol::submission::seal(&header(codec, uid, window), &body, &key(uid)).into()
}

/// Checks bytes that `uid` committed to, as a validator does.
fn verified(
    codec: &Codec,
    uid: Uid,
    window: Window,
    bytes: &Bytes,
    digest: Digest,
) -> Result<Contribution, Fault> {
    let expected = Expected {
        genesis: GENESIS,
        run: RUN,
        window,
        uid,
        hotkey: key(uid).hotkey(),
        base: BASE,
        schema: codec.schema(),
        density: DENSITY,
        sequences_per_seat: ASSIGNED,
        digest,
    };
    daemon::codec::verify(codec, &expected, Arrived { bytes: bytes.clone(), square_norms: None })
}

fn contribution(codec: &Codec, uid: u16, window: Window) -> Contribution {
    let work = delta(&theta(codec), &trained(codec, uid));
    let bytes = sealed(codec, Uid(uid), window, &work);
    verified(codec, Uid(uid), window, &bytes, Digest::of(&bytes)).unwrap()
}

/// One adversary with a small model.
struct Bench {
    codec: Codec,
    params: RunParams,
    adversary: Box<dyn Adversary>,
}

/// The adversary's seat.
const US: Uid = Uid(7);

impl Bench {
    fn of(name: &str) -> Bench {
        Bench::with(name, &Setup::default())
    }

    fn with(name: &str, setup: &Setup) -> Bench {
        Bench { codec: codec(), params: params(), adversary: miner(name, setup).unwrap() }
    }

    /// Runs a window. Returns its sequences, the declared `t`, and the difference that is added to the residual.
    fn window(&mut self, window: u32, seen: &[Contribution]) -> (Vec<u64>, u32, Vec<f32>) {
        let Bench { codec, params, adversary } = self;
        let at = MinerContext { run: RUN, window: Window(window), uid: US, params, codec, commitments: &[] };
        let assigned: Vec<u64> = (1000..1000 + u64::from(ASSIGNED)).collect();
        let sequences = adversary.sequences(&at, assigned, 1_000_000);
        let before = theta(codec);
        let after = if sequences.is_empty() { before.clone() } else { trained(codec, US.0) };
        let t = adversary.declares(&at, u32::try_from(sequences.len()).unwrap(), ASSIGNED);
        let trained = TrainedWindow { seen, before: &before, after: &after };
        let outcome = adversary.outcome(&at, &trained).expect("it is not waiting for anybody");
        (sequences, t, delta(&before, &outcome))
    }

    fn present(&mut self, window: u32, commitments: &[(Uid, Digest)]) -> (Presentation, Bytes) {
        let work = delta(&theta(&self.codec), &trained(&self.codec, US.0));
        let bytes = sealed(&self.codec, US, Window(window), &work);
        let Bench { codec, params, adversary } = self;
        let at = MinerContext { run: RUN, window: Window(window), uid: US, params, codec, commitments };
        let own = OwnContribution {
            header: header(codec, US, Window(window)),
            bytes: bytes.clone(),
            signer: &key(US),
        };
        (adversary.present(&at, &own), bytes)
    }

    fn honest_work(&self) -> Vec<f32> {
        delta(&theta(&self.codec), &trained(&self.codec, US.0))
    }

    fn faults(&self) -> Faults {
        self.adversary.faults()
    }
}

fn close(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| (left - right).abs() < 1e-6)
}

fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let dot: f64 = left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum();
    dot / (norm(left) * norm(right))
}

#[test]
fn a_copycat_commits_to_anothers_digest_and_shows_the_others_bytes_which_name_the_other() {
    let mut bench = Bench::of("copycat");
    assert!(bench.adversary.waits_for_commitments());
    assert!(bench.window(3, &[]).0.is_empty(), "it does not train");
    let victim = contribution(&bench.codec, 2, Window(3));
    let commitments = [(US, Digest::of(b"its own")), (Uid(2), victim.digest)];
    let (presentation, _) = bench.present(3, &commitments);
    assert_eq!(presentation.commits.iter().map(|commit| commit.digest).collect::<Vec<_>>(), [victim.digest]);
    assert_eq!(presentation.uploads[0].what, Content::BytesOf(Uid(2)));
    assert_eq!(
        verified(&bench.codec, US, Window(3), &victim.bytes, victim.digest),
        Err(Fault::WrongSeat { got: Uid(2) })
    );
    // Without a seat to copy, it presents nothing.
    assert_eq!(bench.present(4, &[(US, Digest::of(b"its own"))]).0, Presentation::default());
}

#[test]
fn a_copy_of_the_last_window_is_anothers_work_to_the_entry() {
    let mut bench = Bench::of("copycat-last");
    let seen = [contribution(&bench.codec, 1, Window(3)), contribution(&bench.codec, 2, Window(3))];
    assert_eq!(bench.adversary.looks_back(), 1);
    let (sequences, t, sent) = bench.window(4, &seen);
    assert!(sequences.is_empty() && t == ASSIGNED);
    assert!(seen.iter().any(|victim| close(&sent, &values(&bench.codec, victim).unwrap())));
    // The first window has nothing to copy.
    assert_eq!(norm(&bench.window(0, &[]).2), 0.0);
}

#[test]
fn a_mixture_is_the_mean_of_three() {
    let mut bench = Bench::of("copycat-mixture");
    let seen: Vec<_> = (1..=3).map(|uid| contribution(&bench.codec, uid, Window(3))).collect();
    assert_eq!(seen.len(), copycat_last::MIXTURE);
    let mut mean = vec![0.0f32; bench.codec.schema().values()];
    for victim in &seen {
        let victim = values(&bench.codec, victim).unwrap();
        mean.iter_mut().zip(victim).for_each(|(mean, value)| *mean += value / 3.0);
    }
    assert!(close(&bench.window(4, &seen).2, &mean));
    // The mean of one contribution is that contribution.
    let one = values(&bench.codec, &seen[0]).unwrap();
    assert!(close(&bench.window(4, &seen[..1]).2, &one));
}

#[test]
fn freeloaders_declare_everything_and_train_next_to_nothing() {
    for (name, trains) in [
        ("freeloader-zeros", 0),
        ("freeloader-random", 0),
        ("freeloader-tiny", 8),
        ("freeloader-replay", 120),
    ] {
        let (sequences, t, _) = Bench::of(name).window(0, &[]);
        assert_eq!((sequences.len(), t), (trains, ASSIGNED), "{name}");
    }
}

#[test]
fn zeros_are_a_fault_by_their_norm() {
    let mut bench = Bench::of("freeloader-zeros");
    let sent = bench.window(0, &[]).2;
    let bytes = sealed(&bench.codec, US, Window(0), &sent);
    let seen = verified(&bench.codec, US, Window(0), &bytes, Digest::of(&bytes));
    assert_eq!(seen, Err(Fault::AbnormalNorm { rms: 0.0 }));
}

#[test]
fn what_is_made_up_is_as_large_as_what_others_send() {
    for name in ["freeloader-random", "freeloader-tiny"] {
        let mut bench = Bench::of(name);
        let seen = [contribution(&bench.codec, 1, Window(3))];
        let usual = seen[0].square_norms.iter().sum::<f64>().sqrt();
        let sent = bench.window(4, &seen).2;
        assert!((norm(&sent) / usual - 1.0).abs() < 0.01, "{name}");
    }
    let mut tiny = Bench::of("freeloader-tiny");
    let sent = tiny.window(4, &[contribution(&tiny.codec, 1, Window(3))]).2;
    assert!(0.99 < cosine(&sent, &tiny.honest_work()), "one step's work, and no other");
}

#[test]
fn a_replay_trains_once_and_never_again() {
    let mut bench = Bench::of("freeloader-replay");
    let first = bench.window(5, &[]);
    assert_eq!(first.0.len(), 120);
    for window in 6..10 {
        let (sequences, t, sent) = bench.window(window, &[]);
        assert!(sequences.is_empty() && t == ASSIGNED);
        assert!(close(&sent, &first.2));
    }
}

#[test]
fn wrong_data_is_as_much_and_not_the_own() {
    let (sequences, t, _) = Bench::of("wrong-data").window(0, &[]);
    assert_eq!((sequences.len(), t), (120, ASSIGNED));
    assert!(sequences.iter().filter(|sequence| (1000..1120).contains(*sequence)).count() < 3);
}

#[test]
fn partial_data_is_the_first_part_declared_as_all() {
    for (name, trains) in [("partial-data", 12), ("half-data", 60)] {
        let (sequences, t, _) = Bench::of(name).window(0, &[]);
        assert_eq!((sequences, t), ((1000..1000 + trains).collect::<Vec<_>>(), ASSIGNED));
    }
}

/// Returns the codec of a model of two blocks, with a Llama checkpoint's tensor names.
fn codec_of_two_blocks() -> Codec {
    let names = [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight",
    ];
    let tensor = |name: &str| TensorSpec { name: name.to_owned(), shape: vec![100] };
    Codec::new(&Schema::new(names.map(tensor).to_vec()).unwrap(), DENSITY).unwrap()
}

#[test]
fn cheap_training_changes_the_last_layers_only() {
    for (name, changed) in
        [("last-layers", [true, false, true, true]), ("big-rate", [false, false, true, false])]
    {
        let mut bench = Bench { codec: codec_of_two_blocks(), ..Bench::of(name) };
        let (sequences, t, sent) = bench.window(0, &[]);
        assert_eq!((sequences.len(), t), (120, ASSIGNED));
        for (part, changed) in sent.chunks(100).zip(changed) {
            assert_eq!(part.iter().any(|value| *value != 0.0), changed, "{name}");
        }
        if name == "big-rate" {
            assert!((norm(&sent) / norm(&bench.honest_work()) - 1.0).abs() < 1e-3);
        }
    }
}

#[test]
fn distilled_work_is_anothers_with_one_step_on_own_data_and_no_near_duplicate() {
    let mailbox = SharedMailbox::default();
    let seat =
        |index| Bench::with("distilled", &Setup { index, mailbox: mailbox.clone(), ..Setup::default() });
    let (mut first, mut second) = (seat(0), seat(1));
    assert!(first.adversary.trains_ahead() && !second.adversary.trains_ahead());
    let (sequences, t, shared) = first.window(4, &[]);
    assert_eq!((sequences.len(), t), (120, ASSIGNED));

    let (codec, params) = (codec(), params());
    let at = MinerContext {
        run: RUN,
        window: Window(4),
        uid: Uid(8),
        params: &params,
        codec: &codec,
        commitments: &[],
    };
    let before = theta(&codec);
    let sequences = second.adversary.sequences(&at, (0..120).collect(), 1000);
    assert_eq!((sequences.len(), second.adversary.declares(&at, 8, ASSIGNED)), (8, ASSIGNED));
    let own = trained(&codec, 9);
    let of_window = TrainedWindow { seen: &[], before: &before, after: &own };
    let sent = delta(&before, &second.adversary.outcome(&at, &of_window).unwrap());
    let cosine = cosine(&sent, &shared);
    assert!((0.7..0.9).contains(&cosine), "{cosine}");
    let next = MinerContext { window: Window(5), ..at };
    assert_eq!(second.adversary.outcome(&next, &of_window), None, "the first seat has sent nothing yet");
}

#[test]
fn noise_is_as_large_as_the_work_below_it() {
    let mut bench = Bench::of("noise");
    let sent = bench.window(0, &[]).2;
    let cosine = cosine(&sent, &bench.honest_work());
    assert!((0.6..0.8).contains(&cosine), "{cosine}");
    let mut loud = Bench::of("noise-loud");
    let sent = loud.window(0, &[]).2;
    let cosine = self::cosine(&sent, &loud.honest_work());
    assert!((0.2..0.3).contains(&cosine), "{cosine}");
}

#[test]
fn poison_points_backwards_or_is_huge_and_is_no_fault_by_itself() {
    let honest = Bench::of("noise").honest_work();
    let flipped = Bench::of("poison-sign").window(0, &[]).2;
    assert!(close(
        &moved(&flipped, &vec![0.0; flipped.len()]),
        &honest.iter().map(|x| -x).collect::<Vec<_>>()
    ));

    let mut bench = Bench::of("poison-norm");
    let huge = bench.window(0, &[]).2;
    assert!(500.0 < norm(&huge) / norm(&honest) && cosine(&huge, &honest) < -0.9);
    let bytes = sealed(&bench.codec, US, Window(0), &huge);
    verified(&bench.codec, US, Window(0), &bytes, Digest::of(&bytes)).unwrap();
}

#[test]
fn one_shot_poison_comes_once_after_good_work() {
    let mut bench = Bench::with("poison-one-shot", &Setup { good_windows: 3, ..Setup::default() });
    let honest = bench.honest_work();
    for window in 0..8 {
        let sent = bench.window(window, &[]).2;
        let poisoned = cosine(&sent, &honest) < -0.9;
        assert_eq!(poisoned, window == 3, "window {window}");
    }
}

#[test]
fn useless_contributions_and_bombs_are_no_fault_by_themselves() {
    let usual = norm(&Bench::of("noise").honest_work());
    for (name, least, most) in
        [("mute", 0.0, 1e-5), ("junk", 1e-5, 1e-3), ("newcomer-bomb", 1000.0, f64::MAX)]
    {
        let mut bench = Bench::of(name);
        let (sequences, t, _) = bench.window(0, &[]);
        assert!(sequences.is_empty() && t == ASSIGNED, "{name} does not train");
        let (presentation, _) = bench.present(0, &[]);
        let Content::Bytes(bytes) = &presentation.uploads[0].what else { panic!("{name}: bytes") };
        let seen = verified(&bench.codec, US, Window(0), bytes, presentation.commits[0].digest).unwrap();
        let times = seen.square_norms.iter().sum::<f64>().sqrt() / usual;
        assert!(least < times && times < most, "{name} has {times} times the usual norm");
    }
}

#[test]
fn a_quitter_works_and_then_sends_junk() {
    let mut bench = Bench::with("quitter", &Setup { good_windows: 3, ..Setup::default() });
    for window in 0..6 {
        let (sequences, t, _) = bench.window(window, &[]);
        let (presentation, own) = bench.present(window, &[]);
        assert_eq!(!sequences.is_empty(), window < 3);
        assert_eq!(t, ASSIGNED);
        assert_eq!(presentation.commits[0].digest == Digest::of(&own), window < 3, "window {window}");
    }
}

#[test]
fn who_is_late_is_late_with_one_thing_at_a_time() {
    let mut bench = Bench::of("late");
    let (even, _) = bench.present(4, &[]);
    assert_eq!((even.commits[0].when, even.uploads[0].when), (Timing::Late, Timing::InTime));
    let (odd, own) = bench.present(5, &[]);
    assert_eq!((odd.commits[0].when, odd.uploads[0].when), (Timing::InTime, Timing::Late));
    assert_eq!(odd.commits[0].digest, Digest::of(&own));
    let (liar, _) = Bench::of("clock-liar").present(0, &[]);
    assert_eq!((liar.commits[0].when, liar.uploads[0].when), (Timing::InTime, Timing::Late));
    assert!(Bench::of("clock-liar").faults().clock_skew_seconds < -1_000_000);
    let slow = Bench::of("slow-loris").faults();
    assert!(slow.dripped == Rate::Always && (1..1024).contains(&slow.drip_bytes_per_second));
}

#[test]
fn a_withholder_shows_a_steps_work_to_half_of_its_readers() {
    for (validators, readers) in [(3, 1), (4, 2), (5, 2), (10, 5)] {
        let mut bench = Bench::with("withholder", &Setup { validators, ..Setup::default() });
        let (sequences, t, _) = bench.window(0, &[]);
        assert_eq!((sequences.len(), t), (8, ASSIGNED));
        assert_eq!(bench.faults().missing, Rate::AfterFirst(readers), "of {validators}");
    }
}

#[test]
fn an_equivocator_shows_what_it_no_longer_stands_by() {
    let mut bench = Bench::of("equivocator");
    let (presentation, own) = bench.present(0, &[]);
    let digests: Vec<_> = presentation.commits.iter().map(|commit| commit.digest).collect();
    assert_eq!((digests.len(), digests[0]), (2, Digest::of(&own)));
    assert_ne!(digests[1], digests[0]);
    assert!(presentation.uploads.iter().all(|show| show.under != digests[1]));
}

#[test]
fn each_malformed_one_has_the_fault_it_claims_and_no_other() {
    let mut bench = Bench::of("malformed");
    for (window, label) in FAULTS.iter().enumerate() {
        let window = u32::try_from(window).unwrap();
        let (presentation, _) = bench.present(window, &[]);
        let [commit] = presentation.commits[..] else { panic!("{label}: one commitment") };
        assert_eq!(commit.when, Timing::InTime);
        match (*label, presentation.uploads.first()) {
            ("missing", None) => {}
            ("late", Some(show)) => assert_eq!(show.when, Timing::Late),
            (_, Some(show)) => {
                let Content::Bytes(bytes) = &show.what else { panic!("{label}: bytes") };
                assert_eq!((show.under, show.when), (commit.digest, Timing::InTime));
                let fault = verified(&bench.codec, US, Window(window), bytes, commit.digest).unwrap_err();
                assert_eq!(fault.label(), *label, "{fault}");
                // The slow reader gives the same result.
                let slow = Submission::read(bytes).map(|submission| submission.header.window);
                assert_eq!(slow.is_err(), *label == "malformed");
            }
            (label, None) => panic!("{label}: it shows something"),
        }
    }
    // Then it starts from the first again.
    assert!(bench.present(99, &[]).0.uploads.is_empty());
}

#[test]
fn what_is_no_fault_is_shown_as_it_is() {
    let bench = Bench::of("malformed");
    let bytes = sealed(&bench.codec, US, Window(0), &bench.honest_work());
    let own = OwnContribution { header: header(&bench.codec, US, Window(0)), bytes, signer: &key(US) };
    let at = MinerContext {
        run: RUN,
        window: Window(0),
        uid: US,
        params: &bench.params,
        codec: &bench.codec,
        commitments: &[],
    };
    assert_eq!(spoilt("no such fault", &at, &own), Presentation::honest(&own));
}

#[test]
fn the_second_of_two_sybils_waits_for_the_first_and_sends_the_same() {
    let mailbox = SharedMailbox::default();
    let sybil = |index| Bench::with("sybil", &Setup { index, mailbox: mailbox.clone(), ..Setup::default() });
    let (mut first, mut second, mut stranger) = (sybil(2), sybil(3), sybil(5));
    let (codec, params) = (codec(), params());
    let at = MinerContext {
        run: RUN,
        window: Window(4),
        uid: US,
        params: &params,
        codec: &codec,
        commitments: &[],
    };
    let before = theta(&codec);
    let trained = TrainedWindow { seen: &[], before: &before, after: &before };
    assert!(second.adversary.sequences(&at, vec![1, 2], 9).is_empty());
    assert_eq!(second.adversary.outcome(&at, &trained), None);

    let (sequences, t, sent) = first.window(4, &[]);
    assert_eq!((sequences.len(), t), (120, ASSIGNED));
    let (sequences, t, copied) = second.window(4, &[]);
    assert!(sequences.is_empty() && t == ASSIGNED && close(&copied, &sent));
    assert_eq!(stranger.adversary.outcome(&at, &trained), None, "another pair's first");
}
