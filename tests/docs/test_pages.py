"""Rules for pages that need no server: links, length, words, names of machines."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import DOCS, HEADS, PAGES, anchors, blocks, page_id, prose
from support.database import ROOT

_CACHES = {".git", ".hypothesis", ".venv", "node_modules", "build", "dist"}


def files() -> Iterator[Path]:
    """Yield the text files of the repository, without caches and environments."""
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        is_source = parts[0] == ".ci" or not (
            _CACHES.intersection(parts) or any(part.endswith(("_cache", "-info")) for part in parts)
        )
        if is_source and path.is_file() and "__pycache__" not in parts:
            yield path


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        linked = (page.parent / target).resolve() if target else page
        assert linked.is_file(), f"{page.name} links to {target}"
        if anchor and linked not in HEADS:
            assert anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    found = {PAGES[0]}
    while found:
        reached |= found
        linked = {
            (page.parent / target).resolve()
            for page in found
            for target in re.findall(r"\]\(([^)#\s:]+\.md)[#)]", prose(page))
        }
        found = linked - reached
    assert not set(PAGES) - reached


def test_the_readme_is_short_and_has_both_commands() -> None:
    readme = text(PAGES[0])
    assert readme.count("\n") <= 150
    first, second = blocks(PAGES[0], "sh")[:2]
    assert first.text.rstrip().endswith("&& .venv/bin/notifyq demo")
    assert second.text.endswith(" && .venv/bin/python -m pytest\n")
    assert "[embedded]" in first.text
    assert "[dev]" in second.text


def test_every_extra_has_a_line() -> None:
    project = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]
    table = text(DOCS / "operations/install.md").partition("## Extras")[2]
    assert {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)} == {
        *project["optional-dependencies"]
    }


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_message_is_always_called_a_message(page: Path) -> None:
    text = prose(page)
    if page.parent.name == "coming-from" or page.stem in {"commands", "django", "pipelines"}:
        # Others' names for it, where they are names.
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    found = re.findall(
        r"\b(?:jobs?|tasks?|(?<!suppression )leases?|consumers?)\b", text, re.IGNORECASE
    )
    # The lease of the suppression protocol is one on its own pages.
    assert [it for it in found if not (page.stem == "notifications" and "lease" in it)] == []


# What is looked up, and what only those need who come from another queue.
APART = ("reference", "coming-from")
MOST_WORDS = 45_000
MOST_WORDS_OF_A_GUIDE = 900


def count_words(page: Path) -> int:
    return len(text(page).split())


def test_the_pages_are_short_enough_to_be_read() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in APART]
    words = {page_id(page): count_words(page) for page in pages}
    longest = sorted(words, key=words.__getitem__)[-5:]
    assert sum(words.values()) <= MOST_WORDS, f"shorten one: {longest}"


@pytest.mark.parametrize("page", sorted((DOCS / "guides").iterdir()), ids=page_id)
def test_a_guide_is_short_and_begins_with_code(page: Path) -> None:
    assert count_words(page) <= MOST_WORDS_OF_A_GUIDE
    before = text(page).partition("```")[0]
    assert len(before.split()) <= 60


def test_answers_are_short_and_lead_on() -> None:
    answers = re.split(r"^## .+$", prose(DOCS / "start/faq.md"), flags=re.MULTILINE)[1:]
    assert len(answers) >= 10
    for answer in answers:
        assert len(re.findall(r"[.!?](?=\s|$)", answer)) <= 5, answer
        assert "](" in answer, answer


def test_no_page_has_a_tab_or_trailing_blanks() -> None:
    for page in PAGES:
        assert not re.search(r"\t|[ \t]+$", text(page), re.MULTILINE), page.name


def test_no_file_names_a_registry() -> None:
    """Packages and images come from the registries that the machine is configured for."""
    # `docker.io` alone is a package of Debian's; as an address something follows it.
    host = re.compile(
        r"pypi\.|pythonhosted|docker\.io/|docker\.com|ghcr\.io|quay\.io|gcr\.io|"
        r"registry[-\w]*\.[-\w]+\.\w|npmjs|artifactory|"
        # The name of a language of XML is written like an address, and is none; names that are
        # kept for examples lead nowhere.
        r"https?://(?!www\.w3\.org/|[\w.-]+\.(?:example|invalid|test)\b)[\w.-]*\.[a-z]{2,}"
    )
    named = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files()
        if path.name != "test_pages.py"
        for match in host.finditer(text(path))
    ]
    assert not named


def test_no_file_names_a_folder_of_one_machine() -> None:
    folder = re.compile(r"(?<![\w}.])/(?:work|home|root|Users)/\w")
    named = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files()
        for match in folder.finditer(text(path))
    ]
    assert not named
