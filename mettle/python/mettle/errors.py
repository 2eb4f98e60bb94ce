"""What fails, as exceptions that say what failed, why, and what to do.

>>> error = NotYetError("the receipt cannot be had", "it is public from window 8 on", "ask again from window 8 on")
>>> print(error)
the receipt cannot be had: it is public from window 8 on. To do: ask again from window 8 on
>>> error.to_do
'ask again from window 8 on'
"""

from __future__ import annotations

__all__ = [
    "ChainError",
    "LocalError",
    "MettleError",
    "NotFoundError",
    "NotYetError",
    "StoreError",
    "UsageError",
    "VerificationError",
]


class MettleError(Exception):
    """The base of all exceptions of this package."""

    what: str
    """What failed."""
    why: str
    """What caused it; empty if the failure is its own cause."""
    to_do: str
    """What can be done about it."""

    def __init__(self, what: str, why: str, to_do: str) -> None:
        super().__init__(what, why, to_do)
        self.what, self.why, self.to_do = what, why, to_do

    def __str__(self) -> str:
        return f"{self.what}{': ' if self.why else ''}{self.why}. To do: {self.to_do}"


class UsageError(MettleError, ValueError):
    """The call was wrong, and will be."""


class ChainError(MettleError, ConnectionError):
    """The chain cannot be reached, or is another one."""


class NotFoundError(MettleError, LookupError):
    """There is no such run, window, seat or checkpoint."""


class NotYetError(MettleError):
    """It will be there later."""


class StoreError(MettleError, ConnectionError):
    """No bucket gave it."""


class VerificationError(MettleError):
    """Bytes are not what the chain or a signature says."""


class LocalError(MettleError, OSError):
    """This machine: its disk or memory."""
