"""NATS JetStream: it stores no message id twice within the duplicate window of its stream."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import BadHeaderError, BadSubjectError, Error

from notifyq.errors import BrokerRefusedError, ConfigurationError
from notifyq.relay.brokers.broker import PATIENCE, Answer, Broker, Outgoing

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_OPTIONS = {"nkeys_seed", "tls_hostname", "user_credentials"}
"""Options of a URL: arguments of the client."""
_TOO_LARGE = {10054, 10097}
"""Codes of JetStream: the message, or its headers, exceed a limit."""
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
        self._missing = 0
        self._is_over = asyncio.Event()
        self._denied = ""

    async def connect(self) -> None:
        """Connect without reconnection: it would send later messages before lost ones."""
        if self._client.is_connected:
            return
        self._client = Client()
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
        self._answers = [self._unavailable("no answer") for _ in messages]
        self._missing = len(messages)
        self._is_over.clear()
        self._denied = ""
        try:
            async with asyncio.timeout(PATIENCE):
                for index, message in enumerate(messages):
                    await self._send(index, message)
                await self._is_over.wait()
        except (Error, OSError):
            await self.close()
        if self._missing and self._denied:
            refused = BrokerRefusedError(self._denied)
            return [refused if not isinstance(it, bool) else it for it in self._answers]
        return self._answers

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def _send(self, index: int, message: Outgoing) -> None:
        headers = {"Nats-Msg-Id": message.id} | {
            name: value
            for name, value in message.headers.items()
            if not name.lower().startswith(_OF_SERVER)
        }
        # The server closes the connection where a message is too large for it.
        size = len(message.body) + 16 + sum(len(f"{it}: \r\n".encode()) for it in headers.items())
        if size > self._client.max_payload:
            self._settle(index, f"larger than the {self._client.max_payload} bytes of the server")
            return
        try:
            await self._client.publish(
                message.to, message.body, f"{self._inbox}.{index}", headers=headers
            )
        except BadHeaderError as error:
            self._settle(index, f"no name of a header of NATS: {str(error.args[0])!r}")
        except BadSubjectError:
            self._settle(index, BrokerRefusedError(f"{message.to!r} is no subject of NATS"))

    async def _answered(self, answer: Msg) -> None:
        self._settle(int(answer.subject.rpartition(".")[2]), _read(answer))

    def _settle(self, index: int, answer: Answer) -> None:
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._is_over.set()

    async def _failed(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._denied = str(error)
            self._is_over.set()

    async def _closed(self) -> None:
        self._is_over.set()


def _read(answer: Msg) -> Answer:
    """What JetStream says of a message."""
    if not answer.data:
        return BrokerRefusedError("no stream of JetStream takes this subject: create one")
    content: dict[str, Any] = json.loads(answer.data)
    error = content.get("error")
    if error is None:
        return not content.get("duplicate", False)
    text = f"JetStream: {error.get('description')}"
    return text if error.get("err_code") in _TOO_LARGE else BrokerRefusedError(text)
