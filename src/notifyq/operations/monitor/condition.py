"""Translates conditions on payloads that people type, `customer = 'x'`, into JSON paths.

A JSON path stays as it is, except that single quotes and a single = become double quotes and ==.
"""

import json
import re
from collections.abc import Callable, Iterator
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
    | (?P<wrong>\S)
    )""",
    re.VERBOSE,
)
_SAME = {"=": "==", ":": "==", "<>": "!="}
_WORDS = frozenset({"and", "or", "not", "in", "is", "like", "ilike", "between"})
_JSON_PATH = re.compile(r"\s*(?:\(\s*|!\s*)*(?:\$|exists\s*\(\s*[$(]|strict\b\s*\$|lax\b\s*\$)")
_PATCHED = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^']|'')*)'|(?<![=<>!])=(?!=)""", re.DOTALL)


class ConditionError(ValueError):
    """A condition cannot be parsed; the text names the position and gives examples."""


class _Token(NamedTuple):
    kind: str
    """The group of the pattern; of a mark its text."""
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in lower case, to compare with keywords; empty for other tokens."""
        return self.text.lower() if self.kind == "word" else ""


def json_path(text: str) -> str:
    """The JSON path of a condition; ConditionError where it cannot be parsed."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise ConditionError(f"a condition has at most {_LONGEST} characters")
    if _JSON_PATH.match(text):
        return _PATCHED.sub(_patched, text)
    if text.startswith("{"):
        return _contains(text)
    return _Reader(text).read()


def _patched(found: re.Match[str]) -> str:
    if found[0] == "=":
        return "=="
    return found[1] or json.dumps(found[2].replace("''", "'"), ensure_ascii=False)


def _contains(text: str) -> str:
    """The condition that a payload contains the members of this JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ConditionError(f"{_cut(text)} is not a JSON object: {EXAMPLES}") from None
    parts = list(_members(found, "$", 0))
    if not parts:
        raise ConditionError(f"{_cut(text)} contains no value: {EXAMPLES}")
    return " && ".join(parts)


def _members(value: object, path: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ConditionError(f"an object may be nested at most {_DEEPEST} levels deep")
    if isinstance(value, list):
        raise ConditionError("for a list, compare one element, as in items[*].price > 9")
    if isinstance(value, dict):
        for name, it in value.items():
            yield from _members(it, f"{path}.{_json(name)}", depth + 1)
    else:
        yield f"{path} == {_json(value)}"


class _Reader:
    """Parses comparisons with and, or, not and brackets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._position = 0
        self._depth = 0

    def read(self) -> str:
        if len(self._tokens) == 1:
            raise ConditionError(f"the condition is empty: {EXAMPLES}")
        path = self._any()
        if self._next().kind != "end":
            self._refuse("is not expected here")
        return path

    def _split(self) -> list[_Token]:
        tokens, end = [], len(self._text)
        for found in _TOKEN.finditer(self._text):
            kind = str(found.lastgroup)
            text, start = found[kind], found.start(kind)
            if kind == "wrong":
                what = "the quote is not closed" if text in "'\"" else "is not understood"
                raise ConditionError(f"at {_cut(self._text[start:])}: {what}: {EXAMPLES}")
            tokens.append(_Token(text if kind == "mark" else kind, text, start, found.end()))
        return [*tokens, _Token("end", "", end, end)]

    def _next(self, skip: int = 0) -> _Token:
        return self._tokens[min(self._position + skip, len(self._tokens) - 1)]

    def _take(self) -> _Token:
        token = self._next()
        self._position += 1
        return token

    def _is(self, *wanted: str) -> bool:
        token = self._next()
        return token.kind in wanted or token.word in wanted

    def _accept(self, *wanted: str) -> bool:
        """Take the next token if it is one of these."""
        if found := self._is(*wanted):
            self._take()
        return found

    def _expect(self, wanted: str, what: str) -> None:
        if not self._accept(wanted):
            self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        token = self._next()
        where = "the end" if token.kind == "end" else _cut(self._text[token.start :])
        raise ConditionError(f"at {where}: {what}: {EXAMPLES}")

    def _separated(self, read: Callable[[], str], *by: str) -> list[str]:
        found = [read()]
        while self._accept(*by):
            found.append(read())
        return found

    def _any(self) -> str:
        return " || ".join(self._separated(self._all, "or"))

    def _all(self) -> str:
        found = self._separated(self._one, "and", ",")
        return " && ".join(f"({it})" for it in found) if len(found) > 1 else found[0]

    def _one(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"brackets may be nested at most {_DEEPEST} levels deep")
        if self._is("not") and self._next(1).kind not in {"operator", "arrow"}:
            self._take()
            found = _not(self._one())
        elif self._accept("("):
            found = f"({self._any()})"
            self._expect(")", "a closing bracket is missing")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> str:
        path = self._path()
        is_negated = self._next(1).word in {"in", "like", "ilike"} and self._accept("not")
        token = self._next()
        if token.kind == "operator":
            self._take()
            return self._compare(path, _SAME.get(token.text, token.text))
        if self._accept("is"):
            return self._is_null(path)
        if self._accept("in"):
            found = " || ".join(_equal(path, it) for it in self._list())
        elif self._accept("like", "ilike"):
            flag = ' flag "i"' if token.word == "ilike" else ""
            found = f"{path} like_regex {_json(_like(self._value()))}{flag}"
        else:
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
        is_negated = self._accept("not")
        self._expect("null", "null is missing")
        return f"{path} != null" if is_negated else f"({path} == null || !exists({path}))"

    def _path(self) -> str:
        parts = [self._name()]
        while self._is("bracket", "arrow", "."):
            token = self._take()
            if token.kind == "bracket":
                parts.append("".join(token.text.split()))
                continue
            # SQL's payload ->> 'customer' names a member of the payload.
            if token.kind == "arrow" and parts in (['."payload"'], ['."message"']):
                parts = []
            parts.append(self._name())
        return "$" + "".join(parts)

    def _name(self) -> str:
        token = self._next()
        if token.kind not in {"word", "text"} or token.word in _WORDS - {"in", "is", "like"}:
            self._refuse("a name is missing")
        self._take()
        return f".{_json(_unquoted(token.text) if token.kind == 'text' else token.text)}"

    def _list(self) -> list[str]:
        self._expect("(", "a list in brackets is missing")
        found = self._separated(self._value, ",")
        self._expect(")", "a closing bracket is missing")
        return found

    def _value(self) -> str:
        """A text in quotes, or everything up to the next condition."""
        token = self._next()
        if token.kind == "text":
            self._take()
            return _unquoted(token.text)
        begin, last = self._position, token.start
        while not (self._is("end", "or", "and", ",", ")") and self._ends(self._next())):
            last = self._take().end
        value = self._text[token.start : last].strip()
        if not value or any(it in value for it in "'\"<>="):
            self._position = begin
            self._refuse("a value is missing, or needs quotes")
        return value

    def _ends(self, token: _Token) -> bool:
        """Whether a value ends before the token: in `x and y = 2`, not in `War and Peace`."""
        if token.kind != "word" or self._next(1).word == "not" or self._next(1).text == "(":
            return True
        skip = 2
        while (token := self._next(skip)).kind in {"bracket", "arrow", "(", ",", "."}:
            skip += 1 if token.kind == "bracket" else 2
        return token.kind == "operator" or token.word in _WORDS - {"and", "or"}


def _equal(path: str, value: str) -> str:
    """Compare with a number and with a text: 7 may be either in a payload."""
    scalar = _scalar(value)
    if scalar is None:
        return f"{path} == {_json(value)}"
    return f"({path} == {scalar} || {path} == {_json(value)})"


def _not(found: str) -> str:
    """The negation; unknown, as when a number is compared with a text, counts as false."""
    return f"(!({found}) || ({found}) is unknown)"


def _scalar(value: str) -> str | None:
    """The value if it is a number, true, false or null."""
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


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
