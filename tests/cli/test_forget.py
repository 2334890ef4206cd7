"""`notifyq forget`: what it prints, what it leaves, and what the audit keeps of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from cli.programs import Notifyq, Running
from support.database import session, until

SECRET = "4711-4712"


@pytest.fixture
def key(notifyq: Notifyq) -> str:
    """Give a key of its own with one archived message."""
    found = f"customer-{uuid.uuid4()}"
    number = publish(notifyq, found)
    notifyq.good("cancel", number)
    return found


def publish(notifyq: Notifyq, key: str) -> str:
    done = notifyq.good("publish", "default", json.dumps({"card": SECRET, "of": key}), "--key", key)
    return done.out.split()[-1]


def outcomes(notifyq: Notifyq, *args: str, code: int = 0) -> dict[str, tuple[int | None, str]]:
    result = notifyq("forget", *args, "--json")
    assert result.code == code, result
    return {row["part"]: (row["count"], row["outcome"]) for row in result.data}


def test_a_dry_run_counts(notifyq: Notifyq, key: str) -> None:
    wanted = {"archive": (1, "to be deleted")}
    assert outcomes(notifyq, "--key", key, "--dry-run") == wanted
    assert outcomes(notifyq, "--filter", f"of = '{key}'", "--dry-run") == wanted
    assert (
        notifyq.good("forget", "--key", "nobody", "--dry-run").out == "there is nothing to forget\n"
    )


def test_archived_messages_go(notifyq: Notifyq, key: str) -> None:
    assert outcomes(notifyq, "--key", key, "--yes") == {"archive": (1, "deleted")}
    assert outcomes(notifyq, "--key", key, "--yes") == {}


def test_live_messages_are_left_with_an_error(notifyq: Notifyq, key: str) -> None:
    publish(notifyq, key)
    left = outcomes(notifyq, "--key", key, "--yes", code=1)
    assert left == {"archive": (1, "deleted"), "live": (1, "still there")}
    done = notifyq("forget", "--key", key, "--yes")
    assert "not all is forgotten" in done.err
    assert outcomes(notifyq, "--key", key, "--live", "--yes") == {"cancelled": (1, "deleted")}


def test_the_audit_has_one_row_without_the_key(notifyq: Notifyq, key: str) -> None:
    outcomes(notifyq, "--key", key, "--filter", f"card = '{SECRET}'", "--yes")
    entry = notifyq.good("audit", "--action", "message.forget", "--json").data[0]
    assert entry["details"]["done"] == 1
    assert entry["details"]["parts"]["archive"] == 1
    assert entry["subject"].startswith("key sha256:")
    text = json.dumps(notifyq.good("audit", "--limit", "999", "--json").data)
    assert key not in text
    assert SECRET not in text


def test_it_needs_a_selection_and_an_answer(notifyq: Notifyq) -> None:
    assert "--key or --filter" in notifyq.refused("forget", code=2)
    assert "give --yes" in notifyq.refused("forget", "--key", "k", code=2)
    assert "there is no queue" in notifyq.refused("forget", "--key", "k", "-q", "nil", "--yes")


async def test_a_run_that_is_killed_is_done_again(notifyq: Notifyq, key: str) -> None:
    assert notifyq.dsn is not None
    kept = publish(notifyq, key)
    async with session(notifyq.dsn) as holder, session(notifyq.dsn) as connection:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select from messages.message_archive where key = $1 for update", key)
        with Running(notifyq.dsn, "forget", "--key", key, "--live", "--yes") as command:

            async def waits() -> bool:
                return bool(
                    await connection.fetchval(
                        "select count(*) from pg_locks where not granted and locktype = "
                        "'transactionid'"
                    )
                )

            await until(waits, "the archive is locked")
            command.process.kill()
        await transaction.rollback()
        assert not await connection.fetchval(
            "select count(*) from messages.message where id = $1", int(kept)
        )
    assert outcomes(notifyq, "--key", key, "--yes") == {"archive": (1, "deleted")}


def test_a_lake_that_is_not_here_is_never_reported_as_done(
    notifyq: Notifyq, key: str, tmp_path: Path
) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    folder = tmp_path / "lake"
    notifyq.good("spark", "export", "--lake", str(folder))
    part = f"lake {folder}"
    found = outcomes(notifyq, "--key", key, "--dry-run")
    assert found[part] == (1, "1 files to be rewritten")
    folder.rename(tmp_path / "elsewhere")
    left = outcomes(notifyq, "--key", key, "--yes", code=1)
    assert left["archive"] == (1, "deleted")
    assert left[part][0] is None
    assert "not searched" in left[part][1]
    (tmp_path / "elsewhere").rename(folder)
    done = notifyq("forget", "--key", key, "--yes")
    assert done.code == 0
    assert "1 files rewritten" in " ".join(done.out.split())
    assert "spark tidy" in done.err
    entry = notifyq.good("audit", "--action", "message.forget", "--json").data[0]
    assert entry["details"]["parts"]["lake"] == 1
    assert outcomes(notifyq, "--key", key, "--yes") == {}
