"""Deliveries by HTTP as options of `notifyq worker`."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import typer

from notifyq.app import App
from notifyq.cli.arguments import warn_of_password
from notifyq.cli.options import duration_option, option, pairs, read_secret, repeated
from notifyq.cli.signals import SLOT
from notifyq.config import from_environment
from notifyq.errors import ConfigurationError, meant
from notifyq.worker.worker import Worker

log = logging.getLogger("notifyq.http")

_URLS = "NOTIFYQ_HTTP"
_SECRET = "NOTIFYQ_HTTP_SECRET"  # noqa: S105  the name of a variable

HTTP = repeated(f"POST this queue's messages to a URL; else {_URLS}", "--http", metavar="QUEUE=URL")
SECRET_FILE = option(
    f"File with the secret that signs them, else {_SECRET}; a new one in front of the old.",
    "--http-secret-file",
    metavar="FILE",
)
TIMEOUT = duration_option("Longest time of a request.", "30s", name="--http-timeout")
CALLBACK = option(
    "Public address of --http-listen: who answers 202 reports the end there.",
    "--http-callback",
    metavar="URL",
)
CALLBACK_TIMEOUT = duration_option(
    "Longest wait for such a report.", "1d", name="--http-callback-timeout"
)
LISTEN = option("Take callbacks here.", "--http-listen", metavar="HOST:PORT")


@dataclass(frozen=True)
class HttpOptions:
    """The options, read and checked as far as that needs no app."""

    urls: dict[str, str]
    secrets: list[str]
    timeout: timedelta
    callback: str | None
    callback_timeout: timedelta
    listen: tuple[str, int] | None

    @classmethod
    def read(
        cls,
        target: str | None,
        http: list[str] | None,
        secret_file: Path | None,
        timeout: timedelta,
        callback: str | None,
        callback_timeout: timedelta,
        listen: str | None,
    ) -> HttpOptions:
        """Read the options; without --http there are no URLs, and an app is needed."""
        urls = pairs("--http", http or (from_environment(_URLS) or "").split(), "QUEUE=URL")
        if not urls:
            if secret_file or callback or listen:
                raise typer.BadParameter("--http-… are options of --http QUEUE=URL")
            if target is None:
                raise typer.BadParameter("give MODULE:APP, or --http QUEUE=URL")
            return cls({}, [], timeout, None, callback_timeout, None)
        for given in http or () if SLOT not in os.environ else ():  # a supervisor has warned
            warn_of_password("in --http", given.partition("=")[2], _URLS, "")
        if listen and not callback:
            raise typer.BadParameter("--http-listen needs --http-callback: its public address")
        secret = read_secret("--http-secret-file", secret_file, _SECRET)
        if secret is None:
            raise ConfigurationError(
                f"--http needs a secret that signs the requests: set {_SECRET}, or give "
                "--http-secret-file"
            )
        return cls(urls, secret.split(), timeout, callback, callback_timeout, _listen(listen))

    @contextlib.contextmanager
    def serving(self, app: App, *, shares_port: bool) -> Iterator[None]:
        """Register the deliveries with an app, and take callbacks."""
        if not self.urls:
            yield
            return
        from notifyq.contrib.http import Webhooks
        from notifyq.worker.serving import ServerThread

        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
        webhooks = Webhooks(app, callback=self.callback, callback_timeout=self.callback_timeout)
        for queue, url in self.urls.items():
            if queue in app.registry.queues():
                raise ConfigurationError(f"--http {queue}: the app handles this queue itself")
            webhooks.deliver(queue, url, secret=self.secrets, timeout=self.timeout)
            log.info("queue %r: delivered to %s", queue, urlsplit(url).hostname)
        with contextlib.ExitStack() as stack:
            stack.callback(webhooks.callbacks.close)
            if self.listen is not None:
                try:
                    server = ServerThread(webhooks.callbacks, *self.listen, shares_port=shares_port)
                except OSError as error:
                    raise ConfigurationError(
                        f"--http-listen: {(error.strerror or str(error)).lower()}"
                    ) from error
                log.info("callbacks are taken at %s", stack.enter_context(server).url)
            yield

    async def work(self, app: App, running: Worker) -> None:
        """Run a worker, after a check that the queues exist."""
        if not self.urls or await running.starting(partial(self._check, app)):
            await app.work(running)

    async def _check(self, app: App) -> None:
        await app.admin.check_schema()
        is_durable = {row["queue"]: row["durable"] for row in await app.admin.queue_info()}
        for queue in self.urls:
            if queue not in is_durable:  # of a wrong name nothing would ever be delivered
                hint = f"`notifyq queues create {shlex.quote(queue)} --max-attempts 8` creates it"
                raise ConfigurationError(
                    f"--http: there is no queue {queue!r}{meant(queue, is_durable) or ':'} {hint}"
                )
            if self.callback and not is_durable[queue]:
                raise ConfigurationError(
                    f"--http-callback: messages of {queue!r}, an unlogged queue, cannot wait for it"
                )


def _listen(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise typer.BadParameter(f"--http-listen {text} is not HOST:PORT, as 127.0.0.1:8081 is")
    return host.strip("[]"), int(port)
