use super::*;
use crate::Block;
use alloc::{string::ToString as _, vec};
use proptest::{collection::vec as some, prelude::*};

const GENESIS: GenesisHash = GenesisHash([1; 32]);

fn key() -> Signer {
    Signer::new(ed25519_dalek::SigningKey::from_bytes(&[7; 32]), GENESIS)
}

fn params() -> RunParams {
    RunParams { evaluation_sequences: 4, epoch_windows: 3, ..RunParams::default() }
}

fn exact() -> impl Strategy<Value = ExactF64> {
    any::<f64>().prop_map(ExactF64::of)
}

fn uids() -> impl Strategy<Value = Vec<Uid>> {
    proptest::collection::btree_set(any::<u16>(), 0..6).prop_map(|uids| uids.into_iter().map(Uid).collect())
}

fn reputation() -> impl Strategy<Value = Reputation> {
    let penalty = (any::<u32>(), any::<u32>()).prop_map(|(since, remaining)| Penalty {
        reason: PenaltyReason::Harm,
        since: Window(since),
        remaining,
    });
    let numbers = (exact(), exact(), exact(), exact());
    let counts = (any::<u32>(), any::<Option<u32>>(), any::<u32>(), any::<u32>());
    (
        numbers,
        counts,
        some(penalty, 0..3),
        some((exact(), exact()).prop_map(|(score, penalty)| WindowScore { score, penalty }), 0..=3),
    )
        .prop_map(
            |((mu, sigma, own_data_score, share), (first, last, evaluations, faults), penalties, recent)| {
                Reputation {
                    mu,
                    sigma,
                    own_data_score,
                    own_data_variance: share,
                    penalties,
                    first_seen: Window(first),
                    last_evaluated: last.map(Window),
                    unmeasured: faults,
                    evaluations,
                    faults,
                    share,
                    recent,
                }
            },
        )
}

fn reputations() -> impl Strategy<Value = Reputations> {
    (any::<Option<u32>>(), uids(), reputation()).prop_map(|(judged, uids, reputation)| Reputations {
        judged: judged.map(Window),
        seats: uids
            .into_iter()
            .map(|uid| SeatReputation { seat: seat(uid), reputation: reputation.clone() })
            .collect(),
    })
}

fn seat(uid: Uid) -> SeatId {
    SeatId { uid, registered_at: Block(9) }
}

fn observed(common: usize) -> impl Strategy<Value = Observed> {
    let pair = (any::<u64>(), exact(), exact()).prop_map(|(sequence, before, after)| LossPair {
        sequence,
        before,
        after,
    });
    let near_duplicate =
        (any::<u16>(), any::<u32>(), any::<[u8; 32]>(), exact()).prop_map(|(uid, window, digest, alike)| {
            NearDuplicate { uid: Uid(uid), window: Window(window), digest: Digest(digest), alike }
        });
    let measured = (some(pair, 0..=4), some(exact(), common))
        .prop_map(|(own, common_after)| Measured { own, common_after });
    prop_oneof![
        Just(Observed::Absent),
        Just(Observed::Unobserved),
        Just(Observed::Unfetched),
        "[a-zä ]{0,9}".prop_map(|detail| Observed::Faulty { label: "late".into(), detail }),
        (any::<u32>(), proptest::option::of(measured), proptest::option::of(near_duplicate)).prop_map(
            |(trained, measured, near_duplicate)| Observed::Valid { trained, measured, near_duplicate }
        ),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let own_data = (exact(), exact(), exact(), exact()).prop_map(|(gap, error, scale, outcome)| OwnData {
        gap,
        error,
        scale,
        outcome,
    });
    use proptest::option::of;
    (of(exact()), of(exact()), of(own_data), any::<Option<u32>>(), exact(), any::<u16>()).prop_map(
        |(own_gain, common_gain, own_data, rank, score, weight)| Outcome {
            own_gain,
            common_gain,
            common_error: common_gain,
            own_data,
            rank,
            ordinal: score,
            median_rating: score,
            rating_factor: score,
            score,
            weight,
        },
    )
}

fn judgement() -> impl Strategy<Value = Judgement> {
    (0usize..=4).prop_flat_map(|common| {
        let baseline = (any::<u64>(), exact()).prop_map(|(sequence, before)| Baseline { sequence, before });
        let seats = uids().prop_flat_map(move |uids| {
            let each: Vec<_> = uids
                .into_iter()
                .map(|uid| {
                    (observed(common), outcome()).prop_map(move |(observed, result)| SeatJudgement {
                        seat: seat(uid),
                        observed,
                        result,
                    })
                })
                .collect();
            each
        });
        (uids(), any::<u32>(), some(baseline, common), seats, reputations(), uids()).prop_map(
            |(held, budget, common, seats, after, weighted)| Judgement {
                order: held.iter().rev().copied().collect(),
                held,
                budget,
                common,
                seats,
                after,
                weights: weighted.into_iter().map(|uid| (uid, uid.0)).collect(),
            },
        )
    })
}

fn attestation() -> impl Strategy<Value = Attestation> {
    uids().prop_map(|uids| {
        let mut attestation = Attestation::default();
        for uid in uids {
            match uid.0 % 3 {
                0 => attestation.valid.push(uid),
                1 => attestation.faulty.push(ReportedFault {
                    uid,
                    label: "missing".into(),
                    detail: "it committed to bytes that it did not provide".into(),
                }),
                _ => attestation.not_observed.push(NotObserved { uid, reason: "our link".into() }),
            }
        }
        attestation
    })
}

fn receipt() -> impl Strategy<Value = Receipt> {
    let judgement = proptest::option::of(judgement());
    (any::<u32>(), attestation(), reputations(), judgement, any::<[u8; 32]>()).prop_map(
        |(window, attestation, before, judgement, salt)| {
            stated(
                window,
                Receipt {
                    format: FORMAT,
                    run: RunId(1),
                    window: Window(window),
                    validator: seat(Uid(3)),
                    hotkey: key().hotkey(),
                    base: Digest(salt),
                    previous: window
                        .checked_sub(1)
                        .map(|before| PreviousReceipt { window: Window(before), digest: Digest(salt) }),
                    salt,
                    merged: (window % 2 == 0).then(|| MergeRecord {
                        inputs: vec![Selected { uid: Uid(4), digest: Digest(salt) }],
                        update: Digest(salt),
                        state_root: (window % 4 == 0).then_some(Digest(salt)),
                    }),
                    statements: Statements::default(),
                    attestation,
                    before,
                    judgement,
                },
            )
        },
    )
}

/// Returns the receipt with each statement that the window has.
fn stated(window: u32, mut receipt: Receipt) -> Receipt {
    receipt.sign_statements(!window.is_multiple_of(3), !window.is_multiple_of(5), &key());
    receipt
}

fn plain() -> Receipt {
    Receipt {
        format: FORMAT,
        run: RunId(1),
        window: Window(2),
        validator: seat(Uid(3)),
        hotkey: key().hotkey(),
        base: Digest([4; 32]),
        previous: None,
        salt: [5; 32],
        attestation: Attestation::default(),
        merged: None,
        statements: Statements::default(),
        before: Reputations::default(),
        judgement: None,
    }
}

fn remembered(uid: u16) -> SeatReputation {
    let zero = ExactF64::of(0.0);
    let reputation = Reputation {
        mu: zero,
        sigma: zero,
        own_data_score: zero,
        own_data_variance: zero,
        penalties: vec![],
        first_seen: Window(0),
        last_evaluated: None,
        unmeasured: 0,
        evaluations: 0,
        faults: 0,
        share: zero,
        recent: vec![],
    };
    SeatReputation { seat: seat(Uid(uid)), reputation }
}

fn judged() -> Judgement {
    Judgement {
        held: vec![],
        budget: 1,
        order: vec![],
        common: vec![],
        seats: vec![],
        after: Reputations::default(),
        weights: vec![],
    }
}

#[test]
fn a_receipt_is_public_when_no_weight_vote_and_no_probe_can_use_it() {
    let params = |epoch_windows| RunParams { epoch_windows, ..RunParams::default() };
    let from = |window, epoch_windows| public_from(Window(window), &params(epoch_windows)).0;
    assert_eq!([from(0, 10), from(7, 10), from(8, 10), from(9, 10), from(18, 10)], [10, 10, 20, 20, 30]);
    assert_eq!([from(0, 2), from(1, 2), from(2, 2)], [4, 4, 6]);
    assert_eq!(from(u32::MAX, 10), u32::MAX, "no overflow");
    for epoch_windows in [1, 2, 3, 10] {
        let params = params(epoch_windows);
        for now in (0..40).map(Window) {
            let public = |at: &Window| public_from(*at, &params) <= now;
            let open: Vec<_> = (0..40).map(Window).filter(public).collect();
            let end = first_sealed(now, &params);
            assert_eq!(open, (0..end.0).map(Window).collect::<Vec<_>>(), "{now:?}, {epoch_windows}");
        }
        for window in (0..40).map(Window) {
            // It is signed in the next window at the latest, with the weights of that window's epoch.
            let epoch = window.next().epoch(epoch_windows);
            assert!(epoch < public_from(window, &params).epoch(epoch_windows));
        }
    }
}

proptest! {
    #[test]
    fn a_receipt_comes_back_as_it_was_and_in_one_spelling(receipt in receipt()) {
        let sealed = receipt.sign(&key());
        prop_assert!(sealed.bytes.len() <= largest_bytes(&params()));
        let read = Receipt::open(&sealed.bytes, &params(), &GENESIS);
        prop_assert_eq!(read.as_ref(), Ok(&receipt));
        prop_assert_eq!(read.unwrap().sign(&key()), sealed);
    }

    #[test]
    fn a_receipt_of_which_one_bit_is_another_is_refused(receipt in receipt(), place in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let mut bytes = receipt.sign(&key()).bytes;
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(Receipt::open(&bytes, &params(), &GENESIS).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in some(any::<u8>(), 0..400)) {
        let _ = Receipt::open(&bytes, &params(), &GENESIS);
        let _ = Receipt::open(&[&MAGIC[..], &FORMAT.to_le_bytes(), &bytes].concat(), &params(), &GENESIS);
    }
}

#[test]
fn only_the_hotkey_that_a_receipt_names_can_sign_it() {
    let stranger = Signer::new(ed25519_dalek::SigningKey::from_bytes(&[8; 32]), GENESIS);
    let bytes = plain().sign(&stranger).bytes;
    let refused = Err(ReceiptError::NotSigned(SignatureError::BadSignature));
    assert_eq!(Receipt::open(&bytes, &params(), &GENESIS), refused);
    // A signature for another purpose does not count either.
    let body = plain().encode();
    let signature = key().sign(Domain::Statement, &Digest::of(&body).0);
    let bytes = [&MAGIC[..], &body, &signature.0].concat();
    assert_eq!(Receipt::open(&bytes, &params(), &GENESIS), refused);
}

#[test]
fn what_is_no_receipt_is_said_to_be_none() {
    let good = plain().sign(&key()).bytes;
    let open = |bytes: &[u8]| Receipt::open(bytes, &params(), &GENESIS).unwrap_err();
    assert_eq!(open(b""), ReceiptError::NotAReceipt);
    assert_eq!(open(&good[1..]), ReceiptError::NotAReceipt);
    assert_eq!(open(&good[..40]), ReceiptError::NotAReceipt);
    assert_eq!(open(&good[..good.len() - 1]), ReceiptError::Undecodable);
    let newer = Receipt { format: FORMAT + 1, ..plain() };
    assert_eq!(open(&newer.sign(&key()).bytes), ReceiptError::WrongFormat { got: FORMAT + 1 });
    let mut long = good.clone();
    long.resize(largest_bytes(&params()) + 1, 0);
    let largest = largest_bytes(&params());
    assert_eq!(open(&long), ReceiptError::TooLarge { bytes: largest + 1, largest });
    let mut longer = good;
    longer.push(0);
    assert_eq!(open(&longer), ReceiptError::Undecodable);
}

#[test]
fn what_is_out_of_order_or_beyond_its_bound_is_refused() {
    let refused = |receipt: Receipt| match Receipt::open(&receipt.sign(&key()).bytes, &params(), &GENESIS) {
        Err(ReceiptError::Disordered(what)) => what.to_string(),
        other => panic!("{other:?}"),
    };
    let attestation = |valid: &[u16], faulty: &[u16]| {
        let faulty = faulty.iter().map(|uid| ReportedFault {
            uid: Uid(*uid),
            label: "late".into(),
            detail: String::new(),
        });
        let attestation = Attestation {
            valid: valid.iter().map(|uid| Uid(*uid)).collect(),
            faulty: faulty.collect(),
            not_observed: vec![],
        };
        Receipt { attestation, ..plain() }
    };
    assert!(refused(attestation(&[2, 1], &[])).contains("not in order"));
    assert!(refused(attestation(&[1, 1], &[])).contains("not in order"));
    assert!(refused(attestation(&[1], &[1])).contains("two things"));
    let mut wordy = attestation(&[], &[1]);
    wordy.attestation.faulty[0].detail = "x".repeat(TEXT_BYTES_MAX + 1);
    assert!(refused(wordy).contains("too long"));

    let of = |seats: Vec<SeatReputation>| Receipt { before: Reputations { judged: None, seats }, ..plain() };
    assert!(refused(of(vec![remembered(2), remembered(1)])).contains("standings"));
    let mut long = remembered(1);
    long.reputation.recent = vec![WindowScore { score: ExactF64::of(0.0), penalty: ExactF64::of(1.0) }; 4];
    assert!(refused(of(vec![long])).contains("epoch"));
    let mut bad = remembered(1);
    bad.reputation.penalties =
        vec![Penalty { reason: PenaltyReason::Harm, since: Window(0), remaining: 1 }; PENALTIES_MAX + 1];
    assert!(refused(of(vec![bad])).contains("penalties"));

    let with = |judgement: Judgement| Receipt { judgement: Some(judgement), ..plain() };
    let baseline = Baseline { sequence: 1, before: ExactF64::of(1.0) };
    assert!(refused(with(Judgement { common: vec![baseline; 5], ..judged() })).contains("common"));
    let none = Outcome {
        own_gain: None,
        common_gain: None,
        common_error: None,
        own_data: None,
        rank: None,
        ordinal: ExactF64::of(0.0),
        median_rating: ExactF64::of(0.0),
        rating_factor: ExactF64::of(0.0),
        score: ExactF64::of(0.0),
        weight: 0,
    };
    let measured = Measured { own: vec![], common_after: vec![] };
    let observed = Observed::Valid { trained: 1, measured: Some(measured), near_duplicate: None };
    let seats = vec![SeatJudgement { seat: seat(Uid(1)), observed, result: none }];
    assert!(
        refused(with(Judgement { common: vec![baseline], seats, ..judged() })).contains("each of the common")
    );
}

#[test]
fn a_number_that_is_none_cannot_be_written_and_is_not_read() {
    assert_eq!(ExactF64::of(f64::NAN).get(), 0.0);
    assert!(ExactF64::decode(&mut &f64::INFINITY.to_bits().to_le_bytes()[..]).is_err());
    assert!(!ExactF64::of(0.0).same(ExactF64::of(-0.0)));
}

#[test]
fn a_long_text_is_cut_between_two_characters() {
    assert_eq!(text("short"), "short");
    let long = "ä".repeat(200);
    assert_eq!(text(&long).len(), TEXT_BYTES_MAX);
    assert_eq!(text(&alloc::format!("x{long}")).len(), TEXT_BYTES_MAX - 1);
}

#[test]
fn what_is_remembered_after_a_window_without_a_judgement_is_what_was_before() {
    let before = Reputations { judged: Some(Window(1)), seats: vec![remembered(1)] };
    let receipt = Receipt { before: before.clone(), ..plain() };
    assert_eq!(receipt.after(), &before);
    let after = Reputations { judged: Some(Window(2)), seats: vec![] };
    let receipt = Receipt { judgement: Some(Judgement { after: after.clone(), ..judged() }), ..receipt };
    assert_eq!(receipt.after(), &after);
    assert_eq!(receipt.before.of(Uid(1)), Some(&remembered(1)));
    assert_eq!(receipt.of(Uid(1)), None);
}

#[test]
fn what_was_attested_and_voted_is_signed_as_the_chain_takes_it() {
    let fault = ReportedFault { uid: Uid(2), label: "late".into(), detail: "".into() };
    let mut receipt = Receipt {
        attestation: Attestation { valid: vec![Uid(1), Uid(4)], faulty: vec![fault], not_observed: vec![] },
        merged: Some(MergeRecord { inputs: vec![], update: Digest([6; 32]), state_root: None }),
        ..plain()
    };
    assert_eq!(receipt.signed_statements(), []);
    receipt.sign_statements(true, true, &key());
    let [attestation, vote] = receipt.signed_statements()[..] else { panic!("two are signed") };
    let verdicts = vec![(Uid(1), Verdict::Valid), (Uid(2), Verdict::Faulty), (Uid(4), Verdict::Valid)];
    assert_eq!(receipt.verdicts(), verdicts);
    assert_eq!(attestation.statement.digest, Digest::of(&verdicts.encode()));
    let said = Vote { update: Digest([6; 32]), state_root: None };
    assert_eq!(vote.statement.digest, Digest::of(&said.encode()));
    assert!([attestation, vote].iter().all(|signed| signed.verify(&receipt.hotkey, &GENESIS).is_ok()));
    let open = |receipt: &Receipt| Receipt::open(&receipt.sign(&key()).bytes, &params(), &GENESIS);
    assert_eq!(open(&receipt), Ok(receipt.clone()));

    // A signature of another statement proves nothing against a validator, and the receipt is refused.
    let other = Receipt { window: Window(9), ..receipt.clone() };
    assert_eq!(open(&other), Err(ReceiptError::NotSigned(SignatureError::BadSignature)));
    let nothing = Receipt { merged: None, ..receipt };
    assert_eq!(open(&nothing), Err(ReceiptError::Disordered("a vote is signed that is not there")));
}
