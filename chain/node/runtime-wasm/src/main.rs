//! Writes the Wasm runtime to a file, for an upgrade of a chain.
//!
//!     cargo run --release -p mettle-runtime-wasm -- mettle-runtime.wasm

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: mettle-runtime-wasm FILE, to which the Wasm runtime is written");
        return ExitCode::FAILURE;
    };
    let Some(binary) = mettle_runtime_wasm::WASM_BINARY else {
        eprintln!("this program was built without the Wasm runtime (SKIP_WASM_BUILD)");
        return ExitCode::FAILURE;
    };
    match std::fs::write(&path, binary) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
