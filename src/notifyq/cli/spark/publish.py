"""Commands that publish from a lake or files: `spark load`, `replay` and `sample`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from notifyq.cli.command import resolve_dsn
from notifyq.cli.options import (
    DsnOption,
    JsonOption,
    QueueOption,
    StorageOption,
    flag,
    instant_option,
    option,
    pairs,
    path,
    repeated,
)
from notifyq.cli.options import lake as lake_of
from notifyq.cli.output import err, out, print_json, print_rows, print_table, when
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import EngineOption, make_engine, needs_extra, storage_of
from notifyq.operations.texts import span
from notifyq.printable import printable

if TYPE_CHECKING:
    from notifyq.spark.publish.load import LoadSummary


def load(
    name: Annotated[str, typer.Argument(help="Name of the load; each name is published once.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            parser=path, metavar="FILES", help="Parquet, CSV or JSON lines, also as .gz."
        ),
    ],
    queue: str | None = option("Queue or stream for all rows; else map a column.", "--queue", "-q"),
    columns: list[str] | None = option(
        "Use a column as available_at, dedup_key, delay, headers, key, max_attempts, "
        "message, priority, queue or type; may be repeated.",
        "--map",
        metavar="FIELD=COLUMN",
    ),
    payload: str | None = option("Columns of the message; else all of them.", metavar="A,B,…"),
    form: Literal["csv", "jsonl", "parquet"] | None = option(
        "Else by the names of the files.", "--format"
    ),
    rejects: Path | None = option(
        "File for rows that cannot be published; else the first one is an error.",
        parser=path,
        metavar="FILE",
    ),
    most_rejects: int = option("More rejected rows are an error.", default=10_000, min=1),
    dry_run: bool = flag("--dry-run", "Publish nothing: count the messages and rejects."),
    engine: EngineOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish the rows of files into queues and streams.

    All are published or none, once for each name. Stop it and run it again at any time: a published
    name is not published again. Exit code 1: some rows were rejected.
    """
    with needs_extra():
        from notifyq.spark.publish.load import load as publish
        from notifyq.spark.publish.mapping import mapping
    fields = pairs("--map", columns, "FIELD=COLUMN")
    wanted = mapping(queue, fields, payload.split(",") if payload else None)
    address = resolve_dsn(dsn)
    runner = make_engine(engine)
    with Progress(f"load {name}", total=None, unit="rows") as progress:
        done = publish(
            address,
            name,
            files,
            wanted,
            format=form,
            rejects=rejects,
            most_rejects=most_rejects,
            dry_run=dry_run,
            engine=runner,
            on_progress=progress.advance,
        )
    if as_json:
        print_json(done)
    else:
        out.print(printable(_summary_text(done, is_dry=dry_run)))
        if done.rejects:
            err.print(printable(f"notifyq: {done.rejected} rows are rejected, see {done.rejects}"))
    if done.rejected:
        raise typer.Exit(1)


def _summary_text(done: LoadSummary, *, is_dry: bool) -> str:
    where = ", ".join(f"{count} into {queue}" for queue, count in done.queues.items())
    if is_dry:
        return f"{sum(done.queues.values())} messages would be published: {where or 'none'}"
    if not done.is_new:
        return f"load {done.name} was published before, {done.published} messages: nothing to do"
    merged = f"; {done.merged} merged with live ones of the same dedup_key" if done.merged else ""
    return f"{done.published} messages in {span(done.seconds)}: {where or 'none'}{merged}"


def replay(
    name: Annotated[
        str, typer.Argument(help="Name of the replay; each name publishes a message once.")
    ],
    lake: str | None = option(
        "Folder or URI of a lake; else the archive of the database.",
        parser=lake_of,
        metavar="LAKE",
    ),
    dead: bool = flag("--dead", "Only dead messages; without --to, instead of those."),
    to: str | None = option("Queue or stream; else that of each message.", metavar="QUEUE"),
    queue: QueueOption = None,
    statuses: list[str] | None = repeated("success, rejected, failed or lock_expired", "--status"),
    kind: str | None = option("Only of this type.", "--type"),
    since: datetime | None = instant_option("Archived then or later."),
    until: datetime | None = instant_option("Archived before then."),
    match: str | None = option(
        "JSON that the message contains, as @> of PostgreSQL.", metavar="JSON"
    ),
    rate: float | None = option(
        "Messages a second that become due, or are published into a stream.", min=0.001
    ),
    dry_run: bool = flag("--dry-run", "Publish nothing: count the messages."),
    storage_option: StorageOption = None,
    engine: EngineOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish dead messages or others of the past again.

    Each message is published once for each name. Stop it and run it again at any time: it continues
    where it was, and publishes the messages archived since. The headers replay and replay_of name
    the origin of a message.
    """
    with needs_extra():
        from notifyq.spark.columns import STATUSES
        from notifyq.spark.publish.history import Choice
        from notifyq.spark.publish.replay import replay as publish
    if dead and statuses:
        raise typer.BadParameter("--dead and --status exclude each other")
    if statuses and not STATUSES.issuperset(statuses):
        raise typer.BadParameter(f"--status is one of {', '.join(sorted(STATUSES))}")
    choice = Choice(
        queue=queue,
        statuses=tuple(statuses) if statuses else None,
        dead=dead,
        type=kind,
        since=since,
        until=until,
        match=None if match is None else _json(match),
    )
    if storage_option and lake is None:
        raise typer.BadParameter("--storage-option needs --lake")
    target = None if lake is None else storage_of(lake, storage_option)
    address = resolve_dsn(dsn)
    runner = make_engine(engine)
    with Progress(f"replay {name}", total=None, unit="messages") as progress:
        done = publish(
            address,
            name,
            choice,
            lake=target,
            to=to,
            rate=rate,
            redrive=dead and to is None,
            dry_run=dry_run,
            engine=runner,
            on_progress=progress.advance,
        )
    if dry_run:
        print_rows(
            [asdict(count) for count in done.counts],
            as_json=as_json,
            empty="nothing would be published",
        )
    elif as_json:
        print_json(done)
    else:
        due = "" if done.due_at is None else f", the last is due at {when(done.due_at, full=True)}"
        before = f", {done.known} were before" if done.known else ""
        out.print(
            printable(
                f"{done.published} messages published again in {span(done.seconds)}{before}, "
                f"{done.total} by replay {name} in all{due}"
            )
        )
    if done.refused:
        text = f"{done.refused} messages were refused, the first one: {done.reason}"
        err.print(f"notifyq: {printable(text)}")
        raise typer.Exit(1)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--match is not JSON: {error}") from None


def sample(
    messages: int = option(
        "Messages to create.", "--messages", "-n", default=2_000_000, min=1, max=2**31
    ),
    seed: int = option("The same seed gives the same rows.", default=1, min=0, max=2**31),
    days: int = option("Days in which they finished.", default=14, min=1, max=3650),
    until: datetime | None = instant_option("End of the days, a midnight in UTC; else today's."),
    share: float = option(
        "Share of the messages in the largest queue.", default=0.8, min=0.01, max=0.99
    ),
    incidents: int = option("Hours in which a queue goes wrong.", default=3, min=0, max=50),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill the archive of an unused database with generated messages.

    It has ten queues of very different sizes, days and nights, bursts, retries, errors, and
    transactions that commit a day late. The same options give the same rows and the same digest.
    A database that has messages, events or queues already is refused.
    """
    with needs_extra():
        from notifyq.spark.analysis.sample import sample as make

    address = resolve_dsn(dsn)
    with Progress("sample", total=messages, unit="messages") as progress:
        made = make(
            address,
            messages=messages,
            seed=seed,
            days=days,
            until=until,
            share=share,
            planted=incidents,
            on_progress=progress.reach,
        )
    if as_json:
        print_json(made)
        return
    out.print(
        f"{made.messages} messages of {made.queues} queues in {span(made.seconds)}, "
        f"{made.dead} of them dead, digest {made.digest}"
    )
    if made.incidents:
        rows = [
            (i.queue, when(i.since, full=True), when(i.until, full=True), i.what)
            for i in made.incidents
        ]
        out.print()
        print_table(["incident in", "from", "until", "what"], rows)
