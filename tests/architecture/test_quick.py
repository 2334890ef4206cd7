"""The quick tier: no folder is without a test in it, and it names nothing that is gone."""

from __future__ import annotations

import re

from support.database import ROOT
from support.quick import NOT_QUICK, QUICK

TESTS = ROOT / "tests"


def test_every_folder_has_a_quick_test() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    quick = {(TESTS / name).parent.relative_to(TESTS).as_posix() for name in QUICK}
    assert folders - quick == NOT_QUICK.keys()


def test_the_quick_tier_names_nothing_that_is_gone() -> None:
    gone = []
    for name in QUICK:
        file, _, function = name.partition("::")
        path = TESTS / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not re.search(rf"^(async )?def {function or 'test_'}", text, re.MULTILINE):
            gone.append(name)
    assert not gone


def test_nothing_is_named_twice() -> None:
    assert len({*QUICK}) == len(QUICK)
    assert not [name for name in QUICK if "::" in name and name.partition("::")[0] in QUICK]
