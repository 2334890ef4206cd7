"""What is measured. Each case measures one system, alone on the server, in one round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .flow import measure_flow
from .place import LOST, Measured, Place, Sizes, latency, one_by_one, publish
from .processes import run_pgbench
from .results import OURS, percentiles
from .streams import (
    has_streams,
    measure_stream_held,
    measure_stream_idle,
    measure_stream_publish,
    measure_stream_read,
)
from .systems import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .system import System


@dataclass(frozen=True, slots=True)
class _Load:
    """What pgbench does for a while."""

    variant: str
    name: str
    script: str
    clients: int
    messages: int = 1
    """Of a statement."""


async def measure_publish(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """Single rows by 1, 16 and 64 clients, and bulk, by pgbench: nobody attends, or a worker."""
    async for measured in _published(place, sizes, sizes.clients, sizes.bulk):
        yield measured


async def _published(
    place: Place, sizes: Sizes, clients: tuple[int, ...], bulk: int = 0
) -> AsyncIterator[Measured]:
    """Publish with nobody attending, then with a worker; `bulk` messages a statement at last."""
    statements = place.statements
    loads = [
        _Load(str(count), name, statements.one("'{}'::text", name), count)
        for count in clients
        for name in statements.publish
    ]
    if bulk:
        loads.append(_Load("bulk", next(iter(statements.publish)), statements.many(bulk), 1, bulk))
    for load in loads:
        await place.clear()
        yield await _carried(place, sizes, load, "alone")
    if place.system.processes == 0:
        return
    await place.clear()
    async with place.working() as crew, place.connect() as connection:
        for load in loads:
            yield await _carried(place, sizes, load, "worker")
            await place.drained(connection, crew, sizes.patience)


async def _carried(place: Place, sizes: Sizes, load: _Load, beside: str) -> Measured:
    before = await place.host.counters()
    done = await run_pgbench(
        place.dsn, f"{load.script};", clients=load.clients, seconds=sizes.seconds
    )
    after = await place.host.counters()
    used = after.per_message(before, done.transactions * load.messages)
    values = {"rate": done.rate * load.messages, **used}
    return Measured(f"{load.variant}, {beside}", load.name, values)


async def measure_drain(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process, handlers that do nothing, a backlog published at once."""
    await place.clear()
    async with place.working() as crew:
        values = await place.drain(crew, sizes.backlog, sizes.patience)
    yield Measured("1 process", place.system.name, values)


async def measure_scale(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """The same backlog with more worker processes."""
    for processes in sizes.processes:
        if processes > place.system.processes:
            continue
        await place.clear()
        async with place.working(processes) as crew:
            values = await place.drain(crew, sizes.backlog, sizes.patience)
        yield Measured(f"{processes} processes", place.system.name, values)


async def measure_steady(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """A steady rate of messages: how long from the publisher's commit to the handler's start."""
    await place.clear()
    number = sizes.rate * sizes.steady
    committed: dict[int, float] = {}
    async with place.working() as crew, contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(place.connect()) for _ in range(4)]
        begun = time.monotonic()

        async def publish_share(share: int) -> None:
            for n in range(share, number, len(connections)):
                # By the schedule, not by the publication before: one that was slow is caught up.
                await asyncio.sleep(max(0, begun + n / sizes.rate - time.monotonic()))
                committed[n] = await publish(connections[share], place.statements, n)

        before, worked = await place.host.counters(), crew.cpu()
        await asyncio.gather(*map(publish_share, range(len(connections))))
        for n in range(number):
            if n not in crew.begun and not await crew.wait(n, LOST):
                break
        after, ended = await place.host.counters(), crew.cpu()
        latencies = [latency(crew, n, committed[n]) for n in range(number)]
    values = percentiles(latencies) | after.per_message(before, number)
    if worked is not None and ended is not None:
        values["worker_cpu"] = (ended - worked) / number
    if lost := sum(n not in crew.begun for n in range(number)):
        values["left"] = lost
    yield Measured(f"{sizes.rate}/s", place.system.name, values, latencies)


async def measure_idle(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """One message at a time: each is published when the one before has long been handled."""
    await place.clear()
    async with place.working() as crew:
        latencies = await one_by_one(place, crew, range(sizes.idle))
    yield Measured("idle", place.system.name, percentiles(latencies), latencies)


async def measure_held(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """A transaction keeps an old snapshot, so that dead rows stay: a drain and latency on top."""
    await place.clear()
    part = max(sizes.dead_rows // 4, 1)
    async with place.connect() as holder, place.working() as crew:
        first = await place.drain(crew, part, sizes.patience)
        idle = await one_by_one(place, crew, range(10))
        yield Measured("fresh", place.system.name, first | percentiles(idle), idle)
        await holder.execute("begin isolation level repeatable read; select txid_current()")
        deadline = time.monotonic() + 3 * sizes.patience
        for _ in range(sizes.dead_rows // part):
            await place.drain(crew, part, sizes.patience)
            if time.monotonic() > deadline:
                break
        last = await place.drain(crew, part, sizes.patience)
        async with place.connect() as connection:
            await place.drained(connection, crew, 3 * sizes.patience)
        idle = await one_by_one(place, crew, range(10, 20))
        await holder.execute("rollback")
    yield Measured("snapshot held", place.system.name, last | percentiles(idle), idle)


async def measure_flush(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and drain while each flush of the WAL takes two milliseconds more."""
    await place.host.slow_flush()
    try:
        async for measured in _published(place, sizes, sizes.clients[-1:]):
            measured.variant = f"publish {measured.variant}"
            yield measured
        if place.system.processes:
            await place.clear()
            async with place.working() as crew:
                values = await place.drain(crew, sizes.backlog // 2, sizes.patience)
            yield Measured("drain", place.system.name, values)
    finally:
        await place.host.reset()


_CLAIM = r"""
select coalesce(quote_literal(array_agg(id)), '''{{}}''') as ids,
  coalesce(quote_literal(array_agg(lock_token)), '''{{}}''') as tokens, count(*) as n
from messages.claim(array['bench'], {quantity}) \gset
select count(*) from messages.finish_many(:ids::bigint[], :tokens::bigint[],
  array_fill('success'::messages.message_status, array[:n::integer]));
"""


async def measure_limits(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """Notifyq's claim and finish alone: pgbench calls the two functions, each commits."""
    for quantity in (100, 500):
        await place.clear()
        async with place.connect() as connection:
            await connection.execute(
                f"select messages.publish_many('bench', array_fill('{{}}'::jsonb, "
                f"array[{sizes.backlog}]))"
            )
            before = await place.host.counters()
            calls = max(sizes.backlog // quantity, 1)
            script = _CLAIM.format(quantity=quantity)
            done = await run_pgbench(place.dsn, script, transactions=calls, protocol="simple")
            after = await place.host.counters()
            left = await connection.fetchval("select count(*) from messages.message")
        number = sizes.backlog - left
        rate = done.rate * number / done.transactions
        values = {"rate": rate, **after.per_message(before, number)}
        yield Measured(f"claim and finish {quantity}", place.system.name, values)


@dataclass(frozen=True, slots=True)
class Case:
    """A case by its name."""

    name: str
    measure: Callable[[Place, Sizes], AsyncIterator[Measured]]
    applies: Callable[[System], bool]

    @property
    def title(self) -> str:
        """What it measures, in a sentence."""
        return (self.measure.__doc__ or "").splitlines()[0]


def _has_worker(system: System) -> bool:
    return system.processes > 0


CASES = {
    case.name: case
    for case in (
        Case("publish", measure_publish, lambda _: True),
        Case("drain", measure_drain, _has_worker),
        Case("steady", measure_steady, _has_worker),
        Case("idle", measure_idle, _has_worker),
        Case("held", measure_held, _has_worker),
        Case("flush", measure_flush, lambda _: True),
        Case("scale", measure_scale, lambda system: system.processes > 1),
        Case("stream-publish", measure_stream_publish, has_streams),
        Case("stream-read", measure_stream_read, has_streams),
        Case("stream-idle", measure_stream_idle, has_streams),
        Case("stream-held", measure_stream_held, has_streams),
        Case("limits", measure_limits, lambda system: system.name == LIMIT),
        Case("flow", measure_flow, lambda system: system.name == OURS),
    )
}
