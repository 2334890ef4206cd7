"""Settings: an explicit argument, else the environment variable NOTIFYQ_…, else the default."""

from __future__ import annotations

import difflib
import os
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from notifyq.errors import ConfigurationError


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
    connect_timeout: timedelta = Field(timedelta(seconds=10), gt=timedelta(0))
    command_timeout: timedelta = Field(timedelta(seconds=60), gt=timedelta(0))
    retry_for: timedelta = Field(timedelta(minutes=5), ge=timedelta(0))
    """A connection that was lost is tried again for this long, then the process gives up."""


class WorkerSettings(Settings):
    """How a worker claims, waits and stops. Queue policy is not here: it lives in the database."""

    concurrency: int = Field(10, ge=1, le=10_000)
    poll: timedelta = Field(timedelta(seconds=1), gt=timedelta(0))
    """Longest wait for a bell before the queues are looked at anyway."""
    grace: timedelta = Field(timedelta(seconds=30), ge=timedelta(0))
    """How long a stop waits for running handlers before it cancels them."""
    upkeep: timedelta = Field(timedelta(seconds=1), gt=timedelta(0))
    """Time between two runs of messages.maintain()."""
    ping: timedelta = Field(timedelta(seconds=10), gt=timedelta(0))
    """Time between two checks that the listening session is alive."""


def dsn_from_environment() -> str | None:
    """NOTIFYQ_DSN, or None where it is not set or empty."""
    return os.environ.get("NOTIFYQ_DSN") or None


def masked(dsn: str) -> str:
    """The DSN without its password, fit for logs and errors."""
    try:
        parts = urlsplit(dsn)
        if parts.password is None:
            return dsn
    except ValueError:
        return "(a DSN that cannot be read)"
    netloc = f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=netloc))
