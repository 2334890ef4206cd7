"""Encrypted work leaves no plain text: not in a table, a dump, the log, WAL or any other file."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import notifyq
from notifyq import App, InvalidArgumentError, Policy, StreamPolicy
from notifyq.database.encryption.envelopes import Keys
from notifyq.server import Server
from security.conftest import Enter
from support.database import Connection, session, until
from support.running import working

KEYS = {"k1": os.urandom(32)}
SECRET = "4711-4712-4713-4714"
PLAIN = "0815-0816-0817-0818"
"""In a queue that is not encrypted: the search finds what is there."""


async def work(dsn: str) -> None:
    """Use all that is encrypted, with success and with failure."""
    async with App(dsn, encryption=KEYS) as app:
        policy = Policy(encrypted=True, max_attempts=2, backoff=0)

        @app.handler("secret", policy=policy)
        async def pay(payload: Any, steps: notifyq.Steps) -> Any:
            await steps.run("charge", str, payload)
            await notifyq.emit(payload)
            await notifyq.progress(0.5, str(payload))
            answer = await steps.wait_for("answer", signal="answer")
            if answer["fail"]:
                raise ValueError(f"{payload}: {answer}")
            return payload

        @app.handler("unlogged", policy=Policy(encrypted=True, durable=False))
        async def fail(payload: Any) -> None:
            raise notifyq.Reject(f"no {payload}")

        @app.subscriber("safe", "reader", policy=StreamPolicy(encrypted=True), position="start")
        async def read(payload: Any) -> None:
            raise ValueError(payload)

        await app.create()
        handles = await app.publish_many("secret", [{"card": SECRET}] * 2)
        unlogged = await app.publish("unlogged", SECRET)
        await app.publish("safe", SECRET)
        await app.publish("default", PLAIN)
        async with working(app, maintenance=1):
            for handle, fail_it in zip(handles, (False, True), strict=True):
                await handle.signal("answer", {"fail": fail_it, "card": SECRET})
            assert await handles[0].result(timeout=30) == {"card": SECRET}
            for dead in (handles[1], unlogged):
                with pytest.raises(notifyq.DeadMessageError, match=SECRET):
                    await dead.result(timeout=30)
            await until(lambda: app.archive.attempts(handles[1]), "its attempts are there")
    async with App(dsn) as keyless:
        for name in ("secret", "safe"):
            with pytest.raises(InvalidArgumentError):
                await keyless.publish(name, SECRET)
            with pytest.raises(InvalidArgumentError):
                await keyless.publish_many(name, [SECRET])


def files_with(folder: Path, text: str) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]


async def test_no_file_of_the_server_has_plain_text(mortal_server: Server) -> None:
    dsn = mortal_server.dsn
    async with session(dsn) as connection:
        # Errors name their statements: those of refused publishers are in the log.
        await connection.execute("alter system set log_min_error_statement = 'error'")
        await connection.execute("alter system set wal_compression = off")
        await connection.execute("select pg_reload_conf()")
        await work(dsn)
        await connection.execute("checkpoint")
        folder = Path(await connection.fetchval("show data_directory")).parent
        tables = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) from pg_tables"
        )
        for (name,) in tables:
            rows = await connection.fetch(f"select t::text from {name} as t")
            assert not [row for row in rows if SECRET in row[0]], name
    dump = await asyncio.to_thread(_dump, mortal_server, dsn)
    assert SECRET not in dump
    assert PLAIN in dump or not dump
    await asyncio.to_thread(mortal_server.stop)
    assert files_with(folder, PLAIN) != []
    assert files_with(folder, SECRET) == []


def _dump(server: Server, dsn: str) -> str:
    program = server.binaries / "pg_dump"
    if not program.exists():
        return ""
    done = subprocess.run([program, "--inserts", dsn], capture_output=True, text=True, check=True)
    return done.stdout


async def test_a_publisher_cannot_make_plain_text_pass(
    enter: Enter, connection: Connection
) -> None:
    """Whatever it sets and calls: the checks run with the rights of the owner."""
    await connection.execute("select messages.create_queue('secret', encrypted => true)")
    mallory = await enter("publisher")
    for statement in (
        "set session_replication_role = replica",
        "alter table messages.message disable trigger payload",
        "update messages.queue set encrypted = false",
        "select messages.alter_queue('secret', encrypted => false)",
        "create or replace function notifyq.is_envelope(jsonb, text, text) returns boolean "
        "language sql as 'select true'",
        "select notifyq.replace_sealed('messages', 'message', 'message', '[]')",
        "select notifyq.sealed_texts('messages', 'message', 'message', 0, 1)",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await mallory.execute(statement)
    await mallory.execute("set search_path = pg_temp, messages, notifyq")
    with pytest.raises(InvalidArgumentError, match="takes no payload"):
        await mallory.execute(
            "insert into messages.message (queue, message) values ('secret', '1')"
        )


async def test_one_who_knows_no_key_learns_and_forges_nothing(
    database: str, connection: Connection
) -> None:
    """A superuser can move and copy envelopes, and none of what it makes is taken for genuine."""
    keys, forger = Keys(KEYS), Keys({"k1": os.urandom(32)})
    called: list[Any] = []
    async with App(database, encryption=KEYS) as app:

        @app.handler("secret", policy=Policy(encrypted=True))
        async def pay(payload: Any) -> Any:
            called.append(payload)
            return payload

        await app.create()
        await app.admin.create_queue("other", Policy(encrypted=True))
        result = keys.encrypt("secret", "result", '{"pay": "mallory"}')
        foreign = keys.encrypt("other", "payload", '{"pay": "mallory"}')
        forged = forger.encrypt("secret", "payload", '{"pay": "mallory"}')
        await connection.execute("set session_replication_role = replica")
        for text in (
            forged,
            foreign,
            foreign.replace('"other"', '"secret"'),
            result,
            result.replace('"result"', '"payload"'),
            keys.encrypt("secret", "details", "x", "ValueError").replace('"details"', '"payload"'),
        ):
            await connection.execute(
                "insert into messages.message (queue, message) values ('secret', $1::text::jsonb)",
                text,
            )
        await connection.execute("set session_replication_role = origin")
        genuine = await app.publish("secret", {"pay": "ann"})
        async with working(app):
            assert await genuine.result(timeout=20) == {"pay": "ann"}
            await until(lambda: _has_dead(app, 6), "the others have failed")
    assert called == [{"pay": "ann"}]


async def _has_dead(app: App, count: int) -> bool:
    return await app.archive.dead_count("secret") == count


def test_no_error_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
    keys = Keys({"k1": key})
    envelope = keys.encrypt("q", "payload", SECRET)
    with pytest.raises(notifyq.DecryptionError) as raised:
        Keys({"k1": b"x" * 32}).decrypt("q", "payload", envelope)
    assert SECRET not in str(raised.value)
    for shown in (repr(keys), str(keys), str(raised.value), str(vars(raised.value))):
        assert "kkkk" not in shown


def test_equal_texts_have_different_envelopes() -> None:
    keys = Keys(KEYS)
    made = [keys.encrypt("q", "payload", SECRET) for _ in range(100)]
    assert len(set(made)) == 100
    assert {keys.decrypt("q", "payload", it) for it in made} == {SECRET}
