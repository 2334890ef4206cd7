"""`notifyq doctor`: it finds all damage, gives advice, and reports nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from cli.programs import Notifyq
from notifyq.operations.doctor import (
    Finding,
    Level,
    access,
    activity,
    examine,
    maintenance,
    server,
    storage,
    streams,
)
from notifyq.operations.doctor.finding import Context
from notifyq.operations.doctor.run import CHECKS
from support.database import Connect, Connection, publish, session

pytestmark = pytest.mark.usefixtures("advice_that_works")


async def findings(dsn: str) -> dict[str, Finding]:
    return {name: finding async for name, finding in examine(dsn)}


class Scripted:
    """A connection whose answers the test sets."""

    sees_all = True
    blind_spot = ""

    def __init__(self, *answers: Any, dsn: str = "postgresql://db.example/x") -> None:
        self._answers = list(answers)
        self.dsn = dsn
        self.source = "NOTIFYQ_DSN"
        self.connection = self

    async def value(self, *_: Any) -> Any:
        return self._answers.pop(0)

    row = fetch = fetchrow = value


async def judged(check: Any, *answers: Any, **options: Any) -> Finding:
    found: Finding = await check(Scripted(*answers, **options))
    return found


async def test_a_fresh_install_is_well(database: str) -> None:
    found = await findings(database)
    assert list(found) == list(CHECKS)
    # The server of the tests may be one that forgets all in a crash, and holds no worker; and
    # commands of others on this machine may have passwords in their arguments.
    bad = {name for name, finding in found.items() if finding.level is not Level.OK}
    assert bad <= {"server", "durability", "public", "owner", "cron", "password"}
    assert all(found[name].advice for name in bad)
    assert {found[name].level for name in bad} <= {Level.WARN}


@pytest.mark.parametrize(
    ("damage", "check", "text"),
    [
        ("grant select on messages.queue to public", "public", "open to PUBLIC: messages.queue"),
        ("grant usage on schema messages to public", "public", "open to PUBLIC: schema messages"),
        ("drop schema messages, notifyq cascade", "schema", "does not exist"),
        ("drop schema messages, notifyq cascade", "install", "is not installed"),
        (
            "drop function notifyq.diagnose()",
            "maintenance",
            "the schema in the database and this package do not fit",
        ),
    ],
)
async def test_damage_without_a_fix_is_a_failure(
    database: str, connection: Connection, damage: str, check: str, text: str
) -> None:
    await connection.execute(damage)
    finding = (await findings(database))[check]
    assert finding.level is Level.FAIL
    assert text in finding.found
    assert finding.advice


async def test_a_missing_partition_and_misplaced_rows(
    database: str, connection: Connection
) -> None:
    await publish(connection, 1)
    today = await connection.fetchval(
        "select notifyq.partition_name((clock_timestamp() at time zone 'UTC')::date)"
    )
    await connection.execute(
        f"alter table messages.message_archive detach partition notifyq.{today}"
    )
    await connection.execute(f"drop table notifyq.{today}")
    assert "an archive partition for today" in (await findings(database))["install"].found
    await connection.execute("select messages.cancel(id) from messages.message")
    await connection.execute(f"create table notifyq.{today} ()")
    finding = (await findings(database))["install"]
    assert (finding.level, finding.found[:22]) == (Level.WARN, "1 archived messages ar")


async def test_a_database_of_another_server(database: str, connection: Connection) -> None:
    assert (await findings(database))["origin"].level is Level.OK
    await connection.execute("update notifyq.origin set system_identifier = 1")
    finding = (await findings(database))["origin"]
    assert (finding.level, finding.advice) == (Level.WARN, "run `notifyq migrate --adopt`")


async def test_lakes_that_are_not_exported_into(database: str, connection: Connection) -> None:
    assert (await findings(database))["lakes"].found == "0 lakes"
    await connection.execute("select notifyq.create_lake('/lake')")
    assert (await findings(database))["lakes"].level is Level.OK
    await connection.execute("update notifyq.lake set exported_at = now() - interval '3 days'")
    finding = (await findings(database))["lakes"]
    assert (finding.level, finding.found) == (
        Level.WARN,
        "nothing was exported into /lake for 3 d",
    )
    assert "messages.forget_lake(1)" in finding.advice
    await connection.execute("update notifyq.lake set position = '1:1:1/1:1:'")
    finding = (await findings(database))["lakes"]
    assert finding.level is Level.FAIL
    assert finding.found.startswith("nothing can be exported into /lake: ")


async def test_subscribers_that_are_stuck_and_forwards_that_fail(
    database: str, connection: Connection
) -> None:
    names = ("subscribers", "segments", "forwards")
    found = await findings(database)
    assert {found[name].level for name in names} == {Level.OK}
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.create_queue('gone')")
    await connection.execute("select messages.forward('s', 'slow', 'gone')")
    await publish(connection, 3, "s")
    found = await findings(database)
    assert {found[name].level for name in names} == {Level.OK}
    await connection.execute(
        "update messages.event set created_at = created_at - interval '2 days'"
    )
    await connection.execute("select messages.drop_queue('gone')")
    assert await connection.fetchval("select notifyq.forward_pending()") == 0
    found = await findings(database)
    assert found["subscribers"].level is Level.WARN
    assert found["subscribers"].found == "slow of stream s is 2 d behind"
    assert found["forwards"].level is Level.FAIL
    assert found["forwards"].found == (
        "slow of stream s is not forwarded into queue gone: there is no queue 'gone'"
    )
    await connection.execute("select messages.alter_stream('s', max_lag => '1 day')")
    await connection.execute("select messages.maintain()")
    finding = (await findings(database))["subscribers"]
    assert (finding.level, finding.found[:19]) == (Level.FAIL, "events of slow were")
    many = await judged(streams.check_segments, [{"segments": 13, "stream": "s"}])
    assert (many.level, many.found[:8]) == (Level.WARN, "stream s")


async def test_schedules_that_do_not_fire(database: str, connection: Connection) -> None:
    assert (await findings(database))["schedules"] == Finding(Level.OK, "none")
    await connection.execute("select messages.schedule('s', '@hourly', 'default')")
    assert (await findings(database))["schedules"].found == "1 of 1 schedules are enabled"
    await connection.execute("update messages.schedule set next_at = next_at - interval '4 h'")
    finding = (await findings(database))["schedules"]
    assert (finding.level, finding.found[:22]) == (Level.FAIL, "a schedule is due for ")
    await connection.execute("update messages.schedule set failed_at = now(), last_error = 'no'")
    finding = (await findings(database))["schedules"]
    assert (finding.level, finding.found) == (Level.FAIL, "schedule s cannot fire: no")
    await connection.execute("select messages.pause_schedule('s')")
    assert (await findings(database))["schedules"].found == "0 of 1 schedules are enabled"


async def test_missing_maintenance(database: str, connection: Connection) -> None:
    await publish(connection, 2)
    await connection.execute("select messages.claim()")
    assert (await findings(database))["maintenance"] == Finding(
        Level.OK, "no expired lock and no due message waits"
    )
    await connection.execute(
        "update messages.message set lock_expires_at = now() - interval '90 s' "
        "where state = 'locked'"
    )
    assert (await findings(database))["maintenance"].level is Level.OK
    await connection.execute(
        "update messages.message set lock_expires_at = now() - interval '3 h' "
        "where state = 'locked'"
    )
    finding = (await findings(database))["maintenance"]
    assert finding.level is Level.FAIL
    assert "3 h" in finding.found
    await connection.execute("select messages.reap()")
    # After the trigger ran: due, but scheduled.
    await connection.execute(
        "select messages.publish('default', '1', delay => interval '1 day'); "
        "update messages.message set available_at = now() - interval '5 h' "
        "where state = 'scheduled'"
    )
    assert "has waited for 5 h" in (await findings(database))["maintenance"].found


async def test_unhandled_messages(database: str, connection: Connection) -> None:
    await publish(connection, 1)
    assert (await findings(database))["backlog"].level is Level.OK
    await connection.execute("update messages.message set available_at = now() - interval '1 h'")
    finding = (await findings(database))["backlog"]
    assert (finding.level, finding.found) == (
        Level.WARN,
        "the next message has waited for 60 min in queue default",
    )
    await connection.execute("select messages.pause_queue('default')")
    assert (await findings(database))["backlog"].found == "no message waits"


async def test_sessions_that_block_others(
    database: str, connection: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LONG_IDLE", "_LONG_TRANSACTION"):
        monkeypatch.setattr(activity, name, timedelta(0))
    monkeypatch.setattr(activity, "_MANY", -1)
    holder = await connect(server_settings={"application_name": "report"})
    async with holder.transaction(isolation="repeatable_read"):
        await holder.execute("select pg_current_xact_id()")
        pid = holder.get_server_pid()
        found = await findings(database)
        assert found["idle"].level is Level.WARN
        assert f"session {pid} of " in found["idle"].found
        assert "(report) is idle in a transaction" in found["idle"].found
        assert f"session {pid} of " in found["snapshots"].found
        assert found["snapshots"].advice == f"select pg_terminate_backend({pid})"
    sleeping = asyncio.create_task(holder.execute("select pg_sleep(60)"))
    try:
        while "takes longer" in (finding := (await findings(database))["long"]).found:
            assert not sleeping.done()
        assert f"session {pid} of " in finding.found
    finally:
        await connection.execute("select pg_cancel_backend($1)", pid)
        with pytest.raises(asyncpg.QueryCanceledError):
            await sleeping


async def test_a_pooler_that_drops_session_state(database: str, connection: Connection) -> None:
    context = Context(connection, database, "--dsn", sees_all=True)
    await connection.execute("set default_transaction_isolation = serializable")
    assert "is serializable although" in (await server.check_session(context)).found
    await connection.execute("reset default_transaction_isolation; set statement_timeout = '5s'")
    assert "statement_timeout is 5s although" in (await server.check_session(context)).found


@pytest.fixture
async def stranger(server: str) -> AsyncIterator[str]:
    """Give a database user without any right."""
    async with session(server) as admin:
        await admin.execute("create role test_patient login password 'doctor'")
        yield "test_patient"
        await admin.execute("drop owned by test_patient")
        await admin.execute("drop role test_patient")


async def test_a_missing_right_is_named(
    database: str, connection: Connection, stranger: str
) -> None:
    dsn = f"postgresql://{stranger}:doctor@{database.rpartition('@')[2]}"
    found = await findings(dsn)
    assert not [finding for finding in found.values() if finding.level is Level.FAIL]
    blind = {name for name, finding in found.items() if finding.level is Level.SKIPPED}
    assert blind == {
        "autovacuum",
        "functions",
        "partitions",
        "tables",
        "workers",
        "snapshots",
        "locks",
        "schema",
        "install",
        "origin",
        "maintenance",
        "schedules",
        "backlog",
        "subscribers",
        "segments",
        "forwards",
        "lakes",
        "idle",
        "long",
    }
    assert "notifyq_worker" in found["install"].advice
    await connection.execute(f"grant notifyq_worker to {stranger}")
    found = await findings(dsn)
    assert found["snapshots"].found.endswith("others need pg_read_all_stats)")
    assert "pg_read_all_stats" in found["idle"].advice
    await connection.execute(f"grant pg_monitor to {stranger}")
    found = await findings(dsn)
    assert found["schedules"].level is Level.SKIPPED
    assert "notifyq_reader" in found["schedules"].advice
    await connection.execute(f"grant notifyq_reader to {stranger}")
    found = await findings(dsn)
    blind = {name for name, finding in found.items() if finding.level is Level.SKIPPED}
    assert blind <= {"cron"}  # whose entries are those of another
    await connection.execute(f"revoke notifyq_worker, notifyq_reader, pg_monitor from {stranger}")


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (140019, Level.FAIL),
        (150015, Level.WARN),
        (150016, Level.WARN),
        (150017, Level.OK),
        (160012, Level.WARN),
        (160013, Level.OK),
        (170007, Level.WARN),
        (170008, Level.WARN),
        (170009, Level.OK),
        (180001, Level.WARN),
        (180002, Level.WARN),
        (180003, Level.OK),
        (190000, Level.OK),
    ],
)
async def test_versions(number: int, level: Level) -> None:
    finding = await judged(server.check_server, str(number))
    assert finding.level is level
    assert f"PostgreSQL {number // 10_000}.{number % 10_000}" == finding.found


async def test_clock_and_dead_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "time", lambda: 1000.0)
    for theirs, level in ((1000.0, Level.OK), (1060.0, Level.WARN), (940.0, Level.WARN)):
        assert (await judged(server.check_clock, theirs)).level is level
    rows = {"vacuums": True, "counts": True, "is_excluded": False, "live": 10, "dead": 200_000}
    assert (await judged(storage.check_autovacuum, rows)).level is Level.WARN


@pytest.mark.parametrize(
    ("xids", "multixacts", "level"),
    [
        (1000, 5, Level.OK),
        (500_000_000, 5, Level.WARN),
        (1000, 900_000_000, Level.WARN),
        (1_300_000_000, 5, Level.FAIL),
    ],
)
async def test_how_far_the_end_of_transaction_numbers_is(
    xids: int, multixacts: int, level: Level
) -> None:
    row = {"most": 200_000_000, "most_multixacts": 400_000_000, "name": "x", "is_open": True}
    row |= {"xids": xids, "multixacts": multixacts}
    assert (await judged(storage.check_frozen, row)).level is level


@pytest.mark.parametrize(("usage", "level"), [(0, Level.OK), (0.2, Level.WARN), (0.5, Level.FAIL)])
async def test_a_full_notification_queue(usage: float, level: Level) -> None:
    finding = await judged(
        activity.check_notify_queue, usage, "session 5 of me in database d (idle)"
    )
    assert finding.level is level
    assert (level is Level.OK) != ("session 5 of me" in finding.advice)


CRON = {
    "entry": "notifyq maintain",
    "schedule": "10 seconds",
    "is_active": True,
    "user_name": "me",
    "last_status": "succeeded",
    "last_message": "1 row",
    "failed": 0,
}
REAP = {**CRON, "entry": "notifyq reap", "last_started_at": None}
PURGE = {**CRON, "entry": "notifyq purge", "last_started_at": None}


@pytest.mark.parametrize(
    ("workers", "version", "row", "level", "text"),
    [
        (2, None, None, Level.OK, "2 worker sessions do maintenance"),
        (0, None, None, Level.WARN, "neither pg_cron in this database nor a worker"),
        (0, "1.6", CRON, Level.OK, "pg_cron 1.6 runs maintenance: 10 seconds"),
        (0, "1.4-1", {"schedule": "* * * * *"}, Level.OK, "once a minute, the most before 1.5"),
        (0, "1.6", {"schedule": "* * * * *"}, Level.WARN, "once a minute only"),
        (0, "1.6", {"last_status": "failed", "last_message": "a\nb"}, Level.FAIL, "failed: a b"),
        (0, "1.6", {"last_status": None, "age": None}, Level.OK, "runs maintenance"),
        (0, "1.6", {"age": timedelta(hours=3)}, Level.WARN, "ran 3 h ago"),
        (0, "1.6", {"is_active": False}, Level.WARN, "is inactive"),
        (0, "1.6", {"failed": 2}, Level.WARN, "2 runs of pg_cron failed within an hour"),
    ],
)
async def test_pg_cron(
    workers: int, version: str | None, row: Mapping[str, Any] | None, level: Level, text: str
) -> None:
    given = {**CRON, "age": timedelta(seconds=3), **(row or {})}
    age = given.pop("age")
    entry = {**given, "last_started_at": None if age is None else datetime.now(UTC) - age}
    # Whether there is the role that it runs as, or, without pg_cron, where pg_cron is.
    there = {"is_there": True, "home": None}
    answers = [there] if version is None else [[entry, REAP, PURGE], there]
    finding = await judged(maintenance.check_cron, workers, version, *answers)
    assert finding.level is level
    assert text in finding.found


async def test_a_missing_pg_cron_entry() -> None:
    finding = await judged(maintenance.check_cron, 1, "1.6", [], True)
    assert finding.level is Level.WARN
    assert (await judged(maintenance.check_cron, 1, "1.6", [], False)).level is Level.SKIPPED
    row = {**CRON, "last_started_at": None}
    there = {"is_there": True}
    without_reap, without_purge = [row, PURGE], [row, REAP]
    missing = await judged(maintenance.check_cron, 1, "1.6", without_reap, there)
    assert "reaps no lock" in missing.found
    missing = await judged(maintenance.check_cron, 1, "1.6", without_purge, there)
    assert "forever" in missing.found
    assert "has no entry `notifyq maintain` that this user may see" in finding.found


@pytest.mark.parametrize(
    ("dsn", "ssl", "level", "text"),
    [
        ("postgresql://db.example/x", False, Level.WARN, "unencrypted"),
        ("postgresql://db.example/x?sslmode=require", True, Level.WARN, "sslmode=require does not"),
        ("postgresql://db.example/x", True, Level.WARN, "sslmode=prefer does not"),
        ("postgresql://db.example/x?sslmode=verify-full", True, Level.OK, "is verified"),
        ("postgresql://127.0.0.1/x", False, Level.OK, "on this machine"),
        ("postgresql://u:p@[::1]:5432,localhost/x", False, Level.OK, "on this machine"),
        ("postgresql:///x?host=/run/postgresql", False, Level.OK, "on this machine"),
        ("postgresql://localhost,10.0.0.1/x", False, Level.WARN, "unencrypted"),
    ],
)
async def test_tls(
    monkeypatch: pytest.MonkeyPatch, dsn: str, ssl: bool, level: Level, text: str
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGSSLMODE", raising=False)
    row = {"ssl": ssl, "version": "TLSv1.3", "server": "10.0.0.1"}
    finding = await judged(access.check_tls, row, dsn=dsn)
    assert finding.level is level
    assert text in finding.found


async def test_the_source_of_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_showing", list)
    finding = await judged(access.check_password, dsn="postgresql://me:secret@db.example/x")
    assert finding == Finding(Level.OK, "the DSN comes from NOTIFYQ_DSN and contains a password")
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://db.example/x")
    monkeypatch.setenv("NOTIFYQ_DSN_FILE", "/etc/notifyq.dsn")
    assert (await judged(access.check_password)).level is Level.WARN


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")  # noqa: PTH112
def test_a_process_that_shows_a_password() -> None:
    waits = [sys.executable, "-c", "input()", "notifyq", "worker", "--dsn=postgresql://me:s@h/x"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        finding = asyncio.run(judged(access.check_password))
        process.communicate(b"\n")
    assert finding.level is Level.WARN
    assert str(process.pid) in finding.found
    assert ":s@" not in finding.found


def test_the_command_prints_a_line_for_each_check(notifyq: Notifyq, shared_database: str) -> None:
    result = notifyq("doctor")
    assert result.err == ""
    lines = result.out.splitlines()
    assert [line.split()[1] for line in lines] == list(CHECKS)
    assert {line.split()[0] for line in lines} <= set(Level)
    assert result.code == 0
    rows = notifyq("doctor", "--json").data
    assert [row["check"] for row in rows] == list(CHECKS)
    assert all((row["advice"] is None) == (row["level"] == "ok") for row in rows)
    assert shared_database not in result.out


async def test_the_command_without_a_schema(anywhere: Notifyq, empty_database: str) -> None:
    result = anywhere("doctor", env={"NOTIFYQ_DSN": empty_database})
    assert result.code == 1
    assert "schema messages is not installed: run `notifyq init`" in result.out
    assert result.err == ""
