use super::*;
use protocol::receipt::ReportedFault;
use std::slice;

const GENESIS: GenesisHash = GenesisHash([1; 32]);
const RUN: RunId = RunId(3);
const NOW: Window = Window(8);
const BASE: Digest = Digest([1; 32]);

fn open(directory: &Path) -> SignedDb {
    SignedDb::open(directory, GENESIS, RUN, 0).unwrap().0
}

fn refused(directory: &Path) -> SignedDbError {
    SignedDb::open(directory, GENESIS, RUN, 0).err().expect("the database is refused")
}

fn valid(uids: &[u16]) -> Attestation {
    Attestation { valid: uids.iter().copied().map(Uid).collect(), ..Attestation::default() }
}

fn merged(update: u8) -> MergeRecord {
    MergeRecord { inputs: vec![], update: Digest([update; 32]), state_root: None }
}

fn vote(epoch: u32, weight: u16) -> WeightVote {
    WeightVote { epoch, weights: vec![(Uid(1), weight)], salt: [9; 32] }
}

fn receipt(bytes: &[u8]) -> SignedReceipt {
    SignedReceipt { digest: Digest::of(bytes), bytes: bytes.to_vec() }
}

fn stored(window: u32, bytes: &[u8]) -> StoredReceipt {
    StoredReceipt { window: Window(window), digest: Digest::of(bytes), bytes: Some(bytes.to_vec()) }
}

fn judged(window: u32) -> Reputations {
    Reputations { judged: Some(Window(window)), ..Reputations::default() }
}

#[test]
fn a_weight_vote_survives_a_restart_until_it_is_revealed() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    let stored = db.store_weight_vote(vote(4, 65535)).unwrap();
    assert_eq!(
        db.store_weight_vote(vote(4, 1)).unwrap(),
        stored,
        "the hash of the first may be on the chain"
    );
    drop(db);

    let mut db = open(directory.path());
    assert_eq!(db.store_weight_vote(vote(4, 1)).unwrap(), stored);
    let next = db.store_weight_vote(vote(5, 2)).unwrap();
    assert_eq!(db.weight_votes_before(4), []);
    assert_eq!(db.weight_votes_before(6), [stored.clone(), next.clone()]);
    assert_eq!(
        stored.hash(&Hotkey([5; 32])),
        reveal::commitment(&stored.weights, &[9; 32], &Hotkey([5; 32]))
    );
    db.remove_weight_vote(4).unwrap();
    drop(db);
    assert_eq!(open(directory.path()).weight_votes_before(6), [next]);
}

#[test]
fn after_a_crash_the_window_has_the_same_attestation_and_vote() {
    let directory = tempfile::tempdir().unwrap();
    let mut faulty = valid(&[1, 2]);
    faulty.faulty.push(ReportedFault { uid: Uid(3), label: "late".into(), detail: "it came late".into() });
    assert_eq!(open(directory.path()).store_attestation(NOW, BASE, faulty.clone()).unwrap(), faulty);
    // The next process observed less, and merged other contributions.
    assert_eq!(open(directory.path()).store_attestation(NOW, BASE, valid(&[1])).unwrap(), faulty);
    assert_eq!(open(directory.path()).store_merge(NOW, BASE, merged(1)).unwrap(), merged(1));
    let mut db = open(directory.path());
    assert_eq!(db.store_merge(NOW, BASE, merged(2)).unwrap(), merged(1));
    assert_eq!(
        db.report(NOW),
        Some(&WindowReport { base: BASE, attestation: Some(faulty), merged: Some(merged(1)) })
    );
    // Another window has its own.
    assert_eq!(db.store_attestation(NOW.next(), BASE, valid(&[3])).unwrap(), valid(&[3]));
    assert_eq!(db.unsigned_before(NOW.next()), [NOW]);
}

#[test]
fn each_run_has_its_own_rows() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    db.store_attestation(NOW, BASE, valid(&[1])).unwrap();
    db.store_weight_vote(vote(4, 1)).unwrap();
    db.store_receipt(Window(7), &receipt(b"seven"), Some(judged(7))).unwrap();
    drop(db);
    let (mut other, origin) = SignedDb::open(directory.path(), GENESIS, RunId(4), 0).unwrap();
    assert_eq!(origin, Origin::Found);
    assert_eq!((other.report(NOW), other.weight_vote(4), other.signed_until()), (None, None, None));
    assert_eq!(&**other.reputations(), &Reputations::default());
    other.store_attestation(NOW, BASE, valid(&[2])).unwrap();
    drop(other);
    let db = open(directory.path());
    assert_eq!(db.report(NOW).unwrap().attestation, Some(valid(&[1])));
    assert_eq!(&**db.reputations(), &judged(7));
}

#[test]
fn a_receipt_replaces_the_reports_up_to_its_window() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    for window in 2..5 {
        db.store_attestation(Window(window), BASE, valid(&[1])).unwrap();
    }
    db.store_receipt(Window(2), &receipt(b"two"), None).unwrap();
    db.store_receipt(Window(3), &receipt(b"three"), Some(judged(3))).unwrap();
    drop(db);
    let mut db = open(directory.path());
    assert_eq!(db.unsigned_before(Window(9)), [Window(4)]);
    let latest = PreviousReceipt { window: Window(3), digest: Digest::of(b"three") };
    assert_eq!((db.latest_receipt(), &**db.reputations()), (Some(latest), &judged(3)));
    assert_eq!(db.unanchored_receipts(), [stored(2, b"two"), stored(3, b"three")]);
    db.mark_anchored(Window(2)).unwrap();
    drop(db);
    let db = open(directory.path());
    assert_eq!(db.unanchored_receipts(), [stored(3, b"three")]);
    // A file that differs from the signed bytes is not sent.
    fs::write(db.receipt_path(Window(3)), b"another").unwrap();
    let lost = StoredReceipt { bytes: None, ..stored(3, b"three") };
    assert_eq!(db.unanchored_receipts(), slice::from_ref(&lost));
    assert_eq!(db.receipt(Window(3)), Some(lost));
}

#[test]
fn a_receipt_is_anchored_and_published_at_different_times_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    for (window, bytes) in [(2, b"two"), (3, b"tri"), (4, b"for")] {
        db.store_receipt(Window(window), &receipt(bytes), None).unwrap();
        db.mark_anchored(Window(window)).unwrap();
    }
    drop(db);
    let mut db = open(directory.path());
    assert_eq!(db.unanchored_receipts(), []);
    assert_eq!(db.unpublished_receipts(Window(2)), []);
    assert_eq!(db.unpublished_receipts(Window(4)), [stored(2, b"two"), stored(3, b"tri")]);
    db.mark_published(Window(2)).unwrap();
    drop(db);
    let db = open(directory.path());
    assert_eq!(db.unpublished_receipts(Window(9)), [stored(3, b"tri"), stored(4, b"for")]);
    assert_eq!(db.receipt(Window(2)), Some(stored(2, b"two")));
}

#[test]
fn a_window_has_one_receipt_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    assert!(db.store_receipt(Window(2), &receipt(b"two"), Some(judged(2))).unwrap());
    for _ in 0..2 {
        assert!(!db.store_receipt(Window(2), &receipt(b"another"), Some(judged(9))).unwrap());
        assert!(!db.store_receipt(Window(1), &receipt(b"earlier"), Some(judged(9))).unwrap());
        assert_eq!(db.unanchored_receipts(), [stored(2, b"two")]);
        assert_eq!(&**db.reputations(), &judged(2));
        drop(db);
        db = open(directory.path());
    }
}

#[test]
fn receipts_that_left_the_bucket_leave_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    db.store_receipt(Window(2), &receipt(b"two"), None).unwrap();
    let file = db.receipt_path(Window(2));
    db.store_receipt(Window(2 + daemon::prune::RECEIPT_WINDOWS_KEPT), &receipt(b"x"), None).unwrap();
    assert!(file.exists());
    db.store_receipt(Window(3 + daemon::prune::RECEIPT_WINDOWS_KEPT), &receipt(b"y"), None).unwrap();
    assert!(!file.exists() && db.unpublished_receipts(Window(u32::MAX)).len() == 2);
}

#[test]
fn reports_have_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    for window in 0..20 {
        db.store_attestation(Window(window), BASE, valid(&[1])).unwrap();
    }
    let kept: Vec<Window> = (4..20).map(Window).collect();
    assert_eq!(db.unsigned_before(Window(99)), kept);
    drop(db);
    assert_eq!(open(directory.path()).unsigned_before(Window(99)), kept);
}

/// `tests/nodes/patience.rs` does the same with a full disk and the database itself.
#[test]
fn a_receipt_whose_file_cannot_be_written_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    db.store_merge(NOW, BASE, merged(1)).unwrap();
    // A directory in place of the file.
    let file = db.receipt_path(NOW);
    fs::create_dir_all(file.join("child")).unwrap();
    for _ in 0..2 {
        assert!(db.store_receipt(NOW, &receipt(b"now"), Some(judged(8))).is_err());
        assert_eq!((db.signed_until(), db.unanchored_receipts().len()), (None, 0));
        assert_eq!(
            (db.unsigned_before(NOW.next()), &**db.reputations()),
            (vec![NOW], &Reputations::default())
        );
    }
    fs::remove_dir_all(&file).unwrap();
    // Nothing refers to the failed receipt: the repeated step may store another.
    assert!(db.store_receipt(NOW, &receipt(b"another"), Some(judged(8))).unwrap());
    drop(db);
    let db = open(directory.path());
    assert_eq!(db.unanchored_receipts(), [stored(NOW.0, b"another")]);
}

#[test]
fn after_a_transaction_that_failed_the_reputations_are_those_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(directory.path());
    assert!(db.store_receipt(NOW, &receipt(b"now"), Some(judged(8))).unwrap());
    // It fails after the write, as a sync may.
    let written = form::reputations(&judged(9));
    db.db.write(|tx| tx.put(&REPUTATIONS, &RUN, &written)).unwrap();
    let lost = || DbError::Entry { table: "receipts", source: "on purpose".into() };
    assert!(db.commit(|_, _| Err(lost())).is_err());
    assert_eq!(db.reputations().judged, Some(NOW));
    db.mark_anchored(NOW).unwrap();
    assert_eq!(db.reputations().judged, Some(Window(9)));
}

#[test]
fn a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _open = open(directory.path());
    assert!(matches!(refused(directory.path()), SignedDbError::Db(_)));
}

#[test]
fn a_lost_database_is_created_again_and_its_receipts_are_found() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(SignedDb::open(directory.path(), GENESIS, RUN, 0).unwrap().1, Origin::Created);
    assert_eq!(SignedDb::open(directory.path(), GENESIS, RUN, 0).unwrap().1, Origin::Found);
    fs::remove_file(directory.path().join(FILE)).unwrap();
    assert_eq!(SignedDb::open(directory.path(), GENESIS, RUN, 0).unwrap().1, Origin::Created);
}

#[test]
fn a_damaged_database_is_refused_with_its_path_and_what_its_loss_costs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    open(directory.path()).store_weight_vote(vote(4, 1)).unwrap();
    let whole = fs::read(&path).unwrap();
    for damaged in [b"no database".to_vec(), whole[..whole.len() / 3].to_vec(), vec![0; whole.len()]] {
        fs::write(&path, damaged).unwrap();
        let refused = refused(directory.path());
        assert!(matches!(refused, SignedDbError::Damaged { .. }), "{refused:?}");
        assert!(!daemon::durable::is_full(&refused));
        let text = refused.to_string();
        assert!(text.contains("signed.redb") && text.contains("earns no dividends"), "{text}");
    }
}

#[test]
fn another_format_is_refused_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let db = Db::open(directory.path().join(FILE), Ballast::new(directory.path(), 0)).unwrap();
    // The first format kept the names of imported files in the place of the genesis hash.
    let first: Table<(), (u32, Vec<(String, Digest)>)> = Table::new("meta");
    db.write(|tx| tx.put(&first, &(), &(1, vec![("said.json".to_owned(), Digest([1; 32]))]))).unwrap();
    drop(db);
    assert!(matches!(refused(directory.path()), SignedDbError::Format { found: 1, .. }));
}

#[test]
fn a_directory_of_another_chain_is_refused_with_both_genesis_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let (chain, attested) = (GenesisHash([2; 32]), valid(&[1]));
    open(directory.path()).store_attestation(NOW, BASE, attested.clone()).unwrap();
    let refused = SignedDb::open(directory.path(), chain, RUN, 0).err().expect("the database is refused");
    assert!(matches!(&refused, SignedDbError::OtherChain { found, .. } if *found == GENESIS), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains(&GENESIS.to_string()) && text.contains(&chain.to_string()), "{text}");
    assert_eq!(open(directory.path()).report(NOW).unwrap().attestation, Some(attested));
}
