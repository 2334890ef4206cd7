"""`notifyq schedules`: what is published by the clock; list, add, try, stop and remove it."""

from __future__ import annotations

import enum
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from notifyq.cli.audited import acting, noting
from notifyq.cli.default_command import Listing
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    duration,
    headers,
    instant,
    open_database,
    out,
    print_rows,
    resolve_dsn,
    run,
    span,
    when,
)
from notifyq.cli.worker import load_app
from notifyq.errors import ConfigurationError
from notifyq.models.payload import Json, check_json
from notifyq.queues.admin import Admin
from notifyq.queues.schedules import Schedule, Schedules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.queues.schedules import ScheduleInfo

schedules = typer.Typer(
    name="schedules", cls=Listing, help="List (ls) and change what is published by the clock."
)


class Overlap(enum.StrEnum):
    """What a run does beside the one before."""

    ALLOW = "allow"
    SKIP_WAITING = "skip_waiting"
    SKIP = "skip"


_SPARE = ("message id", "last", "timezone")
"""Columns that a narrow terminal lacks first."""

NameArgument = Annotated[str, typer.Argument(help="Name of the schedule.")]


@schedules.command()
def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the schedules, when they come next, and what went wrong."""

    async def list_schedules() -> None:
        async with open_database(dsn) as database:
            found = await Schedules(database).list()
        rows = [asdict(schedule) if as_json else _shown(schedule) for schedule in found]
        print_rows(rows, as_json=as_json, empty="no schedules", spare=() if as_json else _SPARE)

    run(list_schedules())


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
def add(
    name: NameArgument,
    cron: Annotated[str, typer.Argument(help="When, as in '30 8 * * mon-fri'.")],
    queue: Annotated[str, typer.Argument(help="Queue to publish into.")],
    message: Annotated[str, typer.Argument(metavar="[JSON]", help="The message.")] = "null",
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="Whose clocks, as in Europe/Oslo.")
    ] = "UTC",
    jitter: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="Up to this later, at random.")
    ] = None,
    overlap: Annotated[
        Overlap, typer.Option(help="Leave a run out while the last one waits, or is live.")
    ] = Overlap.ALLOW,
    backfill: Annotated[
        int, typer.Option(min=0, max=100, help="Missed runs that are made up for, at most.")
    ] = 1,
    grace: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="Later than that is missed."),
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-(2**31), max=2**31 - 1, help="Larger is handed out first.")
    ] = 0,
    type_: Annotated[str | None, typer.Option("--type", help="Type of the messages.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="What the messages are about.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Attempts; by default those of the queue.")
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Define a schedule, or redefine it; what is not given is the default."""
    try:
        check_json(message)
    except ValueError as error:
        raise ConfigurationError(f"the message is not JSON: {error}") from error
    schedule = Schedule(
        name=name,
        cron=cron,
        queue=queue,
        payload=Json(message),
        timezone=timezone,
        type=type_,
        headers=headers(header or []),
        priority=priority,
        key=key,
        max_attempts=max_attempts,
        jitter=jitter or 0,
        overlap=cast("Any", overlap.value),
        backfill=backfill,
        grace=timedelta(minutes=5) if grace is None else grace,
    )

    async def add_schedule() -> None:
        async with acting(dsn, "schedule.add", name, cron=cron, queue=queue) as act:
            changed = await Schedules(act).add(schedule)
            act.note(changed=changed)
            [defined] = await Schedules(act).list(name)
        began = f"defined {name}" if changed else f"{name} is defined so already"
        at = f"next at {when(defined.next_at, full=True)}" if defined.enabled else "disabled"
        out.print(f"{began}, {at}")

    run(add_schedule())


@schedules.command()
def remove(name: NameArgument, dsn: DsnOption = None) -> None:
    """Remove a schedule; messages that it has published stay."""
    _change(
        dsn,
        "remove",
        name,
        lambda them: them.remove(name),
        f"removed {name}",
        f"there was no schedule {name!r}",
    )


@schedules.command()
def enable(name: NameArgument, dsn: DsnOption = None) -> None:
    """Let a schedule fire again, from its next time on."""
    _change(
        dsn,
        "enable",
        name,
        lambda them: them.enable(name),
        f"enabled {name}",
        f"{name} was enabled already",
    )


@schedules.command()
def disable(name: NameArgument, dsn: DsnOption = None) -> None:
    """Let a schedule fire no more until it is enabled."""
    _change(
        dsn,
        "disable",
        name,
        lambda them: them.disable(name),
        f"disabled {name}",
        f"{name} was disabled already",
    )


@schedules.command("run")
def run_now(name: NameArgument, dsn: DsnOption = None) -> None:
    """Publish the message of a schedule now, and print its id."""

    async def run_schedule() -> None:
        async with acting(dsn, "schedule.run", name) as act:
            id_ = await Schedules(act).run(name)
            act.note(message=id_)
        out.print(id_)

    run(run_schedule())


@schedules.command("next")
def show_next(
    cron: Annotated[str, typer.Argument(metavar="NAME|CRON", help="A schedule, or when.")],
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="Whose clocks, if it is no schedule.")
    ] = "UTC",
    quantity: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many.")] = 5,
    since: Annotated[
        Any, typer.Option(parser=instant, metavar="INSTANT", help="From then on, not from now.")
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next times of a schedule, or of an expression before it is one."""

    async def list_times() -> None:
        async with open_database(dsn) as database:
            expression, zone = cron, timezone
            for known in await Schedules(database).list(cron):
                expression, zone = known.cron, known.timezone
            found = await Schedules(database).next(
                expression, zone, quantity=quantity, later_than=since
            )
        print_rows(
            [{"at": at} if as_json else _row(at, zone) for at in found], as_json=as_json, empty=""
        )

    run(list_times())


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
def apply(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is.")],
    dsn: DsnOption = None,
) -> None:
    """Put the queues and schedules of an app in place, as its workers do if they may."""

    async def apply_schedules() -> None:
        app = load_app(target)
        if dsn is not None or app.dsn is None:
            app.dsn = resolve_dsn(dsn)
        async with app:
            await app.admin.check_schema()
            async with noting(app.database, "schedule.apply", target) as act:
                # As the methods of the app do, in the transaction of the audit.
                known = app.registry
                queues = await Admin(act).create_missing(known.policies())
                changed = await Schedules(act).add_all(known.schedules_of(known.queues()))
                act.note(queues=queues, schedules=changed)
            left = [it.name for it in await app.schedules.list()]
        out.print(f"defined {', '.join(changed)}" if changed else "all is defined so already")
        if others := [name for name in left if name not in app.registry.schedules]:
            out.print(f"not of this app: {', '.join(others)}")

    run(apply_schedules())


def _change(
    dsn: str | None,
    verb: str,
    name: str,
    change: Callable[[Schedules], Awaitable[bool]],
    done: str,
    else_: str,
) -> None:
    async def make() -> None:
        async with acting(dsn, f"schedule.{verb}", name) as act:
            changed = await change(Schedules(act))
            act.note(changed=changed)
        out.print(done if changed else else_)

    run(make())
