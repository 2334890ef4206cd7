"""Commands about a lake: `spark export`, `rollup`, `tidy`, `stream` and `anomalies`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from notifyq.cli.command import resolve_dsn
from notifyq.cli.options import (
    DsnOption,
    JsonOption,
    StorageOption,
    StreamArgument,
    duration_option,
    flag,
    instant_option,
    option,
)
from notifyq.cli.output import err, out, print_json, print_table, when
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import EngineOption, LakeOption, make_engine, needs_extra, storage_of
from notifyq.operations.texts import size, span
from notifyq.printable import printable

if TYPE_CHECKING:
    from notifyq.spark.lake.export import ExportSummary


def export_(
    lake: LakeOption,
    engine: EngineOption = None,
    verify: bool = flag("--verify", "Then read all files of the lake, and compare them."),
    prune: bool = flag("--prune", "Then drop past days whose rows are all in the lake."),
    keep_days: int = option("Whole days that --prune leaves.", default=1, min=0),
    iceberg: bool = flag("--iceberg", "From now on keep Iceberg tables, too."),
    storage_option: StorageOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export newly archived messages into a lake.

    A lake has Parquet files by day and queue, and a Delta table. Each message is
    exported once: stop this and run it again at any time.
    """
    with needs_extra():
        from notifyq.spark.lake.export import export
        from notifyq.spark.lake.prune import prune as drop
        from notifyq.spark.lake.prune import verify as compare

    target = storage_of(lake, storage_option)
    used = make_engine(engine)
    where = resolve_dsn(dsn)
    with Progress("exporting", total=None, unit="messages") as progress:
        summary = export(where, target, engine=used, iceberg=iceberg, on_progress=progress.reach)
    if not as_json:
        out.print(printable(_summary_text(summary)))
    verified = compare(where, target) if verify else None
    if verified is not None and not as_json:
        out.print(f"{verified} files are as they were written")
    pruned = drop(where, target, keep_days=keep_days) if prune else None
    if as_json:
        more = {} if pruned is None else {"pruned": asdict(pruned)}
        print_json({**asdict(summary), "verified": verified, **more})
    elif pruned is not None:
        for dropped in pruned.dropped:
            out.print(f"{dropped.day}: {dropped.rows} messages dropped here, all are in the lake")
        for day, why in pruned.kept.items():
            out.print(printable(f"{day}: kept, {why}"))


def _summary_text(summary: ExportSummary) -> str:
    if summary.batch is None:
        return f"nothing was archived since the last export into {summary.lake}"
    rate = summary.rows / summary.seconds
    return (
        f"{summary.rows} messages of {summary.days} days exported into {summary.lake}: "
        f"{summary.files} files, {size(summary.bytes)}, {span(summary.seconds)} "
        f"({rate:,.0f} a second)"
    )


def rollup(
    lake: LakeOption,
    engine: EngineOption = None,
    rebuild: bool = flag("--rebuild", "Drop the counts, and count everything."),
    storage_option: StorageOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the messages that were added to a lake.

    It counts throughput, times, failures and workers. The counts go into notifyq.rollup and into
    the table `rollup` of the lake, each message once, even if a run is stopped. Run it after each
    export. `notifyq report` shows the counts.
    """
    with needs_extra():
        from notifyq.spark.analysis.rollup import rollup as count

    target = storage_of(lake, storage_option)
    used = make_engine(engine)
    address = resolve_dsn(dsn)
    with Progress("counting", total=None, unit="messages") as progress:
        done = count(address, target, engine=used, rebuild=rebuild, on_progress=progress.reach)
    if as_json:
        print_json(done)
    elif done.messages or done.batches:
        out.print(
            f"{done.messages} messages of {done.files} files counted into {done.groups} groups in "
            f"{span(done.seconds)}"
        )
    else:
        out.print("nothing was added to the lake since the last time")
    if done.is_behind:
        err.print("notifyq: another run is rolling up the same lake, and counts the rest")


def tidy(
    lake: LakeOption,
    least_files: int = option("Fewest small files of a day and queue to merge.", default=4, min=2),
    keep_hours: float = option("Hours that readers may need old files.", default=24, min=0),
    repair: bool = flag(
        "--repair", "First set Delta and Iceberg tables to the files that PostgreSQL lists."
    ),
    storage_option: StorageOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files of a lake and delete unused ones.

    Unused are files that were replaced, and files of runs that were killed.
    """
    with needs_extra():
        from notifyq.spark.lake import mirrors
        from notifyq.spark.lake.lake import Lake
        from notifyq.spark.lake.tidy import tidy as run

    target = storage_of(lake, storage_option)
    where = resolve_dsn(dsn)
    if repair:
        damaged = Lake(where, target)
        mirrors.follow(damaged, *damaged.tables(), is_repair=True)
    summary = run(where, target, least_files=least_files, older_than=timedelta(hours=keep_hours))
    if as_json:
        print_json(summary)
        return
    out.print(
        f"{summary.replaced} small files replaced by {summary.written}; "
        f"{summary.deleted} files deleted that nobody needs"
    )


def stream(
    name: StreamArgument,
    lake: LakeOption,
    table: str | None = option("Table of the lake; else events_STREAM.", metavar="NAME"),
    once: bool = flag("--once", "Copy the present events, and end."),
    every: timedelta | None = duration_option("Pause where there are no new events; else 1s."),
    rows: int = option("Most events of a batch.", default=100_000, min=1),
    engine: EngineOption = None,
    storage_option: StorageOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the events of a stream into the lake, each once.

    It runs until it is stopped, and continues where it was when it starts again, also after
    kill -9: the position is in PostgreSQL.
    """
    with needs_extra():
        from notifyq.spark.streaming import check_stream, stream_to_lake

    target = storage_of(lake, storage_option)

    def report(number: int, events: int) -> None:
        if as_json:
            print_json({"batch": number, "events": events})
        else:
            err.print(f"batch {number}: {events} events")

    address = resolve_dsn(dsn)
    check_stream(address, name)  # before Spark starts, which takes long
    done = stream_to_lake(
        address,
        target,
        name,
        table=table,
        engine=make_engine(engine),
        once=once,
        every=(every or timedelta(seconds=1)).total_seconds(),
        rows=rows,
        on_batch=report,
    )
    if not as_json:
        out.print(printable(f"{done.rows} events of {name} came into table {done.table}"))


def anomalies(
    since: datetime | None = instant_option("First hour to judge; else a day ago."),
    until: datetime | None = instant_option("Hours before this one; else now."),
    past: timedelta | None = duration_option("Past to compare with; else 28d."),
    rate: float = option("Largest share of false alarms among those of an hour.", default=0.001),
    alerts: str = option(
        "Queue for the alerts; '' for none.", default="anomalies", metavar="QUEUE"
    ),
    dry_run: bool = flag("--dry-run", "Print, and write nothing."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find hours in which a queue differs from its past.

    It compares latency, failures and errors. New anomalies are kept in messages.anomaly and
    published into a queue, each once however often this runs. Exit code 0 whether or not anything
    was found.
    """
    with needs_extra():
        from notifyq.spark.analysis.anomalies import anomalies as find

    found = find(
        resolve_dsn(dsn),
        since=since,
        until=until,
        past=past or timedelta(days=28),
        rate=rate,
        alerts=alerts or None,
        report=not dry_run,
    )
    if as_json:
        for one in found.anomalies:
            print_json(one)
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
