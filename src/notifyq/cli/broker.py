"""`notifyq broker`: call the procedures that are registered in the database."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import asyncpg
import typer

from notifyq.broker import Broker
from notifyq.cli.command import resolve_dsn, run
from notifyq.cli.logs import configure_logging
from notifyq.cli.metrics import serve_metrics
from notifyq.cli.options import (
    DsnOption,
    GraceOption,
    LogFormatOption,
    LogLevelOption,
    MetricsHostOption,
    MetricsPortOption,
    PollOption,
    option,
)
from notifyq.cli.signals import stop_signals
from notifyq.config import BrokerSettings, ScrapeSettings, listen_dsn_from_environment
from notifyq.dsn import with_user
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.telemetry import TelemetryHandler, log_events


def broker(
    autostart: str | None = option(
        "A broker for each of these on the server of the DSN; else one for the DSN.",
        metavar="USER:DATABASE,...",
    ),
    grace: GraceOption = None,
    poll: PollOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    dsn: DsnOption = None,
) -> None:
    """Call the registered procedures of the database.

    It stops for SIGTERM, SIGINT and messages.stop_broker(). The first signal lets a running
    procedure end within the grace, the second rolls it back.
    """
    configure_logging(log_level, log_format)
    settings = BrokerSettings.load(autostart=autostart, grace=grace, poll=poll)
    dsns = dict(_dsns(settings.autostart, listen_dsn_from_environment() or resolve_dsn(dsn)))
    scrapes = ScrapeSettings.load(metrics_port=metrics_port, metrics_host=metrics_host)
    with serve_metrics(scrapes, "BrokerMetrics") as metrics:
        run(_serve(dsns, settings, metrics.beside(log_events) if metrics else log_events))


def _dsns(autostart: str, dsn: str) -> Iterator[tuple[str, str]]:
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


async def _serve(
    dsns: dict[str, str], settings: BrokerSettings, telemetry: TelemetryHandler
) -> None:
    brokers = {
        entry: Broker(dsn, settings=settings, telemetry=telemetry) for entry, dsn in dsns.items()
    }

    def stop() -> None:
        for each in brokers.values():
            each.stop()

    with stop_signals(stop, grace=settings.grace):
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
