"""The way to the server: its hosts in turn, and what a pooler in between takes away.

A pooler that lends a server's session for one transaction (PgBouncer's `transaction` mode) refuses
or drops the settings of a session, mixes up prepared statements unless it keeps books on them, and
loses bells. What it takes is found out by the first connection; later ones know.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qs, urlsplit, urlunsplit

import asyncpg

from notifyq.config import masked
from notifyq.database import probes

if TYPE_CHECKING:
    from typing import TypeAlias

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger("notifyq.database")

K = TypeVar("K", bound="Connection")

_SETTINGS = {
    # Claims at SERIALIZABLE fail by the dozen, whatever the database's default says.
    "default_transaction_isolation": "read committed",
    # One that the role or the database has for the sake of others; ours is command_timeout.
    "statement_timeout": "0",
}
_REFUSED = "unsupported startup parameter"
_CACHED = 100
"""Prepared statements that a connection keeps, as asyncpg does by itself."""
_LEAST = 2.0
"""Seconds that each of several hosts gets to answer, at least: one may be gone without a word."""
_NEXT_HOST = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.TooManyConnectionsError,
)
_WRITABLE = frozenset({"primary", "read-write"})


@dataclass(frozen=True, slots=True)
class Way:
    """What connections over a DSN can count on."""

    is_pooled: bool = False
    """Whether a pooler answers, so that the server's session may be another's a moment later."""
    takes_settings: bool = True
    """Whether a connection may ask for settings of its session."""
    keeps_statements: bool = True
    """Whether a statement that was prepared is there when it is called."""


class Route:
    """The way to the server of a DSN; `prepared` says so where a pooler keeps statements."""

    def __init__(
        self, dsn: str, *, name: str, timeout: float = 10, prepared: bool | None = None
    ) -> None:
        self._dsn = dsn
        self._hosts: list[str] = []
        self._name = name
        self._timeout = timeout
        self._prepared = prepared
        self.way: Way | None = None
        """None until a connection has been made, and after one could not be made."""

    async def connect(self, kind: type[K], **options: Any) -> K:
        """Open a connection to the first host that answers and is what the DSN asks for."""
        try:
            if self.way is not None:
                return await self._open(self.way, kind, **options)
            connection, self.way = await self._find(kind, **options)
        except BaseException:
            self.way = None
            raise
        return connection

    async def _find(self, kind: type[K], **options: Any) -> tuple[K, Way]:
        way = Way(keeps_statements=self._prepared is not False)
        try:
            connection = await self._open(way, kind, **options)
        except asyncpg.ProtocolViolationError as error:
            if _REFUSED not in str(error):
                raise
            way = Way(is_pooled=True, takes_settings=False, keeps_statements=self._prepared is True)
            connection = await self._open(way, kind, **options)
        except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError):
            # Asking a host what it is takes a statement already.
            way = Way(is_pooled=True, keeps_statements=False)
            connection = await self._open(way, kind, **options)
        try:
            found = await self._seen(connection, way)
        except BaseException:
            connection.terminate()
            raise
        if found.keeps_statements != way.keeps_statements:
            connection.terminate()
            connection = await self._open(found, kind, **options)
        return connection, found

    async def _seen(self, connection: Connection, way: Way) -> Way:
        pid = connection.get_server_pid()
        if await holds(connection, probes.IS_MINE.format(pid=pid)):
            return way
        if await holds(connection, probes.IS_UNFIT):
            log.warning(
                "through the pooler of %s the isolation of transactions is not 'read committed', "
                "or statement_timeout not 0: set both for this user (`alter role`), as claims fail "
                "otherwise",
                masked(self._dsn),
            )
        keeps = self._prepared
        if keeps is None:
            keeps = await _keeps_statements(connection)
        return replace(way, is_pooled=True, keeps_statements=keeps)

    async def _open(self, way: Way, kind: type[K], **options: Any) -> K:
        settings = _SETTINGS if way.takes_settings else {}
        options |= {
            "connection_class": kind,
            "server_settings": {"application_name": self._name, **settings},
            "statement_cache_size": _CACHED if way.keeps_statements else 0,
        }
        self._hosts = self._hosts or hosts(self._dsn)
        if len(self._hosts) == 1:
            return cast("K", await asyncpg.connect(self._dsn, timeout=self._timeout, **options))
        reasons = []
        share = max(self._timeout / len(self._hosts), min(_LEAST, self._timeout))
        for host in list(self._hosts):
            try:
                # Not all of them at once, as asyncpg can: a host that has lost its power would
                # use up the time of the others.
                connection = await asyncpg.connect(host, timeout=share, **options)
            except _NEXT_HOST as error:
                reasons.append(f"{urlsplit(host).netloc.rpartition('@')[2]}: {_reason(error)}")
                continue
            self._prefer(host)
            return cast("K", connection)
        raise ConnectionError("; ".join(reasons))

    def _prefer(self, host: str) -> None:
        # Where only one of them can be it, the last one that was it is asked first.
        if _target(host) in _WRITABLE:
            self._hosts.remove(host)
            self._hosts.insert(0, host)


async def holds(connection: Connection, statement: str) -> bool:
    """Whether a statement of `probes` has a row."""
    return await connection.execute(statement) == "SELECT 1"


def hosts(dsn: str) -> list[str]:
    """The DSN for each of its hosts, in their order; what asyncpg must choose among stays one."""
    parts = urlsplit(dsn)
    login, at, listed = parts.netloc.rpartition("@")
    if "," not in listed or _target(dsn) == "prefer-standby":
        return [dsn]
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{it}")) for it in listed.split(",")]


def _target(dsn: str) -> str:
    return parse_qs(urlsplit(dsn).query).get("target_session_attrs", ["any"])[-1]


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "it is not what target_session_attrs asks for"
    return str(error) or ("it does not answer" if isinstance(error, TimeoutError) else repr(error))


async def _keeps_statements(connection: Connection) -> bool:
    """Whether the pooler keeps books on prepared statements: then they have names of its own."""
    name = f"notifyq_{secrets.token_hex(8)}"
    async with connection.transaction():
        await connection.prepare("select", name=name)
        if not await holds(connection, probes.IS_NAMED.format(name=name)):
            return True
        await connection.execute(probes.FORGET.format(name=name))
    return False
