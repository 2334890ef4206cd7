"""The public names, and the one tree of errors."""

import inspect
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import notifyq
from notifyq import MessageFailedError, errors
from notifyq.durable.control import LockLostError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("name", notifyq.__all__)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(notifyq, name) is not None


def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(notifyq.__all__)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_belongs_to_the_tree_and_has_a_docstring(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.NotifyqError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


def test_the_signals_of_handlers_are_not_errors_of_notifyq() -> None:
    assert not issubclass(notifyq.Reject, errors.NotifyqError)
    assert not issubclass(notifyq.Retry, errors.NotifyqError)


def test_the_driver_raises_our_class_for_each_sqlstate() -> None:
    coded = [kind for kind in CLASSES if issubclass(kind, errors.DatabaseError)]
    codes = {str(kind.sqlstate): kind for kind in coded if kind is not errors.DatabaseError}
    assert len(codes) == len(coded) - 1
    for code, kind in codes.items():
        raised = asyncpg.PostgresError.new({"C": code, "M": "text", "H": "hint"})
        assert type(raised) is kind
        assert isinstance(raised, kind)
        assert raised.hint == "hint"


def _raised() -> Iterator[BaseException]:
    """One of each exception that notifyq raises, or that handlers raise for it."""
    kind: Any
    for kind in CLASSES:
        if issubclass(kind, errors.DeadMessageError):
            yield kind(message_id=7, queue="q", attempts=1, details="gone")
        elif issubclass(kind, errors.DatabaseError):
            yield asyncpg.PostgresError.new({"C": kind.sqlstate, "M": "text", "H": "hint"})
        else:
            yield kind("text")
    yield notifyq.Reject("text")
    yield notifyq.Retry("text", after=3)
    yield notifyq.Snooze(3)
    yield notifyq.Snooze(timedelta(seconds=3))
    yield LockLostError("text")


@pytest.mark.parametrize("error", list(_raised()), ids=lambda it: type(it).__name__)
def test_an_error_can_be_pickled(error: BaseException) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))


def test_the_text_of_a_dead_message_is_one_bounded_line() -> None:
    details = f'ValueError: {"x" * 1000}\n  File "/srv/app.py", line 3, in handle\n    raise\n'
    error = MessageFailedError(message_id=7, queue="q", attempts=1, details=details)
    assert str(error).startswith("message 7 of queue 'q' failed: ValueError: xxx")
    assert "\n" not in str(error)
    assert len(str(error)) < 350
    assert error.details == details
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    nothing = MessageFailedError(message_id=7, queue="q", attempts=1, details=None)
    assert str(nothing) == "message 7 of queue 'q' failed: no reason given"
