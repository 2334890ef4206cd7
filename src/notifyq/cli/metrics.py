"""`notifyq metrics`: export the figures of the database, from a process that does nothing else."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from notifyq.cli.output import DsnOption, err, open_database, run
from notifyq.cli.worker import stop_signals


def metrics(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where; 0: any that is free.")
    ] = 9464,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="On which address.")
    ] = "127.0.0.1",
    dsn: DsnOption = None,
) -> None:
    """Serve the metrics of the database for Prometheus until SIGTERM or SIGINT.

    Workers with --metrics-port leave these to it, and export their own.
    """
    # Late, as their library takes its time to load.
    from prometheus_client import CollectorRegistry

    from notifyq.operations.metrics import DatabaseMetrics, start_server

    async def serve() -> None:
        async with open_database(dsn, serves=True) as opened:
            listen_dsn = opened.listen_dsn  # what is wrong with it is said now
        stopped = asyncio.Event()
        registry = CollectorRegistry()
        with (
            DatabaseMetrics(listen_dsn, chosen=True) as database,
            start_server(registry, port=port, host=host) as server,
            stop_signals(stopped.set),
        ):
            registry.register(database)
            err.print(f"metrics are served at {server.url}/metrics")
            await stopped.wait()

    run(serve())
