//! Gives feeless transactions of the protocol the highest priority.
//!
//! A pool orders transactions by priority, which the standard extensions take from the fee, so a feeless transaction
//! would come last. Filling every block of a window with cheap transfers costs less than one MTL (`SmallFee`), and
//! would delay every commitment past its deadline. So a feeless transaction has the maximal priority, above any tip.
//!
//! Seats cannot flood the chain with that. A feeless call would succeed, is signed by a seat with a stake, and is
//! counted against the seat's free calls of the window. Only an account's next nonce gets the priority: one
//! transaction per seat and block.

use crate::{Runtime, RuntimeCall};
use codec::{Decode, DecodeWithMemTracking, Encode};
use frame::{
    deps::{
        frame_support::dispatch::CheckIfFeeless,
        frame_system::CheckNonce,
        sp_runtime::{
            DispatchResult,
            traits::{
                DispatchInfoOf, DispatchOriginOf, Implication, PostDispatchInfoOf, TransactionExtension,
                ValidateResult,
            },
            transaction_validity::{TransactionPriority, TransactionSource, TransactionValidityError},
        },
    },
    runtime::prelude::Weight,
};
use scale_info::{Type, TypeInfo};

type Inner = CheckNonce<Runtime>;

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
    type Val = <Inner as TransactionExtension<RuntimeCall>>::Val;
    type Pre = <Inner as TransactionExtension<RuntimeCall>>::Pre;

    fn implicit(&self) -> Result<Self::Implicit, TransactionValidityError> {
        TransactionExtension::<RuntimeCall>::implicit(&self.0)
    }

    fn weight(&self, call: &RuntimeCall) -> Weight {
        self.0.weight(call)
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
        // Within a block the order is fixed. A transaction without requirements has the next nonce.
        let is_next = source != TransactionSource::InBlock && valid.requires.is_empty();
        if is_next && call.is_feeless(&origin) {
            valid.priority = TransactionPriority::MAX;
        }
        Ok((valid, val, origin))
    }

    fn prepare(
        self,
        val: Self::Val,
        origin: &DispatchOriginOf<RuntimeCall>,
        call: &RuntimeCall,
        info: &DispatchInfoOf<RuntimeCall>,
        len: usize,
    ) -> Result<Self::Pre, TransactionValidityError> {
        self.0.prepare(val, origin, call, info, len)
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
