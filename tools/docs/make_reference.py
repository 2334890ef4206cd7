"""Make the pages on settings, metrics and telemetry events from the source.

python tools/docs/make_reference.py            # writes settings.md; needs pip install 'notifyq[docs]'
python tools/docs/make_reference.py metrics    # prints the site's page, or that of telemetry

Of metrics.md and telemetry.md the repository has the heads only.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe
from prometheus_client import CollectorRegistry

from notifyq import config, telemetry
from notifyq.operations.metrics import BrokerMetrics, RelayMetrics, WorkerMetrics
from notifyq.operations.metrics.event_metrics import Names
from notifyq.operations.metrics.families import families
from notifyq.operations.monitor import Health
from notifyq.relay import events as relay_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"

_SETTINGS = """\
# Settings

An argument wins over the environment, and the environment over the default. An unknown argument and an empty
variable are errors; a variable with an unknown name is not read. Durations are timedeltas or seconds in Python, and `250ms`, `30s`, `5m`, `1h30m` or `2d` in the environment and on
the command line; a bare number counts seconds. Sizes are bytes, or `64kB`, `512MB` or `2GB` in units of 1024. Made by `tools/docs/make_reference.py`.

## The database

| environment | meaning |
| --- | --- |
| `NOTIFYQ_DSN` | Address of the database: `postgresql://user:password@host:5432/database`. |
| `NOTIFYQ_DSN_FILE` | File that holds the address in one line. Only its owner may read it. |
| `NOTIFYQ_SCHEMA` | Schema of the install, by default `messages`, see [Several installs](../operations/install.md#several-installs-in-one-database). |
| `NOTIFYQ_LISTEN_DSN`, `NOTIFYQ_LISTEN_DSN_FILE` | Address of the server itself for `LISTEN`, if the other one is that of a pooler. |
| `NOTIFYQ_KEYS`, `NOTIFYQ_KEYS_FILE` | Keys of [encrypted queues](../guides/encryption.md), as `id:base64,id:base64`; the first encrypts. |
| `NOTIFYQ_HOME` | Folder of the private server of `notifyq server`. |
| `NOTIFYQ_PG_BIN` | Folder with the programs of PostgreSQL for the private server, `bench` and `chaos`. |
| `NOTIFYQ_MASK` | Keys whose values the dashboard, `top`, `audit`, `dead watch` and `mcp` hide. |
| `NOTIFYQ_DASHBOARD_PASSWORD`, `NOTIFYQ_DASHBOARD_SECRET`, `NOTIFYQ_DASHBOARD_PROXY` | See [the dashboard](../operations/dashboard.md#access). |
| `NOTIFYQ_HTTP`, `NOTIFYQ_HTTP_SECRET` | See [delivery by HTTP](../guides/http.md). |
| `NOTIFYQ_DEAD_WEBHOOK`, `NOTIFYQ_DEAD_WEBHOOK_SECRET` | See [alerts](../guides/dead-messages.md#get-alerts). |
| `NOTIFYQ_TEST_DSN` | Server for tests that use [`notifyq.testing`](../guides/testing.md). |
"""
_SECTIONS: dict[str, tuple[str, str, tuple[type[config.Settings], ...]]] = {
    "Connections": ("setting", "Arguments of `App(…)`.", (config.DatabaseSettings,)),
    "Workers": (
        "setting",
        "Arguments of `app.worker(…)` and options of `notifyq worker`. The last four belong to the command only.",
        (config.WorkerSettings, config.CommandSettings),
    ),
    "Relays": (
        "relay setting",
        "Fields of `RelaySettings` and options of `notifyq relay`.",
        (config.RelaySettings,),
    ),
    "Brokers": ("broker setting", "Options of `notifyq broker`.", (config.BrokerSettings,)),
}
# Fields whose names are enough in the source.
_PLAIN = {
    "pool_size": "Most connections of the pool.",
    "connect_timeout": "Longest wait for a connection.",
    "command_timeout": "Longest wait for an answer.",
    "metrics_host": "Address that serves the metrics.",
    "processes": "Worker processes; each imports the app.",
    "concurrency": "Handlers that run at the same time.",
}

_OF_THE_EXPORTER = (
    ("notifyq_database_exporter", "1 in the process that reads the database."),
    ("notifyq_database_up", "1 if the last read of the database succeeded."),
    ("notifyq_database_read_seconds", "Duration of the last read."),
    ("notifyq_database_read_age_seconds", "Age of the values of the database."),
)


def settings() -> str:
    """Return the text of settings.md."""
    source = griffe.load("notifyq", search_paths=[ROOT / "src"], allow_inspection=False)
    parts = [_SETTINGS.rstrip()]
    for title, (first, text, classes) in _SECTIONS.items():
        rows = [
            _setting(it, name, source[f"config.{_owner(it, name)}"])
            for it in classes
            for name in it.model_fields
        ]
        parts += [f"## {title}", text]
        parts.append(_table(f"{first} | environment | default | meaning", rows))
    return "\n\n".join(parts) + "\n"


def _owner(kind: type[config.Settings], name: str) -> str:
    return next(it.__name__ for it in kind.__mro__ if name in inspect.get_annotations(it))


def _setting(kind: type[config.Settings], name: str, source: griffe.Object) -> str:
    docstring = source.members[name].docstring
    meaning = _flat(docstring.value) if docstring else _PLAIN[name]
    variable = f"{kind.env_prefix}{name.upper()}"
    return f"`{name}` | `{variable}` | {_default(kind.model_fields[name].default)} | {meaning}"


def _default(value: object) -> str:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, size = next(
            (unit, size)
            for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (float("inf"), "d", 86_400))
            if seconds < limit
        )
        return f"{seconds / size:.0f} {unit}"
    return "none" if value is None or value == "" else str(value)


def metrics() -> str:
    """Return the site's page on metrics."""
    parts = [_head("metrics")]
    for title, kind in (
        ("Worker", WorkerMetrics),
        ("Relay", RelayMetrics),
        ("Broker", BrokerMetrics),
    ):
        rows = _of_registry(kind(CollectorRegistry()).registry)
        parts += [f"## {title}", _table("metric | kind | labels | meaning", rows)]
    rows = [f"`{name}` | gauge |  | {text}" for name, text in _OF_THE_EXPORTER]
    found = families([], [], Health(()), Names(0), Names(0))
    rows += [_metric(it, getattr(it, "_labelnames", ())) for it in found]
    parts += ["## Database", _table("metric | kind | labels | meaning", rows)]
    return "\n\n".join(parts) + "\n"


def _of_registry(registry: CollectorRegistry) -> Iterator[str]:
    for collector in dict.fromkeys(registry._collector_to_names):  # noqa: SLF001  no other way
        for family in collector.collect():
            yield _metric(family, getattr(collector, "_labelnames", ()))


def _metric(family: Any, labels: Iterable[str]) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"`{name}` | {family.type} | {shown} | {family.documentation}"


def telemetry_events() -> str:
    """Return the site's page on telemetry events."""
    # A class with slots is made twice; the last one counts.
    kinds = {kind.__name__: kind for kind in telemetry.TelemetryEvent.__subclasses__()}
    parts = [_head("telemetry")]
    for title, is_relay in (("Workers and brokers", False), ("Relays", True)):
        found = [
            it for it in kinds.values() if (it.__module__ == relay_events.__name__) == is_relay
        ]
        parts += [f"## {title}", _table("event | level | fields | meaning", map(_event, found))]
    return "\n\n".join(parts) + "\n"


def _event(kind: type[telemetry.TelemetryEvent]) -> str:
    names = ", ".join(f"`{field.name}`" for field in fields(kind))
    level = logging.getLevelName(kind.level)
    return f"`{kind.__name__}` | {level} | {names} | {_flat(inspect.getdoc(kind) or '')}"


def _head(page: str) -> str:
    return (REFERENCE / f"{page}.md").read_text(encoding="utf-8").rstrip()


def _flat(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def _table(head: str, lines: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join(f"| {line} |".replace("|  |", "| |") for line in (head, rule, *lines))


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "metrics": metrics,
    "telemetry": telemetry_events,
}


def main() -> None:
    """Write settings.md, or print the page of that name."""
    if sys.argv[1:]:
        sys.stdout.write(PAGES[sys.argv[1]]())
    else:
        (REFERENCE / "settings.md").write_text(settings(), encoding="utf-8")


if __name__ == "__main__":
    main()
