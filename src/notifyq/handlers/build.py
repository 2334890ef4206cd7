"""Make handlers and subscribers of functions: check their options and read the signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from notifyq.arguments import duration, known_options, positive, text, whole
from notifyq.errors import ConfigurationError
from notifyq.handlers.handler import BatchHandler, Handler, MessageHandler, Publishing
from notifyq.handlers.resources import Resources
from notifyq.handlers.retries import Backoff, Retries
from notifyq.handlers.signature import Signature, adapter
from notifyq.handlers.subscriber import MOST_MEMBERS, Subscriber
from notifyq.models.annotations import name
from notifyq.models.event import Event
from notifyq.queues.policy import Policy
from notifyq.streams.admin import StreamPolicy, as_position
from notifyq.streams.subscription import Batch

_MOST_BATCH, _MOST_ATTEMPTS, _MOST_AT_ONCE = 10_000, 1000, 10_000
_BACKOFF = timedelta(seconds=2)
_REST, _LONGEST_REST = 0.01, 60.0


class HandlerOptions(TypedDict, total=False):
    """Options of a handler; durations are timedeltas or seconds."""

    timeout: timedelta | float | None
    heartbeat: bool
    lock_duration: timedelta | float | None
    max_attempts: int | None
    backoff: Backoff | None
    backoff_max: timedelta | float | None
    transactional: bool
    executor: Literal["process"] | None
    validate: bool
    policy: Policy | None
    """More policy of the queue, for the worker that creates it."""


class SubscriberOptions(TypedDict, total=False):
    """Options of a subscriber; durations are timedeltas or seconds."""

    timeout: timedelta | float | None
    max_attempts: int
    backoff: Backoff | None
    backoff_max: timedelta | float | None
    transactional: bool
    validate: bool
    ordered: bool
    concurrency: int
    members: int
    quantity: int
    rest: timedelta | float
    position: str | int | datetime
    policy: StreamPolicy | None
    """The policy of the stream, for the worker that creates it."""


class _WithBatch(Resources):
    """Resources, and the batch that a subscriber handles."""

    def __init__(self, known: Resources) -> None:
        super().__init__()
        self._known = known

    def __contains__(self, kind: Any) -> bool:
        return kind is Batch or kind in self._known


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
    """Make a handler of a function, after checks of its options and signature."""
    text("queue", queue)
    if linger is not None and batch is None:
        raise ConfigurationError(f"{name(function)} gathers no batch: linger needs batch=…")
    _check_handler(function, batch, options)
    signature = Signature(
        function,
        resources,
        is_batch=batch is not None,
        has_transaction=options.get("transactional", False),
    )
    lock_duration = duration("lock_duration", options.get("lock_duration"))
    retries = Retries(options.get("backoff"), options.get("backoff_max"))
    return (MessageHandler if batch is None else BatchHandler)(
        queue=queue,
        policy=_policy(
            options.get("policy") or Policy(),
            lock_duration=lock_duration,
            max_attempts=options.get("max_attempts"),
            backoff=retries.base,
            backoff_max=retries.most,
        ),
        retries=retries,
        heartbeat=options.get("heartbeat", True),
        lock_duration=lock_duration,
        publisher=publisher,
        result=adapter(function, signature.result),
        process=_importable(function, signature) if options.get("executor") else None,
        batch=batch,
        linger=duration("linger", linger) or timedelta(),
        **_call_of(function, signature, options),
    )


def make_subscriber(
    stream: str,
    subscriber: str,
    function: Callable[..., Any],
    *,
    resources: Resources,
    publisher: Publishing,
    batch: int | None = None,
    **options: Unpack[SubscriberOptions],
) -> Subscriber[Any]:
    """Make a subscriber of a function, after checks of its options and signature."""
    text("stream", stream)
    text("subscriber", subscriber)
    _check_subscriber(function, batch, options)
    signature = Signature(
        function,
        resources if batch is None else _WithBatch(resources),
        is_batch=batch is not None,
        has_transaction=options.get("transactional", False),
        kind=Event,
    )
    backoff = options.get("backoff")
    return Subscriber(
        queue=stream,
        name=subscriber,
        policy=Policy(),
        retries=Retries(_BACKOFF if backoff is None else backoff, options.get("backoff_max")),
        heartbeat=False,
        lock_duration=None,
        publisher=publisher,
        result=None,
        process=None,
        batch=batch,
        linger=timedelta(),
        quantity=batch or options.get("quantity", 100),
        concurrency=options.get("concurrency", 1),
        ordered=options.get("ordered", False),
        members=options.get("members", 1),
        max_attempts=options.get("max_attempts", 5),
        rest=_rest(options),
        position=as_position(options.get("position", "last")),
        stream_policy=options.get("policy"),
        **_call_of(function, signature, options),
    )


def _call_of(
    function: Callable[..., Any], signature: Signature, options: HandlerOptions | SubscriberOptions
) -> dict[str, Any]:
    """The fields of a Handler that describe how its function is called."""
    return {
        "function": function,
        "timeout": duration("timeout", options.get("timeout")),
        "payload": adapter(function, signature.payload),
        "takes": tuple(signature.takes),
        "names": tuple(signature.names),
        "resources": tuple(signature.resources),
        "takes_payload": signature.takes_payload,
        "validate": options.get("validate", True),
        "is_async": inspect.iscoroutinefunction(function),
        "is_transactional": options.get("transactional", False),
        "takes_steps": signature.takes_steps,
    }


def _policy(given: Policy, **of_handler: Any) -> Policy:
    """The policy of a handler's queue: what is given, completed by the handler's options."""
    missing = {n: value for n, value in of_handler.items() if getattr(given, n) is None}
    return replace(given, **missing)


def _check_handler(
    function: Callable[..., Any], batch: int | None, options: HandlerOptions
) -> None:
    known_options("a handler", options, HandlerOptions.__annotations__)
    whole("batch", batch, _MOST_BATCH)
    whole("max_attempts", options.get("max_attempts"), _MOST_ATTEMPTS)
    _check_policy(options, Policy, "Policy(concurrency=5)")
    executor = options.get("executor")
    if executor not in {None, "process"}:
        raise ConfigurationError(f"executor must be 'process' or None, not {executor!r}")
    if executor and (inspect.iscoroutinefunction(function) or batch is not None):
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: only a sync function that takes one "
            "message can"
        )
    _check_transactional(function, options)


def _check_subscriber(
    function: Callable[..., Any], batch: int | None, options: SubscriberOptions
) -> None:
    known_options("a subscriber", options, SubscriberOptions.__annotations__)
    for option, most, value in (
        ("batch", _MOST_BATCH, batch),
        ("quantity", _MOST_BATCH, options.get("quantity")),
        ("max_attempts", _MOST_ATTEMPTS, options.get("max_attempts")),
        ("members", MOST_MEMBERS, options.get("members")),
        ("concurrency", _MOST_AT_ONCE, options.get("concurrency")),
    ):
        whole(option, value, most)
    _check_policy(options, StreamPolicy, "StreamPolicy(retention=3600)")
    is_concurrent = options.get("concurrency", 1) > 1
    if batch is not None and (is_concurrent or "quantity" in options):
        raise ConfigurationError(
            f"{name(function)} takes a batch at a time: leave concurrency and quantity out, "
            "or leave batch out and take one event"
        )
    if options.get("ordered") and options.get("members", 1) > 1:
        raise ConfigurationError(
            f"{name(function)} cannot be ordered with several members: they handle batches at "
            "the same time"
        )
    _check_transactional(function, options)
    if options.get("transactional") and is_concurrent:
        raise ConfigurationError(
            f"{name(function)} cannot be transactional with a concurrency: the events of a batch "
            "share one transaction. Use members for more transactions"
        )


def _check_policy(
    options: HandlerOptions | SubscriberOptions, kind: type[Policy | StreamPolicy], example: str
) -> None:
    policy = options.get("policy")
    if policy is not None and not isinstance(policy, kind):
        raise ConfigurationError(
            f"policy must be a notifyq.{kind.__name__}, as in {example}, not {policy!r}"
        )


def _check_transactional(
    function: Callable[..., Any], options: HandlerOptions | SubscriberOptions
) -> None:
    if options.get("transactional") and not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{name(function)} cannot be transactional: its connection belongs to the event loop, "
            "so it must be an async function"
        )


def _rest(options: SubscriberOptions) -> float:
    rest = positive(options.get("rest", _REST))
    if rest is None or rest.total_seconds() > _LONGEST_REST:
        raise ConfigurationError(
            f"rest must be between 0, which turns it off, and {_LONGEST_REST:g} seconds, "
            f"not {options.get('rest')!r}"
        )
    return rest.total_seconds()


def _importable(function: Callable[..., Any], signature: Signature) -> tuple[str, str]:
    """Module and name of a function, as a handler process imports it."""
    if signature.resources:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: a resource such as "
            f"{signature.resources[0][0]!r} cannot be passed there. Open what it needs in the "
            "function"
        )
    if "<" in function.__qualname__:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process, which cannot import it: define it at "
            "the top of a module"
        )
    return function.__module__, function.__qualname__
