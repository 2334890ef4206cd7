"""Conditions on payloads: a wrong one is refused with an explanation, and no text crashes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyq.operations.monitor import ConditionError, json_path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("amount >", "a value is missing"),
        ("amount", "a comparison is missing"),
        ("> 5", "a name is missing"),
        ("customer = 'x", "the quote is not closed"),
        ('customer = "x', "the quote is not closed"),
        ("(a = 1", "a closing bracket is missing"),
        ("a = 1) ", "is not expected here"),
        ("a between 1 and 5", "a comparison is missing"),
        ("a in 1", "a list in brackets is missing"),
        ("a is 5", "null is missing"),
        ("a = b = c", "needs quotes"),
        ('{"a":', "is not a JSON object"),
        ("{}", "contains no value"),
        ('{"a": [1]}', "compare one element"),
        ("(" * 50 + "a = 1", "nested"),
        ("a = " + "x" * 3000, "at most"),
        ("", "is empty"),
        ("select * from x", "a comparison is missing"),
        ("a = 1; drop table x", ""),
    ],
)
def test_an_error_explains_what_is_wrong(text: str, error: str) -> None:
    if not error:
        assert json_path(text) == '$."a" == "1; drop table x"'
        return
    with pytest.raises(ConditionError) as refused:
        json_path(text)
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$.amount > 100", "$.amount > 100"),
        ("$.a = 'x' && $.b <> \"it's\"", '$.a == "x" && $.b <> "it\'s"'),
        ("strict $.a >= 1", "strict $.a >= 1"),
        ("exists($.items[*] ? (@.price > 9))", "exists($.items[*] ? (@.price > 9))"),
        ('$headers.tenant = "a = b"', '$headers.tenant == "a = b"'),
    ],
)
def test_a_json_path_is_kept(text: str, path: str) -> None:
    assert json_path(text) == path


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(ConditionError):
        assert json_path(text)


_WORDS = [*"=<~!(),:{", "a", "b.c", "1", "-2.5", "[0]", "->>", "!=", "'x'", '"y"']
_WORDS += ["and", "or", "not", "in", "is", "null", "like"]


@given(st.lists(st.sampled_from(_WORDS), max_size=12))
def test_any_sequence_of_words_is_parsed_or_refused(words: list[str]) -> None:
    with suppress(ConditionError):
        assert json_path(" ".join(words))
