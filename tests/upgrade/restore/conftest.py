"""PostgreSQL's programs for backups, and another server to restore them into."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from notifyq.dsn import with_database
from notifyq.server import Server, debian_binaries
from support.database import drop_database, session, until_equal
from support.servers import kept_server


@dataclass(frozen=True)
class Programs:
    """pg_dump and its like; the server must not be newer than they are."""

    folder: Path

    async def run(self, name: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [self.folder / name, *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )

    async def dump(self, dsn: str, path: Path, *options: str) -> Path:
        done = await self.run("pg_dump", "-Fc", "-f", path, *options, dsn)
        assert done.returncode == 0, done.stderr
        return path

    async def restore(self, path: Path, dsn: str, *options: str) -> list[str]:
        """Restore into a database that is there; return the errors, without where they were."""
        done = await self.run("pg_restore", "-d", dsn, *options, path)
        return re.findall(r"error: could not execute query: ERROR:  (.*)", done.stderr)


@pytest.fixture(scope="session")
def programs(server: str) -> Programs:
    found = debian_binaries()
    if found is None or not all((found / name).exists() for name in ("pg_dump", "pg_restore")):
        pytest.skip("there is no pg_dump")

    async def version() -> int:
        async with session(server) as connection:
            return connection.get_server_version().major

    if (major := asyncio.run(version())) > int(found.parent.name):
        pytest.skip(f"pg_dump of PostgreSQL {found.parent.name} does not dump a server {major}")
    return Programs(found)


@pytest.fixture(scope="session")
def other_server(programs: Programs) -> Iterator[Server]:
    """Give another server, younger than that of the tests, without our roles."""
    with kept_server(programs.folder, full_page_writes="off") as server:
        server.start()
        yield server


@pytest.fixture
async def elsewhere(other_server: Server) -> AsyncIterator[str]:
    """Give the address of an empty database on the other server."""
    name = f"notifyq_test_{os.getpid()}_restored"
    async with session(other_server.dsn) as admin:
        await admin.execute(f'create database "{name}" template template0')
    yield with_database(other_server.dsn, name)
    async with session(other_server.dsn) as admin:
        await drop_database(admin, name)


@pytest.fixture
def promoted(programs: Programs, other_server: Server) -> Iterator[Callable[[], str]]:
    """Give a function that copies the other server as it is and promotes the copy.

    It returns the address of the copy; both run then, and share their past.
    """
    # The end of what there is to recover is the end of the old timeline.
    settings = {"full_page_writes": "off", "restore_command": "/bin/false"}
    with kept_server(programs.folder, **settings) as copy:

        def make() -> str:
            other_server.stop()
            shutil.rmtree(copy.directory)
            subprocess.run(["cp", "-a", other_server.directory, copy.directory], check=True)
            other_server.start()
            signal = copy.directory / "data/recovery.signal"
            signal.touch()
            shutil.chown(signal, signal.parent.stat().st_uid)
            address = copy.start()
            asyncio.run(_taken_over(address))
            return address

        yield make


async def _taken_over(address: str) -> None:
    """Wait until a server that can be read from can be written to."""
    async with session(address) as connection:
        await until_equal(
            lambda: connection.fetchval("select pg_is_in_recovery()"), False, "the end of recovery"
        )
