"""Settings and DSNs: an argument, else the environment variable NOTIFYQ_…, else the default."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypedDict

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from notifyq.errors import ConfigurationError, meant

_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)(?:\s+|(?=\d)|$)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)B?")
_LONGEST_DSN = 10_000
NO_DSN = (
    "no database: set NOTIFYQ_DSN or pass a DSN to the App, such as "
    "postgresql://user:password@host:5432/database; `notifyq server url` prints that of the "
    "private server"
)


def parse_duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `1h30m`, `2d`, `250ms`; a number without a unit is in seconds."""
    parts = list(_PART.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts) != text.strip():
        raise ValueError(f"{text!r} is not a duration like 30s, 5m, 1h30m or 2d")
    try:
        return timedelta(seconds=sum(float(part[1]) * _UNITS[part[2]] for part in parts))
    except OverflowError as error:
        raise ValueError(f"{text!r} is too long for a duration") from error


def _duration(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def parse_size(text: str) -> int:
    """Read `512MB`, `1.5GB`, `64kB` as PostgreSQL does, in units of 1024; a number is in bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size like 512MB or 2GB")
    try:
        return int(float(found[1]) * 1024 ** ("", "K", "M", "G", "T").index(found[2].upper()))
    except OverflowError as error:
        raise ValueError(f"{text!r} is too large for a size") from error


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(_size)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]


class Settings(BaseModel):
    """Base of the settings: frozen; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    env_prefix: ClassVar[str] = "NOTIFYQ_"

    @classmethod
    def load(cls, **values: Any) -> Self:
        """Build settings from arguments that are not None, the environment, and the defaults."""
        given = {name: value for name, value in values.items() if value is not None}
        for name in given.keys() - cls.model_fields.keys():
            hint = meant(name, cls.model_fields)
            raise ConfigurationError(f"there is no setting {name!r}{hint}")
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if not first["loc"]:  # an environment variable is blank
                raise ConfigurationError(first["msg"].removeprefix("Value error, ")) from None
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"setting {name}: {first['msg']}") from None

    # Without pydantic-settings, whose import would delay every command by 250 ms.
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
    """How to connect to the database, and how long to retry."""

    pool_size: int = Field(4, ge=1, le=1000)
    connect_timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    command_timeout: Duration = Field(timedelta(seconds=60), gt=timedelta(0))
    retry_for: Duration = Field(timedelta(minutes=5), ge=timedelta(0))
    """How long a lost connection is retried before the process gives up."""
    prepared_statements: bool | None = None
    """Whether a pooler keeps prepared statements; None: test it. Without a pooler, and in its
    session mode, they are always kept."""


class DatabaseOptions(TypedDict, total=False):
    """`DatabaseSettings` as keywords; durations are timedeltas, seconds, or texts like 30s."""

    pool_size: int | None
    connect_timeout: timedelta | float | str | None
    command_timeout: timedelta | float | str | None
    retry_for: timedelta | float | str | None
    prepared_statements: bool | None


class WorkerSettings(Settings):
    """How a worker claims, waits and stops. The policy of a queue is in the database."""

    concurrency: int = Field(10, ge=1, le=10_000)
    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest time between two polls when no notification arrives."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for running handlers before it cancels them."""
    maintenance: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Time between two runs of messages.maintain()."""
    ping: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    """Time between two checks that the listening session is alive."""


class WorkerOptions(TypedDict, total=False):
    """`WorkerSettings` as keywords; durations are timedeltas, seconds, or texts like 30s."""

    concurrency: int | None
    poll: timedelta | float | str | None
    grace: timedelta | float | str | None
    maintenance: timedelta | float | str | None
    ping: timedelta | float | str | None


class RelaySettings(Settings):
    """How a relay moves messages from one database to another."""

    env_prefix = "NOTIFYQ_RELAY_"

    batch: int = Field(1000, ge=1, le=10_000)
    """Most messages of one claim and of one transaction of the target."""
    in_flight: int = Field(3, ge=1, le=100)
    """Batches that are moved at the same time; 1 keeps their order at the target."""
    lock_duration: Duration = Field(timedelta(seconds=30), ge=timedelta(seconds=1))
    """How long messages stay locked after the relay crashed; a running one extends its locks."""
    hold: Duration = Field(timedelta(seconds=10), ge=timedelta(0))
    """How long a batch waits for a target that is down before it is released, and a queue for one
    that is full before that is reported."""
    attempts: int = Field(5, ge=1, le=1000)
    """How often the transformation may fail on a message."""
    remember: Duration = Field(timedelta(days=90), ge=timedelta(hours=1))
    """How long the target keeps receipts; an older backup of the source must not be restored."""
    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest time between two polls when no notification arrives."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for running batches before it releases them."""


class ScrapeSettings(Settings):
    """Where a command serves its metrics."""

    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port for Prometheus; None: no metrics. Of several processes each has the next port."""
    metrics_host: str = "127.0.0.1"


class CommandSettings(ScrapeSettings):
    """Settings of `notifyq worker` that a worker inside a program lacks."""

    processes: int = Field(1, ge=1)
    max_memory: Size | None = Field(None, gt=0)
    """Resident memory, in bytes or as 512MB, above which a worker stops to be started again; None:
    no limit."""


class BrokerSettings(Settings):
    """How `notifyq broker` waits and stops, and which brokers it runs."""

    poll: Duration = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest time between two polls when no notification arrives."""
    grace: Duration = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for a procedure before it ends the session."""
    autostart: str = ""
    """Run a broker for each `user:database` of this list; empty: one, for the DSN."""


def from_environment(variable: str) -> str | None:
    """The value of an environment variable; None where it is not set.

    Raises ConfigurationError where it is blank: most likely it was made from a variable that is not
    set, and the default could be the wrong database or folder.
    """
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ConfigurationError(f"{variable} is set, but empty: give it a value, or unset it")
    return value


def require_dsn(dsn: str, name: str = "the DSN") -> None:
    """Raise ConfigurationError where a DSN is blank: libpq would connect to its defaults."""
    if not dsn.strip():
        raise ConfigurationError(
            f"{name} is empty: give one like postgresql://user:password@host:5432/database"
        )


def dsn_from_environment(variable: str = "NOTIFYQ_DSN") -> str | None:
    """The DSN in an environment variable, else in the file that `<variable>_FILE` names."""
    dsn = from_environment(variable)
    file = from_environment(f"{variable}_FILE")
    return dsn or (dsn_from_file(file) if file else None)


def listen_dsn_from_environment() -> str | None:
    """The DSN in NOTIFYQ_LISTEN_DSN or its file.

    Use it only beside the DSN from the environment: with another one it may be another database.
    """
    return dsn_from_environment("NOTIFYQ_LISTEN_DSN")


def given_dsns(dsn: str | None, listen_dsn: str | None) -> tuple[str | None, str | None]:
    """These DSNs; without the first one, those of the environment."""
    if dsn is not None:
        return dsn, listen_dsn
    return dsn_from_environment(), listen_dsn or listen_dsn_from_environment()


def dsn_from_file(path: str) -> str:
    """The DSN in the one line of a file that only its owner may read and write.

    Raises ConfigurationError where the file cannot be read, is not safe, or has other content.
    """
    found = secret_lines(path, "the DSN file")
    if len(found) != 1:
        raise ConfigurationError(f"the DSN file {path} must hold one line, not {len(found)}")
    return found[0]


def secret_lines(path: str, what: str) -> list[str]:
    """The lines of a file that only its owner may read and write, without blank ones."""
    try:
        # Check the open file: a path may be a pipe, as `<(...)` of a shell, or change in between.
        with Path(path).open(encoding="utf-8") as file:
            fault = exposure(os.fstat(file.fileno()))
            lines = "" if fault else file.read(_LONGEST_DSN).split("\n")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what} {path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigurationError(f"{what} {path!r} cannot be read: {error}") from error
    if fault:
        raise ConfigurationError(f"{what} {path} {fault}: `chmod 600` it, and own it")
    return [line.strip() for line in lines if line.strip()]


def exposure(status: os.stat_result) -> str | None:
    """Why owner and mode of a file with a password are not safe; None if they are.

    As libpq for private keys: only its owner may read a file, which is this user or root; a group
    may also read one of root, as container secrets are.
    """
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user, who could redirect us to another server"
    if status.st_mode & 0o022:
        return "may be written by others, who could redirect us to another server"
    allowed = 0o040 if status.st_uid == 0 != os.geteuid() else 0
    return "may be read by others" if status.st_mode & 0o044 & ~allowed else None
