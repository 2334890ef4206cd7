"""What limits cost: draining a queue of each policy, beside the same queue without one.

No limit here ever binds: what is measured is the price of keeping it. Sessions stay open, as those
of workers do, and each has claimed and finished once since its plans were thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .machine import on_cpu
from .place import Measured, Place, Sizes
from .results import OURS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    Connection = asyncpg.Connection[Any]

_QUANTITY = 500
"""Messages of a claim."""
_QUEUE = "bench_limit"
_MANY = 1_000_000
"""A limit that does not bind."""

# As texts: what is measured is the server, and the client shall not make numbers of them.
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
    """A policy, and with how many keys it is measured."""

    name: str
    policy: str
    keys: tuple[int, ...] = (100,)


_FEW, _SOME = 100, 1500
_LIMITS = (
    _Limit(OURS, "", (_FEW, _SOME)),
    _Limit(f"{OURS}, concurrency", f"concurrency => {_MANY}"),
    _Limit(f"{OURS}, key_concurrency", f"key_concurrency => {_MANY}"),
    # So near to what runs of a key that it has to be counted.
    _Limit(f"{OURS}, key_concurrency of 40", "key_concurrency => 40"),
    _Limit(f"{OURS}, rate", f"rate => {_MANY}, rate_burst => {_MANY}"),
    _Limit(f"{OURS}, key_rate", f"key_rate => {_MANY}, key_rate_burst => {_MANY}"),
    _Limit(f"{OURS}, capacity", f"capacity => {_MANY}"),
    # Of each key one message at a time: more keys than are in the hands of all sessions.
    _Limit(f"{OURS}, ordered", "ordered => true", (_SOME,)),
    _Limit(f"{OURS}, fair", "fair => true", (_FEW, _SOME)),
)


async def measure_flow(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """What each limit costs: claim and finish 500 at a time, by 1 and 2 sessions that stay open."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(place.connect()) for _ in range(max(sizes.sessions))
        ]
        for turn in range(sizes.turns):
            for limit in (*_LIMITS[turn:], *_LIMITS[:turn]):
                for keys in limit.keys:
                    for number in sizes.sessions:
                        yield await _drained(place, connections[:number], limit, keys, sizes)


async def _drained(
    place: Place, connections: Sequence[Connection], limit: _Limit, keys: int, sizes: Sizes
) -> Measured:
    await place.clear()
    connection = connections[0]
    await connection.execute(
        f"select messages.create_queue('{_QUEUE}'{limit.policy and ', '}{limit.policy})"
    )
    try:
        # The table was truncated, so each statement is planned anew. Not behind the backlog: these
        # have the keys of its end, and there an order by key would bind.
        for each in connections:
            await connection.fetchval(_PUBLISH, _QUEUE, _QUANTITY, keys)
            await _work(each)
        await connection.fetchval(_PUBLISH, _QUEUE, sizes.backlog, keys, timeout=60)
        processes = [await each.fetchval("select pg_backend_pid()") for each in connections]
        used, before, begun = on_cpu(processes), await place.host.counters(), time.monotonic()
        done = sum(await asyncio.gather(*map(_work_off, connections)))
        seconds = time.monotonic() - begun
        after, ended = await place.host.counters(), on_cpu(processes)
    finally:
        await connection.execute(f"select messages.drop_queue('{_QUEUE}', true)")
    values = {"rate": done / seconds, **after.per_message(before, done)}
    # Of the sessions alone: the clock of all processes is too coarse, and vacuum comes and goes.
    values.pop("server_cpu", None)
    if used is not None and ended is not None:
        values["server_cpu"] = (ended - used) / max(done, 1)
    if left := sizes.backlog - done:
        values["left"] = left
    sessions = "1 session" if len(connections) == 1 else f"{len(connections)} sessions"
    return Measured(f"{keys} keys, {sessions}", limit.name, values)


async def _work_off(connection: Connection) -> int:
    """Claim and finish until nothing is left; return how many those were."""
    done = 0
    while number := await _work(connection):
        done += number
    return done


async def _work(connection: Connection) -> int:
    claimed = await connection.fetchrow(_CLAIM, _QUEUE, _QUANTITY)
    assert claimed is not None  # noqa: S101  an aggregate has a row
    if claimed["number"]:
        await connection.fetchval(_FINISH, claimed["ids"], claimed["tokens"])
    return int(claimed["number"])
