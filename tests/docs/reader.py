"""Somebody who follows a page: lines in a shell, sessions of Python, statements in psql."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from docs.pages import Block
from notifyq.server import debian_binaries

# Another interpreter whose environment has notifyq and what the pages import.
PYTHON = Path(os.environ.get("NOTIFYQ_EXAMPLES_PYTHON", sys.executable))
_END = "the page ends"
# From Python 3.13 on, the session refuses statements of several lines where it has no terminal
# (CPython issue 140013). Older ones do not read this.
_STARTUP = """
import code, _pyrepl.console
_pyrepl.console.InteractiveColoredConsole.runsource = code.InteractiveConsole.runsource
del code, _pyrepl
"""
# A session prints its errors and goes on.
_FAILED = re.compile(r'Traceback \(most recent call last\)|File "<(?:console|stdin|python-input)')


class Reader:
    """Somebody with a folder, and the address of a database in NOTIFYQ_DSN."""

    def __init__(self, folder: Path, dsn: str, **environment: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.environment = os.environ | {
            "NOTIFYQ_DSN": dsn,
            "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }

    def shell(self, text: str) -> str:
        """Run lines in a shell until one fails; return what they print."""
        return self._ended(["bash", "-e", "-o", "pipefail", "-c", text])

    def session(self, blocks: Iterable[Block], setup: str = "") -> str:
        """Type blocks into `python -m asyncio`, line by line; return what it prints.

        A block that awaits nothing is a file, whose names the session has.
        """
        lines = [setup]
        for block in blocks:
            if block.awaits:
                lines.append(block.text)
            else:
                file = self.folder / f"{block.page.stem}_{block.line}.txt"
                file.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
                code = f"compile(open({str(file)!r}).read(), {str(block.page)!r}, 'exec')"
                # In a thread: calls that block refuse to where a loop runs.
                lines.append(f"await asyncio.to_thread(exec, {code}, globals())")
        startup = self.folder / "startup.txt"
        startup.write_text(_STARTUP, encoding="utf-8")
        self.environment["PYTHONSTARTUP"] = str(startup)
        text = "\n\n".join([*lines, f"print({_END!r})\n"])
        printed, end, _ = self._ended([str(PYTHON), "-m", "asyncio"], text).rpartition(_END)
        assert end, printed
        assert not _FAILED.search(printed), printed
        return printed

    def query(self, blocks: Iterable[Block], setup: str = "") -> None:
        """Run statements in one session of psql."""
        psql = shutil.which("psql") or shutil.which("psql", path=str(debian_binaries() or ""))
        if psql is None:
            pytest.skip("there is no psql")
        text = ""
        for block in blocks:  # the line in an error is that of the page
            text += "\n" * (block.line - 1 - text.count("\n")) + block.text
        options = ["-Xq", "-v", "ON_ERROR_STOP=1", "-c", setup, "-f", "-"]
        self._ended([psql, *options, self.dsn], text)

    def _ended(self, args: list[str], text: str | None = None) -> str:
        done = subprocess.run(
            args,
            cwd=self.folder,
            env=self.environment,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{args}: {done.stdout}"
        return done.stdout
