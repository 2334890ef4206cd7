"""Delivers messages by HTTP: POSTs each to the URL of its queue, signed as Standard Webhooks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import count
from typing import Any, NamedTuple, Self, Unpack
from urllib.parse import quote

from notifyq.app import App
from notifyq.arguments import duration
from notifyq.contrib.http_callbacks import (
    MOST_BYTES,
    WAIT,
    Callbacks,
    callback_path,
    json_or_none,
    signal_name,
)
from notifyq.durable.steps import Steps
from notifyq.errors import ConfigurationError, SignalTimeoutError
from notifyq.handlers.build import HandlerOptions
from notifyq.handlers.handler import Handler
from notifyq.handlers.retries import Reject, Retry
from notifyq.models.message import ArchivedMessage, Message
from notifyq.telemetry.tracing import TRACEPARENT

try:
    import httpx
except ImportError:
    raise ConfigurationError("delivery by HTTP needs httpx: pip install 'notifyq[http]'") from None

_SHOWN = 200
"""Characters of an answer in the reason of a failed attempt."""
_LONGEST_WAIT = timedelta(days=1)
"""Longest delay that a receiver can request by Retry-After."""
_KEPT = 2.0
"""Seconds that an idle connection is kept: fewer than servers do, which may close it just when a
request is sent."""
_DEAD_TIMEOUT = timedelta(seconds=30)
"""Longest time of a request with a dead message."""
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")


class DeliveryError(Retry):
    """A message could not be delivered; the text is the reason, in one line."""

    has_traceback = False


class _Client(httpx.AsyncClient):
    """The client that all deliveries of a worker share."""


async def _open_client() -> AsyncIterator[_Client]:
    # The slots of the worker limit the connections. No answer sets cookies for other messages.
    async with _Client(
        timeout=None,  # a delivery has one, for all of it
        follow_redirects=False,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEPT),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    ) as client:
        yield client


class Webhooks:
    """Deliveries of an App. With `callback`, a receiver may answer 202 and report the end later.

    `callback` is the public address of `callbacks`, a WSGI application. After `callback_timeout`
    (seconds or timedelta) without a report the attempt fails.
    """

    def __init__(
        self,
        app: App,
        *,
        callback: str | None = None,
        callback_timeout: timedelta | float = timedelta(days=1),
    ) -> None:
        self._app = app
        self._callback = None if callback is None else str(_url("callback", callback)).rstrip("/")
        self._callback_timeout = duration("callback_timeout", callback_timeout) or timedelta()
        self._secrets: dict[str, tuple[bytes, ...]] = {}
        self.callbacks = Callbacks(app, self._secrets)
        """Takes the callbacks: mount it, or serve it by `notifyq worker --http-listen`."""
        if _Client not in app.registry.resources:
            app.resource(_open_client)

    def deliver(
        self,
        queue: str,
        url: str,
        *,
        secret: str | Sequence[str],
        **options: Unpack[HandlerOptions],
    ) -> Handler[Any]:
        """POST each message of a queue to a URL; options are those of a handler.

        A user and password in the URL are sent by basic authentication. `secret` is plain text, or
        base64 after `whsec_`. The first one of several signs callbacks, and each one signs
        requests: give a new one in front, and remove the old one once receivers have it.
        `timeout` is for the whole request, by default 30 seconds. Raises ConfigurationError.
        """
        secrets = (secret,) if isinstance(secret, str) else tuple(secret)
        if not secrets:
            raise ConfigurationError(f"the deliveries of queue {queue!r} need a secret")
        timeout = duration("timeout", options.pop("timeout", 30))
        delivery = _Delivery(
            self._app,
            queue,
            _Target.of(f"the URL of queue {queue!r}", url, secrets, timeout),
            self._callback,
            self._callback_timeout,
        )
        make = self._app.handler(queue, **options)
        if self._callback is None:

            async def post(message: Message, client: _Client) -> Any:
                return (await delivery.post(client, message)).result

            handler: Handler[Any] = make(post)
        else:

            async def post_and_wait(message: Message, steps: Steps, client: _Client) -> Any:
                return await delivery.until_ended(client, message, steps)

            handler = make(post_and_wait)
        self._secrets[queue] = delivery.target.secrets
        return handler


class _Answer(NamedTuple):
    status: int
    result: Any


@dataclass(frozen=True)
class _Target:
    """Where requests go, and what signs them."""

    url: httpx.URL
    auth: httpx.BasicAuth | None
    secrets: tuple[bytes, ...]
    timeout: float | None
    """In seconds."""

    @classmethod
    def of(cls, what: str, url: str, secrets: Sequence[str], timeout: timedelta | None) -> _Target:
        whole = _url(what, url)
        return cls(
            whole.copy_with(userinfo=b""),
            httpx.BasicAuth(whole.username, whole.password) if whole.userinfo else None,
            tuple(map(_key, secrets)),
            None if timeout is None else timeout.total_seconds(),
        )

    async def post(self, client: _Client, body: bytes, headers: dict[str, str]) -> _Answer:
        """Post a body once; raise DeliveryError unless it is accepted, Reject after a 410."""
        try:
            async with (
                asyncio.timeout(self.timeout),
                client.stream(
                    "POST", self.url, content=body, headers=headers, auth=self.auth
                ) as response,
            ):
                text = bytearray()
                async for chunk in response.aiter_raw():  # unpacked, it could be of any size
                    text += chunk
                    if len(text) > MOST_BYTES:
                        break
        except TimeoutError:
            raise DeliveryError(f"no answer within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise DeliveryError(f"{type(error).__name__}: {error}".removesuffix(": ")) from None
        status = response.status_code
        if 200 <= status < 300:
            return _Answer(status, json_or_none(bytes(text)) if len(text) <= MOST_BYTES else None)
        words = " ".join(text[: 4 * _SHOWN].decode(errors="replace").split())[:_SHOWN]
        reason = ": ".join(filter(None, (f"{status} {response.reason_phrase}".strip(), words)))
        if status == 410:
            raise Reject(reason)
        raise DeliveryError(reason, after=_retry_after(response))


class DeadWebhook:
    """A URL that gets dead messages, one request each, signed as all deliveries are.

    `secrets` are those of `Webhooks.deliver()`. It is a context manager.
    """

    def __init__(self, url: str, secrets: Sequence[str]) -> None:
        self._target = _Target.of("the URL of the webhook", url, secrets, _DEAD_TIMEOUT)
        self._opened = asynccontextmanager(_open_client)()

    async def __aenter__(self) -> Self:
        self._client = await self._opened.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._opened.__aexit__(*exc_info)

    async def post(self, message: ArchivedMessage, body: bytes) -> None:
        """Post a message as JSON. Raises DeliveryError unless it is accepted, Reject after a 410.

        A receiver knows it again by its `webhook-id`, whatever the attempt.
        """
        secrets = self._target.secrets
        headers = _signed("dead", message.id, message.archived_at, body, secrets)
        await self._target.post(self._client, body, headers)


def _signed(
    kind: str, id_: int, at: datetime, body: bytes, secrets: Sequence[bytes]
) -> dict[str, str]:
    """The headers of a request that is signed now."""
    # Ids alone are those of one database: a receiver may serve several.
    name = f"{kind}_{id_}_{int(at.timestamp() * 1_000_000)}"
    now = str(int(time.time()))
    signed = f"{name}.{now}.".encode() + body
    macs = [hmac.digest(secret, signed, hashlib.sha256) for secret in secrets]
    return {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "notifyq",
        "webhook-id": name,
        "webhook-timestamp": now,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(mac).decode()}" for mac in macs),
    }


@dataclass(frozen=True)
class _Delivery:
    app: App
    queue: str
    target: _Target
    callback: str | None
    callback_timeout: timedelta

    async def until_ended(self, client: _Client, message: Message, steps: Steps) -> Any:
        """Post a message and, after a 202, wait for its callback; return the result."""
        for number in count(1):
            before = steps.record.recorded.get(signal_name(number))
            if before is None:
                answer = await self.post(client, message, number)
                if answer.status != 202:
                    return answer.result
            # The wait parks the message. Once it is recorded, nothing is posted again.
            try:
                report = await steps.wait_for(
                    WAIT, key=number, signal=signal_name(number), timeout=self.callback_timeout
                )
            except SignalTimeoutError:
                report = {"details": f"no callback came within {self.callback_timeout}"}
            if report.get("status") == "success":
                return report.get("result")
            if before is None or before.state is None:
                kind = Reject if report.get("status") == "rejected" else DeliveryError
                details = " ".join((report.get("details") or "").split())
                raise kind(details or "the receiver gave no details")
            # That has ended an earlier attempt: this one delivers again.
        raise AssertionError

    async def post(self, client: _Client, message: Message, number: int = 0) -> _Answer:
        """Post a message; raise unless the answer is a success."""
        body = message.message.encode()
        return await self.target.post(client, body, self._headers(message, body, number))

    def _headers(self, message: Message, body: bytes, number: int) -> dict[str, str]:
        headers = {
            **_signed("msg", message.id, message.created_at, body, self.target.secrets),
            "notifyq-queue": quote(self.queue, safe=_VISIBLE),
            "notifyq-attempt": str(message.attempts),
            **self._trace(message),
        }
        if message.type is not None:
            headers["notifyq-type"] = quote(message.type, safe=_VISIBLE)
        if self.callback is not None:
            path = callback_path(self.target.secrets[0], self.queue, message.id, number)
            headers["notifyq-callback"] = self.callback + path
        return headers

    def _trace(self, message: Message) -> dict[str, str]:
        if (tracing := self.app.registry.tracing) is not None:
            return tracing.carried()
        # Any publisher may write these.
        return {
            name: value
            for name, form in (("traceparent", TRACEPARENT), ("tracestate", _TRACESTATE))
            if isinstance(value := message.headers.get(name), str) and form.fullmatch(value)
        }


def _url(what: str, text: str) -> httpx.URL:
    # No error has the text: it may hold a password.
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        raise ConfigurationError(f"{what} cannot be read") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError(f"{what} must be like https://shop.example/path")
    return url


def _key(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    try:
        key = secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ConfigurationError("what follows whsec_ in a secret must be base64") from None
    if not key:
        raise ConfigurationError("a secret is empty")
    return key


def _retry_after(response: httpx.Response) -> timedelta | None:
    """How long the receiver wants to be left alone, if it has such a wish."""
    text = response.headers.get("retry-after", "").strip()
    if response.status_code not in {429, 503} or not text:
        return None
    try:
        if text.isdecimal():
            after = timedelta(seconds=min(int(text[:9]), _LONGEST_WAIT.total_seconds()))
        else:
            at = parsedate_to_datetime(text)
            after = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(after, _LONGEST_WAIT) if after > timedelta() else None
