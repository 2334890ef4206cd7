"""The cases. Each measures one system, alone on the server, in one round."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from notifyq.errors import NotifyqError

from .limits import measure_queue_limits
from .machine import on_cpu
from .processes import run_pgbench
from .results import NOTIFYQ, percentiles
from .steps import measure_encryption, measure_steps
from .streams import (
    has_streams,
    measure_stream_held,
    measure_stream_idle,
    measure_stream_publish,
    measure_stream_read,
)
from .systems import BARE, LIMIT, NotifyQ
from .workspace import LOST, Measured, Sent, Sizes, Workspace, latencies, one_by_one, publish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import asyncpg

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
    """Publish without workers, then with them; at the end `bulk` messages a statement."""
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
    for processes in sizes.beside:
        is_first = processes == sizes.beside[0]
        chosen = [load for load in loads if is_first or load.clients == max(clients)]
        beside = f"{processes} worker{'s' * (processes > 1)}"
        if workspace.system.processes == 0:
            for load in chosen:  # what these publishers reach without a queue
                await workspace.clear()
                yield await _measured(workspace, sizes, load, beside)
        elif processes <= workspace.system.processes:
            await workspace.clear()
            async with (
                workspace.working(sizes, processes) as workers,
                workspace.connect() as connection,
            ):
                for load in chosen:
                    yield await _measured(workspace, sizes, load, beside, connection)
                    await workspace.drained(connection, workers, sizes.patience)


async def _measured(
    workspace: Workspace,
    sizes: Sizes,
    load: _Load,
    beside: str,
    connection: asyncpg.Connection[Any] | None = None,
) -> Measured:
    before = await workspace.host.used()
    done = await run_pgbench(
        workspace.dsn, f"{load.script};", clients=load.clients, seconds=sizes.seconds
    )
    # At once: the workers drain it.
    backlog = {"backlog": await workspace.left(connection)} if connection else {}
    used = await workspace.host.per_message(before, done.transactions * load.messages)
    values = {"rate": done.rate * load.messages, **used, **backlog}
    return Measured(f"{load.variant}, {beside}", load.name, values)


async def measure_insert(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Processor time of the server for one message, by the clock of its session; no worker."""
    statements = workspace.statements
    for name in statements.publish:
        await workspace.clear()
        async with workspace.connect() as connection:
            call = await connection.prepare(statements.one("$1::text", name))
            process = [connection.get_server_pid()]
            for _ in range(sizes.calls // 10):  # the first ones do not count
                await call.fetchval("{}")
            begun = on_cpu(process)
            for _ in range(sizes.calls):
                await call.fetchval("{}")
            ended = on_cpu(process)
        if begun is None or ended is None:
            raise NotifyqError("the server must be a Linux of this machine, for its clocks")
        yield Measured("1 session", name, {"server_cpu": (ended - begun) / sizes.calls})


async def measure_drain(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process drains a backlog, also by default settings; handlers do nothing."""
    for variant, system in (
        ("1 process", workspace.system),
        ("1 process, default settings", workspace.system.by_default),
    ):
        if system:
            yield await _drained(replace(workspace, system=system), sizes, variant)


async def _drained(
    workspace: Workspace,
    sizes: Sizes,
    variant: str,
    *,
    processes: int = 1,
    statement: str | None = None,
    name: str | None = None,
) -> Measured:
    """Publish a backlog, by default `sizes.backlog` empty messages, and drain it."""
    statement = statement or workspace.statements.many(sizes.backlog)
    await workspace.clear()
    async with workspace.working(sizes, processes) as workers:
        values = await workspace.drain(workers, statement, sizes.patience)
    return Measured(variant, name or workspace.system.name, values)


async def measure_scale(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """More worker processes drain the same backlog."""
    for processes in sizes.processes:
        if processes <= workspace.system.processes:
            variant = f"{processes} process{'es' * (processes > 1)}"
            yield await _drained(workspace, sizes, variant, processes=processes)


async def measure_payloads(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process drains messages of 100 bytes to 100 kB, which do not compress."""
    for size in sizes.payloads:
        # The frame is 12 bytes long.
        payload = f'{{"data": "{random.randbytes((size - 12) // 2).hex()}"}}'  # noqa: S311
        number = max(1, min(sizes.backlog, sizes.volume // size))
        statement = workspace.statements.many(number, payload)
        yield await _drained(workspace, sizes, f"{size} bytes", statement=statement)


_SPREAD = """
insert into messages.message (queue, message, key)
select ('{{{queues}}}'::text[])[1 + i % {number}], '{{}}', {key} from generate_series(1, {n}) as i
"""


async def measure_queues(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process of notifyq drains a backlog that is spread over 1 to 1,000 queues."""
    for number in sizes.queues:
        queues = tuple(f"bench_{n}" for n in range(number))
        variant = f"{number} queue{'s' * (number > 1)}"
        async with _queues(workspace, queues) as made:
            statement = _SPREAD.format(
                queues=",".join(queues), number=number, key="null", n=sizes.backlog
            )
            yield await _drained(made, sizes, variant, statement=statement)


async def measure_keys(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One worker process of notifyq drains a queue of many keys: without limits, ordered, fair."""
    for keys, name, policy in (
        (10_000, NOTIFYQ, ""),
        (10_000, f"{NOTIFYQ}, ordered", ", ordered => true"),
        (1500, NOTIFYQ, ""),
        (1500, f"{NOTIFYQ}, fair", ", fair => true"),
    ):
        async with _queues(workspace, ("bench_keys",), policy) as made:
            statement = _SPREAD.format(
                queues="bench_keys", number=1, key=f"'key ' || i % {keys}", n=sizes.backlog
            )
            yield await _drained(made, sizes, f"{keys} keys", statement=statement, name=name)


@contextlib.asynccontextmanager
async def _queues(
    workspace: Workspace, names: tuple[str, ...], policy: str = ""
) -> AsyncIterator[Workspace]:
    """Create queues; give the workspace whose workers serve them; drop them at the end."""
    async with workspace.connect() as connection:
        try:
            for name in names:
                await connection.execute(f"select messages.create_queue('{name}'{policy})")
            yield replace(workspace, system=NotifyQ(names))
        finally:
            await workspace.clear()
            for name in names:
                await connection.execute(f"select messages.drop_queue('{name}', true)")


async def measure_cost(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """The whole life of a message: processors of server and worker, WAL, archive on disk."""
    statements = workspace.statements
    for load in (
        _Load("published singly", workspace.system.name, statements.one("'{}'::text"), 16),
        _Load(
            f"{sizes.bulk} a statement",
            workspace.system.name,
            statements.many(sizes.bulk),
            1,
            sizes.bulk,
        ),
    ):
        await workspace.clear()
        async with workspace.working(sizes) as workers, workspace.connect() as connection:
            kept, before = await workspace.kept(), await workspace.host.used(workers)
            done = await run_pgbench(
                workspace.dsn, f"{load.script};", clients=load.clients, seconds=sizes.seconds
            )
            _, left = await workspace.drained(connection, workers, 3 * sizes.patience)
            number = done.transactions * load.messages - left
            values = await workspace.host.per_message(before, number, workers)
            if (now := await workspace.kept()) is not None and kept is not None:
                values["archive"] = (now - kept) / max(number, 1)
        if "server_cpu" in values and "worker_cpu" in values:
            values["per_core"] = 1 / (values["server_cpu"] + values["worker_cpu"])
        if left:
            values["left"] = left
        yield Measured(load.variant, load.name, values)


async def measure_steady(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """A steady rate of messages: latency from the publication to the handler's start."""
    await workspace.clear()
    number = sizes.rate * sizes.steady
    sent: dict[int, Sent] = {}
    async with workspace.working(sizes) as workers, contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(workspace.connect()) for _ in range(4)]
        begun = time.monotonic()

        async def publish_share(share: int) -> None:
            for n in range(share, number, len(connections)):
                # By the clock: publications after a slow one catch up.
                await asyncio.sleep(max(0, begun + n / sizes.rate - time.monotonic()))
                sent[n] = await publish(connections[share], workspace.statements, n)

        before = await workspace.host.used(workers)
        await asyncio.gather(*map(publish_share, range(len(connections))))
        for n in range(number):
            if n not in workers.begun and not await workers.wait(n, LOST):
                break
        used = await workspace.host.per_message(before, number, workers)
    if lost := sum(n not in workers.begun for n in sent):
        used["left"] = lost
    for moment, found in latencies(workers, sent):
        yield Measured(
            f"{sizes.rate}/s, {moment}", workspace.system.name, percentiles(found) | used, found
        )
        used = {}  # once for both


async def measure_idle(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One message at a time, each published after the one before was handled."""
    await workspace.clear()
    async with workspace.working(sizes) as workers:
        sent = await one_by_one(workspace, workers, range(sizes.idle))
    for moment, found in latencies(workers, sent):
        yield Measured(moment, workspace.system.name, percentiles(found), found)


async def measure_held(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """A transaction holds a snapshot, so that dead rows stay: rate of a drain, and latency."""
    await workspace.clear()
    part = max(sizes.dead_rows // 4, 1)
    backlog = workspace.statements.many(part)

    async def measured(variant: str, numbers: range) -> Measured:
        values = await workspace.drain(workers, backlog, sizes.patience)
        async with workspace.connect() as connection:
            await workspace.drained(connection, workers, 3 * sizes.patience)
        sent = await one_by_one(workspace, workers, numbers)
        found = dict(latencies(workers, sent))["from the call"]
        return Measured(variant, workspace.system.name, values | percentiles(found), found)

    async with workspace.connect() as holder, workspace.working(sizes) as workers:
        yield await measured("fresh", range(10))
        await holder.execute("begin isolation level repeatable read; select txid_current()")
        deadline = time.monotonic() + 3 * sizes.patience
        for _ in range(sizes.dead_rows // part):
            await workspace.drain(workers, backlog, sizes.patience)
            if time.monotonic() > deadline:
                break
        yield await measured("snapshot held", range(10, 20))
        await holder.execute("rollback")


async def measure_flush(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and drain while each flush of the WAL takes 2 ms more."""
    await workspace.host.slow_flush()
    try:
        async for measured in _published(workspace, sizes, sizes.clients[-1:]):
            measured.variant = f"publish {measured.variant}"
            yield measured
        if workspace.system.processes:
            yield await _drained(workspace, sizes, "drain")
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
    baseline: str = NOTIFYQ
    """What a table divides by."""

    @property
    def title(self) -> str:
        """The first line of its docstring."""
        return (self.measure.__doc__ or "").splitlines()[0]


def _has_worker(system: System) -> bool:
    return system.processes > 0


def _is_notifyq(system: System) -> bool:
    return system.name == NOTIFYQ


CASES = {
    case.name: case
    for case in (
        Case("publish", measure_publish, lambda _: True),
        Case("insert", measure_insert, lambda _: True, BARE),
        Case("drain", measure_drain, _has_worker),
        Case("steady", measure_steady, _has_worker),
        Case("idle", measure_idle, _has_worker),
        Case("held", measure_held, _has_worker),
        Case("flush", measure_flush, lambda _: True),
        Case("scale", measure_scale, lambda system: system.processes > 1),
        Case("payloads", measure_payloads, _has_worker),
        Case("queues", measure_queues, _is_notifyq),
        Case("keys", measure_keys, _is_notifyq),
        Case("cost", measure_cost, _has_worker),
        Case("stream-publish", measure_stream_publish, has_streams),
        Case("stream-read", measure_stream_read, has_streams),
        Case("stream-idle", measure_stream_idle, has_streams),
        Case("stream-held", measure_stream_held, has_streams),
        Case("ceiling", measure_ceiling, lambda system: system.name == LIMIT),
        Case("limits", measure_queue_limits, _is_notifyq),
        Case("steps", measure_steps, _is_notifyq),
        Case("encryption", measure_encryption, _is_notifyq),
    )
}
