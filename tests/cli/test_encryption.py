"""Commands and encrypted queues: keys are those of the environment, and lists show envelopes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cli.programs import Notifyq, Running
from support.database import session, until

K1, K2 = (f"{name}:{base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))
KEYS = {"NOTIFYQ_KEYS": K1}
CARD = "4711-4712-4713"


@pytest.fixture
def secret(notifyq: Notifyq) -> Notifyq:
    notifyq("queues", "create", "secret", "--encrypted", "--max-attempts", "1")
    return notifyq


def test_a_queue_shows_that_it_is_encrypted(secret: Notifyq) -> None:
    [row] = secret.good("queues", "show", "secret", "--json").data
    assert row["encrypted"] is True
    assert "excludes payload_type" in secret.refused(
        "queues", "alter", "secret", "--payload-type", "integer"
    )
    secret.good("stream", "create", "safe", "--encrypted")
    assert "No such option" in secret.refused("stream", "alter", "safe", "--encrypted", code=2)


def test_publish_show_amend_and_signal(secret: Notifyq) -> None:
    payload = json.dumps({"card": CARD})
    assert "NOTIFYQ_KEYS" in secret.refused("publish", "secret", payload)
    number = secret.good("publish", "secret", payload, env=KEYS).out.split()[-1]
    secret.good("publish", "secret", stdin=f"{payload}\n", env=KEYS)
    for args in (("show", number), ("show", number, "--json"), ("ls", "-q", "secret", "--json")):
        shown = secret.good(*args, env=KEYS).out
        assert CARD not in shown
        assert "$encrypted" in shown
    assert CARD in secret.good("show", number, "--decrypt", env=KEYS).out
    assert "there are no keys" in secret.refused("show", number, "--decrypt")
    lines = secret.good("publish", "secret", '{\n"a": "\\n"\r\n}', env=KEYS).out.split()[-1]
    (row,) = secret.good("show", lines, "--decrypt", "--json", env=KEYS).data
    assert row["message"] == {"a": "\n"}
    secret.good("amend", number, json.dumps(f"again {CARD}"), env=KEYS)
    assert f"again {CARD}" in secret.good("show", number, "--decrypt", env=KEYS).out
    assert "takes no payload" in secret.refused("amend", number, "1")
    assert "takes no signal" in secret.refused("signal", "go", payload, "--id", number)
    secret.good("signal", "go", payload, "--id", number, env=KEYS)


def test_lists_name_the_key(secret: Notifyq) -> None:
    number = secret.good("publish", "secret", f'"{CARD}"', env=KEYS).out.split()[-1]
    lines = secret.good("ls", "-q", "secret", "--limit", "10000").out.splitlines()
    [line] = [it for it in lines if it.split()[0] == number]
    assert line.endswith(" encrypted with k1")
    done = secret("cancel", "--queue", "secret", "--yes")
    assert "encrypted with k1" in done.out
    assert "$encrypted" not in done.out


def test_keys_in_a_file(secret: Notifyq, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{K1}\n")
    file.chmod(0o644)
    env = {"NOTIFYQ_KEYS_FILE": str(file)}
    assert "may be read by others" in secret.refused("publish", "secret", "1", env=env)
    file.chmod(0o600)
    secret.good("publish", "secret", "1", env=env)


def test_rekey(secret: Notifyq) -> None:
    number = secret.good("publish", "secret", f'"{CARD}"', env=KEYS).out.split()[-1]
    assert "there are no keys" in secret.refused("rekey")
    assert "key 'k1' is missing" in secret.refused("rekey", env={"NOTIFYQ_KEYS": K2})
    assert "there is no queue" in secret.refused("rekey", "secert", env={"NOTIFYQ_KEYS": K2})
    both = {"NOTIFYQ_KEYS": f"{K2},{K1}"}
    done = secret("rekey", "secret", env=both)
    assert done.code == 0
    assert int(done.out.split()[0]) >= 1
    assert secret("rekey", env=both).out.startswith("0 ")
    assert CARD in secret.good("show", number, "--decrypt", env={"NOTIFYQ_KEYS": K2}).out
    entries = secret.good("audit", "--action", "queue.rekey", "--json").data
    assert entries[0]["subject"] == "secret"
    assert entries[0]["details"]["done"] >= 1
    assert CARD not in json.dumps(entries)


async def test_a_rekey_that_is_killed_loses_nothing(secret: Notifyq) -> None:
    """Killed while it writes: what it wrote before is kept, and a second run does the rest."""
    assert secret.dsn is not None
    ids = [
        secret.good("publish", "secret", json.dumps(n), env=KEYS).out.split()[-1] for n in range(3)
    ]
    both = {"NOTIFYQ_KEYS": f"{K2},{K1}"}
    async with session(secret.dsn) as holder, session(secret.dsn) as connection:
        # It writes live messages first, and then waits for this one of the archive.
        await connection.execute("select messages.cancel($1)", int(ids[0]))
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(
            "select from messages.message_archive where id = $1 for update", int(ids[0])
        )
        with Running(secret.dsn, "rekey", env=both) as command:

            async def waits() -> bool:
                return bool(
                    await connection.fetchval(
                        "select exists (select from pg_stat_activity "
                        "where wait_event_type = 'Lock' and datname = current_database() "
                        "and query like '%replace_sealed%')"
                    )
                )

            await until(waits, "it waits for the row")
            command.process.kill()
            command.process.wait()
        await transaction.rollback()

        async def is_gone() -> bool:
            return not await waits()

        await until(is_gone, "its session is gone")
        keys = await connection.fetch(
            "select message #>> '{$encrypted,key}' from messages.message where id = any ($1) "
            "union all "
            "select message #>> '{$encrypted,key}' from messages.message_archive where id = $2",
            [int(it) for it in ids[1:]],
            int(ids[0]),
        )
        assert [row[0] for row in keys] == ["k2", "k2", "k1"]
    for number, name in enumerate(ids):
        found = secret.good("show", name, "--decrypt", "--json", env=both).data
        assert found[0]["message"] == number
    assert secret("rekey", env=both).code == 0
    for number, name in enumerate(ids):
        new = {"NOTIFYQ_KEYS": K2}
        assert (
            secret.good("show", name, "--decrypt", "--json", env=new).data[0]["message"] == number
        )
