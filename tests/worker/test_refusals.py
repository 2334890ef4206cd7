"""What a worker does when the server refuses a call: it goes on with everything else."""

import asyncio
import logging
from itertools import cycle
from typing import Any

import pytest

from notifyq import AccessDeniedError, App, Event, SchemaMissingError
from support.database import Connection, until, until_equal, value
from support.refusing import errors, refusing
from support.running import statuses, working

STATES = [
    *("42501", "42P01", "42883", "3F000", "22P05", "23505", "54000", "55000", "XX000", "P0001"),
]
"""One SQLSTATE of each class that is an answer of the server, and does not pass by itself."""
PASSING = ["40001", "40P01", "53100", "53300", "55P03", "57014"]
"""Those after which the same call may succeed."""
BESIDES = [
    "messages.maintain", "notifyq.maintain", "notifyq.reap_and_stage",
    "notifyq.fire_schedules", "messages.extend_many", "notifyq.suppress",
    "notifyq.unsuppress", "notifyq.take_wake_slots", "notifyq.leave_wake_slots",
    "notifyq.next_due", "notifyq.rate_limit_wait", "notifyq.wake_all",
    "notifyq.worker_heartbeat", "notifyq.remove_worker", "notifyq.is_transaction_over",
]  # fmt: skip
"""What a worker calls beside handling messages."""
CALLS = ["messages.claim", "messages.next_batch", *BESIDES]


async def is_handled(connection: Connection, queue: str, count: int) -> None:
    await until_equal(
        lambda: statuses(connection, queue),
        {"success": count},
        f"{count} of {queue} are handled",
        30,
    )


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def echo(app: App) -> App:
    @app.handler("one", max_attempts=1)
    async def one(payload: Any) -> None: ...

    @app.handler("two", max_attempts=1)
    async def two(payload: Any) -> None: ...

    return app


@pytest.fixture
def seen(echo: App) -> list[Any]:
    """Give the payloads of the events that the worker's subscriber gets."""
    seen: list[Any] = []

    @echo.subscriber("news", "reader")
    async def read(event: Event) -> None:
        seen.append(event.payload())

    return seen


async def test_a_dropped_queue_stops_neither_its_worker_nor_other_queues(
    echo: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(echo, poll=0.1):
        await echo.publish("two", 1)
        await is_handled(connection, "two", 1)
        await value(connection, "drop_queue", name="one", force=True)
        for count in range(2, 5):
            await echo.publish("two", count)
            await is_handled(connection, "two", count)
        await until(lambda: "queue 'one'" in caplog.text, "the refusal is logged")
        await value(connection, "create_queue", name="one")
        await echo.publish("one", 1)
        await is_handled(connection, "one", 1)
    assert errors(caplog, "queue 'one'") == 1
    assert "queue 'one': it works again" in caplog.text


async def test_a_worker_waits_for_its_only_queue(
    app: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("one")
    async def one(payload: Any) -> None: ...

    async with working(app, poll=0.1):
        await value(connection, "drop_queue", name="one", force=True)
        await until(lambda: "queue 'one'" in caplog.text, "the refusal is logged")
        await value(connection, "create_queue", name="one")
        await app.publish("one", 1)
        await is_handled(connection, "one", 1)


async def test_a_dropped_stream_stops_neither_its_worker_nor_queues(
    echo: App, seen: list[Any], connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(echo, poll=0.1):
        await value(connection, "drop_stream", name="news", force=True)
        await echo.publish("two", 1)
        await is_handled(connection, "two", 1)
        await until(lambda: "stream 'news'" in caplog.text, "the refusal is logged")
        await echo.create_subscriptions()
        await echo.publish("news", "again")
        await until(lambda: seen == ["again"], "the event is handled", 30)
    # Between its creation and that of the subscription another error is due.
    assert errors(caplog, "there is no stream 'news'") == 1


# Of the states for want of a function, a table or the schema, each function gets one.
@pytest.mark.parametrize(("function", "want"), [*zip(BESIDES, cycle(STATES[1:4]))])
async def test_a_refusal_beside_the_messages_harms_none(
    echo: App, connection: Connection, function: str, want: str
) -> None:
    await echo.create()
    settings: dict[str, Any] = {"poll": 0.1, "maintenance": 0.1}
    for turn, state in enumerate(("XX000", "42501", want, "57014")):
        async with refusing(connection, function, state), working(echo, **settings):
            for count in range(3 * turn + 1, 3 * turn + 4):
                await echo.publish("one", count)
                await is_handled(connection, "one", count)


@pytest.mark.parametrize(
    ("function", "state"),
    [
        *(("messages.claim", state) for state in [*STATES[4::2], *PASSING[::2]]),
        *(("messages.next_batch", state) for state in [*STATES[5::2], *PASSING[1::2]]),
    ],
)
async def test_a_claim_or_a_fetch_that_is_refused_is_tried_again(
    echo: App,
    seen: list[Any],
    connection: Connection,
    function: str,
    state: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(echo, poll=0.1):
        async with refusing(connection, function, state):
            await echo.publish("one", 1)
            await echo.publish("news", 1)
            await until(lambda: "refused for a test" in caplog.text, "the refusal is logged")
        await is_handled(connection, "one", 1)
        await until(lambda: seen == [1], "the event is handled", 30)


@pytest.mark.parametrize(
    ("state", "error"), [("42501", AccessDeniedError), ("42P01", SchemaMissingError)]
)
async def test_a_worker_whose_claims_are_all_refused_ends(
    echo: App, connection: Connection, state: str, error: type[Exception]
) -> None:
    await echo.create()
    async with refusing(connection, "messages.claim", state), asyncio.timeout(30):
        with pytest.raises(error, match="refused for a test"):
            await echo.work(echo.worker(poll=0.1))


async def test_an_end_that_is_refused_harms_no_other_message(
    echo: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await connection.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin "
        "raise exception 'refused for a test' using errcode = new.message->>'state'; end $$; "
        "create trigger refuse before insert on messages.message_archive "
        "for each row when (new.message ? 'state') execute function refuse()"
    )
    bad = [{"state": state} for state in STATES[4:]]
    async with working(echo, poll=0.1, concurrency=20):
        await echo.publish_many("one", ["good", *bad, *["good"] * 8])
        await is_handled(connection, "one", 9)
        await echo.publish("one", "good")
        await is_handled(connection, "one", 10)
    assert "refused for a test" in caplog.text
