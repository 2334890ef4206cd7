"""Texts that anybody may have written, as a terminal or a log shows them."""

from __future__ import annotations

_LINE = 300


def printable(text: str) -> str:
    """A text without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def first_line(text: str | None, most: int = 500) -> str:
    """The first line of a text, up to `most` characters."""
    return printable((text or "").strip()[:most].partition("\n")[0])


def in_line(text: str) -> str:
    """A text in one line of bounded length, without control characters: for a log."""
    words = " ".join(text[: 10 * _LINE].split())
    line = printable(words)
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"


def printable_lines(text: str) -> str:
    """A text of several lines."""
    return "\n".join(map(printable, text.expandtabs(4).splitlines()))
