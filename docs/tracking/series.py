"""Turns the files of Mettle's programs into points: a window, the name of a metric, a value.

Reads a node's journal, `mettle … --json`, `/metrics` and the report of `localnet up`. No input is trusted: lines that
are torn, too long or of an unknown kind are passed over and counted, and so are numbers that are not finite.

Names are those of docs/metrics.md. After a slash stands what is a label there, or a seat.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

LINE_BYTES_MAX = 32 << 20
FILE_BYTES_MAX = 256 << 20
SERIES_MAX = 8192
LABELS_MAX = 64
SETTINGS_MAX = 256
SEALED_WINDOWS_MAX = 256
TEXT_CHARACTERS_MAX = 200
MTL = 10**12
VERDICTS = ("valid", "faulty", "not_observed")
# Metrics of an entry, by the names of `Entry` in daemon/kit/src/journal.rs, and the field with the value. A name that
# ends in `_total` is a counter; without a field it counts entries. `check` compares the kinds with the code.
KINDS: dict[str, dict[str, str]] = {
    "started": {"mettle_starts_total": ""}, "resumed": {}, "holds": {}, "traffic": {},
    "trained": {
        "mettle_train_loss": "loss_last", "mettle_train_loss_first": "loss_first", "mettle_trained_sequences": "sequences",
        "mettle_training_seconds": "train_seconds", "mettle_training_seconds_total": "train_seconds",
        "mettle_data_wait_seconds_total": "data_seconds", "mettle_trained_sequences_total": "sequences",
    },
    "repeated": {"mettle_steps_repeated_total": ""}, "fell_back": {"mettle_files_damaged_total": ""},
    "committed": {"mettle_commitments_total": "", "mettle_sent_bytes": "bytes"}, "uploaded": {"mettle_uploads_total": ""},
    "missed": {"mettle_windows_missed_total": ""}, "abstained": {"mettle_windows_missed_total": ""},
    "attested": {"mettle_attestations_total": ""},
    "voted": {"mettle_votes_total": "", "mettle_sent_bytes": "bytes", "mettle_merged_contributions": "inputs"},
    "vetoed": {"mettle_vetoes_total": "", "mettle_veto_loss_before": "loss_before", "mettle_veto_loss_after": "loss_after"},
    "judged": {
        "mettle_windows_judged_total": "", "mettle_held_out_loss": "held_out_loss",
        "mettle_held_out_standard_error": "held_out_standard_error", "mettle_held_out_sequences": "held_out_sequences",
        "mettle_evaluation_seconds": "evaluate_seconds", "mettle_evaluation_seconds_total": "evaluate_seconds",
    },
    "posted": {"mettle_weights_posted_total": ""}, "repaired": {"mettle_pieces_repaired_total": "pieces"},
    "answered": {"mettle_probes_answered_total": "answered", "mettle_probes_drawn_total": "drawn"},
    "anchored": {"mettle_receipts_anchored_total": ""}, "published": {"mettle_receipts_published_total": ""},
    "unpublished": {"mettle_receipts_unpublished_total": ""},
}
# The field that is shown as the last error.
ERRORS = {"missed": "reason", "abstained": "reason", "unpublished": "reason", "repeated": "found", "fell_back": "file"}
SEAT_METRICS = {
    "mettle_seat_common_gain": "common_gain", "mettle_seat_own_gain": "own_gain", "mettle_seat_rating": "rating",
    "mettle_seat_own_data_score": "own_data_score", "mettle_seat_score": "score", "mettle_seat_weight": "weight",
}
RECEIPT_METRICS = {
    "mettle_receipt_score": ("judged", "result", "score"), "mettle_receipt_weight": ("judged", "result", "weight"),
    "mettle_receipt_common_gain": ("judged", "result", "common_gain"), "mettle_receipt_own_gain": ("judged", "result", "own_gain"),
    "mettle_receipt_rating": ("after", "reputation", "mu"),
}


class InputError(Exception):
    """A file that cannot be used, and what to do."""


class Place(NamedTuple):
    metric: str
    window: int


class Series:
    """Everything known of a seat or a report."""

    def __init__(self) -> None:
        self.points: dict[Place, float] = {}
        self.metrics: set[str] = set()
        # Constant: model, recipe, parameters, data. Changing: the held window, its lineage, the program's version.
        self.settings: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        # What was passed over, and how often.
        self.skipped: Counter[str] = Counter()

    def put(self, metric: str, window: int | None, value: object) -> None:
        """Sets a value. A later one for the same window replaces it: a window may be trained twice."""
        if window is None or value is None:
            return
        number = finite(value)
        if number is None:
            self.skipped["numbers that are not finite"] += 1
        elif metric not in self.metrics and SERIES_MAX <= len(self.metrics):
            self.skipped["metrics beyond the bound"] += 1
        else:
            self.metrics.add(metric)
            self.points[Place(metric, window)] = number

    def set(self, name: str, value: object, depth: int = 0) -> None:
        """Sets a constant: the parts of an object by dotted names, a list as text."""
        if isinstance(value, dict) and depth < 4:
            for key, part in value.items():
                if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key):
                    self.set(f"{name}.{key}", part, depth + 1)
        elif isinstance(value, (list, bool, int, float, str)) and (name in self.settings or len(self.settings) < SETTINGS_MAX):
            number = finite(value)
            is_plain = isinstance(value, bool) or number is not None and abs(number) < 1 << 63
            self.settings[name] = value if is_plain else plain(json.dumps(value) if isinstance(value, list) else value)

    def of(self, metric: str) -> dict[int, float]:
        """The values of a metric by window, in order."""
        return dict(sorted((place.window, value) for place, value in self.points.items() if place.metric == metric))


def finite(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def whole(value: object, bits: int = 32) -> int | None:
    """The number of a window, an epoch or a seat, or a count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits else None


def plain(text: object) -> str:
    """A text of another party: printable and short."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:TEXT_CHARACTERS_MAX]


def parsed(text: bytes | str) -> object:
    """JSON, or None. Python's reader accepts NaN, and refuses numbers of more than 4,300 digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def at(value: object, *names: str) -> Any:
    """A part of JSON, or None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class Journal:
    """Takes a node's journal entry by entry. A method with the name of a kind does what KINDS cannot say."""

    def __init__(self, sequence_tokens: int | None) -> None:
        self.series = Series()
        self.sequence_tokens = sequence_tokens
        self.counts: dict[str, float] = {"mettle_windows_missed_total": 0}
        self.highest: int | None = None
        # Bytes up and down of processes that have ended, and of the present one.
        self.ended, self.latest = (0, 0), (0, 0)
        self.labels: set[str] = set()
        # A validator's scores by window, until its receipt is public.
        self.sealed: dict[int | None, list[Any]] = {}
        self.public: set[int | None] = set()

    def take(self, line: bytes) -> None:
        if not line.strip():
            return
        entry = parsed(line)
        if not isinstance(entry, dict) or len(entry) != 1:
            self.series.skipped["lines that are no entry"] += 1
            return
        (kind, body), = entry.items()
        window = whole(body.get("window")) if isinstance(body, dict) else None
        if kind not in KINDS or not isinstance(body, dict):
            self.series.skipped["entries of an unknown kind"] += 1
        elif window is None and "window" in body:
            self.series.skipped["entries with an impossible window"] += 1
        else:
            getattr(self, kind, lambda *_: None)(window, body)
            for metric, name in KINDS[kind].items():
                if metric.endswith("_total"):
                    self.count(metric, body.get(name) if name else 1)
                else:
                    self.series.put(metric, window, body.get(name))
            for seat in self.sealed.pop(window, []) if window in self.public else []:
                uid = whole(at(seat, "uid"), 16)
                for metric, name in SEAT_METRICS.items() if uid is not None else ():
                    self.series.put(f"{metric}/{uid}", window, seat.get(name))
            if kind in ERRORS:
                where = "damaged file" if window is None else f"window {window}"
                self.series.state["last_error"] = plain(f"{where}: {body.get(ERRORS[kind])}")

    def count(self, metric: str, by: object = 1) -> None:
        number = finite(by)
        if number is not None and 0 <= number:
            self.counts[metric] = self.counts.get(metric, 0) + number

    def started(self, *_: object) -> None:
        self.ended, self.latest = (self.ended[0] + self.latest[0], self.ended[1] + self.latest[1]), (0, 0)

    def holds(self, window: int | None, body: dict[str, Any]) -> None:
        if window is None:
            return
        self.series.state.update(held_window=window, lineage=plain(body.get("lineage")))
        outcome = body.get("outcome_before")
        if 0 < window and isinstance(outcome, dict) and len(outcome) == 1:
            self.series.put("mettle_window_merged", window - 1, int("merged" in outcome))
        # Counters are read when the node holds a window for the first time, so a later entry never replaces a value.
        if self.highest is not None and self.highest < window:
            for metric, value in self.counts.items():
                self.series.put(metric, self.highest, value)
        self.highest = max(window, self.highest or 0)

    def traffic(self, window: int | None, body: dict[str, Any]) -> None:
        up, down = whole(body.get("bytes_up"), 64), whole(body.get("bytes_down"), 64)
        if up is None or down is None:
            return
        self.latest = (up, down)
        # The entry is written as a window begins, and counts the bytes until the end of the one before.
        for index, metric in enumerate(("mettle_uploaded_bytes_total", "mettle_downloaded_bytes_total")):
            if window and Place(metric, window - 1) not in self.series.points:
                self.series.put(metric, window - 1, self.ended[index] + self.latest[index])

    def trained(self, window: int | None, body: dict[str, Any]) -> None:
        sequences, seconds = whole(body.get("sequences")), finite(body.get("train_seconds")) or 0
        waited = finite(body.setdefault("data_seconds", 0.0))
        if 0 < seconds and waited is not None:
            self.series.put("mettle_data_wait_ratio", window, waited / seconds)
        if sequences is not None and self.sequence_tokens is not None:
            tokens = sequences * self.sequence_tokens
            self.count("mettle_trained_tokens_total", tokens)
            if 0 < seconds:
                self.series.put("mettle_tokens_per_second", window, tokens / seconds)

    def attested(self, window: int | None, body: dict[str, Any]) -> None:
        for verdict in VERDICTS:
            seats = items(body.get(verdict))
            self.series.put(f"mettle_verdicts/{verdict}", window, len(seats))
            self.count(f"mettle_verdicts_total/{verdict}", len(seats))
            for fault in seats if verdict != "valid" else []:
                label = str(at(fault, "label"))
                is_label = re.fullmatch(r"[a-z][a-z0-9-]{0,31}", label) and len(self.labels | {label}) <= LABELS_MAX
                self.labels.update({label} if is_label else ())
                self.count(f"mettle_faults_total/{label if is_label else 'other'}")

    def voted(self, _: int | None, body: dict[str, Any]) -> None:
        body["inputs"] = len(items(body.get("inputs")))

    def judged(self, window: int | None, body: dict[str, Any]) -> None:
        # 0 sequences: nothing was measured. Entries of older releases have no such field, and no standard error.
        if body.get("held_out_sequences") == 0:
            body["held_out_loss"] = None
        if not body.get("held_out_sequences"):
            body["held_out_standard_error"] = body["held_out_sequences"] = None
        if window is None:
            return
        # Scores are the weights that the validator is about to vote, and many may read a tracker: a reader could copy
        # the vote. So they are exported when the receipt is public.
        self.sealed[window] = items(body.get("seats"))
        if SEALED_WINDOWS_MAX < len(self.sealed):
            del self.sealed[min(self.sealed)]

    def published(self, window: int | None, _: dict[str, Any]) -> None:
        self.public.add(window)


def whole_lines(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    """The lines of a file. One without its end is left out: the node is still writing it."""
    regular(path)
    with open(path, "rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            if line.endswith(b"\n"):
                yield line
            elif len(line) == LINE_BYTES_MAX:
                skipped["lines that are too long"] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES_MAX)


def regular(path: Path) -> os.stat_result:
    """The state of a file that can be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    found = os.fstat(file)
    os.close(file)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a file; name a node's journal.jsonl, or a file that a program wrote")
    return found


def content(path: Path) -> bytes:
    if FILE_BYTES_MAX < regular(path).st_size:
        raise InputError(f"{path} is larger than {FILE_BYTES_MAX} bytes, and no program of Mettle writes such a file")
    return path.read_bytes()


class Identity(NamedTuple):
    """What makes a run in a tracker: the same seat of the same run of the same chain."""

    genesis: str
    run: int
    seat: str

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps([self.genesis, self.run, self.seat]).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """For people and for folders."""
        seat = re.sub(r"[^A-Za-z0-9._-]+", "-", self.seat).strip(".-")[:64] or "seat"
        return f"run-{self.run}-{seat}-{self.id[:8]}"


class Seat:
    """A seat's journal, the files beside it in the node's directory, and facts from commands."""

    def __init__(self, journal: Path, facts: Facts, seat: str | None = None, run: int | None = None) -> None:
        directory = journal.resolve().parent
        around = directory.parent if directory.name == "data" else directory
        beside = [directory / name for name in ("genesis", "spec.json")]
        genesis, spec = (content(path) if path.is_file() else b"" for path in beside)
        known = re.fullmatch(rb"([0-9a-f]{64})\s*", genesis)
        self.path, self.facts, self.spec, self.stamps = journal, facts, parsed(spec), None
        self.identity = Identity(known[1].decode() if known else "unknown", (facts.run or 0) if run is None else run, seat or around.name)
        self.read()

    def read(self) -> Series:
        """Reads all files again, if one of them has changed."""
        stamps = [(found.st_ino, found.st_size, found.st_mtime_ns) for found in map(regular, [self.path, *self.facts.paths])]
        if stamps != self.stamps:
            self.facts.read()
            model = at(self.spec, "model") or at(self.facts.shown, "spec", "model")
            journal = Journal(whole(at(model, "seq_len")))
            for line in whole_lines(self.path, journal.series.skipped):
                journal.take(line)
            self.series, self.stamps = journal.series, stamps
            self.series.settings.update(genesis=self.identity.genesis, run=self.identity.run, seat=self.identity.seat)
            self.series.set("spec", self.spec)
            self.facts.add_to(self.series)
        return self.series


class Facts:
    """What commands say of a run or a seat. Files are told apart by their content.

    mettle run show --json      model, recipe, parameters, data
    mettle status --json        the seat, its earnings, pay by epoch
    mettle receipts --json      scores by validator, pay by window
    GET /metrics                role, seat, and the program's version
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self.read()

    def read(self) -> None:
        """Reads all files again."""
        self.run: int | None = None
        self.shown = self.status = self.receipts = self.labels = {}
        for path in self.paths:
            run = whole(self._take(path, content(path)))
            if None not in (run, self.run) and run != self.run:
                raise InputError(f"{path} is of run {run}, and a file before it of run {self.run}")
            self.run = run if self.run is None else self.run
        self.of_seat = bool(self.status or self.receipts or self.labels)

    def _take(self, path: Path, text: bytes) -> object:
        """Returns the number of the run, if the file has it."""
        seat = re.search(rb'^mettle_seat\{([^}\n]{1,500})\} 1\b', text, re.MULTILINE)
        if seat is not None:
            self.labels = dict(re.findall(r'(\w+)="([^"]*)"', seat[1].decode("utf-8", "replace")))
            return parsed(self.labels.get("run", ""))
        value = parsed(text)
        result = at(value, "result") or value
        for name, field, run in (("shown", "manifest_digest", ["run"]), ("status", "seat", ["run", "id"]), ("receipts", "uid", ["run"])):
            if isinstance(result, dict) and field in result:
                setattr(self, name, result)
                return at(result, *run)
        error = at(value, "error", "message")
        why = f"it holds an error: {plain(error)}" if error else "it is not output of these commands"
        raise InputError(f"{path} says nothing of a run or a seat: {why}. Take `mettle run show`, `status` or `receipts` "
                         "with --json, or a node's /metrics")

    def add_to(self, series: Series) -> None:
        for name in ("spec", "params", "data", "manifest_digest", "spec_digest", "theta0", "parameters"):
            series.set(name, at(self.shown, name))
        earned = amount(at(self.status, "seat", "earned"))
        series.state.update({"earned_mtl": earned} if earned is not None else {})
        for name in ("role", "uid", "version", "hotkey"):
            value = at(self.status, "seat", name)
            value = self.labels.get(name) if value is None else value
            if value is not None:
                series.state[name] = plain(value)
        windows = whole(at(self.shown, "params", "epoch_windows"), 12) or 0
        for slip in items(at(self.status, "payslips"))[:1024]:
            epoch = whole(at(slip, "epoch"))
            for window in range(epoch * windows, (epoch + 1) * windows) if epoch is not None else ():
                series.put("mettle_epoch_pay_mtl", whole(window), amount(at(slip, "amount")))
        for entry in items(at(self.receipts, "windows")):
            paid_window = whole(at(entry, "window"))
            series.put("mettle_epoch_pay_mtl", paid_window, amount(at(entry, "pay", "amount")))
            for receipt in items(at(entry, "validators")):
                validator = whole(at(receipt, "validator"), 16)
                for metric, names in RECEIPT_METRICS.items() if validator is not None else ():
                    series.put(f"{metric}/{validator}", paid_window, at(receipt, *names))


def amount(text: object) -> float | None:
    """An amount of the chain's smallest unit, in MTL."""
    return int(text) / MTL if isinstance(text, str) and re.fullmatch(r"[0-9]{1,39}", text) else None


class Report:
    """The report of `localnet up --report`."""

    def __init__(self, path: Path, seat: str | None = None) -> None:
        self.path = path
        self.read()
        # A report names no chain. The lineage after its first window is of this training alone.
        lineages = items(at(parsed(content(path)), "lineage"))
        self.identity = Identity(plain(lineages[:2][-1]) if lineages else "unknown", 0, seat or path.stem)

    def read(self) -> Series:
        found = parsed(content(self.path))
        if at(found, "lineage") is None or at(found, "held_out_loss") is None:
            raise InputError(f"{self.path} is not a report of `localnet up --report`")
        self.series = series = Series()
        for metric in ("held_out_loss", "held_out_standard_error"):
            for window, value in enumerate(items(at(found, metric))):
                series.put(f"mettle_{metric}", window, value)
        void = {whole(window) for window in items(at(found, "void_windows"))}
        windows, tokens = whole(at(found, "windows"), 20) or 0, whole(at(found, "tokens"), 64)
        for window in range(windows):
            if window < len(items(at(found, "lineage"))):
                series.put("mettle_window_merged", window, int(window not in void))
            # A report has only the sum of tokens: each window counts for an equal part.
            if tokens is not None:
                series.put("mettle_trained_tokens_total", window, tokens * (window + 1) / windows)
        names = Counter(f"{at(seat, 'role')}s.{at(seat, 'strategy')}" for seat in items(at(found, "seats")))
        for name, number in sorted(names.items()):
            series.set(re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64], number)
        for name in ("held_out_sequences", "unigram_loss"):
            series.set(name, at(found, name))
        state = ("windows", "lineage_agreed", "seconds", "compute_share", "data_wait_share", "bytes_up", "bytes_down")
        series.state.update((name, at(found, name)) for name in state if isinstance(at(found, name), (bool, int, float)))
        series.state["faults"] = len(items(at(found, "faults")))
        return series
