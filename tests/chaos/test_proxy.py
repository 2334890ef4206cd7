"""The proxy: it harms connections only as its methods describe."""

import asyncio
from urllib.parse import urlsplit

import pytest

from notifyq.chaos.proxy import NotificationFilter, Proxy
from support.database import Connection, session, until

_NOTIFICATION = b"A\x00\x00\x00\x0f\x00\x00\x00\x2ahello\x00\x00"
_ROW = b"D\x00\x00\x00\x0b\x00\x01\x00\x00\x00\x01A"
_READY = b"Z\x00\x00\x00\x05I"


@pytest.mark.parametrize("size", range(1, 30))
def test_notifications_are_taken_out_wherever_the_stream_is_cut(size: int) -> None:
    stream = _ROW + _NOTIFICATION + _READY + _NOTIFICATION + _ROW
    notifications = NotificationFilter()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    passed = b"".join(notifications.pass_on(piece, drop=True) for piece in pieces)
    assert passed == _ROW + _READY + _ROW


def test_without_drop_all_messages_pass() -> None:
    notifications = NotificationFilter()
    assert (
        notifications.pass_on(_ROW + _NOTIFICATION + _READY, drop=False)
        == _ROW + _NOTIFICATION + _READY
    )


@pytest.mark.parametrize(
    ("answer", "passed"), [(b"N", b"N" + _ROW), (b"S", b"S" + _NOTIFICATION + _ROW)]
)
def test_the_answer_about_encryption_is_one_byte(answer: bytes, passed: bytes) -> None:
    notifications = NotificationFilter()
    notifications.note_request(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
    assert notifications.pass_on(answer + _NOTIFICATION + _ROW, drop=True) == passed


async def test_the_proxy_drops_notifications_and_no_rows(
    database: str, connection: Connection
) -> None:
    async with Proxy(database) as proxy, session(proxy.dsn) as listener:
        received: list[object] = []
        await listener.add_listener("notification", lambda *it: received.append(it[3]))
        proxy.drops_notifications = True
        await connection.execute("select pg_notify('notification', 'lost')")
        # Notifications arrive before the answer to a later query.
        rows = await listener.fetch("select repeat('A', 1000) from generate_series(1, 200)")
        assert {row[0] for row in rows} == {"A" * 1000}
        assert received == []
        proxy.drops_notifications = False
        await connection.execute("select pg_notify('notification', 'received')")
        await listener.fetchval("select 1")
        await asyncio.sleep(0)
        assert received == ["received"]


async def test_what_is_held_back_comes_later_and_is_whole(
    database: str, connection: Connection
) -> None:
    async with Proxy(database) as proxy, session(proxy.dsn) as client:
        proxy.hold()
        query = asyncio.create_task(client.fetchval("select repeat('x', 300000)"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.shield(query)
        fresh = asyncio.create_task(_answer(proxy.dsn))
        assert proxy.connections == 1
        proxy.resume()
        async with asyncio.timeout(5):
            assert await query == "x" * 300_000
            assert await fresh == 1


async def _answer(dsn: str) -> object:
    async with session(dsn) as client:
        return await client.fetchval("select 1")


async def test_new_connections_go_where_it_leads(database: str) -> None:
    async with Proxy("postgresql://127.0.0.1:1/nobody") as proxy, Proxy(database) as other:
        with pytest.raises((OSError, ConnectionError)):
            await _answer(proxy.dsn)
        proxy.redirect(database)
        through = urlsplit(database)._replace(netloc=_netloc(database, proxy.dsn)).geturl()
        async with session(through) as stays:
            proxy.redirect(other.dsn)
            assert await stays.fetchval("select 1") == 1
            assert other.connections == 0
            assert await _answer(through) == 1
            proxy.redirect("postgresql://127.0.0.1:1")
            with pytest.raises((OSError, ConnectionError)):
                await _answer(through)
            assert await stays.fetchval("select 1") == 1


def _netloc(user: str, port: str) -> str:
    return f"{urlsplit(user).netloc.rpartition('@')[0]}@127.0.0.1:{urlsplit(port).port}"


async def test_a_proxy_ends_with_connections_that_wait(database: str) -> None:
    async with Proxy(database) as proxy:
        proxy.hold()
        waiting = asyncio.create_task(_answer(proxy.dsn))
        await until(lambda: proxy._links, "the connection has come")
    async with asyncio.timeout(5):
        with pytest.raises((OSError, ConnectionError)):
            await waiting
