//! Attests and posts weights, but never votes. With more than a third of the stake, no window is merged.
//!
//! Sees: everything that a validator sees. Ends at: PROT-32, void windows are not paid.

use protocol::view::{Vote, WindowView};
use validator::strategy::Strategy;

pub struct PaidStall;

impl Strategy for PaidStall {
    fn vote(&mut self, _view: &WindowView, _own: Option<Vote>) -> Option<Vote> {
        None
    }
}
