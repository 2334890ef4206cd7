"""`notifyq dead groups`, and what is done to all dead messages of one group."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from notifyq.cli.audited import noting
from notifyq.cli.hints import require_known
from notifyq.cli.masking import masks_of_environment
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    QueueOption,
    instant,
    open_database,
    out,
    print_json,
    print_rows,
    run,
    when,
)
from notifyq.operations import monitor
from notifyq.operations.monitor import Act, Conditions, DeadGroups, clock, dead_groups, step

FingerprintOption = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="TEXT", help="Only of this group, see `notifyq dead groups`."
    ),
]


_ACTIONS = {Act.RETRY: "dead.retry", Act.DELETE: "dead.delete"}


def groups(
    queue: QueueOption = None,
    subscriber: Annotated[
        str | None, typer.Option("--subscriber", help="Only events of this subscriber.")
    ] = None,
    since: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    until: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=2000, help="At most.")] = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group dead messages that were not retried by what their errors have in common.

    `notifyq dead retry --fingerprint TEXT` publishes all of a group again, `notifyq dead delete
    --fingerprint TEXT` deletes them.
    """
    conditions = Conditions(queue=queue, subscriber=subscriber, since=since, until=until)

    async def find() -> DeadGroups:
        async with open_database(dsn) as database:
            found = await dead_groups(database, conditions, quantity=limit)
            if not found.groups:
                await require_known(database, queue, subscriber)
            return found

    found = run(find())
    if as_json:
        for group in found.groups:
            print_json(asdict(group))
        return
    print_rows(
        [
            {
                "dead": group.dead,
                "last_at": when(group.last_at),
                "last_id": group.last_id,
                "queue": ", ".join(group.queues),
                "fingerprint": group.fingerprint,
            }
            for group in found.groups
        ],
        as_json=False,
        empty="no dead messages",
    )
    if found.place is not None and found.place.at is not None:
        out.print(
            f"of the latest {found.looked_at} dead messages: "
            f"--until {found.place.at.isoformat()} goes on"
        )


async def act_on(dsn: str | None, act: Act, conditions: Conditions, limit: int) -> int:
    """Do it to all dead messages that match, in steps, up to `limit`; return to how many."""
    done = 0
    place = None
    async with open_database(dsn) as database:
        if conditions.until is None:
            # What dies from now on is left, also of what is published again here.
            conditions = replace(conditions, until=await clock(database))
        said = monitor.masked_details(conditions.values(), masks_of_environment())
        subject = conditions.queue or "those found"
        while done < limit:
            async with noting(database, _ACTIONS[act], subject, **said) as noted:
                one = await step(
                    noted.connection, act, conditions, quantity=min(1000, limit - done), place=place
                )
                noted.note(found=one.found, done=one.done)
            done += one.done
            place = one.place
            if place is None:
                break
        if not done:
            await require_known(database, conditions.queue, conditions.subscriber)
    return done
