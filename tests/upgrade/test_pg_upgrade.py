"""`pg_upgrade` to another major version, under workers that wait for the server and go on."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.programs import Notifyq
from notifyq import App, schema
from notifyq.chaos.server import Server, tied
from notifyq.errors import ForeignPositionError
from notifyq.operations.doctor import Level, examine
from notifyq.server import debian_binaries, wheel_binaries
from notifyq.server.binaries import clean_environment, reachable, version
from notifyq.server.postmaster import free_port
from support.database import session, until, value
from support.running import doubles, persisting, statuses, working


def _major(binaries: Path) -> int:
    return int(version(binaries).partition(".")[0])


class Pair:
    """A server, and the programs of another version that continue with its data."""

    def __init__(self, folder: Path, old: Path, new: Path) -> None:
        self.server = Server(folder / "old", old)
        self.server.create()
        self._next = Server(folder / "new", new)
        self._next.port = self.server.port
        self._next._files.claim()
        shutil.copy(self.server.folder / "password", self._next.folder / "password")
        self._account = self.server._files.account()
        self._next.binaries = reachable(new, self._account)

    def _run(self, name: str, *args: str | Path) -> None:
        """Run a program of the new version as the user of the server, in a folder of its own."""
        folder = self._next.folder
        if self._account:
            os.chown(folder, self._account.uid, self._account.gid)
        done = subprocess.run(
            tied([self._next.binaries / name, *args], self._account),
            env={**clean_environment(), "PGPASSWORD": self.server._files.password()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout

    def upgrade(self) -> Server:
        """Run pg_upgrade; return the new server, which has the address of the old one."""
        checksums = ["--no-data-checksums"] if _major(self._next.binaries) >= 18 else []
        secret = self._next.folder / "secret"
        secret.write_text(self.server._files.password())
        if self._account:
            os.chown(secret, self._account.uid, self._account.gid)
        shape = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", *checksums]
        auth = ["--auth=scram-sha-256", f"--pwfile={secret}"]
        self._run("initdb", "-D", self._next.data, *shape, *auth)
        old: list[str | Path] = ["-b", self.server.binaries, "-d", self.server.data]
        new: list[str | Path] = ["-B", self._next.binaries, "-D", self._next.data]
        self._run("pg_upgrade", "-U", "postgres", *old, *new, "-s", self._next.folder)
        return self._next


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    old = debian_binaries()
    if old is None or not (old / "pg_upgrade").exists():
        pytest.skip("there is no pg_upgrade")
    # To the newest version that is here, else to a new cluster of the same one.
    new = max(old, wheel_binaries() or old, key=_major)
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as name:
        Path(name).chmod(0o711)  # the server is another user's
        made = Pair(Path(name), old, new)
        try:
            yield made
        finally:
            await made.server.stop()
            await made._next.stop()


class Load:
    """An App whose messages and events are counted, and numbers that are published all the time."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, retry_for=120)
        self.handled, self.seen = Counter[int](), Counter[int]()
        self.sent: list[int] = []
        self.is_over = asyncio.Event()
        self.app.handler("q")(self.handle)
        self.app.subscriber("s", "c")(self.see)

    async def handle(self, number: int) -> None:
        self.handled[number] += 1

    async def see(self, number: int) -> None:
        self.seen[number] += 1

    async def publish(self) -> None:
        while not self.is_over.is_set():
            await persisting(self.app, "q", len(self.sent))
            self.sent.append(len(self.sent))
            await asyncio.sleep(0.01)

    async def until_flowing(self, least: int) -> None:
        await until(lambda: len(self.handled) > least, "messages are handled", 60)


PREPARED = """
select messages.create_queue('q', max_attempts => 5), messages.create_stream('s');
select messages.subscribe('s', 'c'), messages.publish('s', '1');
select messages.publish('q', '-1', delay => '1h');
-- The other version has no such library.
drop extension if exists pg_cron;
"""


@pytest.mark.timeout(180)
async def test_workers_go_on_after_pg_upgrade(pair: Pair) -> None:
    await pair.server.start()
    dsn = pair.server.dsn
    async with session(dsn) as connection:
        await schema.install(connection)
        await connection.execute(PREPARED)
        position = await connection.fetchval("select messages.current_position()")
    load = Load(dsn)
    async with working(load.app, poll=1, maintenance=0.2, ping=0.2, seconds=60):
        publishing = asyncio.create_task(load.publish())
        try:
            await load.until_flowing(50)
            await until(lambda: load.seen[1] > 0, "events are handled")
            await pair.server.stop()
            before = len(load.handled)
            server = await asyncio.to_thread(pair.upgrade)
            # First where no worker finds it: one that has subscribers ends before the adoption.
            address, server.port = server.port, free_port()
            await server.start()
            with Notifyq(server.dsn) as command:
                assert "and adopted" in command("migrate", "--adopt").out
            await server.stop()
            server.port = address
            await server.start()
            await load.until_flowing(before + 50)
        finally:
            load.is_over.set()
            await publishing
        async with session(dsn) as connection:
            await connection.execute(
                "select messages.publish('s', '2'); "
                "update messages.message set available_at = now() where state = 'scheduled'"
            )
        await until(lambda: load.seen[2] > 0, "events are handled again", 30)
        await until(lambda: load.handled.keys() == {*load.sent, -1}, "all is handled", 30)
    await load.app.close()
    await check(dsn, len(load.sent) + 1, position)
    assert load.seen == {1: 1, 2: 1}
    # At least once: what was in flight when the server stopped may have been handled twice.
    assert load.handled.total() - len(load.handled) <= 20


async def check(dsn: str, messages: int, position: str) -> None:
    """Each message has ended once, ids go on, and the install is whole."""
    async with session(dsn) as connection:
        assert await doubles(connection) == 0
        assert await statuses(connection) == {"success": messages}
        assert await connection.fetchval("select count(*) from messages.message") == 0
        with pytest.raises(ForeignPositionError):
            await connection.fetch("select * from messages.dead_since($1)", position)
        last = await connection.fetchval("select max(id) from messages.message_archive")
        assert await value(connection, "publish", queue="q", message=0) > last
    found = {
        name: finding.found
        async for name, finding in examine(dsn)
        if finding.level is Level.FAIL or (name == "origin" and finding.level is not Level.OK)
    }
    assert found == {}
