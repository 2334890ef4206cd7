"""plpgsql_check reads every function body as the server would, before anybody runs it."""

import pytest

from support.database import Connection

CHECK = """
    select p.oid::regprocedure || ' line ' || coalesce(c.lineno, 0) || ': ' || c.level || ': '
      || c.message
    from pg_proc as p
    left join (
      select g.tgfoid, g.tgrelid, g.tgnewtable::text as new, g.tgoldtable::text as old
      from pg_trigger as g where not g.tgisinternal and g.tgparentid = 0
    ) as t on t.tgfoid = p.oid
    cross join lateral plpgsql_check_function_tb(
      p.oid, coalesce(t.tgrelid, 0), fatal_errors => false, other_warnings => true,
      extra_warnings => true, performance_warnings => true, security_warnings => true,
      oldtable => t.old, newtable => t.new
    ) as c
    where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and p.prolang = (select l.oid from pg_language as l where l.lanname = 'plpgsql')
      and not (p.proname in ('raise_invalid', 'raise_foreign_position', 'uncapture')
        and c.level = 'performance')
      -- They lock rows inside of an array or a subquery, which is not seen.
      and not (
        p.proname in ('lock_live', 'lock_waiting', 'waiting_keys') and c.level = 'performance'
      )
      -- It is to see a batch that was opened by the same statement.
      and not (p.proname = 'batch_events' and c.level = 'performance')
      -- It runs as its caller, and the caller gives a part of the statement.
      and not (p.proname = 'capture' and c.level = 'security')
    order by 1
"""


@pytest.fixture
async def checker(connection: Connection) -> Connection:
    await connection.execute("create extension plpgsql_check")
    # Some triggers are there while a queue needs them.
    await connection.execute("select messages.create_queue('full', capacity => 1)")
    await connection.execute("select messages.create_queue('typed', payload_type => 'text')")
    await connection.execute("select messages.create_queue('secret', encrypted => true)")
    await connection.execute(
        "select messages.create_queue("
        "'ring', capacity => 1, overflow => 'drop_oldest', durable => false)"
    )
    # Some are for a database with another encoding.
    for table, function in (("message", "check_utf8"), ("message_archive", "escape_details")):
        await connection.execute(
            f"create trigger utf8 before insert on messages.{table} "
            f"for each row execute function notifyq.{function}()"
        )
    # And those for changes while a table is captured.
    await connection.execute("create table captured_table (id integer)")
    await connection.execute("select messages.create_stream('changes')")
    await connection.execute(
        "select messages.capture('captured_table', 'changes', operations => "
        "'{insert,update,truncate}')"
    )
    return connection


@pytest.mark.plpgsql_check
async def test_every_function_passes_the_check(checker: Connection) -> None:
    assert [row[0] for row in await checker.fetch(CHECK)] == []


@pytest.mark.plpgsql_check
@pytest.mark.parametrize(
    "body",
    [
        "perform x from messages.message",
        "return messages.nope()",
        "return 'text'",
        "declare v integer; begin null; end",
        "execute 'select ' || a",
    ],
)
async def test_the_check_finds_what_is_wrong(checker: Connection, body: str) -> None:
    """A check that finds nothing must be one that could."""
    await checker.execute(
        "create function messages.broken(a text) returns integer language plpgsql as "
        f"$$ begin {body}; end $$"
    )
    assert any("broken" in row[0] for row in await checker.fetch(CHECK))
