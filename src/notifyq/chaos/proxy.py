"""A TCP proxy in front of a server that harms connections as a network does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_NOTIFICATION = ord("A")
_ENCRYPTION = (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"\x00\x00\x00\x08\x04\xd2\x16\x30")
"""Requests for SSL and GSS encryption before the login; the answer is one byte and no message."""


class NotificationFilter:
    """Parses the server's messages and can drop notifications."""

    def __init__(self) -> None:
        self._requests = 0
        self._is_encrypted = False
        self._head = b""
        self._left = 0
        self._drops = False

    def note_request(self, data: bytes) -> None:
        """Note a request for encryption in the client's bytes."""
        if data in _ENCRYPTION:
            self._requests += 1

    def pass_on(self, data: bytes, *, drop: bool) -> bytes:
        """Return the bytes for the client; an encrypted connection passes unchanged."""
        passed = bytearray()
        at = 0
        while at < len(data) and not self._is_encrypted:
            if self._requests:
                self._requests -= 1
                piece = data[at : at + 1]
                self._is_encrypted = piece != b"N"
                passed += piece
            elif self._left:
                piece = data[at : at + self._left]
                if not self._drops:
                    passed += piece
                self._left -= len(piece)
            else:
                piece = data[at : at + 5 - len(self._head)]
                self._head += piece
                passed += self._begin(drop=drop)
            at += len(piece)
        return bytes(passed) + data[at:]

    def _begin(self, *, drop: bool) -> bytes:
        """Begin a message once its head is complete; return the head unless it is dropped."""
        head = self._head
        if len(head) < 5:
            return b""
        self._head = b""
        self._left = int.from_bytes(head[1:]) - 4
        self._drops = drop and head[0] == _NOTIFICATION
        return b"" if self._drops else head


class Proxy:
    """Passes bytes between clients and a server; clients connect to `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._marked: dict[str, bytes] = {}
        """Bytes that doom the connection that carries them, once: in a request, in an answer."""
        self.lost = asyncio.Event()
        """Set when the answer to lose is lost."""
        self.is_closed = False
        """Whether new connections are cut at once."""
        self.drops_notifications = False
        """Whether notifications are dropped; an encrypted connection passes them."""
        self._blackholed: set[asyncio.StreamWriter] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()

    async def __aenter__(self) -> Self:
        """Open a port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._target.netloc.rpartition("@")[0]
        self.dsn = urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the port and all connections."""
        # Lets asyncio finish a connection that it is accepting: it would stay open otherwise.
        for _round in range(3):
            await asyncio.sleep(0)
        self._server.close()
        self.cut()
        self.resume()
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._writers) // 2

    def redirect(self, dsn: str, *, cut: bool = False) -> None:
        """Lead new connections to another server; break open ones, or let them stay."""
        self._target = urlsplit(dsn)
        if cut:
            self.cut()

    def cut(self) -> None:
        """Break all open connections."""
        for writer in self._writers:
            writer.transport.abort()

    def blackhole(self) -> None:
        """Drop all traffic of the open connections and keep them open; new ones work.

        As when a host goes away or a firewall drops its state: neither side sees an error.
        """
        self._blackholed |= self._writers

    def hold(self) -> None:
        """Hold all traffic back, also of new connections, until `resume()`.

        As in a network partition that ends before TCP gives up: no byte is lost.
        """
        self._is_open.clear()

    def resume(self) -> None:
        """Pass on all traffic that `hold()` held back."""
        self._is_open.set()

    def lose_answer_to(self, marker: bytes) -> None:
        """Cut the connection when the server answers the first request that contains `marker`."""
        self.lost.clear()
        self._marked["request"] = marker

    def lose_answer_with(self, marker: bytes) -> None:
        """Cut the connection in place of the first answer that contains `marker`."""
        self.lost.clear()
        self._marked["answer"] = marker

    def lose_nothing(self) -> None:
        """Cancel `lose_answer_to` and `lose_answer_with`."""
        self._marked.clear()

    def _dooms(self, what: str, data: bytes) -> bool:
        is_found = what in self._marked and self._marked[what] in data
        if is_found:
            del self._marked[what]
        return is_found

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self.is_closed or task is None:
            writer.transport.abort()
            return
        self._links.add(task)
        # asyncio made this task and would report its cancellation at the end of the proxy.
        with suppress(asyncio.CancelledError):
            try:
                await self._is_open.wait()
                await self._link(reader, writer)
            finally:
                writer.transport.abort()
                self._links.discard(task)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = self._target.hostname, self._target.port
        try:
            answers, requests = await asyncio.open_connection(*where)
        except OSError:
            return
        ends = {writer, requests}
        self._writers |= ends
        is_doomed = False
        notifications = NotificationFilter()

        async def forward() -> None:
            nonlocal is_doomed
            while data := await _read(reader):
                notifications.note_request(data)
                is_doomed |= self._dooms("request", data)
                await self._pass(requests, data)

        async def backward() -> None:
            nonlocal is_doomed
            while data := await _read(answers):
                is_doomed |= self._dooms("answer", data)
                if is_doomed:
                    self.lost.set()
                    return
                data = notifications.pass_on(data, drop=self.drops_notifications)
                await self._pass(writer, data)

        directions = [asyncio.create_task(forward()), asyncio.create_task(backward())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requests.transport.abort()  # `_accept` aborts the other end
            for direction in directions:
                direction.cancel()
            await asyncio.wait(directions)
            self._writers -= ends
            self._blackholed -= ends

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._is_open.wait()
        if writer in self._blackholed:
            return
        writer.write(data)
        with suppress(OSError):
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the available bytes; none at the end or after an error."""
    with suppress(OSError):
        return await reader.read(65536)
    return b""
