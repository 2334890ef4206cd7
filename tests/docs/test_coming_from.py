"""The pages for those who come from another system: every promise has a row and a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support.database import ROOT

if TYPE_CHECKING:
    from pathlib import Path

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
    file = f"tests/compatibility/test_{page.replace('-', '_')}.py"
    tests = (ROOT / file).read_text(encoding="utf-8")
    missing = [n for n in numbers if not re.search(rf"def test_{letter}{n}_", tests)]
    assert not missing
    assert file in text


NEIGHBOURS = sorted(
    path
    for path in (ROOT / "docs/coming-from").glob("*.md")
    if path.stem not in {*PROMISES, "index"}
)


@pytest.mark.parametrize("page", NEIGHBOURS, ids=lambda page: page.stem)
def test_a_neighbours_page_maps_shows_differs_and_moves(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^Read against .* \d+\.\d+", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "What is what",
        "The same thing",
        "What differs",
        "How to move",
    ]
    # What is better there is said, too.
    assert "\n- There: " in text


def test_each_line_of_the_comparison_says_where_it_was_read() -> None:
    text = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| .*\| read in \|\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) >= 5
    for row in "".join(tables).splitlines():
        assert row.strip("| ").split(" | ")[-1].strip(), row
        assert not row.endswith("|  |"), row
