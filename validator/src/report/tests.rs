use super::*;
use crate::signed_db::SignedDb;
use async_trait::async_trait;
use chain_client::{Amount, Balance, Call, Chain, ChainError, Draft, Head};
use codec::Encode as _;
use ed25519_dalek::SigningKey;
use gauntlet::{Evidence, LossPair, Measured, Observed, form};
use protocol::{
    Block, GenesisHash, RunId, RunParams, SeatId, Terms,
    identity::Signer,
    keys,
    receipt::{FORMAT, MergeRecord, PreviousReceipt, Reputations, SignedReceipt},
    view::{
        Account, AccountStatus, Payslip, RunStatus, RunView, SeatStatus, SeatView, SeatWindow, WindowSummary,
        WindowView,
    },
};
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use store::{
    MemoryStore, Store as _,
    faults::{Faults, FaultyStore, Rate},
};
use tokio::sync::watch;

const RUN: RunId = RunId(3);
const UID: Uid = Uid(9);

const GENESIS: GenesisHash = GenesisHash([1; 32]);

fn key() -> Signer {
    Signer::new(SigningKey::from_bytes(&[7; 32]), GENESIS)
}

fn open(directory: &Path) -> SignedDb {
    SignedDb::open(directory, GENESIS, RUN, 0).unwrap().0
}

fn receipt(window: Window, previous: Option<PreviousReceipt>, report: WindowReport) -> Receipt {
    Receipt {
        format: FORMAT,
        run: RUN,
        window,
        validator: SeatId { uid: UID, registered_at: Block(1) },
        hotkey: key().hotkey(),
        base: report.base,
        previous,
        salt: [4; 32],
        attestation: report.attestation.unwrap_or_default(),
        merged: report.merged,
        statements: Statements::default(),
        before: Reputations { judged: window.previous(), seats: vec![] },
        judgement: None,
    }
}

fn run() -> RunView {
    RunView {
        id: RUN,
        owner: [0; 32],
        params: RunParams::default(),
        terms: Terms::default(),
        spec: Digest::default(),
        manifest: Digest::default(),
        theta0: Digest::default(),
        origin: String::new(),
        treasury: 0,
        checkpoint: None,
        rewound: None,
        paused: false,
    }
}

/// Stores a signed receipt for `window`.
fn store(signed: &mut SignedDb, window: u32) -> Digest {
    let window = Window(window);
    let receipt = receipt(window, signed.latest_receipt(), WindowReport::default());
    let SignedReceipt { digest, bytes } = receipt.sign(&key());
    signed.store_receipt(window, &SignedReceipt { digest, bytes }, None).unwrap();
    digest
}

fn valid(uids: &[u16]) -> Attestation {
    Attestation { valid: uids.iter().map(|uid| Uid(*uid)).collect(), ..Attestation::default() }
}

fn merged(update: u8) -> MergeRecord {
    MergeRecord { inputs: vec![], update: Digest([update; 32]), state_root: None }
}

#[test]
fn only_what_the_chain_has_as_it_was_stored_is_signed_as_a_statement() {
    let report = WindowReport {
        attestation: Some(valid(&[1, 2])),
        merged: Some(merged(1)),
        ..WindowReport::default()
    };
    let verdicts = valid(&[1, 2]).verdicts();
    let vote = |byte| Some(Vote { update: Digest([byte; 32]), state_root: None });
    let confirmed = |attestation, vote| Confirmed::of(&report, attestation, vote);
    assert_eq!(confirmed(Some(&verdicts[..]), vote(1)), Confirmed { attestation: true, vote: true });
    // Refused, or never sent.
    assert_eq!(confirmed(None, None), Confirmed::default());
    // Another process with the seat's key came first.
    assert_eq!(confirmed(Some(&verdicts[..1]), vote(2)), Confirmed::default());
    // The disk was lost.
    assert_eq!(Confirmed::of(&WindowReport::default(), Some(&verdicts[..]), vote(1)), Confirmed::default());

    let report = WindowReport { attestation: Some(valid(&[1, 2])), ..WindowReport::default() };
    let mut receipt = receipt(Window(2), None, report);
    receipt.sign_statements(true, true, &key());
    let opened = Receipt::open(&receipt.sign(&key()).bytes, &RunParams::default(), &GENESIS).unwrap();
    let statements = opened.signed_statements();
    assert_eq!(statements.len(), 1, "there was no vote");
    assert_eq!(statements[0].statement.digest, Digest::of(&verdicts.encode()));
}

#[test]
fn each_receipt_names_the_one_before_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut signed = open(directory.path());
    let first = store(&mut signed, 2);
    drop(signed);
    let mut signed = open(directory.path());
    let second = store(&mut signed, 5);
    let pending = signed.unanchored_receipts();
    let digests: Vec<_> = pending.iter().map(|stored| (stored.window.0, stored.digest)).collect();
    assert_eq!(digests, [(2, first), (5, second)]);
    let last = Receipt::open(pending[1].bytes.as_ref().unwrap(), &RunParams::default(), &GENESIS).unwrap();
    assert_eq!(last.previous, Some(PreviousReceipt { window: Window(2), digest: first }));
}

/// A chain that accepts anchors, after the given refusals.
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

/// Fails calls that no test here makes.
fn unasked<T>() -> Result<T, ChainError> {
    Err(ChainError::NoSuchRun(RUN))
}

#[async_trait]
impl Chain for Anchors {
    fn genesis(&self) -> GenesisHash {
        GENESIS
    }
    fn is_development(&self) -> bool {
        true
    }
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
            deal_seed: None,
            evaluation_hash: None,
            slots: vec![],
            cursor: 0,
            active_set: vec![],
            lineage: Digest::default(),
            weights: vec![],
            commitments: vec![],
            salts: vec![],
            attested: vec![],
            selection: None,
            votes: vec![],
            outcome: None,
            receipts: receipts.collect(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        }))
    }
    async fn seat(&self, _: RunId, _: Uid) -> Result<Option<SeatView>, ChainError> {
        unasked()
    }
    async fn window_summary(&self, _: RunId, _: Window) -> Result<Option<WindowSummary>, ChainError> {
        unasked()
    }
    async fn seat_window(&self, _: RunId, _: Window, _: Uid) -> Result<Option<SeatWindow>, ChainError> {
        unasked()
    }
    async fn update_mirrors(&self, _: RunId, _: Window, _: u32, _: u32) -> Result<Vec<String>, ChainError> {
        unasked()
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
    async fn submit(&self, call: Call) -> Result<Head, ChainError> {
        let Call::AnchorReceipts { window, digest, .. } = call else { return unasked() };
        if let Some(error) = self.refusals.lock().unwrap().pop() {
            return Err(error);
        }
        let mut taken = self.taken.lock().unwrap();
        if taken.iter().any(|(of, _)| *of == window) {
            return Err(refused("AlreadyAnchored"));
        }
        taken.push((window, digest));
        Ok(Head { block: Block(1), hash: Digest::default() })
    }
}

/// Anchors receipts and marks those that are finished. Returns each window, and whether its receipt is on the chain.
async fn anchor_all(signed: &mut SignedDb, chain: &Arc<Anchors>) -> Vec<(u32, bool)> {
    let done = anchor(chain.clone(), run(), UID, signed.unanchored_receipts()).await;
    let finished = done.iter().filter(|delivery| delivery.is_over());
    finished.for_each(|delivery| signed.mark_anchored(delivery.window).unwrap());
    done.into_iter().map(|delivery| (delivery.window.0, delivery.outcome.is_ok())).collect()
}

/// Uploads the receipts of windows before `end` and marks those that are finished. Returns the same as
/// [`anchor_all`].
async fn publish_before(signed: &mut SignedDb, store: &Arc<MemoryStore>, end: u32) -> Vec<(u32, bool)> {
    let done = publish(store.clone(), RUN, UID, signed.unpublished_receipts(Window(end))).await;
    let finished = done.iter().filter(|delivery| delivery.is_over());
    finished.for_each(|delivery| signed.mark_published(delivery.window).unwrap());
    done.into_iter().map(|delivery| (delivery.window.0, delivery.outcome.is_ok())).collect()
}

#[tokio::test]
async fn a_restart_sends_the_same_receipt_to_the_chain_and_later_to_the_bucket() {
    let directory = tempfile::tempdir().unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![]));
    let digest = self::store(&mut open(directory.path()), 2);
    let key = keys::receipt(RUN, Window(2), UID, &digest);

    let mut signed = open(directory.path());
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, true)]);
    assert_eq!(*chain.taken.lock().unwrap(), [(Window(2), digest)]);
    assert!(store.get(&key, 1 << 30).await.is_err(), "it is anchored, and not public");
    drop(signed);
    let mut signed = open(directory.path());
    assert_eq!(anchor_all(&mut signed, &chain).await, []);
    assert_eq!(publish_before(&mut signed, &store, 2).await, []);
    assert_eq!(publish_before(&mut signed, &store, 3).await, [(2, true)]);
    assert!(store.get(&key, 1 << 30).await.is_ok());
    drop(signed);
    let signed = open(directory.path());
    assert!(signed.unanchored_receipts().is_empty() && signed.unpublished_receipts(Window(9)).is_empty());
    assert_eq!(signed.signed_until(), Some(Window(2)));
}

#[tokio::test]
async fn a_failed_receipt_is_retried_before_later_ones() {
    let directory = tempfile::tempdir().unwrap();
    let early = ChainError::Unreachable {
        doing: "anchoring".into(),
        url: "ws://gone".into(),
        waited: Duration::ZERO,
        last: String::new(),
        sent: false,
    };
    let chain = Anchors::refusing(vec![refused("TooEarly"), early]);
    let mut signed = open(directory.path());
    self::store(&mut signed, 2);
    self::store(&mut signed, 3);
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, false)]);
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, false)]);
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, true), (3, true)]);
}

#[tokio::test]
async fn a_bucket_that_fails_delays_no_anchor_and_loses_no_receipt() {
    let directory = tempfile::tempdir().unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![]));
    let faults = Faults { unavailable: Rate::Always, ..Faults::default() };
    let broken = Arc::new(FaultyStore::new(store.clone(), 1, faults));
    let mut signed = open(directory.path());
    self::store(&mut signed, 2);
    self::store(&mut signed, 3);
    let done = publish(broken, RUN, UID, signed.unpublished_receipts(Window(4))).await;
    assert_eq!((done.len(), done[0].is_over()), (1, false));
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, true), (3, true)]);
    assert_eq!(publish_before(&mut signed, &store, 4).await, [(2, true), (3, true)]);
}

#[tokio::test]
async fn a_receipt_that_the_chain_will_never_take_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let (store, chain) = (Arc::new(MemoryStore::new()), Anchors::refusing(vec![refused("WindowNotKept")]));
    chain.taken.lock().unwrap().push((Window(3), Digest([9; 32])));
    let mut signed = open(directory.path());
    for window in 2..6 {
        self::store(&mut signed, window);
    }
    std::fs::remove_file(directory.path().join(format!("receipts/{RUN}/{}.receipt", Window(4)))).unwrap();
    // Forgotten; the chain has another one; lost from the disk; anchored.
    let anchored = anchor_all(&mut signed, &chain).await;
    assert_eq!(anchored, [(2, false), (3, false), (4, false), (5, true)]);
    assert!(signed.unanchored_receipts().is_empty());
    // The audit of the next window needs the bytes of each that is not lost.
    let published = publish_before(&mut signed, &store, 6).await;
    assert_eq!(published, [(2, true), (3, true), (4, false), (5, true)]);
    assert!(signed.unpublished_receipts(Window(9)).is_empty());
}

#[tokio::test]
async fn a_receipt_anchored_before_a_crash_counts_as_anchored() {
    let directory = tempfile::tempdir().unwrap();
    let mut signed = open(directory.path());
    let digest = self::store(&mut signed, 2);
    let chain = Anchors::refusing(vec![]);
    chain.taken.lock().unwrap().push((Window(2), digest));
    assert_eq!(anchor_all(&mut signed, &chain).await, [(2, true)]);
}

#[test]
fn evidence_and_reputations_survive_a_receipt_to_the_last_bit() {
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
        of(7, Observed::Unfetched),
    ];
    let before = gauntlet::judge(&params, &Default::default(), Window(0), &evidence).reputations;
    let verdict = gauntlet::judge(&params, &before, Window(1), &evidence);
    let judgement = form::judgement(form::Plan::default(), &evidence, &verdict);
    assert_eq!(form::evidence(&judgement), evidence);
    assert_eq!(form::remembered(&judgement.after), verdict.reputations);

    let mut receipt = receipt(Window(1), None, WindowReport::default());
    receipt.before = form::reputations(&before);
    receipt.judgement = Some(judgement.clone());
    let read = Receipt::open(&receipt.sign(&key()).bytes, &params, &GENESIS).unwrap();
    let again = form::judged_again(&params, &read, &judgement);
    assert_eq!(again, verdict);
}
