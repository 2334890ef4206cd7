"""`notifyq broker`: call the procedures that were registered in the database."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import asyncpg
import typer

from notifyq.broker import Broker
from notifyq.cli.logs import LogFormat, LogLevel, configure_logging
from notifyq.cli.metrics_options import MetricsHostOption, MetricsPortOption, serve_metrics
from notifyq.cli.output import DsnOption, duration, resolve_dsn, run
from notifyq.cli.worker import stop_signals
from notifyq.config import (
    BrokerSettings,
    ScrapeSettings,
    listen_dsn_from_environment,
    with_user,
)
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.operations.metrics import BrokerMetrics
    from notifyq.telemetry import Sink


def broker(
    autostart: Annotated[
        str | None,
        typer.Option(
            metavar="USER:DATABASE,...",
            help="A broker for each of these on the server of the DSN; else one for the DSN.",
        ),
    ] = None,
    grace: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="How long a stop waits for one."),
    ] = None,
    poll: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="Longest wait for a bell."),
    ] = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="From which level on.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.TEXT,
    dsn: DsnOption = None,
) -> None:
    """Call registered procedures until SIGTERM, SIGINT or messages.stop_broker().

    The first signal lets a running procedure end within the grace, the second rolls it back.
    """
    configure_logging(log_level, log_format)
    settings = BrokerSettings.load(autostart=autostart, grace=grace, poll=poll)
    places = dict(_places(settings.autostart, listen_dsn_from_environment() or resolve_dsn(dsn)))
    scrapes = ScrapeSettings.load(metrics_port=metrics_port, metrics_host=metrics_host)
    with serve_metrics(scrapes, _metrics) as metrics:
        run(_serve(places, settings, metrics.beside(log_sink) if metrics else log_sink))


def _metrics() -> BrokerMetrics:
    from notifyq.operations.metrics import BrokerMetrics

    return BrokerMetrics()


def _places(autostart: str, dsn: str) -> Iterator[tuple[str, str]]:
    """Each entry of the list with its DSN; without a list the DSN alone."""
    entries = [entry.strip() for entry in autostart.split(",") if entry.strip()]
    for entry in entries:
        user, colon, database = (part.strip() for part in entry.partition(":"))
        if not (user and colon and database):
            raise typer.BadParameter(
                f"{entry!r} in --autostart is not USER:DATABASE, as in app:shop,app:billing"
            )
        yield f"{user}:{database}", with_user(dsn, user, database)
    if not entries:
        yield "", dsn


async def _serve(places: dict[str, str], settings: BrokerSettings, sink: Sink) -> None:
    brokers = {entry: Broker(dsn, settings=settings, sink=sink) for entry, dsn in places.items()}

    def stop() -> None:
        for each in brokers.values():
            each.stop()

    with stop_signals(stop):
        async with AsyncExitStack() as stack:
            for entry, broker in brokers.items():
                try:
                    await stack.enter_async_context(broker)
                except (NotifyqError, asyncpg.PostgresError) as error:
                    if not entry:
                        raise
                    raise ConfigurationError(f"{entry} of --autostart: {error}") from error
            running = [asyncio.create_task(each.serve()) for each in brokers.values()]
            try:
                await asyncio.gather(*running)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
