"""Functions that Django's tasks framework calls; it finds them by the name of this module."""

from __future__ import annotations

from typing import Any

from notifyq import Reject

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(queue_name="mail", priority=7)
async def greet(name: str) -> dict[str, Any]:
    return {"text": (f"hello {name}",)}


@task(takes_context=True)
def flaky(context: Any, until: int) -> int:
    if context.attempt < until:
        raise LookupError(f"attempt {context.attempt} of {context.task_result.id}")
    return int(context.attempt)


@task
def refused() -> None:
    raise Reject("never")


@task
def unspeakable() -> object:
    return object()


no_task = add.func
