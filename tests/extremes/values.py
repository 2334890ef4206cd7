"""The ends of types, as PostgreSQL writes them."""

from __future__ import annotations

INTS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}

INSTANTS = (
    "-infinity",
    "infinity",
    "4713-01-01 00:00:00+00 BC",
    "0044-03-15 00:00:00+00 BC",
    "0001-12-31 23:59:59+00 BC",
    "0001-01-01 00:00:00+00",
    "9999-12-31 23:59:59.999999+00",
    "10000-01-01 00:00:00+00",
    "294276-12-31 23:59:59.999999+00",
)

DURATIONS = (
    "0",
    "-1 second",
    "1 microsecond",
    "1000 years",
    "300000 years",
    "178956970 years",
    "-178956970 years",
    "2147483647 days",
    "2562047788 hours",
    "-2562047788 hours",
    # Less than a year in all, as PostgreSQL compares it, but no instant can be moved by it.
    "71000000 months -2129999999 days",
    "106751990 days -2562047760 hours",
    "-106751990 days 2562047760 hours",
)

ODD_TEXTS = (
    "",
    " ",
    "\n\t\r",
    "\x01\x1b[31m\x7f",
    "\u202e\u0301\ufeff\ufffe\U0001f9ff\U0010ffff",
    "';--<script>{{7*7}}%s%(a)s[bold]",
    "y" * 100_000,
)

ODD_JSON = (
    "null",
    '"' + r"\ud83e\uddff\u001b" + '"',
    "-0.0",
    "1e400",
    "1" * 5000,
    "1e-16000",
    "[" * 1500 + "]" * 1500,
    '{"a":' * 1500 + "1" + "}" * 1500,
    '{"": {"": []}, "\\ufffe": "\\u202e"}',
    '"' + "z" * 200_000 + '"',
)

FLOATS = ("NaN", "Infinity", "-Infinity", "1.7976931348623157e308", "-1e308", "5e-324", "0")


_ENDS: dict[str, tuple[str, ...]] = {
    **{name: tuple(str(it) for it in (-most, -1, 0, 1, most - 1)) for name, most in INTS.items()},
    "timestamptz": INSTANTS,
    "date": ("-infinity", "infinity", "4713-01-01 BC", "0001-01-01", "9999-12-31", "20000-1-1"),
    "interval": DURATIONS,
    "float4": FLOATS,
    "float8": FLOATS,
    "numeric": ("NaN", "Infinity", "-Infinity", "1e131071", "-1e-16383", "0"),
    "text": ODD_TEXTS,
    "jsonb": ODD_JSON,
    "bool": ("true", "false"),
    "xid8": ("0", str(2**64 - 1)),
    "_text": ("{}", "{NULL}", '{""}', "{{a,b},{c,d}}"),
    "_int4": ("{}", "{NULL}", "{-1}"),
    "_int8": ("{}", "{NULL}", "{-1}"),
}


def of(type_: str) -> tuple[str, ...]:
    """The ends of a type by its name in pg_type; none for one that has only a few values."""
    return _ENDS.get(type_, ())
