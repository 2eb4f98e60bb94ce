//! Calls signed elsewhere: by a wallet, or on a machine without a network.
//!
//! [`UnsignedCall`] contains the data for a signer, in the format of polkadot-js and its wallets
//! (`SignerPayloadJSON`), and the transaction without its signature. [`UnsignedCall::signed`] inserts the signature.

use crate::keys::{self, address};
use protocol::{Block, view::Account};
use serde::{Deserialize, Serialize};
use sp_core::{Pair as _, ed25519, sr25519};

/// Number of blocks for which such a call is valid, from the one that it names. Must be below the number of block
/// hashes that the chain keeps.
pub(crate) const VALID_BLOCKS: u32 = 2048;

/// Version byte of a signed transaction, which consists of length, version, signer, signature, and the rest.
const SIGNED_VERSION: u8 = 0x84;
const BY_ACCOUNT: u8 = 0;
const SIGNATURE_BYTES: usize = 64;

/// A call without its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnsignedCall {
    /// Description of the call for users.
    pub what: String,
    /// Bytes to sign, for a signer that does not display calls.
    pub payload: Hex,
    /// Transaction with a signature of zeros.
    pub transaction: Hex,
    /// Last block that may include it.
    pub valid_until: u32,
    // The following fields are those of `SignerPayloadJSON`. Numbers are in hex, big-endian.
    pub address: String,
    pub method: Hex,
    pub era: Hex,
    pub nonce: String,
    pub tip: String,
    pub block_hash: Hex,
    pub block_number: String,
    pub genesis_hash: Hex,
    pub spec_version: String,
    pub transaction_version: String,
    pub signed_extensions: Vec<String>,
    pub version: u8,
}

/// A call that was signed elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCall {
    pub what: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) account: Account,
    pub(crate) nonce: u64,
    pub(crate) valid_until: Block,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("a signature is 64 bytes as hex digits, or 65 with its scheme first, as wallets return it")]
    NotASignature,
    #[error(
        "{address} did not sign this call with this signature: sign `payload` as it is, with the key of that account"
    )]
    NotOfTheAccount { address: String },
    #[error(
        "this is no transaction without a signature of {address}: write the file again with --sign-elsewhere"
    )]
    NotATransaction { address: String },
}

/// Bytes, as `0x` and hex digits in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hex(pub Vec<u8>);

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Hex, String> {
        let digits = text.strip_prefix("0x").ok_or("bytes begin with 0x")?;
        hex::decode(digits).map(Hex).map_err(|error| error.to_string())
    }
}

impl From<Hex> for String {
    fn from(Hex(bytes): Hex) -> String {
        format!("0x{}", hex::encode(bytes))
    }
}

impl UnsignedCall {
    /// Returns the transaction with `signature`, given as hex digits.
    ///
    /// # Errors
    /// Fails if it is not the account's signature of the payload: the chain would refuse the transaction.
    pub fn signed(&self, signature: &str) -> Result<SignedCall, SignatureError> {
        let not_a_transaction = || SignatureError::NotATransaction { address: self.address.clone() };
        let account = keys::parse_address(&self.address).map_err(|_| not_a_transaction())?;
        let signature = signature.trim();
        let signature = hex::decode(signature.strip_prefix("0x").unwrap_or(signature))
            .map_err(|_| SignatureError::NotASignature)?;
        let (scheme, signature) = match signature.split_first_chunk::<1>() {
            Some(([scheme @ (0 | 1)], rest)) if rest.len() == SIGNATURE_BYTES => (Some(*scheme), rest),
            _ => (None, &signature[..]),
        };
        let signature: [u8; SIGNATURE_BYTES] =
            signature.try_into().map_err(|_| SignatureError::NotASignature)?;
        let scheme = (0..2)
            .filter(|number| scheme.is_none_or(|named| named == *number))
            .find(|number| is_signed(*number, &signature, &self.payload.0, &account))
            .ok_or_else(|| SignatureError::NotOfTheAccount { address: address(&account) })?;

        let mut bytes = self.transaction.0.clone();
        // The length is a compact number, whose first two bits state its size.
        let length_bytes = match bytes.first().map(|first| first & 3) {
            Some(0) => 1,
            Some(1) => 2,
            Some(2) => 4,
            _ => return Err(not_a_transaction()),
        };
        let head = [&[SIGNED_VERSION, BY_ACCOUNT][..], &account].concat();
        let (begin, rest) =
            bytes.split_at_mut_checked(length_bytes + head.len()).ok_or_else(not_a_transaction)?;
        let signature_field = rest.split_first_chunk_mut::<{ 1 + SIGNATURE_BYTES }>();
        let Some((field, _)) = signature_field.filter(|_| begin[length_bytes..] == head) else {
            return Err(not_a_transaction());
        };
        field[0] = scheme;
        field[1..].copy_from_slice(&signature);
        let nonce = self.nonce.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let nonce = nonce.ok_or_else(not_a_transaction)?;
        let valid_until = Block(self.valid_until);
        Ok(SignedCall { what: self.what.clone(), bytes, account, nonce, valid_until })
    }
}

/// Returns whether the account signed `payload`, by a scheme's number in a `MultiSignature`.
fn is_signed(scheme: u8, signature: &[u8; SIGNATURE_BYTES], payload: &[u8], account: &Account) -> bool {
    match scheme {
        0 => ed25519::Pair::verify(
            &ed25519::Signature::from_raw(*signature),
            payload,
            &ed25519::Public::from_raw(*account),
        ),
        _ => sr25519::Pair::verify(
            &sr25519::Signature::from_raw(*signature),
            payload,
            &sr25519::Public::from_raw(*account),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Key, Scheme};
    use proptest::prelude::*;
    use subxt::{tx::Signer as _, utils::MultiSignature};

    fn unsigned(key: &Key) -> UnsignedCall {
        let head = [&[SIGNED_VERSION, BY_ACCOUNT][..], &key.account(), &[0; 65], b"the rest"].concat();
        let hex = || Hex(Vec::new());
        UnsignedCall {
            what: "claiming".into(),
            payload: Hex(b"the payload".to_vec()),
            transaction: Hex([&[0xb5, 0x01][..], &head].concat()),
            valid_until: 9,
            address: key.address(),
            method: hex(),
            era: hex(),
            nonce: "0x0000001f".into(),
            tip: String::new(),
            block_hash: hex(),
            block_number: String::new(),
            genesis_hash: hex(),
            spec_version: String::new(),
            transaction_version: String::new(),
            signed_extensions: Vec::new(),
            version: 4,
        }
    }

    fn signature(key: &Key) -> [u8; 64] {
        match key.sign(b"the payload") {
            MultiSignature::Ed25519(bytes) | MultiSignature::Sr25519(bytes) => bytes,
            MultiSignature::Ecdsa(_) => panic!("no key is of this scheme"),
        }
    }

    #[test]
    fn a_signature_of_either_scheme_goes_into_the_transaction() {
        let words = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
        for scheme in [Scheme::Ed25519, Scheme::Sr25519] {
            let key = Key::from_words(words, scheme).unwrap();
            let call = unsigned(&key);
            let bare = hex::encode(signature(&key));
            let number = u8::from(scheme == Scheme::Sr25519);
            let signed = call.signed(&format!("0x{bare}")).unwrap();
            assert_eq!((signed.account, signed.nonce), (key.account(), 31));
            assert_eq!(signed, call.signed(&format!("0{number}{bare}\n")).unwrap());
            let field = &signed.bytes[2 + 34..][..65];
            assert_eq!((field[0], hex::encode(&field[1..])), (number, bare.clone()));
            assert_eq!(&signed.bytes[2 + 34 + 65..], b"the rest");
            let other = call.signed(&format!("0{}{bare}", 1 - number));
            assert!(matches!(other, Err(SignatureError::NotOfTheAccount { .. })), "{other:?}");
        }
    }

    #[test]
    fn another_s_signature_and_a_changed_file_are_refused() {
        let [alice, bob] = ["//Alice", "//Bob"].map(|path| Key::dev(path).unwrap());
        let call = unsigned(&alice);
        let refused = |call: &UnsignedCall, signature: &str| call.signed(signature).unwrap_err();
        let of_bob = hex::encode(signature(&bob));
        assert!(matches!(refused(&call, &of_bob), SignatureError::NotOfTheAccount { .. }));
        for text in ["", "0x", "zz", "0x00", &"00".repeat(66)] {
            assert_eq!(refused(&call, text), SignatureError::NotASignature, "{text}");
        }
        let good = hex::encode(signature(&alice));
        let mut changed = call.clone();
        changed.payload.0.push(0);
        assert!(matches!(refused(&changed, &good), SignatureError::NotOfTheAccount { .. }));
        let changes: [fn(&mut Vec<u8>); 3] =
            [|bytes| bytes.truncate(60), |bytes| bytes[3] = 1, |bytes| bytes.clear()];
        for change in changes {
            let mut changed = call.clone();
            change(&mut changed.transaction.0);
            assert!(matches!(refused(&changed, &good), SignatureError::NotATransaction { .. }));
        }
        let changed = UnsignedCall { nonce: "31".into(), ..call };
        assert!(matches!(refused(&changed, &good), SignatureError::NotATransaction { .. }));
    }

    proptest! {
        #[test]
        fn no_transaction_makes_it_panic(bytes: Vec<u8>) {
            let key = Key::dev("//Alice").unwrap();
            let call = UnsignedCall { transaction: Hex(bytes), ..unsigned(&key) };
            prop_assert!(call.signed(&hex::encode(signature(&key))).is_err());
        }
    }
}
