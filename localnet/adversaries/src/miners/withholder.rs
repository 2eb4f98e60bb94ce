//! Works until its standing is good, then trains no more, and shows what it commits to to some validators only: to fewer than two thirds,
//! so that it is not valid, and to more than one third where that can be, so that it is not faulty either.
//!
//! Sees: how many validators there are, and the order in which its readers ask.
//! Ends at: PROT-14 and PROT-15. A seat that nobody could judge is unpaid in the end: its rating fades and its window counts for nothing.

use crate::adversary::{Adversary, Door, Moment};

pub struct Withholder {
    validators: u16,
    good_windows: u32,
    worked: u32,
}

impl Withholder {
    pub fn new(validators: u16, good_windows: u32) -> Withholder {
        Withholder { validators, good_windows, worked: 0 }
    }

    /// Whether its work is done.
    pub fn coasts(&self) -> bool {
        self.good_windows < self.worked
    }
}

impl Adversary for Withholder {
    fn sequences(&mut self, _at: &Moment<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        self.worked = self.worked.saturating_add(1);
        // One step, so that what it shows to some looks like something.
        if self.coasts() {
            assigned.truncate(8);
        }
        assigned
    }

    fn declares(&mut self, _at: &Moment<'_>, trained: u32, assigned: u32) -> u32 {
        if self.coasts() { assigned } else { trained }
    }

    fn door(&self) -> Door {
        if self.coasts() { Door::ForTheFirst((self.validators / 2).max(1)) } else { Door::Store }
    }
}
