"""Rekey: what older keys have encrypted is encrypted again, in steps that may be cut anywhere."""

from __future__ import annotations

import json
import logging
import re
from datetime import timedelta
from typing import Any

import pytest

import notifyq
from notifyq import App, InvalidArgumentError, MissingKeyError, Policy, StreamPolicy
from notifyq.archive import rekey
from notifyq.database.encryption.envelopes import Keys
from notifyq.models.payload import SEALED
from support.database import Connection, until
from support.running import working

OLD = {"k1": b"1" * 32}
NEW = {"k2": b"2" * 32, **OLD}
SECRET = Policy(encrypted=True, max_attempts=2, backoff=0)

log = logging.getLogger("shop")


@pytest.fixture
async def filled(database: str, connection: Connection) -> dict[str, int]:
    """Give ids of messages with all that is encrypted by the old key."""
    async with App(database, encryption=OLD, capture_logs="INFO") as app:

        @app.handler("fails", policy=SECRET)
        async def fail(payload: Any) -> None:
            log.info("it begins like an envelope: %s", SEALED)
            raise ValueError(payload)

        @app.handler("works", policy=SECRET)
        async def work(payload: Any, steps: notifyq.Steps) -> Any:
            child = await steps.publish("child", "fails" if payload == "parent" else "done", 1)
            await notifyq.emit(payload)
            await steps.wait_for("go", signal="go")
            await steps.results("children", [child])
            return payload

        @app.handler("done", policy=SECRET)
        async def done(payload: Any) -> Any:
            return payload

        await app.create()
        await app.admin.create_queue("later", SECRET)
        await app.streams.create("orders", StreamPolicy(encrypted=True))
        reader = app.subscription("orders", "reader")
        await app.streams.subscribe("orders", "reader", "start")
        await app.publish("orders", "again")
        batch = await reader.next_batch()
        assert batch is not None
        [event] = batch.events
        await batch.retry(event, timedelta(0), "why")
        await batch.finish()
        await app.publish("orders", "new")
        failed = await app.publish("fails", "failed")
        worked = await app.publish("works", "worked")
        parked = await app.publish("works", "parked")
        live = await app.publish("later", "live")
        await app.publish("default", {"$encrypted": "an example", "key": "k1"})
        async with working(app):
            await worked.signal("go", "go")
            await worked.result(timeout=20)

            async def is_parked() -> bool:
                return len(await app.archive.parked("works")) == 1

            await until(is_parked, "one is parked")
            await until(lambda: app.archive.dead_count("fails"), "one has failed")
            await parked.signal("another", "not received")
    return {"failed": failed, "worked": worked, "parked": parked, "live": live}


async def keys_in(connection: Connection) -> set[str]:
    found: set[str] = set()
    tables = await connection.fetch(
        "select format('%I.%I', schemaname, tablename) from pg_tables "
        "where schemaname in ('messages', 'notifyq')"
    )
    for (table,) in tables:
        rows = await connection.fetch(f"select t::text from {table} as t")
        for (row,) in rows:
            if "nonce" in row:
                found |= set(re.findall(r"key\W+(k\d)\W", row))
    return found


async def run(app: App, queue: str | None = None, stop_after: int = 10**6) -> tuple[int, int]:
    assert app.database.keys is not None
    found = done = 0
    async for step in rekey.steps(app.database, app.database.keys, queue):
        if step.texts:
            if stop_after <= 0:
                break
            stop_after -= 1
            found += len(step.texts)
            done += await rekey.write(app.database, step)
    return found, done


async def test_everything_gets_the_current_key(
    database: str, connection: Connection, filled: dict[str, int]
) -> None:
    assert await keys_in(connection) == {"k1"}
    async with App(database, encryption=NEW) as app:
        found, done = await run(app)
        assert found == done > 10
        assert await keys_in(connection) == {"k2"}
        assert await run(app) == (0, 0)
    async with App(database, encryption={"k2": b"2" * 32}) as app:
        for name in ("failed", "worked", "live", "parked"):
            message = await app.archive.find(filled[name])
            assert message is not None
            assert message.payload() == name
        records = await app.archive.logs(filled["failed"])
        assert [it.text for it in records] == [f"it begins like an envelope: {SEALED}"] * 2
        [attempt, _] = await app.archive.attempts(filled["failed"])
        assert (attempt.details, attempt.error_type) == ("failed", "ValueError")
        steps = {it.name: it.value for it in await app.archive.steps(filled["worked"])}
        assert json.loads(str(steps["go"])) == "go"
        assert '"result": 1' in str(steps["children"])
        seen = []
        while batch := await app.subscription("orders", "reader").next_batch():
            seen += [it.payload() for it in batch.events]
            await batch.finish()
        assert sorted(seen) == ["again", "new"]
        plain = await connection.fetchval(
            "select message from messages.message where queue = 'default'"
        )
        assert plain == {"$encrypted": "an example", "key": "k1"}


async def test_a_run_that_was_cut_goes_on(
    database: str, connection: Connection, filled: dict[str, int]
) -> None:
    async with App(database, encryption=NEW) as app:
        total = 0
        for _ in range(50):
            found, done = await run(app, stop_after=1)
            assert found == done
            total += done
            # Everything is readable at each moment.
            for name, number in filled.items():
                message = await app.archive.find(number)
                assert message is not None
                assert message.payload() == name
            if not found:
                break
        assert total > 10
    assert await keys_in(connection) == {"k2"}


async def test_a_queue_alone(database: str, connection: Connection, filled: dict[str, int]) -> None:
    async with App(database, encryption=NEW) as app:
        assert await run(app, "later") == (1, 1)
    assert await keys_in(connection) == {"k1", "k2"}
    row = await connection.fetchval(
        "select message #>> '{$encrypted,key}' from messages.message where queue = 'later'"
    )
    assert row == "k2"


async def test_a_row_that_has_changed_is_left(
    database: str, connection: Connection, filled: dict[str, int]
) -> None:
    async with App(database, encryption=NEW) as app:
        assert app.database.keys is not None
        async for step in rekey.steps(app.database, app.database.keys, "later"):
            if step.texts:
                assert await app.archive.amend(filled["live"], payload="amended")
                assert await rekey.write(app.database, step) == 0
        message = await app.archive.find(filled["live"])
        assert message is not None
        assert message.payload() == "amended"


async def test_an_envelope_is_replaced_by_one_for_the_same_use_only(
    database: str, connection: Connection, filled: dict[str, int]
) -> None:
    keys = Keys(OLD)
    old = await connection.fetchval(
        "select message::text from messages.message where queue = 'later'"
    )
    row = await connection.fetchval("select ctid::text from messages.message where queue = 'later'")
    for wrong in ('{"plain": 1}', keys.encrypt("done", "payload", "1"), old[:-1] + ', "a": 1}'):
        texts = json.dumps([{"row": row, "old": old, "new": wrong}])
        column = ("messages", "message", "message")
        assert await connection.fetchval(rekey.REPLACE_SEALED, *column, texts) == 0


async def test_only_columns_with_envelopes_are_read(connection: Connection) -> None:
    for column in (("messages", "queue", "name"), ("messages", "message", "headers"), ("pg_catalog",
        "pg_authid", "rolpassword")):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="has no envelopes"):
            await connection.execute(rekey.SEALED_TEXTS, *column, 0, 1)
        with pytest.raises(InvalidArgumentError, match="has no envelopes"):
            await connection.execute(rekey.REPLACE_SEALED, *column, "[]")


async def test_a_missing_key_stops_it(
    database: str, connection: Connection, filled: dict[str, int]
) -> None:
    async with App(database, encryption={"k2": b"2" * 32}) as app:
        with pytest.raises(MissingKeyError, match="k1"):
            await run(app)
    assert await keys_in(connection) == {"k1"}
