"""Export, killed: `tests/spark/kill.py` does the same for longer, and kills the server, too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from spark import kill

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [1])
def test_an_export_that_is_killed_loses_and_doubles_nothing(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # The server is that of other tests as well.
    monkeypatch.setattr(kill, "VICTIMS", ("driver",))
    folder = tmp_path / "lake"
    command = [sys.executable, "-m", "notifyq", "spark", "export", "--lake", str(folder)]
    kill.run(database, command, folder, seed, print)
