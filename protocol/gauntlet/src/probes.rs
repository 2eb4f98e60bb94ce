//! The root over a receipt's measurements, and the answers to probes of them (PROT-27, PROT-30).

use protocol::{
    Digest, RunParams, Uid,
    probe::{self, Answer, Leaves},
    receipt::{Observed, Receipt},
    select::Selected,
};

/// Returns the root over a receipt's measurements of the selected contributions (PROT-27).
pub fn root(receipt: &Receipt, selected: &[Selected], params: &RunParams) -> Digest {
    probe::root(&leaves(receipt, selected, params))
}

/// Returns the leaf of `uid` and its proof; without losses if the receipt has none to show. `None` if `uid` is not
/// selected.
pub fn answer(receipt: &Receipt, selected: &[Selected], uid: Uid, params: &RunParams) -> Option<Answer> {
    let place = selected.iter().position(|one| one.uid == uid)?;
    let losses = losses(receipt, selected, uid, params);
    Some(Answer { losses, proof: probe::proof(&leaves(receipt, selected, params), place)? })
}

fn leaves(receipt: &Receipt, selected: &[Selected], params: &RunParams) -> Vec<Digest> {
    let Receipt { run, window, validator, .. } = *receipt;
    let leaves = Leaves { run, window, validator };
    let leaf = |one: &Selected| leaves.leaf(one.uid, losses(receipt, selected, one.uid, params).as_deref());
    selected.iter().map(leaf).collect()
}

/// Returns the losses after the contribution of `uid` on the shared sequences, in millionths of a nat per token,
/// rounded to the nearest. `None` if it was not measured, or if the validator did not hold all selected
/// contributions: then its measurements are scaled by other norms than those of the other validators (PROT-17).
fn losses(receipt: &Receipt, selected: &[Selected], uid: Uid, params: &RunParams) -> Option<Vec<u32>> {
    let judgement = receipt.judgement.as_ref()?;
    if !selected.iter().all(|one| judgement.held.contains(&one.uid)) {
        return None;
    }
    let Observed::Valid { measured: Some(measured), .. } = &receipt.of(uid)?.observed else { return None };
    let shared = probe::sequences(params.evaluation_sequences);
    let losses = measured.common_after.iter().take(shared).map(|loss| probe::millionths(loss.get()));
    let losses: Vec<u32> = losses.collect();
    (!losses.is_empty()).then_some(losses)
}
