"""Options of queues and streams, described once: for SQL, Python, commands and the dashboard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from typing import Any, TypeAlias

from notifyq.arguments import annotation, check_fields, plain
from notifyq.queues.payload_schema import schema_text

SqlType: TypeAlias = str
"""The name of an SQL type."""
_KINDS = {
    "timedelta | float": "duration",
    "int": "number",
    "bool": "flag",
    "SqlType": "type",
    "Schema": "schema",
}
"""The kind of an option by its annotation; one with choices is a choice."""
_NONE: dict[str, object] = {
    "duration": timedelta(0),
    "number": 0,
    "type": "-",
    "schema": True,
}
_CASTS = {"type": "::text::regtype", "schema": "::text::jsonb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a queue or a stream, for every interface that has it."""

    name: str
    kind: str
    """`duration`, `number`, `flag`, `choice`, `type` (an SQL type) or `schema` (a JSON Schema)."""
    help: str
    group: str
    none: str
    """What holds where the option has no value, as in `no limit`; empty: it always has one."""
    off: str
    """Of a flag, the name of its opposite."""
    period: str
    """Of a rate, the name of the option with its period."""
    default: str
    """What a new queue or stream has, as a command reads it; empty: see `none` and `off`."""
    choices: tuple[str, ...]
    least: int | None
    most: int | None

    @property
    def label(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ").capitalize()

    def described(self, none: str) -> str:
        """The help, with the word that stands for none in the interface of the user."""
        return f"{self.help[:-1]} ({none}: {self.none})." if self.none else self.help

    @property
    def none_value(self) -> object:
        """The value that stands for none; None itself means "leave it as it is"."""
        return _NONE[self.kind]


def option(
    help: str,
    group: str = "",
    *,
    none: str = "",
    off: str = "",
    period: str = "",
    default: str = "",
    choices: tuple[str, ...] = (),
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """Describe a field of a policy; see Option."""
    return field(default=None, metadata=locals())


@dataclass(frozen=True, slots=True)
class PolicyBase:
    """Base of the policies of queues and streams, whose fields are all made by option()."""

    def __post_init__(self) -> None:
        """Refuse a value of the wrong kind by the name of its field."""
        check_fields(self)

    def values(self) -> dict[str, Any]:
        """The value of each option as the database takes it."""
        values = plain(self)
        return values | {"payload_schema": schema_text(values["payload_schema"])}

    def args(self, without: Collection[str] = ()) -> tuple[object, ...]:
        """The arguments of a statement made by call(), after the name."""
        return tuple(value for name, value in self.values().items() if name not in without)


def options(policy: type[PolicyBase]) -> tuple[Option, ...]:
    """The options of a policy, in the order of its fields."""
    return tuple(Option(name=it.name, kind=_kind(it), **it.metadata) for it in fields(policy))


def _kind(option: Field[Any]) -> str:
    kind = "choice" if option.metadata["choices"] else _KINDS.get(annotation(option))
    if kind is None:
        raise TypeError(f"{option.name}: options have no kind for {annotation(option)}")
    return kind


def call(function: str, policy: type[PolicyBase], without: Collection[str] = ()) -> str:
    """The statement that calls a function with the name of a queue or stream and its policy."""
    given = [it for it in options(policy) if it.name not in without]
    named = [f"{it.name} => ${n}{_CASTS.get(it.kind, '')}" for n, it in enumerate(given, 2)]
    return f"select messages.{function}(name => $1, {', '.join(named)})"
