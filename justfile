# Every command of the project. `just` lists them.

# List the commands
default:
    @just --list --unsorted

# The whole network on this machine, until Ctrl-C
up *arguments:
    cargo run -p localnet -- up {{ arguments }}

# All tests, the end-to-end ones included
test *arguments:
    cargo test --workspace {{ arguments }}

# Format, clippy and fast tests: before each push
quick:
    bash .ci/run quick

# polkadot-js and a Python client against the embedded chain, or against the node at a ws:// URL (installs them first)
clients *at:
    bash tests/clients/run {{ at }}

# The models of the protocol, exhaustively (needs Java; installs the checker first)
formal *cases:
    bash protocol/formal/check {{ cases }}

# Write all code in the one format
format:
    cargo fmt --all

# What the compiler and clippy have to say; nothing is allowed
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# The documentation of all our crates
doc:
    RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --workspace

# The documents as a book in target/book/html (needs mdbook)
book:
    bash scripts/book

# Licences, bans and sources of all dependencies (needs cargo-deny)
deny:
    cargo deny --locked check licenses bans sources

# Known vulnerabilities of all dependencies (needs cargo-deny and the network)
advisories:
    cargo deny --locked check advisories

# Feed one decoder with hostile bytes: contribution_body, submission or update (needs nightly and cargo-fuzz)
fuzz target="contribution_body" seconds="60":
    cd protocol && cargo +nightly fuzz run {{ target }} -- -max_total_time={{ seconds }}

# What is unsafe in the kernels, under AddressSanitizer (Linux on x86-64)
asan:
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/asan cargo test -p kernels -p mettle-nn --target x86_64-unknown-linux-gnu --lib --test agree --test layers -- --skip report::

# Benchmarks of the reference and the fast codec and merge, of the network's layers, and of the search for near-duplicates
bench:
    cargo bench -p mettle-benches --features criterion

# Every kernel on this machine beside a copy of memory, in one table
report *arguments:
    cargo run --release -p kernels --bin kernels-report -- {{ arguments }}

# Twelve windows with their report: the figures of docs/benchmarks.md
figures windows="12" report="report.json":
    cargo run -p localnet -- up --plain --windows {{ windows }} --report {{ report }}

# The benchmarks at two commits, by turns; fails where the second is more than 10 % slower
bench-compare base head="HEAD" *arguments:
    python3 scripts/bench-compare {{ base }} {{ head }} {{ arguments }}

# Static Linux programs, checksums, an SBOM and a container image in target/release-VERSION; `just release cuda`: programs for GPUs
release *arguments:
    bash scripts/release {{ arguments }}

# All checks before a merge; `just ci nightly` adds the long hunts
ci tier="tests":
    bash .ci/run {{ tier }}
