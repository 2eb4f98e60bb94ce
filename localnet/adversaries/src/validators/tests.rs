use super::{
    favourer::{FAVOUR, Favourer},
    lazy_voter::LazyVoter,
};
use crate::{Setup, validator};
use gauntlet::{LossPair, Measured};
use protocol::{
    Digest, Uid, Window,
    receipt::Attestation,
    view::{Verdict, Vote, WindowView},
};
use std::collections::BTreeMap;
use validator::{evaluate::Measurements, signed_db::WindowReport, strategy::Strategy};

fn view() -> WindowView {
    WindowView {
        window: Window(3),
        opening_hash: None,
        deal_seed: None,
        evaluation_hash: None,
        slots: vec![Uid(3), Uid(4), Uid(5)],
        cursor: 0,
        active_set: vec![(Uid(0), 100), (Uid(1), 100), (Uid(2), 50)],
        lineage: Digest([1; 32]),
        weights: vec![(Uid(3), 65535), (Uid(4), 100), (Uid(5), 0)],
        commitments: vec![(Uid(5), Digest([5; 32])), (Uid(3), Digest([3; 32]))],
        salts: vec![],
        attested: vec![Uid(0)],
        selection: None,
        votes: vec![],
        outcome: None,
        receipts: vec![],
        probe_roots: Vec::new(),
        probes: Vec::new(),
        next_deal: None,
    }
}

fn strategy(name: &str) -> Box<dyn Strategy> {
    validator(name, &Setup::default()).unwrap()
}

fn vote(byte: u8) -> Vote {
    Vote { update: Digest([byte; 32]), state_root: Some(Digest([byte; 32])) }
}

fn measurements() -> Measurements {
    let pairs = |range: std::ops::Range<u64>| range.map(|at| LossPair::new(at, 3.0, 2.9)).collect::<Vec<_>>();
    let measured = Measured { own: pairs(0..8), common: pairs(100..108) };
    let seats = [Uid(3), Uid(4)].into_iter().map(|uid| (uid, measured.clone()));
    Measurements {
        held_out: Default::default(),
        seats: seats.collect::<BTreeMap<_, _>>(),
        near_duplicates: Default::default(),
        sketches: Default::default(),
        seconds: 1.0,
    }
}

const OWN: [(Uid, u16); 3] = [(Uid(3), 60000), (Uid(4), 30000), (Uid(5), 3000)];

#[test]
fn the_copier_posts_the_consensus_and_has_measured_nobody() {
    let mut copier = strategy("weight-copier");
    assert_eq!(copier.weights(&view(), OWN.to_vec()), [(Uid(3), 65535), (Uid(4), 100)]);
    assert!(copier.measured(Window(3), measurements()).seats.is_empty());
    let honest = vec![(Uid(3), Verdict::Valid)];
    assert_eq!(copier.verdicts(&view(), honest.clone()), Some(honest));
}

#[test]
fn the_prober_answers_with_the_losses_before() {
    let mut prober = strategy("prober");
    assert_eq!(prober.weights(&view(), OWN.to_vec()), [(Uid(3), 65535), (Uid(4), 100)]);
    let said = prober.measured(Window(3), measurements());
    assert_eq!(said.seats.len(), 2);
    for Measured { own, common } in said.seats.values() {
        assert!(own.iter().chain(common).all(|pair| pair.before == 3.0 && pair.after == 3.0));
    }
}

#[test]
fn the_receipt_copier_measures_nobody_and_without_receipts_posts_the_consensus() {
    let mut copier = strategy("receipt-copier");
    assert_eq!(copier.weights(&view(), OWN.to_vec()), [(Uid(3), 65535), (Uid(4), 100)]);
    assert!(copier.measured(Window(3), measurements()).seats.is_empty());
}

#[test]
fn the_inventor_measures_the_right_sequences_and_no_true_loss_after() {
    let mut inventor = strategy("inventor");
    let (own, invented) = (measurements(), inventor.measured(Window(3), measurements()));
    assert_eq!(invented, strategy("inventor").measured(Window(3), measurements()), "the same lie again");
    assert_ne!(invented, inventor.measured(Window(4), measurements()));
    for (uid, measured) in &invented.seats {
        let of =
            |pairs: &[LossPair]| pairs.iter().map(|pair| (pair.sequence, pair.before)).collect::<Vec<_>>();
        assert_eq!(of(&measured.own), of(&own.seats[uid].own));
        assert_eq!(of(&measured.common), of(&own.seats[uid].common));
        assert!(measured.common.iter().all(|pair| pair.after != 2.9));
    }
}

#[test]
fn a_friend_gets_ten_times_what_it_earned_and_the_others_keep_their_order() {
    let mut favourer = Favourer { friend: Some(Uid(5)) };
    let posted = favourer.weights(&view(), OWN.to_vec());
    let of =
        |uid| posted.iter().find(|(of, _)| *of == Uid(uid)).map_or(0.0, |(_, weight)| f64::from(*weight));
    assert!((of(5) / of(3) - FAVOUR * 3000.0 / 60000.0).abs() < 1e-3);
    assert!((of(4) / of(3) - 0.5).abs() < 1e-3);
    // A friend without pay gets ten times the others' mean. Without a name, the friend is the last seat.
    let posted = Favourer { friend: None }.weights(&view(), OWN[..2].to_vec());
    assert_eq!(posted.last().map(|(uid, weight)| (*uid, *weight)), Some((Uid(5), 65535)));
    assert_eq!(Favourer { friend: Some(Uid(4)) }.weights(&view(), vec![]), [(Uid(4), 65535)]);
}

#[test]
fn the_absentee_says_nothing_of_the_window_and_posts_weights() {
    let mut absentee = strategy("absentee");
    assert_eq!(absentee.verdicts(&view(), vec![(Uid(3), Verdict::Valid)]), None);
    assert_eq!(absentee.vote(&view(), Some(vote(1))), None);
    assert_eq!(absentee.weights(&view(), OWN.to_vec()), OWN);
}

#[test]
fn the_lazy_voter_votes_with_most_of_the_stake_and_not_before_others_have_voted() {
    let mut lazy = strategy("lazy-voter");
    let all_valid = vec![(Uid(3), Verdict::Valid), (Uid(5), Verdict::Valid)];
    assert_eq!(lazy.verdicts(&view(), vec![]), Some(all_valid));
    let copied = vec![(Uid(3), Verdict::Faulty), (Uid(5), Verdict::Valid)];
    assert_eq!(LazyVoter { copied: copied.clone() }.verdicts(&view(), vec![]), Some(copied));
    assert_eq!(lazy.vote(&view(), None), None);
    let votes = vec![(Uid(0), vote(1)), (Uid(2), vote(2)), (Uid(1), vote(2))];
    assert_eq!(lazy.vote(&WindowView { votes, ..view() }, None), Some(vote(2)));
    assert_eq!(lazy.weights(&view(), vec![]), [(Uid(3), 65535), (Uid(4), 100)]);
}

#[test]
fn the_excluder_names_its_rival_nowhere_and_the_staller_casts_no_vote() {
    let verdicts = vec![(Uid(0), Verdict::Valid), (Uid(3), Verdict::Valid)];
    let mut excluder = strategy("third-excluder");
    assert_eq!(excluder.verdicts(&view(), verdicts.clone()), Some(vec![(Uid(3), Verdict::Valid)]));
    assert_eq!(excluder.weights(&view(), vec![(Uid(0), 5), (Uid(3), 7)]), [(Uid(3), 7)]);
    let mut staller = strategy("paid-stall");
    assert_eq!(staller.verdicts(&view(), verdicts.clone()), Some(verdicts));
    assert_eq!(staller.vote(&view(), Some(vote(1))), None);
}

#[test]
fn the_whitewasher_sees_no_fault_and_the_two_faced_tells_of_it_afterwards() {
    let seen = vec![(Uid(3), Verdict::Faulty), (Uid(5), Verdict::Valid)];
    let washed = Some(vec![(Uid(3), Verdict::Valid), (Uid(5), Verdict::Valid)]);
    assert_eq!(strategy("whitewasher").verdicts(&view(), seen.clone()), washed);

    let mut two_faced = strategy("two-faced");
    assert_eq!(two_faced.verdicts(&view(), seen), washed);
    let attested = Attestation { valid: vec![Uid(3), Uid(5)], ..Attestation::default() };
    let said = WindowReport { attestation: Some(attested), ..WindowReport::default() };
    let told = two_faced.reported(Window(3), said.clone()).attestation.unwrap();
    assert_eq!((told.valid, told.faulty[0].uid), (vec![Uid(5)], Uid(3)));
    assert_eq!(two_faced.reported(Window(3), said.clone()), said, "once a window");
    assert_eq!(strategy("whitewasher").reported(Window(3), said.clone()), said);
}

#[test]
fn a_false_merge_is_another_digest_and_none_where_there_is_no_merge() {
    let mut false_merge = strategy("false-merge");
    let cast = false_merge.vote(&view(), Some(vote(1))).unwrap();
    assert_ne!(cast.update, vote(1).update);
    assert_ne!(cast.state_root, vote(1).state_root);
    assert!(cast.state_root.is_some());
    assert_eq!(false_merge.vote(&view(), None), None);
}
