"""What happens inside a broker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from notifyq.telemetry.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted(Event):
    """A broker calls the procedures of `role`; `again`: after the loss of its session."""

    role: str
    database: str
    backend_pid: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopped(Event):
    """A broker was stopped, by a signal or by messages.stop_broker()."""

    role: str
    database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLost(Event):
    """The session of a broker has ended, as where a procedure ends it; another one follows."""

    level: ClassVar[int] = logging.WARNING
    role: str
    database: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcedureFailed(Event):
    """The broker was told by the server, in these words, that a procedure has failed."""

    level: ClassVar[int] = logging.WARNING
    role: str
    database: str
    warning: str
