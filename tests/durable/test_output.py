"""Progress and output of a handler, as its readers see them."""

import asyncio

import pytest

from notifyq import (
    App,
    ConfigurationError,
    LockLostError,
    MessageNotFoundError,
    StepError,
    Steps,
    StepValueError,
    emit,
    progress,
)
from support.database import Connection, until
from support.running import Events, working


async def test_output_is_read_while_the_handler_runs_and_after_it(
    app: App, events: Events, connection: Connection
) -> None:
    goes_on = asyncio.Event()

    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(_: int) -> str:
        number = await emit({"text": "a"})
        if number == 1:
            raise OSError("crash")
        assert await progress(0.5, "half")
        await goes_on.wait()
        await emit("b")
        return "done"

    await app.create_queues()
    handle_ = await app.publish("q", 1)

    async def is_reported() -> bool:  # after the chunk is committed, maybe not yet when it is read
        rows = await connection.fetch("select * from messages.progress($1)", handle_)
        return [(row["fraction"], row["note"]) for row in rows] == [(0.5, "half")]

    assert await handle_.progress() is None

    async with working(app, events, maintenance=0.1):
        chunks = []
        async for chunk in handle_.output():
            chunks.append((chunk.number, chunk.attempt, chunk.value))
            if chunk.number == 2:
                await until(is_reported, "the handler reports its progress")
                for report in (await handle_.progress(), await app.archive.progress(handle_)):
                    assert report is not None
                    assert (report.fraction, report.note) == (0.5, "half")
                goes_on.set()
        assert chunks == [(1, 1, {"text": "a"}), (2, 2, {"text": "a"}), (3, 2, "b")]
        assert await handle_.result(20) == "done"
    assert await handle_.progress() is None
    with pytest.raises(MessageNotFoundError):
        await app.archive.progress(2**62)
    assert [chunk.number async for chunk in handle_.output(after=2)] == [3]


async def test_a_lost_lock_ends_the_handler(
    app: App, events: Events, connection: Connection
) -> None:
    lost = asyncio.Event()

    @app.handler("q", max_attempts=2)
    async def handle(_: int) -> str:
        if lost.is_set():
            return "again"
        await connection.execute("update messages.message set lock_token = lock_token + 1")
        lost.set()
        try:
            assert not await progress(0.1)
            await emit(1)
        except Exception:  # noqa: BLE001
            return "caught"
        return "kept"

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1) as worker:
        async with asyncio.timeout(20):
            await lost.wait()
        await connection.execute(
            "update messages.message set locked_at = now() - interval '1 day', "
            "lock_expires_at = now() - interval '1 hour'"
        )
        assert await handle_.result(20) == "again"
        assert worker.counts["lost"] == 1


async def test_what_cannot_be_stored_is_an_error_of_its_caller(app: App, events: Events) -> None:
    @app.handler("q")
    async def handle(_: int, steps: Steps) -> list[str]:
        refused = []
        for call in (emit(float("nan")), emit("a\0b"), emit("\ud800"), steps.sleep("\ud800", 1)):
            with pytest.raises((ConfigurationError, StepValueError)) as error:
                await call
            refused.append(str(error.value))
        # A note is for people: it is kept as well as it can be.
        assert await progress(1, "a\0b\ud800")
        return refused

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    for name, payload in (("a\0b", 1), ("\ud800", 1), ("s", float("nan"))):
        with pytest.raises(ConfigurationError, match="PostgreSQL cannot store the signal"):
            await handle_.signal(name, payload)
    async with working(app, events):
        *chunks, sleep = await handle_.result(20)
    assert all(it.startswith(("PostgreSQL cannot store the chunk", "the payload")) for it in chunks)
    assert sleep.startswith("PostgreSQL cannot store")


async def test_outside_a_handler_they_are_errors() -> None:
    for call in (progress(0.5), emit(1)):
        with pytest.raises(StepError, match="call it in an async handler"):
            await call
    assert not issubclass(LockLostError, Exception)
