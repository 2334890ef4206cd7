"""A worker that sleeps gets up when a message is due: polling comes after a minute here."""

from datetime import timedelta

from notifyq import App, Retry
from notifyq.events import MessageFinished
from worker.running import Events, working

SOON = timedelta(milliseconds=300)


async def test_a_message_is_handled_when_it_is_due(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    before = await app.publish("q", 1, delay=SOON)
    async with working(app, events):
        await events.wait(MessageFinished, message_id=before)
        meanwhile = await app.publish("q", 1, delay=SOON)
        await events.wait(MessageFinished, message_id=meanwhile)


async def test_the_nearest_of_several_wakes_it(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        await app.publish("q", 1, delay=timedelta(hours=1))
        later = await app.publish("q", 1, delay=2 * SOON)
        sooner = await app.publish("q", 1, delay=SOON)
        await events.wait(MessageFinished, 2)
    assert [event.message_id for event in events.of(MessageFinished)] == [sooner, later]


async def test_a_message_is_tried_again_when_it_is_due(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=3)
    async def fail(number: int) -> None:
        raise Retry(after=SOON)

    await app.create_queues()
    async with working(app, events):
        await app.publish("q", 1)
        finished = await events.wait(MessageFinished, 3)
    assert [event.status for event in finished] == ["failed"] * 3
