//! Messages between peers without a bucket (PROT-34): objects read by name, contributions pushed to validators, and
//! records of validators' addresses.
//!
//! Each message is a version byte and a SCALE value without trailing bytes, of at most [`MESSAGE_BYTES_MAX`]. On a
//! stream its length precedes it as two bytes, little-endian; the bytes of an object follow their message. Nothing is
//! trusted: objects have their digests, and a push or a record has the signature of the seat's hotkey.

use crate::{
    Digest, GenesisHash, Hotkey, Role, RunId, Schedule, Uid, Window, assign, ensure,
    identity::{self, Domain, Signature, Signer},
    keys::ObjectKey,
    view::{SeatView, WindowView},
    window::Block,
};
use alloc::{string::String, vec::Vec};
use codec::{Decode, DecodeAll as _, Encode};

/// The version of every message here.
pub const VERSION: u8 = 1;
/// Maximum length of a message, without the bytes of an object that follow it.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum length of an object's name.
pub const KEY_BYTES_MAX: usize = 256;
/// Maximum number of addresses in a [`PeerRecord`].
pub const ADDRESSES_MAX: usize = 6;
/// Maximum length of an address in a [`PeerRecord`]: that of an endpoint on the chain.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Maximum number of validators to which a miner offers its contribution.
pub const RECEIVERS_ASKED_MAX: usize = 6;
/// Number of validators that must have it before the miner stops.
pub const RECEIVERS_WANTED: usize = 3;

/// Reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("the message is of version {theirs}, and this node speaks version {ours}")]
    Version { theirs: u8, ours: u8 },
    #[error("the message has {bytes} bytes, more than {MESSAGE_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("the message cannot be decoded")]
    Malformed,
}

/// A message of these protocols.
pub trait Message: Sized {
    fn to_bytes(&self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError>;
}

fn encode(value: &impl Encode) -> Vec<u8> {
    let mut bytes = alloc::vec![VERSION];
    value.encode_to(&mut bytes);
    bytes
}

fn decode<T: Decode>(bytes: &[u8]) -> Result<T, MessageError> {
    ensure!(bytes.len() <= MESSAGE_BYTES_MAX, MessageError::TooLong { bytes: bytes.len() });
    let (version, mut body) = bytes.split_first().ok_or(MessageError::Malformed)?;
    ensure!(*version == VERSION, MessageError::Version { theirs: *version, ours: VERSION });
    T::decode_all(&mut body).map_err(|_| MessageError::Malformed)
}

/// Request for bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRequest {
    pub key: ObjectKey,
    pub offset: u64,
    /// Maximum length; shorter if the object ends before.
    pub length: u64,
}

impl Message for BlobRequest {
    fn to_bytes(&self) -> Vec<u8> {
        encode(&(self.key.as_str().as_bytes(), self.offset, self.length))
    }

    fn from_bytes(bytes: &[u8]) -> Result<BlobRequest, MessageError> {
        let (key, offset, length): (Vec<u8>, u64, u64) = decode(bytes)?;
        ensure!(key.len() <= KEY_BYTES_MAX, MessageError::Malformed);
        let key = core::str::from_utf8(&key).ok().and_then(|key| key.parse().ok());
        Ok(BlobRequest { key: key.ok_or(MessageError::Malformed)?, offset, length })
    }
}

/// Reply to a [`BlobRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum BlobAnswer {
    /// `length` bytes of an object of `total` bytes follow.
    Found {
        total: u64,
        length: u64,
    },
    Missing,
    /// Too many concurrent reads, or the bucket behind the peer does not answer.
    Busy,
    /// The request has another version, or cannot be decoded.
    Refused {
        ours: u8,
    },
}

impl Message for BlobAnswer {
    fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    fn from_bytes(bytes: &[u8]) -> Result<BlobAnswer, MessageError> {
        decode(bytes)
    }
}

/// Offer of a contribution. Its bytes follow once the receiver has answered [`PutAnswer::Send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PutHeader {
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub digest: Digest,
    pub length: u64,
    /// Signature by the seat's hotkey over all fields before it.
    pub signature: Signature,
}

impl Message for PutHeader {
    fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    fn from_bytes(bytes: &[u8]) -> Result<PutHeader, MessageError> {
        decode(bytes)
    }
}

impl PutHeader {
    pub fn sign(
        run: RunId,
        window: Window,
        uid: Uid,
        digest: Digest,
        length: u64,
        signer: &Signer,
    ) -> PutHeader {
        let signature = signer.sign(Domain::Put, &signed_message(run, window, uid, &digest, length));
        PutHeader { run, window, uid, digest, length, signature }
    }
}

fn signed_message(run: RunId, window: Window, uid: Uid, digest: &Digest, length: u64) -> Vec<u8> {
    encode(&(run, window, uid, digest, length))
}

/// Reply to a [`PutHeader`], and then to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PutAnswer {
    /// The receiver accepts the bytes.
    Send,
    /// The receiver already has the contribution.
    Have,
    Refused(Refusal),
}

impl Message for PutAnswer {
    fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    fn from_bytes(bytes: &[u8]) -> Result<PutAnswer, MessageError> {
        decode(bytes)
    }
}

/// Reason why a receiver refuses a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Refusal {
    #[error("the offer is of version {theirs}, and the receiver speaks version {ours}")]
    Version { theirs: u8, ours: u8 },
    #[error("the offer cannot be decoded")]
    Malformed,
    #[error("the receiver serves run {run}")]
    OtherRun { run: RunId },
    #[error(
        "the receiver is at block {block}, and takes contributions to the window after block {after} and up to {until}"
    )]
    NotNow { block: Block, after: Block, until: Block },
    #[error("no miner holds the seat")]
    NoSeat,
    #[error("the seat's hotkey did not sign the offer")]
    BadSignature,
    #[error("the seat has not committed to this digest on the chain")]
    NotCommitted,
    #[error("a contribution has at most {max} bytes")]
    TooLong { max: u64 },
    #[error("the seat is sending its contribution already")]
    InProgress,
    #[error("the receiver takes as many contributions as it may at once")]
    Busy,
    #[error("the bytes came too slowly")]
    TooSlow,
    #[error("the bytes ended too early")]
    CutShort,
    #[error("the bytes have another digest")]
    OtherDigest,
    #[error("the receiver could not keep the bytes, or could not read the chain")]
    Failed,
}

impl Refusal {
    /// Returns whether the refusal is temporary, so that the same offer may be accepted later.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Refusal::NotNow { .. }
                | Refusal::InProgress
                | Refusal::Busy
                | Refusal::TooSlow
                | Refusal::CutShort
                | Refusal::Failed
        )
    }
}

impl From<MessageError> for Refusal {
    fn from(error: MessageError) -> Refusal {
        match error {
            MessageError::Version { theirs, ours } => Refusal::Version { theirs, ours },
            MessageError::TooLong { .. } | MessageError::Malformed => Refusal::Malformed,
        }
    }
}

/// State against which a receiver judges an offer.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    pub genesis: GenesisHash,
    pub run: RunId,
    pub schedule: Schedule,
    /// The largest contribution that the schema allows (PROT-8).
    pub bytes_max: u64,
    /// The latest block that the receiver knows.
    pub block: Block,
}

impl Receiver {
    /// Checks the part of the rule that needs no chain state: run, time and length.
    ///
    /// # Errors
    /// [`Refusal`] for another run, a wrong time or too many bytes.
    pub fn judge_offer(&self, offer: &PutHeader) -> Result<(), Refusal> {
        let Receiver { run, schedule, bytes_max: max, block, .. } = *self;
        ensure!(offer.run == run, Refusal::OtherRun { run });
        ensure!(offer.length <= max, Refusal::TooLong { max });
        let (after, until) = (schedule.commit_deadline(offer.window), schedule.reveal_deadline(offer.window));
        ensure!(after < block && block <= until, Refusal::NotNow { block, after, until });
        Ok(())
    }

    /// Checks the part that needs chain state: the seat, its signature and its commitment.
    ///
    /// # Errors
    /// [`Refusal`] if no miner holds the seat, its hotkey did not sign, or the digest is not committed.
    pub fn judge_seat(
        &self,
        offer: &PutHeader,
        view: &WindowView,
        seats: &[SeatView],
    ) -> Result<(), Refusal> {
        let seat = seats.iter().find(|seat| seat.id.uid == offer.uid && seat.role == Role::Miner);
        let seat = seat.ok_or(Refusal::NoSeat)?;
        let PutHeader { run, window, uid, digest, length, signature } = offer;
        let message = signed_message(*run, *window, *uid, digest, *length);
        identity::verify(&seat.hotkey, &self.genesis, Domain::Put, &message, signature)
            .map_err(|_| Refusal::BadSignature)?;
        ensure!(view.commitments.contains(&(*uid, *digest)), Refusal::NotCommitted);
        Ok(())
    }
}

/// Returns the window's validators in the order in which a seat offers them its contribution: ascending by
/// `blake3(seed ‖ validator ‖ endpoint)`, with the seat's endpoint. The seed is the window's own, so no seat can
/// predict its receivers. A reader knows the endpoint of any seat, and so its receivers.
pub fn receivers(view: &WindowView, run: RunId, endpoint: &str) -> Vec<Uid> {
    let hash = view.opening_hash.unwrap_or_default();
    let seed = assign::seed(assign::domain::RECEIVERS, run, view.window, &hash);
    let rank = |validator: Uid| Digest::of_parts(&[&seed.0, &validator.0.to_le_bytes(), endpoint.as_bytes()]);
    let mut order: Vec<(Digest, Uid)> =
        view.active_set.iter().map(|(validator, _)| (rank(*validator), *validator)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, validator)| validator).collect()
}

/// Addresses at which a validator receives contributions and serves objects: in its bucket, under
/// [`crate::keys::peer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRecord {
    pub hotkey: Hotkey,
    /// The finalised block at the time of signing.
    pub block: Block,
    /// Base URLs such as `p2p://PEER/ip4/203.0.113.5/udp/4100/quic-v1`, all of one peer.
    pub addresses: Vec<String>,
}

/// Maximum length of a signed record.
pub const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 64;

/// Reason why bytes are not a record of a hotkey.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("the record is of another hotkey, or not signed by it for this chain")]
    NotSigned,
}

impl PeerRecord {
    /// Returns the record's bytes: the message, then the signature.
    ///
    /// # Errors
    /// [`MessageError`] if the addresses are too many or too long.
    pub fn seal(&self, signer: &Signer) -> Result<Vec<u8>, MessageError> {
        let mut bytes = encode(&(self.hotkey, self.block, &self.addresses));
        PeerRecord::read(&bytes)?;
        let signature = signer.sign(Domain::Peer, &bytes);
        bytes.extend_from_slice(&signature.0);
        Ok(bytes)
    }

    /// Reads the record of `hotkey`.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are not a record, or `hotkey` did not sign it for this chain.
    pub fn open(bytes: &[u8], hotkey: &Hotkey, genesis: &GenesisHash) -> Result<PeerRecord, RecordError> {
        let (message, signature) =
            bytes.split_last_chunk::<64>().ok_or(RecordError::Message(MessageError::Malformed))?;
        let record = PeerRecord::read(message)?;
        ensure!(record.hotkey == *hotkey, RecordError::NotSigned);
        identity::verify(hotkey, genesis, Domain::Peer, message, &Signature(*signature))
            .map_err(|_| RecordError::NotSigned)?;
        Ok(record)
    }

    fn read(message: &[u8]) -> Result<PeerRecord, MessageError> {
        let (hotkey, block, addresses): (Hotkey, Block, Vec<String>) = decode(message)?;
        let short = addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        ensure!(short && addresses.len() <= ADDRESSES_MAX, MessageError::Malformed);
        Ok(PeerRecord { hotkey, block, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SeatId, keys};

    const GENESIS: GenesisHash = GenesisHash([3; 32]);
    const SCHEDULE: Schedule = Schedule {
        start: Block(0),
        blocks_per_window: 50,
        commit_by: 10,
        reveal_by: 20,
        attest_by: 30,
        vote_by: 40,
    };

    fn signer(seed: u8) -> Signer {
        Signer::new(ed25519_dalek::SigningKey::from_bytes(&[seed; 32]), GENESIS)
    }

    fn receiver(block: u32) -> Receiver {
        let (genesis, schedule) = (GENESIS, SCHEDULE);
        Receiver { genesis, run: RunId(1), schedule, bytes_max: 100, block: Block(block) }
    }

    fn offer(by: &Signer) -> PutHeader {
        PutHeader::sign(RunId(1), Window(2), Uid(7), Digest([9; 32]), 100, by)
    }

    fn view(commitments: &[(u16, u8)]) -> WindowView {
        WindowView {
            window: Window(2),
            opening_hash: Some(Digest([5; 32])),
            deal_seed: None,
            evaluation_hash: None,
            slots: Vec::new(),
            cursor: 0,
            active_set: (0..8).map(|uid| (Uid(uid), 1)).collect(),
            lineage: Digest::default(),
            weights: Vec::new(),
            commitments: commitments.iter().map(|(uid, byte)| (Uid(*uid), Digest([*byte; 32]))).collect(),
            salts: Vec::new(),
            attested: Vec::new(),
            selection: None,
            votes: Vec::new(),
            outcome: None,
            receipts: Vec::new(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        }
    }

    fn seat(uid: u16, role: Role, hotkey: Hotkey) -> SeatView {
        SeatView {
            id: SeatId { uid: Uid(uid), registered_at: Block(0) },
            role,
            hotkey,
            coldkey: [0; 32],
            endpoint: String::new(),
            stake: 0,
            claimable: 0,
            earned: 0,
        }
    }

    #[test]
    fn messages_read_back_and_nothing_else_does() {
        let digest = Digest::of(b"object");
        let request = BlobRequest { key: keys::update(RunId(1), Window(2), &digest), offset: 3, length: 4 };
        assert_eq!(BlobRequest::from_bytes(&request.to_bytes()), Ok(request.clone()));
        let offer = offer(&signer(1));
        assert_eq!(PutHeader::from_bytes(&offer.to_bytes()), Ok(offer));
        for answer in [PutAnswer::Send, PutAnswer::Have, PutAnswer::Refused(Refusal::TooLong { max: 5 })] {
            assert_eq!(PutAnswer::from_bytes(&answer.to_bytes()), Ok(answer));
        }

        let mut later = offer.to_bytes();
        later[0] = 2;
        assert_eq!(PutHeader::from_bytes(&later), Err(MessageError::Version { theirs: 2, ours: 1 }));
        assert_eq!(
            PutHeader::from_bytes(&[&offer.to_bytes()[..], &[0]].concat()),
            Err(MessageError::Malformed)
        );
        assert_eq!(PutHeader::from_bytes(&[]), Err(MessageError::Malformed));
        let long = alloc::vec![VERSION; MESSAGE_BYTES_MAX + 1];
        assert_eq!(
            BlobAnswer::from_bytes(&long),
            Err(MessageError::TooLong { bytes: MESSAGE_BYTES_MAX + 1 })
        );
        let outside = encode(&(&b"../../etc/passwd"[..], 0u64, 1u64));
        assert_eq!(BlobRequest::from_bytes(&outside), Err(MessageError::Malformed));
    }

    #[test]
    fn an_offer_is_taken_in_its_window_only_and_up_to_the_schemas_length() {
        let offer = offer(&signer(1));
        let until = SCHEDULE.reveal_deadline(Window(2));
        let after = SCHEDULE.commit_deadline(Window(2));
        assert_eq!(receiver(after.0 + 1).judge_offer(&offer), Ok(()));
        assert_eq!(receiver(until.0).judge_offer(&offer), Ok(()));
        for block in [after.0, until.0 + 1] {
            let refusal = receiver(block).judge_offer(&offer).unwrap_err();
            assert!(matches!(refusal, Refusal::NotNow { .. }) && refusal.may_pass(), "{refusal}");
        }
        let other = PutHeader { run: RunId(2), ..offer };
        assert_eq!(receiver(until.0).judge_offer(&other), Err(Refusal::OtherRun { run: RunId(1) }));
        let long = PutHeader { length: 101, ..offer };
        assert_eq!(receiver(until.0).judge_offer(&long), Err(Refusal::TooLong { max: 100 }));
    }

    #[test]
    fn an_offer_needs_a_miners_seat_its_signature_and_its_commitment() {
        let (mine, other) = (signer(1), signer(2));
        let seats = [seat(7, Role::Miner, mine.hotkey()), seat(8, Role::Validator, other.hotkey())];
        let judge = |offer: &PutHeader, view: &WindowView| receiver(1).judge_seat(offer, view, &seats);
        let offer = offer(&mine);
        assert_eq!(judge(&offer, &view(&[(7, 9)])), Ok(()));
        assert_eq!(judge(&offer, &view(&[(7, 8)])), Err(Refusal::NotCommitted));
        assert_eq!(judge(&offer, &view(&[(6, 9)])), Err(Refusal::NotCommitted));
        assert_eq!(judge(&self::offer(&other), &view(&[(7, 9)])), Err(Refusal::BadSignature));
        // The signature covers every field.
        for changed in [PutHeader { length: 99, ..offer }, PutHeader { window: Window(3), ..offer }] {
            assert_eq!(judge(&changed, &view(&[(7, 9)])), Err(Refusal::BadSignature));
        }
        for uid in [8, 9] {
            let changed = PutHeader { uid: Uid(uid), ..offer };
            assert_eq!(judge(&changed, &view(&[(uid, 9)])), Err(Refusal::NoSeat));
        }
    }

    #[test]
    fn each_seat_has_an_order_of_its_own_that_all_agree_on() {
        let view = view(&[]);
        let endpoint = |seat: u8| alloc::format!("p2p://{seat}");
        let orders: Vec<Vec<Uid>> = (0..32).map(|seat| receivers(&view, RunId(1), &endpoint(seat))).collect();
        assert_eq!(orders[3], receivers(&view, RunId(1), &endpoint(3)));
        let firsts = (0..8).filter(|first| orders.iter().any(|order| order[0] == Uid(*first))).count();
        assert!(firsts > 4, "the load spreads: {firsts} of 8 validators come first");
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, (0..8).map(Uid).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_record_is_of_one_hotkey_on_one_chain() {
        let (mine, other) = (signer(1), signer(2));
        let addresses = alloc::vec![String::from("p2p://12D3KooW/ip4/203.0.113.5/udp/4100/quic-v1")];
        let record = PeerRecord { hotkey: mine.hotkey(), block: Block(5), addresses };
        let bytes = record.seal(&mine).unwrap();
        assert_eq!(PeerRecord::open(&bytes, &mine.hotkey(), &GENESIS), Ok(record.clone()));
        for (hotkey, genesis) in [(other.hotkey(), GENESIS), (mine.hotkey(), GenesisHash([4; 32]))] {
            assert_eq!(PeerRecord::open(&bytes, &hotkey, &genesis), Err(RecordError::NotSigned));
        }
        assert!(PeerRecord::open(&record.seal(&other).unwrap(), &mine.hotkey(), &GENESIS).is_err());
        assert!(PeerRecord::open(&bytes[..bytes.len() - 1], &mine.hotkey(), &GENESIS).is_err());
        let many = PeerRecord { addresses: alloc::vec![String::new(); ADDRESSES_MAX + 1], ..record };
        assert_eq!(many.seal(&mine), Err(MessageError::Malformed));
    }
}
