"""The command line as a program that tests run."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

NOTIFYQ = [sys.executable, "-m", "notifyq"]


def environment(**changes: str) -> dict[str, str]:
    """Return the environment without any setting of notifyq, with these changes."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("NOTIFYQ_")}
    return {**ours, "NOTIFYQ_HOME": "/nonexistent", "PYTHONUNBUFFERED": "1", **changes}


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> list[Any]:
        """What was printed as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Notifyq:
    """Runs commands against one database, if any."""

    def __init__(self, dsn: str | None = None) -> None:
        self.dsn = dsn
        self._files = tempfile.TemporaryDirectory(prefix="notifyq-cli-")
        self._launcher = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("launcher.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._launcher.communicate()
        self._files.cleanup()

    def __call__(
        self,
        *args: str | bytes | int,
        stdin: bytes | str = b"",
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Result:
        """Run one command to its end."""
        files = Path(self._files.name)
        (files / "in").write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        given = {} if self.dsn is None else {"NOTIFYQ_DSN": self.dsn}
        request = {
            "args": [os.fsencode(a if isinstance(a, bytes) else str(a)).hex() for a in args],
            "env": environment(**{**given, **(env or {})}),
            "files": self._files.name,
            "folder": str(folder or files),
        }
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write(json.dumps(request) + "\n")
        self._launcher.stdin.flush()
        code = int(self._launcher.stdout.readline())
        out, err = ((files / name).read_bytes().decode() for name in ("out", "err"))
        return Result(code, out, err)

    def good(self, *args: str | int, **options: Any) -> Result:
        """Run a command that must succeed, with nothing on stderr."""
        result = self(*args, **options)
        assert result.code == 0, result
        assert result.err == "", result
        return result

    def refused(self, *args: str | bytes | int, code: int = 1, **options: Any) -> str:
        """Run a command that must fail, and return its line on stderr."""
        result = self(*args, **options)
        assert result.code == code, result
        assert result.out == "", result
        assert result.err.count("\n") == 1, result.err
        assert result.err.startswith("notifyq: "), result.err
        return result.err


class Running:
    """A command that runs until a signal stops it, or it ends by itself."""

    def __init__(self, dsn: str | None, *args: str | Path, **options: Any) -> None:
        given = {} if dsn is None else {"NOTIFYQ_DSN": dsn}
        env = environment(**given, **options.pop("env", {}))
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [*NOTIFYQ, *map(str, args)],
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            **options,
        )
        self.stderr = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """Wait for one line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def logged(self, text: str) -> str:
        """Wait for a line on stderr with this text and return it."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.stderr += line
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came on stderr: {self.stderr}")

    def stop(self, number: int) -> Result:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> Result:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=40)
        return Result(self.process.returncode, out, self.stderr + err)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command in a terminal of 80 columns and 24 lines."""

    def __init__(self, dsn: str, *args: str, **changes: str) -> None:
        """Start the command; `changes` are variables of its environment."""
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*NOTIFYQ, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(NOTIFYQ_DSN=dsn, TERM="xterm-256color", **changes),
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  tests have no threads
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._ours, text.encode())

    def show(self, text: str) -> None:
        """Wait until the terminal has shown a text."""
        while text not in self.shown:
            assert self._read(), f"{text!r} was never shown: {self.shown}"

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        while self._read():
            pass
        return self.process.wait(10)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 30)
        try:
            chunk = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)
