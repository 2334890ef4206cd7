"""The signature of a handler: what its parameters receive, and what it returns."""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from notifyq.durable.steps import Steps
from notifyq.errors import ConfigurationError
from notifyq.handlers.resources import Resources
from notifyq.models.annotations import hints, name
from notifyq.models.event import Event
from notifyq.models.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Transaction: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Transaction = asyncpg.Connection

_CONNECTIONS = (asyncpg.Connection, PoolConnectionProxy)
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection)
_UNIONS = (typing.Union, types.UnionType)


class Signature:
    """The parameters of a handler; with `is_batch` it takes lists and returns a list."""

    def __init__(
        self,
        function: Callable[..., Any],
        known: Resources,
        *,
        is_batch: bool,
        has_transaction: bool,
        kind: type[Message] | type[Event] = Message,
    ) -> None:
        """Read the signature; `kind` is the class of the messages that the function handles."""
        self._function = function
        self._kind = kind
        self._known = known
        self._is_batch = is_batch
        self._has_transaction = has_transaction
        self.hints = hints(function)
        # See the fields of Handler.
        self.takes: list[str] = []
        self.names: list[tuple[str, str]] = []
        self.resources: list[tuple[str, Any]] = []
        self.payload: Any = Any
        self.takes_payload = False
        # After a parameter that keeps its default or gets a resource, the others need their names.
        self._is_by_name = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                self._is_by_name |= parameter.kind is parameter.KEYWORD_ONLY
                if not self._add(parameter):
                    raise ConfigurationError(
                        f"{name(function)} cannot be a handler: it may take the payload, a "
                        f"notifyq.{kind.__name__}, and resources that are registered before it, "
                        f"but parameter {parameter.name!r} has no value"
                    )
        if has_transaction and "transaction" not in [
            *self.takes,
            *(slot for _, slot in self.names),
        ]:
            raise ConfigurationError(
                f"{name(function)} takes no transaction: annotate a parameter with "
                "notifyq.Transaction, or omit transactional"
            )

    @property
    def takes_steps(self) -> bool:
        """Whether a parameter receives the recorded steps of the message."""
        return "steps" in self.takes or any(slot == "steps" for _, slot in self.names)

    @property
    def result(self) -> Any:
        """The annotation of the result of one message."""
        given = self.hints.get("return", Any)
        return _each_of(given) if self._is_batch else given

    def _add(self, parameter: inspect.Parameter) -> bool:
        hint = self.hints.get(parameter.name)
        slot = self._slot(hint)
        if slot is not None:
            pass
        elif hint in self._known:
            self.resources.append((parameter.name, hint))
            self._is_by_name = True
            return parameter.kind is not parameter.POSITIONAL_ONLY
        elif not self.takes_payload and parameter.kind is not parameter.KEYWORD_ONLY:
            slot = "payload"
            self.takes_payload = True
            self.payload = self._payload(parameter, hint)
        else:
            self._is_by_name = True
            return parameter.default is not parameter.empty
        if not self._is_by_name:
            self.takes.append(slot)
            return True
        self.names.append((parameter.name, slot))
        return parameter.kind is not parameter.POSITIONAL_ONLY

    def _slot(self, hint: Any) -> str | None:
        kind = self._kind
        if hint is kind and self._is_batch:
            raise ConfigurationError(
                f"{name(self._function)} takes many {kind.__name__.lower()}s at once: annotate the "
                f"parameter with list[notifyq.{kind.__name__}]"
            )
        if hint is kind or (self._is_batch and _element(hint) is kind):
            return "message"
        if hint is Steps:
            if self._is_batch or self._has_transaction or kind is not Message:
                raise ConfigurationError(
                    f"{name(self._function)} cannot take notifyq.Steps: only a handler of one "
                    "message can, without batch=… and transactional=True"
                )
            if not inspect.iscoroutinefunction(self._function):
                raise ConfigurationError(
                    f"{name(self._function)} cannot take notifyq.Steps: it must be async"
                )
            return "steps"
        if hint in _CONNECTIONS and (self._has_transaction or hint not in self._known):
            if not self._has_transaction:
                raise ConfigurationError(
                    f"{name(self._function)} takes a transaction: register it with "
                    "transactional=True"
                )
            return "transaction"
        return None

    def _payload(self, parameter: inspect.Parameter, hint: Any) -> Any:
        if hint is None or hint is Any:
            return Any
        if not self._is_batch:
            return hint
        if (element := _element(hint)) is None:
            raise ConfigurationError(
                f"{name(self._function)} takes many messages at once: annotate "
                f"{parameter.name!r} with a list, as list[{_text(hint)}]"
            )
        return element


def adapter(function: Callable[..., Any], annotation: Any) -> TypeAdapter[Any] | None:
    """The pydantic adapter of an annotation; None where it is Any or object."""
    if annotation is Any or annotation is object:
        return None
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigurationError(
            f"{name(function)}: pydantic cannot validate {annotation!r}: {error}"
        ) from error


def _element(hint: Any) -> Any:
    """The item type of a list; None for any other type."""
    if hint in _LISTS:
        return Any
    if typing.get_origin(hint) in _LISTS:
        return typing.get_args(hint)[0]
    return None


def _each_of(hint: Any) -> Any:
    """The result type of one message of a batch, without the errors that are outcomes."""
    for option in _options(hint):
        if (element := _element(option)) is not None:
            results = tuple(each for each in _options(element) if not _is_error(each))
            return typing.Union[results] if results else Any  # noqa: UP007  a tuple of types
    return Any


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)


def _is_error(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseException)


def _text(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
