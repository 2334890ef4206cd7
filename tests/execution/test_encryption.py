"""Encrypted queues and streams from end to end: what the database has, and what programs see."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

import notifyq
from execution import in_processes
from notifyq import (
    App,
    ConfigurationError,
    DecryptionError,
    InvalidArgumentError,
    Message,
    MessageFailedError,
    MessageRejectedError,
    MissingKeyError,
    Policy,
    Steps,
    StreamPolicy,
    Transaction,
    within,
)
from notifyq.database.encryption import sealing
from notifyq.database.encryption.envelopes import environment_keys
from notifyq.models.payload import is_sealed
from notifyq.streams.subscription import Batch
from support.database import Connection, until
from support.running import working

KEYS = {"k1": b"1" * 32}
SECRET = Policy(encrypted=True, max_attempts=2, backoff=0)
NUMBER = "4711-4712-4713"
"""What may stand nowhere."""


class Card(BaseModel):
    number: str


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    async with App(database, encryption=KEYS) as app:
        yield app


async def traces(connection: Connection, number: str = NUMBER) -> list[str]:
    """The tables of ours in which a text stands."""
    tables = await connection.fetch(
        "select format('%I.%I', schemaname, tablename) from pg_tables "
        "where schemaname in ('messages', 'notifyq', 'public')"
    )
    return [
        name
        for (name,) in tables
        if await connection.fetchval(
            f"select exists (select from {name} as t where t::text like $1)", f"%{number}%"
        )
    ]


async def test_payload_and_result_are_readable_here_only(app: App, connection: Connection) -> None:
    seen: list[Any] = []

    @app.handler("secret", policy=SECRET)
    async def pay(card: Card, message: Message) -> Card:
        seen.append((card, message.payload(), message.is_encrypted))
        return card

    await app.create()
    handle = await pay.publish(Card(number=NUMBER))
    many = await app.publish_many("secret", [{"number": NUMBER}] * 2)
    async with working(app):
        assert await handle.result(timeout=20) == Card(number=NUMBER)
        assert [await it.result(timeout=20) for it in many] == [{"number": NUMBER}] * 2
    assert seen[0] == (Card(number=NUMBER), {"number": NUMBER}, True)
    found = await app.archive.find(handle)
    assert found is not None
    assert found.payload() == {"number": NUMBER}
    assert await traces(connection) == []


@pytest.mark.parametrize("kind", ["transaction", "batch", "sync"])
async def test_each_kind_of_handler(app: App, connection: Connection, kind: str) -> None:
    if kind == "transaction":

        @app.handler("secret", policy=SECRET, transactional=True)
        async def pay(card: Card, tx: Transaction) -> Card:
            return card

    elif kind == "batch":

        @app.handler("secret", policy=SECRET, batch=10)
        async def pay_many(cards: list[Card]) -> list[Card]:
            return cards

    else:

        @app.handler("secret", policy=SECRET)
        def pay_now(card: Card) -> Card:
            return card

    await app.create()
    handle = await app.publish("secret", Card(number=NUMBER))
    async with working(app):
        assert await handle.result(timeout=20) == {"number": NUMBER}
    assert await traces(connection) == []


async def test_a_handler_in_a_process_needs_no_keys(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = in_processes.app
    app.dsn = database
    monkeypatch.setattr(app, "_encryption", KEYS)
    await app.admin.create_queue("squares", SECRET)
    handles = [await in_processes.square.publish(number) for number in (3, 13)]
    async with working(app, queues=["squares"]):
        assert (await handles[0].result(timeout=20))[0] == 9
        with pytest.raises(MessageFailedError, match="thirteen"):
            await handles[1].result(timeout=20)
    await app.close()
    app.dsn = None
    assert await traces(connection, "thirteen") == []


async def test_errors_are_readable_here_only(app: App, connection: Connection) -> None:
    @app.handler("secret", policy=SECRET)
    async def pay(card: Card) -> None:
        raise ValueError(f"card {card.number} is blocked" * 1000)

    @app.handler("strict", policy=Policy(encrypted=True))
    async def refuse(card: Card) -> None:
        raise notifyq.Reject(f"no {card.number}")

    await app.create()
    failed = await pay.publish(Card(number=NUMBER))
    rejected = await refuse.publish(Card(number=NUMBER))
    async with working(app):
        with pytest.raises(MessageFailedError, match=NUMBER):
            await failed.result(timeout=20)
        with pytest.raises(MessageRejectedError, match=NUMBER):
            await rejected.result(timeout=20)
    attempts = await app.archive.attempts(failed)
    assert [it.number for it in attempts] == [1, 2]
    for it in attempts:
        assert it.error_type == "ValueError"
        assert NUMBER in (it.details or "")
        assert "raise ValueError" in (it.traceback or "")
    [dead] = await app.archive.dead("strict")
    assert dead.details == f"no {NUMBER}"
    assert await traces(connection) == []
    # The envelope stays the one of its queue: it can be published again.
    again = await app.archive.dead_retry([failed])
    assert (await connection.fetchval("select count(*) from messages.message")) == len(again)


async def test_steps_signals_output_and_notes(app: App, connection: Connection) -> None:
    async def charge(number: str) -> str:
        return f"charged {number}"

    class DeclinedError(Exception):
        pass

    async def decline(number: str) -> None:
        raise DeclinedError(number)

    @app.handler("secret", policy=SECRET)
    async def pay(card: Card, steps: notifyq.Steps) -> list[Any]:
        receipt = await steps.run("charge", charge, card.number)
        async with steps.transaction("note"):
            pass
        with suppress(notifyq.StepFailedError):
            await steps.run("decline", decline, card.number, errors=(DeclinedError,))
        await notifyq.emit({"number": card.number})
        await notifyq.progress(0.5, f"card {card.number}")
        child = await steps.publish("child", "other", {"number": card.number})
        answer = await steps.wait_for("answer", signal="answer")
        several = await steps.wait_for("more", signal=["a", "more"])
        return [receipt, answer, several.payload, await steps.result("done", child)]

    @app.handler("other", policy=SECRET)
    async def other(card: Card) -> str:
        return f"saw {card.number}"

    await app.create()
    handle = await pay.publish(Card(number=NUMBER))
    async with working(app):

        async def is_parked() -> bool:
            return bool(await app.archive.parked("secret"))

        await until(is_parked, "it waits for the signal")
        assert [it.value async for it in _first(handle.output())] == [{"number": NUMBER}]
        note = await connection.fetchval("select note from messages.progress($1)", handle)
        assert note is None or note.startswith('{"$encrypted": {')
        await handle.signal("answer", {"number": NUMBER})
        await handle.signal("more", NUMBER)
        assert await handle.result(timeout=20) == [
            f"charged {NUMBER}", {"number": NUMBER}, NUMBER, f"saw {NUMBER}"
        ]  # fmt: skip
    recorded = {it.name: it for it in await app.archive.steps(handle)}
    assert recorded["charge"].value == f'"charged {NUMBER}"'
    assert recorded["decline"].state == "failed"
    assert f'"{NUMBER}"' in str(recorded["more"].value)
    assert await traces(connection) == []


async def _first(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for chunk in chunks:
        yield chunk
        return


async def test_an_encrypted_stream(app: App, connection: Connection) -> None:
    seen: list[Any] = []

    @app.subscriber(
        "safe", "reader", policy=StreamPolicy(encrypted=True), position="start",
        max_attempts=1,
    )  # fmt: skip
    async def read(card: Card) -> None:
        seen.append(card.number)
        if card.number.endswith("bad"):
            raise ValueError(card.number)

    await app.create()
    await app.publish_many("safe", [{"number": NUMBER}, {"number": f"{NUMBER} bad"}])
    async with working(app):
        await until(lambda: len(seen) == 2, "both were read")

        async def is_dead() -> bool:
            return bool(await app.archive.dead("safe"))

        await until(is_dead, "one has failed")
    [dead] = await app.archive.dead("safe")
    assert (dead.payload(), NUMBER in str(dead.details)) == ({"number": f"{NUMBER} bad"}, True)
    await app.streams.subscribe("safe", "loop", "start")
    batch = await app.subscription("safe", "loop").next_batch()
    assert isinstance(batch, Batch)
    assert [event.payload()["number"] for event in batch.events] == [NUMBER, f"{NUMBER} bad"]
    assert await traces(connection) == []


async def test_an_inbox(app: App, connection: Connection) -> None:
    await app.admin.create_queue("secret", SECRET)
    handle = await app.publish("secret", {"number": NUMBER})
    async with app.inbox() as inbox:
        message = await inbox.wait(["secret"], timeout=20)
        assert message is not None
        assert message.payload() == {"number": NUMBER}
        await inbox.finish(message, NUMBER)
    assert await handle.result(timeout=20) == NUMBER
    assert await traces(connection) == []


async def test_within_encrypts_with_keys_of_the_environment(
    app: App, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncpg

    await app.admin.create_queue("secret", SECRET)
    monkeypatch.setenv("NOTIFYQ_KEYS", "k1:" + "MTEx" * 10 + "MTE=")
    monkeypatch.setattr(within, "_publisher", within._Within)
    session = await asyncpg.connect(database)
    try:
        number = await within.publish(session, "secret", {"number": NUMBER})
        await within.publish(session, "default", {"number": "plain"})
    finally:
        await session.close()
    found = await app.archive.find(number)
    assert found is not None
    assert found.payload() == {"number": NUMBER}
    assert await traces(connection) == []
    assert await traces(connection, "plain") != []


async def test_without_keys_nothing_is_published(database: str, connection: Connection) -> None:
    async with App(database) as app:
        await app.admin.create_queue("secret", SECRET)
        with pytest.raises(InvalidArgumentError, match="NOTIFYQ_KEYS"):
            await app.publish("secret", {"number": NUMBER})
    assert await traces(connection) == []


async def test_a_missing_key_loses_no_message(
    app: App, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sealing._missed.clear()
    await app.admin.create_queue("secret", SECRET)
    handles = await app.publish_many("secret", [{"number": NUMBER}] * 3)
    async with App(database, encryption={"another": b"2" * 32}) as stranger:
        called: list[Any] = []

        @stranger.handler("secret", policy=SECRET)
        async def pay(payload: Any) -> None:
            called.append(payload)

        async with working(stranger):

            async def are_put_back() -> bool:
                return bool(
                    await connection.fetchval(
                        "select count(*) from messages.message where state = 'scheduled' "
                        "and attempts = 0 and available_at < now() + interval '61 s'"
                    )
                    == 3
                )

            await until(are_put_back, "they wait for the key")
        assert called == []
        await connection.execute("select messages.run_now($1)", handles[1])
        async with stranger.inbox() as inbox:
            with pytest.raises(MissingKeyError, match="key 'k1' is missing"):
                await inbox.wait(["secret"], timeout=20)
        found = await stranger.archive.find(handles[2])
        assert found is not None
        with pytest.raises(DecryptionError, match="without its key"):
            found.payload()
    lines = [it.message for it in caplog.records if "key 'k1' is missing" in it.message]
    assert len(lines) == 1
    assert await connection.fetchval("select messages.run_now($1)", handles[0])

    @app.handler("secret", policy=SECRET)
    async def work(card: Card) -> str:
        return card.number

    async with working(app):
        assert await handles[0].result(timeout=20) == NUMBER


async def test_an_envelope_in_a_queue_that_is_not_encrypted_fails(database: str) -> None:
    """It does not wait for a key, as one of an encrypted queue does."""
    async with App(database) as app:

        @app.handler("plain")
        async def pay(payload: Any) -> None:
            raise AssertionError(payload)

        await app.create()
        for seal in ({}, {"key": "k1", "use": "payload", "queue": "secret"}):
            handle = await app.publish("plain", {"$encrypted": seal})
            async with working(app):
                with pytest.raises(MessageFailedError, match="encrypted as"):
                    await handle.result(timeout=20)


def _swapped(other: str) -> str:
    return (
        "update messages.message as m set message = o.message "
        f"from messages.message as o where m.queue = 'secret' and o.queue = '{other}'"
    )


@pytest.mark.parametrize(
    "change",
    [
        "update messages.message set message = jsonb_set(message, '{$encrypted,data}', "
        "to_jsonb(overlay(message #>> '{$encrypted,data}' placing 'AAAA' from 1 for 4))) "
        "where queue = 'secret'",
        _swapped("other"),
        # As above, with a claim to be of this queue.
        "update messages.message as m set message = jsonb_set(o.message, "
        "'{$encrypted,queue}', '\"secret\"') from messages.message as o "
        "where m.queue = 'secret' and o.queue = 'other'",
        "update messages.message set message = jsonb_set(message, '{$encrypted,nonce}', "
        "'\"AAAAAAAAAAAAAAAA\"') where queue = 'secret'",
        "update messages.message set message = jsonb_set(message, '{$encrypted,data}', '1') "
        "where queue = 'secret'",
        "update messages.message set message = '{\"$encrypted\": {}}' where queue = 'secret'",
    ],
    ids=["data", "swapped", "relabelled", "nonce", "number", "empty"],
)
async def test_a_changed_envelope_fails_alone(
    app: App, connection: Connection, change: str
) -> None:
    called: list[Any] = []

    @app.handler("secret", policy=SECRET)
    async def pay(payload: Any) -> None:
        called.append(payload)

    await app.create()
    await app.admin.create_queue("other", SECRET)
    await app.admin.pause_queue("other")
    bad = await app.publish("secret", {"number": NUMBER})
    await app.publish("other", {"number": "other"})
    await connection.execute(change)
    good = await app.publish("secret", {"number": "good"})
    async with working(app, queues=["secret"]):
        await good.result(timeout=20)
        with pytest.raises(MessageFailedError, match=r"decrypted|envelope|missing"):
            await bad.result(timeout=20)
    assert called == [{"number": "good"}]


async def test_the_first_key_encrypts_and_all_decrypt(
    app: App, database: str, connection: Connection
) -> None:
    await app.admin.create_queue("secret", SECRET)
    old = await app.publish("secret", 1)
    async with App(database, encryption={"k2": b"2" * 32, **KEYS}) as newer:
        new = await newer.publish("secret", 2)
        for number, payload in ((old, 1), (new, 2)):
            found = await newer.archive.find(number)
            assert found is not None
            assert found.payload() == payload
    keys = await connection.fetch(
        "select message #>> '{$encrypted,key}' from messages.message order by id"
    )
    assert [row[0] for row in keys] == ["k1", "k2"]


async def test_a_function_gives_keys_and_is_asked_for_unknown_ones(database: str) -> None:
    given = [KEYS, {"k2": b"2" * 32, **KEYS}]
    async with App(database, encryption=lambda: given[1]) as newer:
        await newer.admin.create_queue("secret", SECRET)
        number = await newer.publish("secret", NUMBER)
    asked: list[int] = []

    def source() -> dict[str, bytes]:
        asked.append(1)
        return given[min(len(asked), 2) - 1]

    async with App(database, encryption=source) as app:
        assert app.database.keys is not None
        app.database.keys._read_at = float("-inf")
        await app.publish("secret", 1)
        app.database.keys._read_at = float("-inf")
        found = await app.archive.find(number)
        assert found is not None
        assert found.payload() == NUMBER
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("k1", "key 1 of NOTIFYQ_KEYS"),
        ("k1:c2hvcnQ=", "key 1 of NOTIFYQ_KEYS"),
        ("k1:" + "MTEx" * 10 + "MTE=,k1:" + "MTEx" * 10 + "MTE=", "key 2 of NOTIFYQ_KEYS"),
        ("k 1:" + "MTEx" * 10 + "MTE=", "key 1 of NOTIFYQ_KEYS"),
        (",", "has no key"),
    ],
)
def test_keys_that_are_none(text: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFYQ_KEYS", text)
    with pytest.raises(ConfigurationError, match=error) as raised:
        environment_keys()
    assert "MTEx" not in str(raised.value)
    assert "c2hvcnQ" not in str(raised.value)


def test_a_file_of_keys(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("k1:" + "MTEx" * 10 + "MTE=\nk2:" + "MjIy" * 10 + "MjI=\n")
    file.chmod(0o644)
    monkeypatch.setenv("NOTIFYQ_KEYS_FILE", str(file))
    with pytest.raises(ConfigurationError, match="may be read by others"):
        environment_keys()
    file.chmod(0o600)
    keys = environment_keys()
    assert keys is not None
    assert keys.current == "k1"
    assert keys.decrypt("q", "payload", keys.encrypt("q", "payload", "1")) == "1"


def test_work_without_encryption_does_not_import_the_library() -> None:
    import subprocess
    import sys

    code = "import notifyq, sys; from notifyq import App, Steps, within; " + (
        "assert not any(it.startswith('cryptography') for it in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


async def test_no_statement_more_without_keys(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from notifyq.database.pool import Database

    sent: list[str] = []
    call = Database._call

    async def noted(self: Database, method: str, statement: str, *args: Any) -> Any:
        sent.append(statement)
        return await call(self, method, statement, *args)

    monkeypatch.setattr(Database, "_call", noted)
    async with App(database) as app:
        await app.publish("default", 1)
        await app.publish_many("default", [1, 2])
    assert len(sent) == 2


async def test_what_handlers_log_is_encrypted(database: str, connection: Connection) -> None:
    """One record has all that a call has logged, and another client may not keep plain text."""
    async with App(database, encryption=KEYS, capture_logs="INFO") as app:

        async def pay(card: Card) -> None:
            logging.getLogger("shop").warning("paid with %s", card.number)

        app.handler("plain")(pay)
        app.handler("secret", policy=SECRET)(pay)
        await app.create()
        handles = [await app.publish(it, Card(number=NUMBER)) for it in ("plain", "secret")]
        async with working(app):
            for handle in handles:
                await handle.result(timeout=20)
        plain, secret = [await app.archive.logs(it) for it in handles]
        assert [it.text for it in secret] == [it.text for it in plain] == [f"paid with {NUMBER}"]
        assert [it.logger for it in secret] == ["shop"]
    async with App(database) as app:
        [sealed] = await app.archive.logs(handles[1])
        assert is_sealed(sealed.text)
        assert (sealed.logger, NUMBER in sealed.text) == ("notifyq", False)
        kept = "select notifyq.keep_logs($1, $2, $3, $4::text[]::json[])"
        await connection.execute("delete from notifyq.attempt_log")
        for text, other in (("secret", ""), (sealed.text, ', {"text": "secret"}')):
            log = f'[{{"text": {json.dumps(text)}}}{other}]'
            assert await connection.fetchval(kept, [int(handles[1])], [1], [1], [log]) == 0


async def test_a_missing_key_of_a_step_uses_no_attempt(
    app: App, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sealing._missed.clear()
    policy = Policy(encrypted=True, max_attempts=1)
    renewed = App(database, encryption={"k2": b"2" * 32, **KEYS})

    async def pay(_: Any, steps: Steps) -> str:
        receipt = await steps.run("charge", str, NUMBER)
        await steps.wait_for("approval", signal="approved")
        return receipt

    for it in (app, renewed):
        it.handler("secret", policy=policy)(pay)
    await app.create_queues()
    handle = await app.publish("secret", {"number": NUMBER})
    async with renewed, working(renewed) as worker:
        await until(lambda: worker.counts["parked"], "its step is recorded with the new key")
    await handle.signal("approved")
    async with working(app) as worker:
        await until(lambda: worker.counts["released"], "it waits for the key")
    assert "message 1 is put back" in caplog.text
    assert "key 'k2' is missing" in caplog.text
    assert await connection.fetchval("select messages.run_now($1)", handle)
    async with renewed, working(renewed):
        assert await renewed.result(handle, timeout=20) == NUMBER
