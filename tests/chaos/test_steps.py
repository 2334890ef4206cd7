"""The rule of the fault `steps-kill`: it finds effects that are doubled or missing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from notifyq.chaos.faults.workers import StepsKill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.chaos.rig import Rig
    from support.database import Connection


class _Rig:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.findings: list[str] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        yield self._connection

    def figure(self, name: str, value: float) -> None:
        pass

    def require(self, condition: bool, finding: str) -> None:
        if not condition:
            self.findings.append(finding)


@pytest.mark.parametrize(
    ("effects", "is_parked", "findings"),
    [
        (["a", "b"], False, []),
        (["a", "a", "b"], False, ["1 steps had their effect twice"]),
        (["a"], False, ["1 messages succeeded without their step"]),
        (["a", "b"], True, ["1 messages are still parked"]),
    ],
)
async def test_it_finds(
    connection: Connection, effects: list[str], findings: list[str], *, is_parked: bool
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
    rig = _Rig(connection)
    await StepsKill().conclude(cast("Rig", rig), [])
    assert rig.findings == findings
