"""Errors as text for the database: of bounded length, without the frames of notifyq."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from notifyq.models.message import Status
from notifyq.models.outcome import ErrorReport, Failed
from notifyq.printable import in_line

if TYPE_CHECKING:
    from pydantic import ValidationError


_DETAILS = 8000
_TRACEBACK = 16_000
"""Most characters of details, of a log line about an error, and of a traceback."""
_PACKAGE = Path(__file__).parents[1]
_ASYNCIO = Path(asyncio.__file__).parent
_RUNS = frozenset({"_run", "_run_once", "run_forever", "run_until_complete", "run"})
"""Functions of asyncio below which a loop runs tasks; uvloop has only the outermost of them."""


def describe(error: BaseException) -> str:
    """An error for `details`: its class and text, then its traceback."""
    head = _headline(error)
    frames = _frames_of_user(traceback.extract_tb(error.__traceback__))
    tail = "".join(frames.format()).rstrip()
    return f"{head}\n{tail}" if tail else head


def report(error: BaseException) -> ErrorReport:
    """An error for the history of attempts, with its causes."""
    if not getattr(type(error), "has_traceback", True):
        error.__traceback__ = None
    kind = type(error)
    module, name = str(kind.__module__), kind.__qualname__
    if module not in {"builtins", "__main__"}:
        name = f"{module}.{name}"
    return ErrorReport(
        type=clean(name),
        text=clean(text_of(error) or name),
        traceback=_whole(error),
        exception=error,
    )


def text_of(error: BaseException) -> str:
    """The text of an error, also of one whose `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  a class of the user
        return f"{type(error).__name__}, which has no text"


def _headline(error: BaseException) -> str:
    """Class and text of an error, as in the last line of a traceback."""
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  a class of the user
        return f"{type(error).__name__}: {text_of(error)}"


def log_failure(
    log: logging.Logger,
    what: str,
    failed: Failed,
    follows: str,
    *,
    is_last: bool,
    fields: dict[str, Any],
) -> None:
    """Log a failed attempt: one line, and after the last attempt the traceback too.

    `fields` are `extra`: the attribute `event` of the record, as that of a telemetry event.
    """
    error = failed.error
    if error is None:
        reason = failed.details
    else:
        reason = error.type if error.text == error.type else f"{error.type}: {error.text}"
    is_rejected = failed.status == Status.REJECTED
    is_error = is_last and not is_rejected
    log.log(
        logging.ERROR if is_error else logging.WARNING,
        "%s %s%s: %s",
        what,
        "is rejected" if is_rejected else "failed",
        follows,
        in_line(reason),
        exc_info=_exc_info(error) if is_error else None,
        extra={"event": fields},
    )


def _exc_info(
    error: ErrorReport | None,
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """What a log shows of an error: its traceback begins in the user's code."""
    if error is None:
        return None
    exception = error.exception
    if exception is None:
        if error.traceback is None:
            return None
        exception = ElsewhereError(f"\n{error.traceback}")
    elif exception.__traceback__ is None and exception.__cause__ is None:
        return None  # never raised: the line has all of it
    return type(exception), exception, _from_user(exception.__traceback__)


def _from_user(whole: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames before the first of the user; all of it if none is."""
    first = whole
    while first is not None and _is_of_notifyq(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return whole if first is None else first


def stack_of(thread: int) -> Callable[[], str]:
    """Where a thread that runs an event loop stands now: from the first frame of the user on.

    The text is made by the function that is returned: it reads the source files.
    """
    of_thread = sys._current_frames().get(thread)  # noqa: SLF001  the documented way
    if of_thread is None:  # of None, walk_stack would take the stack of the caller
        return lambda: ""
    frames: list[tuple[FrameType, int]] = []
    for frame, line in traceback.walk_stack(of_thread):
        if _is_loop(frame.f_code):
            break
        frames.append((frame, line))
    frames.reverse()
    first = next(
        (n for n, it in enumerate(frames) if not _is_of_notifyq(it[0].f_code.co_filename)), 0
    )
    stack = traceback.StackSummary.extract(iter(frames[first:]), lookup_lines=False)
    return lambda: clean("".join(stack.format()).rstrip(), _TRACEBACK) or "  (no Python code)"


def _is_loop(code: CodeType) -> bool:
    """Whether this is code of asyncio that runs a loop or one of its callbacks."""
    path = Path(code.co_filename)
    return path.parent == _ASYNCIO and code.co_name in _RUNS


class ElsewhereError(Exception):
    """In a log: an error of another process; its text is the traceback there."""


def clean(text: str, longest: int = _DETAILS) -> str:
    """Text that a PostgreSQL text column accepts, of bounded length."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}\n…\n{text[-longest // 2 :]}"
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _whole(error: BaseException) -> str | None:
    try:
        whole = traceback.TracebackException.from_exception(error, compact=True)
        _strip(whole)
        return clean("".join(whole.format()).rstrip(), _TRACEBACK)
    except BaseException:  # noqa: BLE001  a class of the user
        return None


def _strip(error: traceback.TracebackException) -> None:
    """Remove the frames of notifyq, also from causes and members of groups."""
    left = [error]
    while left:
        each = left.pop()
        each.stack = _frames_of_user(each.stack)
        left += [it for it in (each.__cause__, each.__context__) if it is not None]
        left += each.exceptions or []


def _frames_of_user(stack: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list(
        [frame for frame in stack if not _is_of_notifyq(frame.filename)]
    )


@cache
def _is_of_notifyq(filename: str) -> bool:
    parents = Path(filename).parents
    return _PACKAGE in parents and _PACKAGE / "demo" not in parents


def explain(error: ValidationError) -> str:
    """Why a payload is not valid, field by field, without its values."""
    parts = [
        f"{'.'.join(str(part) for part in item['loc']) or 'payload'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "the payload is not valid: " + "; ".join(parts)
