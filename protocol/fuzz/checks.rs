//! Properties that must hold for any bytes, one function per decoder. The fuzzer calls these on bytes of its own, and
//! the ordinary tests on the corpus. Each panics if a rule is broken.
#![allow(dead_code, reason = "a fuzz target calls one of them")]

use ed25519_dalek::SigningKey;
use mettle_protocol::{
    Digest, GenesisHash, RunId, Uid, Window,
    contribution::{CODEC, Schema, Sparse, TensorSpec, decode, encode},
    identity::{Domain, Signer},
    merge::{UpdateHeader, largest_update, open_update, seal_update},
    params::{Density, RunParams},
    peer::{
        ADDRESSES_MAX, BlobAnswer, BlobRequest, KEY_BYTES_MAX, MESSAGE_BYTES_MAX, Message, MessageError,
        PeerRecord, PutAnswer, PutHeader, RECORD_BYTES_MAX,
    },
    receipt::{self, MAGIC, Receipt, ReceiptError},
    submission::{Expected, Fault, Header, Submission, largest_bytes, seal},
};

/// The chain that submissions and receipts are signed for.
pub const GENESIS: GenesisHash = GenesisHash([1; 32]);

/// Checks a body; the first byte chooses the density.
pub fn contribution_body(bytes: &[u8]) {
    let Some((first, body)) = bytes.split_first() else { return };
    let densities = [64, 1, 512, 4096].map(Density);
    check_body(densities[usize::from(*first) % densities.len()], body);
}

/// Checks any bytes as a whole submission, and as the body of a correctly signed one.
pub fn submission(bytes: &[u8]) {
    let key = Signer::new(SigningKey::from_bytes(&[7; 32]), GENESIS);
    let schema = schema();
    let header = Header {
        codec: CODEC,
        run: RunId(1),
        window: Window(2),
        uid: Uid(3),
        hotkey: key.hotkey(),
        base: Digest([4; 32]),
        schema: schema.digest(),
        density: DENSITY,
        trained: 5,
    };
    let verify = |bytes: &[u8]| {
        let Header { run, window, uid, hotkey, base, density, .. } = header;
        let (schema, digest) = (&schema, Digest::of(bytes));
        let (genesis, sequences_per_seat) = (GENESIS, 8);
        let expected =
            Expected { genesis, run, window, uid, hotkey, base, schema, density, sequences_per_seat, digest };
        let submission = Submission::read(bytes)?;
        Ok((submission.header, submission.verify(&expected)?))
    };

    // Unchanged: valid only if they were sealed with the seat's key.
    if let Ok((header, update)) = verify(bytes) {
        let body = encode(&schema, DENSITY, &witness(&schema, &update)).expect("levels are finite");
        assert_eq!(seal(&header, &body, &key), bytes, "two encodings of one submission");
    }
    // As a body: all other fields are valid.
    match verify(&seal(&header, bytes, &key)) {
        Ok((read, _)) => {
            assert_eq!(read, header);
            check_body(DENSITY, bytes);
            assert!(bytes.len() <= largest_bytes(&schema, DENSITY));
        }
        Err(Fault::Undecodable(_) | Fault::AbnormalNorm { .. } | Fault::TooLarge { .. }) => {}
        Err(other) => panic!("a well-made header is refused: {other}"),
    }
}

/// Checks any bytes as a whole update, and as the part after the fixed header.
pub fn update(bytes: &[u8]) {
    let schema = schema();
    let base = Digest([4; 32]);
    let header = UpdateHeader {
        codec: CODEC,
        run: RunId(1),
        window: Window(2),
        base,
        schema: schema.digest(),
        density: DENSITY,
        inputs: Vec::new(),
        norms: Vec::new(),
    };
    let check = |bytes: &[u8]| {
        if let Ok((header, body)) = open_update(bytes, &schema, DENSITY, RunId(1), Window(2), base)
            && let Ok(update) = decode(&schema, DENSITY, body)
        {
            let body = encode(&schema, DENSITY, &witness(&schema, &update)).expect("levels are finite");
            assert_eq!(seal_update(&header, &body), bytes, "two spellings of one update");
            assert!(bytes.len() <= largest_update(&schema, DENSITY, header.inputs.len()));
        }
    };
    check(bytes);
    // The header of an update without inputs and norms, except for their counts.
    let mut sealed = seal_update(&header, &[]);
    sealed.truncate(sealed.len() - 8);
    sealed.extend_from_slice(bytes);
    check(&sealed);
}

/// Checks any bytes as a whole receipt, and as the signed part of one.
pub fn receipt(bytes: &[u8]) {
    let key = Signer::new(SigningKey::from_bytes(&[42; 32]), GENESIS);
    let params = RunParams::default();
    let check = |bytes: &[u8]| {
        let read = Receipt::open(bytes, &params, &GENESIS);
        if let Ok(receipt) = &read {
            assert!(bytes.len() <= receipt::largest_bytes(&params), "longer than the longest");
            let again = receipt.sign(&key);
            // Only this key's signature can be made again.
            let signed_by_us = receipt.hotkey == key.hotkey();
            assert!(!signed_by_us || again.bytes == bytes, "two spellings of one receipt");
        }
        read
    };
    let _ = check(bytes);
    // As a correctly signed body: a refusal must be due to its contents.
    let signature = key.sign(Domain::Receipt, &Digest::of(bytes).0);
    if let Err(ReceiptError::NotAReceipt) = check(&[&MAGIC[..], bytes, &signature.0].concat()) {
        assert!(bytes.len() < 2, "a body with its frame is taken for none");
    }
}

/// Checks any bytes as each message of peers, and as a correctly signed record.
pub fn peer(bytes: &[u8]) {
    fn one_spelling<M: Message>(bytes: &[u8]) {
        match M::from_bytes(bytes) {
            Ok(message) => assert_eq!(message.to_bytes(), bytes, "two spellings of one message"),
            Err(MessageError::TooLong { .. }) => assert!(bytes.len() > MESSAGE_BYTES_MAX),
            Err(MessageError::Version { theirs, ours }) => assert!(bytes[0] == theirs && theirs != ours),
            Err(MessageError::Malformed) => {}
        }
    }
    one_spelling::<BlobRequest>(bytes);
    one_spelling::<BlobAnswer>(bytes);
    one_spelling::<PutHeader>(bytes);
    one_spelling::<PutAnswer>(bytes);
    if let Ok(request) = BlobRequest::from_bytes(bytes) {
        assert!(request.key.as_str().len() <= KEY_BYTES_MAX && !request.key.as_str().contains(".."));
    }

    let key = Signer::new(SigningKey::from_bytes(&[7; 32]), GENESIS);
    let signed = [bytes, &key.sign(Domain::Peer, bytes).0].concat();
    for bytes in [bytes, &signed] {
        if let Ok(record) = PeerRecord::open(bytes, &key.hotkey(), &GENESIS) {
            assert!(record.addresses.len() <= ADDRESSES_MAX && bytes.len() <= RECORD_BYTES_MAX);
            assert_eq!(record.seal(&key).expect("it was read"), bytes, "two spellings of one record");
        }
    }
}

/// Density of the submissions and updates here.
pub const DENSITY: Density = Density(64);

/// Returns a schema of a single value, a few values, and a tensor of more than a chunk.
pub fn schema() -> Schema {
    let row = |name: &str, length| TensorSpec { name: name.into(), shape: vec![length] };
    Schema::new(vec![row("one", 1), row("few", 40), row("many", 4200)]).expect("three rows are a schema")
}

fn check_body(density: Density, body: &[u8]) {
    let schema = schema();
    let Ok(update) = decode(&schema, density, body) else { return };
    assert!(body.len() <= schema.largest_body(density), "an accepted body is longer than the longest");
    let entries: usize = update.tensors.iter().map(|tensor| tensor.values.len()).sum();
    assert_eq!(entries, schema.entries(density));
    let again = encode(&schema, density, &witness(&schema, &update)).expect("levels are finite");
    assert_eq!(again, body, "two spellings of one contribution");
}

/// Returns values whose encoding is `update`: an entry of level zero was a very small value.
fn witness(schema: &Schema, update: &Sparse) -> Vec<f32> {
    let mut values = vec![0.0; schema.values()];
    for (range, tensor) in schema.ranges().zip(&update.tensors) {
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            let value = if *value == 0.0 { f32::from_bits(1) } else { *value };
            values[range.start + *position as usize] = value;
        }
    }
    values
}
