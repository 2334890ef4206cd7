"""The sandbox: what the tests of other programs rely on."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel
from tenacity import wait_fixed

from docs.pages import blocks
from notifyq import App, Event, Message, Policy, Reject, Transaction
from notifyq.testing import Sandbox
from support.database import ROOT, Connection, install, session


class Pair(BaseModel):
    """A payload."""

    left: int
    right: str


@pytest.fixture
async def sandbox(database: str) -> AsyncIterator[Sandbox]:
    app = App("postgresql://nowhere.invalid/x")

    @app.handler("pairs", max_attempts=2, backoff=100, timeout=0.2)
    async def pairs(pair: Pair) -> int:
        if pair.left < 0:
            raise ValueError("negative")
        if pair.left == 0:
            await asyncio.Event().wait()
        return pair.left

    @app.handler("echo")
    async def echo(payload: object) -> None:
        await app.publish("echo", payload)

    async with Sandbox(app, database) as sandbox:
        yield sandbox
    assert app.dsn == "postgresql://nowhere.invalid/x"


async def test_published_finds_by_payload_and_fields(sandbox: Sandbox) -> None:
    publish = sandbox.app.publish
    first = await publish("pairs", Pair(left=1, right="a"), priority=3)
    second = await publish("pairs", {"left": 1, "right": "b"}, dedup_key="k")
    cases: list[tuple[Any, dict[str, Any], list[int]]] = [
        (Pair(left=1, right="a"), {}, [first]),
        ({"left": 1, "right": ANY}, {}, [first, second]),
        (ANY, {"dedup_key": "k"}, [second]),
        (ANY, {"priority": 3}, [first]),
        ({"left": 2, "right": "a"}, {}, []),
    ]
    for payload, fields, expected in cases:
        found = await sandbox.published("pairs", payload, times=len(expected), **fields)
        assert [message.id for message in found] == expected
    assert len(await sandbox.published("pairs", times=None)) == 2
    await sandbox.drain()
    await sandbox.published("pairs", times=2)


async def test_a_missing_message_is_reported_with_the_published_ones(sandbox: Sandbox) -> None:
    await sandbox.app.publish("pairs", {"left": 1, "right": "a"})
    with pytest.raises(AssertionError) as error:
        await sandbox.published("pairs", {"left": 2}, priority=1)
    text = str(error.value)
    assert "no messages {'left': 2}, priority 1 in queue 'pairs', expected 1" in text
    assert '"right": "a"' in text
    with pytest.raises(AssertionError, match="expected some; published were:\n  nothing"):
        await sandbox.published("echo", times=None)


async def test_drain_raises_the_reason_of_a_failed_message(sandbox: Sandbox) -> None:
    await sandbox.app.publish("pairs", {"left": -1, "right": "a"})
    with pytest.raises(AssertionError, match="did not succeed: ValueError: negative"):
        await sandbox.drain("pairs")
    await sandbox.app.publish("pairs", "text")
    with pytest.raises(AssertionError, match="the payload is not valid"):
        await sandbox.drain("pairs")


async def test_a_handler_past_its_timeout_is_stopped(sandbox: Sandbox) -> None:
    await sandbox.app.publish("pairs", {"left": 0, "right": "a"})
    with pytest.raises(AssertionError, match="took longer than its timeout"):
        await sandbox.drain()


async def test_retries_wait_for_advance(sandbox: Sandbox) -> None:
    await sandbox.app.publish("pairs", {"left": -1, "right": "a"})
    assert await sandbox.drain(check=False) == []
    assert await sandbox.drain(check=False) == []
    await sandbox.advance(timedelta(seconds=101))
    (failed,) = await sandbox.drain(check=False)
    assert (failed.status, failed.attempts) == ("failed", 2)


async def test_advance_expires_locks(sandbox: Sandbox, connection: Connection) -> None:
    await sandbox.app.publish("pairs", {"left": 1, "right": "a"})
    await connection.fetch("select * from messages.claim()")
    assert await sandbox.drain() == []
    await sandbox.advance(61)
    await sandbox.advance(101)  # the backoff of its second attempt
    (done,) = await sandbox.drain()
    assert (done.status, done.attempts) == ("success", 2)


async def test_handlers_that_publish_endlessly_are_stopped(sandbox: Sandbox) -> None:
    await sandbox.app.publish("echo", 1)
    with pytest.raises(AssertionError, match="more than 20 messages"):
        await sandbox.drain(most=20)


def test_the_page_on_testing_shows_the_sample_project() -> None:
    shown = blocks(ROOT / "docs/guides/testing.md", "py")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "workers/shop").glob("*.py")]
    assert len(shown) == 4
    assert [block for block in shown if not any(block.text in text for text in sources)] == []


def test_the_sample_project_passes_with_a_server_of_its_own_and_with_a_given_one(
    server: str,
) -> None:
    for options in ([], [f"--notifyq-dsn={server}"]):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=ROOT / "workers/shop",
            env={name: text for name, text in os.environ.items() if "NOTIFYQ" not in name}
            | {"PYTHONPATH": str(ROOT / "workers/shop")},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 passed" in done.stdout


async def test_attempts_end_as_in_a_worker(database: str) -> None:
    app = App("postgresql://nowhere.invalid/x")

    @app.handler("q", max_attempts=3, backoff={KeyError: wait_fixed(60), OSError: None})
    async def handle(kind: str, message: Message) -> str:
        if message.attempts == 1:
            raise KeyError("x") if kind == "key" else OSError("y")
        return "done"

    async with Sandbox(app, database) as sandbox:
        # With another policy: that of the handler holds.
        await app.admin.alter_queue("q", Policy(max_attempts=1))
        first = await app.publish("q", "key")
        second = await app.publish("q", "os")
        (dead,) = await sandbox.drain(check=False)
        assert (dead.id, dead.status, dead.attempts) == (second, "failed", 1)
        (attempt,) = await app.archive.attempts(first)
        assert attempt.retry_at is not None
        assert (attempt.retry_at - attempt.ended_at).total_seconds() == pytest.approx(60, abs=1)
        assert attempt.error_type == "KeyError"
        await sandbox.advance(59)
        assert await sandbox.drain() == []
        await sandbox.advance(2)
        (done,) = await sandbox.drain()
        assert (done.id, done.status, done.attempts) == (first, "success", 2)


async def test_each_sandbox_of_an_app_has_its_own_database(
    database: str, empty_database: str
) -> None:
    async with session(empty_database) as admin:
        await install(admin)
    app = App(check_payloads=True)
    echo = app.handler("echo")(lambda payload: payload)
    for dsn in (database, empty_database, database):
        async with Sandbox(app, dsn) as sandbox:
            sent = await app.publish("echo", 7)
            [done] = await sandbox.drain()
            assert done.result == "7"
            assert await app.result(sent) == 7
            name = await app.database.value("select current_database()")
            assert name == dsn.rpartition("/")[2].partition("?")[0]
    assert app.dsn is None
    assert echo.queue == "echo"


async def test_drain_handles_batches_transactions_and_results(
    database: str, connection: Connection
) -> None:
    app = App("postgresql://nowhere.invalid/x")
    await connection.execute("create table public.accounts (entry int)")
    calls: list[list[int]] = []

    @app.handler("many", batch=3)
    async def many(numbers: list[int]) -> list[int | Reject]:
        calls.append(numbers)
        return [number * 2 if number else Reject("nothing") for number in numbers]

    @app.handler("accounts", transactional=True)
    async def enter(number: int, transaction: Transaction) -> str:
        await transaction.execute("insert into public.accounts values ($1)", number)
        if number < 0:
            raise ValueError("negative")
        return f"entry {number}"

    async with Sandbox(app, database) as sandbox:
        handles = await many.publish_many([1, 2, 3, 4])
        entry = await enter.publish(5)
        await sandbox.drain()
        assert calls == [[1, 2, 3], [4]]
        assert [await handle.result() for handle in handles] == [2, 4, 6, 8]
        assert await entry.result() == "entry 5"

        await many.publish(0)
        await enter.publish(-1)
        with pytest.raises(AssertionError, match="nothing"):
            await sandbox.drain("many")
        (failed,) = await sandbox.drain(check=False)
        assert failed.status == "failed"
    assert [row[0] for row in await connection.fetch("select entry from public.accounts")] == [5]


async def test_subscribers_are_drained_with_handlers(database: str) -> None:
    app = App()
    seen: list[int] = []

    @app.handler("letters")
    async def write(n: int) -> None:
        seen.append(n)

    @app.subscriber("orders", "mail", max_attempts=2, backoff=60)
    async def confirm(order: dict[str, int], event: Event) -> None:
        if order["n"] == 2 and event.attempts == 1:
            raise ValueError("not now")
        await write.publish(order["n"])

    async with Sandbox(app, database) as sandbox:
        await app.publish("orders", {"n": 1}, key="k")
        done = await sandbox.drain()
        assert [message.queue for message in done] == ["letters"]
        (event,) = await sandbox.published("orders", {"n": 1}, key="k")
        assert isinstance(event, Event)
        with pytest.raises(AssertionError, match=r"no messages {'n': 3} in queue 'orders'"):
            await sandbox.published(confirm, {"n": 3})
        await confirm.publish({"n": 2})
        with pytest.raises(AssertionError, match=r"'mail' of stream 'orders' .* not now"):
            await sandbox.drain()
        assert await sandbox.drain(confirm) == []
        await sandbox.advance(60)
        await sandbox.drain()
    assert seen == [1, 2]


async def test_what_nobody_has_claimed_in_time_expires(database: str) -> None:
    app = App()
    called: list[int] = []

    @app.handler("offers")
    async def offer(number: int) -> None:
        called.append(number)

    async with Sandbox(app, database) as sandbox:
        first = await offer.publish(1, delay=60, expires_in=300)
        second = await offer.publish(2, delay=60, expires_in=30000)
        await sandbox.drain()
        await sandbox.advance(301)
        await sandbox.drain()
        assert called == [2]
        ends = [await app.archive.find(it) for it in (first, second)]
        assert [(it.status, it.details) for it in ends] == [  # type: ignore[union-attr]
            ("rejected", "expired"),
            ("success", None),
        ]
