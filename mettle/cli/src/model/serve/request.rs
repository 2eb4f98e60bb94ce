//! Requests of OpenAI's API as texts to continue. Everything in them is checked here, by pure functions.
//!
//! OpenAI's fields that would change the answer and are not supported are refused. Other unknown fields are ignored, as
//! clients send many.

use super::Served;
use hyper::StatusCode;
use nn::{Sampler, Sampling};
use serde_json::{Map, Value, json};

/// Texts of one request.
const PROMPTS_MAX: usize = 64;
/// Strings that end a text, and bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Likeliest tokens that an answer names beside each token.
const LOGPROBS_MAX: u64 = 20;
/// Tokens that the log-probabilities of an answer name: each token, and the likeliest beside it.
const LOGPROBS_NAMED_MAX: usize = 1 << 18;
/// Tokens that a completion without `max_tokens` has, as OpenAI's.
const MAX_TOKENS_DEFAULT: u64 = 16;

/// OpenAI's fields that would change an answer.
const UNSUPPORTED: [&str; 8] = [
    "suffix",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "modalities",
    "audio",
];

/// Why a request is refused, in the form of OpenAI's errors.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub message: String,
    pub param: Option<&'static str>,
    pub code: Option<&'static str>,
}

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into(), param: None, code: None }
    }

    fn of(param: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { param: Some(param), ..Refusal::new(StatusCode::BAD_REQUEST, message) }
    }

    pub fn json(&self) -> Value {
        let kind = match self.status.as_u16() {
            400..429 => "invalid_request_error",
            429 => "rate_limit_error",
            _ => "server_error",
        };
        json!({ "error": {
            "message": self.message, "type": kind, "param": self.param, "code": self.code,
        } })
    }
}

/// The form of request and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Completions,
    Chat,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Request {
    pub texts: Vec<Text>,
    pub is_stream: bool,
    /// Whether the last event of a stream tells the number of tokens.
    pub stream_usage: bool,
}

/// A text to continue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    /// From 1 to `seq_len` tokens.
    pub prompt: Vec<u32>,
    /// The prompt as text, if the answer repeats it.
    pub echo: Option<String>,
    /// At most as many as fit into the context.
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    /// How many of the likeliest tokens are named beside each token, which then has its log-probability.
    pub logprobs: Option<usize>,
    /// Whether white space before the first word is left out: in a chat it belongs to the template.
    pub trims_start: bool,
}

/// Reads the body of a request. `seed` is used if it names none.
pub(super) fn parse(endpoint: Endpoint, body: &[u8], served: &Served, seed: u64) -> Result<Request, Refusal> {
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is not a JSON object: {error}"))
    })?;
    let fields = Fields(&fields);
    match fields.string("model")? {
        Some(name) if name == served.about.name => {}
        Some(name) => return Err(no_such_model(name, served)),
        None => return Err(Refusal::of("model", "the field model is missing")),
    }
    fields.refuse_unsupported()?;

    let sampling = Sampling {
        temperature: fields.number("temperature")?.unwrap_or(1.0),
        top_p: fields.number("top_p")?.unwrap_or(1.0),
        seed: fields.seed()?.unwrap_or(seed),
    };
    Sampler::new(sampling).map_err(|error| {
        let param = match error {
            nn::SamplingError::Temperature { .. } => "temperature",
            nn::SamplingError::TopP { .. } => "top_p",
        };
        Refusal::of(param, error.to_string())
    })?;
    let mut stops = fields.stops()?;
    let (prompts, is_echo, max_tokens, logprobs) = match endpoint {
        Endpoint::Completions => {
            let prompts = fields.prompts(served)?;
            let max_tokens = fields.count("max_tokens", u64::MAX)?.unwrap_or(MAX_TOKENS_DEFAULT);
            (
                prompts,
                fields.flag("echo")?,
                Some(max_tokens),
                fields.count("logprobs", LOGPROBS_MAX)?.map(|count| count as usize),
            )
        }
        Endpoint::Chat => {
            let (text, role_stop) = conversation(fields.0)?;
            stops.push(role_stop);
            let max_tokens = match fields.count("max_completion_tokens", u64::MAX)? {
                Some(count) => Some(count),
                None => fields.count("max_tokens", u64::MAX)?,
            };
            let top = fields.count("top_logprobs", LOGPROBS_MAX)?;
            let logprobs = fields.flag("logprobs")?.then_some(top.unwrap_or(0) as usize);
            (vec![served.encode(&text)?], false, max_tokens, logprobs)
        }
    };

    let (seq_len, vocab) = (served.seq_len(), served.vocab());
    let mut texts = Vec::with_capacity(prompts.len());
    for (index, mut prompt) in prompts.into_iter().enumerate() {
        if prompt.is_empty() {
            prompt.push(served.tokenizer.end_of_document());
        }
        if let Some(token) = prompt.iter().find(|token| vocab <= **token as usize) {
            return Err(Refusal::of("prompt", format!("token {token} is outside the vocabulary of {vocab}")));
        }
        if seq_len < prompt.len() {
            let message =
                format!("the prompt has {} tokens, but this model reads {seq_len} at once", prompt.len());
            let param = if endpoint == Endpoint::Chat { "messages" } else { "prompt" };
            return Err(Refusal { code: Some("context_length_exceeded"), ..Refusal::of(param, message) });
        }
        // The last token of a text needs no place: nothing is read behind it.
        let room = seq_len + 1 - prompt.len();
        texts.push(Text {
            echo: is_echo.then(|| served.decode(&prompt)).transpose()?,
            prompt,
            max_tokens: max_tokens.map_or(room, |wanted| (wanted as usize).min(room)),
            sampling: Sampling { seed: sampling.seed.wrapping_add(index as u64), ..sampling },
            stops: stops.clone(),
            logprobs,
            trims_start: endpoint == Endpoint::Chat,
        });
    }
    let named = |text: &Text| {
        let echoed = if is_echo { text.prompt.len() } else { 0 };
        text.logprobs.map_or(0, |count| (echoed + text.max_tokens) * (count + 1))
    };
    let named: usize = texts.iter().map(named).sum();
    if LOGPROBS_NAMED_MAX < named {
        let message = format!(
            "the log-probabilities may name {named} tokens, but at most {LOGPROBS_NAMED_MAX}: ask with a smaller \
             max_tokens, fewer logprobs or fewer prompts"
        );
        return Err(Refusal::of("logprobs", message));
    }
    Ok(Request {
        texts,
        is_stream: fields.flag("stream")?,
        stream_usage: match fields.0.get("stream_options") {
            None | Some(Value::Null) => false,
            Some(Value::Object(options)) => Fields(options).flag("include_usage")?,
            Some(_) => return Err(Refusal::of("stream_options", "stream_options is an object")),
        },
    })
}

pub(super) fn no_such_model(name: &str, served: &Served) -> Refusal {
    // A name may be long, and comes from anyone.
    let name: String = name.chars().take(100).collect();
    let message = format!("there is no model {name:?} here, only {:?}", served.about.name);
    Refusal {
        status: StatusCode::NOT_FOUND,
        param: Some("model"),
        code: Some("model_not_found"),
        ..Refusal::new(StatusCode::NOT_FOUND, message)
    }
}

/// The messages of a chat as the beginning of a text, and the string that ends the model's part of it: a line that
/// begins with the user's name.
fn conversation(fields: &Map<String, Value>) -> Result<(String, String), Refusal> {
    let wrong = |message: String| Refusal::of("messages", message);
    let Some(Value::Array(messages)) = fields.get("messages") else {
        return Err(wrong("the field messages is missing or not an array".into()));
    };
    if messages.is_empty() {
        return Err(wrong("there is no message".into()));
    }
    let mut text = String::new();
    for (index, message) in messages.iter().enumerate() {
        let content = match &message["content"] {
            Value::String(content) => content.clone(),
            Value::Array(parts) => {
                let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(text)) => Some(text.to_owned()),
                    _ => None,
                };
                let parts: Option<Vec<String>> = parts.iter().map(part).collect();
                parts.ok_or_else(|| wrong(format!("message {index} has a part that is no text")))?.concat()
            }
            _ => return Err(wrong(format!("message {index} has no content that is a text"))),
        };
        match message["role"].as_str() {
            Some("system" | "developer") => text.push_str(&format!("{content}\n\n")),
            Some("user") => text.push_str(&format!("User: {content}\n")),
            Some("assistant") => text.push_str(&format!("Assistant: {content}\n")),
            _ => {
                return Err(wrong(format!(
                    "the role of message {index} is not system, developer, user or assistant"
                )));
            }
        }
    }
    text.push_str("Assistant:");
    Ok((text, "\nUser:".into()))
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    /// `null` is a field that is not there.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn string(&self, name: &'static str) -> Result<Option<&str>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::of(name, format!("{name} is a string"))),
        }
    }

    fn flag(&self, name: &'static str) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(Refusal::of(name, format!("{name} is true or false"))),
        }
    }

    fn number(&self, name: &'static str) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| Refusal::of(name, format!("{name} is a number")))
    }

    fn count(&self, name: &'static str, max: u64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64().filter(|value| *value <= max) {
            Some(value) => Ok(Some(value)),
            None if max == u64::MAX => Err(Refusal::of(name, format!("{name} is a number from 0"))),
            None => Err(Refusal::of(name, format!("{name} is a number from 0 to {max}"))),
        }
    }

    /// Any integer of 64 bits: some clients draw negative ones.
    fn seed(&self) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.get("seed") else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| Refusal::of("seed", "seed is an integer"))
    }

    fn stops(&self) -> Result<Vec<String>, Refusal> {
        let stops = match self.get("stop") {
            None => Vec::new(),
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) if stops.len() <= STOPS_MAX => {
                let stops: Option<Vec<String>> =
                    stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect();
                stops.ok_or_else(|| Refusal::of("stop", "stop is a string or an array of strings"))?
            }
            Some(Value::Array(stops)) => {
                let message =
                    format!("stop has {} strings, but at most {STOPS_MAX} are watched", stops.len());
                return Err(Refusal::of("stop", message));
            }
            Some(_) => return Err(Refusal::of("stop", "stop is a string or an array of strings")),
        };
        match stops.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len())) {
            true => Ok(stops),
            false => Err(Refusal::of("stop", format!("a stop string has from 1 to {STOP_BYTES_MAX} bytes"))),
        }
    }

    /// A text, several texts, the tokens of a text, or those of several.
    fn prompts(&self, served: &Served) -> Result<Vec<Vec<u32>>, Refusal> {
        let wrong = || {
            let forms =
                "prompt is a string, an array of strings, an array of token ids, or an array of those";
            Refusal::of("prompt", forms)
        };
        let tokens = |values: &[Value]| -> Option<Vec<u32>> {
            values.iter().map(|value| value.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
        };
        let values = match self.get("prompt") {
            // A completion of nothing begins a document.
            None => return Ok(vec![Vec::new()]),
            Some(Value::String(text)) => return Ok(vec![served.encode(text)?]),
            Some(Value::Array(values)) => values,
            Some(_) => return Err(wrong()),
        };
        match values.first() {
            None => Err(Refusal::of("prompt", "prompt is an empty array")),
            Some(Value::Number(_)) => Ok(vec![tokens(values).ok_or_else(wrong)?]),
            Some(_) if PROMPTS_MAX < values.len() => {
                let message = format!("{} prompts, but a request has at most {PROMPTS_MAX}", values.len());
                Err(Refusal::of("prompt", message))
            }
            Some(_) => {
                let prompt = |value: &Value| match value {
                    Value::String(text) => served.encode(text),
                    Value::Array(values) => tokens(values).ok_or_else(wrong),
                    _ => Err(wrong()),
                };
                values.iter().map(prompt).collect()
            }
        }
    }

    fn refuse_unsupported(&self) -> Result<(), Refusal> {
        for name in UNSUPPORTED {
            let value = self.get(name);
            let is_neutral = match value {
                None => true,
                Some(Value::Array(values)) => values.is_empty(),
                Some(Value::String(text)) => text.is_empty() || text == "none",
                Some(Value::Object(fields)) => fields.get("type").is_some_and(|kind| kind == "text"),
                Some(_) => false,
            };
            if !is_neutral {
                return Err(Refusal::of(name, format!("{name} is not supported")));
            }
        }
        for name in ["n", "best_of"] {
            if self.count(name, u64::MAX)?.is_some_and(|count| count != 1) {
                return Err(Refusal::of(name, format!("{name} is 1: each request has one answer")));
            }
        }
        for name in ["presence_penalty", "frequency_penalty"] {
            if self.number(name)?.is_some_and(|penalty| penalty != 0.0) {
                return Err(Refusal::of(name, format!("{name} is not supported")));
            }
        }
        match self.get("logit_bias") {
            None => Ok(()),
            Some(Value::Object(biases)) if biases.is_empty() => Ok(()),
            Some(_) => Err(Refusal::of("logit_bias", "logit_bias is not supported")),
        }
    }
}
