"""The cases. Each measures one system, alone on the server, in one round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .limits import measure_queue_limits
from .processes import run_pgbench
from .results import NOTIFYQ, percentiles
from .steps import measure_steps
from .streams import (
    has_streams,
    measure_stream_held,
    measure_stream_idle,
    measure_stream_publish,
    measure_stream_read,
)
from .systems import LIMIT
from .workspace import LOST, Measured, Sizes, Workspace, latency, one_by_one, publish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .system import System


@dataclass(frozen=True, slots=True)
class _Load:
    """The load of a run of pgbench."""

    variant: str
    name: str
    script: str
    clients: int
    messages: int = 1
    """Messages of a statement."""


async def measure_publish(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Single rows by 1, 16 and 64 clients, and bulk, by pgbench: without and with a worker."""
    async for measured in _published(workspace, sizes, sizes.clients, sizes.bulk):
        yield measured


async def _published(
    workspace: Workspace, sizes: Sizes, clients: tuple[int, ...], bulk: int = 0
) -> AsyncIterator[Measured]:
    """Publish without a worker, then with one; at the end `bulk` messages a statement."""
    statements = workspace.statements
    loads = [
        _Load(str(count), name, statements.one("'{}'::text", name), count)
        for count in clients
        for name in statements.publish
    ]
    if bulk:
        loads.append(_Load("bulk", next(iter(statements.publish)), statements.many(bulk), 1, bulk))
    for load in loads:
        await workspace.clear()
        yield await _measured(workspace, sizes, load, "alone")
    if workspace.system.processes == 0:
        return
    await workspace.clear()
    async with workspace.working() as workers, workspace.connect() as connection:
        for load in loads:
            yield await _measured(workspace, sizes, load, "worker")
            await workspace.drained(connection, workers, sizes.patience)


async def _measured(workspace: Workspace, sizes: Sizes, load: _Load, beside: str) -> Measured:
    before = await workspace.host.used()
    done = await run_pgbench(
        workspace.dsn, f"{load.script};", clients=load.clients, seconds=sizes.seconds
    )
    used = await workspace.host.per_message(before, done.transactions * load.messages)
    values = {"rate": done.rate * load.messages, **used}
    return Measured(f"{load.variant}, {beside}", load.name, values)


async def measure_drain(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process drains a backlog; handlers do nothing."""
    await workspace.clear()
    async with workspace.working() as workers:
        values = await workspace.drain(workers, sizes.backlog, sizes.patience)
    yield Measured("1 process", workspace.system.name, values)


async def measure_scale(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """More worker processes drain the same backlog."""
    for processes in sizes.processes:
        if processes > workspace.system.processes:
            continue
        await workspace.clear()
        async with workspace.working(processes) as workers:
            values = await workspace.drain(workers, sizes.backlog, sizes.patience)
        yield Measured(f"{processes} processes", workspace.system.name, values)


async def measure_steady(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """A steady rate of messages: latency from the publisher's commit to the handler's start."""
    await workspace.clear()
    number = sizes.rate * sizes.steady
    committed: dict[int, float] = {}
    async with workspace.working() as workers, contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(workspace.connect()) for _ in range(4)]
        begun = time.monotonic()

        async def publish_share(share: int) -> None:
            for n in range(share, number, len(connections)):
                # By the clock: publications after a slow one catch up.
                await asyncio.sleep(max(0, begun + n / sizes.rate - time.monotonic()))
                committed[n] = await publish(connections[share], workspace.statements, n)

        before = await workspace.host.used(workers)
        await asyncio.gather(*map(publish_share, range(len(connections))))
        for n in range(number):
            if n not in workers.begun and not await workers.wait(n, LOST):
                break
        used = await workspace.host.per_message(before, number, workers)
        latencies = [latency(workers, n, committed[n]) for n in range(number)]
    values = percentiles(latencies) | used
    if lost := sum(n not in workers.begun for n in range(number)):
        values["left"] = lost
    yield Measured(f"{sizes.rate}/s", workspace.system.name, values, latencies)


async def measure_idle(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One message at a time, each published after the one before was handled."""
    await workspace.clear()
    async with workspace.working() as workers:
        latencies = await one_by_one(workspace, workers, range(sizes.idle))
    yield Measured("idle", workspace.system.name, percentiles(latencies), latencies)


async def measure_held(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """A transaction holds a snapshot, so that dead rows stay: rate of a drain, and latency."""
    await workspace.clear()
    part = max(sizes.dead_rows // 4, 1)
    async with workspace.connect() as holder, workspace.working() as workers:
        first = await workspace.drain(workers, part, sizes.patience)
        idle = await one_by_one(workspace, workers, range(10))
        yield Measured("fresh", workspace.system.name, first | percentiles(idle), idle)
        await holder.execute("begin isolation level repeatable read; select txid_current()")
        deadline = time.monotonic() + 3 * sizes.patience
        for _ in range(sizes.dead_rows // part):
            await workspace.drain(workers, part, sizes.patience)
            if time.monotonic() > deadline:
                break
        last = await workspace.drain(workers, part, sizes.patience)
        async with workspace.connect() as connection:
            await workspace.drained(connection, workers, 3 * sizes.patience)
        idle = await one_by_one(workspace, workers, range(10, 20))
        await holder.execute("rollback")
    yield Measured("snapshot held", workspace.system.name, last | percentiles(idle), idle)


async def measure_flush(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and drain while each flush of the WAL takes 2 ms more."""
    await workspace.host.slow_flush()
    try:
        async for measured in _published(workspace, sizes, sizes.clients[-1:]):
            measured.variant = f"publish {measured.variant}"
            yield measured
        if workspace.system.processes:
            await workspace.clear()
            async with workspace.working() as workers:
                values = await workspace.drain(workers, sizes.backlog // 2, sizes.patience)
            yield Measured("drain", workspace.system.name, values)
    finally:
        await workspace.host.reset()


_CLAIM = r"""
select coalesce(quote_literal(array_agg(id)), '''{{}}''') as ids,
  coalesce(quote_literal(array_agg(lock_token)), '''{{}}''') as tokens, count(*) as n
from messages.claim(array['bench'], {quantity}) \gset
select count(*) from messages.finish_many(:ids::bigint[], :tokens::bigint[],
  array_fill('success'::messages.message_status, array[:n::integer]));
"""


async def measure_ceiling(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Notifyq's claim and finish without a worker: pgbench calls the two functions."""
    for quantity in (100, 500):
        await workspace.clear()
        async with workspace.connect() as connection:
            await connection.execute(
                f"select messages.publish_many('bench', array_fill('{{}}'::jsonb, "
                f"array[{sizes.backlog}]))"
            )
            before = await workspace.host.used()
            calls = max(sizes.backlog // quantity, 1)
            script = _CLAIM.format(quantity=quantity)
            done = await run_pgbench(workspace.dsn, script, transactions=calls, protocol="simple")
            left = await connection.fetchval("select count(*) from messages.message")
            number = sizes.backlog - left
            used = await workspace.host.per_message(before, number)
        values = {"rate": done.rate * number / done.transactions, **used}
        yield Measured(f"claim and finish {quantity}", workspace.system.name, values)


@dataclass(frozen=True, slots=True)
class Case:
    """A case, and the systems that it applies to."""

    name: str
    measure: Callable[[Workspace, Sizes], AsyncIterator[Measured]]
    applies: Callable[[System], bool]

    @property
    def title(self) -> str:
        """The first line of its docstring."""
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
        Case("ceiling", measure_ceiling, lambda system: system.name == LIMIT),
        Case("limits", measure_queue_limits, lambda system: system.name == NOTIFYQ),
        Case("steps", measure_steps, lambda system: system.name == NOTIFYQ),
    )
}
