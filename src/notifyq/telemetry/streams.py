"""What happens to the batches of streams that a worker serves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from notifyq.telemetry.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAttended(Event):
    """The stream is under load: this worker keeps looking, and publishers need not ring."""

    level: ClassVar[int] = logging.DEBUG
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUnattended(Event):
    """The stream has calmed down, or this worker cannot serve it: publishers ring again."""

    level: ClassVar[int] = logging.DEBUG
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTaken(Event):
    """This worker serves the subscription from now on; `member` is its place among several."""

    stream: str
    subscriber: str
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLeft(Event):
    """This worker serves the subscription no more: another one may."""

    stream: str
    subscriber: str
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished(Event):
    """A batch is done: `events` succeeded, `retried` come again, `failed` are dead; in seconds."""

    level: ClassVar[int] = logging.DEBUG
    stream: str
    subscriber: str
    batch_id: int
    events: int
    retried: int
    failed: int
    run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRetried(Event):
    """An attempt at an event has failed, and another one follows; the log has a line about it."""

    level: ClassVar[int] = logging.DEBUG
    stream: str
    subscriber: str
    event_id: int
    attempts: int
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDropped(Event):
    """A batch was not finished here: it comes again, or another session has finished it."""

    level: ClassVar[int] = logging.WARNING
    stream: str
    subscriber: str
    batch_id: int
    reason: str
