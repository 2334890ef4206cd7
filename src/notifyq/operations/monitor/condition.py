"""Conditions on payloads as people type them, made into JSON paths: `customer = 'x'`.

A text that is a JSON path already stays one; only single quotes and a single =, which JSON paths
lack, become those that they have.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

EXAMPLES = (
    "write NAME = VALUE, as in customer = 'x', user.id = 7 or amount > 50 and not paid = true, "
    "or a JSON path that is true or false, as in exists($.items[*] ? (@.price > 9))"
)
_LONGEST = 2000
_DEEPEST = 20
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*' | "(?:[^"\\]|\\.)*")
    | (?P<arrow>->>?)
    | (?P<operator><=|>=|<>|!=|!~\*?|~\*|==|=|<|>|~|:)
    | (?P<and>&&) | (?P<or>\|\|) | (?P<not>!)
    | (?P<bracket>\[\s*(?:\d+|\*)\s*\])
    | (?P<mark>[(),.])
    | (?P<word>(?:[^\s=<>!~:()\[\]"',.&|-]|\.(?=\d)|(?<=\d)\.|-(?!>)|&(?!&)|\|(?!\|))+)
    )""",
    re.VERBOSE,
)
_SAME = {"=": "==", ":": "==", "<>": "!="}
_WORDS = frozenset({"and", "or", "not", "in", "is", "like", "ilike", "between"})
_JSON_PATH = re.compile(r"\s*(?:\(\s*|!\s*)*(?:\$|exists\s*\(\s*[$(]|strict\b\s*\$|lax\b\s*\$)")
_PATCHED = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^']|'')*)'|(?<![=<>!])=(?!=)""", re.DOTALL)


class ConditionError(ValueError):
    """A condition that cannot be understood; the text says where, and what can be."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The keyword that this may be, in lower case."""
        return self.text.lower() if self.kind == "word" else ""


def json_path(text: str) -> str:
    """The JSON path of a condition; ConditionError for what is none."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise ConditionError(f"a condition has at most {_LONGEST} characters")
    if _JSON_PATH.match(text):
        return _PATCHED.sub(_patched, text)
    if text.startswith("{"):
        return _contains(text)
    return _Reader(text).read()


def _patched(found: re.Match[str]) -> str:
    """Single quotes and a single = are SQL's, which JSON paths lack."""
    if found[0] == "=":
        return "=="
    return found[1] or json.dumps(found[2].replace("''", "'"), ensure_ascii=False)


def _contains(text: str) -> str:
    """The condition that a payload has the members of an object, as it was pasted."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ConditionError(f"{_cut(text)} is no JSON object: {EXAMPLES}") from None
    parts: list[str] = []

    def walk(value: object, path: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise ConditionError(f"an object may be nested {_DEEPEST} deep here")
        match value:
            case dict():
                for name, it in value.items():
                    walk(it, f"{path}.{json.dumps(name, ensure_ascii=False)}", depth + 1)
            case list():
                raise ConditionError("of a list write one element, as in items[*].price > 9")
            case _:
                parts.append(f"{path} == {json.dumps(value, ensure_ascii=False)}")

    walk(found, "$", 0)
    if not parts:
        raise ConditionError(f"{_cut(text)} names no value: {EXAMPLES}")
    return " && ".join(parts)


class _Reader:
    """Reads comparisons with and, or, not and brackets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._place = 0
        self._depth = 0

    def read(self) -> str:
        if not self._tokens:
            raise ConditionError(f"the condition is empty: {EXAMPLES}")
        path = self._any()
        if self._place < len(self._tokens):
            self._refuse("does not belong there")
        return path

    def _split(self) -> list[_Token]:
        tokens, place = [], 0
        while self._text[place:].strip():
            found = _TOKEN.match(self._text, place)
            if found is None or found.lastgroup is None:
                rest = self._text[place:].strip()
                what = "its quote is not closed" if rest[0] in "'\"" else "is not understood"
                raise ConditionError(f"at {_cut(rest)}: {what}: {EXAMPLES}")
            kind = found.lastgroup
            tokens.append(_Token(kind, found[kind], found.start(kind), found.end()))
            place = found.end()
        return tokens

    # ---- tokens

    def _next(self, ahead: int = 0) -> _Token:
        place = self._place + ahead
        if place < len(self._tokens):
            return self._tokens[place]
        return _Token("end", "", len(self._text), len(self._text))

    def _take(self) -> _Token:
        token = self._next()
        self._place += 1
        return token

    def _is(self, *wanted: str) -> bool:
        token = self._next()
        return token.kind in wanted or token.word in wanted or (
            token.kind == "mark" and token.text in wanted
        )  # fmt: skip

    def _refuse(self, what: str) -> NoReturn:
        token = self._next()
        where = "the end" if token.kind == "end" else _cut(self._text[token.start :])
        raise ConditionError(f"at {where}: {what}: {EXAMPLES}")

    # ---- what is said

    def _any(self) -> str:
        found = [self._all()]
        while self._is("or"):
            self._take()
            found.append(self._all())
        return " || ".join(found)

    def _all(self) -> str:
        found = [self._one()]
        while self._is("and", ","):
            self._take()
            found.append(self._one())
        return " && ".join(f"({it})" for it in found) if len(found) > 1 else found[0]

    def _one(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"brackets may be nested {_DEEPEST} deep")
        if self._is("not") and self._next(1).kind not in {"operator", "arrow"}:
            self._take()
            found = _not(self._one())
        elif self._is("("):
            self._take()
            found = f"({self._any()})"
            if not self._is(")"):
                self._refuse("a closing bracket is missing")
            self._take()
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> str:
        path = self._path()
        is_negated = False
        if self._is("not") and self._next(1).word in {"in", "like", "ilike"}:
            self._take()
            is_negated = True
        token = self._next()
        if token.kind == "operator":
            self._take()
            return self._compare(path, _SAME.get(token.text, token.text))
        match token.word:
            case "is":
                self._take()
                return self._is_null(path)
            case "in":
                self._take()
                found = " || ".join(_equal(path, it) for it in self._list())
            case "like" | "ilike":
                self._take()
                flag = ' flag "i"' if token.word == "ilike" else ""
                found = f"{path} like_regex {_json(_like(self._value()))}{flag}"
            case _:
                self._refuse("a comparison is missing, such as = or >")
        return _not(found) if is_negated else f"({found})"

    def _compare(self, path: str, operator: str) -> str:
        value = self._value()
        if "~" in operator:
            flag = ' flag "i"' if operator.endswith("*") else ""
            found = f"{path} like_regex {_json(value)}{flag}"
            return _not(found) if operator.startswith("!") else found
        if operator == "==":
            return _equal(path, value)
        if operator == "!=":
            return f"(exists({path}) && {_not(_equal(path, value))})"
        return f"{path} {operator} {_scalar(value) or _json(value)}"

    def _is_null(self, path: str) -> str:
        is_negated = self._is("not")
        if is_negated:
            self._take()
        if not self._is("null"):
            self._refuse("null is missing")
        self._take()
        return f"{path} != null" if is_negated else f"({path} == null || !exists({path}))"

    def _path(self) -> str:
        names = [self._name()]
        path = ""
        while True:
            token = self._next()
            if token.kind == "bracket":
                self._take()
                path += f".{_json(names.pop())}" if names else ""
                path += "".join(token.text.split())
            elif token.kind == "arrow" or (token.kind == "mark" and token.text == "."):
                self._take()
                # payload ->> 'customer', as in SQL, is a member of the payload.
                is_whole = (
                    token.kind == "arrow" and not path and names in (["payload"], ["message"])
                )
                path += "" if is_whole or not names else f".{_json(names.pop())}"
                names = [self._name()]
            else:
                return f"${path}" + "".join(f".{_json(it)}" for it in names)

    def _name(self) -> str:
        token = self._next()
        if token.kind not in {"word", "text"} or token.word in _WORDS - {"in", "is", "like"}:
            self._refuse("the name of a value is missing")
        self._take()
        return _unquoted(token.text) if token.kind == "text" else token.text

    def _list(self) -> list[str]:
        if not self._is("("):
            self._refuse("a list in brackets is missing")
        self._take()
        found = [self._value()]
        while self._is(","):
            self._take()
            found.append(self._value())
        if not self._is(")"):
            self._refuse("a closing bracket is missing")
        self._take()
        return found

    def _value(self) -> str:
        """A text in quotes, or all up to what can only be the next condition."""
        token = self._next()
        if token.kind == "text":
            self._take()
            return _unquoted(token.text)
        first, last = token.start, token.start
        while not (self._is("end", "or", "and", ",", ")") and self._ends(self._next())):
            last = self._take().end
        value = self._text[first:last].strip()
        if not value or any(it in value for it in "'\"<>="):
            self._place = next(
                (n for n, it in enumerate(self._tokens) if it.start >= first), len(self._tokens)
            )
            self._refuse("a value is missing, or needs quotes")
        return value

    def _ends(self, token: _Token) -> bool:
        """Whether a value ends before this: `War and Peace` is one, `x and y = 2` is not."""
        if token.kind != "word" or self._next(1).word == "not" or self._next(1).text == "(":
            return True
        ahead = 2
        while (
            self._next(ahead).kind in {"bracket", "mark", "arrow"} and self._next(ahead).text != ")"
        ):
            ahead += 1 if self._next(ahead).kind == "bracket" else 2
        return self._next(ahead).kind == "operator" or self._next(ahead).word in _WORDS - {
            "and",
            "or",
        }


def _equal(path: str, value: str) -> str:
    """Compare with what a value may be: 7 is a number in one payload and a text in another."""
    scalar = _scalar(value)
    if scalar is None:
        return f"{path} == {_json(value)}"
    return f"({path} == {scalar} || {path} == {_json(value)})"


def _not(found: str) -> str:
    """The opposite of a condition; to compare a number with a text is neither true nor false."""
    return f"(!({found}) || ({found}) is unknown)"


def _scalar(value: str) -> str | None:
    """The value as a number, true, false or null, if it is one."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value.lower() if value.lower() in {"true", "false", "null"} else None
    is_scalar = found is None or isinstance(found, bool | int | float)
    return value if is_scalar and value not in {"NaN", "Infinity", "-Infinity"} else None


def _like(pattern: str) -> str:
    found = "".join({"%": ".*", "_": "."}.get(it) or re.escape(it) for it in pattern)
    return f"^{found}$"


def _unquoted(text: str) -> str:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1]


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
