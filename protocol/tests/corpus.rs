//! Runs the checks of `protocol/fuzz` on the fuzzer's corpus in every ordinary test run.

#[path = "../fuzz/checks.rs"]
mod checks;

use std::{fs, path::PathBuf};

fn replay(target: &str, check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        std::eprintln!("{}", path.display());
        check(&fs::read(&path).unwrap());
        seen += 1;
    }
    assert!(seen > 0, "{} is empty", folder.display());
}

#[test]
fn no_body_of_the_corpus_breaks_a_rule() {
    replay("contribution_body", checks::contribution_body);
}

#[test]
fn no_submission_of_the_corpus_breaks_a_rule() {
    replay("submission", checks::submission);
}

#[test]
fn no_update_of_the_corpus_breaks_a_rule() {
    replay("update", checks::update);
}

#[test]
fn no_receipt_of_the_corpus_breaks_a_rule() {
    replay("receipt", checks::receipt);
}

#[test]
fn no_message_of_the_corpus_breaks_a_rule() {
    replay("peer", checks::peer);
}

/// Writes valid bytes for the fuzzer to start from.
#[test]
#[ignore = "writes into fuzz/corpus; run it when the format changes"]
fn write_the_seeds_of_the_corpus() {
    use ed25519_dalek::SigningKey;
    use mettle_protocol::{
        Block, Digest, RunId, Uid, Window, contribution,
        identity::Signer,
        keys,
        params::Density,
        peer::{BlobAnswer, BlobRequest, Message as _, PeerRecord, PutAnswer, PutHeader, Refusal},
    };
    let schema = checks::schema();
    let spread = |index: usize| ((index * 2_654_435_769 % 10_007) as f32 - 5_003.0) / 1e6;
    let kinds: [(&str, Vec<f32>); 4] = [
        ("spread", (0..schema.values()).map(spread).collect()),
        ("zero", vec![0.0; schema.values()]),
        ("alike", vec![-0.5; schema.values()]),
        ("tiny", (0..schema.values()).map(|index| spread(index) * 1e-6).collect()),
    ];
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    };
    for (name, values) in kinds {
        for (choice, density) in (0u8..).zip([64, 1, 512]) {
            let body = contribution::encode(&schema, Density(density), &values).unwrap();
            write("contribution_body", &format!("{name}-{density}"), &[&[choice], &body[..]].concat());
        }
        let body = contribution::encode(&schema, checks::DENSITY, &values).unwrap();
        write("submission", &format!("body-{name}"), &body);
        // Two inputs, as the fixed header would declare them, and a norm of each tensor.
        let inputs = [&2u32.to_le_bytes()[..], &[3, 0], &[3; 32], &[8, 0], &[8; 32]].concat();
        let norms = vec![0.5f64.to_le_bytes(); schema.tensors().len()].concat();
        let norms = [&(schema.tensors().len() as u32).to_le_bytes()[..], &norms].concat();
        write("update", &format!("tail-{name}"), &[inputs, norms, body].concat());
    }
    // The golden receipt, whole and without its frame, and cut at several places.
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1/one.receipt");
    let whole = fs::read(golden).unwrap();
    let body = &whole[4..whole.len() - 64];
    write("receipt", "whole", &whole);
    write("receipt", "body", body);
    for cut in [2, 40, 150, body.len() - 9] {
        write("receipt", &format!("cut-{cut}"), &body[..cut]);
    }
    // Messages of peers: whole, of another version, truncated, and with trailing bytes; and the signed part of a
    // record.
    let key = Signer::new(SigningKey::from_bytes(&[7; 32]), checks::GENESIS);
    let (run, window, digest) = (RunId(1), Window(2), Digest([9; 32]));
    let request = BlobRequest { key: keys::contribution(run, window, &digest), offset: 3, length: u64::MAX };
    let record = PeerRecord {
        hotkey: key.hotkey(),
        block: Block(5),
        addresses: vec!["p2p://12D3KooW/ip4/203.0.113.5/tcp/4100".into()],
    };
    let sealed = record.seal(&key).unwrap();
    let messages: [(&str, Vec<u8>); 7] = [
        ("request", request.to_bytes()),
        ("found", BlobAnswer::Found { total: 70_000, length: 9 }.to_bytes()),
        ("offer", PutHeader::sign(run, window, Uid(3), digest, 5_000, &key).to_bytes()),
        ("send", PutAnswer::Send.to_bytes()),
        ("refused", PutAnswer::Refused(Refusal::Version { theirs: 2, ours: 1 }).to_bytes()),
        ("record", sealed[..sealed.len() - 64].to_vec()),
        ("record-signed", sealed),
    ];
    for (name, message) in messages {
        write("peer", name, &message);
        write("peer", &format!("{name}-cut"), &message[..message.len() - 1]);
        write("peer", &format!("{name}-more"), &[&message[..], &[0]].concat());
        write("peer", &format!("{name}-later"), &[&[2], &message[1..]].concat());
    }
    write("peer", "long-key", &[&[1][..], &[0xfe, 0xff, 0xff, 0xff], &[b'a'; 80]].concat());
    write("peer", "way-out", &[&[1, 4 * 9][..], b"../../etc", &[0; 16]].concat());
    write("peer", "too-long", &[1; 1025]);
    // Lists with a declared length beyond all limits.
    write("receipt", "long-list", &[&body[..144], &[0xfe, 0xff, 0xff, 0xff]].concat());
    write("receipt", "longest-list", &[&body[..144], &[0xff; 9]].concat());
}
