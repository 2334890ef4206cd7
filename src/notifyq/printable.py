"""Texts that anybody may have written, as a terminal or a log shows them."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def first_line(text: str | None, most: int = 500) -> str:
    """The first line of a text, up to `most` characters."""
    return printable((text or "").strip()[:most].partition("\n")[0])


def printable_lines(text: str) -> str:
    """A text of several lines."""
    return "\n".join(map(printable, text.expandtabs(4).splitlines()))
