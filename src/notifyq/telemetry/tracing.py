"""Spans of OpenTelemetry: one for each publish, one for each handling, tied by the headers.

A message carries the W3C trace context of its publish in `traceparent` and `tracestate`. Anybody
may write headers: what is there is never trusted to be well-formed.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.telemetry.tracebacks import text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from opentelemetry.trace import Span, TracerProvider

_HEADERS = ("traceparent", "tracestate")


class Tracing:
    """Makes the spans of an App, of the provider that is given, else of the global one.

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
        """Make a span, and have it carried in the headers; `quantity` is that of a batch."""
        attributes = self._attributes(queue, "send", quantity)
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(
            f"send {queue}",
            kind=kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            headers = options.get("headers") or {}
            if "traceparent" not in headers:  # else the caller has one to hand on
                options["headers"] = {**headers, **self.carried()} or None
            with self._judged(span):
                yield span

    @contextmanager
    def handling(self, handler: Any, given: Any) -> Iterator[None]:
        """Make a span around the call of a handler for a message, an event, or a batch of them.

        That of a single one belongs to the trace of its publish; a batch is linked to each.
        """
        batch = given if isinstance(given, list) else [given]
        context, links = None, []
        for it in batch:
            found = self._extract(it.headers)
            span_context = self._trace.get_current_span(found).get_span_context()
            if span_context.is_valid:
                links.append(self._trace.Link(span_context))
                context = found
        attributes = self._attributes(
            handler.queue, "process", len(batch) if isinstance(given, list) else None
        )
        if not isinstance(given, list):
            attributes["messaging.message.id"] = str(given.id)
            attributes["notifyq.message.attempts"] = given.attempts
        if (subscription := getattr(handler, "subscription", None)) is not None:
            attributes["messaging.destination.subscription.name"] = subscription[1]
            attributes["messaging.consumer.group.name"] = subscription[1]
        with (
            self._tracer.start_as_current_span(
                f"process {handler.queue}",
                context=None if isinstance(given, list) else context,
                kind=self._trace.SpanKind.CONSUMER,
                attributes=attributes,
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            self._judged(span),
        ):
            yield

    def carried(self) -> dict[str, str]:
        """Give the trace context of the current span, as headers have it."""
        carried: dict[str, str] = {}
        self._propagator.inject(carried)
        return carried

    def around(
        self, handler: Any, given: Any, call: Callable[[], Awaitable[Any]]
    ) -> Callable[[], Awaitable[Any]]:
        """Make a call that runs another one within a span."""

        async def traced() -> Any:
            with self.handling(handler, given):
                return await call()

        return traced

    def middleware(self, handler: Any) -> Callable[..., Awaitable[Any]]:
        """Make a middleware of the spans of a handler that takes single messages."""

        async def run(message: Any, call: Callable[[], Awaitable[Any]]) -> Any:
            return await self.around(handler, message, call)()

        return run

    def _extract(self, headers: Any) -> Any:
        found = {
            name: value
            for name in _HEADERS
            if isinstance(headers, dict) and isinstance(value := headers.get(name), str)
        }
        # Not that of whoever claims: this process may be in a span of its own.
        return self._propagator.extract(found, context=self._empty())

    @staticmethod
    def _empty() -> Any:
        from opentelemetry.context import Context

        return Context()

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
    def _judged(self, span: Span) -> Iterator[None]:
        """Write down in the span what is raised."""
        try:
            yield
        except BaseException as error:
            outcome = getattr(error, "outcome", None)
            failed = partial(self._trace.Status, self._trace.StatusCode.ERROR)
            if outcome is not None:  # of a process, which has told what went wrong in words
                span.set_attribute("error.type", type(outcome).__name__.lower())
                span.set_status(
                    failed(getattr(outcome, "details", getattr(outcome, "reason", None)))
                )
            else:
                span.set_attribute("error.type", type(error).__qualname__)
                span.record_exception(error)
                text = f"{type(error).__name__}: {text_of(error)}"
                span.set_status(failed(text.removesuffix(": ")))
            raise


@contextmanager
def continued(carried: dict[str, str]) -> Iterator[None]:
    """Make what happens within this process belong to a span of another one; none, if empty."""
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
    """Make what `App(tracing=…)` says: true, a provider, or neither."""
    if given is None or given is False:
        return None
    return Tracing(None if given is True else given)
