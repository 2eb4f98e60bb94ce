//! Encodes text word by word with a cache of words. The tokens equal those of the `tokenizers` crate, and preparing a
//! dataset is about eight times as fast (`examples/encode-report.rs`).
//!
//! Byte-level BPE, which most models use, splits a text into words by a pattern, and the tokens of a word depend on
//! the word alone. `tokenizers` records the origin of each token, which takes most of its time and memory and is not
//! needed here. So this module splits the text, looks each word up, and calls `tokenizers` for new words only. Other
//! kinds of tokenizers are left to `tokenizers`, and tests compare the two.
//!
//! The patterns in use end in `\s+(?!\S)|\s+`: white space, whose last character belongs to the next word. A fast
//! automaton has no such look-ahead, so code handles this part, and the automaton the rest.

use ahash::AHashMap;
use regex_automata::{Anchored, Input, meta};
use tokenizers::{
    Model as _, ModelWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::{byte_level::ByteLevel, split::SplitPattern},
};

/// The pattern of `ByteLevel` in `tokenizers`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const WHITE_SPACE: &str = r"|\s+(?!\S)|\s+";
/// Maximum length of a cached word, in bytes: longer ones are rarely repeated.
const WORD_BYTES: usize = 64;
/// Number of words in a full cache, which is then emptied.
const WORDS: usize = 1 << 16;

/// Splits text into words for a tokenizer of a supported kind.
pub(crate) struct Words {
    /// The pattern without [`WHITE_SPACE`].
    pattern: meta::Regex,
}

impl Words {
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Words> {
        let plain = tokenizer.get_normalizer().is_none()
            && matches!(tokenizer.get_model(), ModelWrapper::BPE(_))
            // Others are removed from the text before it is split into words.
            && tokenizer.get_added_tokens_decoder().values().all(|token| token.special);
        if !plain {
            return None;
        }
        let pattern = match tokenizer.get_pre_tokenizer()? {
            PreTokenizerWrapper::ByteLevel(ByteLevel {
                add_prefix_space: false, use_regex: true, ..
            }) => GPT2,
            PreTokenizerWrapper::Sequence(sequence) => match sequence.as_ref() {
                [
                    PreTokenizerWrapper::Split(split),
                    PreTokenizerWrapper::ByteLevel(ByteLevel {
                        add_prefix_space: false,
                        use_regex: false,
                        ..
                    }),
                ] if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert => {
                    match &split.pattern {
                        SplitPattern::Regex(pattern) => pattern,
                        SplitPattern::String(_) => return None,
                    }
                }
                _ => return None,
            },
            _ => return None,
        };
        let pattern = meta::Regex::new(pattern.strip_suffix(WHITE_SPACE)?).ok()?;
        Some(Words { pattern })
    }

    /// Returns the end of the word that begins at `start`; `None` if the pattern leaves text between words.
    fn end(&self, text: &str, start: usize, cache: &mut meta::Cache) -> Option<usize> {
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        if let Some(found) = self.pattern.search_with(cache, &input).filter(|found| !found.is_empty()) {
            return Some(found.end());
        }
        let rest = &text[start..];
        let white = rest.len() - rest.trim_start().len();
        if white == 0 {
            return None;
        }
        let last = rest[..white].chars().next_back().map_or(0, char::len_utf8);
        // The last character belongs to the next word, if there is one and it is not the only character.
        let left = if white < rest.len() && last < white { last } else { 0 };
        Some(start + white - left)
    }
}

/// Encodes texts with a cache of words.
pub(crate) struct Encoder<'a> {
    tokenizer: &'a tokenizers::Tokenizer,
    words: &'a Words,
    cache: meta::Cache,
    /// Start and number of a word's tokens.
    known: AHashMap<Box<[u8]>, (u32, u32)>,
    tokens: Vec<u32>,
    characters: [char; 256],
    spelled: String,
}

impl<'a> Encoder<'a> {
    pub fn new(tokenizer: &'a tokenizers::Tokenizer, words: &'a Words) -> Encoder<'a> {
        Encoder {
            tokenizer,
            words,
            cache: words.pattern.create_cache(),
            known: AHashMap::new(),
            tokens: Vec::new(),
            characters: characters(),
            spelled: String::new(),
        }
    }

    /// Adds the tokens of a text to `to`. Returns false, and adds nothing, if the text cannot be split into words.
    pub fn encode(&mut self, text: &str, to: &mut Vec<u32>) -> Result<bool, tokenizers::Error> {
        let (before, mut start) = (to.len(), 0);
        while start < text.len() {
            let Some(end) = self.words.end(text, start, &mut self.cache) else {
                to.truncate(before);
                return Ok(false);
            };
            let word = &text.as_bytes()[start..end];
            match self.known.get(word) {
                Some(&(from, count)) => {
                    to.extend_from_slice(&self.tokens[from as usize..(from + count) as usize]);
                }
                None => self.learn(word, to)?,
            }
            start = end;
        }
        Ok(true)
    }

    fn learn(&mut self, word: &[u8], to: &mut Vec<u32>) -> Result<(), tokenizers::Error> {
        self.spelled.clear();
        self.spelled.extend(word.iter().map(|byte| self.characters[usize::from(*byte)]));
        let tokens = self.tokenizer.get_model().tokenize(&self.spelled)?;
        to.extend(tokens.iter().map(|token| token.id));
        if word.len() <= WORD_BYTES {
            if self.known.len() == WORDS {
                self.known.clear();
                self.tokens.clear();
            }
            let from = self.tokens.len() as u32;
            self.tokens.extend(tokens.iter().map(|token| token.id));
            self.known.insert(word.into(), (from, tokens.len() as u32));
        }
        Ok(())
    }
}

/// Returns GPT-2's character for each byte: the byte itself if it is printable, else one from 256 on.
fn characters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| {
        let seen = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if seen { byte as u32 } else { next };
        next += u32::from(!seen);
        char::from_u32(code).expect("below the surrogates")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TextTokenizer;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// One with the words of GPT-2, and one with those of Llama 3.
    static TOKENIZERS: LazyLock<[TextTokenizer; 2]> = LazyLock::new(|| {
        let sample = [include_str!("words.rs").to_owned(), "naïve 漢字 😀😀 \r\n\r\n 12345".repeat(9)];
        let ours = TextTokenizer::train(&sample, 700, &mut |_| {}).expect("it is text");
        let mut json: serde_json::Value = serde_json::from_slice(ours.json()).expect("JSON");
        let mut byte_level = json["pre_tokenizer"].clone();
        byte_level["use_regex"] = false.into();
        json["pre_tokenizer"] = serde_json::json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": LLAMA3 }, "behavior": "Isolated", "invert": false },
            byte_level,
        ]});
        json["model"]["ignore_merges"] = true.into();
        let llama = TextTokenizer::from_json(json.to_string().into_bytes(), None).expect("a tokenizer");
        [ours, llama]
    });

    fn check(text: &str) {
        for tokenizer in TOKENIZERS.iter() {
            let words = tokenizer.words().expect("both are supported");
            let mut encoder = Encoder::new(tokenizer.inner(), words);
            let expected = tokenizer.inner().encode_fast(text, false).expect("any text has tokens");
            // The second time from the cache.
            for _ in 0..2 {
                let mut tokens = Vec::new();
                assert!(encoder.encode(text, &mut tokens).expect("any text has tokens"));
                assert_eq!(tokens, expected.get_ids(), "{text:?}");
            }
        }
    }

    #[test]
    fn characters_are_those_of_the_tokenizers_crate() {
        let ours: std::collections::BTreeSet<char> = characters().into_iter().collect();
        assert_eq!(ours, ByteLevel::alphabet().into_iter().collect());
    }

    #[test]
    fn hostile_text_has_the_tokens_that_the_tokenizers_crate_gives_it() {
        for text in [
            "",
            " ",
            "\n",
            "  a",
            "a  ",
            " \n a",
            "\n\n\nfoo \t\tbar\r\n\r\n  baz \r x",
            "\u{a0}\u{2003}x\u{3000}\u{3000}y\u{200b}z\u{85}\u{2028}q",
            "I'm WE'LL they'Ve 'S ''s don\u{2019}t",
            "1234567890 12 ١٢٣٤٥ ½ Ⅻ 漢字かな交じり文。한국어 العربية हिन्दी",
            "😀👩‍👩‍👧‍👦🏳️‍🌈 e\u{301}\u{301}\u{301} \u{feff}\u{fffd}",
            "\0\u{1}\u{7f}\u{1b}[0m <eos> <|endoftext|> </s>",
            "_-+=~`!@#$%^&*()[]{}|;:,.<>?/\\\"\n\t\n \n",
        ] {
            check(text);
        }
        check(&"x".repeat(20_000));
        check(&" ".repeat(20_000));
        check(&"\n \t".repeat(5_000));
        check(&"𝔘".repeat(3_000));
    }

    #[test]
    fn a_tokenizer_that_works_otherwise_is_left_to_the_tokenizers_crate() {
        let with = |change: fn(&mut serde_json::Value)| {
            let mut json: serde_json::Value = serde_json::from_slice(TOKENIZERS[1].json()).expect("JSON");
            change(&mut json);
            TextTokenizer::from_json(json.to_string().into_bytes(), Some("<eos>")).expect("a tokenizer")
        };
        let others: [fn(&mut serde_json::Value); 5] = [
            |json| json["normalizer"] = serde_json::json!({ "type": "NFC" }),
            |json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into(),
            |json| json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into(),
            |json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+".into(),
            |json| {
                let mut token = json["added_tokens"][0].clone();
                token["id"] = 701.into();
                token["content"] = "ab".into();
                token["special"] = false.into();
                json["added_tokens"].as_array_mut().expect("a list").push(token);
            },
        ];
        for change in others {
            let tokenizer = with(change);
            assert!(tokenizer.words().is_none());
            let expected = tokenizer.inner().encode_fast("abba ab 12", false).expect("any text has tokens");
            assert_eq!(tokenizer.encode("abba ab 12").expect("any text has tokens"), expected.get_ids());
        }
    }

    proptest! {
        #[test]
        fn any_text_has_the_tokens_that_the_tokenizers_crate_gives_it(
            text in any::<String>(), spaced in "[ \\n\\r\\ta1'sS.é\u{a0}漢]{0,60}",
        ) {
            check(&text);
            check(&spaced);
        }
    }
}
