//! The price of a seat: it rises with each registration and falls with time (PROT-29). Plain functions, without
//! storage.

use crate::Balance;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use protocol::{Role, Terms, Window};
use scale_info::TypeInfo;

/// A newcomer that replaces a seat raises the price by one part in this many.
const CONTESTED_PARTS: u128 = 8;

/// The price halves this many times in a seat's immunity. About six replacements in that time keep it constant.
const HALVINGS_IN_IMMUNITY: u32 = 4;

/// The price that the last registration left, and its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Price {
    pub amount: Balance,
    pub at: Window,
}

impl Price {
    /// The price in `window`: it halves with each half-life, linearly in between, and is at least the terms' minimum.
    pub fn in_window(&self, window: Window, terms: &Terms) -> Balance {
        let elapsed = window.0.saturating_sub(self.at.0);
        decayed(self.amount, elapsed, half_life(terms)).max(terms.seat_price_min)
    }

    /// The price after a registration that paid `paid` in `window`. Taking a free seat raises it so little that a
    /// whole run, filled at once, costs the last newcomer less than three times what the first paid.
    pub fn after(paid: Balance, window: Window, terms: &Terms, role: Role, free: bool) -> Price {
        let parts = match free {
            true => CONTESTED_PARTS.max(terms.seats_max(role).into()),
            false => CONTESTED_PARTS,
        };
        Price { amount: paid.saturating_add(paid.div_ceil(parts)), at: window }
    }
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
        let at = |window| price.in_window(Window(window), &terms());
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
                last = price.in_window(Window(0), &terms);
                price = Price::after(last, Window(0), &terms, Role::Miner, true);
            }
            assert!(last < 3 * terms.seat_price_min, "{seats} seats: {last}");
        }
    }

    proptest! {
        #[test]
        fn a_price_never_rises_by_itself_and_never_overflows(
            amount: Balance, at: u32, elapsed: u32, immunity: u32,
        ) {
            let terms = Terms { immunity_windows: immunity, seat_price_min: 0, ..terms() };
            let price = Price { amount, at: Window(at) };
            let now = price.in_window(Window(at.saturating_add(elapsed)), &terms);
            let later = price.in_window(Window(at.saturating_add(elapsed).saturating_add(1)), &terms);
            prop_assert!(later <= now && now <= amount);
            prop_assert!(Price::after(now, Window(at), &terms, Role::Miner, false).amount >= now);
        }
    }
}
