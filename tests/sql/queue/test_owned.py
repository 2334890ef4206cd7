"""Messages of ended sessions come back without maintenance while other sessions claim or wait."""

from __future__ import annotations

from typing import Any

import pytest

from support.database import Connect, Connection, one_row, publish, rows, terminate, value

WAIT = "call messages.wait(array['default'], '3 s')"


async def lose(connection: Connection, connect: Connect) -> int:
    """Have a session own a message, and end it."""
    (id_,) = await publish(connection, 1)
    owner = await connect()
    owned = await one_row(owner, WAIT)
    assert owned["id"] == id_
    await terminate(connection, owner)
    return id_


async def claim(connection: Connection, **arguments: Any) -> list[int]:
    return [row["id"] for row in await rows(connection, "claim", **arguments)]


async def wait(connection: Connection) -> int | None:
    found = await one_row(connection, WAIT)
    return found["id"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("has_waited", [False, True])
async def test_a_session_that_waits_gets_an_orphan(
    connection: Connection, connect: Connect, *, has_waited: bool
) -> None:
    other = await connect()
    if has_waited:
        await other.execute("call messages.wait(array['default'], '0 s')")
    id_ = await lose(connection, connect)
    assert await wait(other) == id_


async def test_a_session_that_owned_a_message_gets_an_orphan(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    (own,) = await publish(connection, 1)
    assert await wait(other) == own
    id_ = await lose(connection, connect)
    assert await wait(other) == id_


async def test_a_claim_gets_an_orphan(connection: Connection, connect: Connect) -> None:
    id_ = await lose(connection, connect)
    assert await claim(connection) == [id_]
    assert await claim(connection) == []


async def test_a_claim_of_other_queues_leaves_an_orphan(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="other")
    id_ = await lose(connection, connect)
    assert await claim(connection, queues=["other"]) == []
    assert await claim(connection, queues=["other", "default"]) == [id_]
