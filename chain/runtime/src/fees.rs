//! What a call costs: by its weight and its bytes, and more while blocks are full.
//!
//! One MTL pays for about a hundred thousand transfers. The price is that of an empty chain: a multiplier rises by up
//! to 1.1 % per block while blocks are fuller than [`Target`], and falls again to one. Free calls alone cannot raise
//! it: they fill at most three quarters of a block (`free_calls`).

use crate::{Balance, Runtime, System, TransactionPayment, block_weights, frame_system};
use frame::{
    deps::{
        frame_support::dispatch::DispatchClass,
        sp_runtime::{
            FixedPointNumber as _, FixedU128, Perquintill,
            traits::{Convert, One as _, Saturating as _},
        },
    },
    prelude::Get,
    runtime::prelude::{Weight, parameter_types, weights::WeightToFee},
};
use pallet_transaction_payment::{Multiplier, MultiplierUpdate};

/// The fee of one byte: 250 bytes cost about as much as a quarter of a millisecond.
pub const BYTE_FEE: Balance = 10_000;

parameter_types! {
    /// How full a block may be before fees rise: fuller than free calls make it.
    pub const Target: Perquintill = Perquintill::from_percent(80);
    /// The change of the multiplier in a block, for each whole by which it misses the target.
    pub Variability: Multiplier = Multiplier::saturating_from_rational(1, 25);
    /// An empty chain.
    pub MultiplierMin: Multiplier = Multiplier::one();
    /// Reached after about 870 full blocks.
    pub MultiplierMax: Multiplier = Multiplier::saturating_from_integer(1000);
}

/// One unit per hundred picoseconds.
pub struct WeightFee;

impl WeightToFee for WeightFee {
    type Balance = Balance;

    fn weight_to_fee(weight: &Weight) -> Balance {
        Balance::from(weight.ref_time() / 100)
    }
}

/// [`BYTE_FEE`] per byte, times the multiplier, which by default holds for weights only.
pub struct LengthFee;

impl WeightToFee for LengthFee {
    type Balance = Balance;

    fn weight_to_fee(length: &Weight) -> Balance {
        let fee = BYTE_FEE.saturating_mul(length.ref_time().into());
        TransactionPayment::next_fee_multiplier().saturating_mul_int(fee)
    }
}

/// Moves the multiplier by the fullness of the block: of its weight or of its bytes, whichever is greater.
pub struct FullBlocksCostMore;

impl MultiplierUpdate for FullBlocksCostMore {
    fn min() -> Multiplier {
        MultiplierMin::get()
    }
    fn max() -> Multiplier {
        MultiplierMax::get()
    }
    fn target() -> Perquintill {
        Target::get()
    }
    fn variability() -> Multiplier {
        Variability::get()
    }
}

impl Convert<Multiplier, Multiplier> for FullBlocksCostMore {
    fn convert(previous: Multiplier) -> Multiplier {
        next(previous, fullness())
    }
}

/// The share of the ordinary calls' room that the block's calls take; operational calls may take more than all of it.
fn fullness() -> FixedU128 {
    let weights = block_weights();
    let class = weights.get(DispatchClass::Normal);
    let room = class.max_total.unwrap_or(weights.max_block).ref_time();
    let used = System::block_weight();
    let used = used.get(DispatchClass::Normal).saturating_add(*used.get(DispatchClass::Operational));
    let length: frame_system::limits::BlockLength = <Runtime as frame_system::Config>::BlockLength::get();
    let share = |part: u64, whole: u64| FixedU128::saturating_from_rational(part, whole.max(1));
    let bytes = share(System::block_size().into(), (*length.max.get(DispatchClass::Normal)).into());
    share(used.ref_time(), room).max(bytes)
}

fn next(previous: Multiplier, fullness: FixedU128) -> Multiplier {
    let target: FixedU128 = Target::get().into();
    let change = match fullness > target {
        true => FixedU128::one()
            .saturating_add((fullness.saturating_sub(target)).saturating_mul(Variability::get())),
        false => FixedU128::one()
            .saturating_sub((target.saturating_sub(fullness)).saturating_mul(Variability::get())),
    };
    previous.saturating_mul(change).clamp(MultiplierMin::get(), MultiplierMax::get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UNIT;

    /// What the ordinary calls' bytes of `blocks` blocks cost, `full` to that share.
    fn price(blocks: u32, full: FixedU128) -> Balance {
        let bytes = 15 * (1 << 20) / 4;
        let fee =
            |multiplier: Multiplier| (multiplier.saturating_mul(full)).saturating_mul_int(BYTE_FEE * bytes);
        let mut multiplier = Multiplier::one();
        let mut price = 0;
        for _ in 0..blocks {
            price += fee(multiplier);
            multiplier = next(multiplier, full);
        }
        price
    }

    /// It was 19 MTL per day of slots of two seconds, and 0.05 per window of 115 blocks.
    #[test]
    fn filling_the_blocks_with_bytes_is_dear() {
        let (window, day) = (115, 43_200);
        let (full, four_fifths) = (FixedU128::one(), FixedU128::from_rational(4, 5));
        let prices = [(window, full), (day, four_fifths), (day, full)]
            .map(|(blocks, share)| price(blocks, share) / UNIT);
        assert_eq!(prices[..2], [7, 1358]);
        assert!(prices[2] > 1_600_000, "{prices:?}");
    }

    #[test]
    fn the_multiplier_rises_while_blocks_are_full_and_falls_again() {
        let (full, empty) = (FixedU128::one(), FixedU128::saturating_from_integer(0));
        let after =
            |from, blocks, fullness| (0..blocks).fold(from, |multiplier, _| next(multiplier, fullness));
        let window = after(FixedU128::one(), 115, full);
        assert!(window > FixedU128::from_rational(24, 10) && window < FixedU128::from_rational(26, 10));
        assert!(after(FixedU128::one(), 860, full) < MultiplierMax::get());
        assert_eq!(after(FixedU128::one(), 880, full), MultiplierMax::get());
        assert_eq!(after(MultiplierMax::get(), 250, empty), FixedU128::one());
        // Free calls fill three quarters.
        assert_eq!(next(FixedU128::one(), FixedU128::from_rational(3, 4)), FixedU128::one());
    }
}
