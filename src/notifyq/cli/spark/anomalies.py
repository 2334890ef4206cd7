"""`notifyq spark anomalies`: hours in which a queue is not as it used to be."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    duration,
    instant,
    out,
    print_json,
    print_table,
    resolve_dsn,
    when,
)
from notifyq.cli.spark.common import needs_extra


def anomalies(
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="First hour to judge; else a day ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Hours before this one; else now.")
    ] = None,
    past: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="Past to compare with; else 28d."),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Part of false alarms among those of an hour, at most.")
    ] = 0.001,
    alerts: Annotated[
        str, typer.Option(metavar="QUEUE", help="Queue for the alerts; '' for none.")
    ] = "anomalies",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell, and write nothing.")] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the hours in which latency, failures or errors of a queue depart from its past.

    What is new is kept in messages.anomaly and published into a queue, each once however often
    this runs. Exit code 0 whether or not anything was found.
    """
    with needs_extra():
        from notifyq.spark.anomalies import anomalies as find

    found = find(
        resolve_dsn(dsn),
        since=None if since is None else instant(since),
        until=None if until is None else instant(until),
        past=past or timedelta(days=28),
        rate=rate,
        alerts=alerts or None,
        report=not dry_run,
    )
    if as_json:
        for one in found.anomalies:
            print_json(asdict(one))
        return
    if found.anomalies:
        rows = [
            (when(one.bucket_at, full=True), one.queue, one.metric, one.details)
            for one in found.anomalies
        ]
        print_table(["hour", "queue", "metric", "what"], rows)
        out.print()
    out.print(
        f"{len(found.anomalies)} anomalies, {found.new} of them new, "
        f"in {found.hours} hours of queues that could be judged"
    )
