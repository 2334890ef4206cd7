"""`notifyq dashboard`: queues, messages and the health of the database in a browser.

`create_app` makes it as an ASGI application, to be served alone or mounted into another one. How a
page is added says `notifyq.dashboard.pages`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard.access import Attempts, Sessions, User, Users, hash_password
from notifyq.operations.dashboard.settings import LOOPBACK, DashboardSettings
from notifyq.operations.masks import Masks

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette

__all__ = ["LOOPBACK", "MISSING", "Masks", "User", "Users", "create_app", "hash_password"]

MISSING = "the dashboard needs more packages: pip install 'notifyq[dashboard]'"


def create_app(  # noqa: PLR0913  each is said by its name
    dsn: str,
    *,
    users: Users | None = None,
    authenticate: Callable[[Any], User | None] | None = None,
    open_to_all: bool = False,
    allow_writes: bool = False,
    masks: Masks | None = None,
    hosts: tuple[str, ...] = LOOPBACK,
    base_path: str = "",
    interval: float = 2.0,
    timeout: float = 8.0,
    listen_dsn: str | None = None,
    secret: str | None = None,
) -> Starlette:
    """Make the dashboard of a database as an ASGI application.

    Who may enter is said by one of three: `users`, `authenticate` (a function of an application
    around this one, which takes the request and returns a `User`, or None), or `open_to_all`.
    `hosts` are the names under which it is asked; others are refused. What a page asks of the
    database is cancelled after `timeout` seconds. Figures are read when a bell rings, and every
    `interval` seconds; `listen_dsn` is where bells arrive if `dsn` goes through a pooler.
    `secret` signs sessions and forms: several processes that serve one dashboard share it. Without
    it each process makes a random one, and sessions end with the process.
    """
    if [users is not None, authenticate is not None, open_to_all].count(True) != 1:
        raise ConfigurationError(
            "say who may enter the dashboard: users=, authenticate= or open_to_all=True"
        )
    if base_path and (not base_path.startswith("/") or base_path.endswith("/")):
        raise ConfigurationError(f"the base path {base_path!r} is not like /notifyq")
    try:
        from notifyq.operations.dashboard.application import build
        from notifyq.operations.dashboard.figures import look
        from notifyq.operations.dashboard.live import Live
        from notifyq.operations.dashboard.pages import SECTIONS
        from notifyq.operations.dashboard.templating import environment
        from notifyq.operations.dashboard.view import Desk
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    settings = DashboardSettings(
        allow_writes=allow_writes,
        masks=masks or Masks(),
        hosts=tuple(host.lower().rstrip(".") for host in hosts),
        base_path=base_path,
        interval=interval,
        authenticate=authenticate,
    )
    reader = _database(dsn, size=4, seconds=timeout, listen_dsn=listen_dsn)
    desk = Desk(
        settings=settings,
        database=reader,
        writer=_database(dsn, size=2, seconds=30),
        templates=environment(),
        users=users,
        sessions=Sessions(secret),
        attempts=Attempts(),
        sections=SECTIONS,
        live=Live(reader.lane(), look, interval, hears=True),
    )
    return build(desk)


def _database(dsn: str, *, size: int, seconds: float, listen_dsn: str | None = None) -> Database:
    """Connections whose statements are cancelled after some seconds: no page can do harm."""
    settings = DatabaseSettings.load(
        pool_size=size,
        connect_timeout=timedelta(seconds=5),
        command_timeout=timedelta(seconds=seconds),
        retry_for=timedelta(0),
    )
    return Database(dsn, listen_dsn=listen_dsn, settings=settings, name="notifyq dashboard")
