"""`notifyq doctor` on sabotaged databases: each fault is made for real, found, and named.

Where `--fix` can fix it, the same check and all others are well afterwards.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest

from cli.programs import Notifyq
from notifyq.operations import monitor
from notifyq.operations.doctor import (
    CHECKS,
    Finding,
    Level,
    activity,
    apply_fixes,
    examine,
    steps,
)
from notifyq.operations.doctor.server import BUGS
from support.database import (
    ROOT,
    Connect,
    Connection,
    install,
    open_session,
    publish,
    session,
    until,
    value,
)

pytestmark = pytest.mark.usefixtures("advice_that_works")


async def found(dsn: str, *only: str) -> dict[str, Finding]:
    return {name: finding async for name, finding in examine(dsn, only=only)}


DROP_DAYS = """
do $$
declare
  v_name text;
begin
  for v_name in
    select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.{}'::regclass and c.relname ~ '_\\d{{8}}$'
      and right(c.relname, 8) {} to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD')
  loop
    execute format('drop table notifyq.%I', v_name);
  end loop;
end $$
"""
FIXED = {
    "a trigger is disabled": (
        "alter table messages.message disable trigger published",
        "install",
        "trigger published",
    ),
    "a trigger is dropped": (
        "drop trigger process_archived on messages.message_archive",
        "install",
        "trigger process_archived",
    ),
    "a trigger fires for replicas only": (
        "alter table messages.message enable replica trigger bound",
        "install",
        "trigger bound",
    ),
    "the trigger of grants is disabled": (
        "select messages.grant_queue('default', 'notifyq_admin'); "
        "alter table messages.message disable trigger admit",
        "install",
        "trigger admit",
    ),
    "the trigger of unlogged queues is disabled": (
        "alter table messages.message disable trigger a_divert",
        "install",
        "trigger a_divert",
    ),
    "the trigger of payloads is dropped": (
        "select messages.create_queue('typed', payload_type => 'integer'); "
        "select messages.create_queue('quick', durable => false); "
        "drop trigger payload on messages.message",
        "install",
        "trigger payload",
    ),
    "an index is dropped": (
        "drop index messages.message_locked_idx",
        "install",
        "index messages.message_locked_idx",
    ),
    "an index is invalid": (
        "update pg_index set indisvalid = false "
        "where indexrelid = 'messages.message_waiting_idx'::regclass",
        "install",
        "index messages.message_waiting_idx",
    ),
    "a function is changed": (
        "create or replace function messages.dead_count(queue text default null, "
        "subscriber text default null, cancelled boolean default false) "
        "returns bigint language sql stable security definer "
        "set search_path = pg_catalog, messages, pg_temp as 'select 0::bigint'",
        "functions",
        "not as in this package: dead_count, ",
    ),
    "a function acts with other rights": (
        "alter function messages.maintain() security invoker",
        "functions",
        ", maintain",
    ),
    "a function has lost its search path": (
        "alter function notifyq.renotify() reset search_path",
        "functions",
        ", renotify",
    ),
    "a function is dropped": (
        "drop function messages.archive_summary(text, timestamptz)",
        "functions",
        "missing: archive_summary",
    ),
    "a right is revoked": (
        "revoke execute on function messages.archive_list(text, messages.message_status, integer, "
        "timestamptz) from notifyq_viewer, notifyq_reader, notifyq_admin",
        "grants",
        "no role may call archive_list",
    ),
    "everybody may call a function": (
        "grant execute on function messages.claim_id to public",
        "public",
        "open to PUBLIC: messages.claim_id(",
    ),
    "vacuum is switched off": (
        "alter table messages.message set (autovacuum_enabled = false)",
        "autovacuum",
        "off for messages.message",
    ),
    "storage parameters are gone": (
        "alter table messages.message reset (fillfactor, autovacuum_vacuum_threshold)",
        "parameters",
        "storage parameters were changed: message",
    ),
    "the day of today is gone": (
        DROP_DAYS.format("message_archive", "="),
        "install",
        "an archive partition for today",
    ),
    "no future day has a partition": (
        DROP_DAYS.format("attempt", ">"),
        "partitions",
        "messages.attempt has partitions for the next 0 days",
    ),
    "locks are not ended": (
        "select messages.publish('default', '1'); select messages.claim(); "
        "update messages.message set lock_expires_at = now() - interval '1 h'",
        "maintenance",
        "an expired lock or a due message has waited",
    ),
}


async def test_fix_repairs_damage(database: str, connection: Connection) -> None:
    """All at once, which takes one database; each is found, named and fixed."""
    before = await found(database)
    for damage, _, _ in reversed(FIXED.values()):
        await connection.execute(damage)
    seen = await found(database)
    checks = {check for _, check, _ in FIXED.values()}
    for fault, (_, check, text) in FIXED.items():
        finding = seen[check]
        assert finding.level in {Level.WARN, Level.FAIL}, fault
        assert text in finding.found, fault
        assert finding.advice, fault
        assert finding.fix is not None, fault
    assert {seen[name].level for name in ("install", "public", "autovacuum")} == {Level.FAIL}
    others = {name for name, it in seen.items() if it.level != before[name].level}
    assert others == checks
    done = [step async for step in apply_fixes(database, seen.values())]
    assert done == steps(seen.values())
    assert done[-1] == "notifyq init"
    # Also what was done before the function that notes it was back.
    noted = await connection.fetch(
        "select subject from messages.audit where action = 'doctor.fix' order by id"
    )
    assert [row["subject"] for row in noted] == [it[:1000] for it in done]
    after = await found(database)
    assert {name: it.level for name, it in after.items()} == {
        name: it.level for name, it in before.items()
    }
    assert steps(after.values()) == []


async def test_rows_archived_without_a_partition_get_one(
    database: str, connection: Connection
) -> None:
    await connection.execute(DROP_DAYS.format("message_archive", "="))
    await publish(connection, 1)
    await connection.execute("select messages.take('default')")
    finding = (await found(database, "install"))["install"]
    assert [step async for step in apply_fixes(database, [finding])]
    assert (await found(database, "install"))["install"].level is Level.OK
    assert await connection.fetchval("select count(*) from messages.message_archive") == 1
    assert await connection.fetchval("select count(*) from notifyq.message_archive_default") == 0


@pytest.mark.parametrize(
    ("damage", "check", "text"),
    [
        (
            "select messages.grant_queue('default', 'notifyq_worker'); "
            "drop trigger admit on messages.message",
            "install",
            "missing: trigger admit",
        ),
        (
            "revoke usage on schema messages from notifyq_worker",
            "grants",
            "notifyq_worker may not use the schemas",
        ),
    ],
)
async def test_what_an_init_alone_fixes(
    database: str, connection: Connection, damage: str, check: str, text: str
) -> None:
    await connection.execute(damage)
    finding = (await found(database, check))[check]
    assert finding.found == text
    assert [step async for step in apply_fixes(database, [finding])] == ["notifyq init"]
    assert (await found(database, check))[check].level is Level.OK


async def test_a_foreign_function(database: str, connection: Connection) -> None:
    await connection.execute(
        "create function messages.mine() returns integer language sql as 'select 1'"
    )
    finding = (await found(database, "functions"))["functions"]
    assert (finding.level, finding.found) == (Level.WARN, "not of notifyq: mine")
    assert finding.fix is None


async def test_timeouts_that_hurt(database: str, connection: Connection) -> None:
    assert (await found(database, "timeouts"))["timeouts"].level is Level.OK
    name = await connection.fetchval("select current_database()")
    await connection.execute(
        f"alter database \"{name}\" set idle_session_timeout = '5s'; "
        f'alter database "{name}" set lock_timeout = 100'
    )
    finding = (await found(database, "timeouts"))["timeouts"]
    assert finding.level is Level.WARN
    assert "idle_session_timeout of 5000 ms ends sessions that listen" in finding.found
    assert "lock_timeout of 100 ms" in finding.found
    assert f"alter database {name} reset lock_timeout" in finding.advice
    await connection.execute(finding.advice)
    assert (await found(database, "timeouts"))["timeouts"].level is Level.OK


async def test_another_version_of_the_collation(database: str, connection: Connection) -> None:
    changed = await connection.execute(
        "update pg_database set datcollversion = 'old' where datname = current_database()"
    )
    assert changed == "UPDATE 1"
    finding = (await found(database, "collation"))["collation"]
    assert finding.level is Level.WARN
    assert "refresh collation version" in finding.advice


async def test_a_session_that_waits_for_a_lock(
    database: str, connection: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_LONG_WAIT", timedelta(0))
    holder, waiter = await connect(), await connect()
    async with holder.transaction():
        await holder.execute("lock table messages.share in access exclusive mode")
        waiting = asyncio.create_task(waiter.execute("select count(*) from messages.share"))

        async def is_found() -> bool:
            return (await found(database, "locks"))["locks"].level is Level.WARN

        await until(is_found, "the wait is found")
        finding = (await found(database, "locks"))["locks"]
        assert f"blocked by {holder.get_server_pid()}" in finding.found
        assert "AccessShareLock of relation share" in finding.found
        assert f"pg_terminate_backend({holder.get_server_pid()})" in finding.advice
    await waiting


async def test_queues_without_a_worker_and_workers_that_hang(
    database: str, connection: Connection, connect: Connect
) -> None:
    worker = await connect(server_settings={"application_name": "notifyq worker"})
    await worker.execute("select notifyq.worker_heartbeat('w', queues => '{other}')")
    assert (await found(database, "workers"))["workers"] == Finding(Level.OK, "1 workers")
    await publish(connection, 1)
    assert (await found(database, "workers"))["workers"].level is Level.OK
    await connection.execute("update messages.message set available_at = now() - interval '1 hour'")
    finding = (await found(database, "workers"))["workers"]
    assert (finding.level, finding.found) == (
        Level.WARN,
        "no worker serves queue default, where messages wait for 60 min",
    )
    assert "`notifyq worker MODULE:APP --queue default`" in finding.advice
    # Another app may have defined it, whose workers are gone.
    await value(connection, "schedule", name="tick tock", cron="@hourly", queue="default")
    finding = (await found(database, "workers"))["workers"]
    assert finding.found.endswith("for 60 min; schedule 'tick tock' publishes more")
    assert "`notifyq schedules disable 'tick tock'`" in finding.advice
    assert "--when-unserved skip" in finding.advice
    await connection.execute("update notifyq.worker set seen_at = now() - interval '1 minute'")
    finding = (await found(database, "workers"))["workers"]
    assert finding.found.startswith("worker w is connected, but has not reported")


@pytest.mark.cron
async def test_entries_of_pg_cron_that_are_gone_or_off(server: str) -> None:
    connection = await open_session(server)
    try:
        await install(connection)
        for damage, text in (
            (
                "select cron.alter_job(jobid, active := false) from cron.job "
                "where jobname = 'notifyq maintain'",
                "is inactive",
            ),
            (
                "select cron.unschedule(jobid) from cron.job where jobname = 'notifyq maintain'",
                "has no entry `notifyq maintain`",
            ),
            (
                "select cron.unschedule(jobid) from cron.job where jobname = 'notifyq purge'",
                "no entry `notifyq purge`",
            ),
            (
                "select cron.unschedule(jobid) from cron.job where jobname = 'notifyq reap'",
                "no entry `notifyq reap`: pg_cron reaps no lock",
            ),
            (
                "create role test_gone; update cron.job set username = 'test_gone' "
                "where jobname = 'notifyq maintain'; "
                "drop role test_gone",
                "belongs to test_gone, a role that does not exist",
            ),
        ):
            await connection.execute(damage)
            # Runs of other tests, and of a minute ago, are not what this is about.
            await connection.execute("delete from cron.job_run_details")
            finding = (await found(server, "cron"))["cron"]
            assert finding.level in {Level.WARN, Level.FAIL}
            assert text in finding.found
            assert [step async for step in apply_fixes(server, [finding])]
            assert (await found(server, "cron"))["cron"].level is Level.OK
        await connection.execute(
            "insert into cron.job_run_details (jobid, runid, status, return_message, start_time, "
            "end_time) select jobid, 2000000000, 'failed', 'no password', now(), now() "
            "from cron.job where jobname = 'notifyq maintain'"
        )
        finding = (await found(server, "cron"))["cron"]
        assert (finding.level, finding.found) == (
            Level.FAIL,
            "the last run of pg_cron failed: no password",
        )
    finally:
        await connection.execute("""
            delete from cron.job_run_details;
            select cron.unschedule(j.jobid) from cron.job as j where j.jobname like 'notifyq %';
            drop schema messages, notifyq cascade;
        """)
        await connection.close()


def test_every_check_has_a_sabotage() -> None:
    """Here, in test_doctor_server.py, in test_doctor.py, or for a pooler in test_pooler.py."""
    files = [*Path(__file__).parent.glob("test_doctor*.py"), ROOT / "tests/database/test_pooler.py"]
    assert len(files) == 4
    text = "".join(file.read_text() for file in files)
    assert not [
        name
        for name, check in CHECKS.items()
        if f'"{name}"' not in text
        and f".{check.__name__}" not in text
        and name not in {check for _, check, _ in FIXED.values()}
    ]


def test_the_command_fixes_and_checks_again(anywhere: Notifyq, database: str) -> None:
    async def damage() -> None:
        async with session(database) as connection:
            await connection.execute("alter table messages.message disable trigger published")

    asyncio.run(damage())
    env = {"NOTIFYQ_DSN": database}
    only = ("doctor", "--only", "install,grants")
    result = anywhere(*only, env=env)
    assert result.code == 1
    assert "(--fix does it)" in result.out
    refused = anywhere(*only, "--fix", env=env)
    assert refused.code == 2
    assert "give --yes" in refused.err
    result = anywhere(*only, "--fix", "--yes", env=env)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("FAIL    install")
    assert lines[1].startswith("ok      grants")
    assert lines[2:4] == [
        "fixed   alter table messages.message enable trigger published",
        "fixed   notifyq init",
    ]
    assert lines[4].startswith("ok      install")
    assert len(lines) == 5


def test_the_command_for_programs(anywhere: Notifyq, database: str) -> None:
    env = {"NOTIFYQ_DSN": database}
    rows = anywhere("doctor", "--json", "--only", "public", "--only", "grants", env=env).data
    assert [set(row) for row in rows] == 2 * [{"check", "level", "found", "advice", "fix"}]
    assert anywhere("doctor", "--only", "public", "--strict", env=env).code == 1
    assert anywhere("doctor", "--only", "public", env=env).code == 0
    line = anywhere("doctor", "--only", "public", "--nagios", env=env)
    assert line.code == 1
    assert line.out.startswith("NOTIFYQ WARNING - public: every user of the server may connect")
    assert line.out.endswith(" | failures=0;;1 warnings=1;1\n")
    line = anywhere("doctor", "--only", "grants", "--nagios", env=env)
    assert (line.code, line.out) == (
        0,
        "NOTIFYQ OK - 1 checks are well | failures=0;;1 warnings=0;1\n",
    )
    nowhere = {"NOTIFYQ_DSN": "postgresql://nobody@127.0.0.1:1/x"}
    line = anywhere("doctor", "--nagios", env=nowhere)
    assert line.code == 3
    assert line.out.startswith("NOTIFYQ UNKNOWN - no connection to ")
    wrong = anywhere("doctor", "--only", "nonsense", env=env)
    assert wrong.code == 2
    assert "no check 'nonsense': there are server, " in wrong.err


def test_the_page_names_every_check_and_every_bug() -> None:
    page = (ROOT / "docs/reference/checks.md").read_text()
    table, _, bugs = page.partition("## Bugs")
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(CHECKS)
    for bug in BUGS:
        fixed = ", ".join(f"{major}.{minor}" for major, minor in bug.fixed_in.items())
        assert f"| {bug.what} | {fixed}" in bugs
        assert bug.source in bugs


async def test_sessions_of_notifyq_need_not_be_ended(
    database: str, connection: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LONG_WAIT", "_LONG_IDLE", "_LONG_TRANSACTION"):
        monkeypatch.setattr(activity, name, timedelta(0))
    monkeypatch.setattr(activity, "_MANY", -1)
    ours = {"application_name": "notifyq worker"}
    maintaining, waiter = await connect(server_settings=ours), await connect()
    async with maintaining.transaction(isolation="repeatable_read"):
        await maintaining.execute("select 1")
        await maintaining.execute("lock table messages.share in access exclusive mode")
        waiting = asyncio.create_task(waiter.execute("select count(*) from messages.share"))

        async def is_found() -> bool:
            return (await found(database, "locks"))["locks"].level is Level.WARN

        await until(is_found, "the wait is found")
        seen = await found(database, "locks", "idle")
        assert {finding.level for finding in seen.values()} == {Level.WARN}
        pid = maintaining.get_server_pid()
        holding = [it.advice for it in await monitor.holders(connection) if it.pid == pid]
        assert holding
        for advice in [*(finding.advice for finding in seen.values()), *holding]:
            assert "pg_terminate_backend" not in advice
            assert f"pid = {pid} " in advice
    await waiting
