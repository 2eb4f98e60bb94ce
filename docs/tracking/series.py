"""Turns what Mettle's programs write into points for a tracker: a window, the name of a metric, a value.

A node's journal, `mettle … --json`, `/metrics` and the report of `localnet up` are read here. Nothing is trusted: lines
that are torn, too long or unknown are passed over and counted, and so are numbers that no chart can show. No tracker
is known here.

Names are those of docs/metrics.md. A part behind a slash is what is a label there, or a seat.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Union

LINE_BYTES_MAX = 32 << 20
FILE_BYTES_MAX = 256 << 20
SERIES_MAX = 8192
LABELS_MAX = 64
SETTINGS_MAX = 256
SEALED_WINDOWS_MAX = 256
TEXT_CHARACTERS_MAX = 200
MTL = 10**12
VERDICTS = ("valid", "faulty", "not_observed")
TRAFFIC = ("mettle_uploaded_bytes_total", "mettle_downloaded_bytes_total")
# What is shown of a seat, by its name in the journal.
SEAT_METRICS = {
    "common_gain": "mettle_seat_common_gain",
    "own_gain": "mettle_seat_own_gain",
    "rating": "mettle_seat_rating",
    "mark": "mettle_seat_own_data_score",
    "score": "mettle_seat_score",
    "weight": "mettle_seat_weight",
}

Value = Union[str, int, float, bool]


class InputError(Exception):
    """A file that cannot be used, and what to do."""


class Place(NamedTuple):
    """Where a value belongs."""

    metric: str
    window: int


Points = dict[Place, float]


@dataclass
class Series:
    """All that is known of a seat or a run."""

    points: Points = field(default_factory=dict)
    # What does not change: model, recipe, parameters, data.
    settings: dict[str, Value] = field(default_factory=dict)
    # What does: the model that is held, its lineage, the program's version.
    state: dict[str, Value] = field(default_factory=dict)
    # What was passed over, and how often.
    skipped: Counter[str] = field(default_factory=Counter)
    _metrics: set[str] = field(default_factory=set)

    def put(self, metric: str, window: int | None, value: object) -> None:
        """Sets a value. A later one for the same window takes its place: a window may be trained twice."""
        if window is None or value is None:
            return
        number = finite(value)
        if number is None:
            self.skipped["numbers that are not finite"] += 1
            return
        if metric not in self._metrics:
            if SERIES_MAX <= len(self._metrics):
                self.skipped["metrics beyond the bound"] += 1
                return
            self._metrics.add(metric)
        self.points[Place(metric, window)] = number

    def set(self, name: str, value: object) -> None:
        """Sets what does not change; at most a number of them."""
        if not isinstance(value, (bool, int, float, str)) or (name not in self.settings and SETTINGS_MAX <= len(self.settings)):
            return
        number = finite(value)
        is_small = number is not None and abs(number) < 1 << 63
        self.settings[name] = value if isinstance(value, bool) or is_small else plain(value)

    def copy(self) -> Series:
        return Series(dict(self.points), dict(self.settings), dict(self.state), self.skipped.copy(), set(self._metrics))

    def of(self, metric: str) -> dict[int, float]:
        """The values of a metric by window, in order."""
        return dict(sorted((place.window, value) for place, value in self.points.items() if place.metric == metric))


def finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object, bits: int = 32) -> int | None:
    """A number of a window, an epoch, a seat, or a count."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits
    return value if is_whole else None  # type: ignore[return-value]


def plain(text: object) -> str:
    """A text of another party: printable, and short."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:TEXT_CHARACTERS_MAX]


def parsed(text: bytes | str) -> object:
    """JSON, or None. Python's reader takes NaN, and refuses numbers of more than 4,300 digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class Journal:
    """Reads a node's journal entry by entry, from where it was the last time."""

    def __init__(self, sequence_tokens: int | None) -> None:
        self.series = Series()
        self.sequence_tokens = sequence_tokens
        self.counts: dict[str, float] = {"mettle_windows_missed_total": 0}
        self.highest: int | None = None
        # Bytes up and down of processes that have ended, and of the present one.
        self.ended, self.latest = (0, 0), (0, 0)
        self.labels: set[str] = set()
        # What a validator judged of the seats, until its receipt is public.
        self.sealed: dict[int, list[Any]] = {}
        self.public: set[int] = set()

    def take(self, line: bytes) -> None:
        """Takes a line. What is not an entry, or of a kind that is not known, is passed over."""
        if not line.strip():
            return
        entry = parsed(line)
        if not isinstance(entry, dict) or len(entry) != 1:
            self.series.skipped["lines that are no entry"] += 1
            return
        (kind, body), = entry.items()
        handler = HANDLERS.get(kind)
        if handler is None or not isinstance(body, dict):
            self.series.skipped["entries of an unknown kind"] += 1
            return
        window = whole(body.get("window"))
        if window is None and "window" in body:
            self.series.skipped["entries with an impossible window"] += 1
            return
        handler(self, window, body)

    def count(self, metric: str, by: object = 1) -> None:
        number = finite(by)
        if number is not None and 0 <= number:
            self.counts[metric] = self.counts.get(metric, 0) + number

    def failed(self, window: int | None, why: object) -> None:
        self.series.state["last_error"] = plain(f"window {window}: {why}" if window is not None else why)

    def started(self, _: int | None, __: dict[str, Any]) -> None:
        self.ended = (self.ended[0] + self.latest[0], self.ended[1] + self.latest[1])
        self.latest = (0, 0)
        self.count("mettle_starts_total")

    def holds(self, window: int | None, body: dict[str, Any]) -> None:
        if window is None:
            return
        self.series.state["held_window"] = window
        self.series.state["lineage"] = plain(body.get("lineage"))
        outcome = fields(body.get("outcome_before"))
        if 0 < window and len(outcome) == 1:
            self.series.put("mettle_window_merged", window - 1, int("merged" in outcome))
        # Counters are read when the node goes on to a window that it did not hold before. So a value is never
        # replaced, whatever comes late or a second time.
        if self.highest is not None and self.highest < window:
            self.sample(self.highest)
        self.highest = max(window, self.highest or 0)

    def sample(self, window: int) -> None:
        for metric, value in self.counts.items():
            self.series.put(metric, window, value)

    def traffic(self, window: int | None, body: dict[str, Any]) -> None:
        up, down = whole(body.get("bytes_up"), 64), whole(body.get("bytes_down"), 64)
        if up is None or down is None:
            return
        self.latest = (up, down)
        # It is written as a window begins, and is what was moved by the end of the one before.
        for metric, ended, now in zip(TRAFFIC, self.ended, self.latest):
            if window and Place(metric, window - 1) not in self.series.points:
                self.series.put(metric, window - 1, ended + now)

    def trained(self, window: int | None, body: dict[str, Any]) -> None:
        sequences, seconds = whole(body.get("sequences")), finite(body.get("train_seconds"))
        waited = finite(body.get("data_seconds", 0.0))
        self.series.put("mettle_train_loss", window, body.get("loss_last"))
        self.series.put("mettle_train_loss_first", window, body.get("loss_first"))
        self.series.put("mettle_training_seconds", window, seconds)
        self.count("mettle_training_seconds_total", seconds)
        self.count("mettle_data_wait_seconds_total", waited)
        if seconds is not None and 0 < seconds and waited is not None:
            self.series.put("mettle_data_wait_ratio", window, waited / seconds)
        if sequences is None:
            return
        self.series.put("mettle_trained_sequences", window, sequences)
        self.count("mettle_trained_sequences_total", sequences)
        if self.sequence_tokens is not None:
            tokens = sequences * self.sequence_tokens
            self.count("mettle_trained_tokens_total", tokens)
            if seconds is not None and 0 < seconds:
                self.series.put("mettle_tokens_per_second", window, tokens / seconds)

    def committed(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_commitments_total")
        self.series.put("mettle_sent_bytes", window, body.get("bytes"))

    def attested(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_attestations_total")
        for verdict in VERDICTS:
            seats = items(body.get(verdict))
            self.series.put(f"mettle_verdicts/{verdict}", window, len(seats))
            self.count(f"mettle_verdicts_total/{verdict}", len(seats))
            if verdict == "valid":
                continue
            for fault in seats:
                label = fields(fault).get("label")
                if not isinstance(label, str) or re.fullmatch(r"[a-z][a-z0-9-]{0,31}", label) is None:
                    label = "other"
                elif label not in self.labels:
                    if len(self.labels) < LABELS_MAX:
                        self.labels.add(label)
                    else:
                        label = "other"
                self.count(f"mettle_faults_total/{label}")

    def voted(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_votes_total")
        self.series.put("mettle_sent_bytes", window, body.get("bytes"))
        self.series.put("mettle_merged_contributions", window, len(items(body.get("inputs"))))

    def missed(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_windows_missed_total")
        self.failed(window, body.get("reason"))

    def vetoed(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_vetoes_total")
        self.series.put("mettle_veto_loss_before", window, body.get("loss_before"))
        self.series.put("mettle_veto_loss_after", window, body.get("loss_after"))

    def judged(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_windows_judged_total")
        self.count("mettle_evaluation_seconds_total", body.get("evaluate_seconds"))
        # 0: nothing was measured. Records of older releases do not say it.
        if body.get("held_out_sequences") != 0:
            self.series.put("mettle_held_out_loss", window, body.get("held_out_loss"))
        if body.get("held_out_sequences"):
            self.series.put("mettle_held_out_standard_error", window, body.get("held_out_standard_error"))
            self.series.put("mettle_held_out_sequences", window, body.get("held_out_sequences"))
        self.series.put("mettle_evaluation_seconds", window, body.get("evaluate_seconds"))
        if window is None:
            return
        # Scores are the weights that the validator is about to vote. A reader who knew them early could copy the vote, and a
        # tracker may be read by many: they are exported when the receipt is public.
        self.sealed[window] = items(body.get("seats"))
        if SEALED_WINDOWS_MAX < len(self.sealed):
            del self.sealed[min(self.sealed)]
        if window in self.public:
            self.unseal(window)

    def published(self, window: int | None, _: dict[str, Any]) -> None:
        self.count("mettle_receipts_published_total")
        if window is not None:
            self.public.add(window)
            self.unseal(window)

    def unseal(self, window: int) -> None:
        for seat in self.sealed.pop(window, []):
            uid = whole(fields(seat).get("uid"), 16)
            if uid is not None:
                for name, metric in SEAT_METRICS.items():
                    self.series.put(f"{metric}/{uid}", window, seat.get(name))

    def answered(self, _: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_probes_answered_total", body.get("answered"))
        self.count("mettle_probes_drawn_total", body.get("drawn"))

    def repeated(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_steps_repeated_total")
        self.failed(window, body.get("found"))

    def fell_back(self, _: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_files_damaged_total")
        self.failed(None, f"{body.get('file')} was damaged, and the one before it is used")

    def unpublished(self, window: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_receipts_unpublished_total")
        self.failed(window, body.get("reason"))

    def repaired(self, _: int | None, body: dict[str, Any]) -> None:
        self.count("mettle_pieces_repaired_total", body.get("pieces"))

    def resumed(self, _: int | None, __: dict[str, Any]) -> None:
        """The window goes on, which `trained` will tell."""


def counter(metric: str) -> Any:
    return lambda journal, _, __: journal.count(metric)


# By the names of `Entry` in daemon/kit/src/journal.rs; `check` compares them.
HANDLERS: dict[str, Any] = {
    "started": Journal.started,
    "holds": Journal.holds,
    "trained": Journal.trained,
    "resumed": Journal.resumed,
    "repeated": Journal.repeated,
    "fell_back": Journal.fell_back,
    "committed": Journal.committed,
    "uploaded": counter("mettle_uploads_total"),
    "missed": Journal.missed,
    "attested": Journal.attested,
    "voted": Journal.voted,
    "abstained": Journal.missed,
    "vetoed": Journal.vetoed,
    "judged": Journal.judged,
    "posted": counter("mettle_weights_posted_total"),
    "answered": Journal.answered,
    "anchored": counter("mettle_receipts_anchored_total"),
    "published": Journal.published,
    "unpublished": Journal.unpublished,
    "repaired": Journal.repaired,
    "traffic": Journal.traffic,
}


class Lines:
    """The whole lines of a file that grows, from where the last call ended. A line without its end is left for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped: Counter[str] = Counter()
        self._forget()

    def _forget(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._offset, self._rest, self._overlong = 0, b"", False

    def restarted(self) -> bool:
        """Whether the file is another one, or shorter than before: its lines are then read from the first one on."""
        found = regular(self.path)
        identity = (found.st_dev, found.st_ino)
        is_other = self._identity is not None and (identity != self._identity or found.st_size < self._offset)
        if is_other:
            self._forget()
        self._identity = identity
        return is_other

    def read(self) -> Iterator[bytes]:
        try:
            file = open(self.path, "rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            file.seek(self._offset)
            while chunk := file.read(1 << 20):
                self._offset += len(chunk)
                *lines, rest = chunk.split(b"\n")
                if lines:
                    lines[0] = self._rest + lines[0]
                    if self._overlong:
                        del lines[0]
                    self._rest, self._overlong = b"", False
                    yield from lines
                self._rest += rest
                if LINE_BYTES_MAX < len(self._rest) or self._overlong:
                    self.skipped["lines that are too long"] += not self._overlong
                    self._rest, self._overlong = b"", True


def regular(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a file; name a node's journal.jsonl, or a file that a program wrote")
    return found


def content(path: Path) -> bytes:
    if FILE_BYTES_MAX < regular(path).st_size:
        raise InputError(f"{path} is larger than {FILE_BYTES_MAX} bytes, which nothing that we write is")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Identity:
    """What makes a run of a tracker: the same seat of the same run of the same chain is the same there."""

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
    """The journal of a seat, with what lies beside it in the node's directory, and what commands said of it."""

    def __init__(self, journal: Path, facts: Facts, seat: str | None = None, run: int | None = None) -> None:
        self.facts = facts
        directory = journal.resolve().parent
        around = directory.parent if directory.name == "data" else directory
        genesis = beside(directory / "genesis").decode("ascii", "replace").strip()
        self.spec = fields(parsed(beside(directory / "spec.json")))
        number = run if run is not None else facts.run
        self.identity = Identity(
            genesis if re.fullmatch(r"[0-9a-f]{64}", genesis) else "unknown",
            number if number is not None else 0,
            seat or around.name,
        )
        self.lines = Lines(journal)
        self.lines.restarted()
        self.journal = self._begin()

    def _begin(self) -> Journal:
        model = fields(self.spec.get("model") or fields(self.facts.spec).get("model"))
        return Journal(whole(model.get("seq_len")))

    def read(self) -> Series:
        """All that is known by now."""
        if self.lines.restarted():
            self.journal = self._begin()
        for line in self.lines.read():
            self.journal.take(line)
        series = self.journal.series.copy()
        series.skipped += self.lines.skipped
        series.settings.update(genesis=self.identity.genesis, run=self.identity.run, seat=self.identity.seat)
        flatten(series, "spec", self.spec)
        self.facts.add_to(series)
        return series


def beside(path: Path) -> bytes:
    """A small file that need not be there."""
    try:
        return content(path) if path.exists() else b""
    except OSError:
        return b""


def flatten(series: Series, name: str, value: object, depth: int = 0) -> None:
    """Settings with dotted names; lists as text."""
    if isinstance(value, dict) and depth < 4:
        for key, part in value.items():
            if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key):
                flatten(series, f"{name}.{key}", part, depth + 1)
    elif isinstance(value, list):
        series.set(name, json.dumps(value)[:TEXT_CHARACTERS_MAX])
    else:
        series.set(name, value)


class Facts:
    """What other commands say of a run or a seat. Files are told apart by what is in them.

    mettle run show --json      model, recipe, parameters, data
    mettle status --json        the seat, its earnings, pay by epoch
    mettle receipts --json      scores by validator, pay by window
    GET /metrics                role, seat, and the program's version
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self.of_seat = False
        self.read()

    def read(self) -> None:
        """Reads all files anew."""
        self.run: int | None = None
        self.spec: object = None
        self.shown: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.windows: list[Any] = []
        self.exported: dict[str, str] = {}
        for path in self.paths:
            before, self.run = self.run, None
            self._take(path, content(path))
            if before is not None and self.run not in (None, before):
                raise InputError(f"{path} is of run {self.run}, and a file before it of run {before}")
            self.run = before if self.run is None else self.run

    def _take(self, path: Path, text: bytes) -> None:
        seat = re.search(rb'^mettle_seat\{([^}\n]{1,500})\} 1\b', text, re.MULTILINE)
        if seat is not None:
            labels = re.findall(r'(\w+)="([^"]*)"', seat[1].decode("utf-8", "replace"))
            self.exported = {name: plain(value) for name, value in labels}
            if self.exported.get("run", "").isdecimal():
                self.run = whole(int(self.exported["run"][:10]))
            self.of_seat = True
            return
        value = fields(parsed(text))
        result = fields(value.get("result")) or value
        if "manifest_digest" in result:
            self.shown = result
            self.run = whole(result.get("run"))
            self.spec = fields(result.get("spec"))
        elif "seat" in result:
            self.status = result
            self.run = whole(fields(result.get("run")).get("id"))
            self.of_seat = True
        elif "windows" in result and "uid" in result:
            self.windows = items(result.get("windows"))
            self.of_seat = True
        else:
            error = fields(value.get("error")).get("message")
            why = f"it holds an error: {plain(error)}" if error else "it is no output of these commands"
            raise InputError(f"{path} says nothing of a run or a seat: {why}. Take `mettle run show`, `status` or `receipts` "
                             "with --json, or a node's /metrics")

    def add_to(self, series: Series) -> None:
        for name in ("spec", "params", "data"):
            flatten(series, name, self.shown.get(name))
        for name in ("manifest_digest", "spec_digest", "theta0", "parameters"):
            series.set(name, self.shown.get(name))
        for name in ("role", "uid", "version"):
            if name in self.exported:
                series.state[name] = self.exported[name]
        seat = fields(self.status.get("seat"))
        for name in ("role", "uid", "hotkey"):
            if name in seat:
                series.state[name] = plain(seat[name])
        earned = amount(seat.get("earned"))
        if earned is not None:
            series.state["earned_mtl"] = earned
        epoch_windows = whole(fields(self.shown.get("params")).get("epoch_windows"))
        for slip in items(self.status.get("payslips"))[:1024]:
            epoch, paid = whole(fields(slip).get("epoch")), amount(fields(slip).get("amount"))
            if epoch is not None and paid is not None and epoch_windows is not None and 0 < epoch_windows <= 4096:
                for paid_window in range(epoch * epoch_windows, (epoch + 1) * epoch_windows):
                    series.put("mettle_epoch_pay_mtl", whole(paid_window), paid)
        for entry in self.windows:
            window = whole(fields(entry).get("window"))
            if window is not None:
                self._add_receipts(series, window, entry)

    @staticmethod
    def _add_receipts(series: Series, window: int, entry: dict[str, Any]) -> None:
        series.put("mettle_epoch_pay_mtl", window, amount(fields(entry.get("pay")).get("amount")))
        for receipt in items(entry.get("validators")):
            validator = whole(fields(receipt).get("validator"), 16)
            result = fields(fields(fields(receipt).get("judged")).get("result"))
            if validator is None:
                continue
            for name in ("score", "weight", "common_gain", "own_gain"):
                series.put(f"mettle_receipt_{name}/{validator}", window, result.get(name))
            rating = fields(fields(fields(receipt).get("after")).get("standing")).get("mu")
            series.put(f"mettle_receipt_rating/{validator}", window, rating)


def amount(text: object) -> float | None:
    """An amount of the chain's smallest unit, in MTL."""
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,39}", text):
        return int(text) / MTL
    return None


def report(path: Path) -> Series:
    """The report of `localnet up --report`."""
    found = fields(parsed(content(path)))
    losses = items(found.get("held_out_loss"))
    if "lineage" not in found or "held_out_loss" not in found:
        raise InputError(f"{path} is no report of `localnet up --report`")
    series = Series()
    for window, (loss, error) in enumerate(zip(losses, items(found.get("held_out_standard_error")))):
        series.put("mettle_held_out_loss", window, loss)
        series.put("mettle_held_out_standard_error", window, error)
    void = {whole(window) for window in items(found.get("void_windows"))}
    windows = whole(found.get("windows")) or 0
    for window in range(min(windows, len(items(found.get("lineage"))))):
        series.put("mettle_window_merged", window, int(window not in void))
    tokens = whole(found.get("tokens"), 64)
    if tokens is not None and 0 < windows <= 1 << 20:
        # Only their sum is known: each window counts for an equal part.
        for window in range(windows):
            series.put("mettle_trained_tokens_total", window, tokens * (window + 1) / windows)
    names = Counter(f"{fields(seat).get('role')}s.{fields(seat).get('conduct')}" for seat in items(found.get("seats")))
    for name, number in sorted(names.items()):
        series.set(re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64], number)
    for name in ("held_out_sequences", "unigram_loss"):
        series.set(name, found.get(name))
    for name in ("windows", "lineage_agreed", "seconds", "compute_share", "data_wait_share", "bytes_up", "bytes_down"):
        value = found.get(name)
        if isinstance(value, (bool, int, float)):
            series.state[name] = value
    series.state["faults"] = len(items(found.get("faults")))
    return series


def report_identity(path: Path, name: str | None = None) -> Identity:
    """A report names no chain. The lineage after its first window is of this training alone."""
    lineages = items(fields(parsed(content(path))).get("lineage"))
    return Identity(plain(lineages[:2][-1]) if lineages else "unknown", 0, name or path.stem)
