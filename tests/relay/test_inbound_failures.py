"""Relays from brokers, and brokers, that are killed, are away, or have nothing of that name."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import aio_pika
import pytest

from notifyq.errors import ConfigurationError
from notifyq.relay import RelayMoved
from notifyq.relay.brokers import reader_of
from relay.arrivals import There, jetstream
from relay.departures import From, inbound, send
from relay.relaying import command, payloads, until_there
from support.brokers import Server, nats_server, rabbitmq_server
from support.database import Connection, until
from support.dying import dying
from support.running import Events

NUMBERS = 3000


@pytest.fixture(autouse=True)
async def _made(connection: Connection) -> None:
    await connection.execute(
        """select messages.create_queue('inbox', payload_schema => '{"maximum": 999}')"""
    )


@pytest.fixture
def there(request: pytest.FixtureRequest) -> There:
    """Give a place at the broker that a test names."""
    made: There = request.getfixturevalue(f"to_{request.param}")
    return made


async def end_sessions(connection: Connection) -> None:
    """End the sessions of a killed relay, whose transactions are open until the server notices."""
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like 'notifyq relay%'"
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("there", ["nats", "amqp"], indirect=True)
async def test_a_relay_is_killed_at_every_step(
    database: str, connection: Connection, there: There
) -> None:
    """Each relay is killed one step later than the last one, and the next one continues."""
    program = Path(__file__).with_name("killed_inbound.py")
    steps, sent = await dying(program, there.url, database, "orders", there.to)
    assert steps > 8
    assert sorted(await payloads(connection, "inbox")) == list(range(sent))
    dead = await connection.fetch("select message from messages.dead_message order by message")
    assert [row["message"] for row in dead] == list(range(1000, sent + 1000))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("there", ["amqp", "kafka"], indirect=True)
async def test_the_command_is_killed_in_the_middle(
    database: str, connection: Connection, there: There
) -> None:
    await connection.execute("select messages.alter_queue('inbox', payload_schema => '{}')")
    await send(there.url, there.to, *range(NUMBERS))
    url = there.url + "&session.timeout.ms=6000" * there.url.startswith("kafka")
    args = url, database, "--queue", f"{there.to}:inbox", "--batch", "100"
    async with command(*args) as program:
        await until(lambda: has_some(connection), "some are there", 40)
        program.send_signal(signal.SIGKILL)
        await program.wait()
    await end_sessions(connection)
    assert len(await payloads(connection, "inbox")) < NUMBERS
    async with command(*args, "--once", "--json") as program:
        out, _ = await program.communicate()
    assert program.returncode == 0
    assert json.loads(out)["moved"] <= NUMBERS
    assert sorted(await payloads(connection, "inbox")) == list(range(NUMBERS))


async def has_some(connection: Connection) -> bool:
    return len(await payloads(connection, "inbox")) > 0


async def kill_in_the_middle(database: str, connection: Connection, server: Server) -> None:
    """Bring messages while the broker is killed and started again, until all have come."""
    await connection.execute("select messages.alter_queue('inbox', payload_schema => '{}')")
    there = From(server.url, "orders", "orders")
    events = Events()
    made = inbound(there, database, events, batch=50)
    await send(server.url, "orders", *range(NUMBERS // 2))
    running = asyncio.create_task(made.run())
    await events.wait(RelayMoved, 3)
    server.kill()
    await asyncio.to_thread(server.start)
    await send_when_up(server.url, range(NUMBERS // 2, NUMBERS))
    await until_there(connection, NUMBERS, "inbox")
    made.stop()
    await running
    assert sorted(await payloads(connection, "inbox")) == list(range(NUMBERS))


async def send_when_up(url: str, numbers: range) -> None:
    """The port answers before all of the server does."""
    async with asyncio.timeout(30):
        while True:
            try:
                await send(url, "orders", *numbers[:1])
                break
            except Exception:  # noqa: BLE001  it is not up yet
                await asyncio.sleep(0.1)
    await send(url, "orders", *numbers[1:])


@pytest.mark.timeout(120)
async def test_jetstream_is_killed_in_the_middle(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.relay.brokers.jetstream_reader._ACK_WAIT", 1.0)
    with nats_server() as server:
        async with jetstream(server.url) as context:
            await context.add_stream(name="orders", subjects=["orders"])
        await kill_in_the_middle(database, connection, server)


@pytest.mark.timeout(180)
async def test_rabbitmq_is_killed_in_the_middle(database: str, connection: Connection) -> None:
    with rabbitmq_server() as server:
        async with await aio_pika.connect(server.url) as there:
            await (await there.channel()).declare_queue("orders", durable=True)
        await kill_in_the_middle(database, connection, server)


async def test_a_relay_starts_before_its_broker(database: str, connection: Connection) -> None:
    with nats_server() as server:
        server.kill()
        made = inbound(From(server.url, "orders", "orders"), database)
        running = asyncio.create_task(made.run())
        await asyncio.to_thread(server.start)
        async with jetstream(server.url) as context:
            await context.add_stream(name="orders", subjects=["orders"])
        await send(server.url, "orders", 1)
        await until_there(connection, 1, "inbox")
        made.stop()
        async with asyncio.timeout(30):
            await running


@pytest.mark.parametrize("kind", ["nats", "amqp"])
async def test_it_waits_for_what_is_missing_at_the_broker(
    database: str,
    connection: Connection,
    kind: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server: Server = request.getfixturevalue({"nats": "nats", "amqp": "rabbitmq"}[kind])
    made = inbound(From(server.url, "late", "late"), database)
    running = asyncio.create_task(made.run())
    await until(lambda: "late:inbox: " in caplog.text, "it is logged", 30)
    assert "tried again each second" in caplog.text
    await make_late(kind, server.url)
    await send(server.url, "late", 1)
    await until_there(connection, 1, "inbox")
    made.stop()
    await running
    assert sum("late:inbox: " in it.getMessage() for it in caplog.records) <= 2


async def make_late(kind: str, url: str) -> None:
    if kind == "nats":
        async with jetstream(url) as context:
            await context.add_stream(name="late", subjects=["late"])
    else:
        async with await aio_pika.connect(url) as there:
            await (await there.channel()).declare_queue("late", durable=True)


@pytest.mark.parametrize("scheme", ["nats", "amqp", "kafka"])
def test_a_missing_package_is_one_line(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = {"nats": "nats.js.api", "amqp": "aio_pika.exceptions", "kafka": "confluent_kafka"}
    module = {"nats": "jetstream"}.get(scheme, scheme)
    monkeypatch.delitem(sys.modules, f"notifyq.relay.brokers.{module}_reader", raising=False)
    monkeypatch.setitem(sys.modules, client[scheme], None)
    with pytest.raises(ConfigurationError, match=f"a relay from {scheme}:// needs one more"):
        reader_of(f"{scheme}://user:secret@there", "orders", "group", 10)
