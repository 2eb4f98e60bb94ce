//! Signers that display a transaction offline and prove the metadata used for it: RFC 78 of the Polkadot Fellowship.

use super::*;
use frame_metadata::RuntimeMetadataPrefixed;
use merkleized_metadata::{ExtraInfo, generate_metadata_digest};

/// Returns the digest of the metadata, whose parts every wallet knows.
fn metadata_hash() -> [u8; 32] {
    let metadata = Runtime::metadata_at_version(15).expect("version 15 is shown");
    let metadata = RuntimeMetadataPrefixed::decode(&mut &metadata[..]).expect("it is what it says");
    let extra = ExtraInfo {
        spec_version: VERSION.spec_version,
        spec_name: VERSION.spec_name.to_string(),
        base58_prefix: SS58_PREFIX,
        decimals: UNIT.ilog10() as u8,
        token_symbol: "MTL".into(),
    };
    generate_metadata_digest(&metadata.1, extra).expect("it has a digest").hash()
}

#[test]
fn the_build_knows_the_digest_of_its_metadata() {
    let digest: String = metadata_hash().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        option_env!("RUNTIME_METADATA_HASH"),
        Some(&*digest),
        "calls, types or the version changed: set RUNTIME_METADATA_HASH = \"{digest}\" in .cargo/config.toml"
    );
}

#[test]
fn a_signer_that_read_other_metadata_is_refused() {
    let mut chain = Chain::new();
    let nonce = chain.read(|| System::account_nonce(OWNER.to_account_id()));
    let mut sign = |metadata| {
        let call = frame_system::Call::remark { remark: b"shown by a Ledger".to_vec() };
        chain.sign_over(&OWNER, call, priority::ProtocolPriority::new(nonce, 0), metadata)
    };
    let (honest, deceived) =
        (sign(CheckMetadataHash::new(true)), sign(CheckMetadataHash::new_with_custom_hash([7; 32])));
    let refused = chain.validate(deceived).expect_err("it signed another digest");
    assert_eq!(refused, TransactionValidityError::Invalid(InvalidTransaction::BadProof));
    assert!(chain.validate(honest.clone()).is_ok());
    assert_eq!(chain.block(vec![honest]), [Ok(())]);
}
