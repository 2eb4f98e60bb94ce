//! Which transactions go first: those of the protocol, which pay no fee.
//!
//! A pool orders by priority, and the stock extensions give one for the fee: a transaction without any has the lowest. To fill
//! all blocks of a window with cheap transfers costs less than one MTL (`SmallFee`), and would keep every commitment out until
//! its deadline has passed. So a transaction that is owed no fee has the highest priority there is, and no tip outbids it.
//!
//! That cannot be turned round. Such a call succeeds, is signed by a seat, which holds a stake, and is counted against what
//! that seat has free in the window; and of what an account has waiting only the next one by nonce goes first. So at most one
//! transaction a seat and block does.

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

/// [`CheckNonce`], which also lets an account's next transaction go first if it is owed no fee. A client sees `CheckNonce`.
#[derive(Encode, Decode, DecodeWithMemTracking, Clone, Debug, PartialEq, Eq)]
pub struct ProtocolFirst(pub Inner);

impl From<Inner> for ProtocolFirst {
    fn from(nonce: Inner) -> ProtocolFirst {
        ProtocolFirst(nonce)
    }
}

impl TypeInfo for ProtocolFirst {
    type Identity = Inner;

    fn type_info() -> Type {
        Inner::type_info()
    }
}

impl TransactionExtension<RuntimeCall> for ProtocolFirst {
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
        // In a block the order stands already. What needs nothing is the next one by nonce.
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
