"""The outermost layer: host names, the base path, and security headers."""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # With no-referrer, browsers would send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Refuses unknown host names, sets the base path, adds security headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], base_path: str) -> None:
        self._app = app
        self._hosts = hosts
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not is_known(host, self._hosts):
            response = PlainTextResponse(
                "This dashboard does not accept that host name: add --trusted-host NAME.\n", 421
            )
            await response(scope, receive, send_guarded)
            return
        await self._app(self._under_base(scope), receive, send_guarded)

    def _under_base(self, scope: Scope) -> Scope:
        """The scope with the base path as root, whether or not the proxy removed it."""
        base = self._base_path
        if not base:
            return scope
        path = scope["path"]
        if path != base and not path.startswith(f"{base}/"):
            path = f"{base}{path}"
        return {**scope, "path": path, "root_path": base}


def is_known(host: str, known: Collection[str]) -> bool:
    """Whether a Host header has one of these names, with any port."""
    name = _name(host)
    return bool(name) and ("*" in known or name in known)


def is_same_origin(request: Request, hosts: Collection[str]) -> bool:
    """Whether a page of this dashboard sent the form.

    Browsers send Origin, or at least Sec-Fetch-Site, with every POST.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"}:
        return False
    # Somebody on the network may have changed a page that came without TLS.
    if parts.scheme == "http" and request.url.scheme == "https":
        return False
    # Behind a proxy the Host header may differ; then a trusted host name must match.
    name = _name(parts.netloc)
    is_trusted = "*" not in hosts and name in hosts and not is_loopback(name)
    return is_trusted or _address(parts.netloc) == _address(request.headers.get("host", ""))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _address(netloc: str) -> str:
    """Name and port, without the default ports, which browsers leave out."""
    return netloc.lower().removesuffix(":80").removesuffix(":443")


def _name(host: str) -> str:
    text = host.strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].rstrip(".")
