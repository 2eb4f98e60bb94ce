//! Gives feeless transactions of the protocol the highest priority, and the runs turns.
//!
//! A pool orders transactions by priority, which the standard extensions take from the fee, so a feeless transaction
//! would come last. Filling every block of a window with calls that pay (`fees`) would delay every commitment past its
//! deadline. So a feeless transaction is above any tip.
//!
//! Among feeless ones the runs take turns. The seats of a run have ranks, which move by one with each block, and a
//! transaction's priority is the maximum less its seat's rank. So an author takes one transaction of each run, then a
//! second of each, and so on, whatever the number of a run's seats. A block includes free calls up to the share of
//! their run and of all runs (`free_calls`).
//!
//! A feeless call would succeed, is signed by a seat, and is counted against the seat's free calls of the window. Only
//! an account's next nonce gets the priority: one transaction per seat and block.

use crate::{AccountId, FreeCalls, Registry, Runtime, RuntimeCall, System, free_calls};
use codec::{Decode, DecodeWithMemTracking, Encode};
use frame::{
    deps::{
        frame_support::{dispatch::CheckIfFeeless, traits::OriginTrait as _},
        frame_system::CheckNonce,
        sp_runtime::{
            DispatchResult,
            traits::{
                DispatchInfoOf, DispatchOriginOf, Implication, PostDispatchInfoOf, TransactionExtension,
                ValidateResult,
            },
            transaction_validity::{
                InvalidTransaction, TransactionPriority, TransactionSource, TransactionValidityError,
            },
        },
    },
    runtime::prelude::Weight,
};
use protocol::RunId;
use scale_info::{Type, TypeInfo};

type Inner = CheckNonce<Runtime>;

/// The check whether a call is free, of values that the call reads anyway.
const FREE_CALL_CHECK: Weight = Weight::from_parts(30_000_000, 0);

/// [`CheckNonce`] that also gives an account's next transaction the highest priority if it is feeless. Shown to
/// clients as `CheckNonce`.
#[derive(Encode, Decode, DecodeWithMemTracking, Clone, Debug, PartialEq, Eq)]
pub struct ProtocolPriority(pub Inner);

impl From<Inner> for ProtocolPriority {
    fn from(nonce: Inner) -> ProtocolPriority {
        ProtocolPriority(nonce)
    }
}

impl TypeInfo for ProtocolPriority {
    type Identity = Inner;

    fn type_info() -> Type {
        Inner::type_info()
    }
}

impl TransactionExtension<RuntimeCall> for ProtocolPriority {
    const IDENTIFIER: &'static str = <Inner as TransactionExtension<RuntimeCall>>::IDENTIFIER;
    type Implicit = <Inner as TransactionExtension<RuntimeCall>>::Implicit;
    /// With the run and the cost of a free call.
    type Val = (<Inner as TransactionExtension<RuntimeCall>>::Val, Option<(RunId, u64)>);
    type Pre = <Inner as TransactionExtension<RuntimeCall>>::Pre;

    fn implicit(&self) -> Result<Self::Implicit, TransactionValidityError> {
        TransactionExtension::<RuntimeCall>::implicit(&self.0)
    }

    fn weight(&self, call: &RuntimeCall) -> Weight {
        self.0.weight(call).saturating_add(FREE_CALL_CHECK)
    }

    fn validate(
        &self,
        origin: DispatchOriginOf<RuntimeCall>,
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
        implicit: Self::Implicit,
        implication: &impl Implication,
        source: TransactionSource,
    ) -> ValidateResult<Self::Val, RuntimeCall> {
        let (mut valid, val, origin) =
            self.0.validate(origin, call, info, len, implicit, implication, source)?;
        if !call.is_feeless(&origin) {
            return Ok((valid, (val, None), origin));
        }
        let (run, cost) = (free_calls::run_of(call), free_calls::cost(info, len));
        if source == TransactionSource::InBlock {
            // The order is fixed. What has no room now stays in the pool.
            if !FreeCalls::has_room(run, cost) {
                return Err(InvalidTransaction::ExhaustsResources.into());
            }
        } else if valid.requires.is_empty() {
            // A transaction without requirements has the next nonce.
            let rank = origin.as_signer().map_or(0, |hotkey| rank(run, hotkey));
            valid.priority = TransactionPriority::MAX.saturating_sub(rank.into());
        }
        Ok((valid, (val, Some((run, cost))), origin))
    }

    fn prepare(
        self,
        val: Self::Val,
        origin: &DispatchOriginOf<RuntimeCall>,
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
    ) -> Result<Self::Pre, TransactionValidityError> {
        let (val, free) = val;
        let pre = self.0.prepare(val, origin, call, info, len)?;
        if let Some((run, cost)) = free {
            FreeCalls::count(run, cost);
        }
        Ok(pre)
    }

    fn post_dispatch_details(
        pre: Self::Pre,
        info: &DispatchInfoOf<RuntimeCall>,
        done: &PostDispatchInfoOf<RuntimeCall>,
        len: usize,
        result: &DispatchResult,
    ) -> Result<Weight, TransactionValidityError> {
        <Inner as TransactionExtension<RuntimeCall>>::post_dispatch_details(pre, info, done, len, result)
    }
}

/// The rank of a hotkey's seat among its run's seats: from 0, each seat in turn.
fn rank(run: RunId, hotkey: &AccountId) -> u32 {
    let seats = pallet_registry::Rosters::<Runtime>::decode_len(run).unwrap_or(0) as u32;
    let uid = Registry::seat_of(run, hotkey).map_or(0, |(uid, _)| u32::from(uid.0));
    uid.saturating_add(System::block_number() % seats.max(1)) % seats.max(1)
}
