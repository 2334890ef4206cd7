"""NATS JetStream: it stores no message id twice within the duplicate window of its stream."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import BadHeaderError, BadSubjectError, Error

from notifyq.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError
from notifyq.relay.brokers.broker import KEY, PATIENCE, TYPE, Answer, Broker, Outgoing

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_BURST = 100
"""Messages behind which the client writes, and reads answers: the server works meanwhile."""
_OPTIONS = {"nkeys_seed", "tls_hostname", "user_credentials"}
"""Options of a URL: arguments of the client."""
_TOO_LARGE = {10054, 10097}
"""Codes of JetStream: the message, or its headers, exceed a limit."""
_BUSY = 503
"""Code of JetStream: it has no leader or no room now."""
_OF_SERVER = "nats-"
"""Begins headers by which a publisher controls the server: an event must not have them."""


class JetStream(Broker):
    """Publishes to subjects that a stream of JetStream takes."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        url, self._options = self._without_query()
        scheme, _, hosts = url.partition("://")
        login, at, hosts = hosts.rpartition("@")
        self._servers = [f"{scheme}://{login}{at}{host}" for host in hosts.split(",")]
        for name in self._options.keys() - _OPTIONS:
            raise ConfigurationError(f"a NATS URL has no option {name!r}: {sorted(_OPTIONS)}")
        self._client = Client()
        self._inbox = ""
        self._answers: list[Answer] = []
        self._numbers = count()
        self._waiting: dict[str, int] = {}
        """Of messages without an answer: where it comes, and their index."""
        self._is_over = asyncio.Event()
        self._denied = ""

    async def connect(self) -> None:
        """Connect without reconnection: it would send later messages before lost ones."""
        if self._client.is_connected:
            return
        self._client = Client()
        self._denied = ""
        options: dict[str, Any] = {"error_cb": self._failed, "closed_cb": self._closed}
        options |= self._options
        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.connect(
                    self._servers, name="notifyq relay", allow_reconnect=False,
                    max_reconnect_attempts=1, reconnect_time_wait=0, **options,
                )  # fmt: skip
                self._inbox = self._client.new_inbox()
                await self._client.subscribe(f"{self._inbox}.*", cb=self._answered)
        except (Error, OSError) as error:
            await self.close()
            raise self._unavailable(error) from None

    async def publish(self, messages: list[Outgoing]) -> list[Answer]:
        """Send messages, wait for the answers of JetStream, and return them."""
        self._answers = [self._unavailable("no answer")] * len(messages)
        self._waiting.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                for index, message in enumerate(messages):
                    await self._send(index, message)
                    if index % _BURST == _BURST - 1:
                        await asyncio.sleep(0)
                self._is_over.clear()
                if self._waiting and not self._denied and self._client.is_connected:
                    await self._is_over.wait()
        except (Error, OSError):
            pass  # what has no answer is sent again
        if self._waiting or self._denied:
            # A later answer must not be taken for that of another message.
            await self.close()
            if self._denied:
                for index in self._waiting.values():
                    self._answers[index] = BrokerRefusedError(self._denied)
        return self._answers

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def _send(self, index: int, message: Outgoing) -> None:
        headers = {
            name: value
            for name, value in message.headers.items()
            if not name.lower().startswith(_OF_SERVER)
        }
        headers["Nats-Msg-Id"] = message.id
        if message.type is not None:
            headers[TYPE] = message.type
        if message.key is not None:
            headers[KEY] = message.key
        if self._is_too_large(message.body, headers):
            self._answers[index] = f"larger than the {self._client.max_payload} bytes of the server"
            return
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._waiting[reply] = index
        try:
            await self._client.publish(message.to, message.body, reply, headers=headers)
        except BadHeaderError as error:
            self._settle(reply, f"no name of a header of NATS: {str(error.args[0])!r}")
        except BadSubjectError:
            self._settle(reply, BrokerRefusedError(f"{message.to!r} is no subject of NATS"))

    def _is_too_large(self, body: bytes, headers: dict[str, str]) -> bool:
        """Whether the server would close the connection because of this message."""
        limit = self._client.max_payload
        if len(body) + 4 * sum(map(len, (*headers, *headers.values()))) < limit // 2:
            return False
        text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return len(body) + len(text.encode()) + len("NATS/1.0\r\n\r\n") > limit

    async def _answered(self, answer: Msg) -> None:
        self._settle(answer.subject, _read(answer))

    def _settle(self, reply: str, answer: Answer) -> None:
        index = self._waiting.pop(reply, None)
        if index is not None:
            self._answers[index] = answer
        if not self._waiting:
            self._is_over.set()

    async def _failed(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._denied = str(error)
            self._is_over.set()

    async def _closed(self) -> None:
        self._is_over.set()


def _read(answer: Msg) -> Answer:
    """The answer of JetStream to a message."""
    if not answer.data:
        return BrokerRefusedError("no stream of JetStream takes this subject: create one")
    if b'"seq":' in answer.data and b'"error":' not in answer.data:
        return b'"duplicate":' not in answer.data
    try:
        error: dict[str, Any] = json.loads(answer.data)["error"]
    except (ValueError, LookupError, TypeError):
        return BrokerRefusedError(f"another program than JetStream answers: {answer.data!r:.100}")
    text = f"JetStream: {error.get('description')}"
    if error.get("err_code") in _TOO_LARGE:
        return text
    kind = BrokerUnavailableError if error.get("code") == _BUSY else BrokerRefusedError
    return kind(text)
