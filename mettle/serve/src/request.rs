//! Requests of OpenAI's API as texts to continue. Pure functions check every field here.
//!
//! OpenAI's fields that would change the answer and are not supported are refused. Other unknown fields are ignored,
//! as clients send many.

use crate::Served;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use daemon::http::json_response;
use nn::{Sampler, Sampling};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizer::TokenizerError;

/// Maximum number of texts in one request.
const PROMPTS_MAX: usize = 64;
/// Maximum number of strings that end a text, and maximum length of each in bytes.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Maximum number of likeliest tokens beside each token of an answer.
const LOGPROBS_MAX: u64 = 20;
/// Maximum number of tokens with log-probabilities in an answer: each token and the likeliest ones beside it.
const LOGPROBS_NAMED_MAX: usize = 1 << 18;
/// Default of `max_tokens` for a completion, as in OpenAI's API.
const MAX_TOKENS_DEFAULT: u64 = 16;

/// Delay before a client may retry, when too many requests wait.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("2");

/// OpenAI's fields that would change an answer and are not supported.
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

/// A refusal of a request, in the form of OpenAI's errors.
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

impl From<TokenizerError> for Refusal {
    fn from(error: TokenizerError) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
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
    /// The last event of a stream contains the number of tokens.
    pub stream_usage: bool,
}

/// A text to continue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    /// The prompt, of 1 to `seq_len` tokens.
    pub prompt: Vec<u32>,
    /// The prompt as text, if the answer repeats it.
    pub echo: Option<String>,
    /// Maximum number of tokens, limited by the context.
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    /// Number of likeliest tokens beside each token, which then has its log-probability.
    pub logprobs: Option<usize>,
    /// White space before the first word is removed: in a chat it belongs to the template.
    pub trims_start: bool,
}

/// Parses the body of a request. `seed` is used if the body has none.
pub(super) fn parse(endpoint: Endpoint, body: &[u8], served: &Served, seed: u64) -> Result<Request, Refusal> {
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is not a JSON object: {error}"))
    })?;
    let fields = Fields(&fields);
    match fields.get::<&str>("model", "a string")? {
        Some(name) if name == served.about.name => {}
        Some(name) => return Err(no_such_model(name, served)),
        None => return Err(Refusal::of("model", "the field model is missing")),
    }
    fields.refuse_unsupported()?;

    let sampling = Sampling {
        temperature: fields.get("temperature", "a number")?.unwrap_or(1.0),
        top_p: fields.get("top_p", "a number")?.unwrap_or(1.0),
        // Some clients send negative ones.
        seed: fields.get::<i128>("seed", "an integer")?.map_or(seed, |seed| seed as u64),
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
            let (text, role_stop) = fields.conversation()?;
            stops.push(role_stop);
            let max_tokens = match fields.count("max_completion_tokens", u64::MAX)? {
                Some(count) => Some(count),
                None => fields.count("max_tokens", u64::MAX)?,
            };
            let top = fields.count("top_logprobs", LOGPROBS_MAX)?;
            let logprobs = fields.flag("logprobs")?.then_some(top.unwrap_or(0) as usize);
            (vec![served.tokenizer.encode(&text)?], false, max_tokens, logprobs)
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
        // The last token of a text needs no position: nothing is read after it.
        let room = seq_len + 1 - prompt.len();
        texts.push(Text {
            echo: is_echo.then(|| served.tokenizer.decode(&prompt)).transpose()?,
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
    // A name may be long and comes from strangers.
    let name: String = name.chars().take(100).collect();
    let message = format!("there is no model {name:?} here, only {:?}", served.about.name);
    Refusal {
        status: StatusCode::NOT_FOUND,
        param: Some("model"),
        code: Some("model_not_found"),
        ..Refusal::new(StatusCode::NOT_FOUND, message)
    }
}

/// A message of a chat.
#[derive(Deserialize)]
struct Message {
    role: Author,
    content: Content,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Author {
    #[serde(alias = "developer")]
    System,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "content is a string or an array of parts that are texts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Part {
    Text { text: String },
}

/// One string, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Strings {
    One(String),
    Several(Vec<String>),
}

/// A text, or its tokens.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    One(Prompt),
    Several(Vec<Prompt>),
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Returns a field's value; `null` counts as absent.
    fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Parses a field. The refusal states that it must be `form`.
    fn get<T: Deserialize<'a>>(&self, name: &'static str, form: &str) -> Result<Option<T>, Refusal> {
        let value = self.value(name).map(T::deserialize).transpose();
        value.map_err(|_| Refusal::of(name, format!("{name} is {form}")))
    }

    fn flag(&self, name: &'static str) -> Result<bool, Refusal> {
        Ok(self.get(name, "true or false")?.unwrap_or(false))
    }

    fn count(&self, name: &'static str, max: u64) -> Result<Option<u64>, Refusal> {
        let form = match max {
            u64::MAX => "a number from 0".to_owned(),
            _ => format!("a number from 0 to {max}"),
        };
        match self.get(name, &form)? {
            Some(count) if max < count => Err(Refusal::of(name, format!("{name} is {form}"))),
            count => Ok(count),
        }
    }

    fn stops(&self) -> Result<Vec<String>, Refusal> {
        let stops = match self.get("stop", "a string or an array of strings")? {
            None => Vec::new(),
            Some(Strings::One(stop)) => vec![stop],
            Some(Strings::Several(stops)) => stops,
        };
        if STOPS_MAX < stops.len() {
            let message = format!("stop has {} strings, but at most {STOPS_MAX} are watched", stops.len());
            return Err(Refusal::of("stop", message));
        }
        match stops.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len())) {
            true => Ok(stops),
            false => Err(Refusal::of("stop", format!("a stop string has from 1 to {STOP_BYTES_MAX} bytes"))),
        }
    }

    /// Returns the tokens of each prompt.
    fn prompts(&self, served: &Served) -> Result<Vec<Vec<u32>>, Refusal> {
        let forms = "a string, an array of strings, an array of token ids, or an array of those";
        let prompts = match self.get("prompt", forms)? {
            // A completion without a prompt begins a document.
            None => return Ok(vec![Vec::new()]),
            Some(Prompts::One(Prompt::Tokens(tokens))) if tokens.is_empty() => {
                return Err(Refusal::of("prompt", "prompt is an empty array"));
            }
            Some(Prompts::One(prompt)) => vec![prompt],
            Some(Prompts::Several(prompts)) => prompts,
        };
        if PROMPTS_MAX < prompts.len() {
            let message = format!("{} prompts, but a request has at most {PROMPTS_MAX}", prompts.len());
            return Err(Refusal::of("prompt", message));
        }
        let tokens = |prompt| match prompt {
            Prompt::Text(text) => Ok(served.tokenizer.encode(&text)?),
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        prompts.into_iter().map(tokens).collect()
    }

    /// Returns the messages of a chat as the beginning of a text, and the string that ends the model's part: a line
    /// that begins with the user's name.
    fn conversation(&self) -> Result<(String, String), Refusal> {
        let messages: Vec<Value> = self.get("messages", "an array of messages")?.unwrap_or_default();
        if messages.is_empty() {
            return Err(Refusal::of("messages", "there is no message"));
        }
        let mut text = String::new();
        for (index, message) in messages.iter().enumerate() {
            let Message { role, content } = Message::deserialize(message)
                .map_err(|error| Refusal::of("messages", format!("message {index}: {error}")))?;
            let content = match content {
                Content::Text(content) => content,
                Content::Parts(parts) => parts.into_iter().map(|Part::Text { text }| text).collect(),
            };
            text += &match role {
                Author::System => format!("{content}\n\n"),
                Author::User => format!("User: {content}\n"),
                Author::Assistant => format!("Assistant: {content}\n"),
            };
        }
        text.push_str("Assistant:");
        Ok((text, "\nUser:".into()))
    }

    fn refuse_unsupported(&self) -> Result<(), Refusal> {
        for name in UNSUPPORTED {
            let value = self.value(name);
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
            if self.get::<f64>(name, "a number")?.is_some_and(|penalty| penalty != 0.0) {
                return Err(Refusal::of(name, format!("{name} is not supported")));
            }
        }
        match self.value("logit_bias") {
            None => Ok(()),
            Some(Value::Object(biases)) if biases.is_empty() => Ok(()),
            Some(_) => Err(Refusal::of("logit_bias", "logit_bias is not supported")),
        }
    }
}
