"""Streams of notifyq and of PgQ, with the same publishers (pgbench) and readers (asyncpg)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from notifyq.errors import NotifyqError

from .processes import run_pgbench
from .results import NOTIFYQ, percentiles
from .workspace import LOST, Measured, Sent, Sizes, Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import asyncpg

    from .system import System

SUBSCRIBERS = ("one", "two", "three")
PGQ = "pgq"
_PAUSE = 0.02
"""Seconds between two polls of a reader while rates are measured. A poll costs about the same for
any number of events, so more polls would slow the publishers down."""
_POLL = 0.005
"""The same for latency, for a reader without notifications."""
_TICK = 0.05
"""Seconds between two ticks of PgQ while rates are measured; its daemon ticks once a second."""
_QUICK_TICK = 0.01
"""The same for latency."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Feed:
    """A system's statements for a stream; @name@ is its name, @n@ a number of events."""

    create: str
    subscribe: str
    """$1: the stream, $2: the subscriber."""
    drop: str
    publish: str
    """One event with the payload @payload@, a text."""
    bulk: str
    next_batch: str
    """$1: the stream, $2: the subscriber."""
    events: str
    """Id, time, type and payload of each event of batch $1."""
    finish: str
    tick: str | None = None
    """A call that must be repeated; $1: the stream."""
    suppress: str | None = None
    """Suppresses notifications while a reader polls every few milliseconds."""
    call: str | None = None
    """Publishes by a function, where `publish` is an insert."""
    channel: str | None = None
    """The channel that readers listen to."""


FEEDS = {
    NOTIFYQ: Feed(
        create="select messages.create_stream('@name@')",
        subscribe="select messages.subscribe($1, $2, 'now')",
        drop="select messages.drop_stream('@name@', true)",
        publish="insert into messages.stream_event (stream, type, message) "
        "values ('@name@', 'bench', (@payload@)::jsonb)",
        call="select messages.publish('@name@', (@payload@)::jsonb, type => 'bench')",
        bulk="select count(*) from messages.publish_many('@name@', "
        "array_fill('{\"n\": 1}'::jsonb, array[@n@]), type => 'bench')",
        next_batch="select messages.next_batch($1, $2, 100000)",
        events="select id, created_at, type, message from messages.batch_events($1)",
        finish="select messages.finish_batch($1)",
        suppress="select notifyq.suppress_stream($1)",
        channel="new_event",
    ),
    PGQ: Feed(
        create="select pgq.create_queue('@name@'); "
        "select pgq.set_queue_config('@name@', 'ticker_max_count', '1'); "
        "select pgq.set_queue_config('@name@', 'ticker_max_lag', '1 millisecond')",
        subscribe="select pgq.register_consumer($1, $2)",
        drop="select pgq.drop_queue('@name@', true)",
        publish="select pgq.insert_event('@name@', 'bench', @payload@)",
        bulk="select count(pgq.insert_event('@name@', 'bench', '{\"n\": 1}')) "
        "from generate_series(1, @n@)",
        next_batch="select pgq.next_batch($1, $2)",
        events="select ev_id, ev_time, ev_type, ev_data from pgq.get_batch_events($1)",
        finish="select pgq.finish_batch($1)",
        tick="select pgq.ticker($1)",
    ),
}


def has_streams(system: System) -> bool:
    """Return whether the system has streams."""
    return system.name in FEEDS


class Stream:
    """A stream made for one measurement, with its readers."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self.workspace = workspace
        self.feed = FEEDS[workspace.system.name]
        self.name = name
        self.read = dict.fromkeys(SUBSCRIBERS, 0)
        """Events that each subscriber finished."""
        self.failures: list[Exception] = []
        """Errors that ended a subscriber."""

    def text(self, statement: str, **given: object) -> str:
        """Return a statement with the values of its names."""
        for name, value in {"name": self.name, **given}.items():
            statement = statement.replace(f"@{name}@", str(value))
        return statement

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, workspace: Workspace, subscribers: int) -> AsyncIterator[Stream]:
        """Create a stream with so many subscribers; drop it at the end."""
        stream = cls(workspace, f"bench_{next(_numbers)}")
        async with workspace.connect() as connection:
            await connection.execute(stream.text(stream.feed.create))
            await stream.tick_once(connection)
            for name in SUBSCRIBERS[:subscribers]:
                await connection.fetchval(stream.feed.subscribe, stream.name, name)
            await workspace.host.settle()
            try:
                yield stream
            finally:
                await connection.execute(stream.text(stream.feed.drop))

    async def tick_once(self, connection: asyncpg.Connection[Any]) -> None:
        """Call the ticker, if the system needs it."""
        if self.feed.tick:
            await connection.fetchval(self.feed.tick, self.name)

    @contextlib.asynccontextmanager
    async def ticking(self, pause: float = _TICK) -> AsyncIterator[None]:
        """Repeat the call of the ticker, if the system needs it."""

        async def tick() -> None:
            async with self.workspace.connect() as connection:
                while True:
                    await self.tick_once(connection)
                    await asyncio.sleep(pause)

        async with _beside(*([tick()] if self.feed.tick else [])):
            yield

    @contextlib.asynccontextmanager
    async def reading(self, subscribers: int, *, pause: float = _PAUSE) -> AsyncIterator[None]:
        """Have so many subscribers read batch after batch."""
        loops = (self._read(name, pause) for name in SUBSCRIBERS[:subscribers])
        async with self.ticking(), _beside(*loops):
            yield

    async def _read(self, subscriber: str, pause: float) -> None:
        async with self.workspace.connect() as connection:
            if self.feed.suppress and subscriber == SUBSCRIBERS[0]:
                await connection.fetchval(self.feed.suppress, self.name)
            try:
                while True:
                    await self.read_batch(connection, subscriber)
                    await asyncio.sleep(pause)
            except Exception as error:
                self.failures.append(error)
                raise

    async def read_batch(
        self,
        connection: asyncpg.Connection[Any],
        subscriber: str,
        handle: Callable[[list[Any]], None] | None = None,
    ) -> list[Any]:
        """Fetch one batch, pass its events to `handle`, and finish it; return them."""
        batch = await connection.fetchval(self.feed.next_batch, self.name, subscriber)
        if batch is None:
            return []
        events = await connection.fetch(self.feed.events, batch)
        if handle:
            handle(events)
        await connection.fetchval(self.feed.finish, batch)
        self.read[subscriber] += len(events)
        return events

    async def all_read(self, number: int, subscribers: int, patience: float = 60) -> None:
        """Wait until each subscriber has read exactly so many events."""
        deadline = time.monotonic() + patience
        names = SUBSCRIBERS[:subscribers]
        while any(self.read[name] < number for name in names):
            if self.failures:
                raise self.failures[0]
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        if any(self.read[name] != number for name in names):
            raise NotifyqError(f"{number} events were published, but {self.read} read")


@contextlib.asynccontextmanager
async def _beside(*loops: Any) -> AsyncIterator[None]:
    """Run endless loops beside the block; raise the error of one that failed."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure_stream_publish(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Single events by 16 and 64 clients while three subscribers read, and bulk by one client."""
    for clients in sizes.clients[1:] or sizes.clients:
        async with Stream.open(workspace, 3) as stream:
            async with stream.reading(3):
                yield await _published(stream, sizes, clients, 3)
                if stream.feed.call:
                    called = await _published(stream, sizes, clients, 3, statement=stream.feed.call)
                    yield replace(called, system=f"{called.system} publish()")
            if not stream.feed.tick:
                async with stream.reading(3, pause=_TICK):
                    seldom = await _published(stream, sizes, clients, 3)
                yield replace(seldom, system=f"{seldom.system}, read as seldom as {PGQ}")
    async with Stream.open(workspace, 1) as stream:
        script = stream.text(stream.feed.bulk, n=sizes.bulk)
        done = await run_pgbench(workspace.dsn, f"{script};", seconds=sizes.seconds)
    values = {"rate": done.rate * sizes.bulk}
    yield Measured(f"{sizes.bulk} a statement", workspace.system.name, values)


async def _published(
    stream: Stream,
    sizes: Sizes,
    clients: int,
    subscribers: int,
    variant: str = "",
    *,
    statement: str | None = None,
) -> Measured:
    workspace = stream.workspace
    before, read = await workspace.host.used(), stream.read[SUBSCRIBERS[0]]
    script = stream.text(statement or stream.feed.publish, payload="'{\"n\": 1}'::text")
    done = await run_pgbench(workspace.dsn, f"{script};", clients=clients, seconds=sizes.seconds)
    await stream.all_read(read + done.transactions, subscribers)
    used = await workspace.host.per_message(before, done.transactions)
    values = {"rate": done.rate, **used}
    return Measured(variant or f"{clients} clients, 3 readers", workspace.system.name, values)


async def measure_stream_read(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One subscriber gets a backlog as one batch, fetches its events and finishes it."""
    async with Stream.open(workspace, 1) as stream:
        yield await _backlog_read(stream, sizes, f"{sizes.events} in a batch")


async def _backlog_read(stream: Stream, sizes: Sizes, variant: str) -> Measured:
    workspace = stream.workspace
    async with workspace.connect() as connection:
        await connection.fetch(stream.text(stream.feed.bulk, n=sizes.events))
        await stream.tick_once(connection)
        before, begun, number = await workspace.host.used(), time.monotonic(), 0
        while found := await stream.read_batch(connection, SUBSCRIBERS[0]):
            number += len(found)
        seconds = time.monotonic() - begun
        used = await workspace.host.per_message(before, number)
    if number != sizes.events:
        raise NotifyqError(f"{sizes.events} events were published, but {number} read")
    values = {"rate": number / seconds, **used}
    return Measured(variant, workspace.system.name, values)


async def measure_stream_idle(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """One event at a time: latency from the publication to the subscriber."""
    async with Stream.open(workspace, 1) as stream, stream.ticking(_QUICK_TICK):
        arrived: dict[int, float] = {}
        is_notified = asyncio.Event()
        async with (
            workspace.connect() as listener,
            workspace.connect() as publisher,
            _beside(_arrivals(stream, listener, arrived, is_notified)),
        ):
            for n in range(-3, 0):  # the first ones do not count
                await _one(stream, publisher, arrived, n)
            sent = [await _one(stream, publisher, arrived, n) for n in range(sizes.idle)]
    for index, name in enumerate(Sent._fields):
        found = [arrived.get(n, at[index] + LOST) - at[index] for n, at in enumerate(sent)]
        yield Measured(f"from the {name}", workspace.system.name, percentiles(found), found)


async def _arrivals(
    stream: Stream,
    listener: asyncpg.Connection[Any],
    arrived: dict[int, float],
    is_notified: asyncio.Event,
) -> None:
    channel = stream.feed.channel
    if channel:
        await listener.add_listener(channel, lambda *_: is_notified.set())

    def note(events: list[Any]) -> None:
        now = time.monotonic()
        arrived.update((int(event[3].partition(":")[2].strip(" }")), now) for event in events)

    while True:
        is_notified.clear()
        if not await stream.read_batch(listener, SUBSCRIBERS[0], note):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1 if channel else _POLL):
                    await is_notified.wait()


async def _one(
    stream: Stream, publisher: asyncpg.Connection[Any], arrived: dict[int, float], n: int
) -> Sent:
    # Random, so that publications are not in step with polling.
    await asyncio.sleep(random.uniform(0.03, 0.13))  # noqa: S311  it protects nothing
    call = time.monotonic()
    await publisher.fetchval(stream.text(stream.feed.publish, payload=f"'{{\"n\": {n}}}'::text"))
    sent = Sent(call, time.monotonic())
    while n not in arrived:
        if time.monotonic() - sent.reply > LOST:
            break
        await asyncio.sleep(0.0005)
    return sent


async def measure_stream_held(workspace: Workspace, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and read, without an old snapshot and with one held for a while."""
    async with Stream.open(workspace, 1) as stream, workspace.connect() as holder:
        for variant in ("free", "snapshot held"):
            if variant != "free":
                await holder.execute("begin isolation level repeatable read; select txid_current()")
                async with stream.reading(1):
                    deadline = time.monotonic() + sizes.held
                    while time.monotonic() < deadline:
                        await _published(stream, sizes, 16, 1)
            async with stream.reading(1):
                yield await _published(stream, sizes, 16, 1, f"publish, {variant}")
            yield await _backlog_read(stream, sizes, f"read, {variant}")
        await holder.execute("rollback")
