//! What a client may ask of the chain's state, in types that are the protocol's own: nobody needs to know how the
//! pallets lay their storage out.

use alloc::vec::Vec;
use protocol::{
    RunId, Uid, Window,
    view::{Account, AccountStatus, Payslip, Position, RunStatus, RunView, SeatStatus, SeatView, WindowView},
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

        /// A run with where it stands: its window and epoch, how full it is, what a seat costs, its books.
        fn run_status(run: RunId) -> Option<RunStatus>;

        /// Everything about the seats from uid `from` on, in uid order; at most `limit` of them, and never more than 256.
        fn seat_statuses(run: RunId, from: Uid, limit: u32) -> Vec<SeatStatus>;

        /// What an account has in a run: seats, stake, pay, what it is taking out, what it has nominated.
        fn account_status(run: RunId, account: Account) -> AccountStatus;

        /// What a seat was paid in each of the epochs that are kept, the latest last, and why.
        fn payslips(run: RunId, uid: Uid) -> Vec<Payslip>;

        /// A validator's bonds: by seat, in parts of `consensus::ONE`, in uid order (PROT-31).
        fn consensus_bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)>;
    }
}
