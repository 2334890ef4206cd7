"""The rules of faults that read the database: what is doubled, missing or left is found."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from notifyq.chaos.faults.processes import Soak, StepsKill
from notifyq.chaos.load import Load
from notifyq.chaos.rig import Rig
from support.database import Connection, publish, rows


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        yield self._connection


@pytest.fixture
def rig(connection: Connection, tmp_path: Path) -> Iterator[Rig]:
    nothing: Any = None
    load = Load("", tmp_path, "", {}, 1, ())
    server = cast("Any", _Server(connection))
    rig = Rig(
        server=server, proxy=nothing, folder=tmp_path, random=random.Random(1), seconds=0,
        workers=[], load=load,
    )  # fmt: skip
    yield rig
    rig.history.close()


def broken(rig: Rig) -> set[str]:
    names = {finding.partition(":")[0] for finding in rig.findings}
    rig.findings.clear()
    return names


@pytest.mark.parametrize(
    ("effects", "is_parked", "finding"),
    [
        (["a", "b"], False, None),
        (["a", "a", "b"], False, "effects beyond the first of a step"),
        (["a"], False, "successes without their step"),
        (["a", "b"], True, "messages still parked"),
    ],
)
async def test_a_step_has_its_effect_once(
    rig: Rig, connection: Connection, effects: list[str], finding: str | None, *, is_parked: bool
) -> None:
    await connection.execute("select messages.create_queue('steps')")
    for key in "ab":
        await connection.execute("select messages.publish('steps', $1)", {"key": key})
    await connection.execute(
        "select messages.finish(c.id, c.lock_token) from messages.claim('{steps}', 2) as c"
    )
    await connection.execute("create table public.chaos_effect (key text)")
    await connection.executemany(
        "insert into public.chaos_effect values ($1)", [(key,) for key in effects]
    )
    if is_parked:
        await connection.execute("select messages.publish('steps', '1')")
        await connection.execute(
            "select messages.sleep(c.id, c.lock_token, 'nap', delay => '1 hour') "
            "from messages.claim('{steps}') as c"
        )
    await StepsKill().conclude(rig, [])
    assert broken(rig) == ({finding} if finding else set())


async def test_a_soak_counts_each_violation(rig: Rig, connection: Connection) -> None:
    async def conclude(published: int, failed: int) -> set[str]:
        rig.load.published, rig.load.failed = published, failed
        await Soak().conclude(rig, [])
        return broken(rig)

    await publish(connection, 3)
    await rows(connection, "take", queue="default", quantity=2)
    assert await conclude(4, 0) == {"lost", "live"}
    assert await conclude(1, 1) == {"unexpected", "live"}
    await rows(connection, "take", queue="default", quantity=1)
    assert await conclude(3, 0) == set()
    assert await conclude(2, 2) == set()  # of two without an answer one was published
    assert await conclude(0, 3) == {"nothing acknowledged"}
    await publish(connection, 1)
    await connection.execute("""
        insert into messages.message_archive
          (id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
          headers)
        select id, created_at, available_at, lock_token, priority, 2, status, queue, message,
          headers
        from messages.message_archive
        union all
        select id, created_at, available_at, lock_token, priority, attempts,
          'success'::messages.message_status, queue, message, headers
        from messages.message
    """)
    assert await conclude(4, 0) == {"both", "live", "doubled", "beyond"}
