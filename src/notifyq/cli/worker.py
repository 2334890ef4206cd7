"""`notifyq worker`: run the handlers of an app until a signal says stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.app import App
from notifyq.cli.logs import LogFormat, LogLevel, configure_logging
from notifyq.cli.metrics_options import MetricsHostOption, MetricsPortOption, serve_metrics
from notifyq.cli.output import DsnOption, duration, resolve_dsn, run
from notifyq.cli.processes import Supervisor
from notifyq.cli.reload import run_and_reload
from notifyq.cli.signals import Control, number_lines
from notifyq.config import CommandSettings, WorkerSettings, listen_dsn_from_environment
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from notifyq.operations.metrics import WorkerMetrics

log = logging.getLogger("notifyq.worker")

_USUAL_THRESHOLD = gc.get_threshold()


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is.")],
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="Only this queue; may be repeated.")
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", "-s", help="Only this stream's subscribers; may be repeated."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, max=10_000, help="Handlers at the same time."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Worker processes; each imports the app."),
    ] = None,
    grace: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="How long a stop waits for them."),
    ] = None,
    poll: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="Longest wait for a bell."),
    ] = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file here changes.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="From which level on.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="How to log.")] = LogFormat.TEXT,
    dsn: DsnOption = None,
) -> None:
    """Handle messages until SIGTERM or SIGINT.

    The first signal: claim no more, let running handlers end within the grace, release the rest.
    The second: cancel and release now. Exit code 0 after a clean stop.
    """
    configure_logging(log_level, log_format)
    if reload:
        run_and_reload(WorkerSettings.load(grace=grace).grace)
        return
    settings = CommandSettings.load(
        processes=processes, metrics_port=metrics_port, metrics_host=metrics_host
    )
    control = Control.inherited()
    if control is not None:
        number_lines(control.number, as_json=log_format is LogFormat.JSON)
    elif settings.processes > 1:
        raise typer.Exit(run(_supervise(settings.processes)))
    app = load_app(target)
    if dsn is not None or app.dsn is None:
        app.dsn = resolve_dsn(dsn)
        app.listen_dsn = listen_dsn_from_environment() or app.listen_dsn
    _calm_collector()
    sink = control.reporting(log_sink) if control is not None else log_sink

    async def work() -> None:
        log.debug("the event loop is that of %s", type(asyncio.get_running_loop()).__module__)
        running = app.worker(
            queues=queue or (),
            streams=stream or (),
            sink=sink,
            metrics=metrics,
            concurrency=concurrency,
            grace=grace,
            poll=poll,
        )
        try:
            with stop_signals(running.stop, control):
                await app.work(running)
        except DatabaseUnavailableError:
            if control is not None:
                control.report_passing()
            raise

    with serve_metrics(settings, _metrics, app.database.listen_dsn, control) as metrics:
        run(work())


def _metrics() -> WorkerMetrics:
    from notifyq.operations.metrics import WorkerMetrics

    return WorkerMetrics()


def _calm_collector() -> None:
    # Messages come and go without cycles, so a collection every few hundred objects finds nothing
    # and costs a tenth of the throughput. An app that has chosen its own thresholds keeps them.
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _USUAL_THRESHOLD:
        gc.set_threshold(50_000, 20, 50)


async def _supervise(number: int) -> int:
    return await Supervisor(number).run()


def load_app(target: str) -> App:
    """Import MODULE and take APP out of it; the current folder is on the path."""
    app = load(target, "APP")
    if not isinstance(app, App):
        module_name, _, attribute = target.partition(":")
        raise ConfigurationError(
            f"{module_name!r} has no App named {attribute!r}"
            + (f": it is of type {type(app).__name__}" if app is not None else "")
        )
    return app


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
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"module {module_name!r} cannot be imported: {error}"
            ) from error
        raise ConfigurationError(
            f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return getattr(module, attribute, None)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], object], control: Control | None = None) -> Iterator[None]:
    """Call `stop` on the first and the second SIGINT or SIGTERM; the third one kills.

    What a supervisor asks for by its control counts the same, and together with the signals once:
    a Ctrl-C reaches the worker and the supervisor.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    heard = 0
    stops = 0

    def reach(number: int) -> None:
        nonlocal stops
        while stops < min(number, 2):
            stops += 1
            stop()

    def on_signal() -> None:
        nonlocal heard
        heard += 1
        reach(heard)
        if heard == 2:
            uninstall()

    def uninstall() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        with control.heard(reach) if control is not None else contextlib.nullcontext():
            yield
    finally:
        uninstall()
        logging.shutdown()
