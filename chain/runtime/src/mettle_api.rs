//! The runtime API for clients, in the protocol's types: independent of the pallets' storage layout.

use alloc::{string::String, vec::Vec};
use protocol::{
    RunId, Uid, Window,
    view::{
        Account, AccountStatus, Payslip, Position, RunStatus, RunView, SeatStatus, SeatView, SeatWindow,
        WindowSummary, WindowView,
    },
};

frame::deps::sp_api::decl_runtime_apis! {
    /// Runs, seats and windows at a block. Called as `MettleApi_run` and so on, with arguments and results in SCALE.
    pub trait MettleApi {
        /// All run ids, ascending.
        fn runs() -> Vec<RunId>;

        /// A run; `None` if it does not exist.
        fn run(run: RunId) -> Option<RunView>;

        /// A run's seats, in uid order; empty if the run does not exist.
        fn seats(run: RunId) -> Vec<SeatView>;

        /// A window; `None` before it opens and after it is pruned.
        fn window(run: RunId, window: Window) -> Option<WindowView>;

        /// A seat; `None` if no account holds it.
        fn seat(run: RunId, uid: Uid) -> Option<SeatView>;

        /// A window without its lists; `None` as for `window`.
        fn window_summary(run: RunId, window: Window) -> Option<WindowSummary>;

        /// A seat's part of a window; `None` as for `window`.
        fn seat_window(run: RunId, window: Window, uid: Uid) -> Option<SeatWindow>;

        /// Base URLs of validators that have the update which a window was merged with: those that voted for it, from
        /// the one whose `turn` it is, then the others. At most `limit`, and at most 16.
        fn update_mirrors(run: RunId, window: Window, turn: u32, limit: u32) -> Vec<String>;

        /// The current block and the window that it is in.
        fn position(run: RunId) -> Option<Position>;

        /// The consensus weights, in uid order; empty before the first consensus.
        fn weights(run: RunId) -> Vec<(Uid, u16)>;

        /// A run with its window, epoch, seats, prices and treasury.
        fn run_status(run: RunId) -> Option<RunStatus>;

        /// The status of the seats from uid `from`, in uid order: at most `limit`, and at most 256.
        fn seat_statuses(run: RunId, from: Uid, limit: u32) -> Vec<SeatStatus>;

        /// Seats, stake, pay, unbonding stake and nominations of an account in a run.
        fn account_status(run: RunId, account: Account) -> AccountStatus;

        /// What a seat was paid in the stored epochs and why, the latest last.
        fn payslips(run: RunId, uid: Uid) -> Vec<Payslip>;

        /// A validator's bonds by seat, in parts of `consensus::ONE`, in uid order (PROT-31).
        fn consensus_bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)>;
    }
}
