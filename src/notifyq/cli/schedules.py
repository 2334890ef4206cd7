"""`notifyq schedules`: list, add, try, stop and remove messages that are published by the clock."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from notifyq.cli.command import (
    Commands,
    Listing,
    acting,
    change,
    noting,
    open_database,
    resolve_dsn,
)
from notifyq.cli.hints import quoted
from notifyq.cli.options import (
    AppArgument,
    AttemptsOption,
    DsnOption,
    HeaderOption,
    JsonOption,
    PriorityOption,
    TypeOption,
    duration_option,
    headers,
    instant_option,
    option,
    require_json,
)
from notifyq.cli.output import out, print_rows, when
from notifyq.cli.worker import load_app
from notifyq.database import statements as sql
from notifyq.errors import ScheduleNotFoundError
from notifyq.models.payload import Json
from notifyq.operations.texts import span
from notifyq.queues.admin import Admin
from notifyq.queues.schedules import Overlap, Schedule, ScheduleInfo, Schedules, WhenUnserved

schedules = Commands(
    name="schedules", cls=Listing, help="List (ls) and change what is published by the clock."
)

_SPARE = ("message id", "last", "timezone")
"""Columns that a narrow terminal drops first."""

NameArgument = Annotated[str, typer.Argument(help="Name of the schedule.")]


@schedules.command()
async def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the schedules, their next times, and their errors."""
    async with open_database(dsn) as database:
        found = await Schedules(database).list()
    rows = [asdict(schedule) if as_json else _shown(schedule) for schedule in found]
    print_rows(rows, as_json=as_json, empty="no schedules", spare=() if as_json else _SPARE)


def _shown(schedule: ScheduleInfo) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "queue": schedule.queue,
        "next": schedule.next_at if schedule.enabled else "disabled",
        "last": schedule.last_at,
        "message id": schedule.last_id,
        "details": schedule.last_error,
    }


@schedules.command()
async def add(
    name: NameArgument,
    cron: Annotated[str, typer.Argument(help="When, as in '30 8 * * mon-fri'.")],
    queue: Annotated[str, typer.Argument(help="Queue to publish into.")],
    message: str = typer.Argument("null", metavar="[JSON]", help="The message."),
    timezone: str = option("Time zone, as in Europe/Oslo.", default="UTC", metavar="ZONE"),
    jitter: timedelta | None = duration_option("Delay each run at random, up to this long."),
    overlap: Overlap = option("Skip a run while the last one waits, or is live.", default="allow"),
    backfill: int = option("Most missed runs that are made up for.", default=1, min=0, max=100),
    grace: timedelta = duration_option("With --backfill 0: how late a run may be.", default="5m"),
    when_unserved: WhenUnserved = option(
        "Skip a run while messages wait and no worker serves the queue.", default="publish"
    ),
    priority: PriorityOption = 0,
    type_: TypeOption = None,
    header: HeaderOption = None,
    key: str | None = option("Key of the messages."),
    max_attempts: AttemptsOption = None,
    dsn: DsnOption = None,
) -> None:
    """Define a schedule, or redefine it. Options that are not given have their defaults."""
    require_json("message", message)
    schedule = Schedule(
        name=name,
        cron=cron,
        queue=queue,
        payload=Json(message),
        timezone=timezone,
        type=type_,
        headers=headers(header),
        priority=priority,
        key=key,
        max_attempts=max_attempts,
        jitter=jitter or 0,
        overlap=overlap,
        backfill=backfill,
        grace=grace,
        when_unserved=when_unserved,
    )
    async with acting(dsn, "schedule.add", name, cron=cron, queue=queue) as act:
        changed = await Schedules(act).add(schedule)
        act.note(changed=changed)
        [defined] = await Schedules(act).list(name)
    began = f"defined {name}" if changed else f"{name} is defined so already"
    at = f"next at {when(defined.next_at, full=True)}" if defined.enabled else "disabled"
    out.print(f"{began}, {at}")


@schedules.command()
async def remove(name: NameArgument, dsn: DsnOption = None) -> None:
    """Remove a schedule; messages that it has published stay."""
    async with acting(dsn, "schedule.remove", name) as act:
        if not await act.value(sql.UNSCHEDULE, name):
            raise ScheduleNotFoundError(f"there is no schedule {quoted(name)}")
        act.note(changed=True)
    out.print(f"removed {name}")


@schedules.command()
async def enable(name: NameArgument, dsn: DsnOption = None) -> None:
    """Let a schedule fire again, from its next time on."""
    done, unchanged = f"enabled {name}", f"{name} was enabled already"
    await change(dsn, "schedule.enable", sql.ENABLE_SCHEDULE, [name], done, unchanged)


@schedules.command()
async def disable(name: NameArgument, dsn: DsnOption = None) -> None:
    """Let a schedule fire no more until it is enabled."""
    done, unchanged = f"disabled {name}", f"{name} was disabled already"
    await change(dsn, "schedule.disable", sql.DISABLE_SCHEDULE, [name], done, unchanged)


@schedules.command("run")
async def run_now(name: NameArgument, dsn: DsnOption = None) -> None:
    """Publish the message of a schedule now, and print its id."""
    async with acting(dsn, "schedule.run", name) as act:
        id_ = await Schedules(act).run(name)
        act.note(message=id_)
    out.print(id_)


@schedules.command("next")
async def show_next(
    cron: Annotated[str, typer.Argument(metavar="NAME|CRON", help="A schedule, or when.")],
    timezone: str = option("Time zone, if it is not a schedule.", default="UTC", metavar="ZONE"),
    quantity: int = option("How many.", "-n", default=5, min=1, max=1000),
    since: datetime | None = instant_option("Times after this one instead of now."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next times of a schedule or a cron expression."""
    async with open_database(dsn) as database:
        expression, zone = cron, timezone
        for known in await Schedules(database).list(cron):
            expression, zone = known.cron, known.timezone
        found = await Schedules(database).next(
            expression, zone, quantity=quantity, later_than=since
        )
    rows = [{"at": at} if as_json else _row(at, zone) for at in found]
    print_rows(rows, as_json=as_json, empty="")


def _row(at: datetime, zone: str) -> dict[str, str]:
    try:
        there = at.astimezone(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):  # the database has zones that this machine lacks
        there = at.astimezone(UTC)
    left = at - datetime.now(UTC)
    return {
        "at": there.strftime("%a %Y-%m-%d %H:%M:%S %z"),
        "in": span(left) if left > timedelta(0) else "past",
    }


@schedules.command()
async def apply(target: AppArgument, dsn: DsnOption = None) -> None:
    """Create the queues and schedules of an app.

    Workers do the same if they have the right to.
    """
    app = load_app(target)
    if dsn is not None or app.dsn is None:
        app.dsn = resolve_dsn(dsn)
    async with app:
        await app.admin.check_schema()
        async with noting(app.database, "schedule.apply", target) as act:
            # As the methods of the app do, but in the transaction of the audit.
            known = app.registry
            queues = await Admin(act).create_missing(known.policies())
            changed = await Schedules(act).add_all(known.schedules_of(known.queues()))
            act.note(queues=queues, schedules=changed)
        left = [it.name for it in await app.schedules.list()]
    out.print(f"defined {', '.join(changed)}" if changed else "all is defined so already")
    if others := [name for name in left if name not in app.registry.schedules]:
        out.print(f"not of this app: {', '.join(others)}")
