//! The fused engine on the CPU, alone and by several ranks, and its models on Hugging Face.

mod engine;
mod hugging_face;
mod ranks;
