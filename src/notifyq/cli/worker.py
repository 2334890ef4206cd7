"""`notifyq worker`: run the handlers of an app until a signal stops it."""

import asyncio
import difflib
import gc
import importlib
import logging
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer

from notifyq.app import App
from notifyq.cli.arguments import schema_option
from notifyq.cli.command import resolve_dsn, run
from notifyq.cli.hints import did_you_mean
from notifyq.cli.http import (
    CALLBACK,
    CALLBACK_TIMEOUT,
    HTTP,
    LISTEN,
    SECRET_FILE,
    TIMEOUT,
    HttpOptions,
)
from notifyq.cli.logs import configure_logging
from notifyq.cli.memory import EXIT_CODE, MemoryLimit
from notifyq.cli.metrics import serve_metrics
from notifyq.cli.options import (
    DsnOption,
    GraceOption,
    LogFormatOption,
    LogLevelOption,
    MaybeAppArgument,
    MetricsHostOption,
    MetricsPortOption,
    PollOption,
    flag,
    option,
    repeated,
)
from notifyq.cli.processes import Supervisor, run_and_reload
from notifyq.cli.signals import Control, number_lines, stop_signals
from notifyq.config import CommandSettings, WorkerSettings, listen_dsn_from_environment
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.telemetry import TelemetryHandler, log_each, log_events
from notifyq.worker.queue_order import MOST_WEIGHT
from notifyq.worker.worker import Worker

log = logging.getLogger("notifyq.worker")

_SUMMARY_EVERY = 60
_USUAL_THRESHOLD = gc.get_threshold()
_PACKAGE = Path(__file__).parents[1]


def worker(
    target: MaybeAppArgument = None,
    queue: list[str] | None = repeated("Only this queue", "--queue", "-q"),
    queues: str | None = option(
        "These queues, in shares by weight: high:3,low:1.", metavar="NAME:WEIGHT,…"
    ),
    strict: bool = flag("--strict", "Serve one of --queues only while those before are empty."),
    stream: list[str] | None = repeated("Only this stream's subscribers", "--stream", "-s"),
    concurrency: int | None = option(
        "Handlers at the same time; by default 10.", "--concurrency", "-c", min=1, max=10_000
    ),
    processes: int | None = option("Worker processes, each imports the app; by default 1.", min=1),
    max_memory: str | None = option(
        f"Stop with exit code {EXIT_CODE} when it uses more, to be started again.",
        metavar="SIZE",
    ),
    grace: GraceOption = None,
    poll: PollOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    http: list[str] | None = HTTP,
    http_secret_file: Path | None = SECRET_FILE,
    http_timeout: timedelta = TIMEOUT,
    http_callback: str | None = CALLBACK,
    http_callback_timeout: timedelta = CALLBACK_TIMEOUT,
    http_listen: str | None = LISTEN,
    reload: bool = flag("--reload", "Start again when a Python file here changes."),
    verbose: bool = option(
        "Log each message and each batch that ends, and each schedule that fires.",
        "--verbose",
        "-v",
        default=False,
    ),
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    dsn: DsnOption = None,
) -> None:
    """Handle messages until SIGTERM or SIGINT.

    Handlers are those of an App; --http needs none.

    The first signal: claim no more, let running handlers end within the grace, release the rest.
    The second: cancel and release now. Exit code 0 after a clean stop. Above --max-memory, as
    512MB, it stops as after the first signal.
    """
    configure_logging(log_level, log_format)
    served = _served(queue or [], queues, strict=strict)
    deliveries = HttpOptions.read(
        target,
        http,
        http_secret_file,
        http_timeout,
        http_callback,
        http_callback_timeout,
        http_listen,
    )
    if reload:
        run_and_reload(WorkerSettings.load(grace=grace).grace)
        return
    settings = CommandSettings.load(
        processes=processes,
        max_memory=max_memory,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )
    memory = MemoryLimit(settings.max_memory)
    control = Control.inherited()
    if control is not None:
        number_lines(control.number, as_field=log_format != "text")
    elif settings.processes > 1:
        raise typer.Exit(run(Supervisor(settings.processes).run()))
    app = load_app(target)
    if dsn is not None or app.dsn is None:
        app.dsn = resolve_dsn(dsn)
        app.listen_dsn = listen_dsn_from_environment() or app.listen_dsn
    calm_collector()
    telemetry = _telemetry(control, verbose=verbose)

    async def work() -> None:
        log.debug("the event loop is of %s", type(asyncio.get_running_loop()).__module__)
        running = app.worker(
            queues=served,
            strict=strict,
            streams=stream or (),
            telemetry=telemetry,
            metrics=metrics,
            concurrency=concurrency,
            grace=grace,
            poll=poll,
        )
        try:
            with (
                stop_signals(running.stop, control, grace=running.grace) as stop,
                summing_up(running),
                memory.watching(stop),
            ):
                await deliveries.work(app, running)
        except DatabaseUnavailableError:
            if control is not None:
                control.report_temporary()
            raise

    with (
        deliveries.serving(app, shares_port=control is not None),
        serve_metrics(settings, "WorkerMetrics", app.database, control) as metrics,
    ):
        run(work())
    memory.end()


def _telemetry(control: Control | None, *, verbose: bool) -> TelemetryHandler:
    handler = log_each if verbose else log_events
    return handler if control is None else control.reporting(handler)


@contextmanager
def summing_up(running: Worker) -> Iterator[None]:
    """Log once a minute what a worker has handled since, if anything."""

    async def sum_up() -> None:
        before = Counter(running.counts)
        while True:
            await asyncio.sleep(_SUMMARY_EVERY)
            now = Counter(running.counts)
            if new := now - before:
                ends = ", ".join(f"{number} {end}" for end, number in sorted(new.items()))
                log.info("in the last %d s: %s", _SUMMARY_EVERY, ends)
            before = now

    task = asyncio.get_running_loop().create_task(sum_up())
    try:
        yield
    finally:
        task.cancel()


def _served(queue: list[str], queues: str | None, *, strict: bool) -> list[str] | dict[str, int]:
    """The queues by --queue or --queues: a list, or weights."""
    if queues is None:
        if strict:
            raise typer.BadParameter("--strict needs --queues: name them, the first served first")
        return queue
    if queue:
        raise typer.BadParameter("--queue and --queues exclude each other: give one of them")
    weights = [_weight(part.strip()) for part in queues.split(",")]
    names = [name for name, _ in weights]
    for name in names:
        if not name or names.count(name) > 1:
            why = f"{name!r} is given twice" if name else "a name is missing"
            raise typer.BadParameter(f"--queues {queues}: {why}; the form is high:3,low:1")
    given = {name: weight for name, weight in weights if weight is not None}
    if given and strict:
        raise typer.BadParameter("--strict goes by the order: leave out the weights of --queues")
    if given and len(given) < len(names):
        raise typer.BadParameter(
            f"--queues {queues}: a weight is missing; give each queue one, or none"
        )
    return given or names


def _weight(part: str) -> tuple[str, int | None]:
    """The name and the weight of NAME:WEIGHT."""
    name, colon, weight = part.partition(":")
    if not colon:
        return name, None
    if not (weight.isdecimal() and len(weight) < 5 and 1 <= int(weight) <= MOST_WEIGHT):
        raise typer.BadParameter(
            f"--queues {part}: the weight {weight!r} is not a whole number from 1 to {MOST_WEIGHT}"
        )
    return name, int(weight)


def calm_collector() -> None:
    """Collect garbage more seldom."""
    # Messages come and go without cycles: a collection every few hundred objects finds nothing and
    # costs a tenth of the throughput. An app that has set its own thresholds keeps them.
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _USUAL_THRESHOLD:
        gc.set_threshold(50_000, 20, 50)


def load_app(target: str | None) -> App:
    """Import MODULE and take APP out of it; the current folder is on the path. None: a new App."""
    if target is None:
        return App()
    app = load(target, "APP")
    if not isinstance(app, App):
        module_name, _, attribute = target.partition(":")
        apps = [name for name, it in vars(sys.modules[module_name]).items() if isinstance(it, App)]
        kind = f"it is of type {type(app).__name__}" if app is not None else ""
        meant = did_you_mean(difflib.get_close_matches(attribute, apps, n=2))
        raise ConfigurationError(
            ": ".join(
                filter(None, (f"{module_name!r} has no App named {attribute!r}", kind, meant))
            )
        )
    chosen = schema_option(sys.argv[1:])
    if chosen is not None and app.schema not in {None, chosen}:
        raise ConfigurationError(
            f"--schema is {chosen!r}, and {target} has the schema {app.schema!r}: leave one out"
        )
    return app


def _failed_line(error: BaseException) -> str:
    """The line of the user's code that failed: the last one in a file that is not installed."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
    own = [it for it in frames if not it.filename.startswith((*installed, str(_PACKAGE)))]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def load(target: str, what: str) -> Any:
    """Import MODULE and take WHAT out of it, or None; the current folder is on the path."""
    module_name, colon, attribute = target.partition(":")
    names = [*module_name.split("."), attribute]
    if not colon or not all(name.isidentifier() for name in names) or names[-2] == "py":
        raise typer.BadParameter(
            f"{target!r} is not MODULE:{what}, as myproject.workers:{what.lower()} is for the file "
            "myproject/workers.py"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigurationError(
                f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH"
            ) from error
        kind = "" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: "
        raise ConfigurationError(
            f"module {module_name!r} cannot be imported: {kind}{error}{_failed_line(error)}"
        ) from error
    return getattr(module, attribute, None)
