"""Settings: an explicit argument, else the environment variable NOTIFYQ_…, else the default."""

from __future__ import annotations

import difflib
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypedDict
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)(?:\s+|(?=\d)|$)")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
_LONGEST_DSN = 10_000
_MAY_HOLD_PASSWORD = re.compile(
    r"//.*@|^[^\s/@:]+:[^@]*@|//.*[?&][^=]*password|\bpass(word|wd)?\s*=", re.DOTALL | re.IGNORECASE
)
_DSN = re.compile(
    r"""(?:[a-z][a-z0-9+.-]*:)?//[^\s'"]*@[^\s'"]* | \bpostgres(?:ql)?://[^\s'"]*""",
    re.IGNORECASE | re.VERBOSE,
)
_PASSWORD = re.compile(
    r"""(\b\w*password\s*=\s*)('(?:[^'\\]|\\.)*' | "[^"]*" | [^\s&'",;)]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def parse_duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `1h30m`, `2d`, `250ms`; a bare number counts seconds."""
    parts = list(_PART.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts) != text.strip():
        raise ValueError(f"{text!r} is not a duration like 30s, 5m, 1h30m or 2d")
    try:
        return timedelta(seconds=sum(float(part[1]) * _UNITS[part[2]] for part in parts))
    except OverflowError as error:
        raise ValueError(f"{text!r} is longer than any duration can be") from error


def _duration(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]


class Settings(BaseModel):
    """Base of the settings classes: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    env_prefix: ClassVar[str] = "NOTIFYQ_"

    @classmethod
    def load(cls, **values: Any) -> Self:
        """Build settings from arguments that are not None, the environment, and the defaults."""
        given = {name: value for name, value in values.items() if value is not None}
        for name in given.keys() - cls.model_fields.keys():
            close = difflib.get_close_matches(name, cls.model_fields, n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"there is no setting {name!r}{hint}")
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if not first["loc"]:  # a variable of the environment that is blank
                raise ConfigurationError(first["msg"].removeprefix("Value error, ")) from None
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"setting {name}: {first['msg']}") from None

    # Not by pydantic-settings: every command would start a quarter of a second later.
    @model_validator(mode="before")
    @classmethod
    def _add_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        environment = {name.upper(): name for name in os.environ}
        variables = {name: f"{cls.env_prefix}{name.upper()}" for name in cls.model_fields}
        found = {
            name: from_environment(environment[variable])
            for name, variable in variables.items()
            if variable in environment and name not in given
        }
        return {**found, **given}


class DatabaseSettings(Settings):
    """How to reach the database, and how long to try."""

    pool_size: int = Field(4, ge=1, le=1000)
    connect_timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    command_timeout: Duration = Field(timedelta(seconds=60), gt=timedelta(0))
    retry_for: Duration = Field(timedelta(minutes=5), ge=timedelta(0))
    """A connection that was lost is tried again for this long, then the process gives up."""
    prepared_statements: bool | None = None
    """Whether a pooler keeps prepared statements; None: see whether it does. Without a pooler, and
    in its session mode, they are kept."""


class DatabaseOptions(TypedDict, total=False):
    """`DatabaseSettings` as keywords; durations are timedeltas, seconds, or texts like 30s."""

    pool_size: int | None
    connect_timeout: timedelta | float | str | None
    command_timeout: timedelta | float | str | None
    retry_for: timedelta | float | str | None
    prepared_statements: bool | None


class WorkerSettings(Settings):
    """How a worker claims, waits and stops. Queue policy is not here: it lives in the database."""

    concurrency: int = Field(10, ge=1, le=10_000)
    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest wait for a bell before the queues are looked at anyway."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for running handlers before it cancels them."""
    upkeep: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Time between two runs of messages.maintain()."""
    ping: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    """Time between two checks that the listening session is alive."""


class WorkerOptions(TypedDict, total=False):
    """`WorkerSettings` as keywords; durations are timedeltas, seconds, or texts like 30s."""

    concurrency: int | None
    poll: timedelta | float | str | None
    grace: timedelta | float | str | None
    upkeep: timedelta | float | str | None
    ping: timedelta | float | str | None


class RelaySettings(Settings):
    """How a relay moves messages from one database to another."""

    env_prefix = "NOTIFYQ_RELAY_"

    batch: int = Field(1000, ge=1, le=10_000)
    """Most messages in one claim and in one transaction of the target."""
    in_flight: int = Field(3, ge=1, le=100)
    """Batches under way at the same time; with 1 the target gets them in their order."""
    lock_timeout: Duration = Field(timedelta(seconds=30), ge=timedelta(seconds=1))
    """How long messages of a relay that died stay locked; a live one extends its locks."""
    hold: Duration = Field(timedelta(seconds=10), ge=timedelta(0))
    """How long a batch waits for a target that is down or full before it is released."""
    attempts: int = Field(5, ge=1, le=1000)
    """How often the transformation may fail on a message."""
    remember: Duration = Field(timedelta(days=90), ge=timedelta(hours=1))
    """How long the target keeps receipts: no backup of the source may be older."""
    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest wait for a bell before the queues are looked at anyway."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for batches under way before it releases them."""


class ScrapeSettings(Settings):
    """Where a command serves its metrics."""

    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Where Prometheus finds the metrics; None: nowhere. Process N of several has the N-th one."""
    metrics_host: str = "127.0.0.1"


class CommandSettings(ScrapeSettings):
    """What `notifyq worker` makes of a worker, and a worker inside a program does not."""

    processes: int = Field(1, ge=1)


class BrokerSettings(Settings):
    """How `notifyq broker` waits and stops, and for whom it runs brokers."""

    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest wait for a bell before the streams are looked at anyway."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for a procedure before its session is ended."""
    autostart: str = ""
    """A broker for each `user:database` in this list; empty: one, as the DSN says."""


def from_environment(variable: str) -> str | None:
    """The value of an environment variable, None where it is not set.

    Raises ConfigurationError where it is blank: it most likely comes from another variable that is
    not set, and another database, folder or limit than the one that was meant is worse than none.
    """
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ConfigurationError(f"{variable} is set, but empty: give it a value, or unset it")
    return value


def require_dsn(dsn: str, name: str = "the DSN") -> None:
    """Raise ConfigurationError where a DSN is blank: libpq would take the defaults instead."""
    if not dsn.strip():
        raise ConfigurationError(
            f"{name} is empty: give one like postgresql://user:password@host:5432/database"
        )


def dsn_from_environment() -> str | None:
    """The DSN in NOTIFYQ_DSN, else in the file NOTIFYQ_DSN_FILE; None where neither is set."""
    dsn = from_environment("NOTIFYQ_DSN")
    file = from_environment("NOTIFYQ_DSN_FILE")
    return dsn or (dsn_from_file(file) if file else None)


def listen_dsn_from_environment() -> str | None:
    """The DSN in NOTIFYQ_LISTEN_DSN, else in the file NOTIFYQ_LISTEN_DSN_FILE, if any.

    It belongs to that of `dsn_from_environment`: with another DSN it might be another database's.
    """
    dsn = from_environment("NOTIFYQ_LISTEN_DSN")
    file = from_environment("NOTIFYQ_LISTEN_DSN_FILE")
    return dsn or (dsn_from_file(file) if file else None)


def given_dsns(dsn: str | None, listen_dsn: str | None) -> tuple[str | None, str | None]:
    """These DSNs; where the first is not given both are looked for in the environment."""
    if dsn is not None:
        return dsn, listen_dsn
    return dsn_from_environment(), listen_dsn or listen_dsn_from_environment()


def dsn_from_file(path: str) -> str:
    """The DSN that is the one line of a file which nobody else may read or write.

    Raises ConfigurationError where the file cannot be read, is not safe, or holds something else.
    """
    try:
        # It may be a pipe, as `<(...)` of a shell is: what is looked at is what is read.
        with Path(path).open(encoding="utf-8") as file:
            fault = exposure(os.fstat(file.fileno()))
            lines = "" if fault else file.read(_LONGEST_DSN).split("\n")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the DSN file {path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"the DSN file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigurationError(f"the DSN file {path!r} cannot be read: {error}") from error
    if fault:
        raise ConfigurationError(f"the DSN file {path} {fault}: `chmod 600` it, and own it")
    found = [line.strip() for line in lines if line.strip()]
    if len(found) != 1:
        raise ConfigurationError(f"the DSN file {path} must hold one line, not {len(found)}")
    return found[0]


def exposure(status: os.stat_result) -> str | None:
    """What is wrong with the owner and the mode of a file that holds a password, if anything.

    The rule is libpq's for private keys: a file of our own is nobody else's business; one of root's
    may be read by a group, which is how containers hand out secrets.
    """
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user, who could lead us to another server"
    if status.st_mode & 0o022:
        return "may be written by others, who could lead us to another server"
    allowed = 0o040 if status.st_uid == 0 != os.geteuid() else 0
    return "may be read by others" if status.st_mode & 0o044 & ~allowed else None


def with_database(dsn: str, name: str) -> str:
    """The DSN of another database of the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{quote(name, safe='')}"))


def with_user(dsn: str, user: str, database: str) -> str:
    """The DSN of a database of the same server, as this user; a password is that of one user."""
    parts = urlsplit(dsn)
    login, _, hosts = parts.netloc.rpartition("@")
    if unquote(login.partition(":")[0]) != user:
        login = quote(user, safe="")
    return with_database(urlunsplit(parts._replace(netloc=f"{login}@{hosts}")), database)


def has_password(dsn: str) -> bool:
    """Whether a password may stand in the DSN; in one that cannot be read it may."""
    return masked(dsn) != dsn


def masked_in(text: str, arguments: Iterable[str] = ()) -> str:
    """A text for logs and errors without the passwords of DSNs that it quotes.

    Arguments of a command are replaced whole where they may be DSNs: their passwords may have any
    character, and a text does not tell where such a DSN ends.
    """
    for argument in arguments:
        for value in (argument.partition("=")[2] if argument.startswith("-") else "", argument):
            if value and _MAY_HOLD_PASSWORD.search(value):
                hidden = masked(value) if masked(value) != value else "(a DSN)"
                for form in (value, repr(value)[1:-1], value.encode("ascii", "replace").decode()):
                    text = text.replace(form, hidden)
    text = _DSN.sub(_masked_match, text)
    return _PASSWORD.sub(r"\1***", text)


def _masked_match(found: re.Match[str]) -> str:
    dsn = found[0].rstrip(":;,.!?)]}>\\`…")  # punctuation of the sentence around it
    return masked(dsn) + found[0][len(dsn) :]


def masked(dsn: str) -> str:
    """The DSN without its passwords, fit for logs and errors."""
    if "://" not in dsn:  # whatever it is, a password may stand anywhere in it
        return "(a DSN that is no URL)" if "=" in dsn or "@" in dsn else dsn
    try:
        parts = urlsplit(dsn)
        if "@" in parts.path + parts.query + parts.fragment:
            return "(a DSN whose password needs percent-encoding)"
        login, at, hosts = parts.netloc.rpartition("@")
        if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
            return "(a DSN that cannot be read)"  # `user:password` without a host, most likely
        if ":" in login:
            netloc = f"{login.partition(':')[0]}:***{at}{hosts}"
            dsn = dsn.replace(parts.netloc, netloc, 1)
        names = [option.partition("=")[0] for option in parts.query.split("&")]
        for place, name in enumerate(names):
            if "password" in unquote(name):
                # What follows may be the rest of it, where it has an & or a # of its own.
                head, *options = re.split("[?&]", dsn)
                return f"{head}?{'&'.join([*options[:place], name])}=***"
    except ValueError:
        return "(a DSN that cannot be read)"
    return dsn
