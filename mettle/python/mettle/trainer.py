"""A trainer in Python for `[train] engine = "command"`: the miner keeps keys, chain, data, codec and snapshots, and asks
this program for gradients and steps. `docs/trainers.md` specifies what they say to each other. Needs no other package.

    [train.command]
    program = ["python3", "my_trainer.py"]

`my_trainer.py` subclasses `Trainer`, and ends with `MyTrainer().serve()`. `miner/examples/torch_trainer.py` computes the
run's model in PyTorch, and shows what the methods have to do.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PROTOCOL", "SOCKET", "ContractError", "Tensor", "Trainer", "parts_of"]

PROTOCOL = 1
"""The version of the contract."""
SOCKET = "METTLE_TRAINER_SOCKET"
"""The variable that names the miner's socket."""

HEADER_BYTES_MAX = 64 << 20
SLICE_VALUES_MAX = 1 << 20
TOKEN_BYTES_MAX = 1 << 30
WHY_CHARACTERS_MAX = 1000

Buffer = bytes | bytearray | memoryview
Progress = Callable[[int], None]


class ContractError(Exception):
    """What the miner sent is not in the contract: it is of another release."""


class _Gone(Exception):
    """The miner has closed the connection. No error of a trainer's own is one."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model; they follow each other in the flat vectors in the order of `open`."""

    name: str
    shape: tuple[int, ...]
    """A norm's gain is `(1, width)`."""
    moments: int
    """Moments of the recipe's optimiser for each value: 1 or 2."""

    @property
    def values(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


def parts_of(lengths: Sequence[int], first: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """How `count` values from `first` on lie in vectors of these lengths that follow each other: the index of the vector,
    begin and end in it, and the place among the `count` values.

    >>> list(parts_of([4, 4], 2, 4))
    [(0, 2, 4, 0), (1, 0, 2, 2)]
    """
    at = 0
    for index, length in enumerate(lengths):
        begin, end = max(first, at), min(first + count, at + length)
        if begin < end:
            yield index, begin - at, end - at, begin - first
        at += length


class Trainer(ABC):
    """What a miner asks. A method that raises costs the window: the miner restores weights and optimiser, and starts the
    program again for the next one."""

    name = "a trainer in Python"
    """Shown in the miner's log."""

    @abstractmethod
    def open(self, model: dict[str, Any], recipe: dict[str, Any], tensors: list[Tensor]) -> None:
        """Makes the model. `model` and `recipe` are those of the run's specification, with the settings under [train]."""

    @abstractmethod
    def put(self, part: str, first: int, values: memoryview[float]) -> None:
        """Takes float32 values of the flat vector `part` from position `first` on: of `weights`, or of `moments`, which
        hold for each tensor the mean, then its square if it has two."""

    @abstractmethod
    def get(self, part: str, first: int, count: int) -> Buffer:
        """The bytes of `count` float32 values of the flat vector `part` from position `first` on."""

    @abstractmethod
    def gradients(self, rows: memoryview, progress: Progress) -> tuple[float, float]:
        """Computes and keeps the gradient of the mean loss over all tokens of `rows`, and changes no weight. `rows` has
        the shape (sequences, `seq_len` + 1) and the type uint32. Returns the loss in nats per token and the gradient's
        Euclidean norm before clipping. `progress(sequences)` may be called meanwhile, as a sign of life."""

    @abstractmethod
    def step(self, step: int, learning_rate: float, scale: float) -> None:
        """Multiplies the gradient by `scale`, which clips it, and steps once. `step` counts from 1."""

    def serve(self) -> None:
        """Answers the miner until it has had enough, or is gone."""
        path = os.environ.get(SOCKET)
        if not path:
            raise ContractError(f"{SOCKET} is not set: the miner starts this program, as `program` under [train.command]")
        if sys.byteorder != "little":
            raise ContractError("the contract is little-endian, and this machine is not")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            _Session(connection, self).run()


class _Session:
    def __init__(self, connection: socket.socket, trainer: Trainer) -> None:
        self.connection, self.trainer = connection, trainer

    def run(self) -> None:
        try:
            self.send("hello", protocol=PROTOCOL, name=self.trainer.name)
            while True:
                kind, fields, body = self.receive()
                if kind == "stop":
                    return
                try:
                    answer, sent = self.answer(kind, fields, body)
                except (ContractError, _Gone):
                    raise
                except Exception as error:
                    traceback.print_exc()
                    self.send("failed", why=f"{type(error).__name__}: {error}"[:WHY_CHARACTERS_MAX])
                else:
                    self.send(answer, sent)
        except _Gone:
            # And what it would be told with it.
            return

    def answer(self, kind: str, fields: dict[str, Any], body: memoryview) -> tuple[str, Buffer]:
        trainer = self.trainer
        if kind == "open":
            tensors = [Tensor(one["name"], tuple(one["shape"]), one["moments"]) for one in fields["tensors"]]
            trainer.open(fields["model"], fields["recipe"], tensors)
            return "ready", b""
        if kind == "put":
            trainer.put(fields["part"], fields["first"], body.cast("f"))
            return "taken", b""
        if kind == "get":
            values = trainer.get(fields["part"], fields["first"], fields["count"])
            got, needed = memoryview(values).nbytes, 4 * fields["count"]
            if got != needed:
                raise ValueError(f"`get` gave {got} bytes, and {needed} were asked for")
            return "values", memoryview(values).cast("B")
        if kind == "gradients":
            rows = body.cast("I", shape=(fields["sequences"], fields["tokens"]))
            loss, norm = trainer.gradients(rows, lambda sequences: self.send("progress", sequences=sequences))
            return "gradients", struct.pack("<dd", loss, norm)
        learning_rate, scale = struct.unpack("<dd", body)
        trainer.step(fields["step"], learning_rate, scale)
        return "stepped", b""

    def send(self, kind: str, body: Buffer = b"", **fields: Any) -> None:
        header = json.dumps({kind: fields}).encode()
        try:
            self.connection.sendall(struct.pack("<IQ", len(header), memoryview(body).nbytes) + header)
            self.connection.sendall(body)
        except OSError as error:
            raise _Gone from error

    def receive(self) -> tuple[str, dict[str, Any], memoryview]:
        header_bytes, body_bytes = struct.unpack("<IQ", self.exactly(12))
        if HEADER_BYTES_MAX < header_bytes:
            raise ContractError(f"the miner announced a header of {header_bytes} bytes")
        try:
            [(kind, fields)] = json.loads(bytes(self.exactly(header_bytes))).items()
            needed = body_of(kind, fields)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ContractError("the miner sent a header that is none of the contract's") from error
        if body_bytes != needed:
            raise ContractError(f"the miner announced {body_bytes} bytes for `{kind}`, which has {needed}")
        return kind, fields, self.exactly(body_bytes)

    def exactly(self, count: int) -> memoryview:
        whole = memoryview(bytearray(count))
        read = 0
        while read < count:
            try:
                got = self.connection.recv_into(whole[read:])
            except OSError as error:
                raise _Gone from error
            if got == 0:
                raise _Gone
            read += got
        return whole


def body_of(kind: str, fields: dict[str, Any]) -> int:
    """The bytes of a request's body."""
    if kind == "put" or kind == "get":
        if not (fields["part"] in ("weights", "moments") and 0 <= fields["first"] and 0 < fields["count"] <= SLICE_VALUES_MAX):
            raise ValueError
        return 4 * int(fields["count"]) if kind == "put" else 0
    if kind == "gradients":
        count = 4 * int(fields["sequences"]) * int(fields["tokens"])
        if not 0 < count <= TOKEN_BYTES_MAX:
            raise ValueError
        return count
    return {"open": 0, "step": 16, "stop": 0}[kind]
