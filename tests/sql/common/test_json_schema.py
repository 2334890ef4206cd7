"""SQL accepts and refuses the same values as the library `jsonschema`."""

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from notifyq.queues.payload_schema import _library
from support.database import Connection

PAIRS = 4000
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
NAMES = ["a", "b", "ab", "c"]
TEXTS = ["", "a", "ab", "b1", "é€😀", "abcde"]
NUMBERS = [0, 1, -1, 2, 3, 1.0, 0.5, 1.5, 0.3, 1e3, -2.5]
BOUNDS = {
    **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], "number"),
    **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], "count"),
    **dict.fromkeys(["minProperties", "maxProperties"], "count"),
    **dict.fromkeys(["type", "enum", "const", "multipleOf", "uniqueItems", "pattern"]),
    **dict.fromkeys(["required", "dependentRequired"]),
}
SHAPES = [
    ["properties"],
    ["properties", "additionalProperties"],
    ["properties", "patternProperties", "additionalProperties"],
    ["propertyNames"],
    ["items"],
    ["prefixItems", "items"],
    ["contains"],
    ["contains", "minContains"],
    ["contains", "maxContains"],
    ["dependentSchemas"],
]


class Maker:
    """Makes schemas and values of few parts, so that they meet often."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        kind = self._random.choice(TYPES if depth else TYPES[:5])
        if kind == "array":
            return [self.value(depth - 1) for _ in range(self._random.randrange(4))]
        if kind == "object":
            return {name: self.value(depth - 1) for name in self._some(NAMES)}
        if kind == "string":
            return self._random.choice(TEXTS)
        plain = {"null": None, "boolean": self._random.random() < 0.5}
        return plain.get(kind, self._random.choice(NUMBERS))

    def schema(self, depth: int = 3) -> Any:
        if self._random.random() < 0.08:
            return self._random.random() < 0.7
        made: dict[str, Any] = {}
        for _ in range(self._random.choice((1, 1, 2, 3))):
            makers = [self._bound, self._bound, self._shape, self._choice]
            made |= self._random.choice(makers if depth else makers[:2])(depth - 1)
        return made

    def whole(self) -> Any:
        made = self.schema()
        if isinstance(made, dict) and self._random.random() < 0.3:
            made["$defs"] = {"it": self.schema(1)}
            made["items"] = {"$ref": "#/$defs/it"}
        return made

    def _some(self, of: list[Any]) -> list[Any]:
        return self._random.sample(of, self._random.randrange(len(of)))

    def _bound(self, _: int) -> dict[str, Any]:
        choose = self._random.choice
        count = self._random.randrange(4)
        kind = choose(list(BOUNDS))
        made: dict[str | None, Callable[[], Any]] = {
            "type": lambda: choose([choose(TYPES), self._some(TYPES) or ["null"]]),
            "enum": lambda: [self.value(1) for _ in range(3)],
            "const": lambda: self.value(1),
            "multipleOf": lambda: choose([1, 2, 0.5, 0.1, 1.0]),
            "uniqueItems": lambda: choose([True, False]),
            "pattern": lambda: choose(["^a", "b$", "^[a-c]+$", "."]),
            "required": lambda: self._some(NAMES),
            "dependentRequired": lambda: {choose(NAMES): self._some(NAMES)},
            "count": lambda: count,
            "number": lambda: choose(NUMBERS),
        }
        return {kind: made[BOUNDS[kind] or kind]()}

    def _shape(self, depth: int) -> dict[str, Any]:
        keywords = self._random.choice(SHAPES)
        made: dict[str | None, Callable[[], Any]] = {
            "properties": lambda: {name: self.schema(depth) for name in self._some(NAMES)},
            "patternProperties": lambda: {"^a": self.schema(depth)},
            "dependentSchemas": lambda: {"a": self.schema(depth)},
            "prefixItems": lambda: [self.schema(depth) for _ in range(2)],
            "minContains": lambda: self._random.randrange(3),
            "maxContains": lambda: self._random.randrange(3),
        }
        return {name: made.get(name, lambda: self.schema(depth))() for name in keywords}

    def _choice(self, depth: int) -> dict[str, Any]:
        keyword = self._random.choice(["allOf", "anyOf", "oneOf", "not", "if"])
        if keyword == "if":
            return {name: self.schema(depth) for name in ("if", "then", "else")}
        if keyword == "not":
            return {"not": self.schema(depth)}
        return {keyword: [self.schema(depth) for _ in range(1 + self._random.randrange(3))]}


def decimals(value: Any) -> Any:
    # The numbers of the library are floats unless they are given otherwise, and 0.3 is no multiple
    # of 0.1 then.
    return json.loads(json.dumps(value), parse_float=Decimal)


async def test_sql_and_python_accept_the_same_values(connection: Connection) -> None:
    maker = Maker(20201207)
    pairs = [(maker.whole(), maker.value()) for _ in range(PAIRS)]
    rows = await connection.fetch(
        "select notifyq.check_schema(p.schema, p.schema, '$'), "
        "notifyq.schema_error(p.value, p.schema, p.schema, '$') is null as takes "
        "from unnest($1::text[]::jsonb[], $2::text[]::jsonb[]) as p (schema, value)",
        *([json.dumps(pair[index]) for pair in pairs] for index in (0, 1)),
    )
    found = [row["takes"] for row in rows]
    expected = [_library()(schema).is_valid(value) for schema, value in decimals(pairs)]
    different = [
        (schema, value, is_valid)
        for (schema, value), takes, is_valid in zip(pairs, found, expected, strict=True)
        if takes is not is_valid
    ]
    assert different == []
    assert PAIRS / 5 < sum(found) < PAIRS * 4 / 5
