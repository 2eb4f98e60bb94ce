//! The network being trained: a Llama-style decoder in Burn, its loss, optimiser and checkpoint.
