"""A local store that speaks S3, as a process of its own: it fails, stalls and is slow on command.

As a program it prints its port and serves until its input ends.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode
from urllib.request import Request, urlopen

_CONTROL = "/-/"
_REFUSAL = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-tests",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Store:
    """The server, seen from a test."""

    def __init__(self) -> None:
        # The library of Delta holds the interpreter's lock: a thread could not answer it.
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def create_bucket(self, name: str) -> None:
        urlopen(Request(f"{self.url}/{name}", method="PUT")).close()

    def break_(self, kind: str, *, method: str = "", path: str = "", after: int = 0) -> None:
        """Answer requests of a method with a path so: 403, 500, slow, stall; empty: as ever."""
        self._call("break", kind=kind, method=method, path=path, after=after)

    def await_stall(self) -> None:
        assert self._call("await") == "True"

    def seen(self, method: str) -> int:
        """Return how many requests of a method there were since the last break_()."""
        return int(self._call("seen", method=method))

    def _call(self, name: str, **values: object) -> str:
        with urlopen(f"{self.url}{_CONTROL}{name}?{urlencode(values)}") as answer:
            return str(answer.read().decode())


class _Faulty:
    """Passes requests on to the application, unless they are to fail."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._stalled, self._go_on = threading.Event(), threading.Event()
        self._fault: dict[str, str] = {}
        self._left = 0
        self._seen: list[str] = []

    def __call__(self, environ: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith(_CONTROL):
            given = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
            start("200 OK", [])
            return [self._control(path.removeprefix(_CONTROL), given).encode()]
        with self._lock:
            self._seen.append(method)
            kind = self._kind(method, path)
            go_on, stalled = self._go_on, self._stalled
        if kind in {"403", "500"}:
            start(f"{kind} Refused", [("Content-Type", "application/xml")])
            return [_REFUSAL if kind == "403" else b""]
        if kind == "stall":
            stalled.set()
            go_on.wait()
        if kind == "slow":
            go_on.wait(0.1)
        return self._app(environ, start)

    def _kind(self, method: str, path: str) -> str:
        fault = self._fault
        if not fault or fault.get("method", method) != method or fault.get("path", "") not in path:
            return ""
        self._left -= 1
        return fault["kind"] if self._left < 0 else ""

    def _control(self, name: str, given: dict[str, str]) -> str:
        if name == "await":
            return str(self._stalled.wait(60))
        with self._lock:
            if name == "seen":
                return str(self._seen.count(given["method"]))
            self._go_on.set()
            self._stalled, self._go_on = threading.Event(), threading.Event()
            self._fault = given if given.get("kind") else {}
            self._left = int(given["after"])
            self._seen = []
        return ""


def serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, _Faulty(app), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve()
