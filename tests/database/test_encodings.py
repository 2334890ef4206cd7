"""Databases whose encoding is not UTF-8."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

import notifyq
from cli.programs import Notifyq
from notifyq import App, ArchivedMessage, Event, Reject, Retry, Transaction
from notifyq.dsn import with_database
from support.database import (
    Connection,
    drop_database,
    install,
    session,
    until,
)
from support.running import working

TEXT = "5 € 🎉 é"
SHOWN = {
    "LATIN1": r"5 \u20ac \U0001f389 é",
    "WIN1252": r"5 € \U0001f389 é",
    "EUC_JP": r"5 \u20ac \U0001f389 é",
    "SQL_ASCII": TEXT,
}
"""By encoding, how the text is stored."""


@pytest.fixture(params=SHOWN)
async def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def dsn(server: str, encoding: str) -> AsyncIterator[str]:
    name = f"encoded_{encoding.lower()}"
    async with session(server) as admin:
        await admin.execute(
            f"create database {name} encoding '{encoding}' lc_collate 'C' lc_ctype 'C' "
            "template template0"
        )
        try:
            async with session(with_database(server, name)) as connection:
                await install(connection)
            yield with_database(server, name)
        finally:
            await drop_database(admin, name)


@pytest.fixture
async def there(dsn: str) -> AsyncIterator[Connection]:
    async with session(dsn) as connection:
        yield connection


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, retry_for=10)
    yield app
    await app.close()


async def ended(app: App, message_id: int) -> ArchivedMessage:
    """Wait until a message is archived."""
    found: list[ArchivedMessage] = []

    async def is_archived() -> bool:
        message = await app.archive.find(message_id)
        if isinstance(message, ArchivedMessage):
            found.append(message)
        return bool(found)

    await until(is_archived, f"message {message_id} is archived", 30)
    return found[0]


async def test_errors_with_any_text_end_their_message(  # noqa: C901  a handler for each way
    app: App, encoding: str
) -> None:
    @app.handler("raises", max_attempts=2, backoff=0)
    async def raises(payload: Any) -> None:
        raise ValueError(TEXT)  # the line of a traceback: 5 € 🎉

    @app.handler("long", max_attempts=1)
    async def long(payload: Any) -> None:
        raise ValueError("x" * 20_000)

    @app.handler("rejects")
    async def rejects(payload: Any) -> None:
        raise Reject(TEXT)

    @app.handler("retries", max_attempts=2)
    async def retries(payload: Any) -> None:
        raise Retry(TEXT, after=0)

    @app.handler("threads", max_attempts=1)
    def threads(payload: Any) -> None:
        raise ValueError(TEXT)

    @app.handler("together", max_attempts=1, batch=10)
    async def together(payloads: list[Any]) -> None:
        raise ValueError(TEXT)

    @app.handler("transactional", max_attempts=1, transactional=True)
    async def transactional(payload: Any, transaction: Transaction) -> None:
        raise Reject(TEXT)

    @app.handler("returns", max_attempts=1)
    async def returns(payload: Any) -> str:
        return TEXT

    @app.handler("reports", max_attempts=1)
    async def reports(payload: Any) -> bool:
        return await notifyq.progress(0.5, TEXT)

    async with working(app, poll=0.1):
        ids = {queue: await app.publish(queue, 1) for queue in app.registry.queues()}
        ends = {queue: await ended(app, id) for queue, id in ids.items()}
        assert {queue: end.status for queue, end in ends.items()} == {
            "raises": "failed",
            "long": "failed",
            "rejects": "rejected",
            "retries": "failed",
            "threads": "failed",
            "together": "failed",
            "transactional": "rejected",
            "returns": "success" if encoding == "SQL_ASCII" else "failed",
            "reports": "success",
        }
        kept = SHOWN[encoding]
        for queue in ("raises", "rejects", "retries", "threads", "together", "transactional"):
            assert kept in (ends[queue].details or ""), queue
        [first, second] = await app.archive.attempts(ids["raises"])
        assert kept in (first.traceback or "")
        assert second.error_type == "ValueError"


async def test_a_subscriber_goes_on_after_an_error_with_any_text(
    app: App, encoding: str, there: Connection
) -> None:
    seen: list[Any] = []

    @app.subscriber("news", "reader", max_attempts=2)
    async def read(event: Event) -> None:
        seen.append(event.payload())
        if len(seen) < 2:
            raise Retry(TEXT, after=0)
        if len(seen) == 2:
            raise Reject(TEXT)

    async with working(app, poll=0.1):
        await app.publish("news", 1)
        await app.publish("news", 2)
        await until(lambda: seen[-1:] == [2], "both events are handled", 30)
    [dead] = await app.archive.dead(subscriber="reader")
    assert SHOWN[encoding] in (dead.details or "")


@pytest.mark.parametrize("encoding", ["SQL_ASCII"], indirect=True)
@pytest.mark.parametrize("column", ["message", "headers", "type", "key", "dedup_key"])
async def test_bytes_that_are_not_utf_8_are_refused(app: App, dsn: str, column: str) -> None:
    @app.handler("q", max_attempts=3)
    async def handle(payload: Any) -> None: ...

    value = {"message": "'\"\xe9\"'", "headers": '\'{"a": "\xe9"}\''}.get(column, "'\xe9'")
    columns = {"queue": "'q'", "message": "'1'"} | {column: value}
    names, values = ", ".join(columns), ", ".join(columns.values())
    await app.create()
    published = await psql(dsn, f"insert into messages.message ({names}) values ({values})")
    assert f"{column} has bytes that are not UTF-8" in published
    async with working(app, poll=0.1):
        good = await app.publish("q", TEXT)
        assert (await ended(app, good)).status == "success"


@pytest.mark.parametrize("encoding", ["SQL_ASCII"], indirect=True)
@pytest.mark.parametrize("column", ["message", "headers", "type", "key"])
async def test_events_with_bytes_that_are_not_utf_8_are_refused(
    app: App, dsn: str, there: Connection, column: str
) -> None:
    value = {"message": "'\"\xe9\"'", "headers": '\'{"a": "\xe9"}\''}.get(column, "'\xe9'")
    columns = {"stream": "'news'", "message": "'1'"} | {column: value}
    names, values = ", ".join(columns), ", ".join(columns.values())
    await app.streams.create("news")
    refused = await psql(dsn, f"insert into messages.stream_event ({names}) values ({values})")
    assert f"{column} has bytes that are not UTF-8" in refused
    assert await there.fetchval("select count(*) from messages.event") == 0


@pytest.mark.parametrize("encoding", ["SQL_ASCII"], indirect=True)
async def test_details_that_are_not_utf_8_are_escaped(
    app: App, dsn: str, there: Connection
) -> None:
    await app.admin.create_queue("q")
    number = await app.publish("q", 1)
    token = await there.fetchval("select lock_token from messages.claim('{q}', 1)")
    await psql(dsn, f"select messages.finish({number}, {token}, 'rejected', 'caf\xe9')")
    assert (await ended(app, number)).details == r"caf\351"


async def psql(dsn: str, statement: str) -> str:
    """Run a statement as bytes of LATIN1, without a conversion; return the errors."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["psql", "-XqAto", "/dev/null", dsn],
        check=False,
        input=statement.encode("latin-1"),
        capture_output=True,
        env=os.environ | {"PGCLIENTENCODING": "SQL_ASCII"},
    )
    return done.stderr.decode(errors="replace")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"], indirect=True)
def test_the_encoding_is_named(dsn: str, encoding: str) -> None:
    with Notifyq(dsn) as command:
        assert f"the encoding of this database is {encoding}" in command("init").err
        assert f"the encoding is {encoding}" in command("doctor").out
