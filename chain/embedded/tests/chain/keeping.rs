//! The store: the chain resumes after a clean shutdown and after any other end.

use crate::{Wire, alice, hex, manual, manual_in, remark, seal, signed, start, transfer};
use mettle_embedded_chain::{Config, EmbeddedChain, H256, SealError, StartError, StoreError};
use redb::{Database, TableDefinition};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use subxt::rpcs::rpc_params;

const SYSTEM_NUMBER: &str = "0x26aa394eea5630e07c48ae0c9558cef702a5c1b19ab7a04f536c519aca4983ac";

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be created")
}

async fn refusal(config: Config) -> StoreError {
    match EmbeddedChain::start(config).await {
        Err(StartError::Store(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it started"),
    }
}

#[tokio::test]
async fn a_chain_resumes_where_it_ended() {
    let dir = dir();
    let config = Config { finality_lag: 1, ..manual_in(dir.path()) };
    let chain = start(config.clone()).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    for nonce in 0..4 {
        wire.submit(&signed(&alice(), nonce, genesis, &transfer(&[7; 32], 1 << 40))).await;
        seal(&chain, 1).await;
    }
    let (finalised, lost) = (chain.finalised(), chain.best());
    assert_eq!((finalised.number, lost.number), (3, 4));
    let block = wire.ask("chain_getBlock", rpc_params![finalised.hash]).await;
    chain.shutdown().await;

    let chain = start(config).await;
    let wire = Wire::to(&chain).await;
    assert_eq!(chain.genesis_hash(), genesis);
    assert_eq!((chain.finalised(), chain.best()), (finalised, finalised));
    assert_eq!(wire.ask("chain_getBlock", rpc_params![finalised.hash]).await, block);
    // Earlier states are available too.
    for number in 1..=3 {
        let at = chain.hash_of(number);
        assert_eq!(wire.free(&[7; 32], at).await, u128::from(number) << 40);
        let stored = wire.ask("state_getStorage", rpc_params![SYSTEM_NUMBER, at]).await;
        assert_eq!(stored, json!(format!("0x0{number}000000")));
    }
    assert_eq!(wire.free(&[7; 32], Some(genesis)).await, 0);
    // Unfinalised blocks are lost, and can be made again.
    wire.submit(&signed(&alice(), 3, genesis, &transfer(&[7; 32], 1 << 40))).await;
    let head = seal(&chain, 2).await;
    assert_eq!(head.number, 5);
    assert_eq!(wire.free(&[7; 32], None).await, 4 << 40);
    chain.shutdown().await;
}

#[tokio::test]
async fn old_blocks_are_pruned_and_queries_for_them_say_so() {
    let dir = dir();
    let config = Config { keep_states: 3, keep_headers: 6, ..manual_in(dir.path()) };
    let chain = start(config.clone()).await;
    let mut hashes = vec![chain.genesis_hash()];
    for _ in 0..10 {
        hashes.push(seal(&chain, 1).await.hash);
    }
    check_pruned(&chain, &hashes).await;
    chain.shutdown().await;
    let chain = start(config.clone()).await;
    check_pruned(&chain, &hashes).await;
    chain.shutdown().await;
    // Smaller limits prune the file.
    let chain = start(Config { keep_states: 1, keep_headers: 0, ..config }).await;
    let wire = Wire::to(&chain).await;
    assert_eq!(wire.refusal("state_getStorage", rpc_params![SYSTEM_NUMBER, hashes[9]]).await.0, 4003);
    assert_eq!(wire.ask("chain_getHeader", rpc_params![hashes[9]]).await, Value::Null);
    seal(&chain, 2).await;
    chain.shutdown().await;
}

async fn check_pruned(chain: &EmbeddedChain, hashes: &[H256]) {
    let wire = Wire::to(chain).await;
    for (number, hash) in hashes.iter().enumerate() {
        let number_there = wire.ask("chain_getBlockHash", rpc_params![number]).await;
        let header = wire.ask("chain_getHeader", rpc_params![hash]).await;
        if number == 0 || number >= 5 {
            assert_eq!(number_there, json!(hash));
            assert_eq!(header["number"], json!(format!("{number:#x}")));
        } else {
            assert_eq!((number_there, header), (Value::Null, Value::Null));
        }
        let storage = rpc_params![SYSTEM_NUMBER, hash];
        if number >= 8 {
            assert_eq!(wire.ask("state_getStorage", storage).await, json!(format!("0x{number:02x}000000")));
            assert!(wire.ask("chain_getBlock", rpc_params![hash]).await.is_object());
        } else {
            let (code, text) = wire.refusal("state_getStorage", storage).await;
            assert!(code == 4003, "{text}");
            if number == 0 || number >= 5 {
                assert!(text.contains("already discarded") && text.contains("last 3"), "{text}");
                assert_eq!(wire.refusal("chain_getBlock", rpc_params![hash]).await.0, 4003);
            }
        }
    }
}

/// Process that the next test kills.
#[tokio::test]
#[ignore = "it is run, and killed, by the test below"]
async fn process_that_makes_blocks_until_it_is_killed() {
    let dir = std::env::var("METTLE_TEST_CHAIN_DIR").expect("the directory is given");
    let config = Config {
        dir: Some(dir.into()),
        block_interval: Duration::from_millis(1),
        finality_lag: 2,
        keep_states: 8,
        ..Config::default()
    };
    let chain = start(config).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    let mut told = chain.finalised().number;
    let mut heads = chain.heads();
    let address = sp_core::crypto::AccountId32::from(alice_public()).to_string();
    loop {
        heads.changed().await.expect("the chain goes on");
        let finalised = heads.borrow_and_update().finalised;
        if finalised.number > told {
            told = finalised.number;
            println!("finalised {} {}", finalised.number, hex(&finalised.hash.0));
        }
        let nonce = wire.ask("system_accountNextIndex", rpc_params![&address]).await;
        let nonce = u32::try_from(nonce.as_u64().expect("a number")).expect("a small one");
        let extrinsic = signed(&alice(), nonce, genesis, &remark(&nonce.to_le_bytes()));
        // The transaction may be late for a block; the next one includes it.
        let _ = wire.0.request::<Value>("author_submitExtrinsic", rpc_params![hex(&extrinsic)]).await;
    }
}

fn alice_public() -> [u8; 32] {
    sp_keyring::Sr25519Keyring::Alice.to_raw_public()
}

#[tokio::test]
async fn a_process_killed_at_any_moment_resumes_at_an_announced_final_block() {
    let dir = dir();
    let mut last = 0;
    for round in 1..=3 {
        let told = blocks_told_before_the_kill(dir.path(), 7 * round);
        // The shortest possible slots, as in the process.
        let genesis_patch = Some(json!({ "authorities": { "slotMillis": 2 } }));
        let chain = start(Config { keep_states: 8, genesis_patch, ..manual_in(dir.path()) }).await;
        let finalised = chain.finalised();
        for (number, hash) in told {
            assert!(number > last && finalised.number >= number);
            assert_eq!(chain.hash_of(number).map(|hash| hex(&hash.0)), Some(hash));
            last = number;
        }
        last = last.max(seal(&chain, 1).await.number);
        chain.shutdown().await;
    }
}

fn blocks_told_before_the_kill(dir: &Path, count: usize) -> Vec<(u32, String)> {
    let mut process = Command::new(std::env::current_exe().expect("this test has a file"))
        .args([
            "--exact",
            "keeping::process_that_makes_blocks_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("METTLE_TEST_CHAIN_DIR", dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test can be run");
    let output = BufReader::new(process.stdout.take().expect("it is piped"));
    let told: Vec<_> =
        output.lines().map_while(Result::ok).filter_map(|line| block_told(&line)).take(count).collect();
    process.kill().expect("it runs");
    process.wait().expect("it was killed");
    assert_eq!(told.len(), count, "it ended by itself");
    told
}

fn block_told(line: &str) -> Option<(u32, String)> {
    let (number, hash) = line.split_once("finalised ")?.1.split_once(' ')?;
    Some((number.parse().ok()?, hash.to_owned()))
}

/// Process that the next test leaves without disk space.
#[tokio::test]
#[ignore = "it is run, with little disk, by the test below"]
async fn process_that_makes_large_blocks_until_the_disk_is_full() {
    let dir = std::env::var("METTLE_TEST_CHAIN_DIR").expect("the directory is given");
    let chain = start(Config { dir: Some(dir.into()), ..manual() }).await;
    let wire = Wire::to(&chain).await;
    for nonce in 0..1000 {
        wire.submit(&signed(&alice(), nonce, chain.genesis_hash(), &remark(&[7; 200_000]))).await;
        match chain.seal_now().await {
            Ok(head) => println!("finalised {} {}", head.number, hex(&head.hash.0)),
            Err(error) => {
                assert!(matches!(error, SealError::Store(StoreError::File { .. })), "{error:?}");
                // The chain is unchanged and answers queries.
                assert_eq!(chain.best().number, nonce);
                assert_eq!(chain.finalised().number, nonce);
                assert!(wire.ask("chain_getHeader", rpc_params![]).await.is_object());
                println!("the disk is full");
                return;
            }
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_stops_the_chain_and_loses_nothing() {
    let dir = dir();
    // At most 4 to 8 MiB per file, depending on the shell's unit.
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().expect("this test has a file"))
        .args(["--exact", "keeping::process_that_makes_large_blocks_until_the_disk_is_full"])
        .args(["--ignored", "--nocapture"])
        .env("METTLE_TEST_CHAIN_DIR", dir.path())
        .output()
        .expect("this test can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("the disk is full"), "{text}");
    let (number, hash) = text.lines().filter_map(block_told).next_back().expect("some blocks were made");
    let chain = start(manual_in(dir.path())).await;
    assert_eq!(chain.finalised().number, number);
    assert_eq!(hex(&chain.finalised().hash.0), hash);
    seal(&chain, 1).await;
    chain.shutdown().await;
}

#[tokio::test]
async fn a_directory_with_other_files_is_left_unchanged() {
    let dir = dir();
    fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
    let error = refusal(manual_in(dir.path())).await;
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    let file = dir.path().join("thesis.txt");
    let error = refusal(manual_in(&file)).await;
    assert!(matches!(error, StoreError::Directory { .. }), "{error}");
}

#[tokio::test]
async fn a_file_that_is_not_a_chain_is_refused() {
    let garbage = dir();
    fs::write(garbage.path().join("chain.redb"), vec![7; 100_000]).unwrap();
    let error = refusal(manual_in(garbage.path())).await;
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");

    let other = dir();
    let database = Database::create(other.path().join("chain.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u32, u32>::new("meta")).unwrap().insert(1, 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refusal(manual_in(other.path())).await;
    assert!(matches!(error, StoreError::Foreign { .. }), "{error:?}");

    let short = dir();
    start(manual_in(short.path())).await.shutdown().await;
    let file = short.path().join("chain.redb");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let error = refusal(manual_in(short.path())).await;
    assert!(matches!(error, StoreError::Damaged { .. } | StoreError::File { .. }), "{error:?}");
}

#[tokio::test]
async fn an_incomplete_new_chain_is_created_again() {
    let dir = dir();
    fs::write(dir.path().join("chain.redb.new"), "interrupted").unwrap();
    let chain = start(manual_in(dir.path())).await;
    seal(&chain, 1).await;
    chain.shutdown().await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_chain_is_used_by_one_process_at_a_time() {
    let dir = dir();
    let chain = start(manual_in(dir.path())).await;
    let error = refusal(manual_in(dir.path())).await;
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    chain.shutdown().await;
    start(manual_in(dir.path())).await.shutdown().await;
}

#[tokio::test]
async fn a_chain_with_another_genesis_is_refused() {
    let dir = dir();
    start(manual_in(dir.path())).await.shutdown().await;
    let genesis_patch = Some(json!({ "sudo": { "key": null } }));
    let error = refusal(Config { genesis_patch, ..manual_in(dir.path()) }).await;
    assert!(matches!(error, StoreError::OtherGenesis { .. }), "{error}");
}

/// Changes the metadata of a chain's file.
fn set_meta(dir: &Path, key: &str, value: &[u8]) {
    let database = Database::open(dir.join("chain.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<&str, &[u8]>::new("meta")).unwrap().insert(key, value).unwrap();
    transaction.commit().unwrap();
}

async fn check_meta(key: &str, value: &[u8], expected: fn(&StoreError) -> bool) {
    let dir = dir();
    start(manual_in(dir.path())).await.shutdown().await;
    set_meta(dir.path(), key, value);
    let error = refusal(manual_in(dir.path())).await;
    assert!(expected(&error), "{error:?}");
}

#[tokio::test]
async fn a_chain_of_a_newer_release_is_refused() {
    check_meta("format", &9_u32.to_le_bytes(), |error| {
        matches!(error, StoreError::NewerFormat { found: 9, .. })
    })
    .await;
    check_meta("spec_version", &u32::MAX.to_le_bytes(), |error| {
        matches!(error, StoreError::NewerRuntime { found: u32::MAX, .. })
    })
    .await;
    check_meta("spec_name", b"\x18subnet", |error| matches!(error, StoreError::Foreign { .. })).await;
    check_meta("format", b"", |error| matches!(error, StoreError::Damaged { .. })).await;
}

#[tokio::test]
async fn a_chain_whose_state_no_migration_covers_is_refused_and_told_what_to_do() {
    let dir = dir();
    start(manual_in(dir.path())).await.shutdown().await;
    set_meta(dir.path(), "spec_version", &2_u32.to_le_bytes());
    let error = refusal(manual_in(dir.path())).await;
    assert!(matches!(error, StoreError::OlderRuntime { found: 2, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&dir.path().display().to_string()) && text.contains("another directory"), "{text}");
}

#[tokio::test]
async fn a_state_that_differs_from_its_header_is_refused() {
    let dir = dir();
    let chain = start(manual_in(dir.path())).await;
    seal(&chain, 3).await;
    chain.shutdown().await;
    let database = Database::open(dir.path().join("chain.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let state = TableDefinition::<&[u8], &[u8]>::new("state");
    transaction.open_table(state).unwrap().insert(&b":money"[..], &b"more"[..]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refusal(manual_in(dir.path())).await;
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_chain_in_memory_leaves_nothing_behind() {
    let chain = start(manual()).await;
    seal(&chain, 3).await;
    chain.shutdown().await;
    assert_eq!(start(manual()).await.best().number, 0);
}
