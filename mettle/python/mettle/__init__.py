"""Read, verify and recompute runs of a Mettle network.

>>> import mettle
>>> run = mettle.Run("ws://127.0.0.1:9944")  # doctest: +SKIP
>>> [(window.number, window.outcome) for window in run.windows(3)]  # doctest: +SKIP
[(4, 'merged'), (5, 'merged'), (6, None)]

Everything is read from the chain's latest finalised block, and what buckets give is checked against it. No key is
needed. Amounts are whole numbers of the smallest unit: `UNIT` of them are one MTL.

A call waits without the interpreter's lock, so other threads go on; Ctrl-C ends it. What fails is a
`mettle.errors.MettleError`, which says what, why and what to do; so is an argument of the right type that cannot be
used, such as half a digest: a `UsageError`. An argument of the wrong type is a `TypeError`. After `os.fork` a child
has to open its own run in a new interpreter: start processes by `spawn`.
"""

from __future__ import annotations

import json
import operator
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from mettle import errors
from mettle.errors import MettleError, UsageError

if TYPE_CHECKING:
    import numpy

__all__ = [
    "UNIT",
    "Difference",
    "MettleError",
    "Model",
    "Pay",
    "Receipt",
    "Replay",
    "Run",
    "Seat",
    "Status",
    "Unchecked",
    "Window",
    "errors",
    "runs",
]

UNIT = 10**12
"""The smallest units of one MTL."""

ONE = 2**32
"""Shares on the chain are parts of this number."""

WINDOWS_KEPT = 128
"""Windows that the chain keeps."""

_U16, _U32 = 2**16 - 1, 2**32 - 1


@dataclass(frozen=True)
class Status:
    """Where a run stands."""

    block: int
    """The latest finalised block."""
    window: int | None
    """The open window; `None` before the run starts."""
    epoch: int | None
    paused: bool
    """Whether too little of the stake takes part."""
    checkpoint: int | None
    """The window that opens with the latest checkpoint; `None` while that is the run's first model."""
    miners: int
    validators: int
    treasury: int
    raw: dict[str, Any] = field(repr=False)
    """All that the chain says."""


@dataclass(frozen=True)
class Seat:
    """A seat of a run."""

    uid: int
    role: str
    """`miner` or `validator`."""
    hotkey: str
    """In hex."""
    coldkey: str
    """The owner's address."""
    endpoint: str
    """The base URL of the seat's public bucket, or how else it is reached."""
    stake: int
    claimable: int
    """Pay that waits to be claimed."""
    earned: int
    """Pay ever credited."""
    weight: int
    """The consensus weight, of 65535."""
    last_attested: int | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Window:
    """A window, as the chain holds it. It grows until `outcome` is there, and never changes then."""

    number: int
    lineage: str
    """Digest of all that was merged before: of the model that the window opens with."""
    outcome: str | None
    """`merged` or `void`; `None` while the window is open."""
    update: str | None
    """Digest of the merged update."""
    state_root: str | None
    """Of the state after the window, if validators voted a checkpoint there."""
    void_reason: str | None
    commitments: dict[int, str] = field(repr=False)
    """Digest of each miner's contribution, by uid."""
    selected: list[int] = field(repr=False)
    """Miners whose contributions were selected."""
    attested: list[int] = field(repr=False)
    """Validators that attested."""
    votes: dict[int, str] = field(repr=False)
    """Digest of the update that each validator voted for, by uid."""
    receipts: dict[int, str] = field(repr=False)
    """Digest of each validator's receipt, by uid."""
    weights: dict[int, int] = field(repr=False)
    """Consensus weights at the opening, of 65535, by uid."""
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Pay:
    """What a seat was paid for an epoch."""

    epoch: int
    amount: int
    pot: int
    """What the run paid at most in that epoch."""
    merged: int
    """Merged windows of the epoch."""
    weight: int
    """The consensus weight, of 65535."""
    incentive: float
    """Share of the miners' pay."""
    dividends: float
    """Share of the validators' pay."""


@dataclass(frozen=True)
class Receipt:
    """What a validator signed about a window. Its digest is on the chain, and the bytes prove it to others."""

    validator: int
    window: int
    digest: str
    data: bytes = field(repr=False)
    content: dict[str, Any] = field(repr=False)
    """All that it says; `docs/receipts.md` explains the parts."""

    def judged(self, uid: int) -> dict[str, Any] | None:
        """What it says of a seat's work; `None` if it judged none."""
        seats = (self.content["judgement"] or {}).get("seats", [])
        return next((seat for seat in seats if seat["seat"]["uid"] == uid), None)

    @property
    def weights(self) -> dict[int, int]:
        """The weights that follow, of 65535, by uid; empty if it judged no seat."""
        return dict((self.content["judgement"] or {}).get("weights", []))


@dataclass(frozen=True)
class Difference:
    """Where a receipt, the chain and the recomputed result differ."""

    rule: str
    """The rule that it breaks, such as PROT-22."""
    message: str


@dataclass(frozen=True)
class Unchecked:
    """What could not be compared. It is no evidence."""

    what: str
    why: str
    to_do: str


@dataclass(frozen=True)
class Replay:
    """A validator's window, judged again on this machine."""

    validator: int
    attested: bool
    """Whether the chain has its attestation."""
    voted: bool
    audited: bool
    """Whether there was a receipt to compare."""
    why: str
    """Why there was none; else empty."""
    differences: list[Difference]
    unchecked: list[Unchecked]
    raw: dict[str, Any] = field(repr=False)

    @property
    def agrees(self) -> bool:
        """Whether everything was compared, and nothing differs."""
        return self.audited and not self.differences and not self.unchecked

    @property
    def measured(self) -> int:
        """Seats whose losses were measured again."""
        return int(self.raw["checks"]["losses"]) if self.audited else 0


@dataclass(frozen=True)
class Model:
    """A verified model in Hugging Face's format."""

    directory: Path
    run: int
    window: int
    """The window that opens with it."""
    lineage: str
    weights_root: str
    files: list[str]
    """The safetensors."""
    bytes: int

    def arrays(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """The parameters as numpy arrays, by name. Needs `pip install mettle[numpy]`."""
        from safetensors.numpy import load_file

        found: dict[str, numpy.ndarray[Any, Any]] = {}
        for name in self.files:
            found.update(load_file(self.directory / name))
        return found


def runs(url: str, *, genesis: str | None = None, allow_plain_ws: bool = False, patience: float = 30.0) -> list[int]:
    """The ids of the runs of the chain at `url`; the arguments are those of `Run`."""
    from mettle._native import runs

    return runs(url, genesis, allow_plain_ws, patience)


class Run:
    """A run, read from a chain and from public buckets. It may be used from several threads.

    `url` is the chain's JSON-RPC. `genesis`, the hash of the chain's block 0, is required but on a development chain;
    another chain is refused. `allow_plain_ws` allows `ws://` to a host that is not in a private network. `patience`
    says how many seconds a read waits for a chain that does not answer.
    """

    def __init__(
        self,
        url: str,
        run: int = 0,
        *,
        genesis: str | None = None,
        allow_plain_ws: bool = False,
        patience: float = 30.0,
    ) -> None:
        from mettle._native import Native

        run = _whole("the run", run, _U32)
        self._native = Native(url, run, genesis, allow_plain_ws, patience)
        self.url, self.id = url, run

    def __repr__(self) -> str:
        return f"Run({self.url!r}, {self.id})"

    @property
    def genesis(self) -> str:
        """The hash of the chain's block 0."""
        return self._native.genesis

    def status(self) -> Status:
        """Where the run stands."""
        raw = json.loads(self._native.status())
        run = raw["run"]
        return Status(
            block=raw["block"],
            window=raw["window"],
            epoch=raw["epoch"],
            paused=run["paused"],
            checkpoint=run["checkpoint"] and run["checkpoint"]["window"],
            miners=raw["miners"]["taken"],
            validators=raw["validators"]["taken"],
            treasury=run["treasury"],
            raw=raw,
        )

    def seats(self) -> list[Seat]:
        """All seats, by uid."""
        return [_seat(raw) for raw in json.loads(self._native.seats())]

    def windows(self, last: int = WINDOWS_KEPT) -> list[Window]:
        """The newest windows, at most `last` and the 128 that the chain keeps. The last of them is
        the open one, whose outcome may be fixed already."""
        return [_window(raw) for raw in json.loads(self._native.windows(_whole("the number of windows", last, _U32)))]

    def window(self, number: int) -> Window:
        """One window."""
        return _window(json.loads(self._native.window(_whole("the window", number, _U32))))

    def pay(self, uid: int) -> list[Pay]:
        """A seat's pay by epoch, the latest last. The chain keeps 64 epochs."""
        return [_pay(raw) for raw in json.loads(self._native.pay(_whole("the uid", uid, _U16)))]

    def checkpoint(self, to: str | os.PathLike[str], window: int | None = None) -> Model:
        """Writes a checkpoint that two thirds of the stake voted to the new directory `to`: the latest, or the one that
        opens `window`. Each piece is checked against the vote. What an interrupted call has fetched stays beside `to`,
        and the next call goes on."""
        opening = None if window is None else _whole("the window", window, _U32)
        return _model(json.loads(self._native.save(to, False, opening)))

    def model(self, to: str | os.PathLike[str]) -> Model:
        """Writes the newest model that two thirds of the stake agreed on to the new directory `to`: the latest
        checkpoint and every update since, with the lineage checked against the chain at each window."""
        return _model(json.loads(self._native.save(to, True, None)))

    def receipts(self, window: int) -> dict[int, Receipt | MettleError]:
        """What each validator signed about a window, by uid, checked against chain and signature. An exception in its
        place says why there is none: a receipt is public some windows after its own."""
        window = _whole("the window", window, _U32)
        found: dict[int, Receipt | MettleError] = {}
        for uid, receipt, error in self._native.receipts(window):
            if receipt is not None:
                digest, data, content = receipt
                found[uid] = Receipt(uid, window, digest, data, json.loads(content))
            elif error is not None:
                found[uid] = error
        return found

    def verify_receipt(self, data: bytes, digest: str | None = None) -> Receipt:
        """Reads the bytes of a receipt from anywhere. They have to be signed for this chain by the hotkey that they
        name, in the one spelling there is, and to have the `digest` that the chain has, if it is given. An empty
        digest is none that a receipt can have: without one, leave it out."""
        found, said = self._native.verify_receipt(data, digest)
        content = json.loads(said)
        return Receipt(content["validator"]["uid"], content["window"], found, data, content)

    def replay(
        self,
        window: int,
        uid: int | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        tolerance: float | None = None,
    ) -> list[Replay]:
        """Judges a window again as its validators did, or as the one with this `uid` did, and compares: model, merge
        and losses are recomputed on this machine's CPU. The run's data is fetched into `cache`, by default below
        `~/.cache/mettle`. `tolerance` is the allowed difference of a loss, in nats per token."""
        window = _whole("the window", window, _U32)
        uid = None if uid is None else _whole("the uid", uid, _U16)
        if cache is None:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            cache = base / "mettle" / f"run-{self.genesis[:16]}-{self.id}"
        return [_replay(raw) for raw in json.loads(self._native.replay(window, uid, cache, tolerance))]


def _whole(what: str, value: SupportsIndex, largest: int) -> int:
    number = operator.index(value)
    if not 0 <= number <= largest:
        raise UsageError(f"{what} {number} cannot be used", f"it is a number from 0 to {largest}", "correct the call")
    return number


def _seat(raw: dict[str, Any]) -> Seat:
    status = raw["status"]
    seat = status["seat"]
    return Seat(
        uid=seat["id"]["uid"],
        role=seat["role"],
        hotkey=seat["hotkey"],
        coldkey=raw["coldkey"],
        endpoint=seat["endpoint"],
        stake=seat["stake"],
        claimable=seat["claimable"],
        earned=seat["earned"],
        weight=status["consensus"]["weight"],
        last_attested=status["last_attested"],
        raw=status,
    )


def _window(raw: dict[str, Any]) -> Window:
    outcome = raw["outcome"] or {}
    merged = outcome.get("merged") or {}
    return Window(
        number=raw["window"],
        lineage=raw["lineage"],
        outcome=next(iter(outcome), None),
        update=merged.get("update"),
        state_root=merged.get("state_root"),
        void_reason=outcome.get("void"),
        commitments=dict(raw["commitments"]),
        selected=[one["uid"] for one in (raw["selection"] or {}).get("selected", [])],
        attested=raw["attested"],
        votes={uid: vote["update"] for uid, vote in raw["votes"]},
        receipts=dict(raw["receipts"]),
        weights=dict(raw["weights"]),
        raw=raw,
    )


def _pay(raw: dict[str, Any]) -> Pay:
    standing = raw["consensus"]
    return Pay(
        epoch=raw["epoch"],
        amount=raw["amount"],
        pot=raw["pot"],
        merged=raw["merged"],
        weight=standing["weight"],
        incentive=standing["incentive"] / ONE,
        dividends=standing["dividends"] / ONE,
    )


def _model(raw: dict[str, Any]) -> Model:
    return Model(**{**raw, "directory": Path(raw["directory"])})


def _replay(raw: dict[str, Any]) -> Replay:
    return Replay(
        validator=raw["uid"],
        attested=raw["attested"],
        voted=raw["voted"],
        audited=raw["audited"],
        why=raw.get("why", ""),
        differences=[Difference(one["rule"], one["message"]) for one in raw["differences"]],
        unchecked=[Unchecked(**one) for one in raw.get("unchecked", [])],
        raw=raw,
    )
