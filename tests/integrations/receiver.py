"""An HTTP server that keeps what it receives and answers as the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.database import until


@dataclass
class Request:
    """A request that was received."""

    path: str
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes


@dataclass
class Answer:
    """What is answered; without an end, the body is sent until the client disconnects."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    is_endless: bool = False


class Receiver:
    """Answers each request with `answer`, a function that runs in a thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        self.released = threading.Event()
        """Ends what is held; set at the end of the test."""

    def hold(self, _: Request) -> Answer:
        """Answer only when released."""
        self.released.wait()
        return Answer()

    def in_turn(self, *answers: Answer) -> None:
        """Answer so, one after the other; the last one from then on."""
        left = [*answers]
        self.answer = lambda _: left.pop(0) if len(left) > 1 else left[0]

    async def received(self, quantity: int = 1) -> list[Request]:
        """Wait for so many requests."""
        await until(lambda: len(self.requests) >= quantity, f"{quantity} requests came", 30)
        return self.requests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.path, headers, body)
        self.receiver.requests.append(request)
        answer = self.receiver.answer(request)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if not answer.is_endless:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        while answer.is_endless:
            self.wfile.write(answer.body)

    def do_GET(self) -> None:  # of a redirect that was followed
        self.do_POST()

    def log_message(self, *args: Any) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None: ...  # of a client that has disconnected


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve until the end of the block."""

    class Handler(_Handler): ...

    with _Server(("127.0.0.1", 0), Handler) as server:
        receiver = Handler.receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join()


def call(url: str, body: bytes | Iterable[bytes] = b"", method: str = "POST") -> tuple[int, str]:
    """Send a request; return the status and the text of the answer."""
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.request(method, parts.path, body)
        response = connection.getresponse()
        return response.status, response.read().decode().strip()
    finally:
        connection.close()
