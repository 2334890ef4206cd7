"""A history: what each client called and got back, one JSON object a line, one file a process.

A call has an `invoke` line and at most one line that ends it: `ok`, `fail` (it did not happen) or
`unknown` (it may have happened, as when the connection broke). A call without an end is unknown
too: its process was killed. What a line has, by its `op`:

- `publish`: `key`, `queue`, `digest` of the payload, `parent` if a step published; then the `id`.
- `claim`: then `messages`, each with LOCK_FIELDS.
- `execute`: a handler ran; LOCK_FIELDS (`locked_at` if it is known), `key`, `digest`.
- `finish`, `release`, `retry`, `extend`: `id`, `lock_token`, the `status` of a finish; then `held`,
  and the `lock_expires_at` of an extension. The release of a message that is parked has also its
  `step` and the `signals` that it waits for; then what it `received`, or that it `timed_out`.
- `step`: the function of a step was called, `id`, `step`; then the step is recorded.
- `signal`: `name`, `to` (the id of a message, or null), `payload`.
- `watch`, `dead`: the watcher of dead messages begins; it reported `id`.
- `deadline`: no worker polled until here; an acknowledged message that is not claimed is forgotten.
- `clock`: the clock of the server was changed.
- `fault`, `drain`: from the fault to its end; from then until nothing is live.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from notifyq.errors import NotifyqError

LOCK_FIELDS = ("id", "lock_token", "attempts", "locked_at", "lock_expires_at")
"""What a claim records of each message."""
BRIEF = "brief"
"""A file in the folder of a history that leaves out the calls for single messages."""


class ChaosError(NotifyqError):
    """The test rig failed; this proves nothing about the queue."""


class HistoryError(ChaosError):
    """A history cannot be read: a line inside a file is broken, or a call ends without a start."""


def digest(message: Any) -> str:
    """Hash a JSON value; the order of its keys and its white space do not count."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class History:
    """Writes the history of one process into a file of its own in `folder`, which is created.

    `process` is its name, such as `publisher-1`, and new. Written lines survive a kill -9. A brief
    history has faults and drains only: the calls of hours would be too many to check.
    """

    def __init__(self, folder: str | Path, process: str) -> None:
        self._process = process
        self._is_brief = (Path(folder) / BRIEF).exists()
        self._numbers = itertools.count(1)
        Path(folder).mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._file = os.open(Path(folder) / f"{process}.jsonl", flags, 0o644)

    def invoke(self, op: str, /, **fields: Any) -> Invoked:
        """Record that a call begins; its end is recorded through the result."""
        if self._is_brief and op not in {"fault", "drain"}:
            return Invoked(lambda _type, _fields: None)
        number = next(self._numbers)
        self._write(op, number, "invoke", fields)
        return Invoked(partial(self._write, op, number))

    def note(self, op: str, /, **fields: Any) -> None:
        """Record a fact that is true now."""
        self._write(op, None, "ok", fields)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, op: str, call: int | None, type_: str, fields: dict[str, Any]) -> None:
        # Keywords, because a field with the name of one of these must fail and not overwrite it.
        line = dict(
            at=time.monotonic(), process=self._process, op=op, type=type_, call=call, **fields
        )
        text = f"{json.dumps(line, default=_plain)}\n".encode()
        # One write: a kill then truncates only the last line of the file.
        if os.write(self._file, text) != len(text):
            raise HistoryError(f"{self._process}: no space for the history")


class Invoked:
    """A call that has begun; it ends once."""

    def __init__(self, end: Callable[[str, dict[str, Any]], None]) -> None:
        self._end = end

    def ok(self, **fields: Any) -> None:
        """Record that it happened."""
        self._end("ok", fields)

    def fail(self, **fields: Any) -> None:
        """Record that it did not happen; for an execution: the handler raised."""
        self._end("fail", fields)

    def unknown(self, **fields: Any) -> None:
        """Record that it may have happened."""
        self._end("unknown", fields)


@dataclass(frozen=True, slots=True)
class Op:
    """One line of a history."""

    at: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    process: str
    op: str
    type: str
    """`invoke`, `ok`, `fail` or `unknown`."""
    call: int | None
    """Its number within the process, the same at start and end; None for a note."""
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call from its start to its end; a note starts and ends at once."""

    op: str
    process: str
    began: float
    ended: float | None
    """None if it has no end; its outcome is then unknown."""
    outcome: str
    """`ok`, `fail` or `unknown`."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Those of the start, overwritten by those of the end."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that a claim returned; none for another call."""
        found: list[dict[str, Any]] = self.fields.get("messages", [])
        return found


def read(folder: str | Path) -> list[Op]:
    """Return all lines of all processes, ordered by time.

    Skips a truncated line at the end of a file; raises HistoryError for any other broken line.
    """
    ops = [op for file in sorted(Path(folder).glob("*.jsonl")) for op in _read_file(file)]
    return sorted(ops, key=attrgetter("at"))


def calls(ops: Iterable[Op]) -> list[Call]:
    """Join each start with its end; in the order of the starts."""
    found: dict[tuple[str, int], Call] = {}
    for index, op in enumerate(ops):
        if op.call is None:
            found["", index] = Call(op.op, op.process, op.at, op.at, op.type, op.fields)
            continue
        start = found.get((op.process, op.call))
        if op.type == "invoke":
            if start is not None:
                raise HistoryError(f"{op.process}: call {op.call} begins twice")
            call = Call(op.op, op.process, op.at, None, "unknown", op.fields)
        else:
            if start is None or start.ended is not None or start.op != op.op:
                raise HistoryError(f"{op.process}: call {op.call} ends without a start")
            fields = start.fields | op.fields
            call = Call(op.op, op.process, start.began, op.at, op.type, fields)
        found[op.process, op.call] = call
    return list(found.values())


def recoveries(history: Sequence[Call]) -> list[float]:
    """Seconds until work continued, for each message that a victim held and for each outage.

    A victim's messages: from the start of the fault to their next execution. An outage: from the
    server's first answer to the first messages that a worker claims.
    """
    found: list[float] = []
    for fault in (call for call in history if call.op == "fault"):
        if victim := fault.fields.get("victim"):
            found += _taken_over(history, victim, fault.began)
        elif fault.fields.get("outage") and (at := fault.ended) is not None:
            claims = [c.ended - at for c in history if c.messages and c.ended is not None]
            found += sorted(it for it in claims if it > 0)[:1]
    return found


def waits(history: Iterable[Call], since: float, until: float = float("inf")) -> list[float]:
    """Seconds from each acknowledgement in this time to the first claim of the message."""
    claimed: dict[int, float] = {}
    published: dict[int, float] = {}
    for call in history:
        if call.ended is None or call.outcome != "ok":
            continue
        for message in call.messages:
            claimed.setdefault(message["id"], call.ended)
        if call.op == "publish" and since <= call.ended < until:
            published[call.fields["id"]] = call.ended
    return [max(0.0, claimed[it] - published[it]) for it in published.keys() & claimed.keys()]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _taken_over(history: Sequence[Call], victim: str, at: float) -> list[float]:
    held: set[int] = set()
    for call in history:
        if call.process != victim or call.ended is None or call.ended > at:
            continue
        held |= {message["id"] for message in call.messages}
        if call.op in {"finish", "release", "retry"}:
            held.discard(call.fields["id"])
    again: dict[int, float] = {}
    for call in history:
        if call.op == "execute" and call.began > at and call.process != victim:
            again.setdefault(call.fields["id"], call.began)
    return [again[number] - at for number in sorted(held & again.keys())]


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


_BROKEN = (ValueError, KeyError, TypeError)


def _read_file(file: Path) -> list[Op]:
    *whole, rest = file.read_bytes().split(b"\n")
    try:
        ops = [_parse(line) for line in whole]
    except _BROKEN as error:
        raise HistoryError(f"{file.name} has a broken line: {error}") from error
    with suppress(*_BROKEN):
        if rest:
            ops.append(_parse(rest))
    return ops


def _parse(line: bytes) -> Op:
    fields = json.loads(line)
    common = {name: fields.pop(name) for name in ("at", "process", "op", "type", "call")}
    return Op(**common, fields=fields)
