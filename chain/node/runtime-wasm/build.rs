//! Builds the runtime's blob with plain cargo, in a build of its own.
//!
//! The usual builder of such blobs compiles an optimiser in C++ first, for some minutes and a tenth off the size.
//! rustc's own optimisations, over the whole blob at once, are enough for us.
//!
//! `WASM_BUILD_TOOLCHAIN`: build the blob with this toolchain of rustup's. `METTLE_WASM`: take the blob from this file.
//! `SKIP_WASM_BUILD`: go without, for whoever only checks or documents the code.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "wasm32v1-none";
/// Where cargo puts the blob within its target directory, by the names of target, profile and crate.
const BLOB: &str = "wasm32v1-none/wasm/mettle_runtime_wasm.wasm";
/// The table of functions and the end of the heap are for the host to see; the memory is the host's.
const RUSTFLAGS: &str = "--cfg substrate_runtime -C link-arg=--export-table -C link-arg=--export=__heap_base -C link-arg=--import-memory";
/// Crates that the runtime is built from, seen from the repository's root.
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
    for variable in ["WASM_BUILD_TOOLCHAIN", "METTLE_WASM", "SKIP_WASM_BUILD"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let blob = if env::var_os("SKIP_WASM_BUILD").is_some() {
        None
    } else {
        let from = match env::var_os("METTLE_WASM") {
            Some(path) => {
                println!("cargo::rerun-if-changed={}", Path::new(&path).display());
                PathBuf::from(path)
            }
            None => build(&out),
        };
        let blob = out.join("blob.wasm");
        fs::copy(&from, &blob).unwrap_or_else(|error| panic!("{} cannot be read: {error}", from.display()));
        Some(blob)
    };
    let value = match blob {
        Some(path) => format!("Some(include_bytes!({path:?}))"),
        None => "None".into(),
    };
    let source =
        format!("/// The blob; `None` if it was not built.\npub const BLOB: Option<&[u8]> = {value};\n");
    fs::write(out.join("blob.rs"), source).expect("cargo made OUT_DIR");
}

/// Builds the blob and returns where it lies.
fn build(out: &Path) -> PathBuf {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let root = workspace.join("../..");
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
    // Flags are for the machine that the rest is built for, and so are wrappers that look at them.
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
    for (feature, variable) in
        [("rehearsal", "CARGO_FEATURE_REHEARSAL"), ("runtime-benchmarks", "CARGO_FEATURE_RUNTIME_BENCHMARKS")]
    {
        if env::var_os(variable).is_some() {
            cargo.args(["--features", feature]);
        }
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?} cannot be run: {error}"));
    assert!(
        status.success(),
        "the runtime's blob was not built. Is there the target {TARGET}? scripts/setup-wasm installs it"
    );
    target_dir.join(BLOB)
}

/// A directory of the blob's own, the same for all profiles: cargo keeps the one that it is building in to itself.
fn target_dir(out: &Path) -> PathBuf {
    let outer = out.ancestors().find(|path| path.join("CACHEDIR.TAG").exists());
    outer.unwrap_or(out).join("wasm-runtime")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
