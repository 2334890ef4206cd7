"""Hides parts of payloads on screens: the values of some keys, or all of them."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from notifyq.models.message import ArchivedMessage, Message

R = TypeVar("R", bound=Message | ArchivedMessage)

HIDDEN = "•••"
"""Shown instead of a value."""
_LITERAL = re.compile(
    r"""
    \b[eE]'(?:[^'\\]|\\.|'')*(?:'|\\?\Z) | '(?:[^']|'')*(?:'|\Z)
    | \$(\w*)\$.*?(?:\$\1\$|\Z) | (?<![\w$.])\d[\d.]*\b
    """,
    re.DOTALL | re.VERBOSE,
)
_KIND = re.compile(r"[^\W\d][\w.]{0,199}:")
"""The class of an error, before its text."""
_SHORTEST = 3
"""Shorter hidden values are not searched in other texts: they would match everywhere."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Patterns of keys, `password` or `*.token`, whose values are hidden at any depth.

    A pattern without a dot matches a key anywhere. A pattern with dots is compared with the whole
    path from the top, `user.card.number`; `*` matches any part of it.
    """

    patterns: tuple[str, ...] = ()
    all_payloads: bool = False

    @classmethod
    def parse(cls, text: str | None, *, all_payloads: bool = False) -> Masks:
        """Read patterns separated by commas."""
        parts = (part.strip().lower() for part in (text or "").split(","))
        return cls(tuple(part for part in parts if part), all_payloads)

    @property
    def are_none(self) -> bool:
        """Whether nothing is hidden."""
        return not self.patterns and not self.all_payloads

    def value(self, value: Any) -> Any:
        """A decoded value with hidden parts replaced."""
        return HIDDEN if self.all_payloads else self._walk(value, ())

    def text(self, text: str | None, *, indent: int | None = 2) -> str | None:
        """JSON text of PostgreSQL with hidden parts replaced."""
        if text is None:
            return None
        if self.all_payloads:
            return json.dumps(HIDDEN, ensure_ascii=False)
        # Python would round some numbers and refuse others: they are kept as they were written.
        numbers: list[str] = []
        mark = secrets.token_hex(8)

        def keep(number: str) -> str:
            numbers.append(number)
            return f"{mark}{len(numbers) - 1}"

        try:
            value = json.loads(text, parse_float=keep, parse_int=keep)
            written = json.dumps(self._walk(value, ()), ensure_ascii=False, indent=indent)
            return re.sub(f'"{mark}(\\d+)"', lambda found: numbers[int(found[1])], written)
        except (RecursionError, ValueError):
            # Too deep for Python to search: all of it is hidden if anything may have to be.
            return text if self.are_none else json.dumps(HIDDEN, ensure_ascii=False)

    def _walk(self, value: Any, path: tuple[str, ...]) -> Any:
        match value:
            case dict():
                paths = {key: (*path, key.lower()) for key in value}
                return {
                    key: HIDDEN if self.hides(paths[key]) else self._walk(it, paths[key])
                    for key, it in value.items()
                }
            case list():
                return [self._walk(it, path) for it in value]
            case _:
                return value

    def hides(self, path: tuple[str, ...]) -> bool:
        """Whether the value at this path, of keys in lower case, is hidden."""
        whole = ".".join(path)
        return (
            self.all_payloads
            or any(
                fnmatchcase(whole if "." in pattern else path[-1], pattern)
                # `*.token` also matches a token at the top.
                or (pattern.startswith("*.") and fnmatchcase(whole, pattern[2:]))
                for pattern in self.patterns
            )
        )


_ALL = Masks(all_payloads=True)


def hide(row: R, masks: Masks) -> R:
    """A message with the hidden parts of payload, headers, result and error replaced."""
    if masks.are_none:
        return row
    changes: dict[str, Any] = {
        "message": masks.text(row.message, indent=None),
        "headers": masks.value(row.headers),
        "details": redacted(row.details, masks, *documents_of(row)),
    }
    if isinstance(row, ArchivedMessage):
        changes["result"] = masks.text(row.result, indent=None)
    return replace(row, **changes)


def documents_of(row: Message | ArchivedMessage) -> tuple[str, str]:
    """The JSON texts of a message whose values an error may quote."""
    return row.message, json.dumps(row.headers, default=str)


def redacted(text: str | None, masks: Masks, *documents: str | None) -> str | None:
    """An error or a traceback without the values that are hidden in these JSON texts."""
    if text is None or masks.are_none:
        return text
    if any(it is None for it in documents):
        # The hidden values are unknown here: only the kind of the error is safe to show.
        kind = _KIND.match(text)
        return HIDDEN if kind is None else f"{kind[0]} {HIDDEN}"
    hidden: set[str] = set()
    try:
        for document in documents:
            read = json.loads(document or "null", parse_float=str, parse_int=str)
            _gather(read, masks, (), hidden)
    except (RecursionError, ValueError):
        return redacted(text, masks, None)
    for value in sorted(hidden, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def redacted_statement(text: str | None, masks: Masks) -> str | None:
    """An SQL statement without its literals if anything is hidden: each may be a payload.

    The text may end within a literal.
    """
    return text if text is None or masks.are_none else _LITERAL.sub(HIDDEN, text)


def _gather(value: Any, masks: Masks, path: tuple[str, ...], into: set[str]) -> None:
    """Collect the hidden values as texts, also in the notations of JSON and Python."""
    match value:
        case dict():
            for key, it in value.items():
                deeper = (*path, key.lower())
                _gather(it, _ALL if masks.hides(deeper) else masks, deeper, into)
        case list():
            for it in value:
                _gather(it, masks, path, into)
        case str() if masks.all_payloads:
            forms = {value, json.dumps(value)[1:-1], repr(value)[1:-1]}
            into |= {form for form in forms if len(form) >= _SHORTEST}
        case _:
            pass
