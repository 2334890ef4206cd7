"""`notifyq spark`: pipelines between PostgreSQL and a lake, one module a command."""

from __future__ import annotations

import typer

from notifyq.cli.spark import anomalies, export, load, replay, rollup, sample, stream, tidy

spark = typer.Typer(name="spark", help="Move the archive to a lake and back.", no_args_is_help=True)
spark.command("anomalies")(anomalies.anomalies)
spark.command("export")(export.export_)
spark.command("load")(load.load)
spark.command("replay")(replay.replay)
spark.command("rollup")(rollup.rollup)
spark.command("sample")(sample.sample)
spark.command("stream")(stream.stream)
spark.command("tidy")(tidy.tidy)
