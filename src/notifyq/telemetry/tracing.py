"""OpenTelemetry spans: one for each publish and one for each handler call, linked by headers.

A message carries the W3C trace context of its publish in `traceparent` and `tracestate`. Any
publisher may write headers, so they may be malformed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.telemetry.tracebacks import text_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_HEADERS = ("traceparent", "tracestate")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The form of `traceparent`; its group is the trace id."""


def trace_id_of(headers: Mapping[str, Any]) -> str | None:
    """The trace id that headers carry, in 32 hexadecimal digits."""
    carried = headers.get("traceparent")
    found = TRACEPARENT.fullmatch(carried) if isinstance(carried, str) else None
    return None if found is None else found[1]


class Tracing:
    """Makes the spans of an App; without a provider, those of the global one.

    Raises ConfigurationError where OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigurationError(
                "App(tracing=…) needs OpenTelemetry: pip install 'notifyq[otel]'"
            ) from None
        if provider is not None and not isinstance(provider, trace.TracerProvider):
            raise ConfigurationError(
                f"App(tracing=…) takes True or a TracerProvider of OpenTelemetry, not {provider!r}"
            )
        self._trace = trace
        self._tracer = trace.get_tracer("notifyq", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def publishing(
        self, queue: str, options: dict[str, Any], quantity: int | None = None
    ) -> Iterator[Span]:
        """Make a span and put its context into the headers; `quantity` is that of a batch."""
        attributes = self._attributes(queue, "send", quantity)
        kind = self._trace.SpanKind.PRODUCER
        with self._span(f"send {queue}", kind=kind, attributes=attributes) as span:
            headers = options.get("headers") or {}
            if "traceparent" not in headers:  # else the caller passes on another trace
                options["headers"] = {**headers, **self.carried()} or None
            yield span

    @contextmanager
    def handling(self, handler: Any, given: Any) -> Iterator[None]:
        """Make a span around a handler call for a message, an event, or a batch of them.

        A single message continues the trace of its publish; a batch is linked to each of them.
        """
        is_batch = isinstance(given, list)
        batch = given if is_batch else [given]
        context, links = None, []
        for it in batch:
            found = self._extract(it.headers)
            span_context = self._trace.get_current_span(found).get_span_context()
            if span_context.is_valid:
                links.append(self._trace.Link(span_context))
                context = found
        attributes = self._attributes(handler.queue, "process", len(batch) if is_batch else None)
        if not is_batch:
            attributes["messaging.message.id"] = str(given.id)
            attributes["notifyq.message.attempts"] = given.attempts
        if (subscription := getattr(handler, "subscription", None)) is not None:
            attributes["messaging.destination.subscription.name"] = subscription[1]
            attributes["messaging.consumer.group.name"] = subscription[1]
        with self._span(
            f"process {handler.queue}",
            context=None if is_batch else context,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ):
            yield

    @contextmanager
    def step(self, queue: str, message_id: int, step: str) -> Iterator[Span]:
        """Make a span around a step that is done now; recorded ones have none."""
        attributes = self._attributes(queue, "process", None)
        attributes |= {"messaging.message.id": str(message_id), "notifyq.step.name": step}
        # Without the number of a loop: backends group spans by name.
        with self._span(f"step {step.partition('#')[0]}", attributes=attributes) as span:
            yield span

    def decided(self, step: str, kind: str, state: str) -> None:
        """Add an event to the current span: what came of a sleep or a wait."""
        attributes = {"notifyq.step.name": step, "notifyq.step.kind": kind}
        self._trace.get_current_span().add_event(state.replace("_", " "), attributes)

    def carried(self) -> dict[str, str]:
        """Return the trace context of the current span as headers."""
        carried: dict[str, str] = {}
        self._propagator.inject(carried)
        return carried

    def around(
        self, handler: Any, given: Any, call: Callable[[], Awaitable[Any]]
    ) -> Callable[[], Awaitable[Any]]:
        """Return a call that runs `call` within a span."""

        async def traced() -> Any:
            with self.handling(handler, given):
                return await call()

        return traced

    def middleware(self, handler: Any) -> Callable[..., Awaitable[Any]]:
        """Return a middleware that makes a span for each call of a handler of single messages."""

        async def run(message: Any, call: Callable[[], Awaitable[Any]]) -> Any:
            return await self.around(handler, message, call)()

        return run

    def _extract(self, headers: Any) -> Any:
        found = {
            name: value
            for name in _HEADERS
            if isinstance(headers, dict) and isinstance(value := headers.get(name), str)
        }
        # An empty context: the current one may be a span of this process.
        from opentelemetry.context import Context

        return self._propagator.extract(found, context=Context())

    @staticmethod
    def _attributes(queue: str, operation: str, quantity: int | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.system": "notifyq",
            "messaging.destination.name": queue,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }
        if quantity is not None:
            attributes["messaging.batch.message_count"] = quantity
        return attributes

    @contextmanager
    def _span(self, name: str, **options: Any) -> Iterator[Span]:
        """Make the current span and record in it what is raised."""
        options |= {"record_exception": False, "set_status_on_exception": False}
        with self._tracer.start_as_current_span(name, **options) as span:
            try:
                yield span
            except BaseException as error:
                if getattr(type(error), "ends_well", False):  # parked: an event of the span
                    raise
                outcome = vars(error).get("outcome")
                if outcome is not None:  # of a handler process: it sends a text, no exception
                    kind = type(outcome).__name__.lower()
                    text = getattr(outcome, "details", getattr(outcome, "reason", None))
                else:
                    kind = type(error).__qualname__
                    text = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
                    span.record_exception(error)
                span.set_attribute("error.type", kind)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))
                raise


@contextmanager
def continued(carried: dict[str, str]) -> Iterator[None]:
    """Continue a span of another process here; with an empty dict do nothing."""
    if not carried:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(carried))
    try:
        yield
    finally:
        context.detach(token)


def make_tracing(given: Any) -> Tracing | None:
    """Build what `App(tracing=…)` requests: True, a provider, or neither."""
    if given is None or given is False:
        return None
    return Tracing(None if given is True else given)
