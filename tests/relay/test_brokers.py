"""Events on their way to message brokers: what arrives there, in which order, and how often."""

from __future__ import annotations

import pytest

from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError
from notifyq.relay import RelayMessage, StreamRelay
from relay.arrivals import PARENT, SUBSCRIBE, There, brokered, check_order, fill
from support.database import Connection


@pytest.fixture(autouse=True)
async def _made(connection: Connection) -> None:
    await connection.execute(SUBSCRIBE)


async def test_events_arrive_once_and_in_the_order_of_their_keys(
    database: str, connection: Connection, broker: There
) -> None:
    await fill(connection, 1, 250)
    made = brokered(database, broker, once=True)
    await made.run()
    assert made.counts["moved"] == 250
    found = await broker.read(250)
    assert sorted(it.payload for it in found) == list(range(1, 251))
    check_order(found)
    one = next(it for it in found if it.payload == 9)
    assert one.key == "k2"
    assert one.headers["traceparent"] == PARENT
    assert one.type == "placed"
    assert one.id.startswith("orders/hub/")
    assert len({it.id for it in found}) == 250


async def test_a_position_moves_with_the_answer_of_the_broker(
    database: str, connection: Connection, broker: There
) -> None:
    """A relay that starts where nothing is left sends nothing."""
    await fill(connection, 1, 10)
    await brokered(database, broker, once=True).run()
    again = brokered(database, broker, once=True)
    await again.run()
    assert again.counts["moved"] == 0
    assert len(await broker.read(10)) == 10


async def test_a_transformation_routes_changes_and_drops(
    database: str, connection: Connection, broker: There
) -> None:
    def change(message: RelayMessage) -> RelayMessage | None:
        number = message.payload()
        return message.replace(payload=100 + number) if number % 2 else None

    await fill(connection, 1, 10)
    made = brokered(database, broker, once=True, transform=change)
    await made.run()
    assert sorted(it.payload for it in await broker.read(5)) == [101, 103, 105, 107, 109]
    assert (made.counts["moved"], made.counts["dropped"]) == (5, 5)


async def test_an_event_that_the_broker_refuses_is_dead_and_stops_no_other(
    database: str, connection: Connection, broker: There
) -> None:
    await fill(connection, 1, 5)
    await connection.execute(
        "select messages.publish('orders', to_jsonb(repeat('x', 200000)), key => 'k1', "
        "type => 'large')"
    )
    await fill(connection, 6, 10)
    made = brokered(database, broker, once=True)
    await made.run()
    assert (made.counts["moved"], made.counts["refused"]) == (10, 1)
    found = await broker.read(10)
    # AMQP cannot tell which of the confirms that were under way are lost.
    assert {it.payload for it in found} == set(range(1, 11))
    details = await connection.fetchval("select details from messages.dead_message")
    assert details.startswith("the target of the relay refuses it: ")


async def test_what_amqp_cannot_carry_is_dead_and_stops_no_other(
    database: str, connection: Connection, to_amqp: There
) -> None:
    """The transformation makes addresses and types of what events have, and some are too long."""
    addresses = ["orders", "o" * 256, "orders", "e" * 256 + "/orders", "ö" * 128, "orders"]
    addresses += ["orders"] * 2
    await connection.execute(
        "select messages.publish('orders', to_jsonb(u.n), type => 'placed', key => 'k' || u.n % 2, "
        "headers => jsonb_build_object('to', u.address)) "
        "from unnest($1::text[]) with ordinality as u (address, n)",
        addresses,
    )

    def route(message: RelayMessage) -> tuple[str, RelayMessage]:
        number = message.payload()
        return message.headers["to"], message.replace(type="t" * (256 if number == 7 else 1))

    made = brokered(database, to_amqp, once=True, transform=route)
    await made.run()
    assert (made.counts["moved"], made.counts["refused"]) == (4, 4)
    found = await to_amqp.read(4)
    assert sorted(it.payload for it in found) == [1, 3, 6, 8]
    check_order(found)
    dead = await connection.fetch("select * from messages.dead_message order by event_id")
    assert {row["message"]: row["details"].partition("refuses it: ")[2] for row in dead} == {
        2: "its routing key has 256 bytes, and AMQP takes 255",
        4: "its exchange has 256 bytes, and AMQP takes 255",
        5: "its routing key has 256 bytes, and AMQP takes 255",
        7: "its type has 256 bytes, and AMQP takes 255",
    }


@pytest.mark.parametrize(
    ("subscriber", "queue", "what"),
    [
        ("hub", "q" * 256, "routing key has 256"),
        ("hub", "e" * 256 + "/q", "exchange has 256"),
        ("h" * 230, "q", "id has 278"),
    ],
    ids=["queue", "exchange", "subscriber"],
)
async def test_names_that_amqp_cannot_carry_are_refused_at_the_start(
    database: str, subscriber: str, queue: str, what: str
) -> None:
    """Else each event would be dead, one by one."""
    url = "amqp://127.0.0.1:1"
    made = StreamRelay(Database(database), url, "orders", subscriber, queue)
    with pytest.raises(ConfigurationError, match=f"can be sent: its {what} bytes"):
        await made.run()
