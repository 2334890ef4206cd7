"""A handler that snoozes is called again later, in the same attempt."""

import asyncio
import itertools
from datetime import timedelta

import pytest

from notifyq import App, ConfigurationError, Message, Snooze, Transaction
from notifyq.telemetry import MessageFinished
from support.running import Events, working


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_snoozing_uses_no_attempt(
    app: App, events: Events, *, is_transactional: bool
) -> None:
    seen: list[tuple[int, float]] = []

    def snooze(message: Message) -> str:
        seen.append((message.attempts, asyncio.get_running_loop().time()))
        if len(seen) < 3:
            raise Snooze(timedelta(milliseconds=300))
        return "done"

    async def plain(message: Message) -> str:
        return snooze(message)

    async def transactional(message: Message, transaction: Transaction) -> str:
        await transaction.execute("select 1")
        return snooze(message)

    app.handler("q", max_attempts=1, transactional=is_transactional)(
        transactional if is_transactional else plain
    )
    await app.create_queues()
    async with working(app, events, poll=0.1):
        published = await app.publish("q", None)
        assert await published.result(20) == "done"
    assert [attempts for attempts, _ in seen] == [1, 1, 1]
    assert all(later - earlier >= 0.3 for (_, earlier), (_, later) in itertools.pairwise(seen))
    assert len(events.of(MessageFinished, status="released")) == 2
    assert await app.archive.attempts(published) == []


async def test_messages_snooze_for_times_of_their_own(app: App, events: Events) -> None:
    @app.handler("q")
    async def handle(seconds: float) -> None:
        raise Snooze(seconds)

    await app.create_queues()
    async with working(app, events, concurrency=10):
        await app.publish_many("q", [3600, 7200])
        await events.wait(MessageFinished, 2, status="released")
    [first, second] = sorted(await app.archive.live("q"), key=lambda message: message.id)
    assert first.attempts == second.attempts == 0
    apart = second.available_at - first.available_at
    assert timedelta(minutes=59) < apart < timedelta(minutes=61)


@pytest.mark.parametrize("wrong", [-1, "soon", None])
def test_only_durations_are_taken(wrong: object) -> None:
    with pytest.raises(ConfigurationError):
        raise Snooze(wrong)  # type: ignore[arg-type]
