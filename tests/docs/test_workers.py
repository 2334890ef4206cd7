"""The examples in workers: they use public names only, are short, and do what they say."""

from __future__ import annotations

import ast
import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import notifyq
from notifyq.telemetry import ListenerConnected, TelemetryEvent
from support.database import ROOT, Connection, until, value

WORKERS = sorted((ROOT / "workers").glob("*.py"))


@pytest.mark.parametrize("path", WORKERS, ids=lambda path: path.stem)
def test_it_is_short_and_uses_public_names_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 60
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.startswith("notifyq.")]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("notifyq"):
            assert node.module == "notifyq"
            assert {alias.name for alias in node.names} <= set(notifyq.__all__)


@pytest.fixture
async def load(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Give a function that imports an example, with the database of the test as its own."""
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    monkeypatch.syspath_prepend(str(ROOT / "workers"))
    loaded: list[ModuleType] = []

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        loaded.append(importlib.import_module(name))
        return loaded[-1]

    yield load
    for module in loaded:
        await module.app.close()
        del sys.modules[module.__name__]


async def work(app: notifyq.App) -> None:
    """Run a worker of the app until nothing is live."""
    listening = asyncio.Event()

    def telemetry(event: TelemetryEvent) -> None:
        if isinstance(event, ListenerConnected):
            listening.set()

    worker = app.worker(telemetry=telemetry)
    working = asyncio.create_task(app.work(worker))
    async with asyncio.timeout(10):
        await listening.wait()

    async def is_done() -> bool:
        return not await app.archive.live()

    await until(is_done, "all messages are finished")
    worker.stop()
    await working


async def finished(connection: Connection, id_: int) -> tuple[str, Any, str | None]:
    row = await connection.fetchrow("select * from messages.archive_find($1)", id_)
    assert row is not None
    return row["status"], row["result"], row["details"]


async def test_echo_returns_or_rejects(load: Any, connection: Connection) -> None:
    echo = load("echo")
    ids = await echo.app.publish_many(
        "default", [{"hello": "world"}, ["hello"], {"reject": "only a test"}]
    )
    await work(echo.app)
    assert [await finished(connection, id_) for id_ in ids] == [
        ("success", {"hello": "world"}, None),
        ("success", ["hello"], None),
        ("rejected", None, "only a test"),
    ]


async def test_words_counts_and_rejects_what_has_no_text(load: Any, connection: Connection) -> None:
    words = load("words")
    await words.app.create_queues()
    good = await words.count_words.publish({"text": "To be or not to be", "most": 2})
    bad = await words.app.publish(words.count_words.queue, {"txet": "to be"})
    await work(words.app)
    status, result, _ = await finished(connection, good)
    assert (status, result) == ("success", {"total": 6, "frequent": {"to": 2, "be": 2}})
    status, _, details = await finished(connection, bad)
    assert status == "rejected"
    assert "text" in (details or "")


async def test_prices_compares_all_shops_and_keeps_the_best_offer(
    load: Any, connection: Connection
) -> None:
    prices = load("prices")
    app = prices.app
    await app.create_queues()
    await app.create_schedules()
    requested = await app.publish("prices", "south", key="south", dedup_key="south")
    compared = await app.schedules.run("compare")
    await work(app)
    status, callback, _ = await finished(connection, compared)
    assert status == "success"
    status, offer, _ = await finished(connection, callback)
    assert (status, offer) == ("success", {"shop": "south", "price": 8.0})
    by_shop = {it.payload(): it for it in await app.archive.finished("prices")}
    assert {shop: it.status for shop, it in by_shop.items()} == {
        "north": "success",
        "south": "success",
        "east": "rejected",
    }
    assert (by_shop["south"].id, by_shop["south"].attempts) == (requested, 2)
    assert "east does not have it" in by_shop["east"].details
    (queue,) = await app.admin.queue_info("prices")
    assert (queue["ordered"], queue["concurrency"]) == (True, 20)


async def test_prices_waits_for_the_best_offer_of_today(load: Any) -> None:
    prices = load("prices")
    worker = notifyq.App(prices.app.dsn)
    worker.registry = prices.app.registry
    await worker.create_queues()
    running = worker.worker()
    working = asyncio.create_task(worker.work(running))
    assert (await prices.today()).shop == "south"
    running.stop()
    await working


async def fail(connection: Connection, status: str) -> int:
    id_ = await value(connection, "publish", queue="default", message={})
    await connection.execute(
        "select messages.finish(c.id, c.lock_token, $2::text::messages.message_status) "
        "from messages.claim_id($1) as c",
        id_,
        status,
    )
    return int(id_)


async def test_dead_letters_gives_a_crash_one_more_chance(
    load: Any, connection: Connection
) -> None:
    dead_letters = load("dead_letters")
    archive = dead_letters.app.archive
    seen = await archive.position()
    await fail(connection, "lock_expired")
    await fail(connection, "failed")
    seen, dead = await archive.dead_since(seen)
    for message in dead:
        await dead_letters.handle(message)
    [again] = await archive.live()
    assert dead_letters.last_chances == {again.id}
    await connection.execute(
        "select messages.finish(id, lock_token, 'lock_expired') from messages.claim()"
    )
    _, dead = await archive.dead_since(seen)
    for message in dead:
        await dead_letters.handle(message)
    assert not await archive.live()


async def test_dead_letters_follows_until_it_is_stopped(load: Any, connection: Connection) -> None:
    dead_letters = load("dead_letters")
    # It begins with messages that fail from now on, so its first poll must be over.
    following = asyncio.create_task(dead_letters.follow())
    try:

        async def has_retried() -> bool:
            await fail(connection, "lock_expired")
            return bool(dead_letters.last_chances)

        await until(has_retried, "a dead message is published again")
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
