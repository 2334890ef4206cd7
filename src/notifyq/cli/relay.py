"""`notifyq relay`: move messages to another database until a signal says stop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.arguments import listen_dsn_option, warn_of_password
from notifyq.cli.logs import LogFormat, LogLevel, configure_logging
from notifyq.cli.metrics_options import MetricsHostOption, MetricsPortOption, serve_metrics
from notifyq.cli.output import FilterOption, duration, err, out, print_json, printable, run
from notifyq.cli.worker import load, stop_signals
from notifyq.config import (
    DatabaseSettings,
    RelaySettings,
    ScrapeSettings,
    dsn_from_file,
)
from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError
from notifyq.relay import Relay, RelayMoved, RelayRefused, StreamRelay
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from notifyq.operations.metrics import RelayMetrics
    from notifyq.telemetry import Event

_EVERY = 10.0
"""Seconds between two lines about what was moved."""
_SHOWN = 10
"""Refused messages that are named one by one in these lines."""


def relay(
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="DSN of the database to take from.")
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="DSN of the database to bring to.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE[:TARGET]",
            help="Queue to move, and which it becomes; may be repeated.",
        ),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM:SUBSCRIBER:TARGET",
            help="Subscription to move, and the queue or stream it becomes; may be repeated.",
        ),
    ] = None,
    source_file: Annotated[
        str | None, typer.Option("--source-file", metavar="FILE", help="File with the first DSN.")
    ] = None,
    target_file: Annotated[
        str | None, typer.Option("--target-file", metavar="FILE", help="File with the second DSN.")
    ] = None,
    filter: FilterOption = None,
    transform: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="What changes, routes or drops each message."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Most messages of a transaction.")
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option("--in-flight", min=1, max=100, help="Batches at the same time; 1: in order."),
    ] = None,
    remember: Annotated[
        Any,
        typer.Option(
            parser=duration, metavar="DURATION", help="How long the target keeps receipts."
        ),
    ] = None,
    grace: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="How long a stop waits.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when nothing is left.")] = False,
    accept_restored: Annotated[
        bool,
        typer.Option(
            "--accept-restored", help="The target was restored: take it as it is, and go on."
        ),
    ] = False,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="From which level on.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Move messages from one database to another, each once, until SIGTERM or SIGINT.

    Kill it, restart it, run several: no message is lost, and none comes twice. The first signal:
    claim no more and end what is under way. The second: release it now. Exit code 0 after a clean
    stop.
    """
    configure_logging(log_level, log_format)
    routes, subscriptions = _moved(queue or [], stream or [], filter)
    function = _function(transform)
    settings = RelaySettings.load(batch=batch, in_flight=in_flight, remember=remember, grace=grace)
    pool_size = settings.in_flight + 2
    here = Database(
        _dsn("SOURCE", source, source_file),
        # That of the environment is for another database.
        listen_dsn=listen_dsn_option(sys.argv[1:]),
        settings=DatabaseSettings.load(pool_size=pool_size),
        name="notifyq relay",
    )
    there = Database(
        _dsn("TARGET", target, target_file),
        settings=DatabaseSettings.load(pool_size=pool_size),
        name="notifyq relay",
    )
    progress = _Progress(as_json=as_json)
    scrapes = ScrapeSettings.load(metrics_port=metrics_port, metrics_host=metrics_host)
    with serve_metrics(scrapes, _metrics, here.listen_dsn) as metrics:
        options: dict[str, Any] = {
            "transform": function,
            "once": once,
            "accept_restored": accept_restored,
            "settings": settings,
            "sink": metrics.beside(progress) if metrics else progress,
        }
        relays: list[Relay | StreamRelay] = [
            StreamRelay(here, there, *subscription, **options) for subscription in subscriptions
        ]
        if routes:
            relays.append(Relay(here, there, routes, filter=filter, **options))

        try:
            run(_run_all(relays))
        finally:
            progress.end(sum((each.counts for each in relays), Counter[str]()))


def _metrics() -> RelayMetrics:
    from notifyq.operations.metrics import RelayMetrics

    return RelayMetrics()


async def _run_all(relays: list[Relay | StreamRelay]) -> None:
    def stop() -> None:
        for each in relays:
            each.stop()

    async def move(each: Relay | StreamRelay) -> None:
        try:
            await each.run()
        except Exception:
            stop()  # one that fails ends them all
            raise

    with stop_signals(stop):
        ended = await asyncio.gather(*map(move, relays), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


def _moved(
    queues: list[str], streams: list[str], filter: str | None
) -> tuple[dict[str, str], list[list[str]]]:
    routes, subscriptions = _routes(queues), _subscriptions(streams)
    if not routes and not subscriptions:
        raise typer.BadParameter("say what to move: --queue QUEUE[:TARGET]")
    if subscriptions and filter is not None:
        raise typer.BadParameter("--filter is for queues: leave events out by --transform")
    return routes, subscriptions


def _function(target: str | None) -> Any:
    function = load(target, "FUNCTION") if target else None
    if target and not callable(function):
        raise ConfigurationError(f"there is no function {target!r}")
    return function


def _subscriptions(texts: list[str]) -> list[list[str]]:
    found = [text.split(":") for text in texts]
    for text, parts in zip(texts, found, strict=True):
        if len(parts) != 3 or not all(parts):
            raise typer.BadParameter(f"--stream {text!r} is not STREAM:SUBSCRIBER:TARGET")
    return found


def _routes(pairs: list[str]) -> dict[str, str]:
    routes: dict[str, str] = {}
    for pair in pairs:
        source, colon, target = pair.partition(":")
        if not source or (colon and not target):
            raise typer.BadParameter(f"--queue {pair!r} is not QUEUE or QUEUE:TARGET")
        if source in routes:
            raise typer.BadParameter(f"--queue says twice what becomes of {source!r}")
        routes[source] = target or source
    return routes


def _dsn(name: str, given: str | None, file: str | None) -> str:
    if (given is None) == (file is None):
        raise typer.BadParameter(f"give {name} or --{name.lower()}-file, one of them")
    if file is not None:
        return dsn_from_file(file)
    warn_of_password(f"of the {name.lower()}", given or "", f"--{name.lower()}-file")
    return given or ""


class _Progress:
    """Logs events, and says now and then how much was moved, and how late."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = self._said = time.monotonic()
        self._moved = 0
        self._lag = 0.0
        self._refused = 0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RelayRefused) or self._refused < _SHOWN:
            log_sink(event)
        if isinstance(event, RelayRefused):
            self._refused += 1
        if isinstance(event, RelayMoved):
            self._moved += event.quantity
            self._lag = max(self._lag, event.lag)
        seconds = time.monotonic() - self._said
        if seconds >= _EVERY and self._moved:
            rate = self._moved / seconds
            err.print(f"moved {self._moved} messages, {rate:.0f}/s, lag {self._lag:.3f} s")
            self._said += seconds
            self._moved, self._lag, self._refused = 0, 0.0, 0

    def end(self, counts: Counter[str]) -> None:
        """Say what was moved in all."""
        seconds = time.monotonic() - self._began
        names = ("moved", "known", "merged", "dropped", "failed", "refused", "lost", "released")
        if self._as_json:
            print_json({name: counts[name] for name in names} | {"seconds": round(seconds, 3)})
            return
        others = [f"{counts[name]} {name}" for name in names[1:] if counts[name]]
        text = f"{counts['moved']} messages moved in {seconds:.1f} s"
        out.print(printable("; ".join([text, *others])))
