"""JSON Schemas of queues and streams, and checking payloads against them before sending."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError, PayloadError

if TYPE_CHECKING:
    from notifyq.database.pool import Database

_PATTERNS = frozenset({"pattern", "patternProperties"})


@runtime_checkable
class HasSchema(Protocol):
    """A class with a JSON Schema, such as a pydantic model."""

    def model_json_schema(self) -> dict[str, Any]:
        """The schema of its values."""


Schema: TypeAlias = Mapping[str, object] | bool | HasSchema
"""A JSON Schema, or a pydantic model."""


def schema_text(schema: Schema | None) -> str | None:
    """JSON text of a schema."""
    if schema is None:
        return None
    if isinstance(schema, HasSchema):
        schema = schema.model_json_schema()
    return json.dumps(schema)


class PayloadSchemas:
    """The schemas of a database, read when they are first needed.

    The database checks every payload too. Before a payload is refused here, the schema is read
    again. A schema with regular expressions, which are PostgreSQL's, is left to the database, and
    so is a schema that a queue got after it was read.
    """

    def __init__(self, database: Database) -> None:
        _library()
        self._database = database
        self._known: dict[str, Any] = {}

    async def check(self, queue: str, texts: list[str], *, before: int = 0) -> None:
        """Raise PayloadError for the first text that the schema of the queue refuses.

        Where there are several, or some `before`, the error has the position, counted from 1.
        """
        if queue not in self._known:
            await self._read(queue)
        if _first_refused(self._known[queue], texts) is None:
            return
        await self._read(queue)
        refused = _first_refused(self._known[queue], texts)
        if refused is None:
            return
        position, reason = refused
        which = f" at position {before + position}" if before or len(texts) > 1 else ""
        raise PayloadError(f"{queue!r} does not take the message{which}: {reason}")

    async def _read(self, queue: str) -> None:
        text = await self._database.value(sql.PAYLOAD_SCHEMA, queue)
        schema = None if text is None else _decode(text)
        checks = schema is not None and not _uses(schema, _PATTERNS)
        self._known[queue] = _library()(schema) if checks else None


def _first_refused(validator: Any, texts: Iterable[str]) -> tuple[int, str] | None:
    if validator is None:
        return None
    for position, text in enumerate(texts, 1):
        try:
            error = next(validator.iter_errors(_decode(text)), None)
        except (ValueError, RecursionError):
            return None  # no JSON, or too deep: the database reports it
        if error is not None:
            return position, f"{error.json_path}: {error.message[:200]}"
    return None


def _decode(text: str) -> Any:
    # As numeric in PostgreSQL: 0.3 is a multiple of 0.1.
    return json.loads(text, parse_float=Decimal)


def _uses(schema: Any, keywords: frozenset[str]) -> bool:
    if isinstance(schema, dict):
        return any(key in keywords or _uses(part, keywords) for key, part in schema.items())
    return isinstance(schema, list) and any(_uses(part, keywords) for part in schema)


@cache
def _library() -> Any:
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend
    except ImportError:
        raise ConfigurationError(
            "check_payloads needs one more package: pip install 'notifyq[schema]'"
        ) from None

    def is_integer(_: Any, value: Any) -> bool:
        is_whole = isinstance(value, Decimal) and value == value.to_integral_value()
        return is_whole or (isinstance(value, int) and not isinstance(value, bool))

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    return extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
