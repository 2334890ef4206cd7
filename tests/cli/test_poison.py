"""A message that kills every process that handles it: it costs attempts, and it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.programs import Running
from support.database import Connection, archived, expire, make_due, rows, until, value

APP = """
import os, signal
import notifyq

app = notifyq.App()

@app.handler("poison", max_attempts=3)
async def handle(how: str, message: notifyq.Message) -> int:
    if how == "survives" and message.attempts == 3:
        return message.attempts
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("kill", "lock_expired"), ("exit", "lock_expired"), ("survives", "success")]
)
async def test_a_poison_message_kills_as_many_workers_as_it_has_attempts(
    database: str, connection: Connection, tmp_path: Path, how: str, status: str
) -> None:
    (tmp_path / "deadly.py").write_text(APP)
    # The policy of the queue differs: max_attempts of the handler must outlive its process.
    await value(connection, "create_queue", name="poison", max_attempts=1)
    id_ = await value(connection, "publish", queue="poison", message=how)
    kills = 0
    for attempt in (1, 2, 3):
        with Running(
            database, "worker", "deadly:app", cwd=tmp_path, env={"NOTIFYQ_MAINTENANCE": "1h"}
        ) as worker:
            if (how, attempt) == ("survives", 3):
                await until(lambda: archived(connection, id_), "the message is handled")
                break
            assert worker.end().code == {"exit": 7}.get(how, -9)
            kills += 1
        await expire(connection, id_)
        assert await value(connection, "reap") == 1
        await make_due(connection, id_)
    (archive,) = await archived(connection, id_)
    assert (archive["status"], archive["attempts"]) == (status, 3)
    history = await rows(connection, "attempts", id=id_)
    assert [row["number"] for row in history] == [*range(1, kills + 1)]
    assert {row["status"] for row in history} == {"lock_expired"}
    # Each of them was another process.
    assert len({row["handled_by"] for row in history}) == kills
    assert await connection.fetchval("select count(*) from messages.message") == 0
