"""Packages of a version work with a later schema that serves them: all that they send."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaTooNewError, SchemaTooOldError
from notifyq.queues.admin import check_versions
from notifyq.schema.files import Files, Migration
from support.database import open_session, session
from upgrade.later import use_broker, use_presence, use_relay, use_steps, use_streams
from upgrade.packages import (
    BEHIND,
    ERROR,
    LOCK,
    NO_KEYS,
    NO_LIMITS,
    RELEASED,
    STATELESS,
    UNSAID,
    Package,
    statements_of,
)
from upgrade.second import NEXT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.database import Connection


@pytest.fixture(params=[None, *RELEASED], ids=lambda folder: folder.name if folder else "this")
async def package(
    request: pytest.FixtureRequest, empty_database: str, second: Path
) -> AsyncIterator[Package]:
    """Give this package on the second schema, and released ones on this schema."""
    folder: Path | None = request.param
    async with session(empty_database) as owner:
        await schema.install(owner, None if folder else second)
    connection = await open_session(empty_database)
    # Theirs has no codec for jsonb.
    await connection.reset_type_codec("jsonb", schema="pg_catalog")
    yield Package(connection, statements_of(folder), SCHEMA_VERSION if folder else NEXT)
    await connection.close()


async def claim(package: Package, quantity: int = 10, queue: str = "old") -> list[Any]:
    return await package.fetch("CLAIM", [queue], quantity, LOCK, "w", None, True, [2], None)


async def publish(package: Package, text: str, **changes: Any) -> int:
    options = {"priority": 0, "delay": None, "available_at": None, "type": "t", "headers": "{}"}
    behind = [changes.pop(name, default) for name, default in BEHIND.items()]
    id_: int = await package.value("PUBLISH", "old", text, *(options | changes).values(), *behind)
    return id_


async def test_a_life_of_messages(package: Package) -> None:
    assert await package.value("VERSION") == package.version
    [row] = await package.fetch("VERSIONS")
    assert row["serves"] <= SCHEMA_VERSION
    policy = (LOCK, 2, timedelta(0), timedelta(0), "auto", timedelta(days=3), 1_000_000, *NO_LIMITS)
    assert await package.value("CREATE_QUEUE", "old", *policy)
    await package.fetch("ALTER_QUEUE", "old", *policy)
    for name in package.left & STATELESS:
        given = {"NOTIFY": ["new_message"], "END_SESSION": [0, await _now(package)]}
        await package.fetch(name, *given.get(name, []))
    await package.value("SESSION", "nobody")
    seen = await _position(package)

    first = await publish(package, '{"a": 1}')
    options = (None, None, None, None, "{}", None)
    many = await package.fetch(
        "PUBLISH_MANY", "old", ["2", "3", "4"], 1, *options[1:], *NO_KEYS[1:]
    )
    held = await claim(package)
    assert [row["id"] for row in held] == [*(id_ for row in many for id_ in row[0]), first]
    await package.fetch("EXTEND_MANY", *_keys(held), LOCK)
    done = await package.fetch(
        "FINISH_MANY", *_keys(held[:2]), ["success", "rejected"], [None, "no"], ["7", None]
    )
    assert [row[0] for row in done] == [row["id"] for row in held[:2]]
    # One attempt is left, then none.
    for _ in range(2):
        [again] = [row for row in held if row["id"] == first]
        key = (again["id"], again["lock_token"])
        error = ([timedelta(0)], ["ouch"], ["failed"], *([it] for it in ERROR))
        retried = await package.fetch("RETRY_MANY", [key[0]], [key[1]], *error)
        assert len(retried) == 1
        held = [*held[:3], *await claim(package)]
    assert len(await package.fetch("RELEASE_MANY", *_keys(held[2:3]))) == 1
    [orphan] = await claim(package)
    assert await package.value("RELEASE_ORPHANS", "w", []) == 1
    await _change(package, orphan["id"])

    await _notifications(package)
    await _grants(package)
    await _daily(package, first)
    await _maintain(package)
    await _inspect(package, first, seen)
    parked = await _durable(package)
    await _pauses(package)
    assert await package.value("DROP_QUEUE", "old", True) == 1 + parked
    assert package.left == set()


async def _maintain(package: Package) -> None:
    if "REAP_AND_STAGE" in package.left:
        [urgent] = await package.fetch("REAP_AND_STAGE")
        assert {*urgent.keys()} == {"reaped", "staged", "expired"}
    [maintenance] = await package.fetch("MAINTAIN")
    report = {"reaped", "staged", "notified", "partitions_made", "partitions_dropped"}
    assert report <= {*maintenance.keys()}


async def _change(package: Package, id_: int) -> None:
    if "AMEND" in package.left:
        assert await package.value("AMEND", id_, "7", 1, None, None)
        assert not await package.value("CANCEL_ALSO", id_ + 1000, True, True)
    assert await package.value("CANCEL", id_)


async def _pauses(package: Package) -> None:
    assert await package.value("PAUSE_QUEUE", "old")
    assert await package.value("RESUME_QUEUE", "old")
    if "PAUSE_QUEUE_UNTIL" not in package.left:
        return
    assert await package.value("PAUSE_QUEUE_UNTIL", "old", None, timedelta(hours=1))
    assert await package.value("SET_LIMIT", "old", "k", None, None) is False
    assert await package.fetch("QUEUE_LIMITS", "old") == []


async def _durable(package: Package) -> int:
    """Use steps, where the package has them; return how many messages it leaves."""
    if "RECORD_STEP" not in package.left:
        return 0
    for _ in range(5):
        await publish(package, "1")
    held = await claim(package)
    assert len(await package.fetch("SNOOZE_MANY", *_keys(held[:1]), timedelta(hours=1))) == 1
    await use_steps(package, [(row["id"], row["lock_token"]) for row in held[-4:]])
    return 5


def _keys(rows: list[Any]) -> tuple[list[int], list[int]]:
    return [row["id"] for row in rows], [row["lock_token"] for row in rows]


async def _now(package: Package) -> Any:
    [row] = await package._connection.fetch("select clock_timestamp()")
    return row[0]


async def _position(package: Package) -> str:
    position = str(await package.value("POSITION"))
    assert await package.value("SNAPSHOT_OF", position)
    assert await package.value("KNOWN_POSITION", position) == position
    assert await package.fetch("DEAD_FROM", await _now(package), None)
    assert not await package.value("IS_FOREIGN")
    await package.value("ADOPT")
    return str(await package.value("POSITION"))


async def _grants(package: Package) -> None:
    await package.value("GRANT_QUEUE", "old", "pg_monitor", True, True)
    assert len(await package.fetch("QUEUE_GRANTS", "old")) == 1
    assert await package.value("REVOKE_QUEUE", "old", "pg_monitor")
    await package.fetch("DIAGNOSE")


async def _notifications(package: Package) -> None:
    await package.value("SUPPRESS", "old")
    number = await package.value("UNSUPPRESS", ["old"])
    await package.value("IS_TRANSACTION_OVER", number or await package.value("CURRENT_XACT_ID"))
    held = await package.value("TAKE_WAKE_SLOTS", ["old"])
    await package.value("LEAVE_WAKE_SLOTS", ["old"], held)
    await package.fetch("WAKE_ALL", ["old"], False)


async def _daily(package: Package, tried: int) -> None:
    attempts = await package.fetch("ATTEMPTS", tried)
    assert [(row["number"], row["details"]) for row in attempts] == [(1, "ouch"), (2, "ouch")]
    await _schedules(package)
    await _limits(package)
    await _outcomes(package)
    await use_streams(package)
    await use_relay(package)
    await use_broker(package)
    await use_presence(package)


async def _limits(package: Package) -> None:
    limits = (2, 1, 100, LOCK, 10, 50, LOCK, 5, True, True, 1000, "drop_oldest", *UNSAID)
    policy = (LOCK, 1, timedelta(0), timedelta(0), "auto", timedelta(days=3), 1_000_000)
    assert await package.value("CREATE_QUEUE", "limited", *policy, *limits)
    await package.fetch("ALTER_QUEUE", "limited", *policy, *limits)
    assert await package.value("SET_SHARE", "limited", "big", 3.0)
    assert [row["weight"] for row in await package.fetch("QUEUE_SHARES", "limited")] == [3.0]
    keys = [None, ["big", "big", "small"], *NO_KEYS[2:]]
    options = (0, None, None, None, "{}")
    await package.fetch("PUBLISH_MANY", "limited", ["1", "2", "3"], *options, *keys)
    claimed = await claim(package, queue="limited")
    assert sorted(row["key"] for row in claimed) == ["big", "small"]
    # It is the limit of what runs that holds the third back, no rate and no instant.
    assert await package.value("RATE_LIMIT_WAIT", ["limited"], None) <= timedelta(days=1)
    assert await package.value("NEXT_DUE", ["limited"], None) is None
    assert await package.value("DROP_QUEUE", "limited", True) == 3


async def _schedules(package: Package) -> None:
    policy = (0, None, None, timedelta(0), "allow", 1, LOCK, "publish")
    assert await package.value(
        "SCHEDULE", "yearly", "0 3 1 1 *", "old", "5", "UTC", "t", "{}", *policy
    )
    assert await package.value("DISABLE_SCHEDULE", "yearly")
    assert await package.value("ENABLE_SCHEDULE", "yearly")
    id_ = await package.value("RUN_SCHEDULE", "yearly")
    [schedule] = await package.fetch("SCHEDULE_INFO", "yearly")
    at = await package.value("CRON_NEXT", "0 3 1 1 *", "UTC", await _now(package))
    assert (schedule["last_id"], schedule["next_at"]) == (id_, at)
    [fired] = await package.fetch("FIRE_SCHEDULES")
    assert fired["fired"] == []
    assert fired["next_schedule"] > timedelta(0)
    assert await package.value("UNSCHEDULE", "yearly")
    assert await package.value("CANCEL", id_)
    assert await package.value("DEAD_DELETE", [id_]) == 1


async def _outcomes(package: Package) -> None:
    # With the same dedup_key as what is there.
    first = await publish(package, "1", dedup_key="k", dedup_scope="live", on_duplicate="keep")
    assert await publish(package, "1", dedup_key="k") == first
    later = await publish(package, "2", after=[first], on_failure="hold")
    [waits] = await package.fetch("DEPENDENCIES", later)
    assert waits["id"] == first
    [report] = await package.fetch("AWAIT_RESULT", first)
    assert (report["id"], report["state"]) == (first, "waiting")
    assert await package.value("UNBLOCK", later)
    sent = '[{"position": "1", "queue": "old", "message": 7}]'
    for published, known in ((1, 0), (0, 1)):
        [received] = await package.fetch("RECEIVE", "elsewhere", sent)
        assert (received["published"], received["known"]) == (published, known)
    keys = _keys(await claim(package))
    results = [["rejected"] * 3, [None] * 3, [None] * 3]
    assert len(await package.fetch("FINISH_MANY", *keys, *results)) == 3
    [report] = await package.fetch("RESULT", first)
    assert report["state"] == "rejected"
    assert await package.value("DEAD_DELETE", keys[0]) == 3


async def _inspect(package: Package, dead: int, seen: str) -> None:
    assert [row["queue"] for row in await package.fetch("QUEUE_INFO", "old")] == ["old"]
    assert await package.fetch("MESSAGE_LIST", None, None, 10) == []
    assert await package.fetch("MESSAGE_FIND", dead) == []
    assert len(await package.fetch("ARCHIVE_LIST", "old", "success", 10, None)) == 1
    assert len(await package.fetch("ARCHIVE_FIND", dead)) == 1
    assert await package.fetch("ARCHIVE_SUMMARY", "old", None)
    assert len(await package.fetch("DEAD_LIST", "old", 10, 0, None)) == 3
    assert len(await package.fetch("DEAD_SINCE", seen, "old")) == 3
    assert await package.value("DEAD_COUNT", "old", None) == 3
    assert len(await package.fetch("DEAD_RETRY", [dead])) == 1
    assert await package.value("REDRIVE", "old", None, None, None, 1, None) == 1
    if "REDRIVE_IDS" in package.left:
        later = await _now(package) + timedelta(days=1)
        assert await package.fetch("REDRIVE_IDS", "old", None, later, None, 1, None) == []
    taken = await claim(package, 1)
    await package.fetch("FINISH_MANY", *_keys(taken), ["success"], [None], [None])
    assert await package.value("DEAD_DELETE", [dead]) == 1


async def test_the_files_and_statements_of_each_version_before_are_kept(
    connection: Connection,
) -> None:
    """Else the way from there to here, or what its packages send, would not be tried."""
    assert [int(folder.name) for folder in RELEASED] == list(range(1, SCHEMA_VERSION))
    broken = [step.version for step in Files.find().migrations if step.is_breaking]
    serves = await connection.fetchval("select notifyq.oldest_client()")
    assert max(broken, default=1) <= serves <= SCHEMA_VERSION


def test_a_breaking_migration_is_declared(root: Path) -> None:
    path = root / "migrations/0099_contract.sql"
    path.write_text("-- breaking: yes\n-- needs: owner\n")
    assert Migration.read(path).is_breaking


def test_versions_that_fit_and_those_that_do_not() -> None:
    check_versions(SCHEMA_VERSION, 1)
    check_versions(SCHEMA_VERSION, SCHEMA_VERSION)
    check_versions(SCHEMA_VERSION + 5, SCHEMA_VERSION)
    needed = f"^version 0 of the schema is installed, {SCHEMA_VERSION} is needed: run `notifyq mig"
    with pytest.raises(SchemaTooOldError, match=needed):
        check_versions(0, 0)
    later = (
        f"^version 99 of the schema is installed, which works with packages for schema 98 or "
        f"later; this one is for {SCHEMA_VERSION}: upgrade the package$"
    )
    with pytest.raises(SchemaTooNewError, match=later):
        check_versions(99, 98)
