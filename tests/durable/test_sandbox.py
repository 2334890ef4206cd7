"""Handlers with steps in the sandbox of tests."""

from collections import Counter

from notifyq import App, Steps
from notifyq.testing import Sandbox
from support.database import Connection


async def test_time_and_signals_are_the_tests(app: App, database: str) -> None:
    @app.handler("q")
    async def handle(_: int, steps: Steps) -> str:
        await steps.sleep("night", 8 * 3600)
        answer = await steps.wait_for("answer", signal="answer", timeout=3600)
        return str(answer)

    async with Sandbox(app, database) as sandbox:
        first, second = await app.publish("q", 1), await app.publish("q", 2)
        assert await sandbox.drain() == []
        await sandbox.advance(8 * 3600 + 1)
        assert await sandbox.drain() == []
        assert await sandbox.signal("answer", "yes", to=first) == 1
        [message] = await sandbox.drain()
        assert (message.id, message.result) == (int(first), '"yes"')
        await sandbox.advance(3601)
        [message] = await sandbox.drain(check=False)
        assert message.id == int(second)
        assert "SignalTimeoutError" in (message.details or "")


async def test_a_crash_after_each_step_changes_no_result(
    app: App, database: str, connection: Connection
) -> None:
    calls: Counter[str] = Counter()

    async def count(name: str) -> int:
        calls[name] += 1
        return len(calls)

    @app.handler("child")
    async def child(number: int) -> int:
        return number * 2

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> list[int]:
        calls["handle"] += 1
        made = await steps.publish("publish", child, 21)
        found = [await steps.run("one", count, "one"), await steps.run("two", count, "two")]
        async with steps.transaction("three") as tx:
            await tx.execute("select")
        return [*found, await steps.result("child", made)]

    async with Sandbox(app, database, crash_after_steps=True) as sandbox:
        handle_ = await app.publish("q", 1)
        finished = {message.id: message for message in await sandbox.drain()}
    assert finished[handle_].payload() == 1
    assert finished[handle_].result == "[2, 3, 42]"
    assert (calls["one"], calls["two"]) == (1, 1)
    assert calls["handle"] == 5  # the child has ended before it is waited for
    assert await connection.fetchval("select count(*) from messages.message_archive") == 2
