"""The log records of handlers: each call collects its own, for the database."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic_core import to_json

from notifyq.database.encoding import storable
from notifyq.telemetry.tracebacks import clean

MOST = 65_536
"""Most bytes that a call keeps, as JSON."""
_HALF = (MOST - 500) // 2
"""Bytes of the first records that are kept, and of the last ones; a mark stands between them."""
_LONGEST = 5_000
"""Characters of one record; in JSON they need less than half of all."""


class _Line(NamedTuple):
    at: datetime
    json: bytes


class Records:
    """The log records of one call: the first and the last ones where they are too many."""

    def __init__(self, level: int, encoding: str) -> None:
        self.level = level
        self._encoding = encoding
        self._first: list[_Line] = []
        self._last: deque[_Line] = deque()
        self._first_size = self._last_size = 0
        self._lost = self._lost_bytes = 0
        self._lost_at: datetime | None = None
        self._is_closed = False

    def add(self, record: logging.LogRecord) -> None:
        """Keep a record; one that comes after the end of the call is dropped."""
        if not self._is_closed:
            at = datetime.fromtimestamp(record.created, UTC)
            self._add(self._line(at, record.levelname, record.name, _text(record)))

    def _line(self, at: datetime, level: str, logger: str, text: str) -> _Line:
        fields = {"level": level[:50], "logger": logger[:200], "text": text}
        kept = {name: self._storable(it) for name, it in fields.items()}
        return _Line(at, to_json({"created_at": at, **kept}))

    def _storable(self, text: str) -> str:
        text = storable(clean(text, len(text)), self._encoding)
        if (lost := len(text) - _LONGEST) <= 0:
            return text
        half = _LONGEST // 2
        return f"{text[:half]}\n[{lost} characters are left out]\n{text[-half:]}"

    def _add(self, line: _Line) -> None:
        size = len(line.json) + 1  # with its comma
        if not self._last and self._first_size + size <= _HALF:
            self._first.append(line)
            self._first_size += size
            return
        self._last.append(line)
        self._last_size += size
        while self._last_size > _HALF:
            lost = self._last.popleft()
            size = len(lost.json) + 1
            self._last_size -= size
            self._lost += 1
            self._lost_bytes += size
            self._lost_at = self._lost_at or lost.at

    def close(self) -> str | None:
        """The records as a JSON array, or None without any; they take no more."""
        _HANDLER.acquire()  # a thread of the handler may be adding one
        self._is_closed = True
        _HANDLER.release()
        lines = [*self._first, *self._last]
        if self._lost_at is not None:
            what = f"{self._lost} records of {self._lost_bytes} bytes"
            why = f"{what} are left out: a call keeps 64 KB"
            lines.insert(len(self._first), self._line(self._lost_at, "WARNING", "notifyq", why))
        return f"[{b','.join(it.json for it in lines).decode()}]" if lines else None


def _text(record: logging.LogRecord) -> str:
    # Not by a Formatter: it would leave its traceback in the record, for other handlers.
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    if record.stack_info:
        text += "\n" + record.stack_info
    return text


_RECORDS: ContextVar[Records | None] = ContextVar("notifyq_records", default=None)
"""Those of the running call; its tasks and threads inherit them."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Which records calls keep: from this level on, for a database of this encoding."""

    level: int
    encoding: str

    def begin(self) -> Records:
        """Collect what is logged in this context from now on."""
        records = Records(self.level, self.encoding)
        _RECORDS.set(records)
        return records


class _Handler(logging.Handler):
    """Gives each record to the call that logs it.

    The root logger must let these records through. Its other handlers get the same records as
    before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._levels: list[int] = []
        self._level_before = logging.WARNING
        self._others: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        records = _RECORDS.get()
        try:
            if records is not None and record.levelno >= records.level:
                records.add(record)
        except Exception:  # noqa: BLE001  an argument of the user may raise anything
            self.handleError(record)
        last = logging.lastResort  # which logging uses where a record has no handler
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)

    def _is_alone(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(it is not self for it in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return self._passed_before(record)

    def _passed_before(self, record: logging.LogRecord) -> bool:
        logger = logging.getLogger(record.name)
        while logger.parent is not None:
            if logger.level:
                return True
            logger = logger.parent
        return record.levelno >= self._level_before

    def begin(self, level: int) -> None:
        root = logging.getLogger()
        with self._lock:
            if not self._levels:
                self._level_before = root.level
                self._others = list(root.handlers)
                for other in self._others:
                    other.addFilter(self._passed_before)
                root.addHandler(self)
            self._levels.append(level)
            root.setLevel(min(self._level_before, *self._levels))

    def end(self, level: int) -> None:
        root = logging.getLogger()
        with self._lock:
            self._levels.remove(level)
            root.setLevel(min([self._level_before, *self._levels]))
            if not self._levels:
                root.removeHandler(self)
                for other in self._others:
                    other.removeFilter(self._passed_before)
                self._others = []


_HANDLER = _Handler()


@contextmanager
def capturing(level: int) -> Iterator[None]:
    """Let records of this level reach the calls that log them, while the block runs."""
    _HANDLER.begin(level)
    try:
        yield
    finally:
        _HANDLER.end(level)
