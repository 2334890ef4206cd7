"""Callbacks: a receiver that has answered 202 reports later how its message has ended."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import asyncpg
from pydantic_core import from_json

from notifyq.app import App
from notifyq.database import statements as sql
from notifyq.database.loop_thread import LoopThread
from notifyq.errors import MessageLimitError, MessageNotFoundError, NotifyqError
from notifyq.models.payload import check_json
from notifyq.queues.results import Handle
from notifyq.worker.serving import respond

log = logging.getLogger("notifyq.http")

MOST_BYTES = 65_536
"""Bytes of an answer or a callback that are read."""
WAIT = "callback"
"""The step that waits; its key is the number of the delivery."""
_PATH = re.compile(r"/([1-9]\d{0,18})/([1-9]\d{0,8})-([0-9a-f]{64})\Z", re.ASCII)


def callback_path(secret: bytes, queue: str, message_id: int, delivery: int) -> str:
    """The path of the callback for a delivery: nobody without the secret can guess it.

    A message is delivered again where its callback reports a failure. Each delivery has a path of
    its own: a report that comes twice does not end the next delivery.
    """
    signed = f"callback\n{queue}\n{message_id}\n{delivery}".encode()
    return f"/{message_id}/{delivery}-{hmac.new(secret, signed, hashlib.sha256).hexdigest()}"


def signal_name(delivery: int) -> str:
    """The signal that ends the wait for a delivery, and the name of that step."""
    return f"{WAIT}#{delivery}"


def json_or_none(text: bytes) -> Any:
    """The value of a JSON text that PostgreSQL can store; None for anything else."""
    try:
        check_json(text.decode())
        return from_json(text)
    except (ValueError, RecursionError):
        return None


class Callbacks:
    """A WSGI application that takes callbacks: `POST /<message id>/<token>`, with any prefix.

    It needs no worker: mount it in any process with the App and the secrets by queue.
    """

    def __init__(self, app: App, secrets: Mapping[str, tuple[bytes, ...]]) -> None:
        self._app = app
        self._secrets = secrets
        self._thread = LoopThread()

    def close(self) -> None:
        """Close its connections; the next callback opens others."""
        self._thread.close()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Respond to a request."""
        return respond(start_response, *self._answer(environ))

    def _answer(self, environ: dict[str, Any]) -> tuple[str, str]:
        found = _PATH.search(environ["PATH_INFO"])
        queue = self._queue_of(found) if found and environ["REQUEST_METHOD"] == "POST" else None
        if found is None or queue is None:
            return "404 Not Found", "there is no such callback"
        if not (length := environ.get("CONTENT_LENGTH")):  # the body is sent in chunks
            return "411 Length Required", "send a Content-Length"
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return "413 Content Too Large", f"more than {MOST_BYTES} bytes"
        try:
            report = json_or_none(environ["wsgi.input"].read(int(length)))
            if not _is_report(report):
                return "400 Bad Request", (
                    'expected {"status": "success"|"rejected"|"failed", "result": …, "details": …}'
                )
            return self._thread.run(self._receive(queue, int(found[1]), int(found[2]), report))
        except MessageNotFoundError:
            return "410 Gone", "the message is finished"
        except MessageLimitError as error:
            return "413 Content Too Large", str(error)
        except (NotifyqError, asyncpg.PostgresError, OSError) as error:
            log.warning("the callback of message %s could not be recorded: %s", found[1], error)
            return "503 Service Unavailable", "try again"

    def _queue_of(self, found: re.Match[str]) -> str | None:
        """The queue whose secret has made this path."""
        for queue, secrets in self._secrets.items():
            for secret in secrets:
                made = callback_path(secret, queue, int(found[1]), int(found[2]))
                if hmac.compare_digest(made, found[0]):
                    return queue
        return None

    async def _receive(
        self, queue: str, message_id: int, delivery: int, report: Any
    ) -> tuple[str, str]:
        [message] = await self._app.database.fetch(sql.RESULT, message_id)
        if message["queue"] != queue:
            return "404 Not Found", "there is no such callback"
        if message["archived_at"] is not None:
            return "410 Gone", "the message is finished"
        for step in await self._app.archive.steps(message_id):
            if step.name == signal_name(delivery):
                if step.state == "timed_out":
                    return "410 Gone", "its time is over"
                return "200 OK", "reported before"
        handle: Handle[Any] = Handle(message_id, self._app.results)
        await handle.signal(signal_name(delivery), report)
        return "200 OK", "ok"


def _is_report(report: Any) -> bool:
    return (
        isinstance(report, dict)
        and report.get("status") in ("success", "rejected", "failed")  # it may be unhashable
        and isinstance(report.get("details"), str | None)
    )
