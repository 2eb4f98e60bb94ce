//! Kinds of proxies: calls that an account may delegate, so that its coldkey can stay offline.

use crate::RuntimeCall;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::deps::{frame_support::traits::InstanceFilter, scale_info::TypeInfo};

/// A kind of proxy. Stored by index, so a new kind is added at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum ProxyType {
    /// All calls.
    #[default]
    Any,
    /// All calls that cannot send money to another account, except root's.
    NonTransfer,
    /// Calls for the account's seats and nominations, their stake and pay. None of them moves the account's money
    /// behind another hotkey: the proxy could sign contradicting statements with it, and report them for the reward.
    Staking,
    /// Claims of pay, which goes to the account itself.
    Claims,
}

impl InstanceFilter<RuntimeCall> for ProxyType {
    fn filter(&self, call: &RuntimeCall) -> bool {
        // Calls within a batch are filtered one by one.
        let batch = matches!(
            call,
            RuntimeCall::Utility(
                pallet_utility::Call::batch { .. }
                    | pallet_utility::Call::batch_all { .. }
                    | pallet_utility::Call::force_batch { .. }
            )
        );
        let claims = matches!(
            call,
            RuntimeCall::Rewards(
                pallet_rewards::Call::claim { .. }
                    | pallet_rewards::Call::claim_owner { .. }
                    | pallet_rewards::Call::claim_former { .. }
            ) | RuntimeCall::Nomination(pallet_nomination::Call::claim { .. })
        );
        let staking = matches!(
            call,
            RuntimeCall::Registry(
                pallet_registry::Call::set_endpoint { .. }
                    | pallet_registry::Call::add_stake { .. }
                    | pallet_registry::Call::unstake { .. }
                    | pallet_registry::Call::leave { .. }
                    | pallet_registry::Call::withdraw { .. }
            ) | RuntimeCall::Rewards(pallet_rewards::Call::set_payout { .. })
                | RuntimeCall::Nomination(
                    pallet_nomination::Call::unnominate { .. }
                        | pallet_nomination::Call::withdraw { .. }
                        | pallet_nomination::Call::set_commission { .. }
                )
        );
        // The new owner of a run receives the owner's pay. Likewise, closing a run burns the treasury.
        let gives_away = matches!(
            call,
            RuntimeCall::Registry(
                pallet_registry::Call::offer_run { .. } | pallet_registry::Call::close_run { .. }
            )
        );
        let protocol = matches!(
            call,
            RuntimeCall::Registry(_)
                | RuntimeCall::Windows(_)
                | RuntimeCall::Weights(_)
                | RuntimeCall::Nomination(_)
                | RuntimeCall::Session(_)
        );
        match self {
            ProxyType::Any => true,
            ProxyType::NonTransfer => batch || claims || staking || (protocol && !gives_away),
            ProxyType::Staking => batch || claims || staking,
            ProxyType::Claims => batch || claims,
        }
    }

    fn is_superset(&self, other: &ProxyType) -> bool {
        match (self, other) {
            (ProxyType::Any, _) => true,
            (ProxyType::NonTransfer, ProxyType::Staking | ProxyType::Claims) => true,
            (ProxyType::Staking, ProxyType::Claims) => true,
            (one, other) => one == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccountId;
    use alloc::vec;
    use frame::deps::sp_runtime::MultiAddress;
    use protocol::{RunId, Uid, identity::Signature};

    const KINDS: [ProxyType; 4] =
        [ProxyType::Any, ProxyType::NonTransfer, ProxyType::Staking, ProxyType::Claims];

    /// Returns one call of each kind, with the proxy kinds that allow it.
    fn calls() -> Vec<(RuntimeCall, &'static [ProxyType])> {
        let account = AccountId::new([1; 32]);
        let run = RunId(0);
        let transfer =
            pallet_balances::Call::transfer_allow_death { dest: MultiAddress::Id(account.clone()), value: 1 };
        let root = crate::frame_system::Call::remark { remark: vec![] };
        vec![
            (transfer.into(), &[ProxyType::Any]),
            (pallet_sudo::Call::sudo { call: Box::new(root.into()) }.into(), &[ProxyType::Any]),
            (
                pallet_proxy::Call::add_proxy {
                    delegate: MultiAddress::Id(account),
                    proxy_type: ProxyType::Any,
                    delay: 0,
                }
                .into(),
                &[ProxyType::Any],
            ),
            (pallet_session::Call::purge_keys {}.into(), &KINDS[..2]),
            // Could be a transfer to the proxy: into a run that it owns.
            (pallet_rewards::Call::fund { run, amount: 1 }.into(), &[ProxyType::Any]),
            // Gives away the owner's pay.
            (pallet_registry::Call::offer_run { run, to: AccountId::new([1; 32]) }.into(), &[ProxyType::Any]),
            (pallet_registry::Call::set_stopped { run, stopped: true }.into(), &KINDS[..2]),
            (pallet_registry::Call::add_stake { run, uid: Uid(0), amount: 1 }.into(), &KINDS[..3]),
            (pallet_registry::Call::leave { run, uid: Uid(0) }.into(), &KINDS[..3]),
            // Each moves the account's money behind a hotkey that the proxy chooses.
            (pallet_nomination::Call::nominate { run, uid: Uid(0), amount: 1 }.into(), &KINDS[..2]),
            (
                pallet_registry::Call::rotate_hotkey {
                    run,
                    uid: Uid(0),
                    hotkey: AccountId::new([1; 32]),
                    proof: Signature([0; 64]),
                }
                .into(),
                &KINDS[..2],
            ),
            (
                pallet_registry::Call::register {
                    run,
                    role: protocol::Role::Validator,
                    hotkey: AccountId::new([1; 32]),
                    endpoint: Default::default(),
                    stake: 1,
                    price_max: 1,
                    proof: Signature([0; 64]),
                }
                .into(),
                &KINDS[..2],
            ),
            (pallet_nomination::Call::unnominate { run, uid: Uid(0), amount: 1 }.into(), &KINDS[..3]),
            (pallet_nomination::Call::claim { run, uid: Uid(0) }.into(), &KINDS),
            (pallet_rewards::Call::claim { run, uid: Uid(0) }.into(), &KINDS),
            (pallet_utility::Call::batch_all { calls: vec![] }.into(), &KINDS),
        ]
    }

    #[test]
    fn a_kind_of_proxy_allows_its_calls_and_no_others() {
        for (call, kinds) in calls() {
            for kind in KINDS {
                assert_eq!(kind.filter(&call), kinds.contains(&kind), "{kind:?}: {call:?}");
            }
        }
    }

    #[test]
    fn a_wider_kind_allows_every_call_of_a_narrower_one() {
        for wide in KINDS {
            for narrow in KINDS.into_iter().filter(|narrow| wide.is_superset(narrow)) {
                for (call, _) in calls() {
                    assert!(wide.filter(&call) || !narrow.filter(&call), "{wide:?} {narrow:?}: {call:?}");
                }
            }
        }
        assert!(!ProxyType::Claims.is_superset(&ProxyType::Any));
    }
}
