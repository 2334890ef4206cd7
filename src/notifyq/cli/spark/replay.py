"""`notifyq spark replay`: archived messages again, each once for each name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    instant,
    out,
    path,
    print_json,
    print_rows,
    printable,
    resolve_dsn,
    when,
)
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import EngineName, EngineOption, make_engine, needs_extra


def replay(
    name: Annotated[str, typer.Argument(help="Its name: it publishes each message once.")],
    lake: Annotated[
        Path | None,
        typer.Option(
            parser=path, metavar="DIR", help="Folder of a lake; else the archive of the database."
        ),
    ] = None,
    dead: Annotated[
        bool,
        typer.Option("--dead", help="Dead messages only; without --to, in place of those."),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Queue or stream; else each where it was."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Of this queue only.")] = None,
    statuses: Annotated[
        list[str] | None,
        typer.Option("--status", help="success, rejected, failed or lock_expired; repeatable."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Of this type only.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Archived from then on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Archived before then.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="That the message contains, as @> of PostgreSQL says."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="So many are due a second, or published into a stream."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Publish nothing: count what would be.")
    ] = False,
    engine: EngineOption = EngineName.LOCAL,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish dead messages, or any slice of history, again: each once for each name.

    Kill it whenever you like and run it again: it goes on where it was, and publishes what has
    come into the history since. The headers replay and replay_of tell where a message comes from.
    """
    with needs_extra():
        from notifyq.spark.history import DEAD, Choice
        from notifyq.spark.replay import replay as publish
    if dead and statuses:
        raise typer.BadParameter("--dead and --status exclude each other")
    known = {"success", *DEAD}
    if statuses and not known.issuperset(statuses):
        raise typer.BadParameter(f"--status is one of {', '.join(sorted(known))}")
    chosen = DEAD if dead else tuple(statuses) if statuses else None
    choice = Choice(
        queue=queue,
        statuses=chosen,
        type=kind,
        since=None if since is None else instant(since),
        until=None if until is None else instant(until),
        match=None if match is None else _json(match),
    )
    address = resolve_dsn(dsn)
    with needs_extra():
        runner = make_engine(engine)
    with Progress(f"replay {name}", total=None, unit="messages") as progress:
        done = publish(
            address,
            name,
            choice,
            lake=lake,
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
        print_json(asdict(done))
    else:
        due = "" if done.due_at is None else f", the last is due at {when(done.due_at, full=True)}"
        known_too = f", {done.known} were before" if done.known else ""
        out.print(
            printable(
                f"{done.published} messages published again in {done.seconds:.1f} s{known_too}, "
                f"{done.total} by replay {name} in all{due}"
            )
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--match is no JSON: {error}") from None
