//! The page in a real browser, over DevTools on a pipe: a large run with hostile names, overview and timeline.
#![cfg(unix)]

use async_trait::async_trait;
use protocol::{Uid, Window};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use watch::{
    evidence::{Evidence, EvidenceError},
    page::{About, Snapshot},
    sample,
    server::Page,
};

/// Scrolls over all seats and windows in 300 steps, one frame each, and measures. Reading a pixel waits for the
/// drawing.
const SCROLL: &str = "(async () => {
    const [paints, gaps, box] = [[], [], timeline.scroller];
    const paint = timeline.paint.bind(timeline);
    timeline.paint = () => {
        const began = performance.now();
        paint();
        timeline.canvas.getContext('2d').getImageData(0, 0, 1, 1);
        paints.push(performance.now() - began);
    };
    timeline.zoom = ZOOM;
    timeline.follows = false;
    timeline.resize();
    performance.setResourceTimingBufferSize(5000);
    performance.clearResourceTimings();
    let last = performance.now();
    for (let step = 0; step < 300; step += 1) {
        box.scrollLeft = (box.scrollWidth / 300) * step;
        box.scrollTop = (box.scrollHeight / 300) * step;
        await new Promise(requestAnimationFrame);
        gaps.push(performance.now() - last);
        last = performance.now();
    }
    timeline.paint = paint;
    const tiles = performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/tile'));
    const part = (all, share) => all.sort((a, b) => a - b)[Math.floor(all.length * share)];
    return { paint_ms: [part(paints, 0.5), part(paints, 0.99)], frame_ms: [part(gaps, 0.5), part(gaps, 0.99)],
        tiles: tiles.length, bytes: tiles.reduce((sum, one) => sum + one.decodedBodySize, 0),
        cells: Math.round((box.clientWidth - timeline.gutter) / timeline.width) * Math.round(box.clientHeight / 18) };
})()";

const WITHIN: Duration = Duration::from_secs(60);

/// Answers with HTML in every text.
struct Hostile;

#[async_trait]
impl Evidence for Hostile {
    async fn cell(&self, uid: Uid, window: Window) -> Result<Value, EvidenceError> {
        let html = "<img src=x onerror=\"document.title='broken into'\">";
        Ok(json!({
            "uid": uid, "window": window, "role": "miner", "endpoint": html, "commitment": html,
            "steps": [{ "name": "commitment", "verdict": "good", "text": html, "known_from_window": null }],
            "advice": [html], "attestations": [{ "validator": 0, "stake": html, "verdict": "valid" }],
            "receipts": [{ "validator": 0, "digest": html, "says": html }],
        }))
    }

    async fn seat(&self, uid: Uid) -> Result<Value, EvidenceError> {
        Err(EvidenceError::NoSeat { uid })
    }
}

/// A browser with one page, driven over two named pipes.
struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    id: u32,
}

impl Browser {
    fn start(program: &str, directory: &Path) -> Browser {
        let [to, from] = ["to", "from"].map(|name| directory.join(name));
        assert!(Command::new("mkfifo").args([&to, &from]).status().expect("mkfifo is everywhere").success());
        let process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\"", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", directory.join("profile").display()))
            .env("TO", &to)
            .env("FROM", &from)
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser was found");
        let to = File::options().write(true).open(to).expect("the shell reads it");
        let from = BufReader::new(File::open(from).expect("the shell writes it"));
        Browser { process, to, from, session: None, id: 0 }
    }

    fn send(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut message = json!({ "id": self.id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        write!(self.to, "{message}\0").expect("the browser runs");
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).expect("the browser runs");
            let whole = answer.strip_suffix(&[0]).expect("the browser runs");
            let answer: Value = serde_json::from_slice(whole).expect("DevTools speaks JSON");
            assert_ne!(answer["method"], "Page.javascriptDialogOpening", "a name ran as a script");
            if answer["id"] == self.id {
                return answer["result"].clone();
            }
        }
    }

    fn open(&mut self, url: &str) {
        let target = self.send("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = self.send("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        self.send("Page.enable", json!({}));
        let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        self.send("Emulation.setDeviceMetricsOverride", size);
        self.send("Page.navigate", json!({ "url": url }));
    }

    fn value(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        self.send("Runtime.evaluate", params)["result"]["value"].clone()
    }

    /// Evaluates a script until it is true.
    async fn until(&mut self, script: &str) {
        let began = Instant::now();
        while self.value(script) != true {
            assert!(began.elapsed() < WITHIN, "never: {script}\n{}", self.value("document.body.innerText"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[ignore = "needs Chromium"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_a_large_run_and_runs_no_script_of_a_stranger() {
    let page = Page::serve(SocketAddr::from(([127, 0, 0, 1], 0)), Box::new(Hostile)).await.unwrap();
    let about = About {
        name: Some("<script>document.title='broken into'</script>"),
        parameters: None,
        text: None,
        absences: BTreeMap::new(),
        block_time: Duration::from_secs(6),
        silence: Duration::ZERO,
    };
    page.publish(Snapshot::of(&sample::large(1_024, 10_000), &about));

    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start("chromium", directory.path());
    browser.open(&page.url());
    browser.until("document.querySelectorAll('#seats tbody tr').length === 51").await;
    browser.until("document.getElementById('live').textContent === 'live'").await;
    browser.until("document.getElementById('title').textContent.includes('<script>')").await;
    browser
        .until("document.getElementById('seats').textContent.includes('<img src=x onerror=alert(1)>')")
        .await;
    browser.until("document.querySelector('#chart canvas') !== null").await;

    browser.value("location.hash = '#/timeline'");
    browser.until("timeline && timeline.seats.length === 1024 && 0 < timeline.tiles.tiles.size").await;
    // The cursor begins beside the last window, which is open.
    for key in ["ArrowLeft", "ArrowLeft", "Enter"] {
        let event = format!("new KeyboardEvent('keydown', {{ key: '{key}' }})");
        browser.value(&format!("timeline.scroller.dispatchEvent({event})"));
    }
    browser.until("document.getElementById('cursor').textContent.includes('window 9998')").await;
    browser.until("document.getElementById('panel-body').textContent.includes('<img src=x')").await;
    // Tiles outside the screen are not fetched.
    browser.until("timeline.tiles.tiles.size <= 12").await;

    browser.value("closePanel()");
    for zoom in ["0", "3"] {
        let measured = browser.value(&SCROLL.replace("ZOOM", zoom));
        println!("scrolling, zoom {zoom}: {measured}");
        let (tiles, bytes) = (measured["tiles"].as_u64().unwrap(), measured["bytes"].as_u64().unwrap());
        assert!(0 < tiles && bytes <= 5_000 * tiles, "{measured}");
    }

    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0, "a text became an element");
    assert_eq!(browser.value("document.title === 'broken into'"), false);
    let inline = "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = true'; \
                  document.body.append(s); return Boolean(window.ran); })()";
    assert_eq!(browser.value(inline), false, "the policy lets an inline script run");
}
