//! Converts text to token ids and back, with a byte-level BPE that is trained here or any `tokenizer.json`.

use crate::{
    bpe,
    words::{Encoder, Words},
};
use protocol::Digest;
use rayon::prelude::*;
use std::{collections::BTreeMap, fmt};
use tokenizers::{
    AddedToken, ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
    models::bpe::{BPE, Vocab},
    pre_tokenizers::byte_level::ByteLevel,
};

/// The token between documents in a tokenizer that is trained here.
const EOS: &str = "<eos>";
/// Usual names of this token in other tokenizers, in the order of the search.
const KNOWN_EOS: [&str; 8] =
    [EOS, "</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "[EOS]", "[SEP]"];
/// Lower bound of a vocabulary: `<eos>` and one token for each byte, without which nothing is learned.
pub const MIN_VOCAB: u32 = 258;

/// A tokenizer whose bytes determine every encoding.
pub struct TextTokenizer {
    inner: tokenizers::Tokenizer,
    words: Option<Words>,
    json: Vec<u8>,
    vocab: u32,
    eos: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("not a tokenizer.json: {reason}")]
    Undecodable { reason: String },
    #[error(
        "the tokenizer has none of the tokens {} for the end of a document; name the one it has",
        KNOWN_EOS.join(" ")
    )]
    NoEndOfDocument,
    #[error("the tokenizer has no token {token}")]
    NoSuchToken { token: String },
    #[error("the tokenizer drops merges at random, so the same text would give other tokens each time")]
    Random,
    #[error("a token id of {id} is too large")]
    IdTooLarge { id: u32 },
    #[error(
        "the tokenizer makes token {id}, which ends a document, of words in a text; name another one for that"
    )]
    EndInText { id: u32 },
    #[error("the tokenizer failed on a text: {reason}")]
    Failed { reason: String },
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. `end_of_document` names the token between documents; without it, a usual name is
    /// used.
    ///
    /// # Errors
    /// If the file cannot be parsed, tokenises at random, or has no such token.
    pub fn from_json(json: Vec<u8>, end_of_document: Option<&str>) -> Result<TextTokenizer, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&json)
            .map_err(|error| TokenizerError::Undecodable { reason: error.to_string() })?;
        if matches!(inner.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_some_and(|dropout| dropout > 0.0))
        {
            return Err(TokenizerError::Random);
        }
        // A text is neither truncated nor padded, and no text in it counts as the end of a document.
        inner
            .with_truncation(None)
            .map_err(|error| TokenizerError::Undecodable { reason: error.to_string() })?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);

        let eos = match end_of_document {
            Some(token) => inner
                .token_to_id(token)
                .ok_or_else(|| TokenizerError::NoSuchToken { token: token.to_owned() })?,
            None => KNOWN_EOS
                .iter()
                .find_map(|token| inner.token_to_id(token))
                .ok_or(TokenizerError::NoEndOfDocument)?,
        };
        // In some files it is an ordinary token, which occurs in texts.
        if let Some(token) = inner.get_added_tokens_decoder().get(&eos).filter(|token| !token.special) {
            inner.add_special_tokens(&[AddedToken { special: true, ..token.clone() }]);
        }
        // Ids may have gaps, so the largest decides.
        let largest = inner.get_vocab(true).into_values().max().unwrap_or(eos);
        let vocab = largest.checked_add(1).ok_or(TokenizerError::IdTooLarge { id: largest })?;
        let words = Words::of(&inner);
        Ok(TextTokenizer { inner, words, json, vocab, eos })
    }

    /// Trains a byte-level BPE of at most `vocab` tokens (fewer if the sample has no more pairs that occur twice).
    /// The same sample and `vocab` give the same bytes, in any order of the sample. `progress` receives the number of
    /// tokens so far.
    ///
    /// # Errors
    /// If the sample cannot be split into words.
    pub fn train(
        sample: &[String],
        vocab: u32,
        progress: &mut dyn FnMut(usize),
    ) -> Result<TextTokenizer, TokenizerError> {
        let words = count_words(sample)?;
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut first = vec![EOS.to_owned()];
        first.extend(alphabet.iter().map(char::to_string));
        let learned = bpe::learn(&words, first, vocab as usize, progress);
        TextTokenizer::from_json(to_json(learned)?, Some(EOS))
    }

    /// Returns the tokens of a text, without any token for its beginning or end.
    ///
    /// # Errors
    /// If `tokenizers` cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encoder().encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// Returns an encoder for many texts.
    pub fn encoder(&self) -> TextEncoder<'_> {
        let words = self.words.as_ref().map(|words| Encoder::new(&self.inner, words));
        TextEncoder { tokenizer: self, words }
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> Option<&Words> {
        self.words.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Returns the text of tokens, for people.
    ///
    /// # Errors
    /// If `tokenizers` cannot decode the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, false).map_err(failed)
    }

    /// Returns the vocabulary's size: every token is below it.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Returns the token that ends a document.
    pub fn end_of_document(&self) -> u32 {
        self.eos
    }

    /// Returns the bytes of `tokenizer.json`.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.json)
    }
}

/// Encodes texts with a cache; each thread needs its own.
pub struct TextEncoder<'a> {
    tokenizer: &'a TextTokenizer,
    words: Option<Encoder<'a>>,
}

impl TextEncoder<'_> {
    /// Adds the tokens of a text to `tokens`, never the one that ends a document.
    ///
    /// # Errors
    /// If `tokenizers` cannot encode the text.
    pub fn encode_into(&mut self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let first = tokens.len();
        let done = match &mut self.words {
            Some(words) => words.encode(text, tokens).map_err(failed)?,
            None => false,
        };
        if !done {
            let encoding = self.tokenizer.inner.encode_fast(text, false).map_err(failed)?;
            tokens.extend_from_slice(encoding.get_ids());
        }
        let id = self.tokenizer.eos;
        if tokens[first..].contains(&id) { Err(TokenizerError::EndInText { id }) } else { Ok(()) }
    }
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer").field("digest", &self.digest()).field("vocab", &self.vocab).finish()
    }
}

/// Returns GPT-2's pre-tokeniser, which splits words with the space before them, numbers, punctuation and white
/// space. It decodes as well.
fn byte_level() -> ByteLevel {
    ByteLevel::new(false, false, true)
}

fn count_words(sample: &[String]) -> Result<BTreeMap<String, u64>, TokenizerError> {
    let byte_level = byte_level();
    let count = |text: &String| -> Result<BTreeMap<String, u64>, TokenizerError> {
        let mut split = PreTokenizedString::from(text.as_str());
        byte_level.pre_tokenize(&mut split).map_err(failed)?;
        let mut words: BTreeMap<String, u64> = BTreeMap::new();
        for (word, _, _) in split.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            // Allocates only for a new word.
            match words.get_mut(word) {
                Some(count) => *count += 1,
                None => drop(words.insert(word.to_owned(), 1)),
            }
        }
        Ok(words)
    };
    // Sums of integers do not depend on the order.
    sample.par_iter().map(count).try_reduce(BTreeMap::new, |a, b| {
        let (mut large, small) = if a.len() < b.len() { (b, a) } else { (a, b) };
        small.into_iter().for_each(|(word, count)| *large.entry(word).or_default() += count);
        Ok(large)
    })
}

fn to_json(learned: bpe::Learned) -> Result<Vec<u8>, TokenizerError> {
    let text = |id: u32| learned.tokens[id as usize].clone();
    let merges = learned.merges.iter().map(|&(left, right)| (text(left), text(right))).collect();
    let vocab: Vocab = learned.tokens.iter().cloned().zip(0u32..).collect();
    let model = BPE::builder().vocab_and_merges(vocab, merges).build().map_err(failed)?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
    tokenizer.add_special_tokens(&[AddedToken::from(EOS, true)]);
    Ok(tokenizer.to_string(true).map_err(failed)?.into_bytes())
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Failed { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    fn sample() -> Vec<String> {
        let source = include_str!("tokenizer.rs");
        source.split_inclusive("\n\n").map(String::from).collect()
    }

    fn trained(vocab: u32) -> TextTokenizer {
        TextTokenizer::train(&sample(), vocab, &mut |_| {}).expect("source code is text")
    }

    #[test]
    fn training_twice_and_in_another_order_gives_the_same_bytes() {
        let first = trained(500);
        let mut reversed = sample();
        reversed.reverse();
        let second = TextTokenizer::train(&reversed, 500, &mut |_| {}).expect("source code is text");
        assert_eq!(first.json(), second.json());
        assert_eq!((first.vocab(), first.end_of_document()), (500, 0));
        assert_eq!(first.inner.get_vocab_size(true), 500);
    }

    #[test]
    fn our_merges_are_those_of_the_tokenizers_crate() {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut theirs = tokenizers::Tokenizer::new(BPE::default());
        theirs.with_pre_tokenizer(Some(byte_level()));
        let mut trainer = tokenizers::models::TrainerWrapper::from(
            tokenizers::models::bpe::BpeTrainer::builder()
                .vocab_size(400)
                .min_frequency(2)
                .show_progress(false)
                .initial_alphabet(alphabet.into_iter().collect())
                .special_tokens(vec![AddedToken::from(EOS, true)])
                .build(),
        );
        theirs.train(&mut trainer, sample().into_iter()).expect("source code is text");
        let ours = trained(400);
        assert_eq!(ours.inner.get_vocab(true), theirs.get_vocab(true));
    }

    #[test]
    fn words_in_a_text_end_no_document() {
        let tokenizer = trained(400);
        let tokens = tokenizer.encode("before <eos> after").expect("any text has tokens");
        assert!(!tokens.contains(&tokenizer.end_of_document()));
        assert_eq!(tokenizer.decode(&tokens).expect("its own tokens"), "before <eos> after");
    }

    #[test]
    fn another_tokenizer_is_taken_with_its_own_end_of_document() {
        let ours = trained(300);
        let json = String::from_utf8(ours.json().to_vec()).expect("JSON is UTF-8");
        let renamed = |token: &str| json.replace(EOS, token).into_bytes();

        let theirs = TextTokenizer::from_json(renamed("<|endoftext|>"), None).expect("a known name");
        assert_eq!(theirs.end_of_document(), 0);
        assert_eq!(theirs.encode("fn main()").ok(), ours.encode("fn main()").ok());
        assert!(matches!(
            TextTokenizer::from_json(renamed("<fin>"), None),
            Err(TokenizerError::NoEndOfDocument)
        ));
        assert!(TextTokenizer::from_json(renamed("<fin>"), Some("<fin>")).is_ok());
        assert!(matches!(
            TextTokenizer::from_json(renamed("<fin>"), Some("<end>")),
            Err(TokenizerError::NoSuchToken { token }) if token == "<end>"
        ));
    }

    #[test]
    fn what_is_no_tokenizer_or_a_random_one_is_refused() {
        assert!(matches!(
            TextTokenizer::from_json(b"{}".to_vec(), None),
            Err(TokenizerError::Undecodable { .. })
        ));
        let json = String::from_utf8(trained(300).json().to_vec()).expect("JSON is UTF-8");
        let random = json.replace("\"dropout\": null", "\"dropout\": 0.1");
        assert_ne!(random, json);
        assert!(matches!(TextTokenizer::from_json(random.into_bytes(), None), Err(TokenizerError::Random)));
        let large = json.replacen("\"id\": 0", "\"id\": 4294967295", 1).replacen(
            "\"<eos>\": 0",
            "\"<eos>\": 4294967295",
            1,
        );
        assert!(matches!(
            TextTokenizer::from_json(large.into_bytes(), None),
            Err(TokenizerError::IdTooLarge { id: u32::MAX })
        ));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            static TOKENIZER: LazyLock<TextTokenizer> = LazyLock::new(|| trained(400));
            let tokens = TOKENIZER.encode(&text).expect("any text has tokens");
            prop_assert!(tokens.iter().all(|&token| 0 < token && token < TOKENIZER.vocab()));
            prop_assert_eq!(TOKENIZER.decode(&tokens).expect("its own tokens"), text);
        }
    }
}
