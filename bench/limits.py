"""The cost of limits: drains of a queue with each limit, and of the same queue without limits.

No limit is ever reached, so a difference is the cost of checking it. Sessions stay open, as those
of workers do, and each claims and finishes once before the measurement to cache its plans.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .machine import on_cpu
from .results import NOTIFYQ
from .workspace import Measured, Sizes, Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    Connection = asyncpg.Connection[Any]

_QUANTITY = 500
"""Messages of a claim."""
_QUEUE = "bench_limit"
_MANY = 1_000_000
"""A limit that is never reached."""

# As text: the client need not parse numbers, as only the server is measured.
_CLAIM = (
    "select coalesce(array_agg(c.id), '{}')::text as ids, "
    "coalesce(array_agg(c.lock_token), '{}')::text as tokens, count(*) as number "
    "from messages.claim(array[$1], $2) as c"
)
_FINISH = (
    "select count(*) from messages.finish_many($1::text::bigint[], $2::text::bigint[], "
    "array_fill('success'::messages.message_status, array[cardinality($1::text::bigint[])]))"
)
_PUBLISH = (
    "select count(*) from messages.publish_many($1, array_fill('{}'::jsonb, array[$2::integer]), "
    "keys => array(select 'key ' || (i - 1) % $3 from generate_series(1, $2::integer) as i))"
)


@dataclass(frozen=True, slots=True)
class _Limit:
    """A policy, and the numbers of keys that it is measured with."""

    name: str
    policy: str
    keys: tuple[int, ...] = (100,)


_FEW, _SOME = 100, 1500
_LIMITS = (
    _Limit(NOTIFYQ, "", (_FEW, _SOME)),
    _Limit(f"{NOTIFYQ}, concurrency", f"concurrency => {_MANY}"),
    _Limit(f"{NOTIFYQ}, key_concurrency", f"key_concurrency => {_MANY}"),
    # So close to the number of running messages of a key that they must be counted.
    _Limit(f"{NOTIFYQ}, key_concurrency of 40", "key_concurrency => 40"),
    _Limit(f"{NOTIFYQ}, rate", f"rate => {_MANY}, rate_burst => {_MANY}"),
    _Limit(f"{NOTIFYQ}, key_rate", f"key_rate => {_MANY}, key_rate_burst => {_MANY}"),
    _Limit(f"{NOTIFYQ}, capacity", f"capacity => {_MANY}"),
    # One message of a key at a time, so it needs more keys than all sessions claim.
    _Limit(f"{NOTIFYQ}, ordered", "ordered => true", (_SOME,)),
    _Limit(f"{NOTIFYQ}, fair", "fair => true", (_FEW, _SOME)),
)


async def measure_queue_limits(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """The cost of each limit: 1 and 2 sessions claim and finish 500 at a time."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(workspace.connect()) for _ in range(max(sizes.sessions))
        ]
        for turn in range(sizes.turns):
            for limit in (*_LIMITS[turn:], *_LIMITS[:turn]):
                for keys in limit.keys:
                    for number in sizes.sessions:
                        yield await _drained(workspace, connections[:number], limit, keys, sizes)


async def _drained(
    workspace: Workspace, connections: Sequence[Connection], limit: _Limit, keys: int, sizes: Sizes
) -> Measured:
    await workspace.clear()
    connection = connections[0]
    await connection.execute(
        f"select messages.create_queue('{_QUEUE}'{limit.policy and ', '}{limit.policy})"
    )
    try:
        # The table was truncated, so each statement is planned anew. This comes before the backlog:
        # behind it, an order by key would apply to these messages.
        for each in connections:
            await connection.fetchval(_PUBLISH, _QUEUE, _QUANTITY, keys)
            await _claim_and_finish(each)
        await connection.fetchval(_PUBLISH, _QUEUE, sizes.limited, keys, timeout=60)
        processes = [await each.fetchval("select pg_backend_pid()") for each in connections]
        cpu, before, begun = on_cpu(processes), await workspace.host.used(), time.monotonic()
        done = sum(await asyncio.gather(*map(_drain, connections)))
        seconds = time.monotonic() - begun
        used, ended = await workspace.host.per_message(before, done), on_cpu(processes)
    finally:
        await connection.execute(f"select messages.drop_queue('{_QUEUE}', true)")
    values = {"rate": done / seconds, **used}
    # Of the sessions alone: the clock of all processes is too coarse, and includes autovacuum.
    values.pop("server_cpu", None)
    if cpu is not None and ended is not None:
        values["server_cpu"] = (ended - cpu) / max(done, 1)
    if left := sizes.limited - done:
        values["left"] = left
    sessions = "1 session" if len(connections) == 1 else f"{len(connections)} sessions"
    return Measured(f"{keys} keys, {sessions}", limit.name, values)


async def _drain(connection: Connection) -> int:
    """Claim and finish all messages; return their number."""
    done = 0
    while number := await _claim_and_finish(connection):
        done += number
    return done


async def _claim_and_finish(connection: Connection) -> int:
    claimed = await connection.fetchrow(_CLAIM, _QUEUE, _QUANTITY)
    assert claimed is not None  # noqa: S101  an aggregate has a row
    if claimed["number"]:
        await connection.fetchval(_FINISH, claimed["ids"], claimed["tokens"])
    return int(claimed["number"])
