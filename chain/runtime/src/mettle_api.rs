//! What a client may ask of the chain's state, in types that are the protocol's own: nobody needs to know how the
//! pallets lay their storage out.

use alloc::vec::Vec;
use protocol::{
    RunId, Uid, Window,
    view::{Position, RunView, SeatView, WindowView},
};

frame::deps::sp_api::decl_runtime_apis! {
    /// Runs, seats and windows as they stand at a block. Called as `MettleApi_run` and so on, arguments and answers in
    /// SCALE.
    pub trait MettleApi {
        /// All runs, in the order of their ids.
        fn runs() -> Vec<RunId>;

        /// A run; `None` if there is none with this id.
        fn run(run: RunId) -> Option<RunView>;

        /// A run's seats, in uid order; none of a run that does not exist.
        fn seats(run: RunId) -> Vec<SeatView>;

        /// A window; `None` before it opens, and once it is too old to be kept.
        fn window(run: RunId, window: Window) -> Option<WindowView>;

        /// The block whose state this is and the window that it falls in.
        fn position(run: RunId) -> Option<Position>;

        /// The consensus weights that stand, in uid order; none before the first consensus.
        fn weights(run: RunId) -> Vec<(Uid, u16)>;
    }
}
