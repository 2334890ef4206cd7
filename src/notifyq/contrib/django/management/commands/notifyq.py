"""`manage.py notifyq …`: every command of `notifyq`, on the database of Django."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from notifyq.contrib.django.database import dsn

_TARGET = re.compile(r"[\w.]+:[^\W\d]\w*")
_APP = "notifyq.contrib.django.worker:app"


class Command(BaseCommand):
    """Runs the command `notifyq` with the DSN of Django."""

    help = "Run a command of notifyq on the database of Django: manage.py notifyq --help"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Become the command, so that it gets signals and its exit code is ours."""
        os.execve(sys.executable, _command(argv[2:]), _environment())  # noqa: S606

    def add_arguments(self, parser: Any) -> None:
        """Take the arguments of the command as they are."""
        parser.add_argument("args", nargs="*")

    def handle(self, *args: str, **_: Any) -> str:
        """Run the command for `call_command`, and return what it prints."""
        done = subprocess.run(  # noqa: S603
            _command(list(args)), env=_environment(), capture_output=True, text=True, check=False
        )
        self.stderr.write(done.stderr)
        if done.returncode:
            raise CommandError(done.stderr.strip(), returncode=done.returncode)
        return done.stdout


def _command(args: list[str]) -> list[str]:
    if args[:1] == ["worker"] and "--http" not in args and not any(map(_TARGET.fullmatch, args)):
        args = ["worker", _APP, *args[1:]]
    # -P: a notifyq.py in the current folder is not this package.
    return [sys.executable, "-P", "-m", "notifyq", *args]


def _environment() -> dict[str, str]:
    """The DSN of Django goes by the environment: every user can read the arguments of a process."""
    path = [folder for folder in (sys.path[0], os.environ.get("PYTHONPATH")) if folder]
    given = {name: value for name, value in os.environ.items() if name != "NOTIFYQ_DSN_FILE"}
    return given | {"NOTIFYQ_DSN": dsn(), "PYTHONPATH": os.pathsep.join(path)}
