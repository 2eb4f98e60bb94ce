#![doc = include_str!("../README.md")]

mod bpe;
mod tokenizer;
mod words;

pub use tokenizer::{MIN_VOCAB, TextEncoder, TextTokenizer, TokenizerError};
