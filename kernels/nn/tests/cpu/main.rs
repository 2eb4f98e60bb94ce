//! Tests of the fused engine on the CPU, alone and with several ranks, and of Hugging Face models.

mod engine;
mod hugging_face;
mod ranks;
