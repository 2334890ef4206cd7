"""How commands log: the library only emits, the command line decides on the form."""

from __future__ import annotations

import enum
import json
import logging
import sys
from typing import Any

from pydantic_core import to_json

from notifyq.config import masked_in


class LogFormat(enum.StrEnum):
    """Lines for people, or JSON for machines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class _MaskingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked_in(super().format(record))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = _fields(record)
        return masked_in(f"{line} {fields}" if fields else line)


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
        return masked_in(to_json(line, fallback=str).decode())


def _fields(record: logging.LogRecord) -> str:
    event: dict[str, Any] = getattr(record, "event", {})
    return " ".join(
        f"{name}={_readable(value)}" for name, value in event.items() if value is not None
    )


def _readable(value: Any) -> str:
    """A value without blanks or in quotes, so that an event stays one line of name=value."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return ",".join(map(_readable, value))
    if isinstance(value, dict):
        return ",".join(f"{_readable(name)}:{_readable(it)}" for name, it in value.items())
    text = str(value)
    return text if text.isprintable() and not {" ", '"'} & set(text) else json.dumps(text)


def mask_logs() -> None:
    """Hide passwords in what a command logs that does not configure logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(formatter(None))


def formatter(log_format: LogFormat | None) -> logging.Formatter:
    """Make lines of records, without passwords; None: as Python does unless it is configured."""
    match log_format:
        case LogFormat.JSON:
            return _JsonFormatter()
        case LogFormat.TEXT:
            return _TextFormatter("%(asctime)s %(levelname)-7s %(message)s")
        case None:
            return _MaskingFormatter()


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Log to stderr from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # A pool that finds the server gone warns with a traceback; ours say what happens next.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
