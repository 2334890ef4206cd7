"""The words: names, texts and docs use the terms of the field and not those that were retired."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.database import ROOT

# The term to use, and the words that it replaces everywhere: in names, comments, messages and docs.
_EVERYWHERE = {
    "notification": "bell bells doorbell summon summons rang rung",
    "suppress": "attend attends attended attending attendance",
    "full scan, check": "thorough glance",
    "listen, receive": "ear ears hear hears heard deaf",
    "transaction lock": "vigil",
    "workers, runner": "crew",
    "key hash": "lane lanes",
    "maintenance": "upkeep",
    "orphan": "stray strays",
    "fix": "mend mends mended",
    "unsuccessful": "vain",
    "result": "verdict verdicts",
    "the name of the thing": "whoever",
    "fail permanently, end": "dies died",
    "report, describe, query": "tells says said told asks",
}
# Words that are only retired as names: a sentence may need them in their ordinary meaning.
_IN_NAMES = {
    "notify": "rings",
    "suppress, lease": "silent silence promise promises",
    "poll, fetch, scan": "look looks looked",
    "slot, position, row": "place places",
    "limits": "flow flows",
    "before turn, prefetch, scheduled": "ahead",
    "prefetch": "pace",
    "in flight, settlement": "ledger",
    "maintain": "tend tends tended",
    "unlogged": "volatile",
    "runtime": "tools",
}
_PHRASES = {
    "permanently": "for ever",
    "such": "of the kind",
    "that needs": "who wants",
    "of notifyq": "one of ours",
}
# Names that keep such a word: the attribute of SQL functions, a public parameter, other libraries'.
_ALLOWED_NAMES = {
    "volatile",
    "days_ahead",
    "archive_policy_days_ahead_ck",
    "partitions_ahead",
    "addInPlace",
    "list_tools",
}


_ROOTS = ("src", "db", "bench", "clients", "workers", "tests", "docs", "tools", "scripts",
          "monitoring", ".ci")  # fmt: skip
_SUFFIXES = {".py", ".sql", ".md", ".sh", ".js", ".mjs", ".ts", ""}
_CACHES = {"__pycache__", "node_modules"}
FILES = sorted(
    path
    for root in (*(ROOT / name for name in _ROOTS), ROOT / "README.md", ROOT / "CHANGELOG.md")
    for path in (root.rglob("*") if root.is_dir() else [root])
    if path.is_file() and path.suffix in _SUFFIXES and not _CACHES.intersection(path.parts)
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def replacements(*tables: dict[str, str]) -> dict[str, str]:
    return {
        word: term for table in tables for term, words in table.items() for word in words.split()
    }


TEXT_WORDS = replacements(_EVERYWHERE)
NAME_WORDS = replacements(_EVERYWHERE, _IN_NAMES)


def words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case; snake_case and CamelCase names are split."""
    for run in re.findall(r"[A-Za-z]+", text):
        yield from (it.lower() for it in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", run))


def names(path: Path, text: str) -> set[str]:
    """Return the identifiers of a Python or SQL file."""
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME}
    if path.suffix == ".sql":
        code = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", text)
        return set(re.findall(r"[A-Za-z_]\w*", code))
    return set()


def retired(path: Path, text: str) -> list[str]:
    """Return the retired words of a file, each with its replacement."""
    found = {word: TEXT_WORDS[word] for word in words(text) if word in TEXT_WORDS}
    for identifier in (names(path, text) | {path.stem}) - _ALLOWED_NAMES:
        for word in words(identifier):
            if word in NAME_WORDS:
                found[identifier] = NAME_WORDS[word]
    prose = " ".join(text.lower().split())
    found |= {it: term for term, it in _PHRASES.items() if re.search(rf"\b{it}\b", prose)}
    return [f"{word} (use: {term})" for word, term in sorted(found.items())]


def test_no_file_uses_a_retired_word() -> None:
    found = {name(it): retired(it, it.read_text("utf-8")) for it in FILES if it != Path(__file__)}
    assert {file: words for file, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("a.py", "bell = 1", ["bell"]),
        ("a.py", "class DeafListener: ...", ["DeafListener", "deaf"]),
        ("a.py", "BELLS = 1  # the crew", ["BELLS", "bells", "crew"]),
        ("a.py", "def owes_look(place: int) -> None: ...", ["owes_look", "place"]),
        ("a.py", "# a look in place of another, and a lookup", []),
        ("a.py", "ring = replace(year, index)", []),
        ("a.sql", "create function f() returns int volatile as $$ $$;", []),
        (
            "a.sql",
            "select message_volatile, lane from place; -- look",
            ["lane", "message_volatile", "place"],
        ),
        ("a.sql", "raise exception 'the queue died'", ["died"]),
        ("a.md", "It waits for\never in vain.", ["for ever", "vain"]),
        ("a.md", "A look at the flow.", []),
        ("flow.md", "Limits", ["flow"]),
    ],
)
def test_retired_words_are_found(file: str, text: str, found: list[str]) -> None:
    assert [it.partition(" (")[0] for it in retired(ROOT / file, text)] == found
