//! Price of a call: by its weight and its bytes, and higher while blocks are full.
//!
//! One MTL pays for about a hundred thousand transfers. The price is that of an empty chain: a multiplier rises by up
//! to 1.1 % per block while blocks are fuller than [`Target`], and falls again to one. Free calls alone cannot raise
//! it:
//! they fill at most three quarters of a block (`free_calls`).

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

/// Fee of one byte: 250 bytes cost about as much as a quarter of a millisecond.
pub const BYTE_FEE: Balance = 10_000;

parameter_types! {
    /// Maximum fullness of a block without a rise of fees: above the share of free calls.
    pub const Target: Perquintill = Perquintill::from_percent(80);
    /// Change of the multiplier in a block, per unit of deviation from the target.
    pub Variability: Multiplier = Multiplier::saturating_from_rational(1, 25);
    /// Multiplier of an empty chain.
    pub MultiplierMin: Multiplier = Multiplier::one();
    /// Maximum multiplier, reached after about 870 full blocks.
    pub MultiplierMax: Multiplier = Multiplier::saturating_from_integer(1000);
}

/// Fee of weight: one unit per hundred picoseconds.
pub struct WeightFee;

impl WeightToFee for WeightFee {
    type Balance = Balance;

    fn weight_to_fee(weight: &Weight) -> Balance {
        Balance::from(weight.ref_time() / 100)
    }
}

/// Fee of bytes: [`BYTE_FEE`] per byte, times the multiplier, which by default applies only to weight.
pub struct LengthFee;

impl WeightToFee for LengthFee {
    type Balance = Balance;

    fn weight_to_fee(length: &Weight) -> Balance {
        let fee = BYTE_FEE.saturating_mul(length.ref_time().into());
        TransactionPayment::next_fee_multiplier().saturating_mul_int(fee)
    }
}

/// Adjusts the multiplier to the fullness of the block, by weight or by bytes, whichever is greater.
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

/// Returns the fraction of the room for ordinary calls that the block uses; above one with operational calls.
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

    /// Returns the cost of the ordinary calls' bytes of `blocks` blocks, filled to the fraction `full`.
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

    /// Formerly 19 MTL per day with slots of two seconds, and 0.05 per window of 115 blocks.
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
