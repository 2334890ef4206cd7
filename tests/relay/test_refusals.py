"""What a relay does when a server refuses a call: it goes on with everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import pytest

from notifyq.config import RelaySettings
from notifyq.database.pool import Database
from notifyq.errors import AccessDeniedError, QueueNotFoundError, SchemaMissingError
from notifyq.relay import Relay, RelayResumed, RelayStalled, StreamRelay
from notifyq.telemetry import TelemetryEvent, log_events
from relay.relaying import drained, payloads, relay, relaying, until_there
from support.database import Connection, publish, until, until_equal, value
from support.refusing import errors, refusing
from support.running import Events

BESIDES = [
    "notifyq.suppress", "notifyq.unsuppress", "notifyq.take_wake_slots",
    "notifyq.leave_wake_slots", "notifyq.next_due", "notifyq.rate_limit_wait", "notifyq.wake_all",
    "notifyq.is_transaction_over", "messages.maintain", "notifyq.maintain",
    "messages.extend_many",
]  # fmt: skip
"""What a relay calls beside moving messages."""
MOVING = [
    ("notifyq.relay_claim", False), ("notifyq.relay_finish", False), ("notifyq.receive_many", True),
]  # fmt: skip
"""What it calls to move messages, and whether at the target."""
EVENTS = [
    ("messages.next_batch", False), ("messages.batch_events", False),
    ("messages.finish_batch", False), *MOVING[1:],
]  # fmt: skip
"""The same for events."""
REFUSED = ["55000", "XX000", "P0001"]
"""SQLSTATEs that one check takes for refusals, whatever function raised them."""
PASSING = ["57014", "40001", "53300"]
"""SQLSTATEs that one check takes for passing."""
CALLS = [*BESIDES, *(name for name, _ in [*MOVING, *EVENTS])]


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


class Logged(Events):
    """Keeps events, and logs them as a relay does by default."""

    def __call__(self, event: TelemetryEvent) -> None:
        log_events(event)
        super().__call__(event)


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await until(lambda: text in caplog.text, f"{text!r} is logged", 30)


@pytest.mark.parametrize("is_target", [False, True])
async def test_a_dropped_queue_stops_no_other_queue(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
    *,
    is_target: bool,
) -> None:
    absent, other = (there, connection) if is_target else (connection, there)
    await value(other, "create_queue", name="one")
    events = Events()
    async with relaying(
        database, far, {"one": "one", "default": "default"}, events, poll=0.1, hold=0
    ):
        if is_target:
            await publish(connection, 3, "one")
        await until_logged(caplog, "queue 'one'")
        for count in range(1, 5):
            await publish(connection, 1)
            await until_there(there, count)
        await value(absent, "create_queue", name="one")
        if not is_target:
            await publish(connection, 3, "one")
        await until_there(there, 3, "one")
        await until_logged(caplog, "queue 'one': it works again")
    assert errors(caplog, "queue 'one'") == 1
    assert len(events.of(RelayStalled)) == len(events.of(RelayResumed)) == is_target
    assert await payloads(connection) == await payloads(connection, "one") == []


async def test_with_once_a_relay_moves_the_others_and_then_ends_with_the_error(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await publish(connection, 3)
    await value(connection, "create_queue", name="one")
    await publish(connection, 2, "one")
    for routes in ({"absent": "default"}, {"one": "absent"}):
        with pytest.raises(QueueNotFoundError, match="absent"):
            await drained(database, far, routes | {"default": "default"})
        assert len(await payloads(there)) == 3
    assert len(await payloads(connection, "one")) == 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_target_that_is_full_or_paused_makes_only_its_queue_wait(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
    *,
    is_stream: bool,
) -> None:
    if is_stream:
        await there.execute("select messages.create_stream('one'), messages.pause_stream('one')")
    else:
        await value(there, "create_queue", name="one", capacity=2)
    await value(connection, "create_queue", name="one")
    await publish(connection, 5, "one")
    routes = {"one": "one", "default": "default"}
    events = Logged()
    async with relaying(database, far, routes, events, poll=0.1, hold=0.1, in_flight=1):
        await until_logged(caplog, "queue 'one'")
        await events.wait(RelayStalled, source="one")
        for count in range(1, 5):
            await publish(connection, 1)
            await until_there(there, count)
        if is_stream:
            await value(there, "resume_stream", name="one")
        else:
            await until_there(there, 2, "one")
            await there.execute("select messages.alter_queue('one', capacity => 5)")
        await until_equal(lambda: payloads(connection, "one"), [], "the rest is moved", 30)
        await until_logged(caplog, "queue 'one': it works again")
        await events.wait(RelayResumed, source="one")
    # Nor is it logged a second time as an event.
    lines = [it.levelname for it in caplog.records if "'one'" in it.getMessage()]
    assert lines == ["ERROR", "INFO"]
    assert len(events.of(RelayStalled)) == len(events.of(RelayResumed)) == 1


@pytest.mark.parametrize("of_stream", [False, True])
async def test_with_once_a_relay_waits_for_a_full_target(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
    *,
    of_stream: bool,
) -> None:
    await there.execute("select messages.alter_queue('default', capacity => 1)")
    await connection.execute(
        "select messages.create_stream('news'), messages.subscribe('news', 'hub')"
    )
    for queue in ("news", "default"):
        await connection.execute(
            "select messages.publish_many($1, array['1', '2']::jsonb[])", queue
        )
    events = Events()
    made: Relay | StreamRelay = relay(database, far, events=events, once=True, hold=0)
    if of_stream:
        made = StreamRelay(
            Database(database), Database(far), "news", "hub", "default",
            once=True, telemetry=events, settings=RelaySettings.load(hold=0),
        )  # fmt: skip
    running = asyncio.create_task(made.run())
    await until_logged(caplog, "it is tried again each second")
    await there.execute("select messages.alter_queue('default', capacity => 2)")
    async with asyncio.timeout(30):
        await running
    assert await payloads(there) == [1, 2]
    source = "news:hub" if of_stream else "default"
    assert [it.source for it in events.of(RelayStalled)] == [source]
    assert [it.source for it in events.of(RelayResumed)] == [source]
    assert errors(caplog, "it is tried again each second") == 1


async def test_once_a_queue_that_is_refused_is_left_out(
    database: str, far: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = relay(database, far, routes={"absent": "default"}, once=True)
    with pytest.raises(QueueNotFoundError):
        await made.run()
    assert errors(caplog, "it is left out") == 1


@pytest.mark.parametrize("state", ["42501", "57014", "XX000"])
@pytest.mark.parametrize("function", BESIDES)
async def test_a_refusal_beside_the_messages_harms_none(
    database: str, far: str, connection: Connection, there: Connection, function: str, state: str
) -> None:
    async with refusing(connection, function, state), relaying(database, far, poll=0.1):
        for count in range(1, 4):
            await publish(connection, 1)
            await until_there(there, count)


@pytest.mark.parametrize(
    ("function", "is_target", "state"),
    [
        (*call, state)
        for call, *states in zip(MOVING, REFUSED, PASSING, strict=True)
        for state in states
    ],
)
async def test_what_is_refused_for_a_while_is_moved_then(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
    function: str,
    state: str,
    *,
    is_target: bool,
) -> None:
    events = Events()
    server = there if is_target else connection
    async with relaying(database, far, None, events, poll=0.1, lock_duration=1, hold=0):
        async with refusing(server, function, state):
            await publish(connection, 3)
            await until(
                lambda: "refused for a test" in caplog.text + str(events.seen),
                "the refusal is reported",
                30,
            )
        await until_there(there, 3)
        await until_equal(lambda: payloads(connection), [], "the source has finished them", 30)
    assert errors(caplog, "refused for a test") <= 1


@pytest.mark.parametrize(
    ("state", "error"),
    [("42501", AccessDeniedError), ("42P01", SchemaMissingError), ("3F000", SchemaMissingError)],
)
@pytest.mark.parametrize(("function", "is_target"), MOVING)
async def test_without_a_right_or_the_schema_a_relay_ends(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    function: str,
    state: str,
    error: type[Exception],
    *,
    is_target: bool,
) -> None:
    running = relay(database, far, poll=0.1)
    await publish(connection, 1)
    async with refusing(there if is_target else connection, function, state), asyncio.timeout(30):
        # A call of the start is one of receive_many(), too.
        with pytest.raises(error, match="refused for a test"):
            await running.run()


async def test_an_end_that_is_refused_harms_no_other_message(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await connection.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin "
        "if new.message = '\"bad\"' then raise exception 'refused for a test'; end if; "
        "return new; end $$; "
        "create trigger refuse before insert on messages.message_archive "
        "for each row execute function refuse()"
    )
    for payload in ("good", "bad", "good", "good"):
        await connection.execute("select messages.publish('default', to_jsonb($1::text))", payload)

    async with relaying(database, far, poll=0.1):
        await until_equal(
            lambda: payloads(connection), ["bad"], "only one is left at the source", 30
        )
        await publish(connection, 1)
        await until_there(there, 5)
        await until_equal(
            lambda: payloads(connection), ["bad"], "the next one is finished, too", 30
        )
    assert errors(caplog, "refused for a test") == 1


@pytest.fixture
async def running(
    database: str, far: str, connection: Connection
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the relay of a subscription."""
    await value(connection, "create_stream", name="news")
    await connection.execute("select messages.subscribe('news', 'hub')")
    made = StreamRelay(
        Database(database), Database(far), "news", "hub", "default",
        settings=RelaySettings.load(poll=0.1, hold=0), telemetry=Events(),
    )  # fmt: skip
    task = asyncio.create_task(made.run())
    yield task
    made.stop()
    async with asyncio.timeout(30):
        await task


@pytest.mark.parametrize(
    ("function", "is_target", "state"),
    [(*call, state) for call, state in zip(EVENTS, cycle(REFUSED))],
)
async def test_a_subscription_that_is_refused_is_tried_again(
    running: asyncio.Task[None],
    connection: Connection,
    there: Connection,
    caplog: pytest.LogCaptureFixture,
    function: str,
    state: str,
    *,
    is_target: bool,
) -> None:
    async def publish_event(payload: Any) -> None:
        await connection.execute("select messages.publish('news', to_jsonb($1::text))", payload)

    await publish_event("first")
    await until_there(there, 1)
    async with refusing(there if is_target else connection, function, state):
        await publish_event("second")
        await until_logged(caplog, "refused for a test")
    await until_there(there, 2)
    assert not running.done()
    assert errors(caplog, "refused for a test") <= 1
