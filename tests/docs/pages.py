"""The documentation as data: pages, their fenced blocks, their headings, commands in them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.database import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# Made from the source by the programs of tools/docs.
GENERATED = {DOCS / "reference/settings.md"}

# Pages that the site continues, with anchors that test_site.py checks.
HEADS = {
    DOCS / f"reference/{name}.md" for name in ("commands", "metrics", "python", "sql", "telemetry")
}


def maker(name: str) -> Any:
    """Load a program of tools/docs; it may need the extra docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_id(page: Path) -> str:
    """Return the name of a page in the name of a test."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line of its page where its text begins."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def awaits(self) -> bool:
        """Whether it awaits something at its top, which only a session can do."""
        try:
            compile(self.text, "", "exec", dont_inherit=True)
        except SyntaxError:
            return True
        return False


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page in these languages, or in all."""
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not languages or match[1] in languages:
            line = text.count("\n", 0, match.start(2)) + 1
            found.append(Block(page, line, match[1], match[2]))
    return found


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made for Markdown."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Give each call of `notifyq` in the shell blocks of a page, and its arguments."""
    for block in blocks(page, "sh", "console"):
        for line in block.text.splitlines():
            for inner in re.findall(r"\$\(notifyq ([^)]*)\)", line):
                yield line, shlex.split(inner)
            # Of a pipe and of a redirection only the call itself counts.
            words = shlex.split(line, comments=True)
            calls = [n for n, word in enumerate(words) if re.search(r"(^|/)notifyq$", word)]
            for start in calls:
                rest = words[start + 1 :]
                stops = [n for n, word in enumerate(rest) if word in {"|", ">", "&&", ";"}]
                yield line, rest[: min(stops, default=len(rest))]
