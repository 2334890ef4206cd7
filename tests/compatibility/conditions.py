"""Conditions of Q4M over two integer columns, as the JSON paths that replace them, and in Python.

The third column is the reference: written by hand, as Q4M's parser reads the first.
"""

from __future__ import annotations

CONDITIONS = [
    # Comparisons.
    ("a = 1", "$.a == 1", "a == 1"),
    ("a != 1", "$.a != 1", "a != 1"),
    ("a < 1", "$.a < 1", "a < 1"),
    ("a <= 1", "$.a <= 1", "a <= 1"),
    ("a > 1", "$.a > 1", "a > 1"),
    ("a >= 1", "$.a >= 1", "a >= 1"),
    ("a = b", "$.a == $.b", "a == b"),
    ("a < b", "$.a < $.b", "a < b"),
    ("1 < a", "1 < $.a", "1 < a"),
    # Arithmetic; C divides towards zero.
    ("a + b = 2", "$.a + $.b == 2", "a + b == 2"),
    ("a - b > 1", "$.a - $.b > 1", "a - b > 1"),
    ("a * b = 2", "$.a * $.b == 2", "a * b == 2"),
    ("a * b + 1 = 3", "$.a * $.b + 1 == 3", "a * b + 1 == 3"),
    ("a * (b + 1) = 3", "$.a * ($.b + 1) == 3", "a * (b + 1) == 3"),
    ("-a = 2", "-$.a == 2", "-a == 2"),
    ("a - -b = 0", "$.a - -$.b == 0", "a - -b == 0"),
    ("a div 2 = 1", "($.a / 2).abs().floor() == 1 && $.a >= 0", "div(a, 2) == 1"),
    ("a div b = 1", "($.a - $.a % $.b) / $.b == 1", "b != 0 and div(a, b) == 1"),
    ("a % 2 = 1", "$.a % 2 == 1", "rem(a, 2) == 1"),
    ("a mod 2 = 0", "$.a % 2 == 0", "rem(a, 2) == 0"),
    ("a % b = 1", "$.a % $.b == 1", "b != 0 and rem(a, b) == 1"),
    ("pow(a, 2) = 4", "$.a * $.a == 4", "a ** 2 == 4"),
    # Logic.
    ("a > 0 and b > 0", "$.a > 0 && $.b > 0", "a > 0 and b > 0"),
    ("a > 0 && b > 0", "$.a > 0 && $.b > 0", "a > 0 and b > 0"),
    ("a > 0 or b > 0", "$.a > 0 || $.b > 0", "a > 0 or b > 0"),
    ("a > 0 || b > 0", "$.a > 0 || $.b > 0", "a > 0 or b > 0"),
    ("not a > 0", "!($.a > 0)", "not a > 0"),
    ("not (a > 0 and b > 0)", "!($.a > 0 && $.b > 0)", "not (a > 0 and b > 0)"),
    ("a > 0 xor b > 0", "($.a > 0 && !($.b > 0)) || (!($.a > 0) && $.b > 0)", "(a > 0) != (b > 0)"),
    ("a = 1 or b = 1 and a = 2", "$.a == 1 || $.b == 1 && $.a == 2", "a == 1 or b == 1 and a == 2"),
    (
        "(a = 1 or b = 1) and a = 2",
        "($.a == 1 || $.b == 1) && $.a == 2",
        "(a == 1 or b == 1) and a == 2",
    ),
    ("a", "$.a != 0", "a"),
    ("a and b", "$.a != 0 && $.b != 0", "a and b"),
    ("a is null", "$.a == null || !exists($.a)", "False"),
    ("a is not null", "exists($.a) && $.a != null", "True"),
    ("(a > 0) is true", "$.a > 0", "a > 0"),
    ("(a > 0) is false", "$.a <= 0", "not a > 0"),
    # Literals.
    ("a = 0x2", "$.a == 2", "a == 0x2"),
    ("a = 02", "$.a == 2", "a == 2"),
    # Bits, of what is not negative, by arithmetic.
    ("a >= 0 and a & 1", "$.a >= 0 && $.a % 2 == 1", "a >= 0 and a & 1"),
    ("a >= 0 and a & 2", "$.a >= 0 && ($.a / 2).floor() % 2 == 1", "a >= 0 and a & 2"),
    ("a >= 0 and a << 1 = 4", "$.a >= 0 && $.a * 2 == 4", "a >= 0 and (a << 1) == 4"),
    ("a >= 0 and a >> 1 = 1", "$.a >= 0 && ($.a / 2).floor() == 1", "a >= 0 and (a >> 1) == 1"),
    ("~a = 1", "-$.a - 1 == 1", "~a == 1"),
    ("a in (1, 2)", "$.a == 1 || $.a == 2", "a in (1, 2)"),
]


def evaluate(python: str, a: int, b: int) -> bool:
    """Say whether a row with these columns is handed out."""
    return bool(eval(python, {"a": a, "b": b, "div": _divide, "rem": _remain}))


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remain(a: int, b: int) -> int:
    return a - b * _divide(a, b)
