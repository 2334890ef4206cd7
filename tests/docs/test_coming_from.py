"""The pages for those who come from another system: every promise has a row and a test."""

from __future__ import annotations

import re

import pytest

from database import ROOT

PROMISES = {
    "listen-notify": ("o", 23),
    "pgq": ("p", 30),
    "q4m": ("m", 26),
    "qhb": ("h", 29),
    "skip-locked": ("d", 13),
}


@pytest.mark.parametrize("page", PROMISES)
def test_every_promise_has_a_row_and_a_test(page: str) -> None:
    letter, count = PROMISES[page]
    text = (ROOT / f"docs/coming-from/{page}.md").read_text(encoding="utf-8")
    numbers = [int(n) for n in re.findall(rf"^\| {letter.upper()}(\d+) \|", text, re.MULTILINE)]
    assert numbers == [*range(1, count + 1)]
    tests = (ROOT / f"tests/family/test_{letter}.py").read_text(encoding="utf-8")
    missing = [n for n in numbers if not re.search(rf"def test_{letter}{n}_", tests)]
    assert not missing
    assert f"tests/family/test_{letter}.py" in text
