"""Encrypted queues and streams in SQL: each door refuses plain text and foreign envelopes."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import asyncpg
import pytest

from notifyq import InvalidArgumentError, QueueNotEmptyError
from support.database import Connection


def envelope(queue: str = "secret", use: str = "payload", **changed: Any) -> dict[str, Any]:
    """Something of the form of an envelope: the database has no key to tell."""
    seal = {"key": "k1", "use": use, "nonce": "A" * 16, "data": "B" * 24, "queue": queue}
    return {"$encrypted": {name: it for name, it in (seal | changed).items() if it is not None}}


def text(use: str, queue: str = "secret") -> str:
    return json.dumps(envelope(queue, use))


@pytest.fixture
async def encrypted(connection: Connection) -> Connection:
    await connection.execute(
        "select messages.create_queue('secret', encrypted => true, max_attempts => 3); "
        "select messages.create_stream('safe', encrypted => true); "
        "select messages.create_stream('plain')"
    )
    return connection


async def claim(connection: Connection) -> tuple[int, int]:
    await connection.execute("select messages.publish('secret', $1)", envelope())
    row = await connection.fetchrow("select id, lock_token from messages.claim(array['secret'])")
    assert row is not None
    return row["id"], row["lock_token"]


PLAIN = {
    "publish": "select messages.publish('secret', $1)",
    "publish_many": "select messages.publish_many('secret', array[$1::jsonb])",
    "publish_unique": "select messages.publish('secret', $1, dedup_key => 'a')",
    "replace": "select messages.publish('secret', $1, dedup_key => 'a', on_duplicate => 'replace')",
    "insert": "insert into messages.message (queue, message) values ('secret', $1)",
    "publish an event": "select messages.publish('safe', $1)",
    "publish events": "select messages.publish_many('safe', array[$1::jsonb, $1])",
    "insert an event": "insert into messages.stream_event (stream, message) values ('safe', $1)",
    "receive": (
        "select messages.receive('x', jsonb_build_array(jsonb_build_object("
        "'position', 1, 'queue', 'secret', 'message', $1::jsonb)))"
    ),
}


NO_ENVELOPES = [
    {"card": 4711},
    "4711",
    [envelope()],
    {**envelope(), "card": 4711},
    envelope(card="4711"),
    envelope(error="4711"),
    envelope(data="4711"),
    envelope(data=None),
    envelope(nonce="short"),
    envelope(key="a b"),
    envelope("another"),
    envelope(use="result"),
    {"$encrypted": "4711"},
    {"$encrypted": [envelope()]},
]


@pytest.mark.parametrize("door", PLAIN)
async def test_no_door_takes_plain_text(encrypted: Connection, door: str) -> None:
    """Neither plain text nor anything beside a whole envelope of this queue."""
    for payload in NO_ENVELOPES:
        with pytest.raises(InvalidArgumentError, match="is encrypted and"):
            await encrypted.execute(PLAIN[door], payload)


@pytest.mark.parametrize("door", PLAIN)
async def test_each_door_takes_an_envelope(encrypted: Connection, door: str) -> None:
    name = "safe" if "event" in door else "secret"
    await encrypted.execute(PLAIN[door], envelope(name))


async def test_copy_is_refused(encrypted: Connection) -> None:
    rows = f"secret\t{json.dumps(envelope())}\nsecret\t1\n"
    with pytest.raises(InvalidArgumentError, match="is encrypted and"):
        await encrypted.copy_to_table(
            "message",
            source=BytesIO(rows.encode()),
            schema_name="messages",
            columns=["queue", "message"],
        )
    assert await encrypted.fetchval("select count(*) from messages.message") == 0


async def test_an_unlogged_queue_refuses_too(connection: Connection) -> None:
    await connection.execute(
        "select messages.create_queue('secret', encrypted => true, durable => false)"
    )
    with pytest.raises(InvalidArgumentError, match="is encrypted and"):
        await connection.execute(PLAIN["publish"], 1)
    await connection.execute(PLAIN["publish"], envelope())
    [row] = await connection.fetch("select id, lock_token from messages.claim(array['secret'])")
    with pytest.raises(InvalidArgumentError, match="takes no details"):
        await connection.execute(
            "select messages.finish($1, $2, 'failed', 'card 4711')", row["id"], row["lock_token"]
        )


ENDS = {
    "result": ("result", "select messages.finish($1, $2, result => $3)"),
    "details": ("details", "select messages.finish($1, $2, 'rejected', $3)"),
    "many results": (
        "result",
        "select messages.finish_many(array[$1::bigint], array[$2::bigint], '{success}', null, "
        "array[$3::jsonb])",
    ),
    "many details": (
        "details",
        "select messages.finish_many(array[$1::bigint], array[$2::bigint], '{failed}', "
        "array[$3::text])",
    ),
    "retry": ("details", "select messages.retry($1, $2, details => $3)"),
    "error": ("details", "select messages.retry($1, $2, error_type => 'E', error => $3)"),
    "traceback": ("traceback", "select messages.retry($1, $2, traceback => $3)"),
    "step": ("step", "select messages.step($1, $2, 'a', $3)"),
    "chunk": ("chunk", "select messages.emit($1, $2, $3)"),
    "note": ("note", "select messages.progress($1, $2, 0.5::real, $3)"),
    "signal": ("signal", "select messages.signal('s', $3, $1) where $2::bigint is not null"),
}


@pytest.mark.parametrize("door", ENDS)
async def test_what_a_handler_gives_is_refused_in_plain_text(
    encrypted: Connection, door: str
) -> None:
    key = await claim(encrypted)
    use, statement = ENDS[door]
    is_text = use in {"details", "traceback", "note"}
    wrong: Any
    for wrong in ("card 4711", envelope(use="payload"), envelope("another", use)):
        given = json.dumps(wrong) if is_text and not isinstance(wrong, str) else wrong
        with pytest.raises(InvalidArgumentError, match="is encrypted and"):
            await encrypted.execute(statement, *key, given)
    await encrypted.execute(statement, *key, text(use) if is_text else envelope(use=use))


async def test_what_the_database_writes_stays_plain(encrypted: Connection) -> None:
    number, _ = await claim(encrypted)
    await encrypted.execute("update messages.message set lock_expires_at = now() - interval '1 h'")
    await encrypted.execute("select messages.reap()")
    await encrypted.execute("select messages.cancel($1, reason => 'not needed')", number)
    details = await encrypted.fetch(
        "select details from messages.message_archive "
        "union all select details from messages.attempt order by 1"
    )
    assert [row[0] for row in details] == [
        "cancelled: not needed", "lock of an unnamed worker expired"
    ]  # fmt: skip


async def test_the_reason_of_an_event_is_an_envelope(encrypted: Connection) -> None:
    await encrypted.execute("select messages.subscribe('safe', 'reader', 'start')")
    event = await encrypted.fetchval("select messages.publish('safe', $1)", envelope("safe"))
    batch = await encrypted.fetchval("select messages.next_batch('safe', 'reader')")
    for function in ("retry_event", "fail_event"):
        with pytest.raises(InvalidArgumentError, match="takes no details"):
            await encrypted.execute(
                f"select messages.{function}($1, $2, reason => 'card 4711')", batch, event
            )
    await encrypted.execute(
        "select messages.fail_event($1, $2, $3)", batch, event, text("details", "safe")
    )


REFUSED = {
    "a type": "select messages.create_queue('q', encrypted => true, payload_type => 'int')",
    "a schema": (
        "select messages.create_queue('q', encrypted => true, payload_schema => '{\"type\": []}')"
    ),
    "a type later": "select messages.alter_queue('secret', payload_type => 'integer')",
    "a typed stream": (
        "select messages.create_stream('q', encrypted => true, payload_type => 'integer')"
    ),
    "a typed stream later": "select messages.alter_stream('safe', payload_type => 'integer')",
    "a filter": "select messages.claim(array['secret'], filter => '$.card == 1')",
    "filters": "select messages.claim(array['default', 'secret'], filters => '{null,$.a == 1}')",
    "a schedule": "select messages.schedule('s', '* * * * *', 'secret')",
    "forwarding into it": "select messages.forward('plain', 'f', 'secret')",
    "forwarding from it": "select messages.forward('safe', 'f', 'default')",
    "a capture": "create table t (id integer); select messages.capture('t', 'safe')",
    "a procedure": (
        "create schema app; create procedure app.work() language plpgsql as 'begin end'; "
        "select messages.register('safe', 's', 'app.work')"
    ),
    "moving out": (
        'select messages.move_matching(\'{"queue": "secret", "until": "2100-01-01"}\', \'default\')'
    ),
    "moving in": (
        'select messages.move_matching(\'{"queue": "default", "until": "2100-01-01"}\', \'secret\')'
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_reads_payloads_in_the_database_is_refused(
    encrypted: Connection, what: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="encrypted"):
        await encrypted.execute(REFUSED[what])


async def test_only_an_empty_queue_can_become_encrypted(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('secret')")
    number = await connection.fetchval("select messages.publish('secret', '1')")
    with pytest.raises(QueueNotEmptyError):
        await connection.execute("select messages.alter_queue('secret', encrypted => true)")
    await connection.execute("select messages.cancel($1)", number)
    await connection.execute("select messages.schedule('s', '* * * * *', 'secret')")
    with pytest.raises(InvalidArgumentError, match="has schedules"):
        await connection.execute("select messages.alter_queue('secret', encrypted => true)")
    await connection.execute("select messages.unschedule('s')")
    await connection.execute("select messages.alter_queue('secret', encrypted => true)")
    with pytest.raises(InvalidArgumentError, match="takes no payload"):
        await connection.execute(PLAIN["publish"], 1)
    # What was archived before is plain, and cannot be published again.
    with pytest.raises(InvalidArgumentError, match="takes no payload"):
        await connection.execute("select messages.dead_retry($1)", number)
    await connection.execute("select messages.alter_queue('secret', encrypted => false)")
    await connection.execute(PLAIN["publish"], 1)


async def test_amending_and_publishing_again_keep_envelopes(encrypted: Connection) -> None:
    number = await encrypted.fetchval("select messages.publish('secret', $1)", envelope())
    with pytest.raises(InvalidArgumentError, match="takes no payload"):
        await encrypted.execute("select messages.amend($1, '{\"card\": 4711}')", number)
    assert await encrypted.fetchval("select messages.amend($1, $2)", number, envelope(key="k2"))
    await encrypted.execute("select messages.cancel($1)", number)
    again = await encrypted.fetchval("select messages.dead_retry($1)", number)
    found = await encrypted.fetchval("select message from messages.message where id = $1", again)
    assert found == envelope(key="k2")


async def test_a_signal_to_all_does_not_reach_an_encrypted_queue(encrypted: Connection) -> None:
    key = await claim(encrypted)
    state = "select state from messages.await_signal($1, $2, 'wait', 's')"
    assert await encrypted.fetchval(state, *key) == "parked"
    assert await encrypted.fetchval("select messages.signal('s', '\"card 4711\"')") == 0
    await encrypted.execute("select messages.maintain()")
    assert await encrypted.fetch("select from messages.claim(array['secret'])") == []
    signal = envelope(use="signal")
    assert await encrypted.fetchval("select messages.signal('s', $2, $1)", key[0], signal) == 1
    row = await encrypted.fetchrow("select id, lock_token from messages.claim(array['secret'])")
    assert row is not None
    assert await encrypted.fetchval(state, *row.values()) == "received"


async def test_errors_are_grouped_by_class(encrypted: Connection) -> None:
    for number, error in enumerate(["ValueError", "ValueError", "KeyError"]):
        key = await claim(encrypted)
        details = json.dumps(envelope(use="details", error=error, data=f"{number:024}"))
        await encrypted.execute("select messages.finish($1, $2, 'failed', $3)", *key, details)
    groups = await encrypted.fetch("select fingerprint, dead from notifyq.dead_groups()")
    assert [tuple(it) for it in groups if it["fingerprint"]] == [
        ("encrypted ValueError", 2), ("encrypted KeyError", 1),
    ]  # fmt: skip


async def test_encrypted_queues_are_listed(encrypted: Connection) -> None:
    names = await encrypted.fetch("select * from notifyq.encrypted_names()")
    assert [row[0] for row in names] == ["secret", "safe"]
    info = "select encrypted from messages.{}_info($1)"
    assert await encrypted.fetchval(info.format("queue"), "secret") is True
    assert await encrypted.fetchval(info.format("stream"), "safe") is True
    assert await encrypted.fetchval(info.format("queue"), "default") is False


async def test_a_queue_without_encryption_has_no_trigger_for_it(connection: Connection) -> None:
    triggers = "select count(*) from pg_trigger where tgname in ('sealed', 'payload')"
    assert await connection.fetchval(triggers) == 0
    await connection.execute("select messages.create_queue('secret', encrypted => true)")
    assert await connection.fetchval(triggers) >= 2
    await connection.execute("select messages.drop_queue('secret')")
    assert await connection.fetchval(triggers) == 0


async def test_the_doctor_misses_the_checks(encrypted: Connection) -> None:
    missing = "select notifyq.missing_objects()"
    assert await encrypted.fetchval(missing) == []
    await encrypted.execute("drop trigger payload on messages.message")
    await encrypted.execute("alter table messages.message_archive disable trigger sealed")
    assert await encrypted.fetchval(missing) == ["trigger payload", "trigger sealed"]


async def test_a_constraint_holds_beside_the_functions(connection: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute(
            "insert into messages.queue (name, payload_type, encrypted) values ('q', 'int4', true)"
        )
