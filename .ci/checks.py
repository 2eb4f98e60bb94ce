"""The checks of each tier, in order. `.ci/run` starts this; `runner.py` beside it runs them."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from runner import (  # noqa: E402
    Check, Runner, Step, count_client, count_lines, count_members, count_paid, count_parts, count_tests, digest_of, say, synchronise,
)

SOURCE = Path(__file__).resolve().parent.parent
CACHE_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/tmp") / ".cache")
# `METTLE_CI_CACHE`: the tree that is built, what was built, stamps of checks that passed, and the last runs.
CACHE = Path(os.environ.get("METTLE_CI_CACHE") or CACHE_HOME / "mettle-ci").absolute()
TREE = CACHE / "tree"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or CACHE / "target").absolute()
PROGRAMS = TARGET / "debug"
NODE_TARGET = TARGET / "node"
NODE = Path(os.environ.get("METTLE_NODE") or NODE_TARGET / "debug/mettle-node")
# The digest of the node's inputs, as `bash .ci/run node` has passed with them.
NODE_PASSED = Path(".ci/node-passed")
MINUTES_MAX = {"quick": 30, "tests": 84, "node": 60, "nightly": 350}

ROOT = os.geteuid() == 0
NIGHTLY_ONLY = "in the nightly tier only"

# What decides the result of a check, for stamps. A change anywhere else does not run it again.
CRATES = ("chain", "contracts", "daemon", "kernels", "localnet", "mettle", "miner", "protocol", "validator", "Cargo.lock", "Cargo.toml", ".cargo")
KERNELS = ("kernels", "protocol/src", "protocol/model", "Cargo.lock", "Cargo.toml")
NODE_INPUTS = ("chain/node", "chain/runtime", "contracts", "protocol/src", "protocol/Cargo.toml", "scripts/setup-wasm", ".cargo/config.toml")

GPU = ["-p", "mettle-nn", "-p", "mettle-engines", "--features", "mettle-nn/vulkan,mettle-engines/vulkan"]
GPU_TESTS = ["--test", "gpu", "--test", "gpu_products", "--test", "gpu_pointwise", "--test", "gpu_report"]
# The packages whose documentation has tests.
DOCTESTED = ["kernels", "mettle-nn", "mettle-engines", "mettle-dataset", "mettle-prepare", "mettle-chain-client", "mettle-sdk"]
PALLETS = ["pallet-registry", "pallet-windows", "pallet-weights", "pallet-nomination", "pallet-rewards"]
NCCL = "2.32.3"
NCCL_PLACE = CACHE_HOME / f"mettle-gpu/nccl-{NCCL}"
OFFLINE = {"CARGO_NET_OFFLINE": "true"}
ONLINE = {"CARGO_NET_OFFLINE": "false"}
# Tests whose bounds are of time, by program and module: they run when nothing else does.
QUIET = {("tests", "nodes", "test"): "shutdown::", ("mettle-daemon", "mettle_daemon", "lib"): "traces::"}


def bash(script, **options):
    return Step(["bash", "-euo", "pipefail", "-c", script], title=script.strip().splitlines()[0], **options)


def python(script, *arguments, **options):
    return Step(["python3", script, *arguments], **options)


def cargo(*arguments, **options):
    return Step(["cargo", *arguments], **options)


def apt(command, *packages):
    """Installs packages of Debian unless `command` is there; one at a time."""

    def steps():
        if shutil.which(command) or Path(command).exists():
            return []
        return [bash(f"""exec 9>{CACHE}/apt.lock && flock 9
            timeout 300 apt-get update -q
            DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -q -y --no-install-recommends {' '.join(packages)}""")]

    return steps


def vulkan():
    """A driver of any kind: where there is no GPU, a CPU's stand-in is enough to test kernels on."""
    found = list(Path("/usr/share/vulkan/icd.d").glob("*.json"))
    return [] if found else apt("/nowhere", "mesa-vulkan-drivers", "libvulkan1")()


def namespaces():
    """Network namespaces with routers in them, and TUN devices, which are lines between them."""
    steps = [] if shutil.which("iptables") and shutil.which("ip") else apt("/nowhere", "iproute2", "iptables")()
    return [*steps, Step(["unshare", "--net", "--mount", "sh", "-c", """iptables -t nat -A POSTROUTING -p udp -j MASQUERADE --random-fully &&
        mkdir -p /run/netns && mount -t tmpfs namespaces /run/netns && ip netns add tried && ip tuntap add dev tried mode tun"""])]


# ---- programs that `cargo test --no-run` built --------------------------------------------------------------------------


class Built:
    """Test programs and programs, from cargo's messages."""

    def __init__(self):
        self.tests, self.programs = [], {}

    def read(self, output):
        for line in output.splitlines():
            if not line.startswith('{"reason":"compiler-artifact"'):
                continue
            message = json.loads(line)
            if not message["executable"]:
                continue
            package = Path(message["manifest_path"]).parent
            name = re.search(r"#(?:([^@]*)@)?", message["package_id"])[1] or package.name
            if message["profile"]["test"]:
                kind = message["target"]["kind"][0]
                self.tests.append((name, message["target"]["name"], kind if kind in ("bin", "test") else "lib", package, message["executable"]))
            else:
                self.programs[message["target"]["name"]] = message["executable"]
        self.tests.sort()

    def one(self, package, target, kind):
        found = [test for test in self.tests if test[:3] == (package, target, kind)]
        if len(found) != 1:
            raise ValueError(f"{len(found)} test programs are {package}'s {kind} {target}")
        return found[0]


BUILT = Built()


def test_step(test, *arguments, prefix=(), **options):
    """Runs a test program as cargo does: in its package's directory. It prints the time of each test if it can."""
    package, target, _, directory, program = test
    environment = {"CARGO_MANIFEST_DIR": directory, "CARGO_PKG_NAME": package, **options.pop("environment", {})}
    arguments = list(arguments)
    said = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout
    if "--report-time" in said:
        arguments += ["-Z", "unstable-options", "--report-time"]
        environment["RUSTC_BOOTSTRAP"] = "1"
    return Step([*prefix, program, *arguments], directory, environment, title=f"{package} {target} {' '.join(arguments)}", **options)


def one(package, target, kind, *arguments, **options):
    return lambda: [test_step(BUILT.one(package, target, kind), *arguments, **options)]


def program(name):
    return str(PROGRAMS / name)


# ---- the checks ---------------------------------------------------------------------------------------------------------


def count_packages(_):
    number = (TREE / "Cargo.lock").read_text().count("\n[[package]]\n")
    return number, f"{number} packages in the lock file"


def count_formatted(output):
    number = len(subprocess.run(["git", "ls-files", "*.rs"], cwd=TREE, capture_output=True, text=True, check=True).stdout.split())
    return number, f"{number} files, {len(re.findall('^Diff in ', output, re.MULTILINE))} differences"


def count_documented(_):
    number = len(list((TARGET / "doc").glob("*/index.html")))
    return number, f"{number} crates"


def count_programs(output):
    BUILT.__init__()
    BUILT.read(output)
    return len(BUILT.tests), f"{len(BUILT.tests)} test programs, {len(BUILT.programs)} programs and examples"


def count_python_tests(output):
    found = re.search(r"^Ran (\d+) tests?", output, re.MULTILINE)
    number = int(found[1]) if found else 0
    return number, f"{number} tests"


def first():
    """In seconds to minutes, and what fails most often. Nothing follows if one of them fails."""
    return [
        Check("dependencies", [cargo("fetch", "--locked")], count_packages, 700, 15),
        Check("format", [cargo("fmt", "--all", "--check")], count_formatted, 500, 2),
        Check("this script", [python(".ci/test_runner.py")], count_python_tests, 10, 1),
        Check("the repository's rules", [cargo("test", "-p", "repository", environment=OFFLINE)], count_tests, 25, 5),
        Check("clippy", [cargo("clippy", "--workspace", "--all-targets", "--message-format=json-render-diagnostics", "--", "-D", "warnings", environment=OFFLINE)],
              count_members(TREE), 34, 30),
    ]


def build():
    return Check("build of the tests", [cargo("test", "--workspace", "--no-run", "--message-format=json-render-diagnostics", environment=OFFLINE)],
                 count_programs, 60, 45)


NETWORKS = ("localnet", "networks", "test")
LABS = ("localnet", "labs", "test")


def other_tests():
    """All test programs but the networks, without what needs quiet."""
    nice = ("nice", "-n", "5")
    without = lambda test: ("--skip", QUIET[test[:3]]) if test[:3] in QUIET else ()
    return [test_step(test, *without(test), prefix=nice) for test in BUILT.tests if test[:3] != NETWORKS]


def networks():
    return [Check("networks of processes", one(*NETWORKS), count_tests, 37, 25)]


def others(nightly):
    """Beside networks, which wait: two lanes of what computes, at a low priority."""
    table = [program("gauntlet-table"), "--windows", "30", "--check"]
    chaos = [program("chaos"), "--json"]
    seed = os.environ["PROPTEST_RNG_SEED"]
    nice = ("nice", "-n", "19")
    tests = [
        Check("tests of all other packages", other_tests, count_tests, 1980, 40),
        Check("tests in documentation", [cargo("test", "--doc", *sum((["-p", name] for name in DOCTESTED), []), environment=OFFLINE)], count_tests, 4, 10),
    ]
    if nightly:
        checks = [
            Check("adversaries' pay", [Step([*nice, *table, "--seeds", "5"])], count_paid, 29, 120),
            # 100,000 seat-windows of honest miners whose nodes are killed and cut off.
            Check("honest seats through outages", [Step([*nice, *table[:1], "--check", "--windows", "400", "--seeds", "25", "--only", "outages"])], count_paid, 1, 120),
            Check("networks under random faults", [Step([*nice, *chaos, "--seed", seed, "--seeds", "100", "--miners", "10", "--validators", "5", "--windows", "14"])],
                  count_lines(r'"violations":\[\]', "networks without a violation"), 100, 120),
            Check("a thousand seats under random faults", [Step([*nice, *chaos, "--seed", seed, "--miners", "984", "--validators", "16", "--windows", "100"])],
                  count_lines(r'"violations":\[\]', "networks without a violation"), 1, 60),
        ]
    else:
        # In virtual time: a busy machine changes nothing. Networks that only compare are left out.
        only = ("delivery,copiers,idlers,other-work,cheap-work,less-text,poison,one-shot,validators,bombed,muted,junk-majority,copied-weights,"
                "excluded,stalled,outages,unequal-machines")
        checks = [Check("adversaries' pay", [Step([*nice, *table, "--seeds", "2", "--only", only])], count_paid, 41, 40,
                         inputs=("contracts", "daemon", "kernels", "localnet/adversaries", "protocol", "tests/src", "validator", "miner", "Cargo.lock"))]
    counted = (TREE / "tests/instructions.json").read_text()
    if subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip() in counted:
        why = None
    else:
        why = "they were taken with another compiler; instruction-counts --update takes them anew"
    tests += [
        Check("instruction counts", [Step([*nice, program("instruction-counts"), "--check", "tests/instructions.json"])], count_client, 11, 15,
              install=apt("valgrind", "valgrind"), skipped=why),
        Check("documentation", [Step([*nice, "cargo", "doc", "--no-deps", "--workspace"], environment={**OFFLINE, "RUSTDOCFLAGS": "-Dwarnings"})], count_documented, 29, 20),
        Check("fuzz targets compile", [Step([*nice, "cargo", "check", "--locked", "--no-default-features", "--manifest-path", "protocol/fuzz/Cargo.toml",
                                             "--message-format=json-render-diagnostics"], environment={**ONLINE, "CARGO_TARGET_DIR": TARGET / "fuzz"})],
              count_lines(r'"reason":"compiler-artifact".*"kind":\["bin"\]', "targets"), 6, 10, inputs=("protocol", "kernels/src", "kernels/Cargo.toml")),
    ]
    checks += [
        # A warning of the compiler counts as a failure, as in clippy, which would build all dependencies once more.
        Check("GPU kernels on Vulkan", [
            bash(f"nice -n 19 cargo test {' '.join(GPU)} --lib {' '.join(GPU_TESTS)} --no-run 2>&1 |"
                 " awk '{ print } /^warning: .* generated [0-9]+ warning/ { warned = 1 } END { exit warned }'", environment=OFFLINE),
            Step([*nice, "cargo", "test", *GPU, "--lib", "--", "--include-ignored", "gpu::", "estimate::", "memory::", "probe::"], environment=OFFLINE),
            Step([*nice, "cargo", "test", *GPU, *GPU_TESTS], environment=OFFLINE),
        ], count_tests, 86, 45, inputs=KERNELS, install=vulkan),
        Check("Burn's oracle", [Step([*nice, "cargo", "test", "-p", "mettle-nn-burn", "--features", "burn"], environment=OFFLINE)], count_tests, 29, 30, inputs=KERNELS),
    ]
    return tests, checks


def outside(nightly):
    """What uses the network from outside our crates: one after the other, each with a network of its own."""
    def lab(name):
        return one(*LABS, "--ignored", f"{name}::", prefix=("unshare", "--net", "--mount"))

    checks = [Check(f"network behind routers: {name}", lab(name), count_tests, least, 15, install=namespaces) for name, least in (("nat", 6), ("household", 1))]
    for client, least in (("polkadot-js", 11), ("substrate-interface", 7)):
        checks.append(Check(client, [Step(["bash", "tests/clients/run", "check", client])], count_parts, least, 10, inputs=(*CRATES, "tests/clients"),
                            install=[Step(["bash", "tests/clients/run", "install", client])]))
    for part, least in (("prometheus", 28), ("systemd", 8), ("deb", 12), ("helm", 72), ("cloud-init", 8)):
        checks.append(Check(f"deployment by {part}", [python("docs/deploy/check", part)], count_client, least, 10, inputs=(*CRATES, "docs/deploy", "scripts/deb"),
                            install=[python("docs/deploy/check", "install", part)]))
    checks.append(Check("faults and their alerts", [python("docs/deploy/check", "drill")], count_client, 1, 20, install=[python("docs/deploy/check", "install", "drill")],
                        skipped=None if nightly else NIGHTLY_ONLY))
    for tracker, least in (("journal", 1057), ("tensorboard", 37), ("mlflow", 40), ("wandb", 40)):
        install = [python("docs/tracking/check", "install", tracker)] if tracker != "journal" else ()
        checks.append(Check(f"experiment tracking: {tracker}", [python("docs/tracking/check", tracker)], count_client, least, 10, inputs=("docs/tracking",), install=install))
    checks.append(Check("attention kernels for NVIDIA GPUs", [python("scripts/gpu-kernels")], count_client, 14, 10,
                        inputs=("scripts/gpu-kernels", "kernels/nn/src/layers/attention"), install=[python("scripts/gpu-kernels", "install")]))
    notebooks = ["--notebooks"] if nightly else []
    checks += [
        Check("Python package", [python("mettle/python/check", *notebooks)], count_client, 160, 20, inputs=(*CRATES, "docs/sdk.md"),
              install=[python("mettle/python/check", "install", *notebooks)]),
        Check("trainer in numpy", numpy_trainer(notebooks), count_tests, 1, 5, inputs=("miner", "daemon", "kernels", "protocol", "mettle/python"),
              install=[python("mettle/python/check", "install", *notebooks)]),
    ]
    for page in ("mine", "validate", "audit", "own-a-run", "strategy", "reproduce"):
        checks.append(Check(f"tutorial {page}", [python("docs/tutorials/check", f"{page}.md")], count_client, 5, 10, skipped=None if nightly or page == "mine" else NIGHTLY_ONLY))
    checks += [
        Check("page in a browser", one("mettle-watch", "browser", "test", "--ignored"), count_tests, 1, 10, inputs=("mettle/watch", "daemon/kit", "Cargo.lock"), install=apt("chromium", "chromium")),
        Check("formal models", [Step(["bash", "protocol/formal/check"])], count_client, 47, 20, inputs=("protocol/formal",), install=[Step(["bash", "protocol/formal/check", "install"])]),
    ]
    return checks


def numpy_trainer(notebooks):
    def steps():
        # The virtual environment of the Python package's check has numpy.
        words = "import runpy, sys; print(runpy.run_path('mettle/python/check')['environment'](sys.argv[-1] == '--notebooks'))"
        found = subprocess.run(["python3", "-c", words, "install", *notebooks], cwd=TREE, capture_output=True, text=True, check=True).stdout.strip()
        return one("miner", "miner", "test", "--exact", "--ignored", "command::the_trainer_in_numpy_takes_the_same_steps", environment={"METTLE_PYTHON": found})()

    return steps


def quiet():
    return [Check("tests with bounds of time, alone", lambda: [test_step(BUILT.one(*test), module) for test, module in QUIET.items()], count_tests, 8, 5)]


def api():
    tag = subprocess.run(["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"], cwd=TREE, capture_output=True, text=True).stdout.strip()
    return Check("API of the Rust library", [cargo("semver-checks", "--package", "mettle-sdk", "--baseline-rev", tag)], count_lines(r"Checked|Finished", "reports"), 1, 30,
                 install=[cargo("install", "cargo-semver-checks", "--locked")] if not shutil.which("cargo-semver-checks") else (),
                 skipped=None if tag else "no release is tagged yet, so there is none to compare with")


# ---- the node -----------------------------------------------------------------------------------------------------------


def install_for_node():
    steps = apt("protoc", "protobuf-compiler")()
    # Its lines set variables for the shell of the next step.
    return [*steps, bash(f"env CARGO_NET_OFFLINE=false bash scripts/setup-wasm >{CACHE}/wasm.env")]


def node(all_tests):
    """The node's own tests, then a network on four of them. `all_tests`: also a runtime upgrade and cut links on four nodes."""

    def steps():
        flags = " -- --include-ignored" if all_tests else ""
        return [
            cargo("build", "--workspace", "--example", "follow", environment=OFFLINE),
            bash(f". {CACHE}/wasm.env && cd chain/node && nice -n 5 cargo test --locked{flags}", environment={
                **ONLINE, "CARGO_TARGET_DIR": NODE_TARGET, "METTLE_CLIENT": PROGRAMS / "examples/follow"}),
            *one(*LABS, "--ignored", "node::", environment={"METTLE_NODE": NODE})(),
        ]

    def passed(_):
        if all_tests:
            (SOURCE / NODE_PASSED).write_text(digest_of(TREE, NODE_INPUTS) + "\n")

    return [Check("node, and a network on four", steps, count_tests, 10 if all_tests else 8, 55, install=install_for_node, then=passed)]


def node_in_tests():
    """Where the node is built already, or its sources are not those that passed."""
    passed = (TREE / NODE_PASSED).read_text().strip() if (TREE / NODE_PASSED).is_file() else ""
    checks = node(all_tests=False)
    if not NODE.is_file() and passed == digest_of(TREE, NODE_INPUTS):
        for check in checks:
            check.skipped = f"its sources are those with which it passed ({NODE_PASSED}), and it is not built here: bash .ci/run node"
    return checks


# ---- the nightly tier's own ---------------------------------------------------------------------------------------------


def nightly_only():
    host = "x86_64-unknown-linux-gnu"
    asan = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "-Zsanitizer=address", "CARGO_TARGET_DIR": TARGET / "asan"}
    cuda = "mettle-nn/cuda,mettle-engines/cuda"
    load = [Check(f"load on {part}", [Step([program("load"), part])], count_lines("^  ", "figures"), 1, 30) for part in ("chain", "store", "validator", "peers", "soak")]
    fuzz = [bash(f"cd protocol && for target in fuzz/fuzz_targets/*.rs; do cargo fuzz run $(basename $target .rs) -- -max_total_time=600; done",
                 environment={**ONLINE, "RUSTC_BOOTSTRAP": "1"})]
    deny = [cargo("install", "cargo-deny", "--locked")] if not shutil.which("cargo-deny") else []
    return [
        *load,
        Check("tests as released", [cargo("test", "--release", "--workspace", "--no-fail-fast", environment=OFFLINE)], count_tests, 1900, 150),
        Check("random calls of the runtime", [cargo("test", "-p", "mettle-runtime", "no_sequence_of_calls", "--", "--nocapture", environment={
            **OFFLINE, "METTLE_FUZZ_CALLS": "1000000", "METTLE_FUZZ_SEED": os.environ["PROPTEST_RNG_SEED"]})], count_tests, 1, 60),
        Check("benchmarks of the pallets, as tests", [cargo("test", "--lib", "--features", "runtime-benchmarks", *sum((["-p", name] for name in PALLETS), []), "--", "benchmark",
                                                            environment=OFFLINE)], count_tests, 5, 60),
        Check("a seat under SLURM", one(*LABS, "--ignored", "slurm::"), count_tests, 1, 15, install=apt("slurmctld", "slurmctld", "slurmd", "slurm-client", "munge")),
        Check("processes with a GPU each", [cargo("test", "-p", "miner", "--features", "miner/vulkan", "--lib", "--test", "ranks", "--", "ranks::", "a_rank_that_is_killed",
                                                  environment={**OFFLINE, "RANKS_DEVICE": "vulkan"})], count_tests, 2, 45, install=vulkan),
        Check("clippy, GPU kernels", [cargo("clippy", *GPU, "--all-targets", "--message-format=json-render-diagnostics", "--", "-D", "warnings", environment=OFFLINE)],
              count_members(TREE), 2, 30),
        Check("clippy, oracle and benchmarks", [cargo("clippy", "-p", "mettle-nn-burn", "-p", "mettle-benches", "--features", "mettle-nn-burn/burn,mettle-benches/criterion", "--all-targets",
                                                     "--message-format=json-render-diagnostics", "--", "-D", "warnings", environment=OFFLINE)], count_members(TREE), 2, 30),
        Check("NCCL", [cargo("test", "-p", "mettle-nn", "-p", "miner", "--lib", "--test", "ranks", "nccl", "--", "--include-ignored", environment={
            **OFFLINE, "METTLE_NCCL": NCCL_PLACE / "nvidia/nccl/lib/libnccl.so.2"})], count_tests, 1, 30,
              install=[bash(f"[[ -f {NCCL_PLACE}/nvidia/nccl/lib/libnccl.so.2 ]] || python3 -m pip install --quiet --no-input --no-deps --only-binary :all: "
                            f"--target {NCCL_PLACE} nvidia-nccl-cu13=={NCCL}")]),
        Check("clippy, CUDA", [cargo("clippy", "-p", "mettle-nn", "-p", "mettle-engines", "--features", cuda, "--all-targets", "--message-format=json-render-diagnostics", "--",
                                     "-D", "warnings", environment=OFFLINE)], count_members(TREE), 2, 45, install=[Step(["scripts/gpu-check", "llvm"])]),
        Check("kernels under AddressSanitizer", [cargo("test", "-p", "kernels", "-p", "mettle-nn", "--target", host, "--lib", "--test", "agree", "--test", "layers", "--", "--skip", "report::", environment=asan)],
              count_tests, 50, 60),
        *[Check(f"advisories of {manifest}", [cargo("deny", "--locked", "--manifest-path", manifest, "check", "advisories", environment=ONLINE)],
                count_lines("advisories ok", "reports"), 1, 15, install=deny) for manifest in ("Cargo.toml", "chain/node/Cargo.toml")],
        Check("fuzz targets", fuzz, count_lines("^Done ", "targets"), 6, 90, install=[cargo("install", "cargo-fuzz", "--locked")] if not shutil.which("cargo-fuzz") else ()),
        Check("network in containers", containers, count_tests, 1, 45),
    ]


def containers():
    return [cargo("build", "-p", "miner", "-p", "validator", "-p", "mettle", "-p", "localnet", environment=OFFLINE), bash(f"""engine=$(mktemp)
        scripts/container-engine.sh "$engine"
        # Stops only an engine that this check started.
        trap '[[ ! -s $engine ]] || kill "$(<"$engine")"' EXIT
        cd localnet && METTLE_NODE={NODE} {BUILT.one(*LABS)[4]} --ignored compose:: --nocapture""")]


# ---- tiers --------------------------------------------------------------------------------------------------------------


def changed_packages():
    """Packages with a changed file since the branch left its upstream, and those that depend on them."""
    git = lambda *words: subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True)
    base = next((found.stdout.strip() for name in ("@{upstream}", "origin/main", "HEAD~1") if (found := git("merge-base", "HEAD", name)).returncode == 0), "HEAD")
    changed = git("diff", "--name-only", base).stdout.split() + git("ls-files", "--others", "--exclude-standard").stdout.split()
    metadata = json.loads(subprocess.run(["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"], cwd=TREE, capture_output=True, check=True).stdout)
    places = {package["name"]: os.path.relpath(Path(package["manifest_path"]).parent, TREE) + "/" for package in metadata["packages"]}
    owner = lambda path: max((name for name, place in places.items() if path.startswith(place)), key=lambda name: len(places[name]), default=None)
    direct = {name for path in changed if (name := owner(path))}
    dependents = {package["name"] for package in metadata["packages"]
                  if any(dependency["name"] in direct and dependency["target"] != "cfg(any())" for dependency in package["dependencies"])}
    return sorted((direct | dependents) - {"repository"})


def run(runner):
    tier = runner.tier
    nightly = tier == "nightly"
    early = first()
    for place, check in enumerate(early):
        if not runner.run(check):
            runner.not_run(early[place + 1:], f"{check.name} failed")
            return
    if tier == "quick":
        packages = changed_packages() or ["mettle-protocol"]
        runner.run(Check("unit tests of what changed", [cargo("test", "--lib", "--bins", "--no-fail-fast", *sum((["-p", name] for name in packages), []), environment=OFFLINE)],
                         count_tests, 1, 20))
        return
    # Lists of lanes: the lanes of a list run beside each other, the lists in turn.
    if tier == "node":
        plan = [[node(all_tests=True)]]
    elif tier == "tests":
        tests, checks = others(nightly)
        plan = [[networks(), outside(nightly), tests, [*checks, *node_in_tests()]], [[*quiet(), api()]]]
    else:
        plan = [[networks(), outside(nightly), *others(nightly)], [[*quiet(), api(), *node(all_tests=True), *nightly_only()]]]
    if not runner.run(build()):
        runner.not_run([check for lanes in plan for lane in lanes for check in lane], "the tests were not built")
        return
    for lanes in plan:
        runner.lanes(lanes)


def main():
    words = sys.argv[1:]
    tier = words[0] if words else "tests"
    if len(words) > 1 or tier not in MINUTES_MAX:
        sys.exit("usage: bash .ci/run [quick|tests|node|nightly]")
    # Property tests draw the same inputs each time. PROPTEST_RNG_SEED=random draws fresh ones and prints their seed.
    if tier == "nightly":
        os.environ.setdefault("PROPTEST_RNG_SEED", "random")
        os.environ.setdefault("PROPTEST_CASES", "2048")
    seed = os.environ.setdefault("PROPTEST_RNG_SEED", "20261122")
    if seed == "random":
        os.environ["PROPTEST_RNG_SEED"] = str(int.from_bytes(os.urandom(4), "little"))
    os.environ.update(CARGO_TERM_COLOR="never", CARGO_NET_RETRY="5", CARGO_TARGET_DIR=str(TARGET))
    TARGET.mkdir(parents=True, exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    # Two runs at once would build in each other's tree.
    lock = open(CACHE / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"another run uses {CACHE}: wait for it, or set METTLE_CI_CACHE")
    synchronise(SOURCE, TREE)
    runner = Runner(TREE, CACHE, tier, MINUTES_MAX[tier] * 60, uses_stamps=tier != "nightly")

    def interrupted(number, _):
        runner.kill_all()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    rustc = subprocess.run(["rustc", "--version"], cwd=TREE, capture_output=True, text=True, check=True).stdout.strip()
    say(f"{rustc}, {os.cpu_count()} cores, builds {TREE} in {TARGET}, PROPTEST_RNG_SEED={os.environ['PROPTEST_RNG_SEED']}")
    run(runner)
    sys.exit(runner.finish())


if __name__ == "__main__":
    main()
