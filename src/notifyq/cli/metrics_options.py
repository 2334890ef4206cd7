"""Where Prometheus finds the metrics of a command."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from notifyq.cli.signals import Control
    from notifyq.config import ScrapeSettings
    from notifyq.operations.metrics import BrokerMetrics, RelayMetrics, WorkerMetrics

    M = TypeVar("M", WorkerMetrics, BrokerMetrics, RelayMetrics)

log = logging.getLogger("notifyq.metrics")

MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve /metrics, /healthz and /readyz there; 9464 is usual.",
    ),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option("--metrics-host", metavar="ADDRESS", help="By default 127.0.0.1."),
]


@contextlib.contextmanager
def serve_metrics(
    settings: ScrapeSettings,
    make: Callable[[], M],
    dsn: str | None = None,
    control: Control | None = None,
) -> Iterator[M | None]:
    """Make and serve the metrics of a process if its settings say where.

    Also those of the database with this DSN, if no other process does. Of several processes each
    has its port.
    """
    port = settings.metrics_port
    if port is None:
        yield None
        return
    # Late: who does not want metrics does not wait for what they need.
    from notifyq.operations.metrics import DatabaseMetrics, start_server

    metrics = make()
    if port and control is not None:
        port += control.number - 1
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server(metrics, port=port, host=settings.metrics_host))
        if dsn is not None:
            metrics.registry.register(stack.enter_context(DatabaseMetrics(dsn)))
        log.info("metrics are served at %s/metrics", server.url)
        yield metrics
