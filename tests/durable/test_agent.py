"""The agent of `workers/agent.py`, whose worker is killed again and again."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from notifyq import App
from support.database import ROOT, Connection

MESSAGES = 4


async def test_an_agent_survives_kills_at_random_moments(
    app: App, connection: Connection, database: str, tmp_path: Path
) -> None:
    moments = random.Random(7)
    log = tmp_path / "calls.log"
    await connection.execute(
        "select messages.create_queue('agent', max_attempts => 100, backoff => '0.1 s', "
        "lock_duration => '2 s')"
    )
    handles = await app.publish_many(
        "agent", [{"question": f"What is the weather in City{n}?"} for n in range(MESSAGES)]
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "notifyq", "worker", "agent:app"],
            cwd=ROOT / "workers",
            env=os.environ | {"NOTIFYQ_DSN": database, "AGENT_LOG": str(log)},
            stderr=subprocess.DEVNULL,
        )

    async def kill_workers() -> None:
        for _ in range(6):
            worker = start()
            await asyncio.sleep(moments.uniform(0.7, 1.6))  # the moment of the kill
            worker.send_signal(signal.SIGKILL)
            worker.wait()

    async def approve() -> None:
        for handle in handles:
            await app.signal(f"approved:{handle}", {"by": "ann"})

    await kill_workers()
    await approve()
    await kill_workers()
    worker = start()
    try:
        answers = await asyncio.gather(*(handle.result(60) for handle in handles))
    finally:
        worker.terminate()
        worker.wait()
    assert answers == [f"In City{n}: sunny, 24 degrees. A mail was sent." for n in range(MESSAGES)]
    for handle in handles:
        steps = await app.archive.steps(handle)
        calls = [step for step in steps if step.name.startswith("call")]
        assert [step.state for step in calls] == ["done"] * 3
        assert len({step.name for step in steps}) == len(steps)
        # The words of the last attempt, behind those of attempts that were killed.
        words = [chunk.value async for chunk in handle.output()]
        answer = f"In City{int(handle) - int(handles[0])}: sunny"
        assert " ".join(words).rpartition("In City")[2].startswith(answer[7:])
    # Each call was recorded once; a kill before its record repeats it under the same key.
    keys = [line.split()[0] for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(set(keys)) == 3 * MESSAGES
    assert len(keys) - len(set(keys)) <= 12, "a kill repeats no more than what it interrupts"
    assert await app.archive.parked() == []
