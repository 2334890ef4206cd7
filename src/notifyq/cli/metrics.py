"""Metrics for Prometheus: of a command that serves, and `notifyq metrics` for the database."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from notifyq.cli.command import open_database
from notifyq.cli.options import DsnOption, option
from notifyq.cli.output import err
from notifyq.cli.signals import Control, stop_signals
from notifyq.config import ScrapeSettings
from notifyq.database.pool import Database

log = logging.getLogger("notifyq.metrics")


@contextlib.contextmanager
def serve_metrics(
    settings: ScrapeSettings,
    kind: str,
    database: Database | None = None,
    control: Control | None = None,
) -> Iterator[Any]:
    """Make and serve the metrics of a process, of this class, if its settings have a port.

    With a database also its own, if no other process serves them. Each of several worker
    processes has its own port.
    """
    port = settings.metrics_port
    if port is None:
        yield None
        return
    # Imported late: a command without metrics does not wait for their library.
    from notifyq.operations import metrics as classes

    metrics = getattr(classes, kind)()
    if port and control is not None:
        port += control.number - 1
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            classes.start_server(metrics, port=port, host=settings.metrics_host)
        )
        if database is not None:
            collector = classes.DatabaseMetrics(database.listen_dsn, schema=database.schema)
            metrics.registry.register(stack.enter_context(collector))
        log.info("metrics are served at %s/metrics", server.url)
        yield metrics


async def metrics(
    port: int = option("Port; 0: any that is free.", default=9464, min=0, max=65535),
    host: str = option("Address to listen on.", default="127.0.0.1", metavar="ADDRESS"),
    dsn: DsnOption = None,
) -> None:
    """Serve the metrics of the database for Prometheus.

    It runs until SIGTERM or SIGINT. Workers with --metrics-port leave these to it, and serve only
    their own.
    """
    # Imported late: it takes its time to load.
    from prometheus_client import CollectorRegistry

    from notifyq.operations.metrics import DatabaseMetrics, start_server

    async with open_database(dsn, serves=True) as opened:
        listen_dsn = opened.listen_dsn  # an error in it is raised now
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
