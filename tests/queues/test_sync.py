"""Calls that block, for programs that do not await."""

import asyncio
import errno
import subprocess
import sys
import threading

import pytest

from notifyq import (
    App,
    ConfigurationError,
    MessageRejectedError,
    QueueNotFoundError,
    ResultTimeoutError,
)
from support.database import Connection
from support.running import working


def threads_of_calls() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "notifyq-calls"}


def test_publish_sync_returns_the_id(database: str) -> None:
    app = App(database)
    first = app.publish_sync("default", {"n": 1}, priority=3)
    second = app.publish_sync("default", {"n": 2}, dedup_key="a")
    assert second > first
    assert app.publish_sync("default", {"n": 3}, dedup_key="a") == second


def test_all_calls_block_until_they_are_done(database: str) -> None:
    app = App(database)
    before = threads_of_calls()

    @app.handler("new")
    def handle(number: int) -> int:
        return number

    with app.sync() as calls:
        calls.create()
        one = calls.publish("new", 1)
        two, three = calls.publish_many("new", [2, 3], key=str)
        group = calls.publish_group("new", [4, 5], callback=("new", 6))
        assert len({one, two, three, *group.messages, group.callback}) == 6
        assert handle.publish_sync(7) > group.callback
        assert calls.signal("nobody waits") == 0
        assert calls.cancel(one)
        with pytest.raises(MessageRejectedError):
            calls.result(one, timeout=10)
    assert not threads_of_calls() - before


async def test_a_result_has_the_type_of_its_handler(app: App, connection: Connection) -> None:
    @app.handler("default")
    def double(number: int) -> int:
        return 2 * number

    async with working(app):
        with app.sync() as calls:
            handle = await asyncio.to_thread(double.publish_sync, 21)
            assert await asyncio.to_thread(calls.result, handle, timeout=20) == 42
            assert await asyncio.to_thread(calls.result, int(handle), int, timeout=20) == 42
    assert await connection.fetchval("select count(*) from messages.message") == 0


def test_errors_are_those_of_the_call(database: str) -> None:
    app = App(database)
    with pytest.raises(QueueNotFoundError, match="there is no"):
        app.publish_sync("missing", 1)


def test_many_threads_share_the_calls(database: str) -> None:
    app = App(database)
    before = threads_of_calls()
    ids: list[int] = []
    threads = [
        threading.Thread(target=lambda: ids.append(app.publish_sync("default", 1)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 16
    assert len(threads_of_calls() - before) == 1


async def test_a_call_that_would_block_an_event_loop_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="await app"):
        app.publish_sync("default", 1)
    assert await asyncio.to_thread(app.publish_sync, "default", 1)
    app.sync().close()


def test_a_call_ends_with_its_timeout(database: str) -> None:
    app = App(database)
    with app.sync() as calls, pytest.raises(ResultTimeoutError):
        calls.result(calls.publish("default", 1), timeout=0.05)


def test_an_interrupted_wait_cancels_its_call(database: str) -> None:
    script = f"""
import notifyq, os, signal, threading
app = notifyq.App({database!r})
with app.sync() as calls:
    handle = calls.publish("default", 1)
    app._loop_thread.run(app.database.open())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        calls.result(handle)
    except KeyboardInterrupt:
        print("interrupted, and cancelled:", bool(calls.cancel(handle)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "interrupted, and cancelled: True\n"
    assert done.stderr == ""


def test_a_loop_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", fail)
    monkeypatch.setattr(asyncio.events, "new_event_loop", fail)
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            App("postgresql://nowhere").publish_sync("default", 1)
        except OSError as error:
            errors.append(error)

    caller = threading.Thread(target=publish, daemon=True)
    caller.start()
    caller.join(10)
    assert [str(it) for it in errors] == ["[Errno 24] Too many open files"]
