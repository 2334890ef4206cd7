"""Log records of handlers: each call keeps its own, in the database."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from execution import in_processes
from execution.in_processes import talk
from notifyq import App, ConfigurationError, Message, Snooze, Steps, Transaction
from notifyq.errors import MessageFailedError
from notifyq.execution.capture import MOST, Capture, capturing
from notifyq.testing import Sandbox
from support.database import Connection, until_equal
from support.running import Events, working

log = logging.getLogger("shop.orders")


@pytest.fixture
def app(database: str) -> App:
    return App(database, capture_logs="INFO")


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    """Give the root logger, which must be afterwards as it was."""
    logger = logging.getLogger()
    before = (logger.level, list(logger.handlers), [list(it.filters) for it in logger.handlers])
    yield logger
    assert before == (
        logger.level, list(logger.handlers), [list(it.filters) for it in logger.handlers],
    )  # fmt: skip


async def texts(app: App, message_id: int) -> list[tuple[int, str]]:
    return [(it.attempt, it.text) for it in await app.archive.logs(message_id)]


async def test_every_call_keeps_its_records(app: App) -> None:
    @app.handler("q", max_attempts=2, backoff=0)
    async def handle(payload: str, message: Message) -> None:
        log.debug("too low")
        log.info("handling %s", payload)
        await asyncio.to_thread(log.warning, "in a thread")
        if message.attempts == 1:
            try:
                int("bad luck")
            except ValueError:
                log.exception("oops")
                raise

    await app.create_queues()
    async with working(app, maintenance=0.1):
        published = await app.publish("q", "ä")
        await published.result(20)
        found = await app.archive.logs(published)
    log.info("after it")
    assert [(it.attempt, it.level, it.text.partition("\n")[0]) for it in found] == [
        (1, "INFO", "handling ä"),
        (1, "WARNING", "in a thread"),
        (1, "ERROR", "oops"),
        (2, "INFO", "handling ä"),
        (2, "WARNING", "in a thread"),
    ]
    assert found[2].text.endswith(": 'bad luck'")
    assert {it.logger for it in found} == {"shop.orders"}
    [attempt] = await app.archive.attempts(published)
    assert found[0].lock_token == attempt.lock_token != found[3].lock_token
    assert attempt.locked_at <= found[0].created_at <= found[1].created_at <= attempt.ended_at


async def test_calls_at_the_same_time_do_not_mix(app: App) -> None:
    together = asyncio.Barrier(3)
    in_threads = threading.Barrier(3)

    @app.handler("async")
    async def handle(name: str) -> None:
        await together.wait()
        log.info("%s 1", name)
        await together.wait()
        await asyncio.gather(*(asyncio.to_thread(log.info, "%s 2", name) for _ in range(2)))

    @app.handler("sync")
    def handle_sync(name: str) -> None:
        in_threads.wait(20)
        log.info("%s 1", name)
        in_threads.wait(20)
        for _ in range(2):
            log.info("%s 2", name)

    await app.create_queues()
    async with working(app, concurrency=6):
        for queue in ("async", "sync"):
            published = await app.publish_many(queue, ["a", "b", "c"])
            for name, handle_ in zip("abc", published, strict=True):
                await handle_.result(20)
                kept = await texts(app, handle_)
                assert kept == [(1, f"{name} 1"), (1, f"{name} 2"), (1, f"{name} 2")]


async def test_parked_released_and_transactional_calls_keep_them(
    app: App, connection: Connection
) -> None:
    @app.handler("steps", max_attempts=2)
    async def durable(_: int, steps: Steps) -> None:
        log.info("before")
        await steps.wait_for("go", signal="go")
        log.info("behind")

    @app.handler("snooze")
    async def snooze(_: int, message: Message) -> None:
        log.info("token %d", message.lock_token)
        if message.lock_token == 1:
            raise Snooze(0)

    @app.handler("commit", transactional=True)
    async def commit(_: int, transaction: Transaction) -> None:
        await transaction.execute("select")
        log.info("committed")

    await app.create_queues()
    async with working(app, maintenance=0.1, poll=0.1):
        parked = await app.publish("steps", 1)
        await until_equal(lambda: texts(app, parked), [(1, "before")], "the call has parked")
        await app.signal("go")
        await parked.result(20)
        snoozed, committed = await app.publish("snooze", 1), await app.publish("commit", 1)
        await snoozed.result(20)
        await committed.result(20)
    # The worker has settled all, as it has stopped.
    found = await app.archive.logs(parked)
    assert [it.text for it in found] == ["before", "before", "behind"]
    assert [it.attempt for it in found] == [1, 1, 1]
    assert found[0].lock_token < found[1].lock_token == found[2].lock_token
    assert [text for _, text in await texts(app, snoozed)] == ["token 1", "token 3"]
    assert await texts(app, committed) == [(1, "committed")]


async def test_a_call_that_lost_its_lock_keeps_them(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q", max_attempts=2)
    async def handle(_: int, message: Message) -> None:
        if message.attempts == 1:
            await connection.execute(
                "update messages.message set lock_token = lock_token + 1, state = 'waiting', "
                "locked_at = null, lock_expires_at = null, locked_by = null"
            )
        log.info("call %d", message.attempts)

    await app.create_queues()
    async with working(app, events, poll=0.1):
        published = await app.publish("q", 1)
        await published.result(20)
    assert await texts(app, published) == [(1, "call 1"), (2, "call 2")]


async def test_processes_give_theirs_to_the_worker(database: str) -> None:
    app = in_processes.app
    app.dsn, app.registry.capture_logs = database, logging.INFO
    try:
        async with working(app, queues=["talk"]):
            published = await talk.publish_many(["a", "b"])
            with suppress(MessageFailedError):
                await published[1].result(40)
            await published[0].result(40)
            for name, handle in zip("ab", published, strict=True):
                assert [text for _, text in await texts(app, handle)] == [f"in a process: {name}"]
    finally:
        app.registry.capture_logs = None
        await app.close()


async def test_without_the_option_nothing_is_sent_or_kept(
    database: str, connection: Connection
) -> None:
    app = App(database)

    @app.handler("q")
    async def handle(_: int) -> None:
        log.warning("unheard")

    await app.create_queues()
    async with working(app):
        assert not any(type(it).__module__.startswith("notifyq") for it in logging.root.handlers)
        published = await app.publish("q", 1)
        await published.result(20)
    assert await connection.fetchval("select count(*) from notifyq.attempt_log") == 0


async def test_the_sandbox_keeps_them(app: App, database: str) -> None:
    @app.handler("q")
    async def handle(_: int) -> None:
        log.info("here")

    @app.handler("batch", batch=2)
    async def batch(_: list[int]) -> None:
        log.info("of many messages")

    async with Sandbox(app, database) as sandbox:
        published, other = await app.publish("q", 1), await app.publish("batch", 1)
        await sandbox.drain()
        assert await texts(app, published) == [(1, "here")]
        assert await texts(app, other) == []


async def test_texts_that_json_or_the_server_cannot_hold(app: App) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @app.handler("q")
    async def handle(_: int) -> None:
        logging.raiseExceptions = False
        try:
            log.info("%s", Bad())
        finally:
            logging.raiseExceptions = True
        log.info("nul \0, half \ud800")

    await app.create_queues()
    async with working(app):
        published = await app.publish("q", 1)
        await published.result(20)
    assert await texts(app, published) == [(1, "nul \\0, half \\ud800")]


def collected(*messages: str, encoding: str = "UTF8") -> tuple[str, list[str]]:
    """What a call keeps that logs these messages: the JSON, and the texts."""
    with capturing(logging.INFO):
        records = Capture(logging.INFO, encoding).begin()
        for message in messages:
            log.info("%s", message)
        text = records.close()
        log.info("too late")
    assert records.close() == text is not None
    return text, [it["text"] for it in json.loads(text)]


def test_too_many_records_lose_those_in_the_middle() -> None:
    given = [f"{number:05} {'x' * 90}" for number in range(2000)]
    text, kept = collected(*given)
    assert MOST * 0.95 < len(text.encode()) <= MOST
    [mark] = [it for it in kept if it not in given]
    at = kept.index(mark)
    lost = given[at : at + 2000 - (len(kept) - 1)]
    assert kept == [*given[:at], mark, *given[at + len(lost) :]]
    assert mark.startswith(f"{len(lost)} records of ")
    assert mark.endswith(" bytes are left out: a call keeps 64 KB")


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("character", ["a", "\x01", "€", "😀"])
def test_a_long_record_is_cut(character: str, encoding: str) -> None:
    text, kept = collected(character * 10_000, "end", encoding=encoding)
    assert len(text.encode()) <= MOST
    assert kept[1:] == ["end"]
    assert "000 characters are left out" in kept[0]


@pytest.mark.parametrize("level", ["LOUD", 0, True, 1.5])
def test_a_level_that_is_none(level: object) -> None:
    with pytest.raises(ConfigurationError, match="capture_logs must be a level of logging"):
        App(capture_logs=level)  # type: ignore[arg-type]


def test_other_handlers_get_what_they_got(root: logging.Logger) -> None:
    seen: list[str] = []
    other = logging.Handler()
    other.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    quiet, loud = logging.getLogger("quiet"), logging.getLogger("loud")
    before = root.level
    root.setLevel(logging.WARNING)
    root.addHandler(other)
    loud.setLevel(logging.DEBUG)
    try:
        with capturing(logging.INFO), capturing(logging.DEBUG):
            quiet.info("no")
            quiet.warning("one")
            loud.debug("two")
        with capturing(logging.INFO):
            assert root.level == logging.INFO
        quiet.info("no")
    finally:
        root.removeHandler(other)
        root.setLevel(before)
        loud.setLevel(logging.NOTSET)
    assert seen == ["one", "two"]


def test_a_program_without_handlers_still_prints_warnings(
    root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    before = list(root.handlers)
    for it in before:
        root.removeHandler(it)
    try:
        with capturing(logging.INFO):
            log.info("silent")
            log.warning("printed")
    finally:
        for it in before:
            root.addHandler(it)
    assert capfd.readouterr().err == "printed\n"
