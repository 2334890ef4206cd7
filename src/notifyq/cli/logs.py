"""How commands log: the library only emits, the command line decides on the form."""

from __future__ import annotations

import enum
import logging
import sys
from typing import Any

from pydantic_core import to_json

from notifyq.errors import ConfigurationError


class LogFormat(enum.StrEnum):
    """Lines for people, or JSON for machines."""

    TEXT = "text"
    JSON = "json"


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = _fields(record)
        return f"{line} {fields}" if fields else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "event", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return to_json(line, fallback=str).decode()


def _fields(record: logging.LogRecord) -> str:
    event: dict[str, Any] = getattr(record, "event", {})
    return " ".join(f"{name}={value}" for name, value in event.items() if value is not None)


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Log to stderr from this level on."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigurationError(f"there is no log level {level!r}: use debug, info or warning")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if log_format is LogFormat.JSON
        else _TextFormatter("%(asctime)s %(levelname)-7s %(message)s")
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
