//! A validator's weight vote for an epoch, read from blocks (PROT-30).
//!
//! The chain's state drops weight votes when their epoch closes; its blocks keep them. A call's bytes are the last of
//! an extrinsic. A reveal counts only if it matches the commitment.

use codec::{Decode, DecodeAll as _};
use protocol::{
    Block, Digest, Hotkey, RunId, RunParams, Uid, Window,
    reveal::{self, Salt},
};
use std::ops::RangeInclusive;

/// First two bytes of a call: the index of the pallet and of the call.
pub(crate) type CallIndex = [u8; 2];

/// Returns the blocks that can contain an epoch's commitment.
pub(crate) fn commit_blocks(params: &RunParams, epoch: u32) -> RangeInclusive<u32> {
    let first = |epoch: u32| params.schedule.opens_at(Window(epoch.saturating_mul(params.epoch_windows)));
    // Includes the next epoch's first block: the chain may close an epoch late.
    first(epoch).0..=first(epoch.saturating_add(1)).0
}

/// Returns the blocks that can contain an epoch's reveal.
pub(crate) fn reveal_blocks(params: &RunParams, epoch: u32) -> RangeInclusive<u32> {
    let after = Window(epoch.saturating_add(1).saturating_mul(params.epoch_windows));
    let over = Window(after.0.saturating_add(params.reveal_windows));
    // If a full block closes the epoch late, the chain accepts reveals until then.
    let grace = params.schedule.blocks_per_window;
    params.schedule.opens_at(after).0..=params.schedule.opens_at(over).0.saturating_add(grace)
}

/// Returns the hash that `hotkey` committed to for `epoch`, if the extrinsic is that call.
pub(crate) fn committed(
    bytes: &[u8],
    call: CallIndex,
    run: RunId,
    epoch: u32,
    hotkey: &Hotkey,
) -> Option<Digest> {
    let (of, at, hash): (RunId, u32, Digest) = arguments(bytes, call, hotkey)?;
    (of == run && at == epoch).then_some(hash)
}

/// Returns the weights that `hotkey` revealed for `epoch`, and the commitment that they need, if the extrinsic is that
/// call.
pub(crate) fn revealed(
    bytes: &[u8],
    call: CallIndex,
    run: RunId,
    epoch: u32,
    hotkey: &Hotkey,
) -> Option<(Vec<(Uid, u16)>, Digest)> {
    let (of, at, weights, salt): (RunId, u32, Vec<(Uid, u16)>, Salt) = arguments(bytes, call, hotkey)?;
    let hash = reveal::commitment(&weights, &salt, hotkey);
    (of == run && at == epoch).then_some((weights, hash))
}

/// Returns the part of `blocks` up to `head`.
pub(crate) fn until(blocks: RangeInclusive<u32>, head: Block) -> RangeInclusive<u32> {
    *blocks.start()..=(*blocks.end()).min(head.0)
}

/// Returns the arguments of a call that `signer` signed itself: all bytes after the call's index.
fn arguments<T: Decode>(bytes: &[u8], call: CallIndex, signer: &Hotkey) -> Option<T> {
    /// The signer's account is within the first bytes, after length, version and address kind.
    const SIGNER_WITHIN: usize = 40;
    let head = bytes.get(..SIGNER_WITHIN.min(bytes.len()))?;
    let signed = head.windows(32).any(|window| window == signer.0);
    if !signed {
        return None;
    }
    let starts = bytes.windows(call.len()).enumerate().skip(SIGNER_WITHIN);
    let mut starts = starts.filter(|(_, window)| *window == call).map(|(start, _)| start + call.len());
    starts.find_map(|start| T::decode_all(&mut bytes.get(start..)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Encode as _;

    const RUN: RunId = RunId(1);
    const CALL: CallIndex = [9, 1];

    /// Builds an extrinsic: length, version, address, signature, extensions, call.
    fn signed(hotkey: &Hotkey, call: CallIndex, arguments: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x99, 0x02, 0x84, 0x00];
        bytes.extend_from_slice(&hotkey.0);
        bytes.push(0);
        bytes.extend_from_slice(&[7; 64]);
        // Extensions with the same bytes as the call's index.
        bytes.extend_from_slice(&[9, 1, 0, 9]);
        bytes.extend_from_slice(&call);
        bytes.extend_from_slice(arguments);
        bytes
    }

    #[test]
    fn revealed_weights_are_read_with_the_commitment_they_need() {
        let (hotkey, salt) = (Hotkey([3; 32]), [4; 32]);
        let weights = vec![(Uid(1), 65535u16), (Uid(4), 9)];
        let hash = reveal::commitment(&weights, &salt, &hotkey);
        let bytes = signed(&hotkey, CALL, &(RUN, 5u32, weights.clone(), salt).encode());
        assert_eq!(revealed(&bytes, CALL, RUN, 5, &hotkey), Some((weights, hash)));
        let bytes = signed(&hotkey, CALL, &(RUN, 5u32, hash).encode());
        assert_eq!(committed(&bytes, CALL, RUN, 5, &hotkey), Some(hash));
    }

    #[test]
    fn calls_of_another_key_epoch_run_or_kind_are_ignored() {
        let hotkey = Hotkey([3; 32]);
        let bytes = signed(&hotkey, CALL, &(RUN, 5u32, Digest([1; 32])).encode());
        assert_eq!(committed(&bytes, CALL, RUN, 6, &hotkey), None);
        assert_eq!(committed(&bytes, CALL, RunId(2), 5, &hotkey), None);
        assert_eq!(committed(&bytes, CALL, RUN, 5, &Hotkey([8; 32])), None);
        assert_eq!(committed(&bytes, [9, 2], RUN, 5, &hotkey), None);
        assert_eq!(committed(&bytes[..60], CALL, RUN, 5, &hotkey), None);
        assert_eq!(committed(&[], CALL, RUN, 5, &hotkey), None);
    }

    #[test]
    fn an_epoch_is_committed_in_its_own_blocks_and_revealed_in_the_next() {
        let params = RunParams { epoch_windows: 2, reveal_windows: 1, ..RunParams::default() };
        let opens = |window: u32| params.schedule.opens_at(Window(window)).0;
        assert_eq!(commit_blocks(&params, 3), opens(6)..=opens(8));
        assert_eq!(reveal_blocks(&params, 3), opens(8)..=opens(10));
        assert_eq!(until(10..=20, Block(15)), 10..=15);
    }
}
