"""An attacker who makes types, tables and functions: none of that code runs with other rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio

from security.conftest import role_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from database import Connection
    from security.conftest import Enter

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
      $$ begin perform {s}.note('cast of text'); return 'sad'; end $$;
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
