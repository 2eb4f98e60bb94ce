//! The text of an answer's tokens as they arrive.

use tokenizer::{TextTokenizer, TokenizerError};

/// The decoder's output for bytes that are not, or not yet, a character.
const NO_CHARACTER: char = '\u{fffd}';
/// Maximum number of tokens of a character. After that, its bytes are treated as invalid.
const CHARACTER_TOKENS_MAX: usize = 8;

/// Decodes tokens that follow a prompt. A character may take several tokens.
///
/// SentencePiece tokenizers write the first word of a text without the space before it. So the preceding tokens,
/// including those of the prompt, are decoded too and their text is removed.
pub struct AnswerText {
    /// The last tokens: those on which the next text may depend, and those without text so far.
    tokens: Vec<u32>,
    /// Number of `tokens` that have been returned as text.
    done: usize,
}

impl AnswerText {
    /// Starts after a prompt. A document begins after the end of the previous one.
    pub fn after(prompt: &[u32], tokenizer: &TextTokenizer) -> AnswerText {
        let end = tokenizer.end_of_document();
        let document = prompt.iter().rposition(|token| *token == end).map_or(0, |at| at + 1);
        let tokens = prompt[document..].to_vec();
        AnswerText { done: tokens.len(), tokens }
    }

    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Returns the text of the tokens since the last call, if it is complete or `is_last`.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn text(&mut self, tokenizer: &TextTokenizer, is_last: bool) -> Result<String, TokenizerError> {
        let before = tokenizer.decode(&self.tokens[..self.done])?;
        let all = tokenizer.decode(&self.tokens)?;
        let waits = all.ends_with(NO_CHARACTER) && self.tokens.len() - self.done < CHARACTER_TOKENS_MAX;
        if waits && !is_last {
            return Ok(String::new());
        }
        let text = match all.strip_prefix(&before) {
            Some(text) => text.to_owned(),
            // The last bytes before were not a complete character and begin one now.
            None => tokenizer.decode(&self.tokens[self.done..])?,
        };
        self.tokens.drain(..self.done);
        self.done = self.tokens.len();
        Ok(text)
    }
}

/// Returns the text of one token within a text: with the space before a word, which [`TextTokenizer::decode`] may
/// omit at the beginning.
pub(crate) fn token_text(token: u32, tokenizer: &TextTokenizer) -> Result<String, TokenizerError> {
    let first = tokenizer.decode(&[token])?;
    let twice = tokenizer.decode(&[token, token])?;
    Ok(match twice.strip_prefix(&first) {
        Some(second) => second.to_owned(),
        None => first,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{sentencepiece, tokenizer};

    fn parts(tokenizer: &TextTokenizer, prompt: &[u32], tokens: &[u32]) -> Vec<String> {
        let mut answer = AnswerText::after(prompt, tokenizer);
        let part = |token: &u32| {
            answer.push(*token);
            answer.text(tokenizer, false).unwrap()
        };
        tokens.iter().map(part).collect()
    }

    #[test]
    fn a_character_of_several_tokens_is_written_when_it_is_whole() {
        let tokenizer = tokenizer();
        let tokens = tokenizer.encode("aéb é").unwrap();
        assert_eq!(tokens.len(), 7);
        assert_eq!(parts(&tokenizer, &[], &tokens), ["a", "", "é", "b", " ", "", "é"]);
        // Half of a character at the end of a text.
        let mut answer = AnswerText::after(&tokens, &tokenizer);
        answer.push(tokens[1]);
        assert_eq!(answer.text(&tokenizer, false).unwrap(), "");
        assert_eq!(answer.text(&tokenizer, true).unwrap(), "\u{fffd}");
        // Bytes that never become a character do not delay the text.
        let text = parts(&tokenizer, &[], &[tokens[1]; 20]).concat();
        assert!(8 <= text.chars().count(), "{text}");
        // Half of a character at the end of a prompt.
        assert_eq!(parts(&tokenizer, &tokens[..2], &tokens[2..4]), ["\u{fffd}", "b"]);
    }

    #[test]
    fn sentencepiece_keeps_the_space_between_prompt_and_answer() {
        for is_llama in [true, false] {
            let tokenizer = sentencepiece(is_llama);
            let whole = tokenizer.encode("an ant é a bee").unwrap();
            assert_eq!(tokenizer.decode(&whole).unwrap(), "an ant é a bee", "{is_llama}");
            for at in 1..whole.len() {
                let (prompt, answer) = whole.split_at(at);
                let text = parts(&tokenizer, prompt, answer).concat();
                let before = tokenizer.decode(prompt).unwrap();
                // Between the bytes of é there is no preceding text.
                if !before.ends_with(NO_CHARACTER) {
                    assert_eq!(before + &text, "an ant é a bee", "{is_llama}, {at} tokens of the prompt");
                }
            }
            let space = 2;
            assert_eq!(parts(&tokenizer, &whole[..2], &[space]), [" "], "{is_llama}");
            // A document begins with its first word.
            let end = tokenizer.end_of_document();
            assert_eq!(parts(&tokenizer, &[end], &whole).concat(), "an ant é a bee", "{is_llama}");
            assert_eq!(token_text(space, &tokenizer).unwrap(), " ", "{is_llama}");
        }
        let bytes = tokenizer();
        for (token, text) in [(30, " a"), (27, " "), (28, "\u{fffd}"), (1, "a")] {
            assert_eq!(token_text(token, &bytes).unwrap(), text);
        }
    }
}
