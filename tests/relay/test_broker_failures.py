"""Relays and message brokers that are killed, are away, or take nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from notifyq.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError
from notifyq.relay import RelayMoved, RelayResumed, RelayStalled
from notifyq.relay.brokers import broker_of
from notifyq.relay.brokers.broker import Answer, Broker, Outgoing
from notifyq.relay.brokers.target import BrokerTarget
from notifyq.relay.message import Item
from relay.arrivals import (
    SUBSCRIBE,
    There,
    brokered,
    check_order,
    fill,
    jetstream,
    read_queue,
    read_stream,
)
from relay.relaying import command
from support.brokers import Server, nats_server, rabbitmq_server
from support.database import Connection, until
from support.dying import dying
from support.ports import free_port
from support.running import Events

NUMBERS = 5000


@pytest.fixture(autouse=True)
async def _made(connection: Connection) -> None:
    await connection.execute(SUBSCRIBE)


@pytest.mark.timeout(120)
async def test_a_relay_is_killed_at_every_step(
    database: str, connection: Connection, to_nats: There
) -> None:
    """Each relay is killed one step later than the last one, and the next one continues."""
    program = Path(__file__).with_name("killed_broker.py")
    steps, sent = await dying(program, database, to_nats.url, to_nats.to)
    assert steps > 8
    found = await to_nats.read(sent)
    assert sorted(it.payload for it in found) == list(range(1, sent + 1))
    check_order(found)


async def stored(url: str) -> int:
    """How many messages the stream `orders` of JetStream has."""
    async with jetstream(url) as context:
        info = await context.stream_info("orders")
        count: int = info.state.messages
        return count


async def test_the_command_is_killed_in_the_middle(
    database: str, connection: Connection, to_nats: There
) -> None:
    await fill(connection, 1, NUMBERS, keys=500)
    args = database, to_nats.url, "--stream", f"orders:hub:{to_nats.to}", "--batch", "1000"
    async with command(*args) as program:
        while not 100 < await stored(to_nats.url) < NUMBERS:  # noqa: ASYNC110  it is the server
            await asyncio.sleep(0)
        program.send_signal(signal.SIGKILL)
        await program.wait()
    assert await stored(to_nats.url) < NUMBERS
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like 'notifyq relay%'"
    )
    async with command(*args, "--once", "--json") as program:
        out, _ = await program.communicate()
    assert program.returncode == 0
    assert json.loads(out)["moved"] <= NUMBERS
    found = await to_nats.read(NUMBERS)
    assert sorted(it.payload for it in found) == list(range(1, NUMBERS + 1))
    check_order(found)


async def kill_in_the_middle(
    database: str, connection: Connection, server: Server, to: str
) -> Events:
    """Move events while the broker is killed and started again, until all have moved."""
    events = Events()
    there = There(server.url, to, _unread)
    made = brokered(database, there, telemetry=events, hold=0.1, batch=200)
    await fill(connection, 1, NUMBERS // 2, keys=1000)
    running = asyncio.create_task(made.run())
    await events.wait(RelayMoved, 3)
    server.kill()
    await events.wait(RelayStalled, source=None)
    await fill(connection, NUMBERS // 2 + 1, NUMBERS, keys=1000)
    await asyncio.to_thread(server.start)
    await events.wait(RelayResumed, source=None, seconds=40)
    await until(lambda: made.counts["moved"] == NUMBERS, "all have moved", 40)
    made.stop()
    await running
    return events


async def _unread(_: int) -> list[Any]:
    raise NotImplementedError


@pytest.mark.timeout(120)
async def test_jetstream_is_killed_in_the_middle(database: str, connection: Connection) -> None:
    with nats_server() as server:
        async with jetstream(server.url) as context:
            await context.add_stream(name="orders", subjects=["orders.>"])
        await kill_in_the_middle(database, connection, server, "orders.placed")
        found = await read_stream(server.url, "orders.placed")
    assert sorted(it.payload for it in found) == list(range(1, NUMBERS + 1))
    check_order(found)


@pytest.mark.timeout(180)
async def test_rabbitmq_is_killed_in_the_middle(database: str, connection: Connection) -> None:
    with rabbitmq_server() as server:
        async with await aio_pika.connect(server.url) as there:
            await (await there.channel()).declare_queue("orders", durable=True)
        await kill_in_the_middle(database, connection, server, "orders")
        found = await read_queue(server.url, "orders")
    # What was stored and not confirmed comes again: a consumer knows it by its id.
    first = list({it.id: it for it in reversed(found)}.values())[::-1]
    assert sorted(it.payload for it in first) == list(range(1, NUMBERS + 1))
    check_order(first)
    assert len(found) - NUMBERS <= 200


async def test_a_relay_starts_before_its_broker(database: str, connection: Connection) -> None:
    await fill(connection, 1, 10)
    with nats_server() as server:
        server.kill()
        made = brokered(database, There(server.url, "orders.placed", _unread), once=True)
        running = asyncio.create_task(made.run())
        await asyncio.to_thread(server.start)
        async with jetstream(server.url) as context:
            await context.add_stream(name="orders", subjects=["orders.>"])
        async with asyncio.timeout(30):
            await running
        assert len(await read_stream(server.url, "orders.placed")) == 10


async def make_subject(url: str) -> None:
    async with jetstream(url) as context:
        await context.update_stream(name="orders", subjects=["orders.>", "late"])


async def make_queue(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("late", "topic", durable=True)
        await (await channel.get_queue("orders")).bind(exchange, "late.#")


MISSING = {"nats": ("late", make_subject), "amqp": ("late/late.orders", make_queue)}
"""Addresses that do not exist, and what makes them."""


@pytest.mark.parametrize("broker", MISSING, indirect=True)
async def test_events_wait_for_an_address_that_is_missing(
    database: str, connection: Connection, broker: There, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    to, make = MISSING[broker.url.partition("://")[0]]
    missing = broker._replace(to=to)
    await fill(connection, 1, 10)
    with pytest.raises(BrokerRefusedError):
        await brokered(database, missing, once=True).run()
    events = Events()
    made = brokered(database, missing, telemetry=events)
    running = asyncio.create_task(made.run())
    await until(lambda: "it is tried again each second" in caplog.text, "it waits", 20)
    await make(broker.url)
    await events.wait(RelayMoved)
    made.stop()
    await running
    assert made.counts["moved"] == 10
    ours = [it for it in caplog.records if it.name.startswith("notifyq")]
    assert len([it for it in ours if it.levelno == logging.ERROR]) == 1


async def test_events_wait_for_room_and_none_is_sent_twice(
    database: str, connection: Connection, rabbitmq: Server, to_nats: There
) -> None:
    await fill(connection, 1, 12, keys=3)
    async with jetstream(to_nats.url) as context:
        full = {"name": "orders", "subjects": ["orders.>"], "discard": "new"}
        await context.update_stream(StreamConfig.from_response({**full, "max_msgs": 5}))
        made = brokered(database, to_nats, batch=100)
        running = asyncio.create_task(made.run())
        await until(lambda: bool(made._stalled), "it waits", 20)
        assert await stored(to_nats.url) == 5
        await context.update_stream(StreamConfig.from_response({**full, "max_msgs": 100}))
    await until(lambda: made.counts["moved"] == 12, "all have moved", 20)
    made.stop()
    await running
    found = await to_nats.read(12)
    assert sorted(it.payload for it in found) == list(range(1, 13))
    check_order(found)
    assert made.counts["known"] == 0

    await connection.execute("select messages.seek('orders', 'hub', 'start')")
    async with await aio_pika.connect(rabbitmq.url) as there:
        await (await there.channel()).declare_queue(
            "small", durable=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"}
        )
    made = brokered(database, There(rabbitmq.url, "small", _unread), batch=100)
    running = asyncio.create_task(made.run())
    found = []

    async def all_are_there() -> bool:
        found.extend(await read_queue(rabbitmq.url, "small"))
        return made.counts["moved"] == 12

    await until(lambda: bool(made._stalled), "it waits", 20)
    await until(all_are_there, "all have moved", 40)
    found.extend(await read_queue(rabbitmq.url, "small"))
    made.stop()
    await running
    assert sorted(it.payload for it in found) == list(range(1, 13))
    check_order(found)


async def test_events_that_would_control_the_broker_do_not(
    database: str, connection: Connection, to_nats: There, to_amqp: There
) -> None:
    """A header cannot purge a stream, end the header block or add a queue."""
    await connection.execute(
        "select messages.publish('orders', to_jsonb(n), type => 'placed', key => 'k', "
        """headers => '{"Nats-Rollup": "all", "CC": "other", "n": 1, "two": "a\\r\\nX: y"}') """
        "from generate_series(1, 3) as n"
    )
    await connection.execute("select messages.subscribe('orders', 'two', 'start')")
    await brokered(database, to_nats, once=True).run()
    found = await to_nats.read(3)
    assert [it.payload for it in found] == [1, 2, 3]
    assert {"Nats-Rollup", "X"}.isdisjoint(found[0].headers)
    assert found[0].headers["n"] == "1"
    await connection.execute("select messages.seek('orders', 'hub', 'start')")
    await brokered(database, to_amqp, once=True).run()
    found = await to_amqp.read(3)
    assert [it.payload for it in found] == [1, 2, 3]
    assert "CC" not in found[0].headers
    assert found[0].headers["two"] == "a\r\nX: y"


async def test_the_command_stops_at_a_signal(
    database: str, connection: Connection, broker: There
) -> None:
    await fill(connection, 1, 10)
    route = f"orders:hub:{broker.to}"
    async with command(database, broker.url, "--stream", route, "--json") as program:
        await until(
            lambda: connection.fetchval(
                "select pending = 0 from messages.subscription_info('orders', 'hub')"
            ),
            "all have moved",
            30,
        )
        program.send_signal(signal.SIGTERM)
        out, _ = await program.communicate()
    assert program.returncode == 0
    assert json.loads(out)["moved"] == 10
    assert len(await broker.read(10)) == 10


class Fake(Broker):
    """Fails as it is made to, and keeps what it has stored."""

    def __init__(self, *fails: set[str]) -> None:
        super().__init__("nats://fake")
        self.stored: list[str] = []
        self.tries = 0
        self._fails = list(fails)

    async def connect(self) -> None:
        """Be there."""

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Store all, but those that are to fail now."""
        self.tries += 1
        fails = self._fails.pop(0) if self._fails else set()
        ids = [it.id.rpartition("/")[2] for it in messages]
        self.stored += [it for it in ids if it not in fails]
        return [BrokerUnavailableError("away") if it in fails else True for it in ids]

    async def close(self) -> None:
        """Be there still."""


def items(*names: str) -> list[Item]:
    """Messages whose key is the first letter of their name."""
    return [(it, "to", "1", 0, None, None, it[0], None, None, None) for it in names]


async def test_no_event_is_sent_before_the_one_of_its_key_that_failed() -> None:
    fake = Fake({"a1"}, {"a1"})
    target = BrokerTarget(fake, "orders/hub")
    sent = await target.send(items("a1", "b1", "a2", "b2", "a3"), hold=0)
    assert isinstance(sent.error, BrokerUnavailableError)
    assert fake.stored == ["b1"]
    sent = await target.send(items("a1", "b1", "a2", "b2", "a3"), hold=20)
    assert sent.error is None
    assert fake.stored == list(sent.ids) == ["b1", "b2", "a1", "a2", "a3"]


async def test_events_that_are_sent_again_after_all_are_stored_again() -> None:
    """As after seek(): only what is left of a batch is not sent twice."""
    fake = Fake()
    target = BrokerTarget(fake, "orders/hub")
    for _ in range(2):
        await target.send(items("a1", "a2"), hold=0)
    assert fake.stored == ["a1", "a2"] * 2


async def test_what_another_program_answers_is_no_acknowledgement(
    database: str, connection: Connection, to_nats: There
) -> None:
    await fill(connection, 1, 1)
    client = await nats.connect(to_nats.url)

    async def answer(message: Msg) -> None:
        await message.respond(b"thanks")

    await client.subscribe("elsewhere", cb=answer)
    await client.flush()
    with pytest.raises(BrokerRefusedError, match="another program"):
        await brokered(database, to_nats._replace(to="elsewhere"), once=True).run()
    await client.close()


@pytest.mark.parametrize(
    "url",
    [
        "nats://me:secret1@127.0.0.1:{}", "nats://me@127.0.0.1:{}?password=secret1",
        "amqp://me:secret1@127.0.0.1:{}/shop", "kafka://me:secret1@127.0.0.1:{}",
        "kafka://127.0.0.1:{}?sasl.password=secret1", "kafka://127.0.0.1:{}?no.option=secret1",
    ],
)  # fmt: skip
async def test_no_broker_that_is_away_shows_its_password(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("NOTIFYQ_RETRY_FOR", "0")
    file = tmp_path / "target"
    file.write_text(url.format(free_port()))
    file.chmod(0o600)
    async with command(
        database, "--target-file", str(file), "--stream", "orders:hub:orders.placed"
    ) as program:
        out, text = await program.communicate()
    assert program.returncode == 1
    assert b"secret1" not in out + text
    assert text.decode().splitlines()[-1].startswith("notifyq: ")


@pytest.mark.parametrize("scheme", ["nats", "amqp", "kafka"])
def test_a_missing_package_is_one_line(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    client = {"nats": "nats.aio.client", "amqp": "aio_pika", "kafka": "confluent_kafka"}[scheme]
    module = {"nats": "jetstream"}.get(scheme, scheme)
    monkeypatch.delitem(sys.modules, f"notifyq.relay.brokers.{module}", raising=False)
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(ConfigurationError) as caught:
        broker_of(f"{scheme}://user:secret@there")
    assert str(caught.value) == (
        f"a relay to {scheme}:// needs one more package: pip install 'notifyq[{scheme}]'"
    )


@pytest.mark.parametrize("options", [("--queue", "q"), ("--stream", "s:h:t", "--accept-restored")])
async def test_a_broker_takes_streams_only(database: str, options: tuple[str, ...]) -> None:
    async with command(database, "nats://127.0.0.1:1", *options) as program:
        _, text = await program.communicate()
    assert program.returncode == 2
    assert b"a broker takes --stream" in text


@pytest.mark.parametrize("broker", ["amqp", "kafka"], indirect=True)
async def test_two_relays_of_a_subscription_send_no_event_twice(
    database: str, connection: Connection, broker: There
) -> None:
    """As while a new version of a program starts before the old one ends."""
    await fill(connection, 1, 1000)
    relays = [brokered(database, broker, batch=20) for _ in range(2)]
    running = [asyncio.create_task(it.run()) for it in relays]
    await until(lambda: sum(it.counts["moved"] for it in relays) >= 1000, "all have moved", 40)
    first = next(it for it in relays if it.counts["moved"])
    first.stop()
    await running[relays.index(first)]
    # The other one takes its place.
    await fill(connection, 1001, 1100)
    await until(lambda: sum(it.counts["moved"] for it in relays) == 1100, "all have moved", 40)
    for it in relays:
        it.stop()
    await asyncio.gather(*running)
    found = await broker.read(1100)
    assert sorted(it.payload for it in found) == list(range(1, 1101))
    check_order(found)
