"""What makes a handler of a function: its options, and what its signature says."""

from __future__ import annotations

import inspect
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from notifyq.arguments import duration, known_options, text, whole
from notifyq.errors import ConfigurationError
from notifyq.handlers.handler import BatchHandler, Handler, MessageHandler
from notifyq.handlers.resources import Resources, name
from notifyq.handlers.retries import Retries
from notifyq.handlers.signature import Signature, adapter
from notifyq.queues.admin import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.handlers.handler import Publishing
    from notifyq.handlers.retries import Backoff

_MOST_BATCH = 10_000
_MOST_ATTEMPTS = 1000


class HandlerOptions(TypedDict, total=False):
    """What may be said of any handler; durations are timedeltas or seconds."""

    timeout: timedelta | float | None
    heartbeat: bool
    lock_timeout: timedelta | float | None
    max_attempts: int | None
    backoff: Backoff | None
    backoff_max: timedelta | float | None
    transactional: bool
    executor: Literal["process"] | None
    policy: Policy | None
    """What its queue gets, where the worker creates it, besides what the others say."""


def make_handler(
    queue: str,
    function: Callable[..., Any],
    *,
    resources: Resources,
    publisher: Publishing,
    batch: int | None = None,
    linger: timedelta | float | None = None,
    **options: Unpack[HandlerOptions],
) -> Handler[Any]:
    """Read a function's signature: what it takes, and as what its payload is validated."""
    is_async = inspect.iscoroutinefunction(function)
    is_transactional = options.get("transactional", False)
    text("queue", queue)
    if linger is not None and batch is None:
        raise ConfigurationError(f"{name(function)} gathers no batch: linger needs batch=…")
    _check(function, batch, options, is_async=is_async)
    signature = Signature(
        function, resources, is_batch=batch is not None, has_transaction=is_transactional
    )
    lock_timeout = duration("lock_timeout", options.get("lock_timeout"))
    retries = Retries(options.get("backoff"), options.get("backoff_max"))
    return (MessageHandler if batch is None else BatchHandler)(
        queue=queue,
        function=function,
        policy=_policy(
            options.get("policy") or Policy(),
            lock_timeout=lock_timeout,
            max_attempts=options.get("max_attempts"),
            backoff=retries.base,
            backoff_max=retries.most,
        ),
        retries=retries,
        timeout=duration("timeout", options.get("timeout")),
        heartbeat=options.get("heartbeat", True),
        lock_timeout=lock_timeout,
        publisher=publisher,
        payload=adapter(function, signature.payload),
        result=adapter(function, signature.result),
        takes=tuple(signature.takes),
        names=tuple(signature.names),
        resources=tuple(signature.resources),
        takes_payload=signature.takes_payload,
        is_async=is_async,
        is_transactional=is_transactional,
        process=_importable(function, signature) if options.get("executor") else None,
        batch=batch,
        linger=duration("linger", linger) or timedelta(),
    )


def _policy(said: Policy, **of_handler: Any) -> Policy:
    """Policy for the queue of a handler: what it says of the queue, else of itself."""
    missing = {n: value for n, value in of_handler.items() if getattr(said, n) is None}
    return replace(said, **missing)


def _check(
    function: Callable[..., Any], batch: int | None, options: HandlerOptions, *, is_async: bool
) -> None:
    known_options("a handler", options, HandlerOptions.__annotations__)
    whole("batch", batch, _MOST_BATCH)
    whole("max_attempts", options.get("max_attempts"), _MOST_ATTEMPTS)
    policy = options.get("policy")
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(
            f"policy must be a notifyq.Policy, as in Policy(concurrency=5), not {policy!r}"
        )
    executor = options.get("executor")
    if executor not in {None, "process"}:
        raise ConfigurationError(f"executor must be 'process' or None, not {executor!r}")
    if executor and (is_async or batch is not None):
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: that is for sync functions that take one "
            "message"
        )
    if options.get("transactional") and not is_async:
        raise ConfigurationError(
            f"{name(function)} cannot be transactional: its connection belongs to the event loop, "
            "so it must be an async function"
        )


def _importable(function: Callable[..., Any], signature: Signature) -> tuple[str, str]:
    """Where a process finds a function, which is not sent there but imported."""
    if signature.resources:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: a resource such as "
            f"{signature.resources[0][0]!r} cannot go there. Open what it needs in the function"
        )
    if "<" in function.__qualname__:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process, which could not import it: define it at "
            "the top of a module"
        )
    return function.__module__, function.__qualname__
