"""The public names, and the one tree of errors."""

import inspect

import asyncpg
import pytest

import notifyq
from notifyq import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("name", notifyq.__all__)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(notifyq, name) is not None


def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(notifyq.__all__)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_belongs_to_the_tree_and_says_what_it_is(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.NotifyqError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


def test_the_signals_of_handlers_are_not_errors_of_notifyq() -> None:
    assert not issubclass(notifyq.Reject, errors.NotifyqError)
    assert not issubclass(notifyq.Retry, errors.NotifyqError)


def test_the_driver_raises_our_class_for_each_of_our_codes() -> None:
    coded = [kind for kind in CLASSES if issubclass(kind, errors.DatabaseError)]
    codes = {str(kind.sqlstate): kind for kind in coded if kind is not errors.DatabaseError}
    assert len(codes) == len(coded) - 1
    for code, kind in codes.items():
        raised = asyncpg.PostgresError.new({"C": code, "M": "text", "H": "hint"})
        assert type(raised) is kind
        assert isinstance(raised, kind)
        assert raised.hint == "hint"
