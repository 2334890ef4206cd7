"""What can be said of a page without running anything: links, length, words, names of machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from docs.pages import PAGES, anchors, blocks, prose
from support.database import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CACHES = {".git", ".hypothesis", ".venv", "node_modules", "build", "dist"}


def files() -> Iterator[Path]:
    """Give every text file of the repository; caches and environments are not part of it."""
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        is_ours = parts[0] == ".ci" or not (
            _CACHES.intersection(parts) or any(part.endswith(("_cache", "-info")) for part in parts)
        )
        if is_ours and path.is_file() and "__pycache__" not in parts:
            yield path


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        linked = (page.parent / target).resolve() if target else page
        assert linked.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = {PAGES[0]}
    while ahead:
        reached |= ahead
        linked = {
            (page.parent / target).resolve()
            for page in ahead
            for target in re.findall(r"\]\(([^)#\s:]+\.md)[#)]", prose(page))
        }
        ahead = linked - reached
    assert not set(PAGES) - reached


def test_the_readme_is_short_and_has_both_commands() -> None:
    readme = text(PAGES[0])
    assert readme.count("\n") <= 200
    first, second = blocks(PAGES[0], "sh")[:2]
    assert first.text.rstrip().endswith("&& .venv/bin/notifyq demo")
    assert second.text == ".venv/bin/python -m pytest\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_message_is_always_called_a_message(page: Path) -> None:
    text = prose(page)
    if page.parent.name == "coming-from" or page.stem in {"comparison", "commands"}:
        # Others' names for it, where they are names.
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    assert re.findall(r"\b(?:jobs?|tasks?|leases?|consumers?)\b", text, re.IGNORECASE) == []


def test_no_page_has_a_tab_or_trailing_blanks() -> None:
    for page in PAGES:
        assert not re.search(r"\t|[ \t]+$", text(page), re.MULTILINE), page.name


def test_no_file_names_a_registry() -> None:
    """Packages and images come from wherever the machine is told to get them."""
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
