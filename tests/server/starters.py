"""Other processes that start servers."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import NamedTuple

import notifyq.server

SOURCES = Path(notifyq.server.__file__).parents[2]


class Program(NamedTuple):
    """How to run Python so that notifyq can be imported."""

    python: str
    path: str
    user: int | None = None

    def popen(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a script whose output can be waited for."""
        return subprocess.Popen(
            [self.python, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=os.environ | {"PYTHONPATH": self.path},
            user=self.user,
            group=pwd.getpwuid(self.user).pw_gid if self.user else None,
            extra_groups=[] if self.user else None,
        )

    def output(self, code: str, *arguments: object) -> str:
        """Run a script to its end and return what it printed."""
        with self.popen(code, *arguments) as process:
            out, err = process.communicate(timeout=40)
        assert process.returncode == 0, err
        return out.strip()


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait for a process to print one line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
