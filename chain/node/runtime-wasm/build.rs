//! Builds the Wasm runtime with cargo, in a separate build.
//!
//! Substrate's `wasm-builder` first compiles an optimiser in C++, which takes some minutes and reduces the size by a
//! tenth. Link-time optimisation by rustc suffices.
//!
//! - `WASM_BUILD_TOOLCHAIN`: the rustup toolchain for the build.
//! - `METTLE_WASM`: an existing Wasm runtime to use instead.
//! - `SKIP_WASM_BUILD`: builds none, to check or document the code only.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "wasm32v1-none";
/// Path of the binary in cargo's target directory.
const WASM_BINARY: &str = "wasm32v1-none/wasm/mettle_runtime_wasm.wasm";
/// The host reads the function table and the heap's end, and provides the memory.
const RUSTFLAGS: &str = "--cfg substrate_runtime -C link-arg=--export-table -C link-arg=--export=__heap_base -C link-arg=--import-memory";
/// Crates of the runtime, relative to the repository's root.
const SOURCES: [&str; 7] = [
    "chain/runtime",
    "contracts/nomination",
    "contracts/registry",
    "contracts/rewards",
    "contracts/weights",
    "contracts/windows",
    "protocol",
];

fn main() {
    if env::var("CARGO_CFG_TARGET_FAMILY").as_deref() == Ok("wasm") {
        return;
    }
    // `RUNTIME_METADATA_HASH` is in `.cargo/config.toml`.
    for variable in ["WASM_BUILD_TOOLCHAIN", "METTLE_WASM", "SKIP_WASM_BUILD", "RUNTIME_METADATA_HASH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let binary = if env::var_os("SKIP_WASM_BUILD").is_some() {
        None
    } else {
        let from = match env::var_os("METTLE_WASM") {
            Some(path) => {
                println!("cargo::rerun-if-changed={}", Path::new(&path).display());
                PathBuf::from(path)
            }
            None => build(&out),
        };
        let binary = out.join("runtime.wasm");
        fs::copy(&from, &binary).unwrap_or_else(|error| panic!("cannot read {}: {error}", from.display()));
        Some(binary)
    };
    let value = match binary {
        Some(path) => format!("Some(include_bytes!({path:?}))"),
        None => "None".into(),
    };
    let source = format!(
        "/// The Wasm runtime; `None` if it was not built.\npub const WASM_BINARY: Option<&[u8]> = {value};\n"
    );
    fs::write(out.join("wasm_binary.rs"), source).expect("cargo made OUT_DIR");
}

/// Builds the Wasm runtime and returns its path.
fn build(out: &Path) -> PathBuf {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let root = workspace.join("../..");
    println!("cargo::rerun-if-changed={}", root.join(".cargo/config.toml").display());
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).join("src").display());
        println!("cargo::rerun-if-changed={}", root.join(source).join("Cargo.toml").display());
    }
    for file in
        ["Cargo.toml", "Cargo.lock", "runtime-wasm/src", "runtime-wasm/Cargo.toml", "runtime-wasm/build.rs"]
    {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }

    let toolchain = env::var("WASM_BUILD_TOOLCHAIN").ok();
    let mut cargo = match &toolchain {
        Some(toolchain) => {
            let mut rustup = Command::new("rustup");
            rustup.args(["run", toolchain, "cargo"]);
            for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
                rustup.env_remove(variable);
            }
            rustup
        }
        None => Command::new(variable("CARGO")),
    };
    // Flags and wrappers of the outer build are for the host.
    for variable in
        ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"]
    {
        cargo.env_remove(variable);
    }
    let target_dir = target_dir(out);
    cargo.current_dir(&workspace).env("CARGO_TARGET_DIR", &target_dir).env("RUSTFLAGS", RUSTFLAGS).args([
        "rustc",
        "--locked",
        "--package=mettle-runtime-wasm",
        "--lib",
        "--crate-type=cdylib",
        "--profile=wasm",
        "--target",
        TARGET,
    ]);
    for (feature, variable) in [
        ("upgrade-test", "CARGO_FEATURE_UPGRADE_TEST"),
        ("runtime-benchmarks", "CARGO_FEATURE_RUNTIME_BENCHMARKS"),
    ] {
        if env::var_os(variable).is_some() {
            cargo.args(["--features", feature]);
        }
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot run {cargo:?}: {error}"));
    assert!(
        status.success(),
        "the Wasm runtime was not built. Is the target {TARGET} installed? See scripts/setup-wasm"
    );
    target_dir.join(WASM_BINARY)
}

/// Returns the target directory of the inner build, shared by all profiles: cargo locks the outer one.
fn target_dir(out: &Path) -> PathBuf {
    let outer = out.ancestors().find(|path| path.join("CACHEDIR.TAG").exists());
    outer.unwrap_or(out).join("wasm-runtime")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
