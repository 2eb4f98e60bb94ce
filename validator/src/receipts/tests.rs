use super::*;
use crate::gauntlet::{self, Evidence, LossPair, Measured, Observed};
use async_trait::async_trait;
use chain_client::{Amount, Balance, ChainError, Draft, Head, Included};
use codec::Encode as _;
use protocol::{
    Block, Hotkey, SeatId,
    receipt::{FORMAT, ReportedFault, Statements},
    view::{Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, WindowView},
};
use std::{sync::Mutex, time::Duration};
use store::MemoryStore;
use tokio::sync::watch;

const RUN: RunId = RunId(3);
const UID: Uid = Uid(9);

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn load(directory: &Path) -> Receipts {
    Receipts::load(directory, RUN, &RunParams::default(), key()).unwrap()
}

fn receipt(window: Window, previous: Option<PreviousReceipt>, said: WindowReport) -> Receipt {
    Receipt {
        format: FORMAT,
        run: RUN,
        window,
        validator: SeatId { uid: UID, registered_at: Block(1) },
        hotkey: Hotkey(key().verifying_key().to_bytes()),
        base: said.base,
        previous,
        salt: [4; 32],
        attestation: said.attestation.unwrap_or_default(),
        merged: said.merged,
        statements: Statements::default(),
        before: Reputations { judged: window.previous(), seats: vec![] },
        judgement: None,
    }
}

fn seal(receipts: &mut Receipts, window: u32) -> Option<Digest> {
    let window = Window(window);
    receipts
        .sign_and_store(window, Confirmed::default(), |previous, said| receipt(window, previous, said))
        .unwrap()
}

fn valid(uids: &[u16]) -> Attestation {
    Attestation { valid: uids.iter().map(|uid| Uid(*uid)).collect(), ..Attestation::default() }
}

fn merged(update: u8) -> MergeRecord {
    MergeRecord { inputs: vec![], update: Digest([update; 32]), state_root: None }
}

#[test]
fn whoever_is_killed_says_of_a_window_what_it_said_before() {
    let directory = tempfile::tempdir().unwrap();
    let base = Digest([1; 32]);
    let mut receipts = load(directory.path());
    assert_eq!(receipts.attest(Window(2), base, valid(&[1, 2])).unwrap(), valid(&[1, 2]));
    let mut receipts = load(directory.path());
    assert_eq!(receipts.attest(Window(2), base, valid(&[1])).unwrap(), valid(&[1, 2]));
    assert_eq!(receipts.vote(Window(2), base, merged(1)).unwrap(), merged(1));
    let mut receipts = load(directory.path());
    assert_eq!(receipts.vote(Window(2), base, merged(2)).unwrap(), merged(1));
    // Another window has its own.
    assert_eq!(receipts.attest(Window(3), base, valid(&[3])).unwrap(), valid(&[3]));
    assert_eq!(receipts.unsigned_before(Window(3)), [Window(2)]);
    assert_eq!(receipts.report(Window(2)).unwrap().base, base);
}

#[test]
fn what_cannot_be_kept_is_neither_said_nor_sealed() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("receipts").join(RUN.to_string());
    let (said, sealed) = (directory.join("said.json"), directory.join(format!("{}.pending", Window(2))));
    // A directory in the way of each file.
    let block = |path: &Path| std::fs::create_dir_all(path.join("child")).unwrap();
    let clear = |path: &Path| std::fs::remove_dir_all(path).unwrap();
    let base = Digest([1; 32]);
    let mut receipts = load(home.path());
    block(&said);
    for _ in 0..2 {
        assert!(receipts.attest(Window(2), base, valid(&[1])).is_err());
        assert!(receipts.vote(Window(2), base, merged(1)).is_err());
        assert_eq!(receipts.report(Window(2)), None);
    }
    clear(&said);
    // Once it can be, it is what is seen by then.
    assert_eq!(receipts.attest(Window(2), base, valid(&[1, 2])).unwrap(), valid(&[1, 2]));
    assert_eq!(load(home.path()).report(Window(2)), receipts.report(Window(2)));

    let write = |previous, said| receipt(Window(2), previous, said);
    block(&sealed);
    for _ in 0..2 {
        assert!(receipts.sign_and_store(Window(2), Confirmed::default(), write).is_err());
        assert_eq!((receipts.signed_until(), receipts.pending()), (None, vec![]));
        assert!(receipts.report(Window(2)).is_some());
    }
    clear(&sealed);
    let digest = receipts.sign_and_store(Window(2), Confirmed::default(), write).unwrap();
    assert_eq!(load(home.path()).pending().first().map(|(_, sealed)| sealed.digest), digest);
}

#[test]
fn only_what_the_chain_took_as_it_was_said_is_stated_again() {
    let said = WindowReport {
        attestation: Some(valid(&[1, 2])),
        merged: Some(merged(1)),
        ..WindowReport::default()
    };
    let told = valid(&[1, 2]).verdicts();
    let vote = |byte| Some(Vote { update: Digest([byte; 32]), state_root: None });
    let taken = |attestation, vote| said.confirmed(attestation, vote);
    assert_eq!(taken(Some(&told[..]), vote(1)), Confirmed { attestation: true, vote: true });
    // Refused, or never sent.
    assert_eq!(taken(None, None), Confirmed::default());
    // Another process had the seat's key, and was first.
    assert_eq!(taken(Some(&told[..1]), vote(2)), Confirmed::default());
    // A lost disk remembers nothing.
    assert_eq!(WindowReport::default().confirmed(Some(&told[..]), vote(1)), Confirmed::default());

    let directory = tempfile::tempdir().unwrap();
    let mut receipts = load(directory.path());
    receipts.attest(Window(2), Digest([1; 32]), valid(&[1, 2])).unwrap();
    let taken = Confirmed { attestation: true, vote: true };
    receipts.sign_and_store(Window(2), taken, |previous, said| receipt(Window(2), previous, said)).unwrap();
    let (_, SignedReceipt { bytes, .. }) = receipts.pending().remove(0);
    let statements = Receipt::open(&bytes, &RunParams::default()).unwrap().signed_statements();
    assert_eq!(statements.len(), 1, "there was no vote");
    assert_eq!(statements[0].statement.digest, Digest::of(&told.encode()));
}

#[test]
fn a_window_has_one_receipt_and_each_names_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let mut receipts = load(directory.path());
    let first = seal(&mut receipts, 2).unwrap();
    assert_eq!(seal(&mut receipts, 2), None, "a second one is never signed");
    assert_eq!(seal(&mut receipts, 1), None, "nor one for a window before");
    let third = seal(&mut receipts, 5).unwrap();

    // Nor after a restart.
    let mut receipts = load(directory.path());
    assert_eq!(seal(&mut receipts, 5), None);
    let pending = receipts.pending();
    assert_eq!(
        pending.iter().map(|(window, sealed)| (window.0, sealed.digest)).collect::<Vec<_>>(),
        [(2, first), (5, third)]
    );
    let last = Receipt::open(&pending[1].1.bytes, &RunParams::default()).unwrap();
    assert_eq!(last.previous, Some(PreviousReceipt { window: Window(2), digest: first }));
    assert_eq!(receipts.reputations(), Some(last.after()));
}

#[test]
fn a_receipt_holds_what_was_said_in_its_window_and_it_is_forgotten_then() {
    let directory = tempfile::tempdir().unwrap();
    let mut receipts = load(directory.path());
    let mut attested = valid(&[1]);
    attested.faulty.push(ReportedFault { uid: Uid(2), label: "late".into(), detail: "it came late".into() });
    receipts.attest(Window(2), Digest([1; 32]), attested.clone()).unwrap();
    receipts.vote(Window(2), Digest([1; 32]), merged(1)).unwrap();
    receipts.attest(Window(3), Digest([2; 32]), valid(&[1])).unwrap();
    seal(&mut receipts, 2).unwrap();
    let sealed = Receipt::open(&receipts.pending()[0].1.bytes, &RunParams::default()).unwrap();
    assert_eq!(
        (sealed.attestation, sealed.merged, sealed.base),
        (attested, Some(merged(1)), Digest([1; 32]))
    );
    assert!(receipts.report(Window(2)).is_none() && receipts.report(Window(3)).is_some());
}

#[test]
fn a_damaged_file_is_refused_with_a_word_on_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("receipts/3");
    let refused =
        || Receipts::load(directory.path(), RUN, &RunParams::default(), key()).err().unwrap().to_string();
    seal(&mut load(directory.path()), 2).unwrap();
    std::fs::write(folder.join("said.json"), b"[").unwrap();
    assert!(refused().contains("remove it to go on"));
    std::fs::remove_file(folder.join("said.json")).unwrap();
    std::fs::write(folder.join("00000002.pending"), b"MTLR").unwrap();
    assert!(refused().contains("remove it to go on"));
}

/// A chain that takes anchors as it is told to.
struct Anchors {
    refusals: Mutex<Vec<ChainError>>,
    taken: Mutex<Vec<(Window, Digest)>>,
}

impl Anchors {
    fn refusing(refusals: Vec<ChainError>) -> Arc<Anchors> {
        Arc::new(Anchors { refusals: Mutex::new(refusals), taken: Mutex::default() })
    }
}

fn refused(error: &str) -> ChainError {
    ChainError::Refused {
        doing: "anchoring".into(),
        pallet: "Windows".into(),
        error: error.into(),
        docs: String::new(),
    }
}

/// What no test here asks.
fn unasked<T>() -> Result<T, ChainError> {
    Err(ChainError::NoSuchRun(RUN))
}

#[async_trait]
impl Chain for Anchors {
    fn heads(&self) -> watch::Receiver<Head> {
        watch::channel(Head { block: Block(0), hash: Digest::default() }).1
    }
    async fn best_block(&self) -> Result<Block, ChainError> {
        unasked()
    }
    fn account(&self) -> Option<Account> {
        None
    }
    async fn runs(&self) -> Result<Vec<RunId>, ChainError> {
        unasked()
    }
    async fn run(&self, _: RunId) -> Result<RunView, ChainError> {
        unasked()
    }
    async fn seats(&self, _: RunId) -> Result<Vec<SeatView>, ChainError> {
        unasked()
    }
    async fn window(&self, _: RunId, window: Window) -> Result<Option<WindowView>, ChainError> {
        let taken = self.taken.lock().unwrap();
        let receipts = taken.iter().filter(|(of, _)| *of == window).map(|(_, digest)| (UID, *digest));
        Ok(Some(WindowView {
            window,
            opening_hash: None,
            evaluation_hash: None,
            slots: vec![],
            cursor: 0,
            electorate: vec![],
            lineage: Digest::default(),
            weights: vec![],
            commitments: vec![],
            salts: vec![],
            attested: vec![],
            selection: None,
            votes: vec![],
            outcome: None,
            receipts: receipts.collect(),
        }))
    }
    async fn weights(&self, _: RunId) -> Result<Vec<(Uid, u16)>, ChainError> {
        unasked()
    }
    async fn balance(&self, _: &Account) -> Result<Balance, ChainError> {
        Ok(Balance { free: Amount::ZERO, held: Amount::ZERO })
    }
    async fn status(&self, _: RunId) -> Result<RunStatus, ChainError> {
        unasked()
    }
    async fn seat_statuses(&self, _: RunId, _: Uid, _: u32) -> Result<Vec<SeatStatus>, ChainError> {
        unasked()
    }
    async fn account_status(&self, _: RunId, _: &Account) -> Result<AccountStatus, ChainError> {
        unasked()
    }
    async fn payslips(&self, _: RunId, _: Uid) -> Result<Vec<Payslip>, ChainError> {
        unasked()
    }
    async fn bonds(&self, _: RunId, _: Uid) -> Result<Vec<(Uid, u32)>, ChainError> {
        unasked()
    }
    async fn block_time(&self) -> Result<Duration, ChainError> {
        Ok(Duration::from_secs(1))
    }
    async fn draft(&self, _: &Call, _: &Account) -> Result<Draft, ChainError> {
        unasked()
    }
    async fn submit(&self, call: Call) -> Result<Included, ChainError> {
        let Call::AnchorReceipts { window, digest, .. } = call else { return unasked() };
        if let Some(error) = self.refusals.lock().unwrap().pop() {
            return Err(error);
        }
        let mut taken = self.taken.lock().unwrap();
        if taken.iter().any(|(of, _)| *of == window) {
            return Err(refused("AlreadyAnchored"));
        }
        taken.push((window, digest));
        Ok(Included { block: Block(1), hash: Digest::default() })
    }
}

/// Publishes what is pending and takes note of it; says for each window whether it is on the chain, and whether that is over.
async fn publish_all(
    receipts: &mut Receipts,
    store: &Arc<MemoryStore>,
    chain: &Arc<Anchors>,
) -> Vec<(u32, bool)> {
    let done = publish(store.clone(), chain.clone(), RUN, UID, receipts.pending()).await;
    done.iter().for_each(|published| receipts.note(published).unwrap());
    done.into_iter().map(|published| (published.window.0, published.anchored.is_ok())).collect()
}

#[tokio::test]
async fn a_receipt_is_in_the_bucket_before_its_digest_is_on_the_chain_and_a_restart_publishes_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![]));
    let digest = seal(&mut load(directory.path()), 2).unwrap();

    let mut receipts = load(directory.path());
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, true)]);
    assert_eq!(*chain.taken.lock().unwrap(), [(Window(2), digest)]);
    assert!(store.head(&keys::receipt(RUN, Window(2), UID, &digest)).await.is_ok());
    assert!(receipts.pending().is_empty() && load(directory.path()).pending().is_empty());
    assert_eq!(load(directory.path()).signed_until(), Some(Window(2)));
}

#[tokio::test]
async fn what_fails_is_tried_again_and_holds_back_only_what_comes_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let early = ChainError::Unreachable {
        doing: "anchoring".into(),
        url: "ws://gone".into(),
        waited: Duration::ZERO,
        last: String::new(),
        sent: false,
    };
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![refused("TooEarly"), early]));
    let mut receipts = load(directory.path());
    seal(&mut receipts, 2).unwrap();
    seal(&mut receipts, 3).unwrap();
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, false)]);
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, false)]);
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, true), (3, true)]);
}

#[tokio::test]
async fn what_the_chain_will_never_take_is_given_up_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![refused("WindowNotKept")]));
    chain.taken.lock().unwrap().push((Window(3), Digest([9; 32])));
    let mut receipts = load(directory.path());
    seal(&mut receipts, 2).unwrap();
    seal(&mut receipts, 3).unwrap();
    seal(&mut receipts, 4).unwrap();
    // Forgotten; another one of ours is there; taken.
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, false), (3, false), (4, true)]);
    assert!(receipts.pending().is_empty());
}

#[tokio::test]
async fn a_receipt_that_a_predecessor_anchored_is_found_anchored() {
    let directory = tempfile::tempdir().unwrap();
    let mut receipts = load(directory.path());
    let digest = seal(&mut receipts, 2).unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![]));
    chain.taken.lock().unwrap().push((Window(2), digest));
    assert_eq!(publish_all(&mut receipts, &store, &chain).await, [(2, true)]);
}

#[test]
fn evidence_and_standings_come_back_from_a_receipt_to_the_last_bit() {
    let params = RunParams { evaluation_sequences: 3, ..RunParams::default() };
    let pairs =
        |by: f64| (0..3).map(|i| LossPair::new(i, 3.1 + i as f64 / 7.0, 3.0 + i as f64 / 7.0 - by)).collect();
    let seat = |uid| SeatId { uid: Uid(uid), registered_at: Block(2) };
    let measured = |by: f64| Some(Measured { own: pairs(by * 1.1), common: pairs(by) });
    let of = |uid, observed| Evidence { seat: seat(uid), observed };
    let near_duplicate =
        gauntlet::NearDuplicate { uid: Uid(1), window: Window(1), digest: Digest([3; 32]), alike: 0.91 };
    let evidence = [
        of(1, Observed::Valid { trained: 500, measured: measured(0.01), near_duplicate: None }),
        of(
            2,
            Observed::Valid { trained: 512, measured: measured(-0.3), near_duplicate: Some(near_duplicate) },
        ),
        of(3, Observed::Valid { trained: 512, measured: None, near_duplicate: None }),
        of(4, Observed::Faulty { label: "late".into(), detail: "it came late".into() }),
        of(5, Observed::Unobserved),
        of(6, Observed::Absent),
    ];
    let before = gauntlet::judge(&params, &Default::default(), Window(0), &evidence).reputations;
    let verdict = gauntlet::judge(&params, &before, Window(1), &evidence);
    let judgement = form::judgement(form::Plan::default(), &evidence, &verdict);
    assert_eq!(form::evidence(&judgement), evidence);
    assert_eq!(form::remembered(&judgement.after), verdict.reputations);

    let mut receipt = receipt(Window(1), None, WindowReport::default());
    receipt.before = form::reputations(&before);
    receipt.judgement = Some(judgement.clone());
    let read = Receipt::open(&receipt.sign(&key()).bytes, &params).unwrap();
    let again = form::judged_again(&params, &read, &judgement);
    assert_eq!(again, verdict);
}
