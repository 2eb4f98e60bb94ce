//! The real runtime, native and in process, behind the Substrate JSON-RPC: a development chain.
