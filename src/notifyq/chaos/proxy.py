"""A TCP proxy in front of a server, for everything that a network does to a connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTIFICATION = ord("A")
_ENCRYPTION = (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"\x00\x00\x00\x08\x04\xd2\x16\x30")
"""What a client asks before it logs in, SSL or GSS; the answer is one byte and no message."""


class Muffler:
    """Follows what a server says, message by message, and takes the notifications out."""

    def __init__(self) -> None:
        self.heard = 0
        """Notifications so far, taken out or not."""
        self._asked = 0
        self._is_encrypted = False
        self._head = b""
        self._left = 0
        self._drops = False

    def note_request(self, data: bytes) -> None:
        """Learn what the client has sent."""
        if data in _ENCRYPTION:
            self._asked += 1

    def pass_on(self, data: bytes, *, mute: bool) -> bytes:
        """Return what is to go on to the client; of an encrypted connection that is everything."""
        passed = bytearray()
        at = 0
        while at < len(data) and not self._is_encrypted:
            if self._asked:
                self._asked -= 1
                self._is_encrypted = data[at : at + 1] != b"N"
                passed += data[at : at + 1]
                at += 1
            elif self._left:
                piece = data[at : at + self._left]
                if not self._drops:
                    passed += piece
                self._left -= len(piece)
                at += len(piece)
            else:
                piece = data[at : at + 5 - len(self._head)]
                self._head += piece
                at += len(piece)
                passed += self._begin(mute=mute)
        return bytes(passed) + data[at:]

    def _begin(self, *, mute: bool) -> bytes:
        """Begin a message if its type and length are there; return what of them goes on."""
        head = self._head
        if len(head) < 5:
            return b""
        self._head = b""
        self._left = int.from_bytes(head[1:]) - 4
        is_bell = head[0] == _NOTIFICATION
        self.heard += is_bell
        self._drops = mute and is_bell
        return b"" if self._drops else head


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
        self.is_mute = False
        """Whether notifications are taken out; see that nobody asks for encryption."""
        self.bells = 0
        """Notifications that came from the server, passed on or not."""
        self._silent: set[asyncio.StreamWriter] = set()
        self._flow = asyncio.Event()
        self._flow.set()

    async def __aenter__(self) -> Self:
        """Open a port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._target.netloc.rpartition("@")[0]
        self.dsn = urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the port and all connections."""
        # One that is being accepted as the server closes would be left half made: asyncio takes no
        # account of it before the loop has gone round.
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
        """How many connections stand."""
        return len(self._writers) // 2

    def redirect(self, dsn: str) -> None:
        """Lead new connections to another server; those that stand stay where they are."""
        self._target = urlsplit(dsn)

    def cut(self) -> None:
        """Break all connections that stand."""
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Pass nothing on any more on the connections that stand; new ones are not affected.

        As where a host dies or a firewall forgets: nobody is told, and nothing comes back.
        """
        self._silent |= self._writers

    def hold(self) -> None:
        """Hold all traffic back, that of new connections too, until `resume()` lets it go on.

        As in a partition of the network that ends before the kernels give up: no byte is lost.
        """
        self._flow.clear()

    def resume(self) -> None:
        """Let go on what `hold()` has held back."""
        self._flow.set()

    def lose_answer_to(self, marker: bytes) -> None:
        """Cut the connection when the server answers the first request that has `marker` in it."""
        self.lost.clear()
        self._asked = lambda data: marker in data

    def lose_answer_with(self, marker: bytes) -> None:
        """Cut the connection instead of passing on the first answer that has `marker` in it."""
        self.lost.clear()
        self._answered = lambda data: marker in data

    def lose_nothing(self) -> None:
        """Take back what was to be lost and has not been."""
        self._asked = self._answered = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self.is_closed or task is None:
            writer.transport.abort()
            return
        self._links.add(task)
        # The end of the proxy cancels it; asyncio would report that of a task of its own making.
        with suppress(asyncio.CancelledError):
            try:
                await self._flow.wait()
                await self._link(reader, writer)
            finally:
                writer.transport.abort()
                self._links.discard(task)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, asks = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            return
        ends = {writer, asks}
        self._writers |= ends
        doomed = asyncio.Event()
        muffler = Muffler()
        flows = [
            asyncio.create_task(self._forward(reader, asks, muffler, doomed)),
            asyncio.create_task(self._backward(answers, writer, muffler, doomed)),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.transport.abort()
            for flow in flows:
                flow.cancel()
            await asyncio.wait(flows)
            self._writers -= ends
            self._silent -= ends

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        muffler: Muffler,
        doomed: asyncio.Event,
    ) -> None:
        while data := await _read(reader):
            muffler.note_request(data)
            if self._asked is not None and self._asked(data):
                self._asked = None
                doomed.set()
            await self._pass(writer, data)

    async def _backward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        muffler: Muffler,
        doomed: asyncio.Event,
    ) -> None:
        while data := await _read(reader):
            if self._answered is not None and self._answered(data):
                self._answered = None
                doomed.set()
            if doomed.is_set():
                self.lost.set()
                return
            before = muffler.heard
            data = muffler.pass_on(data, mute=self.is_mute)
            self.bells += muffler.heard - before
            await self._pass(writer, data)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._flow.wait()
        if writer in self._silent:
            return
        writer.write(data)
        with suppress(OSError):
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return what there is to read, nothing at the end, also where that is an error."""
    with suppress(OSError):
        return await reader.read(65536)
    return b""
