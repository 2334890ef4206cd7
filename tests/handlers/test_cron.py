"""`@app.cron`: workers define schedules, fire them without pg_cron, and handle the messages."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from notifyq import App, ConfigurationError, InvalidArgumentError, Message, Schedule, ScheduleInfo
from notifyq.telemetry import MessageFinished, SchedulesFired
from support.database import Connection, value
from support.running import Events, working

HOUR_AGO = "update messages.schedule set next_at = next_at - interval '2 hours'"


async def only(app: App) -> ScheduleInfo:
    (schedule,) = await app.schedules.list()
    return schedule


async def test_a_cron_function_runs_on_its_schedule(
    app: App, events: Events, connection: Connection
) -> None:
    seen: list[Message] = []

    @app.cron("@hourly", name="report", queue="reports", timezone="Europe/Oslo", priority=7)
    async def make_report(message: Message) -> str:
        seen.append(message)
        return "done"

    async with working(app, events, maintenance=0.05):
        schedule = await only(app)
        assert (schedule.name, schedule.queue, schedule.cron) == ("report", "reports", "@hourly")
        assert schedule.next_at > datetime.now(UTC)
        await connection.execute(HOUR_AGO)
        await events.wait(SchedulesFired, quantity=1)
        await events.wait(MessageFinished, status="success")
    (message,) = seen
    assert message.priority == 7
    due = datetime.fromisoformat(message.headers["due"])
    assert message.headers["schedule"] == "report"
    assert timedelta(0) <= datetime.now(UTC) - due < timedelta(hours=1, minutes=1)
    assert make_report.queue == "reports"
    schedule = await only(app)
    assert (schedule.last_id, schedule.last_at) == (message.id, due)


async def test_a_worker_fires_schedules_between_two_maintenance_runs(
    app: App, events: Events, connection: Connection
) -> None:
    app.cron("* * * * * *", name="quick", queue="q")(lambda: None)
    async with working(app, events, maintenance=3600):
        await events.wait(MessageFinished, 3, status="success")
    late = await connection.fetch(
        "select created_at - (headers ->> 'due')::timestamptz as late "
        "from messages.message_archive order by id limit 3"
    )
    assert timedelta(0) <= min(row["late"] for row in late) < timedelta(seconds=0.5)


async def test_schedules_on_top_of_a_handler_and_of_each_other(app: App) -> None:
    @app.cron("0 20 * * *", name="evening", payload={"kind": "all"}, backfill=0)
    @app.cron("0 8 * * *", jitter=60, overlap="skip", grace=30, when_unserved="skip")
    @app.handler("reports", max_attempts=3)
    def make_report(options: dict[str, str] | None) -> None: ...

    @app.cron("@every 1h")
    def outer() -> None: ...

    assert outer.queue.endswith(".outer")
    await app.create_queues()
    assert await app.create_schedules() == ["reports", "evening", outer.queue]
    assert await app.create_schedules() == []
    found = {schedule.name: schedule for schedule in await app.schedules.list()}
    assert found.pop(outer.queue).queue == outer.queue
    evening, morning = found["evening"], found["reports"]
    assert (morning.name, morning.queue, morning.payload) == ("reports", "reports", None)
    assert (morning.jitter, morning.grace) == (timedelta(minutes=1), timedelta(seconds=30))
    assert (morning.overlap, morning.when_unserved) == ("skip", "skip")
    assert evening.when_unserved == "publish"
    assert (evening.queue, evening.payload, evening.backfill) == ("reports", {"kind": "all"}, 0)


async def test_a_worker_defines_only_schedules_of_its_queues(app: App, events: Events) -> None:
    app.cron("@daily", name="one", queue="one")(lambda: None)
    app.cron("@daily", name="two", queue="two")(lambda: None)
    await app.create_queues(["two"])
    assert await app.create_schedules(["two"]) == ["two"]
    assert (await only(app)).name == "two"


async def test_a_worker_without_the_right_to_define_schedules_warns(
    app: App, events: Events, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    @app.cron("@daily", name="nightly", queue="q")
    def run() -> None: ...

    await app.create_queues()
    guest = App(f"{app.dsn}?options=-crole%3Dnotifyq_worker")
    guest.registry = app.registry
    with caplog.at_level(logging.WARNING, "notifyq.worker.worker"):
        async with working(guest, events, maintenance=0.05):
            (warning,) = caplog.messages
            assert "only an admin may define them" in warning
            # An admin defines it, and any worker fires it.
            await app.create_schedules()
            await connection.execute("select messages.grant_queue('q', 'notifyq_worker', false)")
            await app.schedules.run("nightly")
            await connection.execute("update messages.schedule set next_at = now()")
            await events.wait(SchedulesFired)
            await events.wait(MessageFinished, 2, status="success")


async def test_schedules_of_an_app(app: App, connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    schedule = Schedule(name="s", cron="0 0 L * *", queue="q", payload=[1], headers={"a": 1})
    assert await app.schedules.add(schedule)
    assert not await app.schedules.add(schedule)
    found = await only(app)
    assert (found.payload, found.headers, found.enabled) == ([1], {"a": 1}, True)
    assert found.args() == schedule.args()
    # What was listed can be changed and added again.
    assert await app.schedules.disable("s")
    assert not (await only(app)).enabled
    assert await app.schedules.enable("s")
    assert await app.schedules.run("s") == (await only(app)).last_id
    first, second = await app.schedules.next("0 0 L * *", quantity=2)
    assert first < second
    assert (first + timedelta(days=1)).day == (second + timedelta(days=1)).day == 1
    assert await app.schedules.list("other") == []
    assert await app.schedules.remove("s")
    assert not await app.schedules.remove("s")


async def test_a_wrong_cron_option_is_refused_at_the_decorator(app: App) -> None:
    def run() -> None: ...

    for options, complaint in (
        ({"timezon": "UTC"}, "no option 'timezon': did you mean 'timezone'"),
        ({"payload": object()}, "cannot be written as JSON"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            app.cron("@daily", **options)(run)
    handler = app.cron("@daily", name="a")(run)
    with pytest.raises(ConfigurationError, match="schedule 'a' already exists, at '@daily'"):
        app.cron("@hourly", name="a")(handler)
    with pytest.raises(ConfigurationError, match="already has its handler: pass 'timeout' there"):
        app.cron("@hourly", name="b", timeout=3)(handler)
    with pytest.raises(ConfigurationError, match="'25' cannot be the hour of the cron expression"):
        app.cron("0 25 * * *", name="c")(handler)
    app.cron("0 0 30 2 *", name="c")(handler)
    await app.create_queues()
    with pytest.raises(InvalidArgumentError, match=r"schedule 'c': .* never runs"):
        await app.create_schedules()
