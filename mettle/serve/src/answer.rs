//! Answers in the form of OpenAI's API.

use super::{
    request::Endpoint,
    worker::{Event, Finish, TokenInfo},
};
use serde_json::{Map, Value, json};

/// Properties that all parts of an answer share.
pub(super) struct Answer {
    pub endpoint: Endpoint,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub has_logprobs: bool,
}

/// The continuation of one text so far.
#[derive(Default)]
pub(super) struct Choice {
    text: String,
    tokens: Vec<TokenInfo>,
    finish: Option<Finish>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    prompt_tokens: usize,
    made_tokens: usize,
}

impl Usage {
    /// Adds the data of a text's last event.
    pub fn add(&mut self, event: &Event) {
        if let Event::Ended { prompt_tokens, made_tokens, .. } = event {
            self.prompt_tokens += prompt_tokens;
            self.made_tokens += made_tokens;
        }
    }

    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.made_tokens,
            "total_tokens": self.prompt_tokens + self.made_tokens,
        })
    }
}

impl Choice {
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Started(_) => {}
            Event::Part { text, tokens } => {
                self.text += &text;
                self.tokens.extend(tokens);
            }
            Event::Ended { why, .. } => self.finish = Some(why),
        }
    }

    pub fn is_ended(&self) -> bool {
        self.finish.is_some()
    }
}

impl Answer {
    /// Returns the whole answer.
    pub fn whole(&self, choices: &[Choice], usage: Usage) -> Value {
        let choice = |(index, choice): (usize, &Choice)| {
            let finish = choice.finish.map(Finish::name);
            match self.endpoint {
                Endpoint::Completions => json!({
                    "index": index, "text": choice.text, "logprobs": self.logprobs(&choice.tokens, 0),
                    "finish_reason": finish,
                }),
                Endpoint::Chat => json!({
                    "index": index, "message": { "role": "assistant", "content": choice.text },
                    "logprobs": self.logprobs(&choice.tokens, 0), "finish_reason": finish,
                }),
            }
        };
        let choices: Vec<Value> = choices.iter().enumerate().map(choice).collect();
        let mut object = self.object("text_completion", "chat.completion", choices);
        object["usage"] = usage.json();
        object
    }

    /// Returns the part of an answer that an event of one text adds. `offset` is the length of the text before it.
    pub fn part(&self, index: usize, event: &Event, offset: usize) -> Value {
        let (text, tokens, finish): (&str, &[TokenInfo], _) = match event {
            Event::Started(_) => ("", &[], None),
            Event::Part { text, tokens } => (text, tokens, None),
            Event::Ended { why, .. } => ("", &[], Some(why.name())),
        };
        let logprobs = if tokens.is_empty() { Value::Null } else { self.logprobs(tokens, offset) };
        let choice = match (self.endpoint, event) {
            (Endpoint::Completions, _) => {
                json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
            }
            (Endpoint::Chat, event) => {
                let delta = match event {
                    Event::Started(_) => json!({ "role": "assistant", "content": "" }),
                    Event::Part { .. } => json!({ "content": text }),
                    Event::Ended { .. } => json!({}),
                };
                json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish })
            }
        };
        self.object("text_completion", "chat.completion.chunk", vec![choice])
    }

    /// Returns the part of a stream with the number of tokens.
    pub fn usage(&self, usage: Usage) -> Value {
        let mut object = self.object("text_completion", "chat.completion.chunk", Vec::new());
        object["usage"] = usage.json();
        object
    }

    fn object(&self, of_completions: &str, of_chat: &str, choices: Vec<Value>) -> Value {
        let object = if self.endpoint == Endpoint::Chat { of_chat } else { of_completions };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    fn logprobs(&self, tokens: &[TokenInfo], mut offset: usize) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        match self.endpoint {
            Endpoint::Completions => {
                let mut offsets = Vec::with_capacity(tokens.len());
                for token in tokens {
                    offsets.push(offset);
                    offset += token.text.chars().count();
                }
                // Of several tokens with the same text, only the likeliest is listed.
                let top = |token: &TokenInfo| {
                    let mut top = Map::new();
                    for (text, log) in &token.likeliest {
                        top.entry(text).or_insert_with(|| json!(log));
                    }
                    token.log_probability.map(|_| top)
                };
                json!({
                    "tokens": tokens.iter().map(|token| &token.text).collect::<Vec<_>>(),
                    "token_logprobs": tokens.iter().map(|token| token.log_probability).collect::<Vec<_>>(),
                    "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
                    "text_offset": offsets,
                })
            }
            Endpoint::Chat => {
                let named = |text: &str, log: Option<f64>| json!({ "token": text, "logprob": log, "bytes": text.as_bytes() });
                let token = |token: &TokenInfo| {
                    let mut value = named(&token.text, token.log_probability);
                    let top = token.likeliest.iter().map(|(text, log)| named(text, Some(*log)));
                    value["top_logprobs"] = top.collect();
                    value
                };
                json!({ "content": tokens.iter().map(token).collect::<Vec<_>>() })
            }
        }
    }
}
