"""Runs checks, and says of each what was counted: a check that counts less than it must has failed, whatever its exit status.

A result is one of
    passed      it counted at least what it must
    unchanged   none of its inputs changed since it passed (its stamp is in the cache)
    skipped     this tier leaves it out, and the list of checks says so
    FAILED      it failed, counted too little, ran out of time, lacks what it needs, or was not run
"""

import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

KILL_SECONDS = 20
RUNS_KEPT = 10
SLOWEST = 20
# What a check prints is shown whole if it fails, and else in part; its log is kept whole.
SHOWN_LINES_PASSED = 12
SHOWN_LINES_FAILED = 400
# Lines that say what a check counted.
CLOSING = re.compile(r"^test result: |\d+ passed, \d+ failed|^\d+ adversaries, |^\d+ distinct states$|^  BROKEN")
TEST_TIME = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. ok <([\d.]+)s>", re.MULTILINE)


# ---- counts: from a check's output to a number and a text ---------------------------------------------------------------


def count_tests(output):
    results = re.findall(r"^test result: \S+ (\d+) passed; (\d+) failed; (\d+) ignored", output, re.MULTILINE)
    passed, failed, ignored = (sum(int(one[place]) for one in results) for place in range(3))
    return passed, f"{passed} tests passed, {failed} failed, {ignored} ignored, in {len(results)} programs"


def count_parts(output):
    """Of scripts that close each part with `N passed, M failed`."""
    results = re.findall(r"(\d+) passed, (\d+) failed", output)
    passed, failed = (sum(int(one[place]) for one in results) for place in range(2))
    return passed, f"{passed} passed, {failed} failed"


def count_client(output):
    """Of a script whose last such line is its sum."""
    results = re.findall(r"(\d+) passed, (\d+) failed", output)
    passed, failed = results[-1] if results else (0, 0)
    return int(passed), f"{passed} passed, {failed} failed"


def count_lines(pattern, what):
    def count(output):
        found = len(re.findall(pattern, output, re.MULTILINE))
        return found, f"{found} {what}"

    return count


def count_paid(output):
    lines = re.findall(r"^(\d+) adversaries, .*$", output, re.MULTILINE)
    text = re.findall(r"^\d+ adversaries, .*$", output, re.MULTILINE)
    return (int(lines[-1]), text[-1]) if lines else (0, "no adversaries")


def count_members(root):
    """The crates of ours that cargo's JSON messages name."""

    def count(output):
        found = set(re.findall(r'"reason":"compiler-artifact","package_id":"path\+file://' + re.escape(str(root)) + r'([^"]*)"', output))
        return len(found), f"{len(found)} crates, {len(re.findall(r'^(?:warning|error)(?:[[:])', output, re.MULTILINE))} warnings and errors"

    return count


# ---- checks -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Step:
    command: list
    directory: Path = None
    environment: dict = dataclasses.field(default_factory=dict)
    title: str = None


@dataclasses.dataclass
class Check:
    name: str
    # Steps, or a function that returns them when the check is due.
    steps: object
    count: object
    # Fewer than these, and the check has failed.
    least: int
    minutes: float = 10
    # Paths whose contents decide the result. Where none of them changed since the check passed, it is not run again.
    inputs: tuple = ()
    # Steps that install what the check needs.
    install: object = ()
    # What a check changes for the ones after it, given its output.
    then: object = None
    # Left out, and why. Any other check that is not run has failed.
    skipped: str = None


@dataclasses.dataclass
class Result:
    state: str
    name: str
    text: str
    wall: float = 0.0
    processor: float = 0.0

    def line(self):
        times = f", {self.wall:.0f} s ({self.processor:.0f} s of a core)" if self.wall else ""
        return f"{self.state:<9} {self.name}: {self.text}{times}"


def verdict(check, status, output, timed_out):
    """The state of a check that ended with `status`, and what it counted."""
    number, text = check.count(output)
    if timed_out:
        return "FAILED", f"{text}, out of time after {check.minutes:g} minutes"
    if status:
        return "FAILED", f"{text}, exit status {status}"
    if number < check.least:
        return "FAILED", f"{text}, which is less than {check.least}"
    return "passed", text


class Runner:
    def __init__(self, directory, cache, tier, seconds_max, uses_stamps):
        self.directory, self.cache, self.tier = Path(directory), Path(cache), tier
        self.deadline = time.monotonic() + seconds_max
        self.began = time.monotonic()
        self.uses_stamps = uses_stamps
        self.results, self.slowest = [], []
        self.lock = threading.Lock()
        self.groups = set()
        self.stopping = False
        self.logs = self.cache / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{tier}"
        self.logs.mkdir(parents=True)

    # -- processes

    def kill_all(self):
        self.stopping = True
        with self.lock:
            groups = list(self.groups)
        for group in groups:
            kill(group, signal.SIGKILL)

    def execute(self, step, log, deadline):
        """Runs a step; its exit status, whether time ran out, and the processor time of all its processes."""
        environment = {**os.environ, **{name: str(value) for name, value in step.environment.items()}}
        log.write(f"$ {step.title or ' '.join(map(str, step.command))}\n".encode())
        log.flush()
        try:
            process = subprocess.Popen(
                [str(word) for word in step.command], cwd=step.directory or self.directory, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return 127, False, 0.0
        with self.lock:
            self.groups.add(process.pid)
        timed_out = False
        try:
            while True:
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                now = time.monotonic()
                if deadline + KILL_SECONDS < now:
                    kill(process.pid, signal.SIGKILL)
                elif deadline < now and not timed_out:
                    timed_out = True
                    kill(process.pid, signal.SIGTERM)
                time.sleep(0.05)
        finally:
            # What a check leaves behind would disturb the next ones.
            kill(process.pid, signal.SIGKILL)
            with self.lock:
                self.groups.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, timed_out, usage.ru_utime + usage.ru_stime

    # -- checks

    def report(self, result):
        with self.lock:
            self.results.append(result)
        return result.state != "FAILED"

    def not_run(self, checks, why):
        for check in checks:
            if check.skipped:
                self.report(Result("skipped", check.name, check.skipped))
            else:
                self.report(Result("FAILED", check.name, f"not run: {why}"))

    def stamp(self, check):
        """The file that exists if the check passed with these inputs."""
        if not (check.inputs and self.uses_stamps):
            return None
        digest = hashlib.sha256(digest_of(self.directory, check.inputs).encode())
        steps = check.steps if isinstance(check.steps, list) else []
        for part in [check.name, str(check.least), *[repr([str(word) for word in step.command]) for step in steps], toolchain()]:
            digest.update(part.encode() + b"\0")
        return self.cache / "stamps" / digest.hexdigest()

    def run(self, check):
        """Runs a check and reports its result; whether all is well."""
        if check.skipped:
            return self.report(Result("skipped", check.name, check.skipped))
        if self.stopping:
            return self.report(Result("FAILED", check.name, "not run: interrupted"))
        stamp = self.stamp(check)
        if stamp and stamp.exists():
            os.utime(stamp)
            return self.report(Result("unchanged", check.name, f"since it passed: {stamp.read_text().strip()}"))
        began = time.monotonic()
        deadline = min(began + check.minutes * 60, self.deadline)
        say(f"-- {clock(began - self.began)} {check.name} …")
        path = self.logs / (re.sub(r"[^a-z0-9]+", "-", check.name.lower()).strip("-") + ".log")
        status, timed_out, processor = 0, False, 0.0
        with open(path, "wb") as log:
            steps = list(check.install() if callable(check.install) else check.install)
            for step in steps:
                status, timed_out, _ = self.execute(step, log, deadline)
                if status or timed_out:
                    break
            if status or timed_out:
                log.flush()
                last = ([line for line in path.read_text(errors="replace").splitlines() if line.strip()] or [""])[-1]
                return self.show(path, self.report_of(check, "FAILED", f"what it needs could not be installed: {last}", began, 0.0))
            try:
                steps = check.steps() if callable(check.steps) else check.steps
            except Exception as error:  # noqa: BLE001 - whatever it is, the check was not run
                return self.show(path, self.report_of(check, "FAILED", f"not run: {error}", began, 0.0))
            mark = log.tell()
            for step in steps:
                one, late, used = self.execute(step, log, deadline)
                processor += used
                status = status or one
                if late:
                    timed_out = True
                    break
        with open(path, "rb") as log:
            log.seek(mark)
            output = log.read().decode(errors="replace")
        state, text = verdict(check, status, output, timed_out)
        if state == "passed" and check.then:
            try:
                check.then(output)
            except Exception as error:  # noqa: BLE001
                state, text = "FAILED", f"{text}; {error}"
        with self.lock:
            self.slowest += [(float(seconds), name, check.name) for name, seconds in TEST_TIME.findall(output)]
        if state == "passed" and stamp:
            stamp.parent.mkdir(exist_ok=True)
            stamp.write_text(text + "\n")
        return self.show(path, self.report_of(check, state, text, began, processor))

    def report_of(self, check, state, text, began, processor):
        result = Result(state, check.name, text, time.monotonic() - began, processor)
        self.report(result)
        return result

    def show(self, path, result):
        # Without cargo's messages for programs.
        lines = [line for line in path.read_text(errors="replace").splitlines() if not line.startswith('{"reason":')]
        if result.state == "FAILED":
            shown = lines[-SHOWN_LINES_FAILED:]
        else:
            shown = [line for line in lines if CLOSING.search(line)]
            shown = [*shown, *lines[-3:]][-SHOWN_LINES_PASSED:] if not shown else shown
        with self.lock:
            say(f"\n== {clock(time.monotonic() - self.began)} {result.name}\n" + "\n".join(line[:2000] for line in shown) + f"\n{result.line()}")
        return result.state != "FAILED"

    def lanes(self, lanes):
        """Runs lists of checks beside each other; the checks of a lane in turn."""

        def lane(checks):
            for check in checks:
                self.run(check)

        threads = [threading.Thread(target=lane, args=(checks,)) for checks in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            # In steps, so that signals are handled.
            while thread.is_alive():
                thread.join(0.2)

    # -- the end

    def summary(self):
        states = [result.state for result in self.results]
        counts = ", ".join(f"{states.count(state)} {state.lower()}" for state in ("passed", "unchanged", "skipped", "FAILED"))
        processor = sum(result.processor for result in self.results)
        took = f"{clock(time.monotonic() - self.began)}, {processor / 60:.0f} minutes of a core"
        lines = [f"{self.tier}: {counts}; {took}", *(result.line() for result in self.results)]
        if self.slowest:
            lines += ["", f"the {SLOWEST} slowest tests:"]
            lines += [f"{seconds:8.1f} s  {name} ({check})" for seconds, name, check in sorted(self.slowest, reverse=True)[:SLOWEST]]
        return "\n".join(lines) + "\n"

    def finish(self):
        """Prints and keeps the summary; the exit status."""
        summary = self.summary()
        (self.logs / "summary.txt").write_text(summary)
        for old in sorted((self.cache / "runs").iterdir())[:-RUNS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        say(f"\n== in short\n{summary}\nlogs: {self.logs}")
        good = bool(self.results) and all(result.state != "FAILED" for result in self.results)
        return 0 if good and any(result.state == "passed" for result in self.results) else 1


def say(text):
    print(text, flush=True)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def kill(group, sign):
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        pass


def toolchain():
    return subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout


def listed(root, *arguments):
    """Paths that git lists below `root`, without those that were deleted."""
    names = subprocess.run(["git", "ls-files", "-z", *arguments], cwd=root, capture_output=True, check=True).stdout
    return sorted({name for name in names.decode().split("\0") if name and os.path.lexists(root / name)})


def digest_of(root, paths):
    """Of the names and contents of the files below `paths`, without documents."""
    digest = hashlib.sha256()
    names = [name for name in listed(Path(root), "--cached", "--others", "--exclude-standard", "--", *paths) if not name.endswith(".md")]
    if not names:
        raise ValueError(f"no file lies in {', '.join(paths)}")
    for name in names:
        path = Path(root) / name
        digest.update(name.encode() + b"\0")
        digest.update(os.readlink(path).encode() if path.is_symlink() else path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def synchronise(source, tree):
    """Makes `tree` a clone of `source` with the same files, and touches only those that differ.

    Cargo compares the times of files: in a new clone it compiles all our crates, in this tree only what changed.
    """
    source, tree = Path(source), Path(tree)
    git = lambda *words: subprocess.run(["git", "-C", tree, *words], check=True, capture_output=True, text=True)
    if not (tree / ".git").is_dir():
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["git", "init", "--quiet", tree], check=True)
    git("fetch", "--quiet", "--force", "--tags", "--update-shallow", source, "HEAD")
    git("update-ref", "--no-deref", "HEAD", "FETCH_HEAD")
    # The index is that of the commit; files are compared by content, so that one with a change of its own keeps its time.
    git("read-tree", "FETCH_HEAD")
    wanted = listed(source, "--cached", "--others", "--exclude-standard")
    for name in wanted:
        copy_if_changed(source / name, tree / name)
    for name in set(listed(tree, "--cached", "--others")) - set(wanted):
        (tree / name).unlink()
    # It fails where a file differs from the commit, which is no error here.
    subprocess.run(["git", "-C", tree, "update-index", "-q", "--refresh"], check=False, capture_output=True)


def copy_if_changed(source, target):
    if source.is_dir() and not source.is_symlink():
        raise ValueError(f"{source} is a repository of its own")
    if os.path.lexists(target):
        if source.is_symlink() or target.is_symlink():
            if source.is_symlink() and target.is_symlink() and os.readlink(source) == os.readlink(target):
                return
            target.unlink()
        elif target.is_dir():
            shutil.rmtree(target)
        elif source.read_bytes() == target.read_bytes():
            if source.stat().st_mode != target.stat().st_mode:
                shutil.copymode(source, target)
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all; the time is that of the copy.
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".copy-", delete=False) as partial:
        name = Path(partial.name)
    name.unlink()
    shutil.copy(source, name, follow_symlinks=False)
    name.replace(target)
