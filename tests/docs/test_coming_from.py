"""The pages on other queues: every numbered row has a test, every comparison a source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support.database import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMPATIBLE = {
    "listen-notify": ("o", 23),
    "pgq": ("p", 30),
    "q4m": ("m", 26),
    "qhb": ("h", 29),
    "skip-locked": ("d", 13),
}


@pytest.mark.parametrize("page", COMPATIBLE)
def test_every_numbered_row_has_a_test(page: str) -> None:
    letter, count = COMPATIBLE[page]
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
    if path.stem not in {*COMPATIBLE, "comparison", "index"}
)


@pytest.mark.parametrize("page", NEIGHBOURS, ids=lambda page: page.stem)
def test_a_page_has_the_four_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^Read against .* \d+\.\d+", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "What is what",
        "The same thing",
        "What differs",
        "How to move",
    ]
    # Each page also names what is better there.
    assert "\n- There: " in text


def test_each_line_of_the_comparison_has_a_source() -> None:
    text = (ROOT / "docs/coming-from/comparison.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| .*\| read in \|\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) >= 5
    for row in "".join(tables).splitlines():
        assert row.strip("| ").split(" | ")[-1].strip(), row
        assert not row.endswith("|  |"), row
