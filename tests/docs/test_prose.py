"""Sentences of the pages: their length, their order, and what a linter for prose finds in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from proselint.checks import __register__
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry

from docs.pages import GENERATED, PAGES, page_id, prose

LintFile = import_module("proselint.tools").LintFile
WRITTEN = [page for page in PAGES if page not in GENERATED]

# Typography is for printed books; a repeated word is often two pieces of code.
_OFF = {"annotations", "lexical_illusions", "typography"}
_LINTER: Config = {
    "max_errors": 20,
    "checks": {name: on and name not in _OFF for name, on in DEFAULT["checks"].items()},
}
# "is read by a worker" hides who acts; "is emptied by `TRUNCATE`" names a means.
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were)\b(?: (?:not|never|always|also|only|then|\w+ly))* "
    r"(?:\w+(?:ed|en|wn|lt|pt|ght|ade)|cut|held|kept|read|sent|set|woken) "
    r"by (?!x\b|default\b|hand\b|ids?\b|itself\b|names?\b|themselves\b|then\b|\w+ing\b)"
)
_INVERTED = re.compile(r"(?:Of (?:an?|each|every|more|the|these|those|what)|Who(?:ever)?|Whom) ")


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page, without tables, headings, code and addresses of links."""
    text = re.sub(r"<!--[^>]*-->|^[|#].*$", "", prose(page), flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)|`[^`]*`", "x", text)
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split()))


def wrong(sentence: str) -> str | None:
    """Return what makes a sentence hard to read."""
    if len(sentence.split()) > 35:
        return "more than 35 words: split it"
    if _PASSIVE.search(sentence):
        return "passive: let the one that acts be the subject"
    if _INVERTED.match(sentence) and not sentence.endswith("?"):
        return "inverted: begin with the subject"
    return None


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_sentences_are_short_and_straight(page: Path) -> None:
    assert [f"{wrong(it)}: {it}" for it in sentences(page) if wrong(it)] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "word " * 36,
        "An expired lock is logged by the worker.",
        "Messages are always read by one process.",
        "Of each hour the first errors stay.",
        "Who has nothing waiting saves nothing up.",
    ],
)
def test_a_hard_sentence_is_found(sentence: str) -> None:
    assert wrong(sentence)


def test_a_linter_of_prose_finds_nothing() -> None:
    CheckRegistry().register_many(__register__)
    found = [
        f"{page_id(page)}: {it.check_result.check_path}: {it.check_result.message}"
        for page in WRITTEN
        for it in LintFile(page_id(page), "\n".join(sentences(page))).lint(_LINTER)
    ]
    assert found == []
    assert LintFile("one", "It is a very unique place.").lint(_LINTER)
