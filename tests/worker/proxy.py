"""A TCP proxy in front of the server that loses answers, cuts connections, and falls silent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy:
    """Passes bytes on until told otherwise; `dsn` leads through it."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._asked: Callable[[bytes], bool] | None = None
        self._answered: Callable[[bytes], bool] | None = None
        self.lost = asyncio.Event()
        """Set when the answer that should get lost has."""
        self.is_closed = False
        """Whether new connections are cut at once."""
        self._silent: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._target.netloc.rpartition("@")[0]
        self.dsn = urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        if self._links:
            await asyncio.wait(self._links)

    def cut(self) -> None:
        """Break all connections that stand."""
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Pass nothing on any more on the connections that stand; new ones are not affected."""
        self._silent |= self._writers

    def lose_answer_to(self, marker: bytes) -> None:
        """Cut the connection when the server answers the first request that has `marker` in it."""
        self.lost.clear()
        self._asked = lambda data: marker in data

    def lose_answer_with(self, marker: bytes) -> None:
        """Cut the connection instead of passing on the first answer that has `marker` in it."""
        self.lost.clear()
        self._answered = lambda data: marker in data

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self.is_closed or task is None:
            writer.transport.abort()
            return
        self._links.add(task)
        try:
            await self._link(reader, writer)
        finally:
            self._links.discard(task)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, asks = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, asks}
        self._writers |= ends
        doomed = asyncio.Event()
        flows = [
            asyncio.create_task(self._forward(reader, asks, doomed)),
            asyncio.create_task(self._backward(answers, writer, doomed)),
        ]
        await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.transport.abort()
        for flow in flows:
            flow.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await flow
        self._writers -= ends
        self._silent -= ends

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if self._asked is not None and self._asked(data):
                self._asked = None
                doomed.set()
            await self._pass(writer, data)

    async def _backward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if self._answered is not None and self._answered(data):
                self._answered = None
                doomed.set()
            if doomed.is_set():
                self.lost.set()
                return
            await self._pass(writer, data)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer in self._silent:
            return
        writer.write(data)
        with suppress(OSError):
            await writer.drain()
