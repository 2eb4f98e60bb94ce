//! Price of a seat: it rises with each registration and falls with time, down to a part of a seat's pay (PROT-29).
//! Plain functions, without storage.

use crate::{Balance, rules::share_of};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use protocol::{Role, RunParams, Terms, Window};
use scale_info::TypeInfo;

/// A newcomer that replaces a seat raises the price by the inverse of this number.
const CONTESTED_PARTS: u128 = 8;

/// Number of times that the price halves in a seat's immunity. About six replacements in that time keep it constant.
const HALVINGS_IN_IMMUNITY: u32 = 4;

/// Price after the last registration, and its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Price {
    pub amount: Balance,
    pub at: Window,
}

impl Price {
    /// Returns the price in `window`: it halves with each half-life, linearly in between, and is at least `floor`.
    pub fn in_window(&self, window: Window, terms: &Terms, floor: Balance) -> Balance {
        let elapsed = window.0.saturating_sub(self.at.0);
        decayed(self.amount, elapsed, half_life(terms)).max(floor)
    }

    /// Returns the price after a registration that paid `paid` in `window`. A free seat raises it only a little: if a
    /// whole run is filled at once, the last newcomer pays less than three times the first price.
    pub fn after(paid: Balance, window: Window, terms: &Terms, role: Role, free: bool) -> Price {
        let parts = match free {
            true => CONTESTED_PARTS.max(terms.seats_max(role).into()),
            false => CONTESTED_PARTS,
        };
        Price { amount: paid.saturating_add(paid.div_ceil(parts)), at: window }
    }
}

/// Returns the lowest price of a seat of `role` in `window`: the terms' minimum, or half of a seat's pay over its
/// immunity, whichever is higher. The pay assumes that all seats of the role are taken and paid equally out of
/// `treasury`. An idle seat earns nothing, so this is its cost.
pub fn floor(terms: &Terms, params: &RunParams, role: Role, window: Window, treasury: Balance) -> Balance {
    let share = match role {
        Role::Miner => terms.shares.miners,
        Role::Validator => terms.shares.validators,
    };
    let epoch_windows = params.epoch_windows.max(1);
    let pot = terms.emission(window.epoch(epoch_windows)).min(treasury);
    let per_epoch = share_of(pot, share) / Balance::from(terms.seats_max(role).max(1));
    let over_immunity =
        per_epoch.saturating_mul(terms.immunity_windows.into()) / Balance::from(epoch_windows);
    terms.seat_price_min.max(over_immunity / 2)
}

fn half_life(terms: &Terms) -> u32 {
    (terms.immunity_windows / HALVINGS_IN_IMMUNITY).max(1)
}

fn decayed(amount: Balance, elapsed: u32, half_life: u32) -> Balance {
    let (halvings, rest) = (elapsed / half_life, Balance::from(elapsed % half_life));
    let halved = amount.checked_shr(halvings).unwrap_or(0);
    let (next, half_life) = (halved / 2, Balance::from(half_life));
    // `next · rest / half_life` without overflow.
    let fallen = (next / half_life) * rest + (next % half_life) * rest / half_life;
    halved - fallen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A half-life of 10 windows.
    fn terms() -> Terms {
        Terms { immunity_windows: 40, seat_price_min: 100, miner_seats_max: 192, ..Terms::default() }
    }

    #[test]
    fn a_price_halves_with_each_half_life_down_to_its_minimum() {
        let price = Price { amount: 800, at: Window(5) };
        let at = |window| price.in_window(Window(window), &terms(), 100);
        assert_eq!(
            [4, 5, 6, 10, 15, 20, 25, 35, 36, 1000].map(at),
            [800, 800, 760, 600, 400, 300, 200, 100, 100, 100]
        );
    }

    #[test]
    fn a_replacement_raises_the_price_by_an_eighth_and_a_free_seat_by_little() {
        let after = |free| Price::after(1920, Window(7), &terms(), Role::Miner, free);
        assert_eq!(after(false), Price { amount: 2160, at: Window(7) });
        assert_eq!(after(true), Price { amount: 1930, at: Window(7) });
        assert_eq!(Price::after(0, Window(7), &terms(), Role::Miner, false).amount, 0);
    }

    #[test]
    fn filling_a_run_at_once_less_than_triples_the_price() {
        for seats in [1, 4, 64, 192, 1024] {
            let terms = Terms { miner_seats_max: seats, seat_price_min: 1_000_000, ..terms() };
            let mut price = Price::default();
            let mut last = 0;
            for _ in 0..seats {
                last = price.in_window(Window(0), &terms, terms.seat_price_min);
                price = Price::after(last, Window(0), &terms, Role::Miner, true);
            }
            assert!(last < 3 * terms.seat_price_min, "{seats} seats: {last}");
        }
    }

    #[test]
    fn the_lowest_price_is_half_of_what_a_seat_of_a_full_role_is_paid_over_its_immunity() {
        let terms = Terms { emission_per_epoch: 192_000, validator_seats_max: 64, ..terms() };
        let params = RunParams { epoch_windows: 10, ..RunParams::default() };
        let floor = |role, window, treasury| floor(&terms, &params, role, Window(window), treasury);
        // Four epochs of immunity; per epoch, 96,000 to 192 miners and 76,800 to 64 validators.
        assert_eq!(floor(Role::Miner, 0, Balance::MAX), 500 * 4 / 2);
        assert_eq!(floor(Role::Validator, 0, Balance::MAX), 1200 * 4 / 2);
        // A treasury below the emission pays less, and an empty one nothing.
        assert_eq!(floor(Role::Miner, 0, 96_000), 500);
        assert_eq!(floor(Role::Miner, 0, 0), 100);
        // The price halves with the emission.
        let halving = Terms { emission_halving_epochs: 2, ..terms };
        assert_eq!(super::floor(&halving, &params, Role::Miner, Window(20), Balance::MAX), 500);
        let largest = Terms { emission_per_epoch: Balance::MAX, immunity_windows: u32::MAX, ..terms };
        assert!(super::floor(&largest, &params, Role::Miner, Window(0), Balance::MAX) > Balance::MAX / 100);
    }

    proptest! {
        #[test]
        fn a_price_never_rises_by_itself_and_never_overflows(
            amount: Balance, at: u32, elapsed: u32, immunity: u32,
        ) {
            let terms = Terms { immunity_windows: immunity, ..terms() };
            let price = Price { amount, at: Window(at) };
            let now = price.in_window(Window(at.saturating_add(elapsed)), &terms, 0);
            let after = Window(at.saturating_add(elapsed).saturating_add(1));
            let later = price.in_window(after, &terms, 0);
            prop_assert!(later <= now && now <= amount);
            prop_assert!(Price::after(now, Window(at), &terms, Role::Miner, false).amount >= now);
        }
    }
}
