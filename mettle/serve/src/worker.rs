//! The compute thread: it reads prompts part by part, and continues all texts together, token by token.
//!
//! A new text joins at the next step. Other texts do not change a bit of it: with the same seed it continues with the
//! same tokens, alone or in a batch. A new model takes over when no text is being continued.

use crate::{
    ServeError,
    answer_text::{AnswerText, token_text},
    loaded::{About, Served},
    request::Text,
};
use nn::{LogProbabilities, ModelError, Sampler, Session};
use std::{collections::VecDeque, sync::Arc};
use tokio::sync::mpsc;

/// Number of prompt tokens that are read between two steps of the other texts.
const PROMPT_PART: usize = 64;

/// A command for the worker.
pub(super) enum Command {
    /// Continues the texts of a request.
    Continue(Vec<Job>),
    /// Continues all later texts with this model, of the same shape.
    Swap(Arc<Served>),
}

/// A text, and the channel for its continuation.
pub(super) struct Job {
    pub text: Text,
    /// The worker abandons a text whose receiver is dropped.
    pub events: mpsc::Sender<Event>,
}

impl Job {
    /// Creates a job and the receiver of its events. The channel has room for all of them: a slow receiver delays
    /// nothing.
    pub fn new(text: Text) -> (Job, mpsc::Receiver<Event>) {
        // The first event, the prompt's parts, a token each, and the last.
        let room = 2 + text.prompt.len().div_ceil(PROMPT_PART) + text.max_tokens + 1;
        let (events, receiver) = mpsc::channel(room);
        (Job { text, events }, receiver)
    }
}

/// An event in the continuation of a text.
#[derive(Clone)]
pub(super) enum Event {
    /// The text is being continued with this model.
    Started(Arc<About>),
    /// Text that follows the last part, and its tokens.
    Part { text: String, tokens: Vec<TokenInfo> },
    /// The last event. Without it, the worker has failed.
    Ended { why: Finish, prompt_tokens: usize, made_tokens: usize },
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenInfo {
    pub text: String,
    /// Logarithm of the probability, in nats. `None` for the first token of a prompt, which has no predecessor.
    pub log_probability: Option<f64>,
    /// The likeliest tokens at this position.
    pub likeliest: Vec<(String, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The document ended, or a stop string was generated.
    Stop,
    /// It has the requested number of tokens, or the context is full.
    Length,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// Continues texts until all senders of commands are dropped.
///
/// # Errors
/// If the device or the tokenizer fails.
pub(super) fn run(
    mut served: Arc<Served>,
    texts_max: usize,
    mut commands: mpsc::Receiver<Command>,
) -> Result<(), ServeError> {
    let mut waiting: VecDeque<Job> = VecDeque::new();
    let mut next: Option<Arc<Served>> = None;
    let mut active: Vec<Active> = Vec::new();
    loop {
        while active.len() < texts_max {
            if let Some(job) = waiting.pop_front() {
                if !job.events.is_closed() {
                    active.push(Active::start(job, &served)?);
                }
            } else if next.is_some() {
                if !active.is_empty() {
                    break;
                }
                served = next.take().unwrap_or(served);
            } else {
                let command = match active.is_empty() {
                    true => commands.blocking_recv(),
                    false => commands.try_recv().ok(),
                };
                match command {
                    Some(Command::Continue(jobs)) => waiting.extend(jobs),
                    Some(Command::Swap(model)) => next = Some(model),
                    None if active.is_empty() => return Ok(()),
                    None => break,
                }
            }
        }
        step(&served, &mut active)?;
        active.retain(|text| !text.is_over());
    }
}

/// Reads a part of one prompt, and one token of each text whose prompt is complete.
fn step(served: &Served, active: &mut [Active]) -> Result<(), ServeError> {
    if let Some(text) = active.iter_mut().find(|text| text.is_reading()) {
        text.read_part(served)?;
    }
    let evaluator = &served.evaluator;
    let mut next: Vec<&mut Active> = active.iter_mut().filter(|text| text.is_waiting_for_step()).collect();
    let mut steps: Vec<(&mut Session, u32)> =
        next.iter_mut().filter_map(|text| text.token.map(|token| (&mut text.session, token))).collect();
    let logits = evaluator.step(&mut steps)?;
    for (text, logits) in next.into_iter().zip(logits.chunks_exact(evaluator.config().vocab)) {
        text.sample(served, logits)?;
    }
    Ok(())
}

/// A text in progress.
struct Active {
    job: Job,
    session: Session,
    sampler: Sampler,
    /// Number of prompt tokens that were read.
    read: usize,
    /// The sampled token that was not read yet.
    token: Option<u32>,
    made: usize,
    answer: AnswerText,
    filter: StopFilter,
    /// Tokens whose text was not sent yet.
    unsent: Vec<TokenInfo>,
    is_ended: bool,
}

impl Active {
    fn start(job: Job, served: &Served) -> Result<Active, ServeError> {
        let Text { prompt, max_tokens, sampling, stops, trims_start, .. } = &job.text;
        let mut text = Active {
            session: served.evaluator.session(prompt.len() + max_tokens),
            sampler: Sampler::new(*sampling).map_err(ModelError::from)?,
            read: 0,
            token: None,
            made: 0,
            answer: AnswerText::after(prompt, &served.tokenizer),
            filter: StopFilter::new(stops.clone(), *trims_start),
            unsent: Vec::new(),
            is_ended: false,
            job,
        };
        text.send(Event::Started(served.about.clone()));
        if let Text { echo: Some(echo), prompt, logprobs, .. } = &text.job.text {
            let first = logprobs.map(|count| TokenInfo::new(served, prompt[0], None, count)).transpose()?;
            text.send(Event::Part { text: echo.clone(), tokens: first.into_iter().collect() });
        }
        if text.job.text.max_tokens == 0 && !text.wants_prompt_logprobs() {
            text.end(Finish::Length);
        }
        Ok(text)
    }

    fn wants_prompt_logprobs(&self) -> bool {
        self.job.text.echo.is_some() && self.job.text.logprobs.is_some()
    }

    /// Returns whether its last event was sent or its receiver is dropped.
    fn is_over(&self) -> bool {
        self.is_ended || self.job.events.is_closed()
    }

    fn is_reading(&self) -> bool {
        !self.is_over() && self.read < self.job.text.prompt.len()
    }

    fn is_waiting_for_step(&self) -> bool {
        !self.is_over() && self.token.is_some()
    }

    /// Reads the next part of the prompt; after the last part, samples the first token.
    fn read_part(&mut self, served: &Served) -> Result<(), ServeError> {
        let Text { prompt, logprobs, max_tokens, .. } = &self.job.text;
        // Without a cache, each part would reread all earlier ones.
        let part = if self.session.is_cached() { PROMPT_PART } else { prompt.len() };
        let end = prompt.len().min(self.read + part);
        let tokens = &prompt[self.read..end];
        let vocab = served.vocab();
        let last = match (*logprobs, self.wants_prompt_logprobs()) {
            (Some(count), true) => {
                let logits = served.evaluator.read_each(&mut self.session, tokens)?;
                let targets = &prompt[self.read + 1..(end + 1).min(prompt.len())];
                let rows = logits.chunks_exact(vocab).zip(targets);
                let infos: Result<Vec<TokenInfo>, ServeError> = rows
                    .map(|(logits, target)| TokenInfo::new(served, *target, Some(logits), count))
                    .collect();
                self.send(Event::Part { text: String::new(), tokens: infos? });
                logits[logits.len() - vocab..].to_vec()
            }
            _ => served.evaluator.read(&mut self.session, tokens)?,
        };
        let (is_last, max_tokens) = (end == prompt.len(), *max_tokens);
        self.read = end;
        match is_last {
            true if max_tokens == 0 => self.end(Finish::Length),
            true => self.sample(served, &last)?,
            false => {}
        }
        Ok(())
    }

    /// Samples the next token, and sends the text that has become certain.
    fn sample(&mut self, served: &Served, logits: &[f32]) -> Result<(), ServeError> {
        let token = self.sampler.next(logits);
        self.made += 1;
        if let Some(count) = self.job.text.logprobs {
            self.unsent.push(TokenInfo::new(served, token, Some(logits), count)?);
        }
        let is_end = token == served.tokenizer.end_of_document();
        let is_last = is_end || self.made == self.job.text.max_tokens;
        if !is_end {
            self.answer.push(token);
        }
        let text = self.answer.text(&served.tokenizer, is_last)?;
        let (mut text, is_stopped) = self.filter.push(&text);
        if is_last && !is_stopped {
            text += &self.filter.rest();
        }
        if !text.is_empty() || is_last || is_stopped {
            let tokens = std::mem::take(&mut self.unsent);
            self.send(Event::Part { text, tokens });
        }
        self.token = Some(token);
        if is_stopped || is_end {
            self.end(Finish::Stop);
        } else if is_last {
            self.end(Finish::Length);
        }
        Ok(())
    }

    fn end(&mut self, why: Finish) {
        self.is_ended = true;
        let prompt_tokens = self.job.text.prompt.len();
        self.send(Event::Ended { why, prompt_tokens, made_tokens: self.made });
    }

    /// Sends an event; the channel has room for all. If the receiver is dropped, the next step abandons the text.
    fn send(&self, event: Event) {
        let _ = self.job.events.try_send(event);
    }
}

impl TokenInfo {
    fn new(
        served: &Served,
        token: u32,
        logits: Option<&[f32]>,
        count: usize,
    ) -> Result<TokenInfo, ServeError> {
        let text = |token: u32| match logits {
            Some(_) => token_text(token, &served.tokenizer),
            // It has no predecessor.
            None => served.tokenizer.decode(&[token]),
        };
        let log_probabilities = logits.map(LogProbabilities::new);
        let likeliest = match &log_probabilities {
            Some(of) => of.likeliest(count),
            None => Vec::new(),
        };
        let named = likeliest.into_iter().map(|(token, log)| Ok((text(token)?, log)));
        Ok(TokenInfo {
            text: text(token)?,
            log_probability: log_probabilities.map(|of| of.of(token)),
            likeliest: named.collect::<Result<_, ServeError>>()?,
        })
    }
}

/// Holds back text that may be the beginning of a stop string.
struct StopFilter {
    stops: Vec<String>,
    held: String,
    trims_start: bool,
}

impl StopFilter {
    fn new(stops: Vec<String>, trims_start: bool) -> StopFilter {
        StopFilter { stops, held: String::new(), trims_start }
    }

    /// Adds text. Returns the text in which no stop string can begin any more, and whether a stop string was
    /// completed.
    fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (self.rest(), true);
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let held = self.held.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(held);
        let text = std::mem::replace(&mut self.held, rest);
        (self.trimmed(text), false)
    }

    /// Returns the held-back text when the text ends without a stop string.
    fn rest(&mut self) -> String {
        let text = std::mem::take(&mut self.held);
        self.trimmed(text)
    }

    /// Trims text. A stop string may begin with white space, so text is trimmed after the search.
    fn trimmed(&mut self, text: String) -> String {
        if !self.trims_start {
            return text;
        }
        let text = text.trim_start().to_owned();
        self.trims_start = text.is_empty();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(stops: &[&str], parts: &[&str]) -> (Vec<String>, bool) {
        let mut filter = StopFilter::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), false);
        let mut sent = Vec::new();
        for part in parts {
            let (text, is_stopped) = filter.push(part);
            sent.push(text);
            if is_stopped {
                return (sent, true);
            }
        }
        sent.push(filter.rest());
        (sent, false)
    }

    #[test]
    fn text_is_held_back_only_while_a_stop_string_may_begin_in_it() {
        assert_eq!(filtered(&[], &["ab", "c"]), (vec!["ab".into(), "c".into(), "".into()], false));
        assert_eq!(
            filtered(&["xyz"], &["ax", "y", "a", "xy"]),
            (vec!["a".into(), "".into(), "xya".into(), "".into(), "xy".into()], false)
        );
        assert_eq!(filtered(&["xyz"], &["axx", "y", "zb"]), (vec!["ax".into(), "".into(), "".into()], true));
        // The first one in the text counts, not the first one in the list.
        assert_eq!(filtered(&["c", "b"], &["abc"]), (vec!["a".into()], true));
        assert_eq!(filtered(&["é!"], &["aé", "é!"]), (vec!["a".into(), "é".into()], true));
    }

    #[test]
    fn white_space_before_the_first_word_is_left_out_where_it_is_the_template_s() {
        let mut filter = StopFilter::new(Vec::new(), true);
        assert_eq!(filter.push(" ").0, "");
        assert_eq!(filter.push("\n a ").0, "a ");
        assert_eq!(filter.push(" b").0, " b");
        // The answer consists only of the user's next line.
        let mut filter = StopFilter::new(vec!["\nUser:".into()], true);
        assert_eq!(filter.push(" \n"), ("".into(), false));
        assert_eq!(filter.push("User: a"), ("".into(), true));
        let mut filter = StopFilter::new(vec!["\nUser:".into()], true);
        assert_eq!(filter.push("\nUs"), ("".into(), false));
        assert_eq!(filter.rest(), "Us");
    }
}
