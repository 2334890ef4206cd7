"""A watcher of published messages, and connections to publish on."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import psycopg
from django import setup
from django.conf import settings
from django.db import connections
from psycopg.rows import dict_row
from sqlalchemy.engine import make_url

settings.configure(
    USE_TZ=True,
    INSTALLED_APPS=["notifyq.contrib.django"],
    NOTIFYQ={"DATABASE": "other"},
    TASKS={
        "default": {
            "BACKEND": "notifyq.contrib.django.tasks.NotifyqBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"max_attempts": 2, "backoff": 60},
        }
    },
)
setup()


class Watcher:
    """Reads committed messages and receives their notifications."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._connection.execute("listen new_message")
        self._connection.execute("listen fence")

    def close(self) -> None:
        self._connection.close()

    def messages(self) -> list[dict[str, Any]]:
        """All that are live, in the order of ids."""
        return self._connection.execute("select * from messages.message order by id").fetchall()

    def ids(self) -> list[int]:
        return [message["id"] for message in self.messages()]

    def notifications(self) -> int:
        """Count the notifications since the last call."""
        self._connection.execute("notify fence")
        for count, notification in enumerate(self._connection.notifies(timeout=10)):
            if notification.channel == "fence":
                return count
        raise TimeoutError


def url(dsn: str, driver: str) -> Any:
    return make_url(dsn).set(drivername=f"postgresql+{driver}")


def django(
    dsn: str, stack: ExitStack, *, engine: str = "postgresql", autocommit: bool = True
) -> Any:
    """Give the connection of Django's database "other"."""
    where = make_url(dsn)
    connections.settings = connections.configure_settings(
        {
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            "other": {
                "ENGINE": f"django.db.backends.{engine}",
                "NAME": where.database,
                "USER": where.username,
                "PASSWORD": where.password or "",
                "HOST": where.host or where.query["host"],
                "PORT": where.port or "",
                "AUTOCOMMIT": autocommit,
            },
        }
    )

    def close() -> None:
        connections["other"].close()
        del connections["other"]

    stack.callback(close)
    return connections["other"]
