"""Capture: changes of tables as events, and the rights to capture."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, QueueDeniedError, StreamNotFoundError
from support.database import Connect, Connection, rows, value

TABLE = "create table item (id integer primary key, name text, price numeric, note text)"


class Captured:
    """A stream, and the events since the last read."""

    def __init__(self, connection: Connection, name: str = "changes") -> None:
        self.connection = connection
        self.name = name

    async def begin(self, table: str = "item", **options: Any) -> None:
        await value(self.connection, "create_stream", name=self.name)
        await value(
            self.connection, "subscribe", stream=self.name, subscriber="test", position="now"
        )
        await value(self.connection, "capture", relation=table, stream=self.name, **options)

    async def events(self) -> list[dict[str, Any]]:
        """What has come in since the last call: payloads, with the key of the event as `of`."""
        batch = await value(self.connection, "next_batch", stream=self.name, subscriber="test")
        if batch is None:
            return []
        found = await rows(self.connection, "batch_events", batch=batch)
        await value(self.connection, "finish_batch", batch=batch)
        assert [row["type"] for row in found] == [row["message"]["op"] for row in found]
        return [row["message"] | {"of": row["key"]} for row in found]


@pytest.fixture
def captured(connection: Connection) -> Captured:
    return Captured(connection)


async def test_each_kind_of_change_is_an_event(connection: Connection, captured: Captured) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    await connection.execute("insert into item values (1, 'nut', 1.10), (2, 'bolt', 2)")
    await connection.execute("update item set price = 3, name = 'nut' where id = 1")
    await connection.execute("delete from item where id = 2")
    await connection.execute("truncate item")
    table = {"table": "public.item"}
    one = {"id": 1, "name": "nut", "price": 1.1, "note": None}
    two = {"id": 2, "name": "bolt", "price": 2, "note": None}
    assert await captured.events() == [
        table | {"op": "insert", "key": {"id": 1}, "new": one, "of": "1"},
        table | {"op": "insert", "key": {"id": 2}, "new": two, "of": "2"},
        table
        | {"op": "update", "key": {"id": 1}, "new": one | {"price": 3}, "old": {"price": 1.1}}
        | {"changed": ["price"], "of": "1"},
        table | {"op": "delete", "key": {"id": 2}, "old": two, "of": "2"},
        table | {"op": "truncate", "of": None},
    ]


async def test_a_rolled_back_change_is_no_event_and_headers_have_the_transaction(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    await connection.execute("begin; insert into item values (1); rollback")
    async with connection.transaction():
        number = await connection.fetchval("select pg_current_xact_id()::text")
        await connection.execute("insert into item values (2)")
        await connection.execute("insert into item values (3)")
    found = await connection.fetch("select headers from messages.event")
    assert [row["headers"] for row in found] == 2 * [{"transaction": number}]
    assert [event["of"] for event in await captured.events()] == ["2", "3"]


async def test_old_and_new_rows_of_a_statement_belong_together(
    connection: Connection, captured: Captured
) -> None:
    """Also where the key changes; the plan was made for one row, and there are many."""
    await connection.execute(
        TABLE + "; insert into item select n, n::text from generate_series(1, 3000) n"
    )
    await captured.begin()
    for _ in range(7):
        await connection.execute("update item set note = note || 'x' where id = 1")
    assert await captured.events() == []
    await connection.execute("update item set id = id + 10000, price = id")
    events = await captured.events()
    assert len(events) == 3000
    for event in events:
        assert event["key"]["id"] == event["old"]["id"] + 10000
        assert event["new"]["name"] == str(event["old"]["id"])
        assert event["new"]["price"] == event["old"]["id"]
        assert event["changed"] == ["id", "price"]


async def test_only_changes_of_the_columns_are_events(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await captured.begin(columns=["price", "name"])
    await connection.execute("insert into item values (1, 'nut', 1, 'secret')")
    await connection.execute("update item set note = 'other'")
    await connection.execute("update item set price = 1.0")
    await connection.execute("update item set price = 2, note = 'third'")
    await connection.execute("delete from item")
    inserted, updated, deleted = await captured.events()
    assert inserted["new"] == {"name": "nut", "price": 1}
    assert (updated["new"], updated["old"]) == ({"name": "nut", "price": 2}, {"price": 1})
    assert (deleted["key"], deleted["old"]) == ({"id": 1}, {"name": "nut", "price": 2})
    await connection.execute("insert into item values (1, 'nut')")
    await connection.execute("alter table item rename price to cost")
    with pytest.raises(InvalidArgumentError, match=r"columns that are gone: \{price\}"):
        await connection.execute("update item set cost = 5")


async def test_a_condition_chooses_rows(connection: Connection, captured: Captured) -> None:
    await connection.execute(TABLE)
    await captured.begin(condition="new.price > 10 -- dear", operations=["insert"])
    await value(
        connection, "capture", relation="item", stream="changes", operations=["update"],
        condition="old.price is distinct from new.price and upper(new.name) = 'BOLT'",
    )  # fmt: skip
    await connection.execute("insert into item values (1, 'nut', 5), (2, 'bolt', 11)")
    await connection.execute("update item set price = price + 1")
    await connection.execute("update item set note = 'x'")
    await connection.execute("delete from item")
    found = [(event["op"], event["of"]) for event in await captured.events()]
    assert found == [("insert", "2"), ("update", "2")]
    first, second = await rows(connection, "captures", stream="changes")
    assert (first["operations"], first["condition"]) == (["insert"], "(new.price > (10)::numeric)")
    assert second["is_by_row"]
    assert second["is_enabled"]


async def test_a_condition_is_one_expression(connection: Connection, captured: Captured) -> None:
    await connection.execute(TABLE)
    for condition, problem in [
        ("new.nope", "column new.nope does not exist"),
        ("new.id = ", "syntax error"),
        ("true); drop table item; select (true", "multi-query"),
        ("true) or (true", "syntax error"),
        ("true; select 1", "syntax error"),
        ("exists (select 1)", "cannot use subquery in trigger WHEN condition"),
        ("new.id", "type boolean"),
        ("old.id > 0", "INSERT trigger's WHEN condition cannot reference OLD"),
    ]:
        with pytest.raises(InvalidArgumentError, match=problem):
            await captured.begin(condition=condition, operations=["insert"])
        assert await connection.fetchval("select count(*) from item") == 0


async def test_a_condition_never_runs_as_the_owner_of_the_schema(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(
        TABLE + "; create table seen (who text);"
        "create function note_who() returns boolean language plpgsql as "
        "$$ begin insert into seen values (current_user); return true; end $$"
    )
    await captured.begin(condition="note_who()", operations=["insert"])
    await connection.execute("insert into item values (1)")
    me = await connection.fetchval("select current_user::text")
    assert [row[0] for row in await connection.fetch("select who from seen")] == [me]


async def test_values_are_exact_under_any_session_settings(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute("create type mood as enum ('good', 'bad')")
    await connection.execute(
        "create table kinds (id bigint primary key, n numeric, f float8, b bytea, at timestamptz,"
        " i interval, d date, a integer[], j jsonb, m mood, r int4range,"
        " twice bigint generated always as (id * 2) stored)"
    )
    await captured.begin("kinds")
    await connection.execute(
        "set timezone = 'Asia/Tokyo'; set intervalstyle = 'sql_standard'; set datestyle = 'German';"
        "set bytea_output = 'escape'; set extra_float_digits = -3"
    )
    await connection.execute(
        "insert into kinds values (9007199254740993, 'NaN', 0.1::float8 + 0.2, '\\x00ff',"
        " '2027-01-02 03:04:05.678901+00', '1 day 2 hours', '2027-01-02', '{1,null}',"
        """ '{"k": null}', 'bad', '[1,5)')"""
    )
    await connection.execute("insert into kinds (id, n, f) values (2, 1e-20, 'infinity')")
    text = [
        row[0]
        for row in await connection.fetch(
            "select message ->> 'new' from messages.event order by id"
        )
    ]
    first, second = (json.loads(it, parse_float=str, parse_int=str) for it in text)
    assert first == {
        "id": "9007199254740993", "n": "NaN", "f": "0.30000000000000004", "b": "\\x00ff",
        "at": "2027-01-02T03:04:05.678901+00:00", "i": "P1DT2H", "d": "2027-01-02",
        "a": ["1", None], "j": {"k": None}, "m": "bad", "r": "[1,5)",
        "twice": "18014398509481986",
    }  # fmt: skip
    assert (second["n"], second["f"]) == ("0.00000000000000000001", "Infinity")


TYPES = """
    create type mood as enum ('good', 'bad');
    create domain short as varchar(9);
    create domain moods as mood[];
    create type inner_row as (a numeric, m mood, at timestamptz);
    create type outer_row as (one inner_row, many inner_row[], b bytea, j jsonb);
    create domain named as inner_row;
    create table own (
      c mood, r mood[], o moods, n short, data short[], number inner_row, key outer_row,
      d named, i int4multirange, id bigint primary key
    );
"""
ROW = """
    'bad', '{{good,null},{bad,bad}}', '{good}', 'it', '{a,null}',
    row(1.10, 'bad', '2027-01-02 03:04:05+00'),
    row(null, array[row(2, null, null), null]::inner_row[], '\\x00ff', '{"k": [1, null]}'),
    row(3, 'good', null), '{[1,3)}'
"""
MADE = {
    "c": "bad", "r": [["good", None], ["bad", "bad"]], "o": ["good"], "n": "it",
    "data": ["a", None],
    "number": {"a": 1.1, "m": "bad", "at": "2027-01-02T03:04:05+00:00"},
    "key": {
        "one": None, "many": [{"a": 2, "m": None, "at": None}, None], "b": "\\x00ff",
        "j": {"k": [1, None]},
    },
    "d": {"a": 3, "m": "good", "at": None}, "i": "{[1,3)}",
}  # fmt: skip


@pytest.mark.parametrize("condition", [None, "new.id > 0"])
async def test_user_defined_types_nest_like_built_in_ones(
    connection: Connection, captured: Captured, condition: str | None
) -> None:
    """As to_jsonb() makes it, also where columns have the names that the triggers use."""
    await connection.execute(TYPES)
    operations = ["insert", "update"]
    await captured.begin("own", condition=condition, operations=operations)
    await connection.execute("set timezone = 'Asia/Tokyo'; set bytea_output = 'escape'")
    await connection.execute(f"insert into own values ({ROW}, 1)")
    await connection.execute("update own set c = 'good'")
    await connection.execute("insert into own (id) values (2)")
    inserted, updated, empty = await captured.events()
    assert inserted["new"] == MADE | {"id": 1}
    assert updated["new"] == MADE | {"id": 1, "c": "good"}
    assert updated["old"] == {"c": "bad"}
    assert empty["new"] == dict.fromkeys(MADE) | {"id": 2}


async def test_a_column_may_have_any_name(connection: Connection, captured: Captured) -> None:
    await connection.execute("create table odd (c integer primary key, r text, o text, n text)")
    await captured.begin("odd")
    await connection.execute("insert into odd values (1, 'r', 'o', 'n'); update odd set n = 'm'")
    await connection.execute("delete from odd")
    inserted, updated, deleted = await captured.events()
    assert inserted["new"] == {"c": 1, "r": "r", "o": "o", "n": "n"}
    assert updated["new"] == deleted["old"] == {"c": 1, "r": "r", "o": "o", "n": "m"}


async def test_a_table_may_change_while_it_is_captured(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    for number in range(7):
        await connection.execute("insert into item values ($1)", number)
    await connection.execute("alter table item add column size integer default 3")
    await connection.execute("update item set size = 4 where id = 1")
    await connection.execute("alter table item drop column note; alter table item rename to thing")
    await connection.execute("update thing set size = 5 where id = 1")
    *_, grown, renamed = await captured.events()
    assert grown["changed"] == ["size"]
    assert grown["old"] == {"size": 3}
    assert renamed["table"] == "public.thing"
    assert renamed["new"] == {"id": 1, "name": None, "price": None, "size": 5}
    (capture,) = await rows(connection, "captures")
    assert capture["relation"] == "thing"


async def test_a_key_of_several_columns_and_none_at_all(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute("create table pair (b text, a integer, v integer, primary key (a, b))")
    await connection.execute("create table heap (v integer, w integer)")
    await captured.begin("pair")
    await value(connection, "capture", relation="heap", stream="changes")
    await connection.execute("insert into pair values ('x', 1, 2)")
    await connection.execute("insert into heap values (1, 1); update heap set v = 2")
    pair, _, heap = await captured.events()
    assert (pair["key"], pair["of"]) == ({"a": 1, "b": "x"}, '[1, "x"]')
    assert (heap["key"], heap["of"]) == (None, None)
    assert (heap["old"], heap["new"]) == ({"v": 1, "w": 1}, {"v": 2, "w": 1})


async def test_partitions_are_captured_however_they_are_written(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(
        "create table part (id integer primary key, v integer) partition by range (id);"
        "create table part_a partition of part for values from (0) to (10)"
    )
    await captured.begin("part")
    await connection.execute("create table part_b (v integer, id integer not null)")
    await connection.execute(
        "alter table part attach partition part_b for values from (10) to (20)"
    )
    await connection.execute("insert into part values (1, 1), (11, 1)")
    await connection.execute("update part_b set v = 2")
    await connection.execute("update part set id = 12 where id = 1")
    events = await captured.events()
    assert {event["table"] for event in events} == {"public.part"}
    assert [(event["op"], event["of"]) for event in events] == [
        ("insert", "1"), ("insert", "11"), ("update", "11"), ("delete", "1"), ("insert", "12"),
    ]  # fmt: skip


async def test_conflicts_merges_copies_and_cascades(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await connection.execute(
        "create table part_of (id integer primary key,"
        " item integer references item on delete cascade)"
    )
    await captured.begin()
    await value(connection, "capture", relation="part_of", stream="changes")
    await connection.copy_records_to_table("item", records=[(1, "a", None, None)])
    await connection.execute(
        "insert into item values (1, 'b'), (2, 'b') on conflict (id) do update set name = 'c'"
    )
    await connection.execute("insert into part_of values (7, 2)")
    await connection.execute("delete from item where id = 2")
    found = {(event["op"], event["table"], event["of"]) for event in await captured.events()}
    assert found == {
        ("insert", "public.item", "1"), ("insert", "public.item", "2"),
        ("update", "public.item", "1"), ("insert", "public.part_of", "7"),
        ("delete", "public.item", "2"), ("delete", "public.part_of", "7"),
    }  # fmt: skip


async def test_a_second_capture_replaces_the_first_and_uncapture_ends_it(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    await value(connection, "capture", relation="item", stream="changes", columns=["name"])
    (capture,) = await rows(connection, "captures", stream="changes")
    assert capture["columns"] == ["name"]
    assert capture["operations"] == ["insert", "update", "delete", "truncate"]
    with pytest.raises(InvalidArgumentError, match=r"public\.item"):
        await value(connection, "drop_stream", name="changes", force=True)
    assert await value(connection, "uncapture", relation="item", stream="changes")
    assert not await value(connection, "uncapture", relation="item", stream="changes")
    await connection.execute("insert into item values (1)")
    assert await captured.events() == []
    await value(connection, "drop_stream", name="changes", force=True)


async def test_captures_that_are_refused(connection: Connection, captured: Captured) -> None:
    await connection.execute(TABLE + "; create view seen as select * from item")
    for table in ("seen", "messages.message", "pg_catalog.pg_class", "messages.message_archive"):
        with pytest.raises(InvalidArgumentError):
            await captured.begin(table)
    refused: tuple[dict[str, Any], ...] = (
        {"columns": ["nope"]}, {"columns": []}, {"operations": ["drop"]}, {"operations": []},
    )  # fmt: skip
    for options in refused:
        with pytest.raises(InvalidArgumentError):
            await value(connection, "capture", relation="item", stream="changes", **options)
    with pytest.raises(StreamNotFoundError):
        await value(connection, "capture", relation="item", stream="nope")


async def test_rights_are_those_of_the_owner_of_the_table(
    connection: Connection, connect: Connect, captured: Captured
) -> None:
    names = ("owner", "writer", "other")
    roles = {name: f"notifyq_test_{name}_{connection.get_server_pid()}" for name in names}
    for role in roles.values():
        await connection.execute(
            f"create role {role}; grant usage, create on schema public to {role}"
        )
    try:
        await connection.execute(f"grant notifyq_publisher to {roles['owner']}, {roles['other']}")
        await value(connection, "create_stream", name="changes")
        await value(
            connection, "grant_queue", queue="changes", role=roles["owner"], publish=True,
            consume=False,
        )  # fmt: skip
        owner, writer, other = [await connect() for _ in names]
        for session, name in ((owner, "owner"), (writer, "writer"), (other, "other")):
            await session.execute(f"set role {roles[name]}")
        await owner.execute(f"{TABLE}; grant insert on item to {roles['writer']}")
        with pytest.raises(QueueDeniedError, match="it is not the owner"):
            await other.execute("select messages.capture('item', 'changes')")
        await owner.execute("select messages.capture('item', 'changes')")
        # A role that writes needs no right to the stream, not even to the schema.
        await writer.execute("insert into item values (1)")
        assert await connection.fetchval("select count(*) from messages.event") == 1
        # Nor does the trigger give a right to a stream of others.
        await other.execute("create table mine (id integer)")
        with pytest.raises(QueueDeniedError):
            await other.execute("select messages.capture('mine', 'changes')")
        await other.execute(
            "create trigger t after insert on mine for each row "
            "execute function notifyq.capture_each('changes', '')"
        )
        with pytest.raises(QueueDeniedError, match="the owner of the captured table"):
            await other.execute("insert into mine values (1)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await writer.execute("select messages.capture('item', 'changes')")
    finally:
        await connection.execute("drop table if exists item, mine")
        for role in roles.values():
            await connection.execute(f"drop owned by {role}; drop role {role}")


async def test_an_event_that_is_refused_refuses_the_change(
    connection: Connection, captured: Captured
) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    await value(connection, "pause_stream", name="changes")
    with pytest.raises(asyncpg.PostgresError, match="paused"):
        await connection.execute("insert into item values (1)")
    assert await connection.fetchval("select count(*) from item") == 0
    await value(connection, "resume_stream", name="changes")
    await connection.execute("insert into item values (1)")
    (event,) = await captured.events()
    assert event["of"] == "1"


@pytest.mark.parametrize(
    "trigger",
    [
        "for each row execute function notifyq.capture_each('changes', '{{{{{{{a}}}}}}}')",
        "for each row when (new.id" + " + 1" * 5000 + " > 0) "
        "execute function notifyq.capture_each('changes', '')",
    ],
    ids=["columns", "condition"],
)
async def test_a_capture_that_cannot_be_shown_hides_no_other(
    connection: Connection, captured: Captured, trigger: str
) -> None:
    await connection.execute(TABLE)
    await captured.begin()
    await connection.execute("create table bad (id integer)")
    await connection.execute("set max_stack_depth = '7MB'")
    await connection.execute(f"create trigger t after insert on bad {trigger}")
    await connection.execute("set max_stack_depth = '100kB'")
    shown = {
        row["relation"]: row for row in await connection.fetch("select * from messages.captures()")
    }
    assert {"bad", "item"} == set(shown)
    assert shown["item"]["problem"] is None
    assert "cannot be" in str(shown["bad"]["problem"]) + str(shown["bad"]["condition"])
    await value(connection, "uncapture", relation="item", stream="changes")
    await connection.execute("select messages.uncapture('bad', 'changes')")
    await value(connection, "drop_stream", name="changes", force=True)


async def test_a_long_key_of_a_row_is_hashed(connection: Connection, captured: Captured) -> None:
    await connection.execute("create table item (id text primary key)")
    await captured.begin()
    await connection.execute(
        "insert into item select repeat('x', n) from generate_series(200, 201) n"
    )
    events = await captured.events()
    hashed = await connection.fetchval("select md5(repeat('x', 201))")
    assert [it["of"] for it in events] == ["x" * 200, hashed]
    assert [it["key"]["id"] for it in events] == ["x" * 200, "x" * 201]
