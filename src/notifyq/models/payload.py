"""Payloads: values as JSON text, and checking JSON text for PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json

from notifyq.errors import ConfigurationError

# Limits of numeric, before and after the point.
_MOST_DIGITS = 131_072
_MOST_DECIMALS = 16_383

_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


SEALED = '{"$encrypted": {'
"""How each envelope begins, as notifyq and PostgreSQL write it."""
_SEALED_BY = re.compile(r'"key": "([A-Za-z0-9._-]{1,100})"')


def is_sealed(text: str) -> bool:
    """Whether this is an envelope."""
    return text.startswith(SEALED)


def without_envelope(text: str) -> str:
    """What lists show of a text: of an envelope, also of its beginning, the id of its key."""
    if not is_sealed(text):
        return text
    key = _SEALED_BY.search(text)
    return "encrypted" if key is None else f"encrypted with {key[1]}"


class Json(str):
    """A payload that is JSON text already, published as it is."""

    __slots__ = ()


def encode(payload: Any) -> str:
    """JSON text of a payload: plain data, dataclasses, pydantic models, dates, UUIDs, enums."""
    if isinstance(payload, Json):
        return payload
    try:
        return to_json(payload, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload cannot be written as JSON: {error}") from error


def json_line(fields: Mapping[str, Any], *raw: str) -> str:
    """Fields as one line of JSON; those of the names in `raw` are JSON text, and stay as they are.

    Decoded and encoded again, payloads might lose digits, or not be decoded at all.
    """
    texts = {name: it if name in raw and it else json_text(it) for name, it in fields.items()}
    line = ",".join(f'"{name}":{text}' for name, text in texts.items())
    # A decrypted payload has the line ends that its publisher wrote between the values.
    return f"{{{line}}}".replace("\n", " ").replace("\r", " ")


def json_text(value: Any) -> str:
    """JSON for programs that read what notifyq prints: what JSON lacks becomes text or null."""
    return to_json(value, timedelta_mode="float", inf_nan_mode="null", fallback=str).decode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def check_json(text: str) -> None:
    """Raise ValueError with the reason for a text that PostgreSQL refuses as jsonb."""
    try:
        _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if "\\u" not in text:
        return
    # Without escaped backslashes, each remaining backslash begins an escape.
    escapes = text.replace("\\\\", "--")
    if "\\u0000" in escapes:
        raise ValueError("it has the character \\u0000, which PostgreSQL cannot store")
    if lone := _LONE_SURROGATE.search(escapes):
        raise ValueError(f"it has {lone.group()}, which is half a character")


def _check_size(number: str) -> None:
    mantissa, _, exponent = number.lower().partition("e")
    if not exponent and len(number) <= _MOST_DECIMALS:
        return
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent[:12] or 0)
    decimals = len(fraction) - shift
    significant = (whole + fraction).lstrip("-0")
    if decimals > _MOST_DECIMALS or (significant and len(significant) - decimals > _MOST_DIGITS):
        raise ValueError(f"the number {number[:20]} has more digits than PostgreSQL can store")


# Made once, as this takes longer than decoding a short text. Numbers are only checked.
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_check_size, parse_float=_check_size)
