"""Errors of drivers as errors of notifyq: one line that says what to do, without any password."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import adbc_driver_manager as adbc
import psycopg

from notifyq import errors
from notifyq.spark import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

_BY_STATE: dict[str, type[errors.DatabaseError]] = {
    kind.sqlstate: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DatabaseError) and kind.sqlstate
}

_OF_ADBC = re.compile(r"\A[^\n]*\bPGRES_\w+ (?:ERROR|FATAL): +")


@contextmanager
def translated() -> Iterator[None]:
    """Raise what a driver raises as an error of notifyq; that of a function as its own class."""
    try:
        yield
    except (psycopg.Error, adbc.Error) as error:
        raise _error(error) from None


def demand(session: Connection[Any], function: str) -> None:
    """Raise AccessDeniedError unless the role of a session may call a function."""
    with translated():
        [[is_allowed]] = session.execute(statements.MAY_CALL, (function,)).fetchall()
    if not is_allowed:
        name = function.partition("(")[0].removeprefix("messages.")
        raise errors.AccessDeniedError(
            f"permission denied for function {name}: ask an admin for the role that it needs"
        )


def _error(error: Any) -> errors.NotifyqError:
    state = _state(error)
    text, hint = _text(error)
    if state in _BY_STATE:
        raised = _BY_STATE[state](text)
        raised.hint = hint
        return raised
    match state[:2], state:
        case _, "42501":
            return errors.AccessDeniedError(f"{text}: ask an admin for the role that it needs")
        case _, "3F000" | "42P01" | "42883":
            return errors.SchemaMissingError(f"{text}: is `notifyq init` or `migrate` to be run?")
        case ("08" | "57") | ("" | "00"), _:
            return errors.DatabaseUnavailableError(f"the connection was lost: {text}")
        case _:
            return errors.NotifyqError(f"the server says: {text}")


def _state(error: Any) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _text(error: Any) -> tuple[str, str | None]:
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None and diagnosis.message_primary:
        return diagnosis.message_primary, diagnosis.message_hint
    # Before what the server says ADBC tells which of its calls that was.
    text = _OF_ADBC.sub("", str(error).strip()).partition("\n")[0]
    return text or type(error).__name__, None
