"""How commands log: the library only emits, the command line chooses the format."""

import json
import logging
import sys
from typing import Any, Literal

from pydantic_core import to_json

from notifyq.dsn import masked_in
from notifyq.printable import printable_lines

LogFormat = Literal["text", "logfmt", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class _Formatter(logging.Formatter):
    def __init__(self, log_format: LogFormat | None) -> None:
        is_text = log_format == "text"
        super().__init__("%(asctime)s %(levelname)-7s %(message)s" if is_text else None)
        self._format = log_format

    def format(self, record: logging.LogRecord) -> str:
        match self._format:
            case "json":
                text = to_json(_fields(self, record), inf_nan_mode="null", fallback=str).decode()
            case "logfmt":
                fields = _fields(self, record).items()
                text = " ".join(f"{name}={_readable(it)}" for name, it in fields)
            case _:
                text = super().format(record)
        return masked_in(text)

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging calls it so
        # An error may quote a payload, which anybody may have written.
        return printable_lines(super().formatException(ei))


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """A record by name; an event has its name and its fields."""
    fields = {
        "time": formatter.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        "event": getattr(record, "event_name", None),
        **getattr(record, "event", {}),
    }
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return {name: value for name, value in fields.items() if value is not None}


def _readable(value: Any) -> str:
    """A value without blanks or in quotes: an event stays one line of name=value."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return ",".join(map(_readable, value))
    if isinstance(value, dict):
        return ",".join(f"{_readable(name)}:{_readable(it)}" for name, it in value.items())
    text = str(value)
    return text if text.isprintable() and not {" ", '"'} & set(text) else json.dumps(text)


def mask_logs() -> None:
    """Hide passwords in the logs of a command that does not configure logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(formatter(None))


def formatter(log_format: LogFormat | None) -> logging.Formatter:
    """Make lines of records, without passwords; None: as Python does unless it is configured."""
    return _Formatter(log_format)


def configure_logging(level: LogLevel, log_format: LogFormat = "text") -> None:
    """Log to stderr from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The pool of asyncpg logs a traceback when the server is gone; notifyq logs the retry.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
