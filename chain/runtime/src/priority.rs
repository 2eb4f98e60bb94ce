//! Gives feeless transactions of the protocol the highest priority, and orders them fairly between runs.
//!
//! A pool orders transactions by priority, which the standard extensions derive from the fee, so a feeless transaction
//! would be last. An attacker could fill every block of a window with paid calls (`fees`) and delay every commitment
//! past its deadline. A feeless transaction is therefore above any tip.
//!
//! Feeless transactions are ordered round-robin between runs. The seats of a run have ranks, which shift by one with
//! each block, and a transaction's priority is the maximum less its seat's rank. An author therefore takes one
//! transaction of each run, then a second of each, and so on, independent of the number of seats. A block includes
//! free calls up to the share of their run and of all runs (`free_calls`).
//!
//! A feeless call would succeed, is signed by a seat, and is counted against the seat's free calls of the window. Only
//! an account's next nonce gets the priority: one transaction per seat and block.
//!
//! The check whether a call is free is the first part of the call itself, and costs time before any fee is paid.
//! Therefore it is made once per transaction, and its weight is counted.

use crate::{AccountId, Balance, FreeCalls, Nonce, Registry, Runtime, RuntimeCall, System, free_calls};
use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode};
use frame::{
    deps::{
        frame_support::{
            dispatch::{CheckIfFeeless, GetDispatchInfo as _},
            traits::OriginTrait as _,
        },
        frame_system::{CheckNonce, CheckWeight},
        sp_runtime::{
            DispatchResult,
            traits::{
                DispatchInfoOf, DispatchOriginOf, Implication, PostDispatchInfoOf, TransactionExtension,
                TransactionExtensionMetadata, ValidateResult,
            },
            transaction_validity::{
                InvalidTransaction, TransactionPriority, TransactionSource, TransactionValidity,
                TransactionValidityError,
            },
        },
    },
    runtime::prelude::Weight,
};
use pallet_transaction_payment::ChargeTransactionPayment;
use protocol::RunId;
use scale_info::{Type, TypeInfo};

type Fee = ChargeTransactionPayment<Runtime>;
type Inner = (CheckNonce<Runtime>, CheckWeight<Runtime>, Fee);
type Val<E> = <E as TransactionExtension<RuntimeCall>>::Val;
type Pre<E> = <E as TransactionExtension<RuntimeCall>>::Pre;

/// [`CheckNonce`], [`CheckWeight`] and [`ChargeTransactionPayment`]. A feeless transaction pays no fee, and has the
/// highest priority if its nonce is the account's next. Clients see the three extensions.
#[derive(Encode, Decode, DecodeWithMemTracking, Clone, Debug, PartialEq, Eq)]
pub struct ProtocolPriority(Inner);

/// Charge of a transaction to its signer.
pub enum Charge {
    Fee(Val<Fee>),
    /// Nothing: a free call of this run, with its share of the block in picoseconds.
    Free(RunId, u64),
}

impl ProtocolPriority {
    pub fn new(nonce: Nonce, tip: Balance) -> ProtocolPriority {
        ProtocolPriority((CheckNonce::from(nonce), CheckWeight::new(), Fee::from(tip)))
    }
}

impl TypeInfo for ProtocolPriority {
    type Identity = Inner;

    fn type_info() -> Type {
        Inner::type_info()
    }
}

impl TransactionExtension<RuntimeCall> for ProtocolPriority {
    const IDENTIFIER: &'static str = "ProtocolPriority";
    type Implicit = <Inner as TransactionExtension<RuntimeCall>>::Implicit;
    type Val = (Val<CheckNonce<Runtime>>, Val<CheckWeight<Runtime>>, Charge);
    type Pre = (Pre<CheckNonce<Runtime>>, Option<Pre<Fee>>);

    fn implicit(&self) -> Result<Self::Implicit, TransactionValidityError> {
        TransactionExtension::<RuntimeCall>::implicit(&self.0)
    }

    fn metadata() -> Vec<TransactionExtensionMetadata> {
        <Inner as TransactionExtension<RuntimeCall>>::metadata()
    }

    fn weight(&self, call: &RuntimeCall) -> Weight {
        self.0.weight(call).saturating_add(check_weight(call))
    }

    fn validate(
        &self,
        origin: DispatchOriginOf<RuntimeCall>,
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
        (of_nonce, of_weight, of_fee): Self::Implicit,
        implication: &impl Implication,
        source: TransactionSource,
    ) -> ValidateResult<Self::Val, RuntimeCall> {
        let (nonce, weight, fee) = &self.0;
        let (valid, nonce, origin) =
            nonce.validate(origin, call, info, len, of_nonce, implication, source)?;
        let (next, weight, origin) =
            weight.validate(origin, call, info, len, of_weight, implication, source)?;
        let mut valid = valid.combine_with(next);
        let Some(run) = free_calls::run_of(call).filter(|_| call.is_feeless(&origin)) else {
            let (next, fee, origin) = fee.validate(origin, call, info, len, of_fee, implication, source)?;
            return Ok((valid.combine_with(next), (nonce, weight, Charge::Fee(fee)), origin));
        };
        let cost = free_calls::cost(info, len);
        if source == TransactionSource::InBlock {
            // The order is fixed. A call without room now stays in the pool.
            if !FreeCalls::has_room(run, cost) {
                return Err(InvalidTransaction::ExhaustsResources.into());
            }
        } else if valid.requires.is_empty() {
            // A transaction without requirements has the next nonce.
            let rank = origin.as_signer().map_or(0, |hotkey| rank(run, hotkey));
            valid.priority = TransactionPriority::MAX.saturating_sub(rank.into());
        }
        Ok((valid, (nonce, weight, Charge::Free(run, cost)), origin))
    }

    fn prepare(
        self,
        (of_nonce, of_weight, charge): Self::Val,
        origin: &DispatchOriginOf<RuntimeCall>,
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
    ) -> Result<Self::Pre, TransactionValidityError> {
        let (nonce, weight, fee) = self.0;
        let nonce = nonce.prepare(of_nonce, origin, call, info, len)?;
        weight.prepare(of_weight, origin, call, info, len)?;
        let fee = match charge {
            Charge::Fee(of_fee) => Some(fee.prepare(of_fee, origin, call, info, len)?),
            Charge::Free(run, cost) => {
                FreeCalls::count(run, cost);
                None
            }
        };
        Ok((nonce, fee))
    }

    fn post_dispatch_details(
        (nonce, fee): Self::Pre,
        info: &DispatchInfoOf<RuntimeCall>,
        done: &PostDispatchInfoOf<RuntimeCall>,
        len: usize,
        result: &DispatchResult,
    ) -> Result<Weight, TransactionValidityError> {
        let nonce = CheckNonce::<Runtime>::post_dispatch_details(nonce, info, done, len, result)?;
        let weight = CheckWeight::<Runtime>::post_dispatch_details((), info, done, len, result)?;
        let fee =
            fee.map_or(Ok(Weight::zero()), |fee| Fee::post_dispatch_details(fee, info, done, len, result))?;
        Ok(nonce.saturating_add(weight).saturating_add(fee))
    }

    // Inherents are weighed too.
    fn bare_validate(
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
    ) -> TransactionValidity {
        Inner::bare_validate(call, info, len)
    }

    fn bare_validate_and_prepare(
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
    ) -> Result<(), TransactionValidityError> {
        Inner::bare_validate_and_prepare(call, info, len)
    }

    fn bare_post_dispatch(
        info: &DispatchInfoOf<RuntimeCall>,
        done: &mut PostDispatchInfoOf<RuntimeCall>,
        len: usize,
        result: &DispatchResult,
    ) -> Result<(), TransactionValidityError> {
        <Inner as TransactionExtension<RuntimeCall>>::bare_post_dispatch(info, done, len, result)
    }
}

/// Returns the weight of the check whether a call is free: as measured, or that of the call, which begins with it.
fn check_weight(call: &RuntimeCall) -> Weight {
    use pallet_windows::{Call, weight_info};
    match call {
        // Also checks the hash of all verdicts.
        RuntimeCall::Windows(Call::reveal_attestation { .. }) => call.get_dispatch_info().call_weight,
        RuntimeCall::Windows(_) => weight_info::free_call_check::<Runtime>(),
        _ if free_calls::run_of(call).is_some() => call.get_dispatch_info().call_weight,
        _ => Weight::zero(),
    }
}

/// Returns the rank of a hotkey's seat among its run's seats, from 0; each seat has each rank in turn.
fn rank(run: RunId, hotkey: &AccountId) -> u32 {
    let seats = pallet_registry::Rosters::<Runtime>::decode_len(run).unwrap_or(0) as u32;
    let uid = Registry::seat_of(run, hotkey).map_or(0, |(uid, _)| u32::from(uid.0));
    uid.saturating_add(System::block_number() % seats.max(1)) % seats.max(1)
}
