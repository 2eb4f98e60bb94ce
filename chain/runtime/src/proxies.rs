//! What an account may let another do in its name, so that a coldkey can stay in its drawer.

use crate::RuntimeCall;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::deps::{frame_support::traits::InstanceFilter, scale_info::TypeInfo};

/// A kind of proxy. An added kind goes last: these are stored by their number.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
)]
pub enum ProxyType {
    /// Everything.
    #[default]
    Any,
    /// Everything that cannot send money away, and nothing of root's.
    NonTransfer,
    /// What concerns seats and the stake behind them.
    Staking,
    /// Claim pay: into the account itself, so that nothing can be taken with it.
    Claims,
}

impl InstanceFilter<RuntimeCall> for ProxyType {
    fn filter(&self, call: &RuntimeCall) -> bool {
        // Calls within calls are looked at one by one: whoever may do nothing but claim may claim in batches.
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
        // A run that is given away takes its owner's share with it.
        let gives_a_run_away = matches!(call, RuntimeCall::Registry(pallet_registry::Call::offer_run { .. }));
        let stakes = matches!(
            call,
            RuntimeCall::Registry(
                pallet_registry::Call::register { .. }
                    | pallet_registry::Call::add_stake { .. }
                    | pallet_registry::Call::unstake { .. }
                    | pallet_registry::Call::leave { .. }
                    | pallet_registry::Call::withdraw { .. }
                    | pallet_registry::Call::rotate_hotkey { .. }
            ) | RuntimeCall::Nomination(_)
                | RuntimeCall::Rewards(pallet_rewards::Call::set_payout { .. })
        );
        match self {
            ProxyType::Any => true,
            ProxyType::NonTransfer => {
                batch
                    || claims
                    || stakes
                    || !gives_a_run_away
                        && matches!(
                            call,
                            RuntimeCall::Registry(_)
                                | RuntimeCall::Windows(_)
                                | RuntimeCall::Weights(_)
                                | RuntimeCall::Session(_)
                        )
            }
            ProxyType::Staking => batch || claims || stakes,
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
    use protocol::{RunId, Uid};

    const KINDS: [ProxyType; 4] =
        [ProxyType::Any, ProxyType::NonTransfer, ProxyType::Staking, ProxyType::Claims];

    /// One call of each sort, and the kinds that may make it.
    fn calls() -> Vec<(RuntimeCall, &'static [ProxyType])> {
        let somebody = AccountId::new([1; 32]);
        let run = RunId(0);
        let transfer = pallet_balances::Call::transfer_allow_death {
            dest: MultiAddress::Id(somebody.clone()),
            value: 1,
        };
        let root = crate::frame_system::Call::remark { remark: vec![] };
        vec![
            (transfer.into(), &[ProxyType::Any]),
            (pallet_sudo::Call::sudo { call: Box::new(root.into()) }.into(), &[ProxyType::Any]),
            (
                pallet_proxy::Call::add_proxy {
                    delegate: MultiAddress::Id(somebody.clone()),
                    proxy_type: ProxyType::Any,
                    delay: 0,
                }
                .into(),
                &[ProxyType::Any],
            ),
            (pallet_session::Call::purge_keys {}.into(), &KINDS[..2]),
            // Into a run whose owner is the proxy, that would be a transfer.
            (pallet_rewards::Call::fund { run, amount: 1 }.into(), &[ProxyType::Any]),
            (pallet_registry::Call::add_stake { run, uid: Uid(0), amount: 1 }.into(), &KINDS[..3]),
            (pallet_registry::Call::leave { run, uid: Uid(0) }.into(), &KINDS[..3]),
            (pallet_nomination::Call::nominate { run, uid: Uid(0), amount: 1 }.into(), &KINDS[..3]),
            (pallet_registry::Call::set_stopped { run, stopped: true }.into(), &KINDS[..2]),
            (pallet_registry::Call::offer_run { run, to: somebody.clone() }.into(), &[ProxyType::Any]),
            (pallet_rewards::Call::claim_former { run }.into(), &KINDS),
            (pallet_nomination::Call::claim { run, uid: Uid(0) }.into(), &KINDS),
            (pallet_rewards::Call::claim { run, uid: Uid(0) }.into(), &KINDS),
            (pallet_utility::Call::batch_all { calls: vec![] }.into(), &KINDS),
        ]
    }

    #[test]
    fn a_kind_of_proxy_lets_through_its_calls_and_no_others() {
        for (call, kinds) in calls() {
            for kind in KINDS {
                assert_eq!(kind.filter(&call), kinds.contains(&kind), "{kind:?}: {call:?}");
            }
        }
    }

    #[test]
    fn a_wider_kind_lets_through_all_that_a_narrower_one_does() {
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
