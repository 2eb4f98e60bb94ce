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
        /// Returns all run ids, ascending.
        fn runs() -> Vec<RunId>;

        /// Returns a run; `None` if it does not exist.
        fn run(run: RunId) -> Option<RunView>;

        /// Returns a run's seats, in uid order; empty if the run does not exist.
        fn seats(run: RunId) -> Vec<SeatView>;

        /// Returns a window; `None` before it opens and after it is pruned.
        fn window(run: RunId, window: Window) -> Option<WindowView>;

        /// Returns a seat; `None` if no account holds it.
        fn seat(run: RunId, uid: Uid) -> Option<SeatView>;

        /// Returns a window without its lists; `None` as for `window`.
        fn window_summary(run: RunId, window: Window) -> Option<WindowSummary>;

        /// Returns a seat's part of a window; `None` as for `window`.
        fn seat_window(run: RunId, window: Window, uid: Uid) -> Option<SeatWindow>;

        /// Returns base URLs of validators that have the merged update of a window: first those that voted for it,
        /// from the position `turn`, then the others. At most `limit`, and at most 16.
        fn update_mirrors(run: RunId, window: Window, turn: u32, limit: u32) -> Vec<String>;

        /// Returns the current block and its window.
        fn position(run: RunId) -> Option<Position>;

        /// Returns the consensus weights, in uid order; empty before the first consensus.
        fn weights(run: RunId) -> Vec<(Uid, u16)>;

        /// Returns a run with its window, epoch, seats, prices and treasury.
        fn run_status(run: RunId) -> Option<RunStatus>;

        /// Returns the status of the seats from uid `from`, in uid order: at most `limit`, and at most 256.
        fn seat_statuses(run: RunId, from: Uid, limit: u32) -> Vec<SeatStatus>;

        /// Returns seats, stake, pay, unbonding stake and nominations of an account in a run.
        fn account_status(run: RunId, account: Account) -> AccountStatus;

        /// Returns the pay of a seat in the stored epochs, with the consensus behind it, the latest last.
        fn payslips(run: RunId, uid: Uid) -> Vec<Payslip>;

        /// Returns a validator's bonds by seat, in parts of `consensus::ONE`, in uid order (PROT-31).
        fn consensus_bonds(run: RunId, validator: Uid) -> Vec<(Uid, u32)>;
    }
}
