"""`notifyq spark rollup`: count what came into a lake since the last time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from notifyq.cli.output import DsnOption, JsonOption, err, out, print_json, resolve_dsn
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import (
    EngineName,
    EngineOption,
    LakeOption,
    make_engine,
    needs_extra,
)


def rollup(
    lake: LakeOption,
    engine: EngineOption = EngineName.LOCAL,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Forget what is counted, and count all of it.")
    ] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what came into a lake since the last time: throughput, times, failures, workers.

    The counts go into notifyq.rollup and into the table `rollup` of the lake, each message once,
    wherever a run is ended. Run it after each export. `notifyq report` shows them.
    """
    with needs_extra():
        from notifyq.spark.rollup import rollup as count

        used = make_engine(engine)
    address = resolve_dsn(dsn)
    with Progress("counting", total=None, unit="messages") as progress:
        done = count(address, lake, engine=used, rebuild=rebuild, on_progress=progress.reach)
    if as_json:
        print_json(asdict(done))
    elif done.messages or done.batches:
        out.print(
            f"{done.messages} messages of {done.files} files counted into {done.groups} groups in "
            f"{done.seconds:.1f} s"
        )
    else:
        out.print("nothing came into the lake since the last time")
    if done.is_behind:
        err.print("notifyq: somebody else is rolling up the same lake; the rest is theirs")
