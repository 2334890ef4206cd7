"""`notifyq spark`: pipelines between PostgreSQL and a lake."""

import typer

from notifyq.cli.spark.lake import anomalies, export_, rollup, stream, tidy
from notifyq.cli.spark.publish import load, replay, sample

spark = typer.Typer(name="spark", help="Move the archive to a lake and back.", no_args_is_help=True)
for _command in (anomalies, export_, load, replay, rollup, sample, stream, tidy):
    spark.command(_command.__name__.rstrip("_"))(_command)
