"""Settings: an explicit argument, else the environment variable NOTIFYQ_…, else the default."""

from __future__ import annotations

import difflib
import os
import re
from datetime import timedelta
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from notifyq.errors import ConfigurationError

_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)(?:\s+|(?=\d)|$)")


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


class Settings(BaseSettings):
    """Base of the settings classes: frozen, and strict about names."""

    model_config = SettingsConfigDict(env_prefix="NOTIFYQ_", frozen=True, extra="forbid")

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
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"setting {name}: {first['msg']}") from None


class DatabaseSettings(Settings):
    """How to reach the database, and how long to try."""

    pool_size: int = Field(4, ge=1, le=1000)
    connect_timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    command_timeout: Duration = Field(timedelta(seconds=60), gt=timedelta(0))
    retry_for: Duration = Field(timedelta(minutes=5), ge=timedelta(0))
    """A connection that was lost is tried again for this long, then the process gives up."""


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


class CommandSettings(Settings):
    """What `notifyq worker` makes of a worker, and a worker inside a program does not."""

    processes: int = Field(1, ge=1)


def dsn_from_environment() -> str | None:
    """NOTIFYQ_DSN, or None where it is not set or empty."""
    return os.environ.get("NOTIFYQ_DSN") or None


def masked(dsn: str) -> str:
    """The DSN without its passwords, fit for logs and errors."""
    if "://" not in dsn:  # whatever it is, a password may stand anywhere in it
        return "(a DSN that is no URL)" if "=" in dsn or "@" in dsn else dsn
    try:
        parts = urlsplit(dsn)
        if "@" in parts.path + parts.query + parts.fragment:
            return "(a DSN whose password needs percent-encoding)"
        if parts.password is not None:
            netloc = f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"
            parts = parts._replace(netloc=netloc)
        if "password" in parts.query:
            query = [
                (name, "***" if "password" in name else value)
                for name, value in parse_qsl(parts.query, keep_blank_values=True)
            ]
            parts = parts._replace(query=urlencode(query, safe="*/:,"))
        return urlunsplit(parts)
    except ValueError:
        return "(a DSN that cannot be read)"
