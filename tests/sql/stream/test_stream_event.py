"""A plain insert into messages.stream_event publishes, and does all that publish() does.

Both write a lone event in a shorter way than others, which leaves no check out.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import (
    DatabaseError,
    InvalidArgumentError,
    MessageLimitError,
    PayloadError,
    QueueDeniedError,
    QueueNotFoundError,
    StreamNotFoundError,
    StreamPausedError,
)
from support.database import Connect, Connection, Notifications, one_row, rows, value

INSERT = "insert into messages.stream_event (stream, message) values ('s', $1)"
PUBLISH = "select messages.publish('s', $1::jsonb)"
EVENTS = "select stream, type, key, message, headers from messages.stream_event order by id"


@pytest.fixture
async def stream(connection: Connection) -> None:
    await value(connection, "create_stream", name="s", max_bytes=4096)
    await value(connection, "subscribe", stream="s", subscriber="c")


async def events(connection: Connection) -> list[Any]:
    return [tuple(row) for row in await connection.fetch(EVENTS)]


async def room(connection: Connection, stream: str = "s") -> int | None:
    """Return how long an event may be to be written in the shorter way, without other checks."""
    found: int | None = await connection.fetchval(
        "select unchecked_bytes from messages.stream where name = $1", stream
    )
    return found


async def insert(connection: Connection, **given: Any) -> int:
    """Insert an event with what is given, and return its id."""
    names = {"stream": "s", "message": 1, **given}
    slots = ", ".join(f"${n}" for n in range(1, len(names) + 1))
    id_: int = await connection.fetchval(
        f"insert into messages.stream_event ({', '.join(names)}) values ({slots}) returning id",
        *names.values(),
    )
    return id_


@pytest.mark.usefixtures("stream")
async def test_an_inserted_event_equals_a_published_one(connection: Connection) -> None:
    given = {"type": "t", "key": "k", "message": {"a": [1]}, "headers": {"h": "x"}}
    inserted = await insert(connection, **given)
    published = await value(connection, "publish", queue="s", **given)
    assert inserted < published
    bare = await insert(connection)
    batch = await value(connection, "next_batch", stream="s", subscriber="c")
    first, second, third = await rows(connection, "batch_events", batch=batch)
    assert [it["id"] for it in (first, second, third)] == [inserted, published, bare]
    assert {**first, "id": 0, "created_at": 0} == {**second, "id": 0, "created_at": 0}
    assert (third["type"], third["key"], third["message"], third["headers"]) == (None, None, 1, {})
    event = ("s", "t", "k", {"a": [1]}, {"h": "x"})
    assert await events(connection) == [event, event, ("s", None, None, 1, {})]


@pytest.mark.usefixtures("stream")
async def test_an_insert_returns_all_of_the_event(connection: Connection) -> None:
    row = await one_row(
        connection,
        "insert into messages.stream_event (stream, key, message) values ('s', 'k', '2') "
        "returning *, created_at between now() and clock_timestamp() as is_now",
    )
    assert row["is_now"]
    assert dict(row) == {
        "id": row["id"],
        "stream": "s",
        "created_at": row["created_at"],
        "type": None,
        "key": "k",
        "message": 2,
        "headers": {},
        "is_now": True,
    }


@pytest.mark.usefixtures("stream")
async def test_many_events_of_some_streams_are_one_statement(connection: Connection) -> None:
    await value(connection, "create_stream", name="t")
    done = await connection.execute(
        "insert into messages.stream_event (stream, message) "
        "select case when n % 2 = 0 then 's' else 't' end, to_jsonb(n) "
        "from generate_series(1, 10) as n"
    )
    assert done == "INSERT 0 10"
    assert [(it[0], it[3]) for it in await events(connection)] == [
        ("s" if n % 2 == 0 else "t", n) for n in range(1, 11)
    ]
    await connection.execute(
        "with made as (select 's' as stream, to_jsonb(11) as message) "
        "insert into messages.stream_event (stream, message) select * from made"
    )
    published = await connection.fetch(
        "with published as (insert into messages.stream_event (stream, message) "
        "values ('s', '12'), ('t', '13') returning id) select id from published order by id"
    )
    assert len(published) == 2
    assert [it[3] for it in await events(connection)] == [*range(1, 14)]


@pytest.mark.usefixtures("stream")
async def test_an_error_in_one_row_undoes_all(connection: Connection) -> None:
    with pytest.raises(StreamNotFoundError):
        await connection.execute(
            "insert into messages.stream_event (stream, message) values ('s', '1'), ('none', '2')"
        )
    assert await events(connection) == []


@pytest.mark.parametrize("suppressed", [False, True])
@pytest.mark.usefixtures("stream")
async def test_expressions_of_an_insert_are_evaluated_once(
    connection: Connection, connect: Connect, *, suppressed: bool
) -> None:
    """Also those that the rule reads first: the length of an event, and its stream."""
    if suppressed:
        assert await value(await connect(), "notifyq.suppress_stream", stream="s")
    await connection.execute("create sequence drawn; create sequence named")
    given = (
        "case when nextval('named') > 0 then 's' end, "
        "jsonb_build_object('n', nextval('drawn')), jsonb_build_object('h', nextval('drawn'))"
    )
    columns = "insert into messages.stream_event (stream, message, headers)"
    await connection.execute(f"{columns} values ({given})")
    await connection.execute(f"{columns} values ({given}), ({given})")
    await connection.execute(f"{columns} select {given} from generate_series(1, 3)")
    drawn = await connection.fetchrow(
        "select (select last_value from drawn), (select last_value from named)"
    )
    assert tuple(drawn or ()) == (12, 6)
    assert [(it[3]["n"], it[4]["h"]) for it in await events(connection)] == [
        (n, n + 1) for n in range(1, 13, 2)
    ]
    # An expression with another length each time is written with the length that was checked.
    for _ in range(30):
        try:
            await connection.execute(
                f"{columns} values ('s', to_jsonb(repeat('x', (random() * 8000)::int)), null)"
            )
        except MessageLimitError:
            continue
    longest = await connection.fetchval(
        "select max(octet_length(message::text)) from messages.stream_event"
    )
    assert 100 < longest <= 4096


@pytest.mark.parametrize("suppressed", [False, True])
@pytest.mark.parametrize("volatility", ["stable", "immutable"])
@pytest.mark.usefixtures("stream")
async def test_a_function_that_lies_about_its_volatility_is_called_once(
    connection: Connection, connect: Connect, volatility: str, *, suppressed: bool
) -> None:
    """Its first value is small and its second one too large: the row has what was checked."""
    if suppressed:
        assert await value(await connect(), "notifyq.suppress_stream", stream="s")
    await connection.execute(f"""
        create sequence calls;
        create function lie(n bigint) returns jsonb language plpgsql {volatility} as
          $$ begin return to_jsonb(repeat('x', (nextval('calls') % 2 = 0)::int * 5000)); end $$
    """)
    columns = "insert into messages.stream_event (stream, message)"
    for statement in (
        f"{columns} values ('s', lie($1))",
        f"{columns} values ('s', lie($1)), ('s', '1')",
        f"{columns} select 's', lie($1)",
        f"{columns} select 's', lie($1 + n) from generate_series(1, 1) as n",
        f"{columns} select 's', m from (select lie($1)) as n (m)",
        f"with n (m) as (select lie($1)) {columns} select 's', m from n",
    ):
        await connection.execute("select setval('calls', 2)")
        with suppress(MessageLimitError):  # the planner may have called it, too
            await connection.execute(statement, 1)
    assert {it[3] for it in await events(connection)} <= {"", 1}


INVALID: list[tuple[dict[str, Any], type[DatabaseError]]] = [
    ({"message": None}, InvalidArgumentError),
    ({"message": None, "headers": {"a": 1}}, InvalidArgumentError),
    ({"headers": [1]}, InvalidArgumentError),
    ({"headers": "x"}, InvalidArgumentError),
    ({"message": "x" * 5000}, MessageLimitError),
    ({"headers": {"a": "x" * 5000}}, MessageLimitError),
    ({"message": "x" * 2500, "headers": {"a": "x" * 2500}}, MessageLimitError),
]
OF_INSERT: list[tuple[dict[str, Any], type[DatabaseError]]] = [
    ({"stream": "none"}, StreamNotFoundError),
    ({"stream": None}, StreamNotFoundError),
    ({"stream": "default"}, InvalidArgumentError),
]
OF_PUBLISH: list[tuple[dict[str, Any], type[DatabaseError]]] = [
    ({"priority": 1}, InvalidArgumentError),
    ({"max_attempts": 2}, InvalidArgumentError),
    ({"dedup_key": "k"}, InvalidArgumentError),
    ({"dedup_scope": "waiting"}, InvalidArgumentError),
    ({"dedup_window": timedelta(hours=1)}, InvalidArgumentError),
    ({"on_duplicate": "replace"}, InvalidArgumentError),
    ({"on_duplicate": None}, InvalidArgumentError),
]


@pytest.mark.parametrize("way", ["insert", "publish"])
@pytest.mark.parametrize("suppressed", [False, True])
@pytest.mark.usefixtures("stream")
async def test_an_invalid_event_is_refused(
    connection: Connection, connect: Connect, way: str, *, suppressed: bool
) -> None:
    async def put(**given: Any) -> int:
        if way == "insert":
            return await insert(connection, **given)
        return int(await value(connection, "publish", **{"queue": "s", "message": 1, **given}))

    if suppressed:
        assert await value(await connect(), "notifyq.suppress_stream", stream="s")
    for given, error in INVALID + (OF_INSERT if way == "insert" else OF_PUBLISH):
        with pytest.raises(error):
            await put(**given)
        assert await events(connection) == []
    assert await put(message="x" * 2500, headers={"a": "x" * 1000})


async def test_the_name_of_a_queue_is_an_error_with_a_hint(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await insert(connection, stream="default")
    assert "'default' is a queue" in str(caught.value)
    assert caught.value.hint == "insert into messages.message, or call messages.publish()"


async def test_the_name_of_a_stream_is_an_error_with_a_hint(connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    with pytest.raises(QueueNotFoundError) as caught:
        await connection.execute(
            "insert into messages.message (queue, message) values ('orders', '1')"
        )
    assert str(caught.value.hint).startswith("it is a stream: use messages.publish()")


CONDITIONS = [
    (
        "select messages.pause_stream('s')",
        "select messages.resume_stream('s')",
        1,
        StreamPausedError,
    ),
    (
        "select messages.alter_stream('s', payload_type => 'integer')",
        "update messages.stream set payload_type = null",
        "one",
        asyncpg.DatatypeMismatchError,
    ),
    (
        """select messages.alter_stream('s', payload_schema => '{"type": "integer"}')""",
        "update messages.stream set payload_schema = null",
        "one",
        PayloadError,
    ),
]


@pytest.mark.parametrize(("before", "after", "message", "error"), CONDITIONS)
@pytest.mark.parametrize("statement", [INSERT, PUBLISH], ids=["insert", "publish"])
@pytest.mark.usefixtures("stream")
async def test_a_stream_with_conditions_checks_each_event(
    connection: Connection,
    statement: str,
    before: str,
    after: str,
    message: Any,
    error: type[Exception],
) -> None:
    prepared = await connection.prepare(statement)
    assert await room(connection) == 4096
    for _ in range(7):
        await prepared.fetch(message)
    await connection.execute(before)
    assert await room(connection) is None
    with pytest.raises(error):
        await prepared.fetch(message)
    await connection.execute(after)
    assert await room(connection) == 4096
    await prepared.fetch(message)
    assert len(await events(connection)) == 8


@pytest.mark.usefixtures("stream")
async def test_grants_of_the_stream_are_checked_and_those_of_others_cost_it_nothing(
    connection: Connection,
) -> None:
    statements = [INSERT, PUBLISH, "select notifyq.admit_event('s', $1, null)"]

    async def run(role: str, statement: str) -> None:
        async with connection.transaction():
            await connection.execute(f"set local role {role}")
            await connection.fetch(statement, 1)

    await connection.execute("select messages.grant_queue('default', 'notifyq_admin')")
    assert await room(connection) == 4096
    await connection.execute("select messages.grant_queue('s', 'notifyq_admin')")
    assert await room(connection) is None
    for statement in statements:
        with pytest.raises(QueueDeniedError):
            await run("notifyq_publisher", statement)
    await run("notifyq_admin", INSERT)
    await connection.execute("select messages.revoke_queue('s', 'notifyq_admin')")
    assert await room(connection) == 4096
    for statement in statements[:2]:
        await run("notifyq_publisher", statement)
    assert len(await events(connection)) == 3


@pytest.mark.usefixtures("stream")
async def test_a_stream_whose_name_has_grants_is_created_with_them(connection: Connection) -> None:
    await connection.execute(
        "insert into messages.queue_grant values ('t', 'notifyq_admin', now(), true, true)"
    )
    await value(connection, "create_stream", name="t")
    assert await room(connection, "t") is None
    await connection.execute("truncate messages.queue_grant")
    assert await room(connection, "t") is not None


@pytest.mark.parametrize("notification", ["auto", "always", "off"])
@pytest.mark.parametrize("statement", [INSERT, PUBLISH], ids=["insert", "publish"])
@pytest.mark.usefixtures("stream")
async def test_an_event_notifies_as_its_stream_does(
    connection: Connection, connect: Connect, notification: str, statement: str
) -> None:
    await value(connection, "alter_stream", name="s", notify=notification)
    assert (await room(connection) is None) == (notification == "always")
    notifications = Notifications(await connect(), "new_event")
    await notifications.listen()
    await connection.fetch(statement, 1)
    notified = notification != "off"
    assert bool(await notifications.received("new_event")) == notified
    suppressing = await connect()
    assert await value(suppressing, "notifyq.suppress_stream", stream="s") == (
        notification == "auto"
    )
    await connection.fetch(statement, 2)
    assert bool(await notifications.received("new_event")) == (notification == "always")
    await value(suppressing, "notifyq.unsuppress_streams", streams=["s"])
    await connection.fetch(statement, 3)
    assert bool(await notifications.received("new_event")) == notified
    assert [it[3] for it in await events(connection)] == [1, 2, 3]


@pytest.mark.usefixtures("stream")
async def test_the_end_of_suppression_waits_for_inserts_without_notification(
    connection: Connection, connect: Connect
) -> None:
    suppressing = await connect()
    assert await value(suppressing, "notifyq.suppress_stream", stream="s")
    async with connection.transaction():
        await connection.execute(INSERT, 1)
        taken_back = await value(suppressing, "notifyq.unsuppress_streams", streams=["s"])
        assert not await value(suppressing, "notifyq.is_transaction_over", number=taken_back)
    assert await value(suppressing, "notifyq.is_transaction_over", number=taken_back)


@pytest.mark.usefixtures("stream")
async def test_a_publisher_has_no_more_than_the_insert(connection: Connection) -> None:
    async with connection.transaction():
        await connection.execute("set local role notifyq_publisher")
        await connection.execute(
            "insert into messages.stream_event (stream, type, key, message, headers) "
            "values ('s', 't', 'k', '1', '{}')"
        )
        for statement in ("select id from messages.stream_event", f"{INSERT} returning id"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.execute(statement.replace("$1", "'1'"))
    assert len(await events(connection)) == 1


@pytest.mark.parametrize("suppressed", [False, True])
@pytest.mark.usefixtures("stream")
async def test_functions_in_the_search_path_are_not_called(
    connection: Connection, connect: Connect, *, suppressed: bool
) -> None:
    """The names of the rule were resolved when it was created, not by the session that inserts."""
    if suppressed:
        assert await value(await connect(), "notifyq.suppress_stream", stream="s")
    await connection.execute("""
        create schema hostile;
        create function hostile.refuse() returns integer language plpgsql as
          $$ begin raise 'hijacked'; end $$;
        create function hostile.octet_length(text) returns integer language sql as
          'select hostile.refuse()';
        create function hostile.hashtextextended(text, bigint) returns bigint language sql as
          'select hostile.refuse()';
        create function hostile.jsonb_typeof(jsonb) returns text language sql as
          'select hostile.refuse()::text';
        create function hostile.pg_try_advisory_xact_lock_shared(bigint) returns boolean
          language sql as 'select hostile.refuse() > 0';
        create function hostile.pg_current_xact_id() returns xid8 language sql as
          'select hostile.refuse()::text::xid8';
        create function hostile.same(text, text) returns boolean language sql as
          'select hostile.refuse() > 0';
        create operator hostile.= (leftarg = text, rightarg = text, function = hostile.same);
        create function hostile.less(integer, integer) returns boolean language sql as
          'select hostile.refuse() > 0';
        create operator hostile.<= (leftarg = integer, rightarg = integer, function = hostile.less);
        create temporary table stream (name text, segment bigint, unchecked_bytes integer);
        create temporary table event (id bigint);
        grant usage on schema hostile to public
    """)
    async with connection.transaction():
        await connection.execute(
            "set local search_path = hostile, pg_temp, pg_catalog; set local role notifyq_publisher"
        )
        with pytest.raises(asyncpg.RaiseError, match="hijacked"):
            async with connection.transaction():
                await connection.fetchval("select octet_length('x'::text)")
        await connection.execute(
            "insert into messages.stream_event (stream, message, headers) "
            "values ('s', '1', '{\"a\": 1}')"
        )
    assert await events(connection) == [("s", None, None, 1, {"a": 1})]


DEEP = "[" * 101 + "[]" + "]" * 101
LIMITS: dict[str, dict[str, Any]] = {
    "type": {"type": "t" * 201},
    "key": {"key": "é" * 101},
    "levels": {"message": {"a": json.loads(DEEP)}},
    "levels of a header": {"headers": {"h": json.loads(DEEP)}},
    "number": {"message": {"a": 10**4001}},
    "number of a header": {"headers": {"n": 10**4001}},
}
WITHIN: dict[str, Any] = {
    "type": "t" * 200,
    "key": "é" * 100,
    "message": {"a": json.loads("[" * 99 + "[]" + "]" * 99), "b": 10**3000},
    "headers": {"n": 10**900},
}


@pytest.mark.parametrize("subscribed", [False, True], ids=["notified", "suppressed"])
@pytest.mark.usefixtures("stream")
async def test_an_event_has_the_limits_of_a_message(
    connection: Connection, connect: Connect, subscribed: bool
) -> None:
    async def publish(way: str, given: dict[str, Any]) -> None:
        if way == "insert":
            await insert(connection, **given)
        elif way == "publish":
            await value(connection, "publish", queue="s", **({"message": 1} | given))
        else:
            many = {"messages": [0, given.get("message", 1)]} | given
            many.pop("message", None)
            if "key" in given:
                many["keys"] = [None, many.pop("key")]
            await rows(connection, "publish_many", queue="s", **many)

    await value(connection, "alter_stream", name="s", max_bytes=65536)
    if subscribed:
        await (await connect()).execute("select notifyq.suppress_stream('s')")
    for way, left in (("insert", 1), ("publish", 2), ("publish_many", 4)):
        await publish(way, WITHIN)
        for what, given in LIMITS.items():
            with pytest.raises(MessageLimitError, match=what.split()[0].replace("levels", "deep")):
                await publish(way, given)
        assert len(await events(connection)) == left
