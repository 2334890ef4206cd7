"""Arrow values as exact JSON text: decimals keep their digits, and NaN is an error."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    Encode = Callable[[Any], str]

_text = json.JSONEncoder(ensure_ascii=False).encode


def encoder(kind: pa.DataType) -> Encode:
    """Return the function that writes a Python value of an Arrow type as JSON; null is `null`."""
    return _nullable(_encode(kind))


def texts(column: Any, *, is_variant: bool = False) -> pa.Array:
    """Return a column as JSON text; null stays null."""
    encode = _variant if is_variant else _encode(column.type)
    return pa.array(
        [None if value is None else encode(value) for value in column.to_pylist()], pa.string()
    )


def _nullable(encode: Encode) -> Encode:
    return lambda value: "null" if value is None else encode(value)


def _encode(kind: pa.DataType) -> Encode:
    for is_kind, encode in _LEAVES:
        if is_kind(kind):
            return encode
    if types.is_dictionary(kind):
        return _encode(kind.value_type)
    if types.is_struct(kind):
        fields = [(field.name, _text(field.name), encoder(field.type)) for field in kind]
        return lambda value: (
            "{" + ",".join(f"{text}:{encode(value[name])}" for name, text, encode in fields) + "}"
        )
    if types.is_map(kind):
        item = encoder(kind.item_type)
        return lambda value: (
            "{" + ",".join(f"{_text(str(k))}:{item(v)}" for k, v in dict(value).items()) + "}"
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        each = encoder(kind.value_type)
        return lambda value: "[" + ",".join(map(each, value)) + "]"
    raise ConfigurationError(f"values of type {kind} cannot be JSON: convert them before")


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number in JSON")
    return repr(value)


def _variant(value: Any) -> str:
    from pyspark.sql.types import VariantVal

    if not isinstance(value, VariantVal):
        value = VariantVal(value["value"], value["metadata"])
    text: str = value.toJson()
    return text


def _moment(value: Any) -> str:
    return f'"{value.isoformat()}"'


_LEAVES: Sequence[tuple[Callable[[pa.DataType], bool], Encode]] = (
    (lambda kind: types.is_string(kind) or types.is_large_string(kind), _text),
    (types.is_boolean, lambda value: "true" if value else "false"),
    (types.is_integer, str),
    (types.is_floating, _float),
    (types.is_decimal, lambda value: format(value, "f")),
    (types.is_null, lambda _: "null"),
    (types.is_duration, lambda value: _float(value.total_seconds())),
    (lambda kind: types.is_temporal(kind) and not types.is_duration(kind), _moment),
    (
        lambda kind: (
            types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        ),
        lambda value: f'"{base64.b64encode(value).decode()}"',
    ),
)
