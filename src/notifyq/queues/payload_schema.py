"""JSON Schemas of queues and streams: as they are given, and checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from notifyq.database import sql
from notifyq.errors import ConfigurationError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.database.pool import Database

_PATTERNS = frozenset({"pattern", "patternProperties"})


@runtime_checkable
class HasSchema(Protocol):
    """A class with a JSON Schema, as pydantic's models are."""

    def model_json_schema(self) -> dict[str, Any]:
        """The schema of its values."""


Schema: TypeAlias = Mapping[str, object] | bool | HasSchema
"""A JSON Schema, or a pydantic model that has one."""


def schema_text(schema: Schema | None) -> str | None:
    """JSON text of a schema."""
    if schema is None:
        return None
    if isinstance(schema, HasSchema):
        schema = schema.model_json_schema()
    return json.dumps(schema)


class PayloadSchemas:
    """The schemas of a database, read when they are first needed.

    The database checks in any case. What is refused here is refused by the schema that the queue
    has now: it is read again before. A schema with regular expressions, which are PostgreSQL's, is
    left to the database, and so is a queue that has got its schema since it was first asked for.
    """

    def __init__(self, database: Database) -> None:
        _library()
        self._database = database
        self._known: dict[str, Any] = {}

    async def check(self, queue: str, texts: list[str], *, before: int = 0) -> None:
        """Raise PayloadError for the first text that the schema of the queue refuses.

        Where there are several, or some `before`, the error says which, counted from 1.
        """
        if queue not in self._known:
            await self._read(queue)
        if _first_refused(self._known[queue], texts) is None:
            return
        await self._read(queue)
        refused = _first_refused(self._known[queue], texts)
        if refused is None:
            return
        place, reason = refused
        which = f" at position {before + place}" if before or len(texts) > 1 else ""
        raise PayloadError(f"{queue!r} does not take the message{which}: {reason}")

    async def _read(self, queue: str) -> None:
        text = await self._database.value(sql.PAYLOAD_SCHEMA, queue)
        schema = None if text is None else _decode(text)
        is_ours = schema is not None and not _uses(schema, _PATTERNS)
        self._known[queue] = _library()(schema) if is_ours else None


def _first_refused(validator: Any, texts: Iterable[str]) -> tuple[int, str] | None:
    if validator is None:
        return None
    for place, text in enumerate(texts, 1):
        try:
            error = next(validator.iter_errors(_decode(text)), None)
        except (ValueError, RecursionError):
            return None  # no JSON, or too deep: the database says so in its words
        if error is not None:
            return place, f"{error.json_path}: {error.message[:200]}"
    return None


def _decode(text: str) -> Any:
    # As PostgreSQL has them: 0.1 is a tenth, and of 0.3 a multiple.
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
            "to check payloads here needs one more package: pip install 'notifyq[schema]'"
        ) from None

    def is_integer(_: Any, value: Any) -> bool:
        is_whole = isinstance(value, Decimal) and value == value.to_integral_value()
        return is_whole or (isinstance(value, int) and not isinstance(value, bool))

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    return extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
