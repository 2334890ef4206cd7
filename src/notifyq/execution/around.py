"""What runs around each sync function of the user, in its thread: sessions begin and end there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notifyq.handlers.handler import AroundSync


@contextmanager
def django_connections() -> Iterator[None]:
    """Close connections of Django that broke or are too old, as each of its requests does."""
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    database, apps = sys.modules.get("django.db"), sys.modules.get("django.apps")
    if database is not None and apps is not None and apps.apps.ready:
        database.close_old_connections()


def call_inside(around: Iterable[AroundSync], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function inside of these, the outermost first, and of the one for Django."""
    with ExitStack() as stack:
        stack.enter_context(django_connections())
        for enter in around:
            stack.enter_context(enter())
        return function(*args)
