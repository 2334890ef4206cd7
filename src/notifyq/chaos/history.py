"""A history: what each client did and was told, one JSON object a line, one file a process.

A call has an `invoke` line and at most one that ends it: `ok`, `fail` (it certainly did not happen)
or `unknown` (nobody can say, as when the connection broke). One without an end is unknown too: its
process was killed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyq.chaos.errors import ChaosError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_ALWAYS = ("fault", "drain")
"""Calls that a brief history has, too."""


class HistoryError(ChaosError):
    """A history cannot be read: a line inside a file is broken, or a call ends without a start."""


def digest(message: Any) -> str:
    """Fingerprint a JSON value, whatever the order of its keys and the blanks between them."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class History:
    """Writes the history of one process into a file of its own in `folder`, which is made.

    `process` is its name, as in `publisher-1`; one that is started again under the same name gets
    another file. What was written survives a kill -9. A brief one leaves out what is called for
    each message: of hours that would be more than any judge can read.
    """

    def __init__(self, folder: str | Path, process: str, *, is_brief: bool = False) -> None:
        self._process = process
        self._is_brief = is_brief
        self._numbers = itertools.count(1)
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = _create(Path(folder), process)

    def invoke(self, op: str, /, **fields: Any) -> Invoked:
        """Say that a call begins; what comes back is to be told how it ended."""
        if self._is_brief and op not in _ALWAYS:
            return Invoked(_untold)
        number = next(self._numbers)
        self._write(op, number, "invoke", fields)
        return Invoked(partial(self._write, op, number))

    def note(self, op: str, /, **fields: Any) -> None:
        """Say something that is true now."""
        self._write(op, None, "ok", fields)

    def close(self) -> None:
        """Close the file; nothing can be written any more."""
        os.close(self._file)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, op: str, call: int | None, type_: str, fields: dict[str, Any]) -> None:
        # As keywords: a field under the name of one of these is an error, and overwrites nothing.
        line = dict(
            at=time.monotonic(), process=self._process, op=op, type=type_, call=call, **fields
        )
        text = f"{json.dumps(line, default=_plain)}\n".encode()
        # One write, so that a kill cuts a line off at most at the end of the file.
        if os.write(self._file, text) != len(text):
            raise HistoryError(f"{self._process}: no space for the history")


class Invoked:
    """A call that has begun; it ends once."""

    def __init__(self, end: Callable[[str, dict[str, Any]], None]) -> None:
        self._end = end

    def ok(self, **fields: Any) -> None:
        """It happened."""
        self._end("ok", fields)

    def fail(self, **fields: Any) -> None:
        """It certainly did not happen; for an execution: the handler raised."""
        self._end("fail", fields)

    def unknown(self, **fields: Any) -> None:
        """Nobody can say whether it happened."""
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
    """What ties an end to its start within `file`; None for a note."""
    fields: dict[str, Any]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call from its start to its end; a note starts and ends at once."""

    op: str
    process: str
    began: float
    ended: float | None
    """None: it has no end, so its outcome is unknown."""
    outcome: str
    """`ok`, `fail` or `unknown`."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Those of the start, and over them those of the end."""


def read(folder: str | Path) -> list[Op]:
    """Give all lines of all processes in the order of time.

    A line cut off at the end of a file is left out; raises HistoryError for any other broken one.
    """
    ops = [op for file in sorted(Path(folder).glob("*.jsonl")) for op in _read_file(file)]
    return sorted(ops, key=attrgetter("at"))


def calls(ops: Iterable[Op]) -> list[Call]:
    """Tie the ends to their starts; in the order of the starts."""
    found: dict[tuple[object, ...], Call] = {}
    for place, op in enumerate(ops):
        key = (op.file, op.process, op.call)
        if op.call is None:
            found["note", place] = Call(op.op, op.process, op.at, op.at, op.type, op.fields)
        elif op.type == "invoke":
            if key in found:
                raise HistoryError(f"{op.process}: call {op.call} begins twice")
            found[key] = Call(op.op, op.process, op.at, None, "unknown", op.fields)
        else:
            start = found.get(key)
            if start is None or start.ended is not None or start.op != op.op:
                raise HistoryError(f"{op.process}: call {op.call} ends without a start")
            fields = start.fields | op.fields
            found[key] = Call(op.op, op.process, start.began, op.at, op.type, fields)
    return list(found.values())


def _create(folder: Path, process: str) -> int:
    for number in itertools.count(1):
        file = folder / (f"{process}.jsonl" if number == 1 else f"{process}.{number}.jsonl")
        try:
            return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
    raise AssertionError


def _untold(_type: str, _fields: dict[str, Any]) -> None:
    return


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _read_file(file: Path) -> list[Op]:
    *whole, rest = file.read_bytes().split(b"\n")
    try:
        ops = [_parse(line, file) for line in whole]
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"{file.name} has a broken line: {error}") from error
    try:
        return [*ops, _parse(rest, file)] if rest else ops
    except (ValueError, KeyError, TypeError):
        return ops


def _parse(line: bytes, file: Path) -> Op:
    fields = json.loads(line)
    common = {name: fields.pop(name) for name in ("at", "process", "op", "type", "call")}
    return Op(**common, fields=fields, file=file.name)
