"""Messages and handlers for tests without a database."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from notifyq import App, Handler, Message

START = datetime(2027, 1, 1, tzinfo=UTC)


def message(payload: str = "null", **columns: Any) -> Message:
    """A locked message as a claim returns it."""
    row: dict[str, Any] = {
        "id": 1,
        "queue": "q",
        "created_at": START,
        "available_at": START,
        "locked_at": START,
        "lock_expires_at": START + timedelta(minutes=1),
        "lock_token": 1,
        "locked_by": "worker",
        "state": "locked",
        "priority": 0,
        "attempts": 1,
        "type": None,
        "dedup_key": None,
        "key": None,
        "max_attempts": None,
        "message": payload,
        "headers": {},
        "details": None,
    }
    return Message(**row | columns)


def register(function: Callable[..., Any], queue: str = "q", **options: Any) -> Handler[Any]:
    """Make a function a handler of a new App."""
    handler: Handler[Any] = App("postgresql://nowhere").handler(queue, **options)(function)
    return handler
