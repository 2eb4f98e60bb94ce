//! The client against the embedded chain: reads, submissions and faults.

mod support;

use embedded_chain::{Config, EmbeddedChain, Sealing};
use mettle_chain_client::{
    Amount, Call, Chain, ChainError, SubxtChain,
    account::{self, SeatRequest},
    keys::Key,
};
use protocol::{Block, Digest, GenesisHash, Role, RunId, Uid, Window, view::SeatView};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use support::{
    at_home, busy, busy_chain, catch_up, chain_without_a_clock, client, create_run, dev, free, head,
    idle_chain, patient, patient_for,
    proxy::{Proxy, Wire},
    start, until_pooled, wait_for,
};

const ONE: Amount = Amount::mtl(1);

fn seat_request(run: RunId, hotkey: &Key) -> SeatRequest {
    SeatRequest {
        run,
        role: Role::Miner,
        hotkey: hotkey.clone(),
        endpoint: "http://127.0.0.1:9000/miner".into(),
        stake: Amount::mtl(10),
        hotkey_funds: ONE,
        price_max: None,
    }
}

/// Produces blocks until `what` is complete.
async fn seal_until<T>(chain: &EmbeddedChain, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return done,
            () = tokio::time::sleep(Duration::from_millis(20)) => { chain.seal_now().await.unwrap(); }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_block_time_is_that_of_the_blocks() {
    let chain = busy_chain().await;
    let reader = client(&chain.url(), "//Alice").await;
    // First the length of a slot, later the interval between the blocks: never that of another chain.
    assert_eq!(reader.block_time().await.unwrap(), Duration::from_millis(40));
    let (first, began) = (head(&reader).block, Instant::now());
    let last = wait_for(&reader, Block(60)).await.block;
    let measured = reader.block_time().await.unwrap();
    // A busy machine produces blocks more slowly.
    let seen = began.elapsed() / (last.0 - first.0).max(1);
    assert!(
        Duration::from_millis(40) <= measured && measured < Duration::from_secs(1).max(4 * seen),
        "{measured:?}, seen {seen:?}"
    );
    let time = reader.head_time().await.unwrap().expect("a block has a time");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(
        now.abs_diff(time) < Duration::from_secs(60),
        "the chain's time is the clock's: {time:?}, {now:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_registration_takes_one_seat() {
    let chain = busy_chain().await;
    let (owner, bob) = (client(&chain.url(), "//Alice").await, client(&chain.url(), "//Bob").await);
    let run = create_run(&owner, 1_000_000).await;
    assert_eq!(create_run(&owner, 1_000_000).await, run, "the same run was created twice");
    assert_eq!(owner.runs().await.unwrap(), [run.id]);
    assert_eq!(run.owner, dev("//Alice").account());

    let hotkey = Key::generate().unwrap();
    let request = seat_request(run.id, &hotkey);
    catch_up(&bob, &owner).await;
    let plan = account::plan_seat(&bob, &dev("//Bob").account(), &request).await.unwrap();
    assert_eq!((plan.already, plan.funded), (None, ONE));
    let first = account::register_seat(&bob, &request).await.unwrap();
    catch_up(&owner, &bob).await;
    assert_eq!((first.hotkey, first.coldkey), (hotkey.hotkey(), dev("//Bob").account()));
    assert_eq!((first.id.uid, first.stake), (Uid(0), request.stake.0));
    assert_eq!(free(&bob, &hotkey).await, ONE);
    assert_eq!(bob.balance(&dev("//Bob").account()).await.unwrap().held, request.stake);

    let before = free(&bob, &dev("//Bob")).await;
    let plan = account::plan_seat(&bob, &dev("//Bob").account(), &request).await.unwrap();
    assert_eq!((plan.already, plan.funded), (Some(first.clone()), Amount::ZERO));
    assert_eq!(account::register_seat(&bob, &request).await.unwrap(), first);
    assert_eq!(free(&bob, &dev("//Bob")).await, before, "asking again cost something");

    let invalid = |result: Result<SeatView, ChainError>, reason: &str| match result {
        Err(error @ ChainError::Invalid { .. }) => assert!(error.to_string().contains(reason), "{error}"),
        other => panic!("{other:?}"),
    };
    let role = SeatRequest { role: Role::Validator, ..request.clone() };
    invalid(account::register_seat(&bob, &role).await, "as miner");
    invalid(account::register_seat(&owner, &request).await, &dev("//Bob").address());
    let other = Key::generate().unwrap();
    let low = SeatRequest { stake: Amount(1), ..seat_request(run.id, &other) };
    invalid(account::register_seat(&bob, &low).await, "at least 0.01 MTL");
    let dear = SeatRequest { stake: Amount::mtl(5_000_000), ..seat_request(run.id, &other) };
    invalid(account::register_seat(&bob, &dear).await, "Transfer to it");
    let nowhere = SeatRequest { run: RunId(7), ..request };
    assert_eq!(account::register_seat(&bob, &nowhere).await.unwrap_err(), ChainError::NoSuchRun(RunId(7)));
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commitment_is_made_and_read_back() {
    let chain = chain_without_a_clock().await;
    let owner = client(&chain.url(), "//Alice").await;
    let start = head(&owner).block.0 + 60;
    let run = create_run(&owner, start).await;
    let hotkey = dev("//Charlie");
    let mut request = seat_request(run.id, &hotkey);
    let seat = account::register_seat(&owner, &request).await.unwrap();
    assert_eq!(owner.window(run.id, Window(0)).await.unwrap(), None);

    let miner = client(&chain.url(), "//Charlie").await;
    request.endpoint = "http://127.0.0.1:9001/moved".into();
    let moved = Call::SetEndpoint { run: run.id, endpoint: request.endpoint.clone() };
    miner.submit(moved).await.unwrap();
    assert_eq!(miner.seats(run.id).await.unwrap()[0].endpoint, request.endpoint);

    while chain.best().number < start {
        chain.seal_now().await.unwrap();
    }
    let head = wait_for(&miner, run.params.schedule.opens_at(Window(0))).await;
    assert!(head.block >= Block(start));
    let digest = Digest::of(b"work");
    let commit = Call::Commit { run: run.id, window: Window(0), digest };
    let included = miner.submit(commit).await.unwrap();
    assert_eq!(chain.hash_of(included.block.0).unwrap().0, included.hash.0);
    let window = miner.window(run.id, Window(0)).await.unwrap().unwrap();
    assert_eq!(window.commitments, [(seat.id.uid, digest)]);
    assert_eq!(window.slots, [seat.id.uid]);
    assert_eq!(miner.weights(run.id).await.unwrap(), []);

    let status = miner.status(run.id).await.unwrap();
    assert_eq!((status.window, status.epoch), (Some(Window(0)), Some(0)));
    assert_eq!(status.miners.taken, 1);
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pallet_s_refusal_has_its_name_and_documentation() {
    let chain = busy_chain().await;
    let alice = client(&chain.url(), "//Alice").await;
    let run = create_run(&alice, 1_000_000).await;
    let refused = |error: ChainError, pallet: &str, name: &str| {
        let ChainError::Refused { pallet: found_in, error: found, docs, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((found_in.as_str(), found.as_str()), (pallet, name));
        assert!(docs.ends_with('.'), "{error}");
    };

    let window = Window(0);
    let commit = Call::Commit { run: run.id, window, digest: Digest::of(b"work") };
    refused(alice.submit(commit).await.unwrap_err(), "Windows", "NotStarted");
    let claim = Call::ClaimOwner { run: run.id };
    refused(alice.submit(claim).await.unwrap_err(), "Rewards", "NothingToClaim");
    let unknown = Call::Fund { run: RunId(9), amount: ONE };
    refused(alice.submit(unknown).await.unwrap_err(), "Rewards", "UnknownRun");

    // A failure that is not a pallet's error.
    let too_much = Call::Transfer { to: [1; 32], amount: Amount::mtl(5_000_000) };
    let error = alice.submit(too_much).await.unwrap_err();
    assert!(matches!(error, ChainError::Failed { .. }), "{error}");
    assert!(matches!(alice.run(RunId(9)).await, Err(ChainError::NoSuchRun(RunId(9)))));

    // A call that the pool rejects.
    let url = chain.url();
    let poor = Some(Key::generate().unwrap());
    let poor = SubxtChain::connect_timed(&url, poor, None, patient()).await.unwrap();
    let error = poor.submit(Call::Fund { run: run.id, amount: ONE }).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Invalid { reason, .. } if reason.contains("cannot pay the fee")),
        "{error}"
    );
    let reader = SubxtChain::connect_timed(&chain.url(), None, None, patient()).await.unwrap();
    let error = reader.submit(Call::Fund { run: run.id, amount: ONE }).await.unwrap_err();
    assert!(matches!(error, ChainError::NoSigner { .. }), "{error}");
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tip_is_paid_on_top_of_the_fee() {
    let chain = busy_chain().await;
    let (alice, bob) = (dev("//Alice"), dev("//Bob").account());
    let tipping = client(&chain.url(), "//Alice").await.with_tip(ONE);
    let before = free(&tipping, &alice).await;
    tipping.submit(Call::Transfer { to: bob, amount: ONE }).await.unwrap();
    let paid = before.0 - free(&tipping, &alice).await.0;
    let fee = paid - Amount::mtl(2).0;
    assert!(0 < fee && fee < ONE.0 / 1000, "{fee}");
    chain.shutdown().await;
}

/// Makes `calls` transfers of one MTL at once, and returns the receiver's balance.
async fn transfer_at_once(senders: &[SubxtChain], to: &Key, calls: usize) -> Amount {
    let transfers = (0..calls).map(|index| {
        let (sender, to) = (senders[index % senders.len()].clone(), to.account());
        tokio::spawn(async move { sender.submit(Call::Transfer { to, amount: ONE }).await })
    });
    let mut last = Block(0);
    for transfer in transfers.collect::<Vec<_>>() {
        last = last.max(transfer.await.unwrap().unwrap().block);
    }
    // One client may have seen a block that another has not.
    wait_for(&senders[0], last).await;
    free(&senders[0], to).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_from_many_tasks_are_each_included_once() {
    let chain = busy_chain().await;
    let alice = client(&chain.url(), "//Alice").await;
    let to = Key::generate().unwrap();
    assert_eq!(transfer_at_once(&[alice], &to, 30).await, Amount::mtl(30));
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_signed_again_if_another_process_took_its_nonce() {
    let chain = busy_chain().await;
    let mut senders = Vec::new();
    for _ in 0..3 {
        senders.push(client(&chain.url(), "//Alice").await);
    }
    let to = Key::generate().unwrap();
    assert_eq!(transfer_at_once(&senders, &to, 12).await, Amount::mtl(12));
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_block_is_dropped_is_included_once_in_another() {
    let chain = idle_chain(3).await;
    chain.seal_now().await.unwrap();
    let alice = Arc::new(client(&chain.url(), "//Alice").await);
    let to = Key::generate().unwrap();
    let sender = alice.clone();
    let call = Call::Transfer { to: to.account(), amount: ONE };
    let submitted = tokio::spawn(async move { sender.submit(call).await });
    // Included in the best chain, not final, and dropped with its block several times.
    for _ in 0..2 {
        until_pooled(&chain).await;
        chain.seal_now().await.unwrap();
        assert!(chain.drop_unfinalised().await.unwrap() > 0);
    }
    let included = seal_until(&chain, submitted).await.unwrap().unwrap();
    assert_eq!(chain.hash_of(included.block.0).unwrap().0, included.hash.0);
    assert_eq!(free(&alice, &to).await, ONE);
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_chain_is_found_and_forgotten_calls_are_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let config = at_home(Config {
        dir: Some(directory.path().to_owned()),
        sealing: Sealing::Manual,
        finality_lag: 2,
        ..busy()
    });
    let chain = start(config.clone()).await;
    for _ in 0..4 {
        chain.seal_now().await.unwrap();
    }
    let alice = client(&chain.url(), "//Alice").await;
    let hasty_timing = patient_for(Duration::from_millis(400));
    let hasty =
        SubxtChain::connect_timed(&chain.url(), Some(dev("//Bob")), None, hasty_timing).await.unwrap();
    let before = head(&alice);
    let to = Key::generate().unwrap();
    let sender = alice.clone();
    let call = Call::Transfer { to: to.account(), amount: ONE };
    let submitted = tokio::spawn(async move { sender.submit(call).await });
    // It is in a block that is not final when the chain stops, and in no pool after that.
    until_pooled(&chain).await;
    chain.seal_now().await.unwrap();
    let listen = chain.address();
    chain.shutdown().await;

    // Without a chain, reads and submissions fail once their patience has passed.
    let error = hasty.runs().await.unwrap_err();
    assert!(matches!(error, ChainError::Unreachable { .. }) && error.is_transient(), "{error}");
    let error = hasty.submit(Call::Fund { run: RunId(0), amount: ONE }).await.unwrap_err();
    assert!(matches!(error, ChainError::Unreachable { .. }), "{error}");
    let reader = alice.clone();
    let read = tokio::spawn(async move { reader.runs().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!read.is_finished() && !submitted.is_finished());

    let chain = start(Config { listen, ..config }).await;
    assert_eq!(read.await.unwrap().unwrap(), []);
    let included = seal_until(&chain, submitted).await.unwrap().unwrap();
    assert!(included.block > before.block);
    assert_eq!(free(&alice, &to).await, ONE);
    let later = seal_until(&chain, wait_for(&alice, Block(included.block.0 + 1))).await;
    assert!(later.block > included.block);
    // Bob stopped waiting before his call was signed, so it was never sent.
    assert_eq!(free(&alice, &dev("//Bob")).await, Amount::mtl(1_000_000));
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_or_falls_silent_is_replaced() {
    let chain = busy_chain().await;
    let proxy = Proxy::to(chain.address().port()).await;
    let timing = mettle_chain_client::Timing { request: Duration::from_secs(2), ..patient() };
    let key = Some(dev("//Alice"));
    let alice = SubxtChain::connect_timed(&proxy.url(), key, None, timing).await.unwrap();
    let receiver = Key::generate().unwrap().account();
    for (count, fault) in [(1, Wire::Cut), (2, Wire::Blocked)] {
        let connections = proxy.connections();
        proxy.set(fault);
        let sender = alice.clone();
        let call = Call::Transfer { to: receiver, amount: ONE };
        let submitted = tokio::spawn(async move { sender.submit(call).await });
        // Nothing passes through a dead connection, so the chain is ahead of the client.
        proxy.another_connection(connections).await;
        while chain.finalised().number < head(&alice).block.0 + 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let best = chain.best().number;
        proxy.set(Wire::Sound);
        submitted.await.unwrap().unwrap();
        assert_eq!(alice.balance(&receiver).await.unwrap().free, Amount::mtl(count));
        wait_for(&alice, Block(best)).await;
    }
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_signed_for_an_old_runtime_and_the_client_reconnects() {
    let chain = busy_chain().await;
    let proxy = Proxy::to(chain.address().port()).await;
    let alice = client(&proxy.url(), "//Alice").await;
    let receiver = Key::generate().unwrap().account();

    // The chain reports a version other than that of the metadata.
    let connections = proxy.connections();
    proxy.set(Wire::Upgraded);
    let sender = alice.clone();
    let submitted =
        tokio::spawn(async move { sender.submit(Call::Transfer { to: receiver, amount: ONE }).await });
    proxy.another_connection(connections + 1).await;
    assert!(!submitted.is_finished());
    proxy.set(Wire::Sound);
    let included = submitted.await.unwrap().unwrap();
    wait_for(&alice, included.block).await;
    assert_eq!(alice.balance(&receiver).await.unwrap().free, ONE);
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_signed_for_an_old_runtime_is_signed_again_and_included_once() {
    let directory = tempfile::tempdir().unwrap();
    let dir = Some(directory.path().to_owned());
    let config = at_home(Config { dir, sealing: Sealing::Manual, finality_lag: 1, ..busy() });
    let chain = start(config.clone()).await;
    for _ in 0..3 {
        chain.seal_now().await.unwrap();
    }
    let proxy = Proxy::to_address(chain.address()).await;
    let alice = client(&proxy.url(), "//Alice").await;
    let (to, sender) = (Key::generate().unwrap(), alice.clone());
    let call = Call::Transfer { to: to.account(), amount: ONE };
    let submitted = tokio::spawn(async move { sender.submit(call).await });
    let old = until_pooled(&chain).await;

    // The chain loses its pool, and then reports an upgrade for a few requests.
    proxy.set(Wire::Upgraded);
    let listen = chain.address();
    chain.shutdown().await;
    let chain = start(Config { listen, ..config }).await;
    for _ in 0..4 {
        proxy.another_connection(proxy.connections()).await;
    }
    assert!(!submitted.is_finished());
    proxy.set(Wire::Sound);
    let new = until_pooled(&chain).await;
    assert_eq!((old.len(), new.len()), (1, 1));
    assert_ne!(old, new, "the old bytes were offered again");
    let included = seal_until(&chain, submitted).await.unwrap().unwrap();
    wait_for(&alice, included.block).await;
    assert_eq!(free(&alice, &to).await, ONE);
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_times_out_if_nothing_is_finalised() {
    let chain = idle_chain(2).await;
    let timing = patient_for(Duration::from_millis(500));
    let key = Some(dev("//Alice"));
    let alice = SubxtChain::connect_timed(&chain.url(), key, None, timing).await.unwrap();
    let error = loop {
        let error = alice.submit(Call::Transfer { to: [1; 32], amount: ONE }).await.unwrap_err();
        // On a busy machine the patience may pass before the call is signed. Then it is never sent, and is submitted
        // again.
        if !matches!(error, ChainError::TimedOut { sent: false, .. }) {
            break error;
        }
    };
    assert!(matches!(error, ChainError::TimedOut { sent: true, .. }) && error.is_transient(), "{error}");
    // The call may still be included, as the error says.
    for _ in 0..4 {
        chain.seal_now().await.unwrap();
    }
    wait_for(&alice, Block(2)).await;
    assert_eq!(alice.balance(&[1; 32]).await.unwrap().free, ONE);
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_chain_is_refused_with_what_was_found() {
    let chain = busy_chain().await;
    let connect =
        async |url: &str, genesis| SubxtChain::connect_timed(url, None, genesis, patient()).await.map(|_| ());
    let not_ours = |result: Result<(), ChainError>, expected: &str| match result {
        Err(ChainError::WrongChain { found, .. }) => assert!(found.contains(expected), "{found}"),
        other => panic!("{other:?}"),
    };
    let genesis = GenesisHash(chain.genesis_hash().0);
    connect(&chain.url(), Some(genesis)).await.unwrap();
    let other = GenesisHash([7; 32]);
    not_ours(connect(&chain.url(), Some(other)).await, &genesis.to_string());
    let text = connect(&chain.url(), Some(other)).await.unwrap_err().to_string();
    assert!(text.contains(&other.to_string()), "{text}");

    // Only a chain that reports itself as a development chain is one.
    let client = SubxtChain::connect_timed(&chain.url(), None, None, patient()).await.unwrap();
    assert_eq!((client.genesis(), client.is_development()), (genesis, true));
    let proxy = Proxy::to(chain.address().port()).await;
    proxy.set(Wire::Tampered { from: "\"Development\"", to: "\"Independent\"" });
    let client = SubxtChain::connect_timed(&proxy.url(), None, None, patient()).await.unwrap();
    assert_eq!((client.genesis(), client.is_development()), (genesis, false));

    proxy.set(Wire::Tampered { from: "\"specName\":\"mettle\"", to: "\"specName\":\"kettle\"" });
    not_ours(connect(&proxy.url(), None).await, "`kettle`");
    // A JSON-RPC server that is not a chain.
    proxy.set(Wire::Tampered { from: "\"result\":\"", to: "\"rezult\":\"" });
    let hasty = mettle_chain_client::Timing { connect: Duration::from_secs(1), ..patient() };
    let other = SubxtChain::connect_timed(&proxy.url(), None, None, hasty).await;
    assert!(other.is_err());
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_chain_at_the_same_port_is_refused_until_the_first_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let config = at_home(Config { dir: Some(directory.path().to_owned()), ..busy() });
    let chain = start(config.clone()).await;
    let listen = chain.address();
    let alice = client(&chain.url(), "//Alice").await;
    wait_for(&alice, Block(3)).await;
    chain.shutdown().await;

    let genesis_patch = Some(serde_json::json!({ "sudo": { "key": null } }));
    let other = start(Config { listen, genesis_patch, ..busy() }).await;
    let error = alice.submit(Call::Transfer { to: [1; 32], amount: ONE }).await.unwrap_err();
    assert!(matches!(error, ChainError::WrongChain { .. }), "{error}");
    let error = alice.runs().await.unwrap_err();
    assert!(matches!(error, ChainError::WrongChain { .. }), "{error}");
    other.shutdown().await;

    let chain = start(Config { listen, ..config }).await;
    let head = head(&alice);
    wait_for(&alice, Block(head.block.0 + 5)).await;
    assert_eq!(alice.runs().await.unwrap(), []);
    assert_eq!(
        alice.balance(&[1; 32]).await.unwrap().free,
        Amount::ZERO,
        "a call that was given up was sent"
    );
    chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_chain_is_an_error_with_its_url() {
    let timing = mettle_chain_client::Timing { connect: Duration::from_millis(300), ..patient() };
    let connect =
        async |url: &str| SubxtChain::connect_timed(url, None, None, timing).await.map(|_| ()).unwrap_err();
    // A bound port without a listener, which no other test's chain can take.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.local_addr().unwrap();
    let error = connect(&format!("ws://{silent}")).await;
    assert!(matches!(error, ChainError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&silent.to_string()), "{error}");
    // A program that listens and does not answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = connect(&format!("ws://{}", silent.local_addr().unwrap())).await;
    assert!(matches!(error, ChainError::Unreachable { .. }), "{error}");
    for url in ["", "127.0.0.1:9944", "http://127.0.0.1:9944"] {
        let error = connect(url).await;
        assert!(matches!(error, ChainError::Invalid { .. }), "{error}");
    }
    let bad = mettle_chain_client::Timing { era_blocks: 65, ..timing };
    let error = SubxtChain::connect_timed("ws://127.0.0.1:1", None, None, bad).await.map(|_| ());
    assert!(matches!(error, Err(ChainError::Invalid { .. })));
}
