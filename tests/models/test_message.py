"""Rows become messages: all columns, decoded as Python's own decoder does."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq import Message
from notifyq.models.message import decode
from notifyq.models.payload import without_envelope
from support.rows import message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def columns(**changes: Any) -> dict[str, Any]:
    """The columns of a row, one of them from a newer schema."""
    row = {name: getattr(message(), name) for name in Message.__dataclass_fields__}
    return row | {"headers": "{}", "newer": 1} | changes


def test_a_row_becomes_a_message() -> None:
    made = Message.from_row(columns(headers='{"a": [1]}'))  # type: ignore[arg-type]
    assert made == message(headers={"a": [1]})


def test_messages_share_no_headers() -> None:
    first, second = (Message.from_row(columns()) for _ in range(2))  # type: ignore[arg-type]
    first.headers["a"] = 1
    assert second.headers == {}


def test_a_message_does_not_change() -> None:
    made = Message.from_row(columns())  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.lock_token = 2  # type: ignore[misc]


@given(JSON)
def test_json_is_decoded_as_by_the_standard_library(value: Any) -> None:
    text = json.dumps(value)
    assert repr(decode(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        *("[" * depth + "]" * depth for depth in (199, 200, 201, 500)),
        *("1" + "0" * digits for digits in (18, 19, 400, 4299)),
        "1" + "0" * 400 + ".5",
        "0." + "0" * 400 + "1",
        "0.1000000000000000055511151231257827021181583404541015625",
        "-0",
        "-0.0",
    ],
)
def test_what_python_can_hold_is_decoded_to_the_last_digit(text: str) -> None:
    assert repr(decode(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["1" + "0" * 4300, "[" * 200_000 + "]" * 200_000])
def test_what_python_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(text)


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ('{"$encrypted": {"key": "k1", "use": "payload", "data": "…"}}', "encrypted with k1"),
        ('{"$encrypted": {"key": "2026-01", "use": "det', "encrypted with 2026-01"),
        ('{"$encrypted": {"key": 7}}', "encrypted"),
        ('{"$encrypted": 7, "key": "k1"}', '{"$encrypted": 7, "key": "k1"}'),
        ('a text with {"$encrypted": {"key": "k1"}}', 'a text with {"$encrypted": {"key": "k1"}}'),
    ],
)
def test_a_list_names_the_key_of_an_envelope(text: str, listed: str) -> None:
    assert without_envelope(text) == listed
