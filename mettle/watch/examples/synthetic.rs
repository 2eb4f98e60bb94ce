//! Serves the page of a synthetic run with hostile names, for viewing and for measurements.
//!
//!     cargo run -p mettle-watch --example synthetic -- 1024 10000 127.0.0.1:8441

use async_trait::async_trait;
use protocol::{Uid, Window};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    error::Error,
    time::{Duration, Instant},
};
use watch::{
    evidence::{Evidence, EvidenceError},
    page::{About, Question, Snapshot, TILE},
    sample,
    server::Page,
};

/// Evidence without a chain.
struct Nothing;

#[async_trait]
impl Evidence for Nothing {
    async fn cell(&self, uid: Uid, _: Window) -> Result<Value, EvidenceError> {
        Err(EvidenceError::NoSeat { uid })
    }

    async fn seat(&self, uid: Uid) -> Result<Value, EvidenceError> {
        Err(EvidenceError::NoSeat { uid })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let (seats, windows) = (next("1024").parse()?, next("10000").parse()?);
    let address = next("127.0.0.1:8441").parse()?;

    let observer = sample::large(seats, windows);
    let about = || About {
        name: Some("<b>synthetic</b>"),
        parameters: Some(7_000_000_000),
        text: None,
        absences: BTreeMap::new(),
        block_time: Duration::from_secs(6),
        silence: Duration::ZERO,
    };
    let began = Instant::now();
    let snapshot = Snapshot::of(&observer, &about());
    let took = began.elapsed();
    let answer = |question| snapshot.answer(question).to_string().len();
    println!(
        "{seats} seats, {windows} windows: snapshot {took:?}; bytes of an event {}, of a tile of {TILE} by {TILE} cells {}, \
         of 200 seats {}, of the curve {}",
        answer(Question::Overview),
        answer(Question::Tile { window: Window(0), uid: Uid(0) }),
        answer(Question::Seats { from: 0, limit: 200 }),
        answer(Question::Losses { from: Window(0), to: Window(u32::MAX), points: 600 }),
    );
    let page = Page::serve(address, Box::new(Nothing)).await?;
    println!("{}", page.url());
    loop {
        page.publish(Snapshot::of(&observer, &about()));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
