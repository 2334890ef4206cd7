"""The parts of faults: clocks that step, full disks, full notification queues."""

import os
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from notifyq.chaos import clock, mount, neighbour, notifications
from notifyq.chaos.faults.abuse import RELATIONS, statements
from support.database import Connection, until

needs_clock = pytest.mark.skipif(clock.lacking() is not None, reason=str(clock.lacking()))
needs_mount = pytest.mark.skipif(mount.lacking() is not None, reason=str(mount.lacking()))

_CLOCKS = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


@needs_clock
def test_a_step_changes_the_calendar_of_a_running_process_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steered = clock.Clock(tmp_path / f"notifyq-test-clock-{os.getpid()}")
    request.addfinalizer(steered.remove)
    steered.make()
    with subprocess.Popen(
        [sys.executable, "-c", _CLOCKS],
        env=os.environ | steered.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def offsets() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            calendar, monotonic = map(float, process.stdout.readline().split())
            return calendar - time.time(), monotonic - time.monotonic()

        for step in (3600, -300):
            steered.step(step)
            deadline = time.monotonic() + 10
            while abs(offsets()[0] - step) > 2 and time.monotonic() < deadline:
                pass
            calendar, monotonic = offsets()
            assert calendar == pytest.approx(step, abs=2)
            assert monotonic == pytest.approx(0, abs=2)


@needs_mount
def test_a_small_disk_is_full_until_it_is_relieved(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o751)
    with mount.SmallDisk(folder, 4) as disk:
        assert folder.is_mount()
        assert folder.stat().st_mode & 0o777 == 0o751
        before = disk.free
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(bytes(8192))
        disk.relieve()
        (folder / "more").write_bytes(b"")
        assert disk.free == before
        open_file = (folder / "more").open("rb")
    with open_file:
        assert not folder.is_mount()
    assert not list(folder.iterdir())


async def test_a_listener_in_a_transaction_keeps_notifications_in_the_queue(
    database: str, connection: Connection
) -> None:
    before = await notifications.usage(connection)
    capacity = await notifications.capacity(connection)
    async with notifications.hoarder(database):
        await notifications.notify(connection, "hoarded", 2)
        taken = await notifications.usage(connection) - before
        assert taken * capacity == pytest.approx(2, rel=0.3)

    async def is_free() -> bool:
        # A session that notifies takes away what all others have read.
        await connection.execute("notify hoarded")
        return await notifications.usage(connection) <= before

    await until(is_free, "the queue is empty")


async def test_idle_listeners_listen_and_go(database: str, connection: Connection) -> None:
    count = (
        "select count(*) from pg_stat_activity "
        "where application_name = 'idle listener' and datname = current_database()"
    )
    async with notifications.listeners(database, 3) as sessions:
        assert await connection.fetchval(count) == 3
        assert [row[0] for row in await sessions[2].fetch("select pg_listening_channels()")] == [
            "idle_2"
        ]

    async def have_gone() -> bool:
        return bool(await connection.fetchval(count) == 0)

    await until(have_gone, "the sessions are gone")


async def test_a_neighbour_measures_and_goes(database: str, connection: Connection) -> None:
    exists = "select count(*) from pg_database where datname = 'neighbour'"
    async with neighbour.neighbour(database) as address:
        assert await neighbour.publish_rate(address, 2, 0.1) > 0
        assert 0 < neighbour.p99(await neighbour.work_through(address, 0.1)) < 10
        await neighbour.set_notify(address, "always")
        async with neighbour.suppressed(address):
            assert await neighbour.publish_rate(address, 1, 0.01) > 0
        assert await connection.fetchval(exists) == 1
    assert await connection.fetchval(exists) == 0
    assert await connection.fetchval("select count(*) from messages.message") == 0


async def test_a_role_without_grants_is_refused_each_statement(
    database: str, connection: Connection
) -> None:
    relations = [row[0] for row in await connection.fetch(RELATIONS)]
    tried = statements(relations)
    assert len(tried) > 9 * len(relations) > 50
    name = f"notifyq_test_hostile_{os.getpid()}"
    await connection.execute(f"create role {name}")
    try:
        await connection.execute(f"set role {name}")
        for statement in tried:
            # These a superuser may do, under whatever role.
            if not statement.startswith(("set role", "grant notifyq_worker")):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
    finally:
        await connection.execute("reset role")
        await connection.execute(f"drop role {name}")
