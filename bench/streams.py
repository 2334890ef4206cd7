"""Streams beside PgQ's: the same publishers (pgbench) and the same readers (asyncpg) for both."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from notifyq.errors import NotifyqError

from .place import LOST, Measured, Place, Sizes
from .processes import run_pgbench
from .results import OURS, percentiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import asyncpg

    from .system import System

SUBSCRIBERS = ("one", "two", "three")
PGQ = "pgq"
_PACE = 0.02
"""Seconds between two looks of a reader while rates are measured: a look costs about the same
however much it finds, so whoever looks all the time takes the processors from who publishes."""
_POLL = 0.005
"""The same where latency is, for a reader without a bell."""
_TICK = 0.05
"""Seconds between two ticks of PgQ where rates are measured; its daemon ticks once a second."""
_QUICK_TICK = 0.01
"""The same where latency is."""
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
    """What has to be called all the time, $1 being the stream."""
    attend: str | None = None
    """What a reader says that will look every few milliseconds."""
    call: str | None = None
    """Another way to publish: the same by a function, where `publish` is an insert."""
    channel: str | None = None
    """The bell that readers wait for."""


FEEDS = {
    OURS: Feed(
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
        attend="select notifyq.suppress_stream($1)",
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
    """Tell whether a system is measured here."""
    return system.name in FEEDS


class Stream:
    """A stream made for one measurement, with its readers."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.feed = FEEDS[place.system.name]
        self.name = name
        self.read = dict.fromkeys(SUBSCRIBERS, 0)
        """Events that each subscriber has finished."""
        self.failures: list[Exception] = []
        """Why subscribers have ended."""

    def text(self, statement: str, **given: object) -> str:
        """Return a statement with its names put in."""
        for name, value in {"name": self.name, **given}.items():
            statement = statement.replace(f"@{name}@", str(value))
        return statement

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, place: Place, subscribers: int) -> AsyncIterator[Stream]:
        """Create a stream with so many subscribers, drop it in the end."""
        stream = cls(place, f"bench_{next(_numbers)}")
        async with place.connect() as connection:
            await connection.execute(stream.text(stream.feed.create))
            await stream.tick_once(connection)
            for name in SUBSCRIBERS[:subscribers]:
                await connection.fetchval(stream.feed.subscribe, stream.name, name)
            await place.host.settle()
            try:
                yield stream
            finally:
                await connection.execute(stream.text(stream.feed.drop))

    async def tick_once(self, connection: asyncpg.Connection[Any]) -> None:
        """Call the ticker, where there must be one."""
        if self.feed.tick:
            await connection.fetchval(self.feed.tick, self.name)

    @contextlib.asynccontextmanager
    async def ticking(self, pause: float = _TICK) -> AsyncIterator[None]:
        """Call the ticker all the time, where there must be one."""

        async def tick() -> None:
            async with self.place.connect() as connection:
                while True:
                    await self.tick_once(connection)
                    await asyncio.sleep(pause)

        async with _beside(*([tick()] if self.feed.tick else [])):
            yield

    @contextlib.asynccontextmanager
    async def reading(
        self, subscribers: int, *, attends: bool = True, pace: float = _PACE
    ) -> AsyncIterator[None]:
        """Have so many subscribers take batch after batch."""
        async with (
            self.ticking(),
            _beside(
                *(
                    self._read(name, attends=attends, pace=pace)
                    for name in SUBSCRIBERS[:subscribers]
                )
            ),
        ):
            yield

    async def _read(self, subscriber: str, *, attends: bool, pace: float) -> None:
        async with self.place.connect() as connection:
            if attends and self.feed.attend and subscriber == SUBSCRIBERS[0]:
                await connection.fetchval(self.feed.attend, self.name)
            try:
                while True:
                    await self.read_batch(connection, subscriber)
                    await asyncio.sleep(pace)
            except Exception as error:
                self.failures.append(error)
                raise

    async def read_batch(
        self,
        connection: asyncpg.Connection[Any],
        subscriber: str,
        handle: Callable[[list[Any]], None] | None = None,
    ) -> list[Any]:
        """Take one batch, fetch it, hand its events over, and finish it; return them."""
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
        """Wait until each subscriber has that many events, and see that none has more."""
        deadline = time.monotonic() + patience
        names = SUBSCRIBERS[:subscribers]
        while any(self.read[name] < number for name in names):
            if self.failures:
                raise self.failures[0]
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        if any(self.read[name] != number for name in names):
            raise NotifyqError(f"{number} events were published, and {self.read} read")


@contextlib.asynccontextmanager
async def _beside(*loops: Any) -> AsyncIterator[None]:
    """Run endless loops beside the block; one that fails is an error."""
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


async def measure_stream_publish(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """Single events by 16 and 64 clients while three subscribers read, and bulk by one client."""
    for clients in sizes.clients[1:] or sizes.clients:
        async with Stream.open(place, 3) as stream:
            async with stream.reading(3):
                yield await _published(stream, sizes, clients, 3)
                if stream.feed.call:
                    called = await _published(stream, sizes, clients, 3, statement=stream.feed.call)
                    yield replace(called, system=f"{called.system} publish()")
            if not stream.feed.tick:
                async with stream.reading(3, pace=_TICK):
                    seldom = await _published(stream, sizes, clients, 3)
                yield replace(seldom, system=f"{seldom.system}, read as seldom as {PGQ}")
    async with Stream.open(place, 1) as stream:
        script = stream.text(stream.feed.bulk, n=sizes.bulk)
        done = await run_pgbench(place.dsn, f"{script};", seconds=sizes.seconds)
    values = {"rate": done.rate * sizes.bulk}
    yield Measured(f"{sizes.bulk} a statement", place.system.name, values)


async def _published(
    stream: Stream,
    sizes: Sizes,
    clients: int,
    subscribers: int,
    variant: str = "",
    *,
    statement: str | None = None,
) -> Measured:
    place = stream.place
    before, read = await place.host.counters(), stream.read[SUBSCRIBERS[0]]
    script = stream.text(statement or stream.feed.publish, payload="'{\"n\": 1}'::text")
    done = await run_pgbench(place.dsn, f"{script};", clients=clients, seconds=sizes.seconds)
    await stream.all_read(read + done.transactions, subscribers)
    after = await place.host.counters()
    values = {"rate": done.rate, **after.per_message(before, done.transactions)}
    return Measured(variant or f"{clients} clients, 3 readers", place.system.name, values)


async def measure_stream_read(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """One subscriber reads a backlog as one batch: asking for it, fetching and finishing it."""
    async with Stream.open(place, 1) as stream:
        yield await _backlog_read(stream, sizes, f"{sizes.events} in a batch")


async def _backlog_read(stream: Stream, sizes: Sizes, variant: str) -> Measured:
    place = stream.place
    async with place.connect() as connection:
        await connection.fetch(stream.text(stream.feed.bulk, n=sizes.events))
        await stream.tick_once(connection)
        before, begun, number = await place.host.counters(), time.monotonic(), 0
        while found := await stream.read_batch(connection, SUBSCRIBERS[0]):
            number += len(found)
        seconds = time.monotonic() - begun
        after = await place.host.counters()
    if number != sizes.events:
        raise NotifyqError(f"{sizes.events} events were published, and {number} read")
    values = {"rate": number / seconds, **after.per_message(before, number)}
    return Measured(variant, place.system.name, values)


async def measure_stream_idle(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """One event at a time: from the publisher's commit until a subscriber has it."""
    async with Stream.open(place, 1) as stream, stream.ticking(_QUICK_TICK):
        arrived: dict[int, float] = {}
        rung = asyncio.Event()
        async with (
            place.connect() as listener,
            place.connect() as publisher,
            _beside(_arrivals(stream, listener, arrived, rung)),
        ):
            latencies = [await _one(stream, publisher, arrived, n) for n in range(-3, sizes.idle)][
                3:
            ]
    yield Measured("idle", place.system.name, percentiles(latencies), latencies)


async def _arrivals(
    stream: Stream,
    listener: asyncpg.Connection[Any],
    arrived: dict[int, float],
    rung: asyncio.Event,
) -> None:
    channel = stream.feed.channel
    if channel:
        await listener.add_listener(channel, lambda *_: rung.set())

    def note(events: list[Any]) -> None:
        now = time.monotonic()
        arrived.update((int(event[3].partition(":")[2].strip(" }")), now) for event in events)

    while True:
        rung.clear()
        if not await stream.read_batch(listener, SUBSCRIBERS[0], note):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1 if channel else _POLL):
                    await rung.wait()


async def _one(
    stream: Stream, publisher: asyncpg.Connection[Any], arrived: dict[int, float], n: int
) -> float:
    # Not in step with anybody's polling.
    await asyncio.sleep(random.uniform(0.03, 0.13))  # noqa: S311  it protects nothing
    await publisher.fetchval(stream.text(stream.feed.publish, payload=f"'{{\"n\": {n}}}'::text"))
    committed = time.monotonic()
    while n not in arrived:
        if time.monotonic() - committed > LOST:
            return LOST
        await asyncio.sleep(0.0005)
    return max(0.0, arrived[n] - committed)


async def measure_stream_held(place: Place, sizes: Sizes) -> AsyncIterator[Measured]:
    """Publish and read, with no old snapshot and with one that has been held for a while."""
    async with Stream.open(place, 1) as stream, place.connect() as holder:
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
