"""`notifyq spark sample`: a large archive to try the pipelines on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    instant,
    out,
    print_json,
    print_table,
    resolve_dsn,
    when,
)
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import needs_extra


def sample(
    messages: Annotated[
        int, typer.Option("--messages", "-n", min=1, max=2**31, help="Messages to make.")
    ] = 2_000_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="The same gives the same.")] = 1,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days that they finished in.")] = 14,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT", help="A midnight in UTC that the days end at; else today's."
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Part of the messages in the largest queue.")
    ] = 0.8,
    incidents: Annotated[
        int, typer.Option(min=0, max=50, help="Hours in which a queue goes wrong.")
    ] = 3,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill the archive of an unused database with messages that nobody ever published.

    Ten queues of very different size, days and nights, bursts, retries, errors, and transactions
    that commit a day late. The same options give the same rows, and the digest shows it. Refused
    where the database has messages, events or queues already.
    """
    with needs_extra():
        from notifyq.spark.sample import sample as make

    end = None if until is None else instant(until)
    address = resolve_dsn(dsn)
    with Progress("sample", total=messages, unit="messages") as progress:
        made = make(
            address,
            messages=messages,
            seed=seed,
            days=days,
            until=end,
            share=share,
            planted=incidents,
            on_progress=progress.reach,
        )
    if as_json:
        print_json(asdict(made))
        return
    out.print(
        f"{made.messages} messages of {made.queues} queues in {made.seconds:.1f} s, "
        f"{made.dead} of them dead, digest {made.digest}"
    )
    if made.incidents:
        rows = [
            (i.queue, when(i.since, full=True), when(i.until, full=True), i.what)
            for i in made.incidents
        ]
        out.print()
        print_table(["incident in", "from", "until", "what"], rows)
