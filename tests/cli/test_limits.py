"""Workers that are killed in the middle: no slot is lost, and no message overtakes another."""

from __future__ import annotations

from pathlib import Path

from cli.programs import Running
from support.database import Connection, rows, until, value

APP = """
import os, signal
import notifyq

app = notifyq.App()

@app.handler("q", max_attempts=9)
async def handle(how: str, message: notifyq.Message) -> None:
    # Only the first time.
    if how == "kill" and not os.path.exists(str(message.id)):
        open(str(message.id), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
PLAN = {"a": ["kill", "ok", "ok"], "b": ["ok", "ok", "kill"], "c": ["ok", "ok", "ok"]}


async def test_killed_workers_leave_no_slot_taken_and_no_key_out_of_order(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(APP)
    await value(connection, "create_queue", name="q", concurrency=2, ordered=True)
    for turn in range(3):
        for key, ways in PLAN.items():
            await value(connection, "publish", queue="q", message=ways[turn], key=key)
    killed = 0
    while left := await connection.fetchval("select count(*) from messages.message"):
        assert killed < 4, left
        with Running(
            database, "worker", "deadly:app", cwd=tmp_path, env={"NOTIFYQ_MAINTENANCE": "1h"}
        ) as worker:

            async def is_over(worker: Running = worker) -> bool:
                return worker.process.poll() is not None or not await connection.fetchval(
                    "select count(*) from messages.message"
                )

            await until(is_over, "the worker has ended, or all is done")
            killed += worker.process.poll() == -9
        held = "select count(*) from messages.message where state = 'locked'"
        locked = await connection.fetchval(held)
        assert locked <= 2
        # Its slots are taken until its locks expire.
        await rows(connection, "claim", queues=["q"], quantity=100, worker="w")
        assert await connection.fetchval(held) <= 2
        await connection.execute(
            "update messages.message set lock_expires_at = clock_timestamp() where state = 'locked'"
        )
        await value(connection, "reap")
        await connection.execute("update messages.message set available_at = clock_timestamp()")
    assert killed == 2
    for key, ways in PLAN.items():
        done = await connection.fetch(
            "select id, status::text, message #>> '{}' as how from messages.message_archive "
            "where key = $1 order by archived_at",
            key,
        )
        assert [it["id"] for it in done] == sorted(it["id"] for it in done)
        assert [(it["how"], it["status"]) for it in done] == [(way, "success") for way in ways]
    for key in "abcd":
        await value(connection, "publish", queue="q", message="ok", key=key)
    assert len(await rows(connection, "claim", queues=["q"], quantity=100)) == 2
