"""`notifyq doctor` on a server that was sabotaged itself, and its advice, done as it is printed."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from cli.test_doctor_sabotage import found
from notifyq.dsn import with_database
from notifyq.errors import DatabaseUnavailableError
from notifyq.operations.doctor import Finding, Level, activity, apply_fixes, storage
from notifyq.server import Server, wheel_binaries
from notifyq.server.binaries import clean_environment, reachable
from notifyq.server.folder import Folder
from support.database import install, open_session, session, until
from support.servers import kept_server

pytestmark = pytest.mark.usefixtures("advice_that_works")


_STATEMENT = re.compile(r"(?:alter|analyze|drop|rollback|select|vacuum)\b[^;`]*")


async def examine(dsn: str, check: str) -> Finding:
    return (await found(dsn, check))[check]


async def obey(dsn: str, finding: Finding) -> None:
    """Run the advice, and wait until it takes effect."""
    statements = _STATEMENT.findall(finding.advice)
    assert statements, finding.advice
    async with session(dsn) as connection:
        for statement in statements:
            await connection.execute(statement)


async def until_well(dsn: str, check: str) -> None:
    async def is_well() -> bool:
        return (await examine(dsn, check)).level is Level.OK

    await until(is_well, f"{check} is well")


async def until_found(dsn: str, check: str, text: str) -> None:
    async def is_found() -> bool:
        return text in (await examine(dsn, check)).found

    await until(is_found, f"{check} has found {text}")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """Give a server for faults of a whole server, the wheel's if it is installed.

    That is new enough to have a small queue of notifications.
    """
    settings = {
        "max_connections": "20",
        "max_prepared_transactions": "2",
        "wal_level": "logical",
        # The tests, and not the autovacuum, must fix old tables.
        "autovacuum_freeze_max_age": "2000000000",
        "archive_mode": "on",
    }
    if wheel_binaries() is not None:
        settings["max_notify_queue_pages"] = "64"
    with kept_server(wheel_binaries(), **settings) as server:
        server.start()
        yield server


@pytest.fixture
async def own(own_server: Server) -> str:
    async with session(own_server.dsn) as connection:
        if not await connection.fetchval("select to_regnamespace('messages') is not null"):
            await install(connection)
    return own_server.dsn


async def test_a_forgotten_prepared_transaction(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_LONG_PREPARED", timedelta(0))
    monkeypatch.setattr(activity, "_MANY", -1)
    async with session(own) as connection:
        await connection.execute(
            "begin; insert into messages.queue (name) values ('q'); prepare transaction 'left'"
        )
        try:
            seen = await found(own, "prepared", "snapshots")
        finally:
            # What is advised is what can be sent.
            await connection.execute(seen["snapshots"].advice)
    assert seen["prepared"].level is Level.WARN
    assert "1 prepared transactions, left of " in seen["prepared"].found
    assert "prepared transaction left (prepared) holds a snapshot" in seen["snapshots"].found
    assert seen["snapshots"].advice == "rollback prepared 'left' -- or commit prepared"
    assert seen["prepared"].advice == seen["snapshots"].advice
    assert (await found(own, "prepared"))["prepared"].level is Level.OK


async def test_wal_that_cannot_be_archived(own: str) -> None:
    async with session(own) as connection:
        await connection.execute("alter system set archive_command = 'false'")
        await connection.execute("create table public.some (); select pg_reload_conf()")
        await connection.execute("select pg_switch_wal()")

        async def has_failed() -> bool:
            await connection.execute("select pg_stat_clear_snapshot()")
            return bool(await connection.fetchval("select failed_count > 0 from pg_stat_archiver"))

        await until(has_failed, "archive_command failed", 20)
    finding = (await found(own, "wal"))["wal"]
    assert (finding.level, finding.found[:23]) == (Level.WARN, "archive_command fails: ")
    async with session(own) as connection:
        # A server that stops would wait for it.
        await connection.execute("alter system reset archive_command")
        await connection.execute("select pg_reload_conf()")


async def test_a_listener_that_reads_nothing(own: str) -> None:
    """The queue of notifications fills up behind a session that listens, idle in a transaction."""
    assert (await found(own, "notify-queue"))["notify-queue"].level is Level.OK
    async with session(own) as connection, session(own) as stuck:
        if await connection.fetchval("show server_version_num") < "170000":
            pytest.skip("the queue of notifications has gigabytes before PostgreSQL 17")
        await stuck.execute("listen somewhere")
        await stuck.execute("begin; select 1")
        for quantity, level in ((10, Level.WARN), (30, Level.FAIL)):
            await connection.execute(
                "select pg_notify('somewhere', repeat('x', 7900) || i) "
                f"from generate_series(1, {quantity}) as i"
            )
            finding = (await found(own, "notify-queue"))["notify-queue"]
            assert finding.level is level
            assert f"session {stuck.get_server_pid()} of " in finding.advice
        await stuck.execute("rollback")


@pytest.fixture
async def user(own: str) -> AsyncIterator[str]:
    """Give the address of a user who is a worker and nothing else."""
    async with session(own) as connection:
        await connection.execute(
            "create role patient login password 'doctor'; grant notifyq_worker to patient"
        )
        yield f"postgresql://patient:doctor@{own.rpartition('@')[2]}"
        await connection.execute("drop owned by patient; drop role patient")


async def test_a_server_that_may_lose_committed_data(own: str) -> None:
    """Each is set in another way, and the advice undoes it in that way."""
    async with session(own) as connection:
        await connection.execute("alter database notifyq set synchronous_commit = off")
        await connection.execute("alter system set full_page_writes = off")
        await connection.execute("select pg_reload_conf()")
    await until_found(own, "durability", "full_page_writes")
    finding = await examine(own, "durability")
    assert finding.level is Level.WARN
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert f"{name} is off: " in finding.found
    assert "start the server without --fsync" in finding.advice
    assert "alter system set full_page_writes = on; select pg_reload_conf()" in finding.advice
    assert "alter database notifyq reset synchronous_commit" in finding.advice
    await obey(own, finding)

    async def only_fsync() -> bool:
        return (await examine(own, "durability")).advice == "start the server without --fsync"

    await until(only_fsync, "the rest is fixed")


async def test_the_server_for_development_may_lose_the_last_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kept_server(fsync="on", synchronous_commit="off") as server:
        server.start()
        assert (await examine(server.dsn, "durability")).level is Level.WARN
        monkeypatch.setenv("NOTIFYQ_HOME", str(server.directory))
        finding = await examine(server.dsn, "durability")
    assert (finding.level, finding.advice) == (Level.OK, "")
    assert finding.found == "fsync is on, synchronous_commit off"


async def test_a_server_without_autovacuum(own: str) -> None:
    async with session(own) as connection:
        for name in ("autovacuum", "track_counts"):
            await connection.execute(f"alter system set {name} = off")
        await connection.execute("select pg_reload_conf()")
    await until_found(own, "autovacuum", "autovacuum and track_counts off")
    finding = await examine(own, "autovacuum")
    assert finding.level is Level.FAIL
    await obey(own, finding)
    await until_well(own, "autovacuum")


@pytest.mark.parametrize(
    ("check", "setting", "level"),
    [
        ("primary", "default_transaction_read_only = on", Level.FAIL),
        ("session", "session_replication_role = replica", Level.FAIL),
        ("session", "restrict_nonsystem_relation_kind = view", Level.WARN),
        ("timeouts", "idle_in_transaction_session_timeout = 500", Level.WARN),
        ("timeouts", "lock_timeout = 10", Level.WARN),
    ],
)
async def test_a_setting_of_a_user_or_a_database(
    own: str, check: str, setting: str, level: Level
) -> None:
    name = setting.split()[0]
    async with session(own) as connection:
        await connection.execute("set default_transaction_read_only = off")
        for whose in ("database notifyq", "role postgres", "role postgres in database notifyq"):
            await connection.execute(f"alter {whose} set {setting}")
            finding = await examine(own, check)
            assert finding.level is level, whose
            assert f"alter {whose} reset {name}" in finding.advice
            await connection.execute(finding.advice)
            assert (await examine(own, check)).level is Level.OK, whose


async def test_users_whose_inserts_fire_no_trigger(own: str, user: str) -> None:
    name = "session_replication_role"
    async with session(own) as connection:
        await connection.execute("create role stranger")
        try:
            # Without a right to the schema it does no harm.
            await connection.execute(f"alter role stranger set {name} = replica")
            # In this mode triggers fire.
            await connection.execute(f"alter role patient set {name} = local")
            assert (await examine(own, "session")).level is Level.OK
            for whose in ("role patient", "role patient in database notifyq"):
                await connection.execute(f"alter {whose} set {name} = replica")
                finding = await examine(own, "session")
                assert finding.level is Level.WARN
                assert f"is replica for {whose}: " in finding.found
                assert finding.advice == f"alter {whose} reset {name}"
                assert (await examine(user, "session")).level is Level.FAIL
                await obey(own, finding)
                assert (await examine(own, "session")).level is Level.OK
                assert (await examine(user, "session")).level is Level.OK
        finally:
            await connection.execute("drop role stranger")


async def test_a_subscription_that_writes_into_our_tables(own: str) -> None:
    async with session(own) as connection:
        await connection.execute("create publication growing for table messages.message")
        await connection.execute(
            "create subscription growing connection 'host=nowhere.invalid dbname=x' "
            "publication growing with (connect = false)"
        )
        oid = await connection.fetchval("select oid from pg_subscription")
        # As a refresh from a publisher adds it.
        await connection.execute(
            "insert into pg_subscription_rel (srsubid, srrelid, srsubstate) "
            "values ($1, 'messages.message'::regclass, 'r')",
            oid,
        )
        try:
            await connection.execute("alter subscription growing enable")
            finding = await examine(own, "tables")
            assert finding.level is Level.WARN
            assert "subscription growing writes into our tables" in finding.found
            await obey(own, finding)
            assert (await examine(own, "tables")).level is Level.OK
        finally:
            await connection.execute("alter subscription growing disable")
            await connection.execute("alter subscription growing set (slot_name = none)")
            await connection.execute("drop subscription growing; drop publication growing")


async def test_connections_that_are_used_up(own: str, user: str) -> None:
    assert (await examine(own, "connections")).level is Level.OK
    async with session(own) as connection:
        most = await connection.fetchval("select current_setting('max_connections')::integer") - 3
        others = [await open_session(own) for _ in range(most - 2)]
        try:
            finding = await examine(own, "connections")
        finally:
            for other in others:
                await other.close()
        assert finding.level is Level.WARN
        assert finding.found.endswith(f" of {most} connections in use")
        assert "raise max_connections" in finding.advice
        # A superuser connects beyond the limit of a database, and reports the error of others.
        for dsn, whose, match in (
            (user, "role patient", "of user patient"),
            (own, "database notifyq", "to database notifyq"),
        ):
            await connection.execute(f"alter {whose} connection limit 1")
            finding = await examine(dsn, "connections")
            assert finding.level is Level.WARN
            assert match in finding.found
            await obey(own, finding)
            assert (await examine(user, "connections")).level is Level.OK


async def test_a_group_role_that_is_gone(own: str) -> None:
    async with session(own) as connection:
        await connection.execute("drop owned by notifyq_reader; drop role notifyq_reader")
    finding = await examine(own, "roles")
    assert (finding.level, finding.found) == (Level.WARN, "there is no role notifyq_reader")
    assert [step async for step in apply_fixes(own, [finding])] == ["notifyq init"]
    for check in ("roles", "grants"):
        assert (await examine(own, check)).level is Level.OK


async def test_an_owner_with_too_many_rights_and_foreign_objects(own: str) -> None:
    assert (await examine(own, "owner")).level is Level.OK
    async with session(own) as connection:
        for attribute, text in (("login", "can log in"), ("superuser", "is a superuser")):
            await connection.execute(f"alter role notifyq_owner {attribute}")
            finding = await examine(own, "owner")
            assert finding.level is Level.WARN
            assert f"the owner notifyq_owner {text}" in finding.found
            await connection.execute(f"alter role notifyq_owner no{attribute}")
        await connection.execute("""
            alter function messages.maintain() owner to postgres;
            alter table messages.queue owner to postgres;
        """)
        finding = await examine(own, "owner")
        assert finding.level is Level.FAIL
        assert "messages.maintain() of postgres" in finding.found
        assert "messages.queue of postgres" in finding.found
        assert len([step async for step in apply_fixes(own, [finding])]) == 2
        assert (await examine(own, "owner")).level is Level.OK


TABLES = {
    "alter table messages.message set unlogged": (Level.FAIL, "messages.message is unlogged"),
    "alter table messages.message enable row level security": (Level.WARN, "row security is on"),
    "create trigger audit before update on messages.message for each row "
    "execute function suppress_redundant_updates_trigger()": (
        Level.WARN,
        "trigger audit on messages.message is not of notifyq",
    ),
    "create rule quiet as on insert to messages.message do instead nothing": (
        Level.WARN,
        "rule quiet on messages.message",
    ),
}


@pytest.mark.parametrize("damage", TABLES)
async def test_changed_tables(own: str, damage: str) -> None:
    level, text = TABLES[damage]
    async with session(own) as connection:
        await connection.execute(damage)
    finding = await examine(own, "tables")
    assert finding.level is level
    assert text in finding.found
    assert finding.fix is None
    await obey(own, finding)
    assert (await examine(own, "tables")).level is Level.OK


async def test_an_invalid_index(own: str) -> None:
    async with session(own) as connection:
        await connection.execute("select messages.publish_many('default', '{1,2}'::jsonb[])")
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(
                "create unique index concurrently mine on messages.message (queue)"
            )
        await connection.execute("delete from messages.message")
    finding = await examine(own, "tables")
    assert finding.found.startswith("index messages.mine is invalid")
    await obey(own, finding)
    assert (await examine(own, "tables")).level is Level.OK


async def test_a_restore_without_statistics(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_MANY", 10)
    async with session(own) as connection:
        await connection.execute(
            "delete from pg_statistic where starelid = 'messages.message'::regclass"
        )
        await connection.execute(
            "select pg_stat_reset_single_table_counters('messages.message'::regclass)"
        )
    # A session reports its writes when it ends; an idle one may take ten seconds.
    async with session(own) as connection:
        await connection.execute(
            "select messages.publish_many('default', array_fill('1'::jsonb, '{20}'))"
        )
    await until_found(own, "autovacuum", "without statistics")
    finding = await examine(own, "autovacuum")
    assert finding.level is Level.WARN
    assert [step async for step in apply_fixes(own, [finding])] == ["analyze messages.message"]
    await until_well(own, "autovacuum")
    async with session(own) as connection:
        await connection.execute("delete from messages.message")


async def test_a_slot_of_a_reader_that_is_gone(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_MUCH_WAL", -1)
    async with session(own) as connection:
        await connection.execute("select pg_create_logical_replication_slot('left', 'pgoutput')")
    finding = await examine(own, "wal")
    assert finding.level is Level.WARN
    assert finding.found.startswith("replication slot left (abandoned) keeps ")
    await obey(own, finding)
    assert "replication slot" not in (await examine(own, "wal")).found


async def test_a_reader_of_another_database_holds_nothing_here(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_MANY", -1)
    async with session(with_database(own, "postgres")) as elsewhere:
        pid = elsewhere.get_server_pid()
        async with elsewhere.transaction(isolation="repeatable_read"):
            await elsewhere.execute("select 1")
            assert f"session {pid}" not in (await examine(own, "snapshots")).found
            await elsewhere.execute("select pg_current_xact_id()")
            assert f"session {pid}" in (await examine(own, "snapshots")).found


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a server, by the name of this machine, which it has a certificate for."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl")
    name = socket.gethostname()
    # It is signed by itself.
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    files: list[str | Path] = ["-keyout", tmp_path / "server.key", "-out", tmp_path / "server.crt"]
    kind = [program, "req", "-new", "-x509", "-nodes", "-days", "1"]
    subprocess.run([*kind, *subject, *files], check=True, capture_output=True)
    # The wheel's knows no TLS.
    monkeypatch.delenv("NOTIFYQ_TEST_ENGINE", raising=False)
    with kept_server() as server:
        server.start()
        data = Folder(server.directory).data
        for file in ("server.key", "server.crt"):
            shutil.copy(tmp_path / file, data)
            (data / file).chmod(0o600)
            shutil.chown(data / file, data.stat().st_uid, data.stat().st_gid)
        yield server.dsn.replace("127.0.0.1", name)


async def test_an_unencrypted_connection(certified: str, tmp_path: Path) -> None:
    try:
        finding = await examine(certified, "tls")
    except DatabaseUnavailableError:
        pytest.skip("this machine does not find itself by its name")
    assert finding.level is Level.WARN
    assert "cross the network unencrypted" in finding.found
    try:
        await obey(certified, finding)
    except asyncpg.InvalidParameterValueError:
        pytest.skip("this build of PostgreSQL knows no TLS")

    async def is_on() -> bool:
        return "unencrypted" not in (await examine(certified, "tls")).found

    await until(is_on, "the server speaks TLS")
    finding = await examine(f"{certified}?sslmode=require", "tls")
    assert finding.level is Level.WARN
    assert "sslmode=require does not verify" in finding.found
    root = quote(str(tmp_path / "server.crt"), safe="")
    checked = f"{certified}?sslmode=verify-full&sslrootcert={root}"
    assert (await examine(checked, "tls")).level is Level.OK


async def test_a_server_that_runs_out_of_transaction_numbers(own: str, own_server: Server) -> None:
    """As after 1.3 billion of them without a vacuum, in every database."""
    assert (await examine(own, "frozen")).level is Level.OK
    await asyncio.to_thread(own_server.stop)
    _age(own_server, 1_300_000_000)
    await asyncio.to_thread(own_server.start)
    own = own_server.dsn
    async with session(own) as connection:
        names = {row[0] for row in await connection.fetch("select datname from pg_database")}
    fixed = []
    while (finding := await examine(own, "frozen")).level is not Level.OK:
        assert finding.level is Level.FAIL
        assert "the whole server will stop accepting writes" in finding.found
        match = re.search(r"in database (\S+), is 1\d{9} transactions old", finding.found)
        assert match is not None
        fixed.append(match[1])
        allow = re.findall(r"alter database \S+ allow_connections \w+", finding.advice)
        async with session(own) as connection:
            for statement in allow[:1]:
                await connection.execute(statement)
            async with session(with_database(own, match[1])) as there:
                assert finding.advice.count("vacuum (freeze)") == 1
                await there.execute("vacuum (freeze)")
            for statement in allow[1:]:
                await connection.execute(statement)
    assert fixed[0] == "notifyq"
    assert set(fixed) == names


def _age(server: Server, number: int) -> None:
    """Have the next start of a server go on with this transaction number."""
    folder = Folder(server.directory)
    account = folder.account()
    # One segment has the states of 2**20 transactions, two bits for each.
    segment = folder.data / f"pg_xact/{number >> 20:04X}"
    segment.write_bytes(bytes(2**18))
    if account is not None:
        shutil.chown(segment, account.uid, account.gid)
    subprocess.run(
        [reachable(server.binaries, account) / "pg_resetwal", "-x", str(number), folder.data],
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        env=clean_environment(),
        cwd=folder.path,
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_is_not_utf8(own: str, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    async with session(own) as connection:
        await connection.execute(
            f"create database {name} encoding '{encoding}' locale 'C' template template0"
        )
    finding = await examine(with_database(own, name), "encoding")
    assert finding.level is Level.WARN
    assert encoding in finding.found
    assert (await examine(own, "encoding")).level is Level.OK
