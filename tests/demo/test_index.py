"""What the demo counts in a source file, and how it ends with one that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyq import Reject
from notifyq.demo import index as demo


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty standard library."""
    monkeypatch.setattr(demo, "LIBRARY", tmp_path)
    return tmp_path


def test_definitions_are_counted(library: Path) -> None:
    (library / "a.py").write_text(
        "import os, sys\nfrom x import y\n\nclass C:\n    def f(self): ...\n\nasync def g(): ...\n"
    )
    found = demo.index("a.py")
    assert found == demo.Index(
        path="a.py", lines=7, tokens=found.tokens, functions=2, classes=1, imports=2
    )
    assert found.tokens > 30


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"print 1\n", "a.py, line 1: Missing parentheses"),
        (b"x = '\xff'\n", "a.py, line 1: (unicode error)"),
        (b"# coding: nonsense\n", "a.py, line 0: unknown encoding: nonsense"),
        (b"x = 1\0\n", "a.py"),
        (b"(" * 500, "a.py, line 1: too many nested parentheses"),
    ],
)
def test_a_file_that_is_not_python_is_rejected(library: Path, code: bytes, reason: str) -> None:
    (library / "a.py").write_bytes(code)
    with pytest.raises(Reject) as caught:
        demo.index("a.py")
    assert reason in str(caught.value)


def test_a_missing_file_is_not_rejected(library: Path) -> None:
    with pytest.raises(FileNotFoundError):
        demo.index("a.py")


def test_old_code_does_not_warn(library: Path) -> None:
    (library / "a.py").write_text("x = '\\d'\ny = 1 is 1\n")
    assert demo.index("a.py").lines == 2


def test_installed_packages_are_left_out(library: Path) -> None:
    for name in ("b/c.py", "a.py", "a.txt", "site-packages/d.py", "dist-packages/e/f.py"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).touch()
    assert demo.source_files(library) == ["a.py", "b/c.py"]
