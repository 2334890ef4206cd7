"""`notifyq spark stream`: a stream of events into a table of the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyq.cli.output import DsnOption, JsonOption, err, out, print_json, resolve_dsn
from notifyq.cli.spark.common import LakeOption, needs_extra


def stream(
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to carry.")],
    lake: LakeOption,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="Table of the lake; else events_STREAM.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Carry what is there, and end.")] = False,
    every: Annotated[
        str, typer.Option(metavar="INTERVAL", help="Pause between micro-batches, as Spark has it.")
    ] = "1 second",
    rows: Annotated[int, typer.Option(min=1, help="Events of a micro-batch, at most.")] = 100_000,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Carry the events of a stream into the lake by Structured Streaming, each once.

    Runs until it is stopped, and goes on where it was when it starts again, after kill -9 too.
    """
    with needs_extra():
        from notifyq.spark.session import session
        from notifyq.spark.streaming import stream_to_lake

    carried: list[int] = []

    def tell(number: int, events: int) -> None:
        carried.append(events)
        if as_json:
            print_json({"batch": number, "events": events})
        else:
            err.print(f"batch {number}: {events} events")

    query = stream_to_lake(
        session("notifyq stream"),
        resolve_dsn(dsn),
        lake,
        name,
        table=table,
        once=once,
        every=every,
        rows=rows,
        on_batch=tell,
    )
    query.awaitTermination()
    if not as_json:
        out.print(f"{sum(carried)} events of {name} are in the lake")
