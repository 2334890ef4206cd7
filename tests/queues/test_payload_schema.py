"""With check_payloads, payloads are checked before they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel, Field

from notifyq import App, PayloadError, Policy, StreamPolicy
from support.database import Connection

PATH = r"\$\.id: 0 is less than the minimum of 1"


class Order(BaseModel):
    id: int = Field(ge=1)
    note: str = ""


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    async with App(database, check_payloads=True) as app:
        await app.admin.create_queue("orders", Policy(payload_schema=Order))
        await app.admin.create_queue("free")
        yield app


@pytest.fixture
async def unsent(app: App, connection: Connection) -> Connection:
    """Give a session in whose database every publisher fails: what is refused was not sent."""
    await connection.execute(
        "create function fail() returns trigger language plpgsql as "
        "$$ begin raise 'sent'; end $$;"
        "create trigger aaa before insert on messages.message for each row "
        "execute function fail()"
    )
    return connection


async def test_a_refused_payload_is_not_sent(app: App, unsent: Connection) -> None:
    with pytest.raises(PayloadError, match=f"^'orders' does not take the message: {PATH}"):
        await app.publish("orders", {"id": 0})
    with pytest.raises(PayloadError, match=f"at position 3: {PATH}"):
        await app.publish_many("orders", [{"id": 1}, {"id": 2.0}, {"id": 0}])
    with pytest.raises(Exception, match=r"^sent$"):
        await app.publish("orders", {"id": 1})


async def test_a_stream_of_payloads_reports_the_position_of_a_refused_one(app: App) -> None:
    payloads = [Order(id=1), Order(id=2), {"id": 3}, {"id": 0}]
    published = aiter(app.publish_stream("orders", payloads, batch=2))
    assert len(await anext(published)) == 2
    with pytest.raises(PayloadError, match=f"at position 4: {PATH}"):
        await anext(published)


async def test_the_schema_that_the_queue_has_now_decides(app: App, connection: Connection) -> None:
    await app.publish("orders", {"id": 1})
    await connection.execute(
        "select messages.alter_queue('orders', payload_schema => '{\"required\": [\"no\"]}')"
    )
    # Known here is the schema of before; then that of now.
    for _ in range(2):
        with pytest.raises(PayloadError, match="no"):
            await app.publish("orders", {"id": 1})
    await connection.execute("select messages.alter_queue('orders', payload_schema => '{}')")
    await app.publish("orders", {"id": 0})


async def test_events_are_checked_as_messages_are(app: App) -> None:
    await app.streams.create("news", StreamPolicy(payload_schema=Order))
    with pytest.raises(PayloadError, match=PATH):
        await app.publish("news", {"id": 0})
    await app.publish("news", {"id": 1})


@pytest.mark.parametrize("texts", [["a-1"], ["b"]])
async def test_patterns_are_those_of_the_database(app: App, texts: list[str]) -> None:
    # \m is the beginning of a word there, and an error in Python.
    await app.admin.create_queue("words", Policy(payload_schema={"pattern": r"\ma"}))
    if texts == ["b"]:
        with pytest.raises(PayloadError, match="'words' does not take this message"):
            await app.publish_many("words", texts)
    else:
        await app.publish_many("words", texts)


async def test_what_has_no_schema_goes_through(app: App) -> None:
    assert await app.publish("free", {"id": 0})
    with pytest.raises(Exception, match="there is no queue 'none'"):
        await app.publish("none", 1)
    assert await app.publish("free", 1)
