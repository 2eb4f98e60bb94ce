//! The routes: OpenAI's API, and a page to chat with the model.
//!
//! No authentication; the operator chooses the address, by default loopback. Prompts and answers are not logged.

use crate::{
    Served,
    answer::{Answer, Choice, Usage},
    loaded::About,
    request::{self, Endpoint, Refusal},
    worker::{Command, Event, Job},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use daemon::http::{File, Limits, ListenError, Server, files, json_response};
use futures::{Stream, StreamExt as _};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc, watch};

/// Maximum number of bodies that are parsed at once; more wait. JSON takes many times its bytes in memory.
const PARSED_AT_ONCE: usize = 4;

/// The chat page.
const FILES: &[File] = &[
    ("/", "text/html; charset=utf-8", include_str!("../assets/chat.html")),
    ("/chat.js", "text/javascript; charset=utf-8", include_str!("../assets/chat.js")),
    ("/chat.css", "text/css; charset=utf-8", include_str!("../assets/chat.css")),
    ::watch::server::ICON,
];

struct Shared {
    /// The newest model.
    served: watch::Receiver<Arc<Served>>,
    commands: mpsc::Sender<Command>,
    parser_slots: Arc<Semaphore>,
    requests: AtomicU64,
}

/// Starts to serve at `address`, with at most `requests` in progress or waiting.
pub(crate) async fn start(
    address: SocketAddr,
    requests: usize,
    served: watch::Receiver<Arc<Served>>,
    commands: mpsc::Sender<Command>,
) -> Result<Server, ListenError> {
    let parser_slots = Arc::new(Semaphore::new(PARSED_AT_ONCE));
    let shared = Shared { served, commands, parser_slots, requests: AtomicU64::new(0) };
    let complete = |endpoint| {
        post(async move |State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes| {
            complete(&shared, endpoint, &headers, body).await
        })
    };
    let router = Router::new()
        .route("/v1/completions", complete(Endpoint::Completions))
        .route("/v1/chat/completions", complete(Endpoint::Chat))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .merge(files(FILES))
        .fallback(async || {
            let message = "not found: there are /v1/models, /v1/completions and /v1/chat/completions";
            Refusal::new(StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "completions are asked for by POST, all else by GET")
        })
        .with_state(Arc::new(shared));
    Server::start("the model", address, Limits::with_requests(requests), router).await
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let about = shared.served.borrow().about.clone();
    of_model(&json!({ "object": "list", "data": [about.json()] }), &about)
}

async fn model(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let served = shared.served.borrow().clone();
    if name != served.about.name {
        return Err(request::no_such_model(&name, &served));
    }
    Ok(of_model(&served.json(), &served.about))
}

async fn complete(
    shared: &Shared,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    // A page of another site can send any other type without asking this server first.
    if kind != Some("application/json") {
        let message = "the header content-type has to be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let slot = shared.parser_slots.clone().acquire_owned().await;
    let served = shared.served.borrow().clone();
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let seed = now().as_nanos() as u64 ^ number.rotate_right(16);
    let parsed = tokio::task::spawn_blocking(move || {
        // The slot is held until the parser ends, even if the client disconnects before.
        let _slot = slot;
        request::parse(endpoint, &body, &served, seed)
    })
    .await;
    let request = parsed
        .map_err(|_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request cannot be read"))??;

    let has_logprobs = request.texts.iter().any(|text| text.logprobs.is_some());
    let (jobs, mut events): (Vec<Job>, Vec<_>) = request.texts.into_iter().map(Job::new).unzip();
    shared.commands.try_send(Command::Continue(jobs)).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => Refusal {
            code: Some("queue_full"),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many requests wait: try again later")
        },
        mpsc::error::TrySendError::Closed(_) => failed(),
    })?;
    // Headers name the answering model, which is known when the first text starts.
    let Some(Event::Started(about)) = events[0].recv().await else { return Err(failed()) };
    let answer = Answer {
        endpoint,
        id: format!(
            "{}-{:016x}",
            if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" },
            now().as_nanos() as u64
        ),
        created: now().as_secs(),
        model: about.name.clone(),
        has_logprobs,
    };
    if request.is_stream {
        let first = Event::Started(about.clone());
        let parts = stream(answer, first, events, request.stream_usage).map(Ok::<_, Infallible>);
        let body = Body::from_stream(parts);
        return Ok((model_headers(&about), [(CONTENT_TYPE, "text/event-stream")], body).into_response());
    }
    let mut choices = Vec::with_capacity(events.len());
    let mut usage = Usage::default();
    for mut events in events {
        let mut choice = Choice::default();
        while let Some(event) = events.recv().await {
            usage.add(&event);
            choice.add(event);
        }
        if !choice.is_ended() {
            return Err(failed());
        }
        choices.push(choice);
    }
    Ok(of_model(&answer.whole(&choices, usage), &about))
}

fn failed() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the model has stopped: see the server's log")
}

fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the answer as server-sent events.
fn stream(
    answer: Answer,
    first: Event,
    events: Vec<mpsc::Receiver<Event>>,
    with_usage: bool,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let texts = events.len();
    let events = events.into_iter().enumerate().map(|(index, mut events)| {
        let events = futures::stream::poll_fn(move |context| events.poll_recv(context));
        events.map(move |event| (index, event))
    });
    let events = futures::stream::iter([(0, first)]).chain(futures::stream::select_all(events));
    let mut usage = Usage::default();
    let (mut offsets, mut ended) = (vec![0; texts], 0);
    let parts = events.map(Some).chain(futures::stream::iter([None])).map(move |event| match event {
        Some((index, event)) => {
            usage.add(&event);
            let part = answer.part(index, &event, offsets[index]);
            match &event {
                Event::Part { text, .. } => offsets[index] += text.chars().count(),
                Event::Ended { .. } => ended += 1,
                Event::Started(_) if answer.endpoint == Endpoint::Completions => return String::new(),
                Event::Started(_) => {}
            }
            format!("data: {part}\n\n")
        }
        None if ended < texts => format!("data: {}\n\n", failed().json()),
        None if with_usage => format!("data: {}\n\ndata: [DONE]\n\n", answer.usage(usage)),
        None => "data: [DONE]\n\n".to_owned(),
    });
    parts.filter(|part| std::future::ready(!part.is_empty())).map(Bytes::from)
}

/// Returns an answer of this model.
fn of_model(value: &Value, about: &About) -> Response {
    (model_headers(about), json_response(StatusCode::OK, value)).into_response()
}

/// Returns headers that name the model.
fn model_headers(about: &About) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut name = |header: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(header), value);
        }
    };
    name("x-mettle-root", about.weights_root.to_string());
    if let Some(of) = &about.of_run {
        name("x-mettle-run", of.run.to_string());
        name("x-mettle-window", of.window.0.to_string());
        name("x-mettle-lineage", of.lineage.to_string());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_no_inline_script_and_writes_no_html() {
        let of = |path: &str| FILES.iter().find(|(name, _, _)| *name == path).unwrap().2;
        let html = of("/");
        assert_eq!(html.matches("<script").count(), html.matches("<script src=\"/").count());
        for forbidden in
            [" onload=", " onclick=", " onsubmit=", " style=", "javascript:", "http://", "https://"]
        {
            assert!(!html.contains(forbidden), "{forbidden} is in the page");
        }
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
        {
            assert!(!of("/chat.js").contains(forbidden), "{forbidden} is in the script");
        }
        assert!(!of("/chat.css").contains("url("));
        // Every file that the page requests is served here.
        for part in html.split(['"']).filter(|part| part.starts_with('/')) {
            assert!(FILES.iter().any(|(name, _, _)| *name == part), "{part} is not served");
        }
        // Each field has a name for a screen reader.
        let fields = ["<input", "<select", "<textarea"].map(|field| html.matches(field).count());
        assert_eq!(html.matches("<label").count(), fields.iter().sum::<usize>());
    }
}
