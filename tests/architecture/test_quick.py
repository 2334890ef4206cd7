"""The quick tier: no folder is without a test in it, and it names nothing that is gone."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import pytest_cmdline_main
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


@pytest.mark.parametrize(
    ("more", "processes"),
    [
        ({}, 2),
        ({"usepdb": True}, None),
        ({"numprocesses": 0}, 0),
        ({"numprocesses": 3}, 3),
        ({"is_named": True}, None),
        # One of the two must not start two of its own, and they two each, and so on.
        ({"is_worker": True}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_all", [False, True], ids=["quick", "all"])
def test_how_many_processes_a_run_starts(
    more: dict[str, Any], processes: int | None, *, is_all: bool
) -> None:
    options = {"all": is_all, "numprocesses": None, "usepdb": False, **more}
    sources = pytest.Config.ArgsSource
    config: Any = SimpleNamespace(
        args=["tests"],
        args_source=sources.ARGS if more.get("is_named") else sources.TESTPATHS,
        option=SimpleNamespace(**options),
        stash=pytest.Stash(),
        **({"workerinput": {}} if more.get("is_worker") else {}),
    )
    pytest_cmdline_main(config)
    assert config.option.numprocesses == processes
    is_quick = not is_all and not more.get("is_named")
    assert (len(config.args) == len(QUICK)) == is_quick
