//! Server and worker together, over real sockets.

use super::{
    request::{self, Endpoint},
    testing::{served, served_with},
    worker::{self, Command, Event, Job},
    *,
};
use axum::http::StatusCode;
use nn::{Sampling, SamplingError};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

const WITHIN: Duration = Duration::from_secs(60);

struct Running {
    server: Server,
    commands: mpsc::Sender<Command>,
    served: Arc<Served>,
}

/// Returns a server without a worker, and the worker's end.
async fn waiting(queue: usize) -> (Running, mpsc::Receiver<Command>) {
    let served = Arc::new(served(1));
    let (commands, receiver) = mpsc::channel(queue);
    let (_, listed) = watch::channel(served.clone());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = http::start(address, 8, listed, commands.clone()).await.unwrap();
    (Running { server, commands, served }, receiver)
}

async fn running(parallel: usize) -> Running {
    let (running, receiver) = waiting(32).await;
    let served = running.served.clone();
    std::thread::spawn(move || worker::run(served, parallel, receiver).unwrap());
    running
}

#[derive(Debug)]
struct Answered {
    status: u16,
    head: String,
    body: String,
}

impl Answered {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the data of each event.
    fn events(&self) -> Vec<&str> {
        self.body
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| &event["data: ".len()..])
            .collect()
    }
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Running {
    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(&self, request: &str) -> Answered {
        read(self.send(request).await).await
    }

    async fn complete(&self, body: Value) -> Answered {
        self.ask(&post("/v1/completions", &body.to_string())).await
    }
}

async fn read(mut stream: TcpStream) -> Answered {
    let mut bytes = Vec::new();
    timeout(WITHIN, stream.read_to_end(&mut bytes)).await.expect("it answers").unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
    Answered { status, head: head.to_owned(), body }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((len, rest)) = body.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        whole += &rest[..len];
        body = &rest[len + 2..];
    }
    whole
}

/// Returns the greedy continuation of a text, up to the end of the document or the maximum number of tokens.
fn greedy(served: &Served, prompt: &str, count: usize) -> String {
    let mut made = Vec::new();
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0 };
    served
        .evaluator
        .generate(&served.tokenizer.encode(prompt).unwrap(), sampling, |token| {
            if token == served.tokenizer.end_of_document() {
                return ControlFlow::Break(());
            }
            made.push(token);
            if made.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    served.tokenizer.decode(&made).unwrap()
}

#[tokio::test]
async fn a_completion_is_the_models_text_whole_and_in_parts() {
    let running = running(4).await;
    let mut body = json!({ "model": "tiny", "prompt": "an ant", "max_tokens": 9, "temperature": 0 });
    let whole = running.complete(body.clone()).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    let expected = greedy(&running.served, "an ant", 9);
    let value = whole.json();
    assert_eq!(value["choices"][0]["text"], json!(expected));
    assert_eq!(
        (&value["object"], &value["choices"][0]["logprobs"]),
        (&json!("text_completion"), &Value::Null)
    );
    assert_eq!(value["usage"]["prompt_tokens"], json!(5), "the space and the a are one token");
    for (name, value) in [
        ("x-mettle-run", "7".to_owned()),
        ("x-mettle-window", "3".to_owned()),
        ("x-mettle-root", running.served.about.weights_root.to_string()),
        ("x-mettle-lineage", running.served.about.of_run.as_ref().unwrap().lineage.to_string()),
    ] {
        assert!(whole.head.contains(&format!("{name}: {value}")), "{name}: {}", whole.head);
    }

    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let streamed = running.complete(body).await;
    assert!(streamed.head.contains("content-type: text/event-stream"), "{}", streamed.head);
    let events = streamed.events();
    let (done, events) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (usage, parts) = events.split_last().unwrap();
    assert_eq!(usage["usage"], value["usage"]);
    let text: String = parts.iter().map(|part| part["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, expected);
    assert_eq!(parts.last().unwrap()["choices"][0]["finish_reason"], value["choices"][0]["finish_reason"]);
    assert!(parts.iter().all(|part| part["id"] == parts[0]["id"]));
}

#[tokio::test]
async fn a_chat_is_the_continuation_of_its_template() {
    let running = running(2).await;
    let mut body = json!({
        "model": "tiny", "max_tokens": 5, "temperature": 0, "logprobs": true, "top_logprobs": 2,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a" }] }],
    });
    let whole = running.ask(&post("/v1/chat/completions", &body.to_string())).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    let choice = &whole.json()["choices"][0];
    let expected = greedy(&running.served, "User: a\nAssistant:", 5);
    assert_eq!(choice["message"], json!({ "role": "assistant", "content": expected.trim_start() }));
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2), "{tokens:?}");
    assert_eq!(tokens[0]["logprob"], tokens[0]["top_logprobs"][0]["logprob"]);

    body["stream"] = json!(true);
    let streamed = running.ask(&post("/v1/chat/completions", &body.to_string())).await;
    let events = streamed.events();
    assert_eq!(*events.last().unwrap(), "[DONE]");
    let parts: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String =
        parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, expected.trim_start());
}

#[tokio::test]
async fn an_echo_has_the_log_likelihoods_of_its_tokens() {
    let running = running(2).await;
    let tokens = running.served.tokenizer.encode("an ant and a bee").unwrap();
    for max_tokens in [0, 1] {
        let body = json!({
            "model": "tiny", "prompt": [tokens, tokens[..3]], "max_tokens": max_tokens, "temperature": 0,
            "logprobs": 1, "echo": true, "seed": 1234,
        });
        let answered = running.complete(body).await.json();
        assert_eq!(answered["choices"].as_array().unwrap().len(), 2, "{answered}");
        let logprobs = &answered["choices"][0]["logprobs"];
        let each: Vec<Option<f64>> = serde_json::from_value(logprobs["token_logprobs"].clone()).unwrap();
        assert_eq!((each[0], each.len()), (None, tokens.len() + max_tokens));
        let evaluator = &running.served.evaluator;
        let expected = evaluator.likelihood(&tokens[..4], &tokens[4..]).unwrap();
        let sum: f64 = each[4..tokens.len()].iter().map(|log| log.unwrap()).sum();
        assert!((sum / expected.log_likelihood - 1.0).abs() < 1e-5, "{sum} {expected:?}");
        // lm-eval determines in this way whether each token was the likeliest.
        let is_greedy = (4..tokens.len()).all(|at| {
            let top = logprobs["top_logprobs"][at].as_object().unwrap();
            top.len() == 1 && top.values().next().unwrap().as_f64() == each[at]
        });
        assert_eq!(is_greedy, expected.is_greedy);
        let text = answered["choices"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("an ant and a bee"), "{text}");
        assert_eq!(logprobs["text_offset"][1], 1);
    }
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_also_where_it_spans_tokens() {
    let running = running(2).await;
    let whole = greedy(&running.served, "an ant", 24);
    let stop: String = whole.chars().skip(2).take(3).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    for stream in [false, true] {
        let body = json!({
            "model": "tiny", "prompt": "an ant", "max_tokens": 24, "temperature": 0, "stop": [stop, "xyzzy"],
            "stream": stream,
        });
        let answered = running.complete(body).await;
        if !stream {
            let choice = &answered.json()["choices"][0];
            assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(expected), &json!("stop")));
            continue;
        }
        let events = answered.events();
        let parts =
            events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
        let text: String =
            parts.map(|part| part["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn requests_at_once_are_answered_as_if_alone() {
    let running = Arc::new(running(3).await);
    let body = |index: usize| {
        json!({
            "model": "tiny", "prompt": "bee ant ".repeat(index % 4 + 1), "max_tokens": 20 + index, "seed": index,
            "temperature": 1.5, "logprobs": 3,
        })
    };
    let mut alone = Vec::new();
    for index in 0..8 {
        alone.push(running.complete(body(index)).await.json()["choices"].clone());
    }
    let together = (0..8).map(|index| {
        let (running, body) = (running.clone(), body(index));
        tokio::spawn(async move { running.complete(body).await.json()["choices"].clone() })
    });
    let together = futures::future::join_all(together.collect::<Vec<_>>()).await;
    for (alone, together) in alone.into_iter().zip(together) {
        assert_eq!(together.unwrap(), alone, "the bits of the log-probabilities too");
    }
}

#[tokio::test]
async fn hostile_requests_are_refused_in_the_form_of_openai() {
    let running = running(2).await;
    let ask = async |path: &str, body: &str| running.ask(&post(path, body)).await;
    let mut cases: Vec<(String, u16)> = Vec::new();
    let mut with = |field: &str, value: &str| {
        cases.push((format!(r#"{{"model": "tiny", "prompt": "a", "{field}": {value}}}"#), 400));
    };
    with("temperature", "NaN");
    with("temperature", "1e999");
    with("temperature", "-1");
    with("temperature", "\"hot\"");
    with("top_p", "0");
    with("max_tokens", "-1");
    with("max_tokens", "1.5");
    with("max_tokens", "1e30");
    with("logprobs", "21");
    with("logprobs", "true");
    with("seed", "\"x\"");
    with("n", "2");
    with("best_of", "2");
    with("stream", "1");
    with("stream_options", "[]");
    with("stop", "[1]");
    with("stop", "\"\"");
    with("stop", &format!("\"{}\"", "x".repeat(1000)));
    with("stop", &json!(vec!["x"; 10_000]).to_string());
    with("suffix", "\"x\"");
    with("logit_bias", r#"{"5": 100}"#);
    with("presence_penalty", "0.5");
    for prompt in
        ["7", "[]", "{}", "[31]", "[4294967296]", "[-1]", "[1.5]", "[[1], \"a\", null]", "[[1], [[2]]]"]
    {
        cases.push((format!(r#"{{"model": "tiny", "prompt": {prompt}}}"#), 400));
    }
    cases.push((json!({ "model": "tiny", "prompt": vec![vec![1]; 65] }).to_string(), 400));
    cases.push((json!({ "model": "tiny", "prompt": vec![1; 65] }).to_string(), 400));
    cases.push(("nothing".into(), 400));
    cases.push((String::new(), 400));
    cases.push(("[1]".into(), 400));
    cases.push((format!("{}{}", "[".repeat(5000), "]".repeat(5000)), 400));
    cases.push((r#"{"prompt": "a"}"#.into(), 400));
    cases.push((r#"{"model": "other", "prompt": "a"}"#.into(), 404));
    cases.push((json!({ "model": "tiny", "prompt": "x".repeat(6 << 20) }).to_string(), 413));
    for (body, status) in &cases {
        let answered = ask("/v1/completions", body).await;
        let shown: String = body.chars().take(90).collect();
        assert_eq!(answered.status, *status, "{shown}: {}", answered.body);
        let error = &answered.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{shown}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    let long = ask("/v1/completions", &json!({ "model": "tiny", "prompt": vec![1; 65] }).to_string()).await;
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    for messages in [
        "[]",
        "7",
        r#"[{"role": "user"}]"#,
        r#"[{"role": "root", "content": "a"}]"#,
        "[7]",
        r#"[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]"#,
    ] {
        let answered =
            ask("/v1/chat/completions", &format!(r#"{{"model": "tiny", "messages": {messages}}}"#)).await;
        assert_eq!(
            (answered.status, &answered.json()["error"]["param"]),
            (400, &json!("messages")),
            "{messages}"
        );
    }

    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (request, status) in [
        (get("/nothing"), 404),
        (get("/v1/completions"), 405),
        (post("/v1/models", "{}"), 405),
        (get("/v1/models/other"), 404),
        (get("/v1/models").replace("localhost", "evil.example"), 421),
        (post("/v1/completions", "{}").replace("application/json", "text/plain"), 415),
    ] {
        let answered = running.ask(&request).await;
        let shown: String = request.chars().take(60).collect();
        assert_eq!(answered.status, status, "{shown}: {answered:?}");
    }
    let page = running.ask(&get("/")).await;
    assert!(page.status == 200 && page.body.contains("/chat.js"), "{page:?}");
    assert!(
        page.head.contains("content-security-policy: default-src 'none'; script-src 'self';"),
        "{}",
        page.head
    );
    // The server still works.
    let models = running.ask(&get("/v1/models")).await.json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["mettle"]["window"], 3);
    assert_eq!(running.ask(&get("/v1/models/tiny")).await.json(), models["data"][0]);
    let answered = running.complete(json!({ "model": "tiny", "prompt": null, "n": 1, "user": "me" })).await;
    assert_eq!(answered.status, 200, "{answered:?}");
}

#[tokio::test]
async fn too_many_requests_are_told_to_come_back_and_the_others_are_answered() {
    let (running, receiver) = waiting(1).await;
    let body = json!({ "model": "tiny", "prompt": "a", "max_tokens": 2 });
    let first = running.send(&post("/v1/completions", &body.to_string())).await;
    while running.commands.capacity() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = running.complete(body).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    let served = running.served.clone();
    std::thread::spawn(move || worker::run(served, 1, receiver).unwrap());
    assert_eq!(read(first).await.status, 200);
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_its_text() {
    let (running, mut receiver) = waiting(4).await;
    for stream in [false, true] {
        let body = json!({ "model": "tiny", "prompt": "a", "max_tokens": 60, "stream": stream });
        let client = running.send(&post("/v1/completions", &body.to_string())).await;
        let Some(Command::Continue(jobs)) = receiver.recv().await else { panic!("no text") };
        jobs[0]
            .events
            .try_send(Event::Started(running.served.about.clone()))
            .unwrap_or_else(|_| panic!("room"));
        drop(client);
        timeout(WITHIN, jobs[0].events.closed())
            .await
            .expect("the worker ends the text of a client that is gone");
    }
}

#[tokio::test]
async fn a_worker_that_dies_is_told_to_the_clients() {
    let (running, mut receiver) = waiting(4).await;
    for stream in [false, true] {
        let body = json!({ "model": "tiny", "prompt": "a", "stream": stream });
        let client = running.send(&post("/v1/completions", &body.to_string())).await;
        let Some(Command::Continue(jobs)) = receiver.recv().await else { panic!("no text") };
        jobs[0]
            .events
            .try_send(Event::Started(running.served.about.clone()))
            .unwrap_or_else(|_| panic!("room"));
        drop(jobs);
        let answered = read(client).await;
        assert!(answered.body.contains("the model has stopped"), "{answered:?}");
        assert!(!answered.body.contains("[DONE]"));
        assert_eq!(answered.status, if stream { 200 } else { 503 });
    }
    drop(receiver);
    assert_eq!(running.complete(json!({ "model": "tiny", "prompt": "a" })).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_its_request_slowly_is_let_go() {
    let (running, _receiver) = waiting(4).await;
    let whole = post("/v1/completions", r#"{"model": "tiny", "prompt": "a"}"#);
    for sent in [5, whole.len() - 5] {
        let mut client = running.send(&whole[..sent]).await;
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // A reset is equivalent to an end.
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty() && Duration::from_secs(29) < began.elapsed());
    }
}

#[tokio::test]
async fn a_new_model_answers_later_requests_and_earlier_ones_keep_theirs() {
    let (old, new) = (Arc::new(served(1)), Arc::new(served(2)));
    let (commands, receiver) = mpsc::channel(8);
    let job = |served: &Served, prompt: &str| {
        let body =
            json!({ "model": "tiny", "prompt": prompt, "max_tokens": 40, "temperature": 0 }).to_string();
        let request = request::parse(Endpoint::Completions, body.as_bytes(), served, 0).unwrap();
        Job::new(request.texts.into_iter().next().unwrap())
    };
    // A client that reads nothing.
    let (unread, _events) = job(&old, "an ant");
    commands.try_send(Command::Continue(vec![unread])).unwrap_or_else(|_| panic!("room"));
    let (jobs, events): (Vec<Job>, Vec<_>) = (0..5).map(|_| job(&old, "an ant")).unzip();
    for (index, job) in jobs.into_iter().enumerate() {
        if index == 3 {
            commands.try_send(Command::Swap(new.clone())).unwrap_or_else(|_| panic!("room"));
        }
        commands.try_send(Command::Continue(vec![job])).unwrap_or_else(|_| panic!("room"));
    }
    let worker = {
        let old = old.clone();
        std::thread::spawn(move || worker::run(old, 2, receiver))
    };
    for (index, mut events) in events.into_iter().enumerate() {
        let expected = if index < 3 { &old } else { &new };
        let Some(Event::Started(about)) = events.recv().await else { panic!("not started") };
        assert!(Arc::ptr_eq(&about, &expected.about), "text {index}");
        let mut text = String::new();
        let mut ended = false;
        while let Some(event) = events.recv().await {
            match event {
                Event::Part { text: part, .. } => text += &part,
                Event::Ended { .. } => ended = true,
                Event::Started(_) => panic!("started twice"),
            }
        }
        assert!(ended);
        assert_eq!(text, greedy(expected, "an ant", 40));
    }
    assert_eq!(Arc::strong_count(&old), 1, "the worker and its events hold the old model no more");
    drop(commands);
    worker.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_drains_finishes_what_it_accepted() {
    let (running, receiver) = waiting(4).await;
    let body = json!({ "model": "tiny", "prompt": "a", "max_tokens": 5 });
    let client = running.send(&post("/v1/completions", &body.to_string())).await;
    while running.commands.capacity() == 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A browser opens connections that it may need later.
    let idle = TcpStream::connect(running.server.address()).await.unwrap();
    let Running { server, served, .. } = running;
    let address = server.address();
    let drained = tokio::spawn(server.drain());
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!drained.is_finished());
    std::thread::spawn(move || worker::run(served, 1, receiver).unwrap());
    assert_eq!(read(client).await.status, 200);
    timeout(Duration::from_secs(10), drained)
        .await
        .expect("an idle connection does not hold it")
        .unwrap()
        .unwrap();
    drop(idle);
}

#[test]
fn fields_of_a_request_are_read_and_cut_to_the_context() {
    let served = served(1);
    let parse =
        |body: Value| request::parse(Endpoint::Completions, body.to_string().as_bytes(), &served, 9).unwrap();
    let texts = |body| parse(body).texts;
    let text = &texts(json!({ "model": "tiny", "prompt": "an ant", "max_tokens": 1000, "seed": -1 }))[0];
    assert_eq!(text.prompt, served.tokenizer.encode("an ant").unwrap());
    assert_eq!((text.max_tokens, text.sampling.seed), (64 + 1 - 5, u64::MAX));
    let text = &texts(json!({ "model": "tiny" }))[0];
    assert_eq!((&text.prompt[..], text.max_tokens, text.sampling.seed), (&[0][..], 16, 9));
    let of_ids = texts(json!({ "model": "tiny", "prompt": [[3, 4], [5]], "echo": true, "stop": "x" }));
    assert_eq!((&of_ids[0].prompt[..], &of_ids[1].prompt[..]), (&[3, 4][..], &[5][..]));
    assert_eq!((of_ids[0].echo.as_deref(), &of_ids[0].stops[..]), (Some("cd"), &["x".to_owned()][..]));
    // The whole context, and one token behind it.
    assert_eq!(texts(json!({ "model": "tiny", "prompt": vec![3; 64], "max_tokens": 5 }))[0].max_tokens, 1);
    assert!(
        parse(json!({ "model": "tiny", "stream": true, "stream_options": { "include_usage": true } }))
            .stream_usage
    );

    let chat = json!({
        "model": "tiny", "max_completion_tokens": 3, "messages": [
            { "role": "system", "content": "s" }, { "role": "user", "content": "u" },
            { "role": "assistant", "content": "a" }, { "role": "user", "content": "v" },
        ],
    });
    let request = request::parse(Endpoint::Chat, chat.to_string().as_bytes(), &served, 0).unwrap();
    let template = "s\n\nUser: u\nAssistant: a\nUser: v\nAssistant:";
    assert_eq!(request.texts[0].prompt, served.tokenizer.encode(template).unwrap());
    assert_eq!((&request.texts[0].stops[..], request.texts[0].max_tokens), (&["\nUser:".to_owned()][..], 3));
    // Each prompt and its continuation have 256 + 1 tokens, 15 likeliest beside each: 259,056 and 263,168 tokens.
    let long = served_with(1, 256);
    let parse = |prompts: usize, is_echo: bool| {
        let body = json!({
            "model": "tiny", "prompt": vec![vec![3; 32]; prompts], "max_tokens": 1000, "logprobs": 15, "echo": is_echo,
        });
        request::parse(Endpoint::Completions, body.to_string().as_bytes(), &long, 0)
    };
    assert_eq!(parse(63, true).unwrap().texts.len(), 63);
    let refusal = parse(64, true).unwrap_err();
    assert_eq!((refusal.status, refusal.param), (StatusCode::BAD_REQUEST, Some("logprobs")));
    assert!(parse(64, false).is_ok(), "a prompt that is not repeated has no log-probabilities");
    let too_hot =
        request::parse(Endpoint::Completions, br#"{"model": "tiny", "temperature": 101}"#, &served, 0);
    let refusal = too_hot.unwrap_err();
    assert_eq!(refusal.param, Some("temperature"));
    assert_eq!(refusal.message, SamplingError::Temperature { value: 101.0 }.to_string());
}
