//! Who is merged: a pure function of weights, attestations and a seed (PROT-14, PROT-16).

use crate::{Digest, Uid};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// A contribution that goes into the merge: the seat, and the digest of its exact bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
    Serialize, Deserialize,
)]
pub struct Selected {
    pub uid: Uid,
    pub digest: Digest,
}
