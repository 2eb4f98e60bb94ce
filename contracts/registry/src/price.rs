//! What a seat costs: more where many want one, less as time goes by (PROT-29). Plain functions; they read no storage.

use crate::Balance;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use protocol::{Role, Terms, Window};
use scale_info::TypeInfo;

/// Of the price, what a newcomer that takes somebody's place adds to it: an eighth.
const CONTESTED_PARTS: u128 = 8;

/// The price falls by half in so many parts of a seat's immunity. About six newcomers in that time keep it where it is.
const HALVINGS_IN_IMMUNITY: u32 = 4;

/// What the last seat left of its price, and when.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Price {
    pub amount: Balance,
    pub at: Window,
}

impl Price {
    /// What the next seat costs in `window`: half as much after each half-life, evenly in between, and never less than the
    /// terms ask.
    pub fn in_window(&self, window: Window, terms: &Terms) -> Balance {
        let elapsed = window.0.saturating_sub(self.at.0);
        decayed(self.amount, elapsed, half_life(terms)).max(terms.seat_price_min)
    }

    /// The price that a newcomer leaves behind which paid `paid` in `window`. One that takes a free seat adds at most a
    /// share that makes a whole run, filled at once, cost the last of them less than three times what the first paid.
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
    // `next · rest / half_life`, with no product that could overflow.
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
    fn a_price_halves_evenly_towards_its_minimum() {
        let price = Price { amount: 800, at: Window(5) };
        let at = |window| price.in_window(Window(window), &terms());
        assert_eq!(
            [4, 5, 6, 10, 15, 20, 25, 35, 36, 1000].map(at),
            [800, 800, 760, 600, 400, 300, 200, 100, 100, 100]
        );
    }

    #[test]
    fn a_newcomer_adds_an_eighth_where_it_takes_a_place_and_little_where_one_is_free() {
        let after = |free| Price::after(1920, Window(7), &terms(), Role::Miner, free);
        assert_eq!(after(false), Price { amount: 2160, at: Window(7) });
        assert_eq!(after(true), Price { amount: 1930, at: Window(7) });
        assert_eq!(Price::after(0, Window(7), &terms(), Role::Miner, false).amount, 0);
    }

    #[test]
    fn a_run_filled_at_once_costs_the_last_less_than_three_times_what_the_first_paid() {
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
        fn a_price_never_rises_by_itself_and_no_amount_is_too_large(
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
