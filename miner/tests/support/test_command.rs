//! The program of `[train] engine = "command"` for tests: a test program, started again. It follows the contract of
//! `docs/trainers.md`, computes by the CPU's engine, and fails on request.

use miner::command::SOCKET;
use model::{ModelConfig, Recipe};
use nn::{
    Device, StepParams,
    engine::{self, Engine},
};
use serde_json::{Value, json};
use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

/// The test that calls [`run`] in each test program, in any module.
pub const TEST: &str = "the_process_that_trains";
/// The variable with the command's fault, if it has one: `hang gradients`.
const FAULT: &str = "TRAINER_FAULT";

/// Returns the program and arguments that start this test program as a command with this fault.
pub fn program(fault: &str) -> Vec<String> {
    let this = std::env::current_exe().unwrap().display().to_string();
    let fault = format!("{FAULT}={fault}");
    ["env", &fault, "RAYON_NUM_THREADS=1", &this, TEST, "--include-ignored", "--nocapture"]
        .map(str::to_owned)
        .to_vec()
}

/// Serves the miner that started this process until the miner closes the socket, and ends the process. Returns if the
/// process was not started by a miner.
pub fn run() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let fault = std::env::var(FAULT).unwrap_or_default();
    println!("the command runs: {fault}");
    if fault == "never connect" {
        std::thread::sleep(Duration::from_secs(600));
    }
    if fault == "end at once" {
        std::process::exit(7);
    }
    let mut command = TestCommand { stream: UnixStream::connect(path).unwrap(), fault, engine: None };
    let version = if command.fault == "other version" { 2 } else { 1 };
    command.send(json!({ "hello": { "protocol": version, "name": "test" } }), &[]).unwrap();
    // The miner closes the socket when it is done.
    while command.answer().is_ok() {}
    std::process::exit(0);
}

struct TestCommand {
    stream: UnixStream,
    fault: String,
    engine: Option<Opened>,
}

struct Opened {
    engine: Box<dyn Engine>,
    seq_len: usize,
    weights: Vec<f32>,
    moments: Vec<f32>,
}

impl TestCommand {
    fn send(&mut self, header: Value, body: &[u8]) -> io::Result<()> {
        let header = header.to_string();
        self.stream.write_all(&(header.len() as u32).to_le_bytes())?;
        self.stream.write_all(&(body.len() as u64).to_le_bytes())?;
        self.stream.write_all(header.as_bytes())?;
        self.stream.write_all(body)
    }

    /// Fails with the requested fault, if `doing` is the request to fail at.
    fn fail(&mut self, doing: &str) -> io::Result<()> {
        let fault = self.fault.clone();
        let Some((fault, at)) = fault.split_once(' ') else { return Ok(()) };
        if at != doing {
            return Ok(());
        }
        match fault {
            "hang" => std::thread::sleep(Duration::from_secs(600)),
            "die" => std::process::exit(9),
            "slow" => loop {
                self.send(json!({ "progress": { "sequences": 0 } }), &[])?;
                std::thread::sleep(Duration::from_millis(20));
            },
            "garbage" => self.stream.write_all(b"\x05\0\0\0\0\0\0\0\0\0\0\0hello")?,
            "flood" => self.stream.write_all(&[0xff; 1 << 16])?,
            "long" => self.send(json!({ "values": {} }), &[0; 4096])?,
            "short" => self.send(json!({ "values": {} }), &[0; 4])?,
            "refuse" => self.send(json!({ "failed": { "why": "no memory" } }), &[])?,
            "wrong" => self.send(json!({ "ready": {} }), &[])?,
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut lengths = [0; 12];
        self.stream.read_exact(&mut lengths)?;
        let mut header = vec![0; u32::from_le_bytes(lengths[..4].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut header)?;
        let mut body = vec![0; u64::from_le_bytes(lengths[4..].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut body)?;
        let header: Value = serde_json::from_slice(&header).unwrap();
        let (kind, fields) = header.as_object().unwrap().iter().next().unwrap();
        self.fail(kind)?;
        let number = |name: &str| fields[name].as_u64().unwrap() as usize;
        let range = || number("first")..number("first") + number("count");
        let values = || body.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let numbers = || body.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
        if kind == "open" {
            let config: ModelConfig = serde_json::from_value(fields["model"].clone()).unwrap();
            let recipe: Recipe = serde_json::from_value(fields["recipe"].clone()).unwrap();
            let moments = fields["tensors"].as_array().unwrap().iter().map(|tensor| {
                let rows = tensor["shape"][0].as_u64().unwrap() * tensor["shape"][1].as_u64().unwrap();
                (rows * tensor["moments"].as_u64().unwrap()) as usize
            });
            let (weights, moments) = (vec![0.0; config.parameters()], vec![0.0; moments.sum()]);
            let engine = engine::open(Device::CPU, &config, Some(&recipe), &weights).unwrap();
            self.engine = Some(Opened { engine, seq_len: config.seq_len, weights, moments });
            return self.send(json!({ "ready": {} }), &[]);
        }
        let fault = self.fault.clone();
        let Some(opened) = &mut self.engine else { return Err(io::Error::other("the miner opens nothing")) };
        let is_weights = fields["part"] == "weights";
        match kind.as_str() {
            "put" => {
                let vector = if is_weights { &mut opened.weights } else { &mut opened.moments };
                vector[range()].iter_mut().zip(values()).for_each(|(to, from)| *to = from);
                if range().end == vector.len() {
                    if is_weights {
                        opened.engine.load(&opened.weights).unwrap();
                    } else {
                        opened.engine.load_moments(&opened.moments).unwrap();
                    }
                }
                self.send(json!({ "taken": {} }), &[])
            }
            "get" => {
                let blocks = if is_weights { opened.engine.weights() } else { opened.engine.moments() };
                let mut flat: Vec<f32> = blocks.flat_map(|block| block.unwrap().into_owned()).collect();
                if fault == "nan get" {
                    flat[3] = f32::NAN;
                }
                let bytes: Vec<u8> = flat[range()].iter().flat_map(|value| value.to_le_bytes()).collect();
                self.send(json!({ "values": {} }), &bytes)
            }
            "gradients" => {
                let tokens: Vec<u32> = values().map(f32::to_bits).collect();
                let rows: Vec<&[u32]> = tokens.chunks(opened.seq_len + 1).collect();
                let gradients = opened.engine.gradients(&rows).unwrap();
                let loss = if fault == "nan gradients" { f64::NAN } else { gradients.loss };
                self.send(json!({ "progress": { "sequences": rows.len() } }), &[])?;
                let body = [loss.to_le_bytes(), gradients.norm.to_le_bytes()].concat();
                self.send(json!({ "gradients": {} }), &body)
            }
            "step" => {
                let mut numbers = numbers();
                let (learning_rate, gradient_scale) = (numbers.next().unwrap(), numbers.next().unwrap());
                let step = fields["step"].as_u64().unwrap();
                opened.engine.step(&StepParams { step, learning_rate, gradient_scale }).unwrap();
                self.send(json!({ "stepped": {} }), &[])
            }
            _ => Err(io::Error::other("the miner wants it to stop")),
        }
    }
}
