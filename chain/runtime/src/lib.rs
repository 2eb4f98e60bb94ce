#![cfg_attr(not(feature = "std"), no_std)]
//! Which pallets, in which order, with which numbers.
