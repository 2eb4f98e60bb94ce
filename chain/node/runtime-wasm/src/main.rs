//! Writes the blob to a file, for whoever upgrades a chain to it.
//!
//!     cargo run --release -p mettle-runtime-wasm -- mettle-runtime.wasm

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("say into which file the runtime's blob is to be written");
        return ExitCode::FAILURE;
    };
    let Some(blob) = mettle_runtime_wasm::BLOB else {
        eprintln!("this program was built without the blob (SKIP_WASM_BUILD)");
        return ExitCode::FAILURE;
    };
    match std::fs::write(&path, blob) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} cannot be written: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
