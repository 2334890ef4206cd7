"""Errors as text for the database: bounded, and without the frames of notifyq."""

from __future__ import annotations

import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.models.message import Status
from notifyq.models.outcome import ErrorReport

if TYPE_CHECKING:
    import logging

    from pydantic import ValidationError

    from notifyq.models.outcome import Failed

_DETAILS = 8000
"""Longest details, in characters; the end of a traceback says more than its beginning."""
_LINE = 300
"""Longest line of a log about an error."""
_TRACEBACK = 16_000
"""Longest traceback; its beginning is the first cause, its end the error itself."""
_PACKAGE = Path(__file__).parents[1]


def describe(error: BaseException) -> str:
    """An error for `details`: its class and text first, then where it came from."""
    head = _headline(error)
    frames = _without_ours(traceback.extract_tb(error.__traceback__))
    tail = "".join(frames.format()).rstrip()
    return f"{head}\n{tail}" if tail else head


def report(error: BaseException) -> ErrorReport:
    """An error for the history of attempts, with all that caused it."""
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
    """What an error says."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  it may be a class of the user's
        return f"{type(error).__name__}, which has no text"


def _headline(error: BaseException) -> str:
    """Class and text of an error, as a traceback ends with them."""
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  it may be a class of the user's
        return f"{type(error).__name__}: {text_of(error)}"


def line_of(failed: Failed) -> str:
    """Why an attempt failed, in one line of bounded length: for a log."""
    error = failed.error
    if error is None:
        return in_line(failed.details)
    return in_line(error.type if error.text == error.type else f"{error.type}: {error.text}")


def in_line(text: str) -> str:
    """A text in one line of bounded length, without what could steer a terminal."""
    words = " ".join(text[: 10 * _LINE].split())
    line = "".join(c if c.isprintable() else "?" for c in words)
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"


def log_failure(
    log: logging.Logger, what: str, failed: Failed, follows: str, *, is_last: bool
) -> None:
    """Log a failed attempt once: a line where another one follows, else the traceback too."""
    error = failed.error
    if failed.status == Status.REJECTED:
        log.warning("%s is rejected%s: %s", what, follows, line_of(failed))
    elif not is_last:
        log.warning("%s failed%s: %s", what, follows, line_of(failed))
    else:
        log.error("%s failed%s: %s", what, follows, line_of(failed), exc_info=_exception(error))


def _exception(error: ErrorReport | None) -> BaseException | None:
    if error is None or error.exception is not None or error.traceback is None:
        return None if error is None else error.exception
    return ElsewhereError(f"\n{error.traceback}")


class ElsewhereError(Exception):
    """Stands for an error of another process in a log; its text is the traceback from there."""


def clean(text: str, longest: int = _DETAILS) -> str:
    """Text that a PostgreSQL text column takes, of bounded length."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}\n…\n{text[-longest // 2 :]}"
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _whole(error: BaseException) -> str | None:
    try:
        whole = traceback.TracebackException.from_exception(error, compact=True)
        _strip(whole)
        return clean("".join(whole.format()).rstrip(), _TRACEBACK)
    except BaseException:  # noqa: BLE001  its class may have properties of the user's
        return None


def _strip(error: traceback.TracebackException) -> None:
    """Leave our frames out, also of causes and of the members of groups."""
    left = [error]
    while left:
        each = left.pop()
        each.stack = _without_ours(each.stack)
        left += [it for it in (each.__cause__, each.__context__) if it is not None]
        left += each.exceptions or []


def _without_ours(stack: traceback.StackSummary) -> traceback.StackSummary:
    # They say nothing about the handler.
    return traceback.StackSummary.from_list(
        [frame for frame in stack if not _is_ours(frame.filename)]
    )


@cache
def _is_ours(filename: str) -> bool:
    parents = Path(filename).parents
    return _PACKAGE in parents and _PACKAGE / "demo" not in parents


def explain(error: ValidationError) -> str:
    """What is wrong with a payload, field by field, without its values."""
    parts = [
        f"{'.'.join(str(part) for part in item['loc']) or 'payload'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "the payload is not valid: " + "; ".join(parts)
