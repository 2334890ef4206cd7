"""`notifyq dashboard`: queues, messages and the health of the database in a browser.

`create_app` makes an ASGI application, to be served alone or mounted into another one. See
`notifyq.operations.dashboard.pages` for how to add a page.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard.users import MISSING, User, Users, hash_password
from notifyq.operations.masks import Masks

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from notifyq.database.encryption.envelopes import Keys

__all__ = ["LOOPBACK", "MISSING", "Masks", "User", "Users", "create_app", "hash_password"]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Host names of this machine."""


def create_app(  # noqa: PLR0913  all are keywords
    dsn: str,
    *,
    users: Users | None = None,
    authenticate: Callable[[Any], User | None] | None = None,
    open_to_all: bool = False,
    allow_writes: bool = False,
    masks: Masks | None = None,
    keys: Keys | None = None,
    hosts: tuple[str, ...] = LOOPBACK,
    base_path: str = "",
    interval: float = 2.0,
    timeout: float = 8.0,
    listen_dsn: str | None = None,
    secret: str | None = None,
) -> Starlette:
    """Make the dashboard of a database as an ASGI application.

    One of three sets the access: `users`, `authenticate` (a function of the surrounding application
    that takes the request and returns a `User` or None), or `open_to_all`. Requests with a host
    name that is not in `hosts` are refused. Statements of pages are cancelled after `timeout`
    seconds. Live values are read after a notification and every `interval` seconds; `listen_dsn`
    is needed if `dsn` leads through a pooler. `secret` signs sessions and forms: all processes
    that serve one dashboard share it. Without it, sessions end with the process. With `keys`, users
    with write access see messages of encrypted queues decrypted.
    """
    if [users is not None, authenticate is not None, open_to_all].count(True) != 1:
        raise ConfigurationError(
            "set the access to the dashboard with users=, authenticate= or open_to_all=True"
        )
    if base_path and (not base_path.startswith("/") or base_path.endswith("/")):
        raise ConfigurationError(f"the base path {base_path!r} is not like /notifyq")
    try:
        from notifyq.operations.dashboard.application import build
        from notifyq.operations.dashboard.attempts import Attempts
        from notifyq.operations.dashboard.live import Live, read
        from notifyq.operations.dashboard.pages import SECTIONS
        from notifyq.operations.dashboard.sessions import Sessions
        from notifyq.operations.dashboard.templating import environment
        from notifyq.operations.dashboard.view import Dashboard
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    reader = _database(dsn, size=4, seconds=timeout, listen_dsn=listen_dsn)
    return build(
        Dashboard(
            database=reader,
            writer=_database(dsn, size=2, seconds=30),
            live=Live(reader.dedicated(), read, interval, listens=True),
            templates=environment(),
            sections=SECTIONS,
            users=users,
            authenticate=authenticate,
            sessions=Sessions(secret),
            attempts=Attempts(),
            hosts=tuple(host.lower().rstrip(".") for host in hosts),
            base_path=base_path,
            allow_writes=allow_writes,
            masks=masks or Masks(),
            keys=keys,
        )
    )


def _database(dsn: str, *, size: int, seconds: float, listen_dsn: str | None = None) -> Database:
    """Connections whose statements are cancelled after some seconds."""
    settings = DatabaseSettings.load(
        pool_size=size,
        connect_timeout=timedelta(seconds=5),
        command_timeout=timedelta(seconds=seconds),
        retry_for=timedelta(0),
    )
    return Database(dsn, listen_dsn=listen_dsn, settings=settings, name="notifyq dashboard")
