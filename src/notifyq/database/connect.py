"""Open connections: try the hosts of a DSN in turn, and detect a pooler.

A pooler in transaction mode, such as PgBouncer's, lends a server session for one transaction. It
refuses or drops session settings, mixes up prepared statements unless it tracks them, and loses
notifications. The first connection detects what works; later ones use the result.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import asyncpg

from notifyq.database import installs, probes
from notifyq.dsn import PASSED_ON, hosts_of, masked, options_of, url_of
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger("notifyq.database")

K = TypeVar("K", bound="Connection")

_SETTINGS = {
    # Many claims fail at SERIALIZABLE, and the database's default may be that.
    "default_transaction_isolation": "read committed",
    # The role or the database may have a limit for others; notifyq uses command_timeout.
    "statement_timeout": "0",
}
_REFUSED = "unsupported startup parameter"
_CACHED = 100
"""Prepared statements that a connection keeps: the default of asyncpg."""
_LEAST = 2.0
"""Least seconds for each of several hosts: one that is down may not answer at all."""
_ENDLESS = 86_400.0
"""Seconds for connect_timeout=0, which waits without an end."""
_NEXT_HOST = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.TooManyConnectionsError,
)
_WRITABLE = frozenset({"primary", "read-write"})


@dataclass(frozen=True, slots=True)
class Features:
    """What works on the connections of a DSN."""

    is_pooled: bool = False
    """Whether a pooler answers: the server session may change between transactions."""
    takes_settings: bool = True
    """Whether a connection may set parameters of its session when it starts."""
    keeps_statements: bool = True
    """Whether prepared statements stay prepared."""


@dataclass(frozen=True, slots=True)
class Target:
    """One host to connect to, or several that asyncpg tries."""

    name: str
    """Host and port, for errors."""
    url: str = field(repr=False)
    timeout: float | None
    """Seconds, where the DSN has connect_timeout."""
    tls: bool | None
    """True: the certificate is verified with the authorities of the system."""
    is_primary: bool
    """Whether it must be the primary."""


class Route:
    """Opens connections to a DSN; `prepared` overrides whether prepared statements work."""

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        timeout: float = 10,
        prepared: bool | None = None,
        schema: str = installs.DEFAULT,
    ) -> None:
        self._dsn = dsn
        self.schema = schema
        """The install that its connections are for."""
        self._primary: str | None = None
        self._name = name.replace("notifyq", installs.inner(schema), 1)
        self._timeout = timeout
        self._prepared = prepared
        self.features: Features | None = None
        """None before the first connection, and after a failed one."""

    async def connect(self, kind: type[K], **options: Any) -> K:
        """Open a connection to the first host that answers and matches target_session_attrs."""
        try:
            if self.features is not None:
                return await self._open(self.features, kind, **options)
            connection, self.features = await self._detect(kind, **options)
        except BaseException:
            self.features = None
            raise
        return connection

    async def _detect(self, kind: type[K], **options: Any) -> tuple[K, Features]:
        tried = Features(keeps_statements=self._prepared is not False)
        try:
            connection = await self._open(tried, kind, **options)
        except asyncpg.ProtocolViolationError as error:
            if _REFUSED not in str(error):
                raise
            tried = Features(
                is_pooled=True, takes_settings=False, keeps_statements=self._prepared is True
            )
            connection = await self._open(tried, kind, **options)
        except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError):
            # The check of target_session_attrs already prepares a statement.
            tried = Features(is_pooled=True, keeps_statements=False)
            connection = await self._open(tried, kind, **options)
        try:
            found = await self._probe(connection, tried)
        except BaseException:
            connection.terminate()
            raise
        if found.keeps_statements != tried.keeps_statements:
            connection.terminate()
            connection = await self._open(found, kind, **options)
        return connection, found

    async def _probe(self, connection: Connection, tried: Features) -> Features:
        pid = connection.get_server_pid()
        if await has_row(connection, probes.IS_MINE.format(pid=pid)):
            return tried
        if await has_row(connection, probes.IS_UNFIT):
            log.warning(
                "through the pooler of %s the isolation of transactions is not 'read committed', "
                "or statement_timeout not 0: set both for this user (`alter role`), as claims fail "
                "otherwise",
                masked(self._dsn),
            )
        keeps = self._prepared
        if keeps is None:
            keeps = await _keeps_statements(connection)
        return replace(tried, is_pooled=True, keeps_statements=keeps)

    async def _open(self, features: Features, kind: type[K], **options: Any) -> K:
        settings = _SETTINGS if features.takes_settings else {}
        options |= {
            "connection_class": kind,
            "server_settings": {"application_name": self._name, **settings},
            "statement_cache_size": _CACHED if features.keeps_statements else 0,
        }
        reasons = []
        found = targets(self._dsn)  # each time: a service file may have a new password
        # Only one host can be the primary: try the last one first.
        found.sort(key=lambda target: target.name != self._primary)
        for target in found:
            share = max(self._timeout / len(found), min(_LEAST, self._timeout))
            try:
                # Not all hosts in one call of asyncpg: one without power would use up the time
                # of the others.
                connection = await _connect(
                    target.url, timeout=target.timeout or share, ssl=target.tls, **options
                )
            except _NEXT_HOST as error:
                if len(found) == 1:
                    raise
                reasons.append(f"{target.name}: {_reason(error)}")
                continue
            if target.is_primary:
                self._primary = target.name
            return cast("K", connection)
        raise ConnectionError("; ".join(reasons))


async def _connect(*args: Any, **options: Any) -> Connection:
    try:
        return await asyncpg.connect(*args, **options)
    except asyncpg.ObjectNotInPrerequisiteStateError as error:
        # The database takes no connections (`allow_connections`): that is no refusal of a call.
        raise asyncpg.CannotConnectNowError(str(error)) from error


async def has_row(connection: Connection, statement: str) -> bool:
    """Whether a statement of `probes` returns a row."""
    return await connection.execute(statement) == "SELECT 1"


def targets(dsn: str) -> list[Target]:
    """One target for each host, in order; one for all with prefer-standby, which compares hosts."""
    options = options_of(dsn)
    tls = _tls(options)
    wanted = options.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS", "any")
    given = hosts_of(options)
    if options.get("load_balance_hosts") == "random":
        random.shuffle(given)
    passed = {name: options[name] for name in sorted(options.keys() & PASSED_ON - {"host", "port"})}
    groups = [given] if wanted == "prefer-standby" else [[it] for it in given]
    return [
        Target(
            ",".join(f"{host}:{port}".rstrip(":") for host, port in group),
            url_of(passed | _at(group)),
            _timeout(options),
            tls,
            wanted in _WRITABLE,
        )
        for group in groups
    ]


def _at(group: list[tuple[str, str]]) -> dict[str, str]:
    ports = [port for _, port in group]
    if any(ports):
        ports = [port or os.environ.get("PGPORT", "5432") for port in ports]
    at = {"host": ",".join(host for host, _ in group), "port": ",".join(ports)}
    return {name: value for name, value in at.items() if value.strip(",")}


def _tls(options: dict[str, str]) -> bool | None:
    """True where the authorities of the system verify the certificate; None: sslmode decides."""
    if options.get("channel_binding") == "require":
        # asyncpg cannot bind. The certificate proves as well that nobody is in between.
        options["sslmode"] = "verify-full"
        if "PGSSLROOTCERT" not in os.environ:
            options.setdefault("sslrootcert", "system")
    if options.get("sslrootcert") != "system":
        return None
    if options.setdefault("sslmode", "verify-full") != "verify-full" or "sslcert" in options:
        raise ConfigurationError(
            "sslrootcert=system in the DSN needs sslmode=verify-full, and no sslcert"
        )
    return True


def _timeout(options: dict[str, str]) -> float | None:
    if "connect_timeout" not in options:
        return None
    seconds = float(options["connect_timeout"])
    return seconds if seconds > 0 else _ENDLESS


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "it does not match target_session_attrs"
    return str(error) or ("it does not answer" if isinstance(error, TimeoutError) else repr(error))


async def _keeps_statements(connection: Connection) -> bool:
    """Whether the pooler tracks prepared statements: it renames them then."""
    name = f"notifyq_{secrets.token_hex(8)}"
    async with connection.transaction():
        await connection.prepare("select", name=name)
        if not await has_row(connection, probes.IS_NAMED.format(name=name)):
            return True
        await connection.execute(probes.FORGET.format(name=name))
    return False
