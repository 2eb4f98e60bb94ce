//! Nodes and whole networks on the simulated chain, and the checks of a validator's memory and of `mettle plan`.
//! `chaos` and `load` are separate programs, because they limit or count the files and the memory of their process.

mod catch_up;
mod data_plane;
mod memory;
mod patience;
mod peers;
mod plan;
mod shutdown;
mod sim_network;
