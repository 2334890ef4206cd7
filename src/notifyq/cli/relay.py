"""`notifyq relay`: move messages between databases and brokers until a signal stops it."""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import typer

from notifyq.cli.arguments import listen_dsn_option, warn_of_password
from notifyq.cli.command import run
from notifyq.cli.logs import configure_logging
from notifyq.cli.metrics import serve_metrics
from notifyq.cli.options import (
    FilterOption,
    GraceOption,
    LogFormatOption,
    LogLevelOption,
    MetricsHostOption,
    MetricsPortOption,
    duration_option,
    flag,
    option,
    repeated,
)
from notifyq.cli.output import err, out, print_json
from notifyq.cli.signals import stop_signals
from notifyq.cli.worker import calm_collector, load
from notifyq.config import DatabaseSettings, RelaySettings, ScrapeSettings, dsn_from_file
from notifyq.database.pool import Database
from notifyq.database.refusals import Refusals, is_refusal
from notifyq.errors import ConfigurationError
from notifyq.operations.texts import span
from notifyq.printable import printable
from notifyq.relay import (
    BrokerRelay,
    Relay,
    RelayMoved,
    RelayRefused,
    RelayStarted,
    RelayStopped,
    StreamRelay,
)
from notifyq.relay.brokers import is_broker
from notifyq.telemetry import TelemetryEvent, log_events

log = logging.getLogger("notifyq.relay")

_AnyRelay: TypeAlias = Relay | StreamRelay | BrokerRelay

_EVERY = 10.0
"""Seconds between two lines of progress."""
_PAUSE = 5.0
"""Seconds until a relay that was refused starts again."""
_SHOWN = 10
"""Refused messages that are logged one by one between two such lines."""


def relay(
    source: str | None = typer.Argument(
        None, metavar="[SOURCE]", help="DSN of the database to take from, or URL of a broker."
    ),
    target: str | None = typer.Argument(
        None,
        metavar="[TARGET]",
        help="DSN of the database to bring to, or URL of a message broker: nats://, amqp:// or "
        "kafka://.",
    ),
    queue: list[str] | None = repeated(
        "Queue (of a broker: stream, queue or topic) to move, and its name at the target",
        "--queue",
        "-q",
        metavar="QUEUE[:TARGET]",
    ),
    stream: list[str] | None = repeated(
        "Subscription to move, and the target's queue, stream, subject or topic",
        metavar="STREAM:SUBSCRIBER:TARGET",
    ),
    source_file: str | None = option("File with the first DSN.", metavar="FILE"),
    target_file: str | None = option("File with the second DSN, or the URL.", metavar="FILE"),
    filter: FilterOption = None,
    transform: str | None = option(
        "Function that changes, routes or drops each message.", metavar="MODULE:FUNCTION"
    ),
    batch: int | None = option(
        "Most messages of a transaction; by default 1000.", min=1, max=10_000
    ),
    in_flight: int | None = option(
        "Batches at the same time; 1: in order; by default 3.", min=1, max=100
    ),
    remember: timedelta | None = duration_option(
        "How long the target keeps receipts; by default 90d."
    ),
    grace: GraceOption = None,
    once: bool = flag("--once", "Stop when nothing is left."),
    create_queues: bool = flag(
        "--create-queues", "Create queues that the target lacks, with the policy of the source."
    ),
    accept_restored: bool = flag(
        "--accept-restored", "The target was restored: continue with its receipts."
    ),
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    as_json: bool = flag("--json", "Print the counts as JSON."),
) -> None:
    """Move messages between databases and message brokers.

    It runs until SIGTERM or SIGINT. Kill it, restart it, run several: no message is lost, and a
    database receives none twice. The first signal: claim no more and end what is under way. The
    second: release it now. Exit code 0 after a clean stop.
    """
    configure_logging(log_level, log_format)
    routes, subscriptions = _routes(queue or []), _subscriptions(stream or [])
    if not routes and not subscriptions:
        raise typer.BadParameter("give --queue QUEUE[:TARGET] or --stream: what to move")
    if subscriptions and filter is not None:
        raise typer.BadParameter("--filter is for queues: leave events out by --transform")
    function = load(transform, "FUNCTION") if transform else None
    if transform and not callable(function):
        raise ConfigurationError(f"there is no function {transform!r}")
    settings = RelaySettings.load(batch=batch, in_flight=in_flight, remember=remember, grace=grace)
    pool_size = settings.in_flight + 2
    # NOTIFYQ_LISTEN_DSN is for another database.
    listen_dsn = listen_dsn_option(sys.argv[1:])
    here = _end(_dsn("SOURCE", source, source_file), pool_size, listen_dsn)
    there = _end(_dsn("TARGET", target, target_file), pool_size)
    _check_brokers(
        here,
        there,
        from_broker=not (subscriptions or filter is not None or accept_restored),
        to_broker=not (routes or accept_restored or remember is not None),
    )
    if create_queues and (not routes or isinstance(here, str)):
        raise typer.BadParameter("--create-queues is for --queue of a database")
    progress = _Progress(as_json=as_json)
    scrapes = ScrapeSettings.load(metrics_port=metrics_port, metrics_host=metrics_host)
    database = next(it for it in (here, there) if isinstance(it, Database))
    with serve_metrics(scrapes, "RelayMetrics", database) as metrics:
        options: dict[str, Any] = {
            "transform": function,
            "once": once,
            "settings": settings,
            "telemetry": metrics.beside(progress) if metrics else progress,
        }
        of_database = options | {"accept_restored": accept_restored}
        of_queues = of_database | {"filter": filter, "create_queues": create_queues}
        make = _makers(here, there, routes, subscriptions, of_queues, of_database, options)
        relays = _Relays(make, progress.quiet, once=once)
        calm_collector()
        try:
            run(relays.run(settings.grace))
        finally:
            progress.end(relays.counts)


def _end(address: str, pool_size: int, listen_dsn: str | None = None) -> Database | str:
    """One end of a relay: a database, or the URL of a broker."""
    if is_broker(address):
        return address
    settings = DatabaseSettings.load(pool_size=pool_size)
    return Database(address, listen_dsn=listen_dsn, settings=settings, name="notifyq relay")


def _check_brokers(
    here: Database | str, there: Database | str, *, from_broker: bool, to_broker: bool
) -> None:
    """Raise where the options are not for a broker as the source or the target."""
    if isinstance(there, str) and not to_broker:
        raise typer.BadParameter(
            "a broker takes --stream, without --queue, --remember and --accept-restored"
        )
    if isinstance(here, str) and (isinstance(there, str) or not from_broker):
        raise typer.BadParameter(
            "a broker gives --queue to a database, without --stream, --filter and --accept-restored"
        )


def _makers(
    here: Database | str,
    there: Database | str,
    routes: dict[str, str],
    subscriptions: list[list[str]],
    of_queues: dict[str, Any],
    of_streams: dict[str, Any],
    of_brokers: dict[str, Any],
) -> dict[str, Callable[[], _AnyRelay]]:
    """What makes each of the relays, by its name in the log."""
    make: dict[str, Callable[[], _AnyRelay]] = {}
    if isinstance(here, Database):
        for it in subscriptions:
            make[f"stream {':'.join(it)!r}"] = partial(StreamRelay, here, there, *it, **of_streams)
        if isinstance(there, Database) and routes:
            make["queues"] = partial(Relay, here, there, routes, **of_queues)
    elif isinstance(there, Database):
        for each in routes.items():
            name = f"queue {':'.join(each)!r}"
            make[name] = partial(BrokerRelay, here, there, *each, **of_brokers)
    return make


class _Relays:
    """Relays beside each other: one that the server refuses is tried again, the others go on."""

    def __init__(
        self, make: Mapping[str, Callable[[], _AnyRelay]], quiet: set[str], *, once: bool
    ) -> None:
        self.counts = Counter[str]()
        self._make = make
        self._quiet = quiet
        self._once = once
        self._running: dict[str, _AnyRelay] = {}
        self._failing: set[str] = set()
        self._refusals = Refusals(log)
        self._stopping = asyncio.Event()

    async def run(self, grace: timedelta) -> None:
        """Run them until a signal; raise the error where all are refused."""
        with stop_signals(self._stop, grace=grace):
            ended = await asyncio.gather(*map(self._move, self._make), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    def _stop(self) -> None:
        self._stopping.set()
        for each in self._running.values():
            each.stop()

    async def _move(self, name: str) -> None:
        while not self._stopping.is_set():
            each = self._running[name] = self._make[name]()
            if name in self._failing:
                self._quiet.add(each.name)
            works = asyncio.create_task(self._note_works(name, each))
            try:
                await each.run()
            except Exception as error:
                self._failing.add(name)
                if not is_refusal(error) or self._failing == self._make.keys():
                    self._stop()
                if self._once or self._stopping.is_set():
                    raise
                meanwhile = f"it is started again every {_PAUSE:.0f} s, and the others go on"
                self._refusals.refused(name, error, meanwhile)
            else:
                return
            finally:
                works.cancel()
                self._quiet.discard(each.name)
                self.counts.update(self._running.pop(name).counts)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await self._stopping.wait()

    async def _note_works(self, name: str, each: _AnyRelay) -> None:
        await each.works.wait()
        self._quiet.discard(each.name)
        self._failing.discard(name)
        self._refusals.works(name)


def _subscriptions(texts: list[str]) -> list[list[str]]:
    found = [text.split(":") for text in texts]
    for text, parts in zip(texts, found, strict=True):
        if len(parts) != 3 or not all(parts):
            raise typer.BadParameter(f"--stream {text!r} is not STREAM:SUBSCRIBER:TARGET")
    return found


def _routes(texts: list[str]) -> dict[str, str]:
    routes: dict[str, str] = {}
    for text in texts:
        source, colon, target = text.partition(":")
        if not source or (colon and not target):
            raise typer.BadParameter(f"--queue {text!r} is not QUEUE or QUEUE:TARGET")
        if source in routes:
            raise typer.BadParameter(f"--queue has {source!r} twice")
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
    """Logs telemetry events, and prints now and then how much was moved, and the lag."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = self._printed = time.monotonic()
        self._moved = 0
        self._lag = 0.0
        self._refused = 0
        self.quiet: set[str] = set()
        """Relays whose start and end are not logged: the server refuses them again and again."""

    def __call__(self, event: TelemetryEvent) -> None:
        if isinstance(event, RelayStarted | RelayStopped):
            is_shown = event.relay not in self.quiet
        else:
            is_shown = not isinstance(event, RelayRefused) or self._refused < _SHOWN
        if is_shown:
            log_events(event)
        if isinstance(event, RelayRefused):
            self._refused += 1
        if isinstance(event, RelayMoved):
            self._moved += event.quantity
            self._lag = max(self._lag, event.lag)
        seconds = time.monotonic() - self._printed
        if seconds >= _EVERY and self._moved:
            rate = self._moved / seconds
            err.print(f"moved {self._moved} messages, {rate:.0f}/s, lag {span(self._lag)}")
            self._printed += seconds
            self._moved, self._lag, self._refused = 0, 0.0, 0

    def end(self, counts: Counter[str]) -> None:
        """Print the totals."""
        seconds = time.monotonic() - self._began
        names = ("moved", "known", "merged", "dropped", "failed", "refused", "lost", "released")
        if self._as_json:
            print_json({name: counts[name] for name in names} | {"seconds": round(seconds, 3)})
            return
        others = [f"{counts[name]} {name}" for name in names[1:] if counts[name]]
        text = f"{counts['moved']} messages moved in {span(seconds)}"
        out.print(printable("; ".join([text, *others])))
