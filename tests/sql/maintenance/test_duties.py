"""A duty of maintenance that fails stops no other, and its error is kept until it succeeds."""

from datetime import timedelta

from notifyq.operations.doctor import examine
from support.database import Connection, alive, claim_one, expire, make_due, one_row, publish, value

DUTIES = "select * from notifyq.maintain_duties(null)"
# A function keeps its signature, and raises an error with this SQLSTATE.
BREAK = r"""
do $break$
begin
  execute (
    select regexp_replace(
      replace(pg_get_functiondef(p.oid), 'LANGUAGE sql', 'LANGUAGE plpgsql'),
      'AS \$function\$.*\$function\$',
      format('as $f$ begin raise exception ''broken'' using errcode = %L; end $f$', '{code}')
    )
    from pg_proc as p
    where p.oid::regproc = '{function}'::regproc
  );
end;
$break$
"""
FAIL = "select notifyq.run_duty('fail', 'messages', 'reap', -1)"
CODES = ("42501", "42P01", "42883", "40001", "40P01", "53100", "55P03", "P0001", "P0004", "XX000")


async def run(connection: Connection, duty: str, call: tuple[str, str, list[int]]) -> str | None:
    result: str | None = await connection.fetchval(
        "select notifyq.run_duty($1, $2, $3, variadic $4::bigint[])", duty, *call
    )
    return result


async def broken(connection: Connection, call: tuple[str, str, list[int]], code: str) -> None:
    function = ".".join(call[:2])
    await connection.execute(BREAK.format(code=code, function=function))


async def failures(connection: Connection) -> dict[str, str]:
    kept = await connection.fetch("select duty, code from notifyq.duty_failure where failures > 0")
    return {row["duty"]: row["code"] for row in kept}


async def calls(connection: Connection) -> dict[str, tuple[str, str, list[int]]]:
    return {
        row["duty"]: (row["schema"], row["function"], row["arguments"])
        for row in await connection.fetch(DUTIES)
    }


async def test_each_duty_may_fail_and_all_others_go_on(connection: Connection) -> None:
    everything = await calls(connection)
    assert len(everything) > 20
    for duty, call in everything.items():
        await connection.execute("begin")
        await broken(connection, call, "42501")
        await run(connection, duty, call)
        assert await failures(connection) == {duty: "42501"}
        for other in everything.keys() - {duty}:
            await run(connection, other, everything[other])
        assert await failures(connection) == {duty: "42501"}
        await connection.execute("rollback")


async def test_retention_that_fails_does_not_stop_reaping(
    database: str, connection: Connection
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2)
    functions = await calls(connection)
    for code in CODES:
        (held,) = await publish(connection, 1)
        await claim_one(connection)
        await expire(connection, held)
        later = timedelta(hours=1)
        delayed = await value(connection, "publish", queue="default", message=1, delay=later)
        await make_due(connection, delayed)
        await broken(connection, functions["delete by retention"], code)
        report = await one_row(connection, "select * from messages.maintain()")
        assert (report["reaped"], report["staged"]) == (1, 1)
        assert await failures(connection) == {"delete by retention": code}
        message = await alive(connection, held)
        assert message["state"] != "locked"
        found = {name: finding async for name, finding in examine(database, only=["maintenance"])}
        assert "maintenance cannot delete by retention: broken" in found["maintenance"].found
        await connection.execute("delete from messages.message; delete from notifyq.duty_failure")


async def test_a_duty_that_fails_pauses_and_its_error_goes_when_it_succeeds(
    connection: Connection,
) -> None:
    await connection.execute(FAIL)
    await connection.execute(FAIL)
    first = await one_row(connection, "select * from notifyq.duty_failure")
    assert (first["failures"], first["code"], first["error"]) == (
        1,
        "NQ003",
        "quantity must be between 1 and 100000, not -1",
    )
    assert first["next_at"] > first["failed_at"]
    for failed in range(2, 9):
        await connection.execute("update notifyq.duty_failure set next_at = clock_timestamp()")
        await connection.execute(FAIL)
        row = await one_row(connection, "select * from notifyq.duty_failure")
        assert (row["failures"], row["total"]) == (failed, failed)
        assert 1.9 < (row["next_at"] - row["failed_at"]).total_seconds() < 60.1
    await connection.execute("update notifyq.duty_failure set next_at = clock_timestamp()")
    await run(connection, "fail", ("messages", "reap", [7]))
    assert await failures(connection) == {}
    assert await connection.fetchval("select total from notifyq.duty_failure") == 8


async def test_an_audit_tool_that_refuses_new_tables_stops_no_other_duty(
    connection: Connection,
) -> None:
    (held,) = await publish(connection, 1)
    await claim_one(connection)
    await expire(connection, held)
    newest = await connection.fetchval(
        "select max(i.inhrelid::regclass::text) from pg_inherits as i "
        "where i.inhparent = 'messages.message_archive'::regclass and i.inhrelid::regclass::text "
        "~ '[0-9]{8}$'"
    )
    await connection.execute(f"drop table {newest}")
    await connection.execute(
        "create function public.refuse() returns event_trigger language plpgsql as "
        "$$ begin raise exception 'not audited'; end $$; "
        "create event trigger audit on ddl_command_start execute function public.refuse()"
    )
    report = await one_row(connection, "select * from messages.maintain()")
    assert (report["reaped"], report["partitions_made"]) == (1, 0)
    assert await failures(connection) == {"create days": "P0001"}
    await connection.execute("drop event trigger audit")
    await connection.execute("update notifyq.duty_failure set next_at = clock_timestamp()")
    assert (await value(connection, "maintain"))["partitions_made"] > 0
    assert await failures(connection) == {}
