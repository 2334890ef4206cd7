"""An attacker who makes types, tables and functions: none of that code runs with other rights."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from security.conftest import Enter, role_name
from support.database import Connection

every_role = pytest.mark.parametrize("attacker", ["reader", "publisher", "worker"], indirect=True)
a_publisher = pytest.mark.parametrize("attacker", ["publisher"], indirect=True)
a_worker = pytest.mark.parametrize("attacker", ["worker"], indirect=True)
HOSTILE = """
    create table {s}.seen (who text, how text);
    grant insert on {s}.seen to public;
    grant usage on schema {s} to public;
    create function {s}.note(how text) returns boolean language plpgsql as $$
      begin
        insert into {s}.seen values (current_user, how);
        begin
          delete from messages.queue_grant;
          insert into {s}.seen values ('deleted grants', how);
        exception when insufficient_privilege then null;
        end;
        return true;
      exception when read_only_sql_transaction or feature_not_supported then return true;
      end $$;
    create function {s}.check_text(given text) returns boolean language sql volatile as
      $$ select {s}.note('check: ' || coalesce(given, '-')) $$;
    create domain {s}.inner_trap as text check ({s}.check_text(value));
    create domain {s}.outer_trap as text check (value is null or value::{s}.inner_trap is not null);
    create domain {s}.by_query as text check (
      (query_to_xml('select {s}.note(''query'')', true, false, '')) is not null
    );
    create domain {s}.plain as text;
    create domain {s}.number_trap as integer check ({s}.check_text(value::text));
    create type {s}.mood as enum ('sad', 'happy');
    create function {s}.mood_json(given {s}.mood) returns json language plpgsql as
      $$ begin perform {s}.note('cast to json'); return '"hidden"'; end $$;
    create function {s}.mood_jsonb(given {s}.mood) returns jsonb language plpgsql as
      $$ begin perform {s}.note('cast to jsonb'); return '"hidden"'; end $$;
    create function {s}.mood_text(given {s}.mood) returns text language plpgsql as
      $$ begin perform {s}.note('cast to text'); return 'hidden'; end $$;
    create function {s}.mood_of(given text) returns {s}.mood language plpgsql as
      $$ begin perform {s}.note('cast of text'); return enum_first(null::{s}.mood); end $$;
    create cast ({s}.mood as json) with function {s}.mood_json({s}.mood) as implicit;
    create cast ({s}.mood as jsonb) with function {s}.mood_jsonb({s}.mood) as implicit;
    create cast ({s}.mood as text) with function {s}.mood_text({s}.mood) as implicit;
    create cast (text as {s}.mood) with function {s}.mood_of(text) as implicit;
    create type {s}.pair as (a integer, b {s}.outer_trap, c {s}.mood);
    create type {s}.nest as (p {s}.pair, q {s}.pair[], r {s}.mood[]);
    create function {s}.difference(a {s}.number_trap, b {s}.number_trap) returns float8
      language plpgsql immutable as $$ begin perform {s}.note('difference'); return 0; end $$;
    create type {s}.span as range (subtype = {s}.number_trap, subtype_diff = {s}.difference);
    create type {s}.moods as range (subtype = {s}.mood);
    create function {s}.same(a {s}.mood, b {s}.mood) returns boolean language plpgsql as
      $$ begin perform {s}.note('operator'); return true; end $$;
    create operator {s}.= (leftarg = {s}.mood, rightarg = {s}.mood, function = {s}.same);
    create operator {s}.<> (leftarg = {s}.mood, rightarg = {s}.mood, function = {s}.same);
    create collation {s}.odd (provider = icu, locale = 'und', deterministic = false);
    create domain {s}.collated as text collate {s}.odd check ({s}.check_text(value));
"""


class Attacker:
    """A role with a schema of its own, and what the hostile code in it has noted."""

    def __init__(self, session: Connection, owner: Connection, name: str) -> None:
        self.session, self.owner, self.name = session, owner, name
        self.schema = f"evil_{name}"

    async def run(self, statement: str) -> None:
        await self.session.execute(statement.replace("{s}", self.schema))

    async def tries(self, statement: str) -> asyncpg.PostgresError | None:
        """Run it, whatever comes of it."""
        try:
            await self.run(statement)
        except asyncpg.PostgresError as error:
            return error
        return None

    async def seen(self) -> set[tuple[str, str]]:
        found = await self.owner.fetch(f"select who, how from {self.schema}.seen")
        return {(row["who"], row["how"]) for row in found}

    async def was_only_itself(self) -> None:
        for who, how in await self.seen():
            assert who == role_name(self.name), how


@pytest_asyncio.fixture
async def attacker(
    request: pytest.FixtureRequest, connection: Connection, enter: Enter
) -> AsyncIterator[Attacker]:
    name = str(request.param)
    await connection.execute(
        f"create schema evil_{name} authorization {role_name(name)};"
        "select messages.create_stream('st'); select messages.subscribe('st', 'r');"
        "select messages.create_queue('q');"
        "select messages.create_queue('kept'); select messages.grant_queue('kept', 'notifyq_admin')"
    )
    attacker = Attacker(await enter(name), connection, name)
    await attacker.run(HOSTILE)
    yield attacker
    # The grant is what each piece of hostile code tries to take away.
    assert await connection.fetchval("select count(*) from messages.queue_grant") == 1
    await attacker.was_only_itself()
    attacker.session.terminate()
    await connection.execute(f"drop owned by {role_name(name)} cascade")


@every_role
async def test_a_domain_over_a_domain_is_read_as_the_caller(attacker: Attacker) -> None:
    await attacker.run("""select messages.value_of('"x"', null::{s}.outer_trap)""")
    assert (role_name(attacker.name), "check: x") in await attacker.seen()


@a_worker
async def test_a_forged_event_is_read_as_the_caller(attacker: Attacker) -> None:
    await attacker.tries("""
        set notifyq.event = '{"stream": "st", "message": "x"}';
        select messages.dequeue(null::{s}.outer_trap)
    """)
    assert (role_name(attacker.name), "check: x") in await attacker.seen()


@a_publisher
async def test_a_captured_row_runs_no_cast(attacker: Attacker) -> None:
    await attacker.run("""
        create table {s}.t (id integer primary key, m {s}.mood);
        select messages.capture('{s}.t', 'st');
        insert into {s}.t values (1, 'sad');
    """)


# A value of each of these, as a text: hostile domains, rows, ranges and arrays of them.
KINDS = {
    "{s}.outer_trap": "x",
    "{s}.inner_trap[]": "{x,y}",
    "{s}.by_query": "x",
    "{s}.number_trap": "1",
    "{s}.mood": "sad",
    "{s}.mood[]": "{sad,happy}",
    "{s}.pair": "(1,x,sad)",
    "{s}.nest": '("(1,x,sad)","{""(2,y,sad)""}",{sad})',
    "{s}.span": "[1,5)",
    "{s}.moods": "[sad,happy]",
    "{s}.collated": "x",
    "{s}.plain": "x",
}
# How each function that takes or gives a value of a type of the caller's is called, with the value
# and its type. A new one has to be added here.
CALLS = {
    "value_of(jsonb,anyelement)": "select messages.value_of(to_jsonb($v${v}$v$::text), null::{t})",
    "dequeue(anyelement)": "select set_config('notifyq.event', jsonb_build_object('stream', "
    "'{q}', 'message', $v${v}$v$::text)::text, false), messages.dequeue(null::{t})",
    "enqueue(text,anyelement,integer,interval,timestamp with time zone,text,jsonb,text,text)":
    "select messages.enqueue('{q}'::text, $v${v}$v$::{t})",
}  # fmt: skip
# And what takes its text, which another function reads as a value of the type.
TEXTS = [
    "select messages.enqueue('{q}', $v${v}$v$)",
    "select messages.enqueue('{q}', $v${v}$v$::text)",
    "select messages.enqueue('{q}', 'x'::\"char\")",
    "select messages.publish('{q}', to_jsonb($v${v}$v$::text))",
    "select messages.publish_many('{q}', array[to_jsonb($v${v}$v$::text)])",
    "insert into messages.message (queue, message) values ('{q}', to_jsonb($v${v}$v$::text))",
    "insert into messages.stream_event (stream, message) values ('{q}', to_jsonb($v${v}$v$::text))",
    "select notifyq.admit_event('{q}', to_jsonb($v${v}$v$::text), null)",
    "select notifyq.receive_many('s', '{{1}}', '{{{q}}}', array[to_jsonb($v${v}$v$::text)], "
    "'{{0}}', '{{null}}', array['{{}}']::jsonb[], '{{null}}', '{{null}}', '{{null}}', '{{null}}')",
]


async def test_every_function_of_any_type_is_known(connection: Connection) -> None:
    found = await connection.fetch("""
        select p.oid::regprocedure::text as name, p.prosecdef as is_definer from pg_proc as p
        join pg_namespace as n on n.oid = p.pronamespace and n.nspname in ('messages', 'notifyq')
        where exists (
          select from unnest(p.proargtypes::oid[] || p.prorettype || p.proallargtypes) as u (type)
          join pg_type as t on t.oid = u.type
          where t.typname ~ '^any' and obj_description(p.oid, 'pg_proc') is not null
        )
    """)
    assert {row["name"].removeprefix("messages.") for row in found} == set(CALLS)
    assert not any(row["is_definer"] for row in found)


@every_role
@pytest.mark.parametrize("noun", ["queue", "stream"])
async def test_no_value_runs_what_is_hostile_with_other_rights(
    connection: Connection, attacker: Attacker, noun: str
) -> None:
    for number, (kind, text) in enumerate(KINDS.items()):
        type_name, target = kind.replace("{s}", attacker.schema), f"{noun}{number}"
        await connection.execute(
            f"select messages.create_{noun}('{target}', payload_type => '{type_name}')"
        )
        # A check that comes when the queue is there already.
        if kind == "{s}.plain":
            await attacker.run("""
                alter domain {s}.plain add check ({s}.check_text(value));
                alter type {s}.pair add attribute d {s}.outer_trap;
            """)
        for call in (*CALLS.values(), *TEXTS):
            await attacker.tries(call.format(t=type_name, v=text, q=target))
            await attacker.was_only_itself()
        await connection.execute(f"select messages.publish('{target}', to_jsonb('{text}'::text))")
        await attacker.was_only_itself()
    # All of it is hostile: this role has seen it run, as itself.
    how = {how for _, how in await attacker.seen()}
    assert {"query", "check: x", "check: 1"} <= how


CAPTURED = [
    ("id integer primary key, m {s}.mood", "(1, 'sad')"),
    ("m {s}.mood primary key, n {s}.mood[]", "('sad', '{sad,happy}')"),
    ("id integer, p {s}.pair, q {s}.nest", "(1, '(1,x,sad)', '(\"(1,x,sad)\",,{sad})')"),
    ("id integer, d {s}.outer_trap, n {s}.number_trap", "(1, 'x', 2)"),
    ("id integer, r {s}.moods, s {s}.span", "(1, '[sad,happy]', '[1,5)')"),
    ("id integer, c {s}.collated collate {s}.odd", "(1, 'x')"),
    ("id integer, m {s}.mood default {s}.mood_of('x')", "(1)"),
    ("id integer, g {s}.mood generated always as ('sad'::{s}.mood) stored", "(1)"),
]


@a_publisher
@pytest.mark.parametrize("condition", ["null", "'true'"])
async def test_no_captured_row_runs_what_is_hostile(attacker: Attacker, condition: str) -> None:
    for columns, row in CAPTURED:
        await attacker.run(f"""
            create table {{s}}.t ({columns});
            select messages.capture('{{s}}.t', 'st', condition => {condition});
        """)
        await attacker.run(f"insert into {{s}}.t values {row}")
        first = columns.split()[0]
        await attacker.tries(f"update {{s}}.t set {first} = {first}")
        await attacker.tries("delete from {s}.t; truncate {s}.t")
        await attacker.was_only_itself()
        await attacker.run("drop table {s}.t")


@a_publisher
async def test_a_captured_view_runs_nothing(attacker: Attacker) -> None:
    await attacker.run("""
        create view {s}.v as select 1 as id, 'sad'::{s}.mood as m, {s}.note('view') as n;
        create trigger t instead of insert on {s}.v for each row
          execute function notifyq.capture_each('st', '');
        insert into {s}.v (id, m) values (2, 'happy');
    """)
    await attacker.was_only_itself()


@a_publisher
@pytest.mark.parametrize("function", ["capture_rows", "capture_updates"])
async def test_a_temporary_view_stands_in_for_no_transition_table(
    attacker: Attacker, function: str
) -> None:
    """The trigger has none; its function reads the name all the same."""
    await attacker.run(f"""
        create temporary view captured as select {{s}}.note('masked') as id;
        create temporary view captured_old as select {{s}}.note('masked') as id;
        grant select on captured, captured_old to public;
        create table {{s}}.t (id integer);
        insert into {{s}}.t values (1);
        create trigger t after insert or update on {{s}}.t
          for each statement execute function notifyq.{function}('st', '');
    """)
    for statement in ("insert into {s}.t values (2)", "update {s}.t set id = 3"):
        error = await attacker.tries(statement)
        assert error is not None
        assert "transition tables" in str(error)
    assert await attacker.seen() == set()


@a_publisher
@pytest.mark.parametrize(
    "arguments", ["'st', '{broken'", "'st', '{{a},{b}}'", "'st', '[9:8]={}'", "'st', '{gone}'",
                  "'st'", "", "'st', '', 'more'", "'st', '{NULL}'", "'nope', ''"]
)  # fmt: skip
async def test_a_trigger_of_ones_own_leaves_a_stream_manageable(
    connection: Connection, attacker: Attacker, arguments: str
) -> None:
    await attacker.run(f"""
        create table {{s}}.t (id integer, gone integer);
        create temporary table mine (id integer);
        create table {{s}}.parts (id integer) partition by range (id);
        create trigger t after insert on {{s}}.t for each row
          execute function notifyq.capture_each({arguments});
        create trigger t after insert on mine for each row
          execute function notifyq.capture_each({arguments});
        create trigger t after insert on {{s}}.parts for each row
          execute function notifyq.capture_each({arguments});
        create view {{s}}.v as select 1 as id;
        create trigger t instead of insert on {{s}}.v for each row
          execute function notifyq.capture_each({arguments});
        alter table {{s}}.t drop column gone;
    """)
    found = await connection.fetch(
        "select relation::text, stream, problem from messages.captures()"
    )
    assert len(found) == 4
    if "broken" in arguments or "gone" in arguments:
        assert all(row["problem"] for row in found)
    # Only its owner may take such a trigger away, but it keeps nobody from dropping the stream.
    await connection.execute("select messages.grant_queue('st', 'notifyq_admin')")
    assert await connection.fetchval("select messages.drop_stream('st', true)") == 1
    stream = found[0]["stream"]
    assert await attacker.session.fetchval(
        f"select messages.uncapture('{attacker.schema}.t', $1)", stream
    )
    assert (
        len(
            await connection.fetch(
                "select name from messages.captures() as c, unnest(c.triggers) as t (name)"
            )
        )
        == 3
    )


@a_publisher
async def test_a_capture_keeps_a_stream_only_of_who_may_publish_into_it(
    connection: Connection, attacker: Attacker
) -> None:
    await attacker.run("create table {s}.t (id integer); select messages.capture('{s}.t', 'st')")
    with pytest.raises(asyncpg.PostgresError, match="tables are captured into stream"):
        await connection.execute("select messages.drop_stream('st', true)")
    await connection.execute("select messages.grant_queue('st', 'notifyq_admin')")
    [capture] = await connection.fetch("select problem from messages.captures('st')")
    assert capture["problem"] == "the owner of the table may not publish into the stream"
    await connection.execute("select messages.drop_stream('st', true)")


@a_publisher
async def test_a_capacity_is_kept_whatever_is_set(
    connection: Connection, attacker: Attacker
) -> None:
    await connection.execute("select messages.create_queue('small', capacity => 3)")
    for name in ("room", "took"):
        await attacker.run(
            f"select set_config('notifyq.{name}_' || to_hex(hashtextextended('small', 0)), "
            "'9223372036854775806', false)"
        )
    error = await attacker.tries(
        "insert into messages.message (queue, message) "
        "select 'small', '1' from generate_series(1, 9)"
    )
    assert error is not None
    assert error.sqlstate == "NQ010"
    # Nor by a key that is no key of the session.
    other = "set notifyq.keyed = 'yes'; select messages.publish('small', '1')"
    assert await attacker.tries("discard all; " + other) is not None
