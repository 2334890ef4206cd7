"""How an attempt of a handler ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from notifyq.models.message import Status


@dataclass(frozen=True, slots=True)
class Success:
    """The handler returned; `result` is what it returned, as JSON text."""

    status: ClassVar[str] = "success"
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message can never be handled."""

    status: ClassVar[str] = "rejected"
    reason: str


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error in the history of attempts."""

    type: str
    text: str
    traceback: str | None
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The error itself, for the log; None where it was raised in another process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; the message is retried while attempts are left, unless `gives_up`.

    `after` overrides the backoff of the queue; `status` is the archive status when no attempt is
    left.
    """

    details: str
    after: timedelta | None = None
    status: Status = Status.FAILED
    gives_up: bool = False
    error: ErrorReport | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Doubtful(Failed):
    """The transaction of the handler may or may not have committed: the answer was lost."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The message was finished in the transaction of its handler, unless its lock was lost."""

    status: ClassVar[str] = "success"
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The handler was stopped from outside or snoozed; the attempt does not count."""

    status: ClassVar[str] = "released"
    after: timedelta | None = None
    """When it is available again; None: at once."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """The message is parked: the database has taken its lock back, nothing is left to settle."""

    status: ClassVar[str] = "parked"


Outcome = Success | Rejected | Failed | Committed | Released | Suspended
