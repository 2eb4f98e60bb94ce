//! What the runtime API reads.

use crate::pallet::*;
use alloc::vec::Vec;
use protocol::{RunId, Uid, view::SeatConsensus};

impl<T: Config> Pallet<T> {
    /// The last consensus on a seat; empty for a newer holder.
    pub fn consensus_of(run: RunId, uid: Uid) -> SeatConsensus {
        let standings = Standings::<T>::get(run);
        let place = standings.binary_search_by_key(&uid, |(seat, _)| *seat);
        place
            .ok()
            .and_then(|place| standings.get(place))
            .map_or(SeatConsensus::default(), |(_, standing)| *standing)
    }

    /// The last consensus, in uid order.
    pub fn consensus(run: RunId) -> Vec<(Uid, SeatConsensus)> {
        Standings::<T>::get(run).into_inner()
    }

    /// A validator's bonds, in parts of [`protocol::consensus::ONE`], in uid order.
    pub fn bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)> {
        BondsOf::<T>::get(run, validator).into_inner()
    }
}
