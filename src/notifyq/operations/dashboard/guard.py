"""What every request passes before a page sees it: its path, its host, and what answers carry."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from notifyq.operations.dashboard.settings import DashboardSettings

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Not no-referrer: browsers would send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """The outermost layer: sets the base path, refuses foreign hosts, adds headers."""

    def __init__(self, app: ASGIApp, settings: DashboardSettings) -> None:
        self._app = app
        self._settings = settings

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
        if not is_known(host, self._settings.hosts):
            answer = PlainTextResponse(
                "This dashboard is not served under that name: add --trusted-host NAME.\n", 421
            )
            await answer(scope, receive, send_guarded)
            return
        await self._app(self._under_base(scope), receive, send_guarded)

    def _under_base(self, scope: Scope) -> Scope:
        """The scope with the base path as root, whether or not the proxy has taken it off."""
        base = self._settings.base_path
        if not base:
            return scope
        path = scope["path"]
        if path != base and not path.startswith(f"{base}/"):
            path = f"{base}{path}"
        return {**scope, "path": path, "root_path": base}


def is_known(host: str, known: tuple[str, ...]) -> bool:
    """Whether a Host header names one of these, with any port."""
    name = _name(host)
    return bool(name) and ("*" in known or name in known)


def is_own(request: Request, settings: DashboardSettings) -> bool:
    """Whether a form was sent by a page of ours, as far as the browser tells.

    Browsers send Origin with every POST; who sends neither that nor Sec-Fetch-Site is none.
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
    # A page that came without TLS may be anybody's who is on the way.
    if parts.scheme == "http" and request.url.scheme == "https":
        return False
    # A proxy may have ended TLS, or asked under a name of its own, which was trusted by name.
    is_named = "*" not in settings.hosts and _name(parts.netloc) in settings.hosts
    is_loopback = _name(parts.netloc) in {"localhost", "127.0.0.1", "[::1]"}
    return _place(parts.netloc) == _place(request.headers.get("host", "")) or (
        is_named and not is_loopback
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _place(netloc: str) -> str:
    """Name and port; those that browsers leave out are left out."""
    text = netloc.lower()
    return text.removesuffix(":80").removesuffix(":443")


def _name(host: str) -> str:
    text = host.strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].rstrip(".")
